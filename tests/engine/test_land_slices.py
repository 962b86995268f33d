"""A backlog is landed in slices, and no table reads a landing before its first landing has reached its cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa  # type: ignore[import-untyped]  # has no types of its own
import pytest
from deltalake import DeltaTable, QueryBuilder

from spark.engine import land as landing
from spark.engine.land import capture, land
from spark.engine.status import observe, statuses
from spark.engine.step import step
from spark.engine.tick import tick
from spark.topology import Consumed, StreamsBuilder, Topology
from tests.support import lake
from tests.support.lake import Record, send

if TYPE_CHECKING:
    from collections.abc import Callable

    from resources.kafka import Kafka
    from spark.engine.land import Landed
    from spark.engine.ports import Ports


class Stopped(Exception):
    """The process that lands ends here."""


def stop(_: Landed) -> None:
    raise Stopped


def customers(topic: str) -> Topology:
    builder = StreamsBuilder(f"slices-{topic}")
    builder.global_table(topic, Consumed.json(key="id bigint", value="name string"))
    return builder.build()


def add(kafka: Kafka, topic: str, partitions: int, start: int, count: int) -> None:
    """Send records of new keys."""
    numbers = range(start, start + count)
    send(kafka, topic, *(Record(n, {"name": f"n{n}"}, partition=n % partitions) for n in numbers))


def batches(ports: Ports, topology: Topology) -> list[int]:
    """How many records each batch of the landing has, in their order."""
    landing = DeltaTable(lake.path(ports, topology, topology.sources[0].landing))
    query = "SELECT count(*) AS n FROM t GROUP BY _batch ORDER BY _batch"
    found = pa.table(QueryBuilder().register("t", landing).execute(query).read_all())
    return [int(count) for count in found["n"].to_pylist()]


@pytest.fixture
def tens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices of ten offsets."""
    monkeypatch.setattr(landing, "SLICE", 10)


@pytest.mark.usefixtures("tens")
def test_a_backlog_is_landed_in_slices_of_all_partitions_and_counted_together(
    kafka: Kafka, ports: Ports, topic: Callable[..., str]
) -> None:
    name = topic("customers", 2)
    add(kafka, name, 2, 0, 25)
    topology = customers(name)
    said: list[Landed] = []
    done = land(ports, topology, topology.sources[0], capture(kafka, topology), "test", said.append)
    assert (done.outcome, done.records, done.left) == ("landed", 25, 0)
    assert (done.start, done.end) == ({0: 0, 1: 0}, {0: 13, 1: 12})
    assert [(one.records, one.left) for one in said] == [(11, 14), (21, 4)]
    assert batches(ports, topology) == [11, 10, 4]
    assert done.position.bootstrap == {}
    assert done.position.n == 3


@pytest.mark.usefixtures("tens")
def test_no_table_reads_a_landing_before_it_reached_the_offsets_captured_first(
    kafka: Kafka, ports: Ports, topic: Callable[..., str]
) -> None:
    name = topic("customers")
    add(kafka, name, 1, 0, 25)
    topology = customers(name)
    [source], [table] = topology.sources, topology.tables
    with pytest.raises(Stopped):
        land(ports, topology, source, capture(kafka, topology), "died", stop)
    assert lake.state(ports, topology, source.landing).position.bootstrap == {0: 25}
    add(kafka, name, 1, 25, 10)
    stepped = step(ports, topology, table, "test")
    assert (stepped.outcome, stepped.waiting_for) == ("waiting", (source.landing,))
    _, [status, waiting] = observe(ports.lakehouse, kafka, topology)
    assert str(status.bootstrap) == "40% of 25 offsets; tables read it when it has all"
    assert waiting.waiting_for == (source.landing,)

    with pytest.raises(Stopped):  # of what was captured then, not of what came since
        land(ports, topology, source, capture(kafka, topology), "died", stop)
    _, [status, _] = observe(ports.lakehouse, kafka, topology)
    assert status.bootstrap is not None
    assert (status.bootstrap.landed, status.bootstrap.captured) == (20, 25)
    assert status.bootstrap.seconds_left is not None
    assert step(ports, topology, table, "test").outcome == "waiting"

    with pytest.raises(Stopped):
        land(ports, topology, source, capture(kafka, topology), "died", stop)
    assert step(ports, topology, table, "test").inserted == 30  # the third slice passed offset 25
    ticked = tick(ports, topology, "test")
    assert ticked.failed == {}
    assert len(lake.listed(lake.path(ports, topology, table.name))) == 35
    assert all(status.bootstrap is None for status in statuses(ports.lakehouse, topology, None))


@pytest.mark.usefixtures("tens")
def test_a_later_backlog_is_sliced_too_and_tables_read_what_has_landed(
    kafka: Kafka, ports: Ports, topic: Callable[..., str]
) -> None:
    name = topic("customers")
    add(kafka, name, 1, 0, 5)
    topology = customers(name)
    [source], [table] = topology.sources, topology.tables
    assert tick(ports, topology, "test").failed == {}
    read_at = lake.state(ports, topology, source.landing).position.read_at
    add(kafka, name, 1, 5, 25)
    with pytest.raises(Stopped):
        land(ports, topology, source, capture(kafka, topology), "died", stop)
    position = lake.state(ports, topology, source.landing).position
    assert position.bootstrap == {}
    assert position.read_at == read_at, "a tombstone may have been removed since the last cut was read"
    assert step(ports, topology, table, "test").inserted == 10
    assert tick(ports, topology, "test").failed == {}
    newest = lake.state(ports, topology, source.landing).position.read_at
    assert newest is not None
    assert read_at is not None
    assert newest > read_at
    assert len(lake.listed(lake.path(ports, topology, table.name))) == 30
    assert (
        DeltaTable(lake.path(ports, topology, source.landing)).version()
        == lake.state(ports, topology, source.landing).version
    )
