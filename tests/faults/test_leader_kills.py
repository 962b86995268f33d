"""A leader and its follower tick in two processes, which are killed at random: no version ever mixes two prefixes.

The follower lands the leader's topic too, and joins its own table of the topic with the leader's. The two land at
different times, so only pins at one cut give both sides of a row the same amount.
"""

from __future__ import annotations

import os
import random
import secrets
import time
from typing import TYPE_CHECKING

from resources.kafka import Kafka
from spark.engine.audit import audit
from spark.engine.ports import Ports
from spark.engine.tick import tick
from spark.topology import Consumed, StreamsBuilder, Topology
from spark.topology.handles import KTable
from tests.faults.kills.ticking import Client, Kills
from tests.support import lake
from tests.support.lake import Record, Row, send

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from resources.engine import Engine
    from resources.lakehouse import Lakehouse

SEED = int(os.environ.get("TIDETABLE_SEED", secrets.randbelow(1_000_000)))
KILLS = int(os.environ.get("TIDETABLE_KILLS", "50")) if "TIDETABLE_FAULTS" in os.environ else 3
LONGEST = 8.0  # seconds from one kill to the next; a process begins with its first tick after two, which takes three


def topologies(payments: str) -> tuple[Topology, Topology]:
    """The leader, which has payments and their sums; and the follower, which compares both with its own."""
    columns = Consumed.json(key="id bigint", value="payer bigint, amount bigint")
    leading, following = StreamsBuilder(f"led-{payments}"), StreamsBuilder(f"follows-{payments}")
    paid = leading.table(payments, columns)
    paid.group_by("payer").aggregate(total="sum(amount)").materialize("totals")

    def read(name: str, table: str, key: str, value: str) -> KTable:
        return following.read_only_table(
            name, from_=f"led-{payments}.{table}", key=key, value=value, allow_missing=True
        )

    mine = following.table(payments, columns)
    theirs = read("theirs", payments, "id bigint", "amount bigint")
    sides = ["left.amount AS mine", "right.amount AS theirs"]
    mine.outer_join(theirs, select=sides).materialize("payments_compared")
    totals = mine.group_by("payer").aggregate(total="sum(amount)")
    sides = ["left.total AS mine", "right.total AS theirs"]
    totals.outer_join(read("totals", "totals", "payer bigint", "total bigint"), select=sides).materialize(
        "totals_compared"
    )
    theirs.map_values("*").materialize("copy")
    return leading.build(), following.build()


def test_no_version_of_a_follower_is_wrong_whoever_is_killed(
    engine: Engine, kafka: Kafka, lakehouse: Lakehouse, topic: Callable[..., str], tmp_path: Path
) -> None:
    print(f"TIDETABLE_SEED={SEED}")  # seen where the test fails
    rng, payments = random.Random(SEED), topic("payments", 2)
    made = topologies(payments)
    kills = Kills(tmp_path / "kills")
    kills.path.touch()
    address = Kafka({"bootstrap.servers": kafka.address})  # one that has not opened anything can be sent to a process
    clients = []
    for one in made:
        (tmp_path / one.name).mkdir()
        clients.append(Client(engine, lakehouse, address, one, kills, tmp_path / one.name))

    def pay() -> None:
        records = []
        for _ in range(5):
            key = rng.randrange(20)
            row: Row | None = {"payer": rng.randrange(4), "amount": rng.randrange(1, 100)}
            records.append(Record(key, None if rng.random() < 0.2 else row, key % 2))
        send(kafka, payments, *records)

    pay()
    running = [client.started("0") for client in clients]
    lake.until(lambda: all(client.ticks() for client in clients))
    for number in range(1, KILLS + 1):
        until = time.monotonic() + rng.uniform(0.2, LONGEST)
        while time.monotonic() < until:
            pay()
            time.sleep(0.2)
        which = rng.randrange(2)
        running[which] = clients[which].restarted(running[which], str(number))
    lake.until(lambda: all(client.ticks() for client in clients))
    for process in running:
        process.kill()
        process.join()
    ended = [one for client in clients for one in client.ticks()]
    assert [one for one in ended if one.alone and one.failed] == [], "a tick failed that no kill disturbed"

    ports, (leader, follower) = Ports(engine, lakehouse, kafka), made
    for one in made:
        assert tick(ports, one, "settled").failed == {}
    seen = 0
    for name in ("payments_compared", "totals_compared"):
        for version in range(lake.versions(ports, follower, name) + 1):
            rows = lake.listed(lake.path(ports, follower, name), version)
            assert [row for row in rows if row["mine"] != row["theirs"]] == [], (name, version)
            seen += bool(rows)
    assert seen >= 4, "versions with rows"
    theirs = lake.rows(ports, leader, payments, ["amount"])
    assert lake.rows(ports, follower, "copy") == theirs == lake.rows(ports, follower, payments, ["amount"])
    for one in made:
        assert all(audit(ports, one, table).holds for table in one.tables)
