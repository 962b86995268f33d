"""Windows on real topics and real Delta, tick by tick: what is late stays late, and what is closed stays closed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from spark.engine.audit import audit
from spark.engine.dropped_records import dropped_records
from spark.engine.errors import PlanChanged
from spark.engine.ports import Ports
from spark.engine.rebuild import rebuild
from spark.engine.tick import tick
from spark.topology import Consumed, SessionWindows, SlidingWindows, StreamsBuilder, Suppressed, TimeWindows, Topology
from tests.support import lake
from tests.support.lake import Record, send

if TYPE_CHECKING:
    from collections.abc import Callable

    from resources.engine import Engine
    from resources.kafka import Kafka
    from resources.lakehouse import Lakehouse

SINCE = 1_700_000_000_000  # milliseconds since 1970
DAY = 86_400_000


def record(sku: str | None, at: int, partition: int = 0) -> Record:
    """A click, some milliseconds after the first."""
    return Record("ada", {"sku": sku}, partition=partition, timestamp=SINCE + at)


WAVES: list[list[Record]] = [
    [record("pen", 3), record("pen", 8), record("ink", 12, partition=1)],
    [record("pen", 4), record("cap", 16), record(None, 16), Record("ben", None, timestamp=SINCE + 16)],
    # Behind a restart: time is 16, and 5 ms of grace are over for the window up to 10, not for the one up to 20.
    [record("pen", 7), record("ink", 14, partition=1)],
    [],
    [record("zip", DAY)],
    [record("pen", 20, partition=1)],
]
# What each wave leaves: clicks by sku and by where the window of 10 ms begins.
TUMBLING: list[dict[tuple[str, int], int]] = [
    {("pen", 0): 2, ("ink", 10): 1},
    {("pen", 0): 3, ("ink", 10): 1, ("cap", 10): 1},
    {("pen", 0): 3, ("ink", 10): 2, ("cap", 10): 1},
    {("pen", 0): 3, ("ink", 10): 2, ("cap", 10): 1},
    {("pen", 0): 3, ("ink", 10): 2, ("cap", 10): 1, ("zip", DAY): 1},
    {("pen", 0): 3, ("ink", 10): 2, ("cap", 10): 1, ("zip", DAY): 1},
]
CLOSED: list[dict[tuple[str, int], int]] = [
    {},
    {("pen", 0): 3},
    {("pen", 0): 3},
    {("pen", 0): 3},
    {("pen", 0): 3, ("ink", 10): 2, ("cap", 10): 1},
    {("pen", 0): 3, ("ink", 10): 2, ("cap", 10): 1},
]


def topology(clicks: str, followed: bool = True, grace: str = "5ms") -> Topology:
    """Clicks per product in windows and sessions, and what reads them."""
    builder = StreamsBuilder(f"windows-{clicks}")
    c = builder.stream(clicks, Consumed.json(key="user string", value="sku string"))
    closed = Suppressed.until_window_closes()
    counted = c.group_by("sku").windowed_by(TimeWindows.of("10ms", grace=grace)).count()
    counted.materialize("counted")
    final = counted.suppress(closed).materialize("final")
    visits = c.group_by("sku").windowed_by(SessionWindows.of("5ms", grace="5ms")).count()
    visits.materialize("visits").suppress(closed).materialize("visited")
    if followed:
        counted.filter("count > 1").group_by("sku").aggregate(most="max(count)").materialize("most")
        final.to_stream().materialize("told")
        stored = c.filter("sku <> 'cap'").materialize("stored")
        slid = stored.group_by("sku").windowed_by(SlidingWindows.of("5ms", grace="5ms")).count()
        slid.suppress(closed).materialize("slid")
    return builder.build()


def found(ports: Ports, made: Topology, name: str) -> dict[tuple[object, object], object]:
    """The counts by product and the begin of their window."""
    rows = lake.listed(lake.path(ports, made, name))
    assert len({(row["sku"], row["_window_start"], row["_window_end"]) for row in rows}) == len(rows)
    return {(row["sku"], int(str(row["_window_start"])) - SINCE): row["count"] for row in rows}


def test_windows_follow_their_topic_tick_by_tick(
    engine: Engine, kafka: Kafka, lakehouse: Lakehouse, topic: Callable[..., str]
) -> None:
    name = topic("clicks", partitions=2)
    for number, wave in enumerate(WAVES):
        send(kafka, name, *wave)
        ports, made = Ports(engine, lakehouse, kafka), topology(name)  # nothing is remembered but by the tables
        ticked = tick(ports, made, f"wave {number}")
        assert ticked.failed == {}
        assert found(ports, made, "counted") == TUMBLING[number]
        assert found(ports, made, "final") == CLOSED[number]
        assert found(ports, made, "told") == CLOSED[number], "one record for every row"
        assert all(done.deleted == 0 for done in ticked.stepped if not done.table.endswith("visits"))
        assert all(done.updated == 0 for done in ticked.stepped if done.table.endswith(("final", "slid", "visited")))
        for table in made.tables[number % 8 :: 8]:  # an audit costs more than a step
            assert audit(ports, made, table).holds, (number, table.name)
    assert lake.rows(ports, made, "most") == {"pen": {"most": 3}, "ink": {"most": 2}}
    assert found(ports, made, "slid") == {
        # The click at 4 came when windows up to 6 were closed, the one at 7 when those up to 10 were.
        **{("pen", -2): 1, ("pen", 3): 3, ("pen", 4): 2, ("pen", 5): 1, ("pen", 8): 1},
        **{("ink", 7): 1, ("ink", 9): 2, ("ink", 13): 1},
    }
    assert found(ports, made, "visits") == {
        # The click at 7 is in time: what ends at 8 is open until 18.
        **{("pen", 3): 4, ("ink", 12): 2, ("cap", 16): 1, ("zip", DAY): 1},
    }
    assert found(ports, made, "visited") == {("pen", 3): 4, ("ink", 12): 2, ("cap", 16): 1}
    state = lake.state(ports, made, "final")
    assert state.position.time == (SINCE + DAY) * 1000
    assert state.position.dropped == {"late": 2, "null key": 1, "null value": 1}
    dropped = dropped_records(ports, made, made.table("final"), limit=10).records
    assert {(one.partition, one.offset, one.reason) for one in dropped} == {
        *((0, 4, "null key"), (0, 5, "null value"), (0, 6, "late"), (1, 2, "late")),
    }
    other = topology(name, grace="1s")
    with pytest.raises(PlanChanged, match="computed by another definition"):
        dropped_records(ports, other, other.table("final"), limit=10)


@pytest.mark.thorough
def test_windows_are_rebuilt_by_the_spans_they_were_computed_in(
    engine: Engine, kafka: Kafka, lakehouse: Lakehouse, topic: Callable[..., str]
) -> None:
    name, ports = topic("clicks", partitions=2), Ports(engine, lakehouse, kafka)
    made = topology(name, followed=False)
    # In one span the second click would come before the first, which would be in time.
    for wave in ([record("pen", 40)], [record("pen", 3, partition=1)], [record("pen", 99)]):
        send(kafka, name, *wave)
        assert tick(ports, made, "wave").failed == {}
    for table in ("counted", "final", "visits", "visited"):
        before = lake.rows(ports, made, table)
        rebuilt = rebuild(ports, made, made.table(table), "rebuild")
        assert (rebuilt.inserted, rebuilt.updated, rebuilt.deleted) == (0, 0, 0)
        assert lake.rows(ports, made, table) == before
        if table != "visited":
            assert lake.state(ports, made, table).position.dropped == {"late": 1}
    DeltaTable(lake.path(ports, made, "final")).delete("sku = 'pen'")
    assert not audit(ports, made, made.table("final")).holds
    assert rebuild(ports, made, made.table("final"), "again").inserted == 1
    assert audit(ports, made, made.table("final")).holds
    send(kafka, name, record("pen", 200))
    assert tick(ports, made, "go on").failed == {}
    assert found(ports, made, "final") == {("pen", 40): 1, ("pen", 90): 1}
