"""A tick lands everything to one cut and steps everything to it, whoever else does the same."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from spark.engine.audit import audit
from spark.engine.errors import EngineError, ExpressionFailed
from spark.engine.log.stored_table import StoredTable
from spark.engine.offsets import TopicMissing
from spark.engine.ports import Ports
from spark.engine.tick import TickEvent, tick
from spark.topology import Consumed, StreamsBuilder, Topology
from tests.engine.shop import Story
from tests.support import lake
from tests.support.lake import NoEngine, Record, copied, send

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame

    from resources.kafka import Kafka


def numbers(ports: Ports, topology: Topology, name: str) -> list[int]:
    """The numbers of a table's commits, oldest first."""
    where = lake.path(ports, topology, name)
    return [commit.position.n for commit in StoredTable(f"{topology.name}/{name}", where).commits()][::-1]


def test_an_idle_tick_opens_no_session(story: Story) -> None:
    done = tick(Ports(NoEngine(), story.last.ports.lakehouse, story.last.ports.kafka), story.topology, "idle")
    assert {landed.outcome for landed in done.landed} == {"idle"}
    assert {stepped.outcome for stepped in done.stepped} == {"idle"}
    assert len(done.landed) + len(done.stepped) == 10


def test_all_tables_of_a_tick_are_at_its_cut(story: Story) -> None:
    for wave in story.waves.values():
        landed = {topic: cut for done in wave.ticked.landed for topic, cut in done.position.cut.items()}
        for done in wave.ticked.stepped:
            assert done.after is not None
            cut = done.after.position.cut
            assert cut == {topic: landed[topic] for topic in cut}


def test_two_ticks_at_once_commit_each_step_once(story: Story, tmp_path: Path) -> None:
    ports = copied(story.waves["first"].ports, story.topology, tmp_path)
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(lambda run: tick(ports, story.topology, run), ("one", "other"))
    assert (one.failed, other.failed) == ({}, {})
    for source in story.topology.sources:
        assert numbers(ports, story.topology, source.landing) == [1, 2]
        assert lake.records(ports, story.topology, source.topic) == [
            row | {"_batch": min(int(str(row["_batch"])), 2)}
            for row in lake.records(story.last.ports, story.topology, source.topic)
        ]
    for name in story.shop.names():
        expected = story.last.expected["titled" if name == "looked_up" else name]
        found = lake.rows(ports, story.topology, name, list(next(iter(expected.values()))))
        if name == "looked_up":  # untouched rows keep what they found in the first wave
            kept = story.waves["first"].expected[name]
            found = {key: row for key, row in found.items() if kept.get(key) != row}
            expected = {key: expected[key] for key in found}
        assert found == expected, name
        assert numbers(ports, story.topology, name) == [1, 2]
    assert audit(ports, story.topology, story.topology.table("looked_up")).holds


class Refused(EngineError):
    """What a gate says."""


def test_a_table_that_fails_does_not_stop_the_others(story: Story, tmp_path: Path) -> None:
    ports = copied(story.waves["first"].ports, story.topology, tmp_path)

    def gate(batch: DataFrame) -> None:
        raise Refused(f"not today: {batch.columns}")

    said: list[TickEvent] = []
    done = tick(ports, story.topology, "test", {"titled": lake.Watching(gate)}, said.append)
    assert list(done.failed) == ["titled"]
    assert isinstance(done.failed["titled"], Refused)
    assert {stepped.table.rpartition("/")[2]: stepped.outcome for stepped in done.stepped} == dict.fromkeys(
        [name for name in story.shop.names() if name != "titled"], "stepped"
    )
    assert len(said) == 10
    assert done.failed["titled"] in said
    assert numbers(ports, story.topology, "titled") == [1]

    again = tick(ports, story.topology, "again")
    assert again.failed == {}
    outcomes = {stepped.table.rpartition("/")[2]: stepped.outcome for stepped in again.stepped}
    assert outcomes == {name: "stepped" if name == "titled" else "idle" for name in outcomes}
    expected = story.last.expected["titled"]
    assert lake.rows(ports, story.topology, "titled", list(next(iter(expected.values())))) == expected


def failing(topic: str, expression: str, ansi: bool = True) -> Topology:
    """A table that computes, one that reads it, and one that does not."""
    builder = StreamsBuilder(f"failing-{topic}", ansi=ansi)
    items = builder.table(topic, Consumed.json(key="id bigint", value="v int, text string"))
    computed = items.map_values([f"{expression} AS x"]).materialize("computed")
    computed.filter("x > 0").materialize("reader")
    items.map_values(["v + 1 AS more"]).materialize("other")
    return builder.build()


@pytest.fixture(scope="module")
def items(ports: Ports, kafka: Kafka, topic: Callable[..., str]) -> tuple[str, Ports]:
    """A topic with a zero and a text, landed and stepped."""
    name = topic("items")
    send(kafka, name, Record(1, {"v": 1, "text": "1"}), Record(2, {"v": 0, "text": "two"}))
    topology = failing(name, "v")
    lake.land_all(ports, topology)
    lake.step_all(ports, topology, name)
    return name, ports


