"""The driver computes all batches that wait at once. A driver that is looked at after every record computes one."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from spark.testing import TopologyTestDriver
from spark.testing.apart import WORLD, apart, own_topic
from spark.topology import (
    Consumed,
    JoinWindows,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    Topology,
    Versioned,
)
from spark.topology.nodes import KINDS, Node
from tests.support.quick import quick_session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from resources.engine import Engine

SHAPE = Consumed.json(key="k int", value="f int, v int, a array<int>")
KEYS = (0, 1, 2)
SIZE = 14
"""Records of a draw: a driver that is looked at after each takes seconds for every ten tables."""


def tables() -> Topology:
    """Joins of tables, aggregates, and views, over each other."""
    builder = StreamsBuilder("tables")
    a, b = (builder.table(name, SHAPE) for name in "ab")
    g = builder.global_table("g", SHAPE)
    both = ["left.f", "left.v", "right.v AS w"]
    joined = a.left_join(b, on="f", select=both).materialize("by_foreign_key")
    joined.group_by("w").aggregate(n="count(*)", total="sum(v)", least="min(v)", most="max(v)").materialize("folds")
    a.join(b, select=both).filter("v > 0").map_values("v + w AS x").materialize("inner")
    a.outer_join(b, select=both).materialize("outer")
    a.left_join(g, on="f", select=both).group_by("f").aggregate(all="sort_array(collect_list(w))").materialize("lists")
    joined.select_key("f").join(b, select=["left.k AS newest", "right.v"]).materialize("rekeyed")
    a.join(g, on="f", select=["left.v", "right.v AS w"]).map_values(["v", "w", "_topic AS topic"]).materialize("topics")
    return builder.build()


def lookups() -> Topology:
    """Streams that look tables up, of each kind, and tables of streams."""
    builder = StreamsBuilder("lookups")
    s, m = builder.stream("s", SHAPE), builder.stream("m", SHAPE)
    t, g = builder.table("t", SHAPE), builder.global_table("g", SHAPE)
    old = builder.table("old", SHAPE, versioned=Versioned("9ms"))
    found = ["left.v", "right.v AS w"]
    s.join(t, select=found).materialize("as_of")
    s.left_join(t.filter("v > 0"), on="f", select=found).materialize("of_a_view")
    named = s.merge(m).left_join(g, on="f", select=["left.f", *found]).materialize("of_a_global_table")
    s.left_join(old, select=found).materialize("back_in_time")
    s.join(old, on="f", select=found, grace="3ms").materialize("waiting")
    s.flat_map("a").filter("a > 0").select_key("a").to_table().materialize("rekeyed")
    named.group_by("f").aggregate(n="count(*)", total="sum(w)").materialize("folds")
    s.group_by("f").aggregate(all="sort_array(collect_list(v))").materialize("lists")
    m.to_table().materialize("newest")
    return builder.build()


def windows() -> Topology:
    """Windows of each kind, and what reads their rows."""
    builder = StreamsBuilder("windows")
    s = builder.stream("s", SHAPE)
    closed = Suppressed.until_window_closes()
    by_f = s.group_by("f")
    tumbling = by_f.windowed_by(TimeWindows.of("4ms", grace="2ms")).count()
    tumbling.materialize("tumbling")
    final = tumbling.suppress(closed).materialize("final")
    told = final.to_stream().map_values("count AS n").materialize("told")
    told.group_by("f").windowed_by(TimeWindows.of("8ms", grace="0ms")).aggregate(n="sum(n)").materialize("again")
    by_f.windowed_by(TimeWindows.of("6ms", advance="2ms", grace="1ms")).aggregate(
        all="sort_array(collect_list(v))"
    ).materialize("hopping")
    by_f.windowed_by(SlidingWindows.of("3ms", grace="2ms")).count().materialize("sliding")
    sessions = by_f.windowed_by(SessionWindows.of("2ms", grace="3ms")).aggregate(n="count(*)", total="sum(v)")
    sessions.materialize("sessions")
    sessions.suppress(closed).materialize("closed_sessions")
    return builder.build()


def pairs() -> Topology:
    """Joins of streams."""
    builder = StreamsBuilder("pairs")
    s, m = builder.stream("s", SHAPE), builder.stream("m", SHAPE)
    both = ["left.v", "right.v AS w"]
    near = JoinWindows.of("3ms", grace="2ms")
    alone = s.left_join(m, within=JoinWindows.of("2ms", before="1ms", grace="0ms"), select=both).materialize("left")
    s.filter("v > 0").outer_join(m.select_key("f"), within=near, select=both).materialize("outer")
    s.left_join(s, within=JoinWindows.of("2ms", before="-1ms", grace="1ms"), select=both).materialize("itself")
    found = s.join(m, within=near, select=both).materialize("stored")
    found.join(m.filter("v > 0"), within=near, select=["left.w", "right.v"]).materialize("of_a_join")
    alone.to_table().materialize("newest")
    return builder.build()


def changes() -> Topology:
    """The changes of a table as a stream."""
    builder = StreamsBuilder("changes")
    t = builder.table("t", SHAPE)
    s = builder.stream("s", SHAPE)
    stream = t.to_stream()
    stream.group_by("f").count().materialize("counted")
    stream.select_key("f").to_table().materialize("newest")
    kept = t.filter("v > 0").materialize("positive").to_stream().materialize("kept")
    kept.group_by("f").windowed_by(TimeWindows.of("5ms", grace="5ms")).count().materialize("windows")
    kept.join(s, within=JoinWindows.of("4ms", grace="4ms"), select=["left.v", "right.v AS w"]).materialize("joined")
    t.left_join(s.to_table().materialize("latest"), select=["left.v", "right.v AS w"], drive="left").materialize("once")
    return builder.build()


TOPOLOGIES: dict[str, Callable[[], Topology]] = {
    made.__name__: made for made in (tables, lookups, windows, pairs, changes)
}


@pytest.fixture(scope="module")
def session(engine: Engine) -> Iterator[SparkSession]:
    """One session for all draws."""
    session = quick_session(engine)
    yield session
    session.stop()


def drawn(rng: random.Random, topology: Topology, size: int) -> list[dict[str, Any]]:
    """Records for the topics of a topology: some late, some without key or value, some that do not decode."""
    topics, clock, found = [source.topic for source in topology.sources], 0, []
    for _ in range(size):
        clock += rng.choice((0, 1, 1, 2, 3, 7))
        whole: dict[str, object] = {"f": rng.choice((None, *KEYS)), "v": rng.choice((None, -1, 0, 1, 2, 3))}
        value = rng.choice((whole, whole, whole, whole | {"a": rng.choice(([], [1], [2, 3, 2]))}, None, b"{"))
        key = rng.choice((*KEYS, *KEYS, *KEYS, *KEYS, None))
        at = max(0, clock - rng.choice((0, 0, 0, 0, 1, 4, 12)))
        found.append(
            {"topic": rng.choice(topics), "key": key, "value": value, "timestamp": at, "partition": rng.randrange(2)}
        )
    return found


def seen(driver: TopologyTestDriver, topology: Topology) -> dict[str, object]:
    """All that a driver shows."""
    found: dict[str, object] = {}
    for table in topology.tables:
        found[table.name] = driver.table(table.name)
        found[f"{table.name}, emitted"] = driver.records(table.name)
        found[f"{table.name}, dropped"] = driver.dropped(table.name)
    for source in topology.sources:
        found[f"{source.topic}, quarantined"] = driver.quarantined(source.topic)
        found[f"{source.topic}, counted"] = driver.counted(source.topic)
    return found


def compare(session: SparkSession, topology: Topology, seed: int, size: int) -> None:
    """All records at once, those in two looks, and one by one: the driver shows the same."""
    rng = random.Random(seed)
    records, middle = drawn(rng, topology, size), rng.randrange(size)
    waiting, halves, single = (TopologyTestDriver(topology, session=session) for _ in range(3))
    for number, record in enumerate(records):
        for driver in (waiting, halves, single):
            driver.pipe(**record)
        single.advance()
        if number == middle:
            halves.advance()
    expected = seen(single, topology)
    for driver in (waiting, halves):
        found = seen(driver, topology)
        for name, one in expected.items():
            assert found[name] == one, name


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_what_waits_is_computed_as_if_each_record_were_looked_at(session: SparkSession, name: str) -> None:
    compare(session, TOPOLOGIES[name](), seed=1, size=SIZE)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(2, 8))
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_so_it_is_for_more_records(session: SparkSession, name: str, seed: int) -> None:
    compare(session, TOPOLOGIES[name](), seed, size=40)


def test_every_kind_of_node_is_computed_in_worlds() -> None:
    found: set[type[Node]] = set()

    def check(plan: Node, over: Node) -> None:
        found.add(type(plan))
        assert over.key == (WORLD, *plan.key)
        assert [column.name for column in over.columns] == [WORLD, *(column.name for column in plan.columns)]
        for source, below in zip(plan.sources, over.sources, strict=True):
            check(source, below)

    for made in TOPOLOGIES.values():
        for table in made().tables:
            check(table.plan, apart(table.plan))
    assert found == set(KINDS)


def test_a_topic_that_an_expression_reads_is_named_without_its_world() -> None:
    assert own_topic("upper(left._topic) || v") == "upper(substring(left._topic, 8)) || v"
    assert own_topic("`_topic` = 'a_topic'") == "substring(`_topic`, 8) = 'a_topic'"
    assert own_topic("struct(_timestamp, _TOPIC)") == "struct(_timestamp, substring(_TOPIC, 8))"
