"""What one account gains another loses: no version of the total was ever anything but zero, whatever failed."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from spark.engine.audit import audit
from spark.engine.errors import InputChanged
from spark.engine.ports import Ports
from spark.engine.tick import tick
from spark.topology import Consumed, StreamsBuilder, Topology
from tests.support import lake
from tests.support.lake import Record, send

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from resources.engine import Engine
    from resources.kafka import Kafka
    from resources.lakehouse import Lakehouse
    from tests.support.lake import Row

ACCOUNTS = range(1, 6)

# Which tables' steps fail in each wave: one arm of the diamond, the other, both, what is behind them.
FAILING: list[set[str]] = [set(), {"debits"}, {"credits"}, {"balances"}, {"credits", "debits"}, {"total"}, set()]


def topology(transfers: str) -> Topology:
    """Transfers summed up twice, by who gains and by who loses, and all balances together."""
    builder = StreamsBuilder(f"bank-{transfers}")
    t = builder.table(transfers, Consumed.json(key="id bigint", value="src bigint, dst bigint, amount bigint"))
    credits = t.map_values(["dst AS account", "amount"]).group_by("account").aggregate(gained="sum(amount)")
    debits = t.map_values(["src AS account", "amount"]).group_by("account").aggregate(lost="sum(amount)")
    credits.materialize("credits")
    debits.materialize("debits")
    balance = "coalesce(left.gained, 0) - coalesce(right.lost, 0) AS balance"
    balances = credits.outer_join(debits, select=[balance]).materialize("balances")
    everyone = balances.map_values(["1 AS everyone", "balance"]).group_by("everyone")
    everyone.aggregate(total="sum(balance)", accounts="count(*)").materialize("total")
    return builder.build()


def refuse(batch: DataFrame) -> None:  # noqa: ARG001  # a gate's argument has this name
    """A gate that lets nothing through."""
    raise InputChanged("planned")


@pytest.fixture(scope="module")
def bank(engine: Engine, kafka: Kafka, lakehouse: Lakehouse, topic: Callable[..., str]) -> tuple[Ports, Topology]:
    """Waves of transfers, changed ones and cancelled ones among them; in most, a step fails."""
    rng = random.Random(20)
    name = topic("transfers", 2)
    ports, made = Ports(engine, lakehouse, kafka), topology(name)
    failed: set[str] = set()
    for number, failing in enumerate(FAILING):
        records = []
        for _ in range(12):
            key = rng.randrange(20)
            src, dst = rng.sample(ACCOUNTS, 2)
            row: Row | None = None if rng.random() < 0.2 else {"src": src, "dst": dst, "amount": rng.randrange(1, 100)}
            records.append(Record(key, row, key % 2))
        send(kafka, name, *records)
        ticked = tick(ports, made, f"wave {number}", dict.fromkeys(failing, lake.Watching(refuse)))
        assert ticked.failed.keys() <= failing
        failed |= ticked.failed.keys()
    assert failed == set().union(*FAILING), "what was to fail did"
    return ports, made


def test_every_version_of_the_total_that_ever_was_is_zero(bank: tuple[Ports, Topology]) -> None:
    ports, made = bank
    seen = 0
    for version in range(lake.versions(ports, made, "total") + 1):
        for row in lake.listed(lake.path(ports, made, "total"), version):
            assert row["total"] == 0, version
            seen += 1
    assert seen >= 3, "versions with a row"


def test_in_the_end_all_of_it_is_there_and_every_table_is_its_query(bank: tuple[Ports, Topology]) -> None:
    ports, made = bank
    [name] = [source.topic for source in made.sources]
    expected = dict.fromkeys(ACCOUNTS, 0)
    touched = set()
    for row in lake.rows(ports, made, name).values():
        src, dst, amount = (row[column] for column in ("src", "dst", "amount"))
        assert isinstance(src, int)
        assert isinstance(dst, int)
        assert isinstance(amount, int)
        expected[dst] += amount
        expected[src] -= amount
        touched |= {src, dst}
    assert lake.rows(ports, made, "balances") == {key: {"balance": expected[key]} for key in touched}
    for table in made.tables:
        assert audit(ports, made, table).holds