@pytest.mark.parametrize(
    ("expression", "said", "row"),
    [
        ("10 div v", "DIVIDE_BY_ZERO", "the row: id 2"),
        ("cast(text AS int)", "'two' of the type \"STRING\" cannot be cast", "the row: id 2"),
        ("if(v = 0, raise_error('v must not be 0'), v)", "v must not be 0", "the row: id 2"),
        ("`no_such_function`(v)", "no_such_function", ""),
    ],
)
def test_an_expression_that_fails_stops_its_table_by_name_and_no_other(
    items: tuple[str, Ports], tmp_path: Path, expression: str, said: str, row: str
) -> None:
    name, ports = items
    topology = failing(name, expression)
    done = tick(copied(ports, topology, tmp_path), topology, "test")
    assert list(done.failed) == ["computed"]
    error = done.failed["computed"]
    assert isinstance(error, ExpressionFailed)
    assert said in str(error)
    assert re.search(rf"{topology.name}\.computed, at \S*test_tick\.py:\d+, cannot be computed: ", str(error))
    assert "JVM stacktrace" not in str(error)
    assert str(error).endswith(row)
    assert ("the row" in str(error)) == (row != "")
    assert [(stepped.table.rpartition("/")[2], stepped.outcome) for stepped in done.stepped] == [
        (name, "idle"),
        ("other", "stepped"),
        ("reader", "waiting"),
    ]


def test_the_row_that_fails_is_named_by_its_key_or_its_place(
    ports: Ports, kafka: Kafka, topic: Callable[..., str]
) -> None:
    orders, people, clicks = topic("orders"), topic("people"), topic("clicks")
    builder = StreamsBuilder(f"named-{orders}")
    o = builder.table(orders, Consumed.json(key="shop string, number bigint", value="person bigint, amount int"))
    p = builder.table(people, Consumed.json(key="id bigint", value="parts int"))
    view = o.filter("amount > 0").left_join(p, on="person", select=["left.amount", "right.parts"])
    view.map_values(["amount div parts AS share"]).materialize("shares")
    o.group_by("shop").aggregate(share="100 div (count(amount) - 30)").materialize("shops")
    c = builder.stream(clicks, Consumed.json(key="id bigint", value="at string"))
    c.map_values(["cast(at AS int) AS at"]).materialize("times")
    made = builder.build()
    many = [
        Record({"shop": f"s{n % 7}", "number": n}, {"person": n % 5 if n % 3 else None, "amount": n})
        for n in range(200)
    ]
    send(kafka, orders, *many)
    send(kafka, people, *(Record(n, {"parts": n + 1}) for n in range(5)))
    send(kafka, clicks, *(Record(n, {"at": "x" if n == 41 else f"{n}"}) for n in range(60)))
    done = tick(ports, made, "first")
    assert list(done.failed) == ["times"]
    assert str(done.failed["times"]).endswith(f"the row: topic '{clicks}', partition 0, offset 41")
    send(kafka, people, Record(3, {"parts": 0}))
    done = tick(ports, made, "second")
    assert set(done.failed) == {"shares", "times"}
    named = re.search(r"the row: shop 's\d', number (\d+)$", str(done.failed["shares"]))
    assert named is not None, done.failed
    number = int(named.group(1))
    assert number % 5 == 3
    assert number % 3
    send(kafka, orders, *(Record({"shop": "s1", "number": 1000 + n}, {"person": 1, "amount": 1}) for n in range(1)))
    assert str(tick(ports, made, "third").failed["shops"]).endswith("the row: shop 's1'")


def test_without_ansi_what_fails_is_null(items: tuple[str, Ports], tmp_path: Path) -> None:
    name, ports = items
    topology = failing(name, "10 div v", ansi=False)
    copy = copied(ports, topology, tmp_path)
    assert tick(copy, topology, "test").failed == {}
    assert lake.rows(copy, topology, "computed") == {1: {"x": 10}, 2: {"x": None}}
    assert audit(copy, topology, topology.table("computed")).holds


def test_a_topic_that_is_missing_stops_a_tick_before_anything_is_done(story: Story) -> None:
    source = replace(story.topology.sources[0], topic="nowhere")
    topology = replace(story.topology, sources=(source, *story.topology.sources[1:]))
    with pytest.raises(TopicMissing, match="nowhere"):
        tick(Ports(NoEngine(), story.last.ports.lakehouse, story.last.ports.kafka), topology, "test")


def test_the_levels_of_a_topology_hold_every_table_behind_what_it_reads(story: Story) -> None:
    found = [[table.name for table in level] for level in story.topology.levels]
    assert [{name.split("-")[0] for name in level} for level in found] == [
        {"orders", "customers", "products"},
        {"enriched", "titled", "looked_up", "chained"},
    ]
