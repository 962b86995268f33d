"""A client that lands a recorded PostgreSQL and joins its tables is killed at random: every version is the database's.

Each version of the join names the offsets that it was computed from. Where these lie between two statements, the
version has the join of the two tables that the database had behind these statements.
"""

from __future__ import annotations

import os
import random
import secrets
import time
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING

from resources.kafka import Kafka
from spark.engine.audit import audit
from spark.engine.log.stored_table import StoredTable
from spark.engine.ports import Ports
from tests.debezium.recording import recording
from tests.debezium.shop import as_recorded, expected, shop
from tests.faults.kills.ticking import Client, Kills
from tests.support import lake

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from resources.engine import Engine
    from resources.lakehouse import Lakehouse
    from tests.debezium.recording import Statement
    from tests.debezium.shop import Shop

SEED = int(os.environ.get("TIDETABLE_SEED", secrets.randbelow(1_000_000)))
KILLS = int(os.environ.get("TIDETABLE_KILLS", "50")) if "TIDETABLE_FAULTS" in os.environ else 3
LONGEST = 12.0  # seconds from one kill to the next; a process begins with its first tick after two, which takes five

CUSTOMERS, ORDERS = "shop.public.customers", "shop.public.orders"
CONNECTOR = "string"


def test_every_version_of_the_join_is_the_databases_whenever_the_client_is_killed(
    engine: Engine, kafka: Kafka, lakehouse: Lakehouse, topic: Callable[..., str], tmp_path: Path
) -> None:
    print(f"TIDETABLE_SEED={SEED}")  # seen where the test fails
    rng, ports = random.Random(SEED), Ports(engine, lakehouse, kafka)
    it = shop(ports, kafka, topic, "json", 1, True)
    kills = Kills(tmp_path / "kills")
    kills.path.touch()
    address = Kafka({"bootstrap.servers": kafka.address})  # one that has not opened anything can be sent to a process
    client = Client(engine, lakehouse, address, it.topology, kills, tmp_path)
    left = recording("shop")[:]
    send(it, left.pop(0))
    running = client.started("0")
    lake.until(client.ticks)
    for number in range(1, KILLS + 1):
        until = time.monotonic() + rng.uniform(0.2, LONGEST)
        share = len(left) // (KILLS + 1 - number)
        for count in range(share, 0, -1):
            send(it, left.pop(0))
            time.sleep(max(0.0, until - time.monotonic()) / count)
        running = client.restarted(running, str(number))
    last = tmp_path / f"{KILLS}.jsonl"
    lake.until(lambda: last.exists() and "\n" in last.read_text())
    running.kill()
    running.join()
    assert [one for one in client.ticks() if one.alone and one.failed] == [], "a tick failed that no kill disturbed"

    assert left == []
    it.tick()
    it.holds(recording("shop")[-1])
    for table in it.topology.tables:
        assert audit(ports, it.topology, table).holds
    assert compared(it) >= 2, "the first version and the last one, at least"


def send(it: Shop, statement: Statement) -> None:
    """Send what a statement did."""
    it.take(statement, CONNECTOR, "json")
    it.send(len(it.events))


def compared(it: Shop) -> int:
    """Compare every version of the join whose offsets lie between two statements; how many those were."""
    behind = {name: by_offset(name) for name in (CUSTOMERS, ORDERS)}
    count = 0
    for commit in StoredTable.of(it.ports.lakehouse, it.topology.name, "joined").commits():
        ends = {topic.partition("/")[2]: at.offsets.get(0, 0) for topic, at in commit.position.cut.items()}
        found = [behind[name].get(ends[it.topics[name]]) for name in (CUSTOMERS, ORDERS)]
        if None in found:
            continue
        customers, orders = (one for one in found if one is not None)
        both = replace(orders, tables={**orders.tables, "customers": customers.tables["customers"]})
        wanted = expected(both)["joined"]
        columns = next(iter(wanted.values()), {})
        rows = lake.rows(it.ports, it.topology, "joined", version=commit.version)
        assert {key: as_recorded(row, columns) for key, row in rows.items()} == wanted, (commit.version, ends)
        count += 1
    return count


def by_offset(name: str) -> Mapping[int, Statement]:
    """By the end of a topic, the first statement behind which it ends there."""
    statements = recording("shop")
    counts = [sum(event.topic == name for event in one.events(CONNECTOR, "json")) for one in statements]
    found: dict[int, Statement] = {}
    for end, statement in zip(accumulate(counts), statements, strict=True):
        found.setdefault(end, statement)
    return found
