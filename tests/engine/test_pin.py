"""The pin rule: inputs of one step never mix two prefixes of a topic, also when one of them fell behind."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from resources.lakehouse import Lakehouse
from spark.engine.attempt import Stepped
from spark.engine.errors import NoCommonCut
from spark.engine.inputs.pin import Pins, pin
from spark.engine.log.position import Input, Position
from spark.engine.log.stored_table import StoredTable
from spark.engine.offsets import TopicOffsets
from spark.engine.ports import Ports
from spark.engine.step import step
from spark.topology import Consumed, StreamsBuilder, Topology
from tests.engine.logs import Entry, appended, created, merged, write
from tests.support import lake
from tests.support.lake import NoEngine, Record, send

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from resources.kafka import Kafka


def diamond(topic: str) -> Topology:
    """B is computed from A, and C from A and B, so that B's row in C always says how A's row was then."""
    builder = StreamsBuilder(f"diamond-{topic}")
    a = builder.table(topic, Consumed.json(key="id bigint", value="v int"))
    b = a.map_values(["v AS same"]).materialize("b")
    a.join(b, select=["left.v", "right.same"]).materialize("c")
    return builder.build()


NAME, TOPIC, CLUSTER = "diamond-t", "t", "cluster/t"


def at(table: str, n: int, end: int | None, data_version: int = 0, epoch: str = "one") -> Position:
    """A position at an end offset of the topic; None: before the first."""
    cut = {} if end is None else {CLUSTER: TopicOffsets("id", {0: end})}
    return Position(f"{NAME}/{table}", epoch, n, run="run", cut=cut, inputs={}, data_version=data_version)


def log(ports: Ports, table: str, *entries: Entry) -> None:
    """Write a table's log; its id is its name."""
    write(ports.lakehouse.table(NAME, table), created(at(table, 0, None)), *entries, table_id=table)


@pytest.fixture
def written(tmp_path: Path, kafka: Kafka) -> Ports:
    """A lake of logs that were written by hand."""
    return Ports(NoEngine(), Lakehouse(str(tmp_path)), kafka)


def pins(ports: Ports) -> Pins:
    """The pins of C."""
    return pin(ports, diamond(TOPIC), diamond(TOPIC).table("c"))


def test_inputs_at_one_cut_are_pinned_where_their_data_changed_last(written: Ports) -> None:
    log(written, "t", appended(at("t", 1, 5), 3), appended(at("t", 2, 7, data_version=1), 0))
    log(written, "b", merged(at("b", 1, 5), inserted=3), merged(at("b", 2, 7), updated=1), Entry("OPTIMIZE"))
    assert pins(written) == Pins(
        {"t": Input("t", 1), "b": Input("b", 2)}, {CLUSTER: TopicOffsets("id", {0: 7})}, lagging=()
    )


def test_an_input_that_is_ahead_goes_back_to_the_cut_of_the_other(written: Ports) -> None:
    log(
        written,
        "t",
        appended(at("t", 1, 5), 3),
        appended(at("t", 2, 6, data_version=1), 0),
        appended(at("t", 3, 7), 1),
        Entry("OPTIMIZE"),
        appended(at("t", 4, 9), 1),
    )
    log(written, "b", merged(at("b", 1, 5), inserted=3), appended(at("b", 2, 6, data_version=1), 0))
    assert pins(written) == Pins(
        {"t": Input("t", 1), "b": Input("b", 1)}, {CLUSTER: TopicOffsets("id", {0: 6})}, lagging=("b",)
    )


def test_inputs_that_are_ahead_by_turns_go_back_by_turns(written: Ports) -> None:
    log(written, "t", *(appended(at("t", n, end), 1) for n, end in ((1, 1), (2, 4), (3, 5), (4, 8))))
    log(written, "b", *(appended(at("b", n, end), 1) for n, end in ((1, 1), (2, 2), (3, 4), (4, 7))))
    found = pins(written)
    assert found.inputs == {"t": Input("t", 2), "b": Input("b", 3)}
    assert found.cut == {CLUSTER: TopicOffsets("id", {0: 4})}
    assert set(found.lagging) == {"t", "b"}


def test_a_partition_that_one_cut_does_not_know_is_at_its_beginning_there(written: Ports) -> None:
    more = replace(at("t", 2, 5), cut={CLUSTER: TopicOffsets("id", {0: 5, 1: 2})})
    log(written, "t", appended(at("t", 1, 5), 1), appended(more, 1))
    log(written, "b", appended(at("b", 1, 5), 1))
    assert pins(written).inputs == {"t": Input("t", 1), "b": Input("b", 1)}


def test_an_input_that_was_never_computed_is_waited_for(written: Ports) -> None:
    log(written, "t", appended(at("t", 1, 5), 1))
    assert pins(written) == Pins({}, {}, lagging=("b",))
    log(written, "b")
    assert pins(written) == Pins({}, {}, lagging=("b",)), "a table without rows is not computed yet"


def test_a_history_that_reaches_back_too_little_is_an_error_by_name(written: Ports) -> None:
    log(written, "t", appended(at("t", 1, 7), 1), appended(at("t", 2, 9), 1))
    log(written, "b", appended(at("b", 1, 5), 1))
    with pytest.raises(NoCommonCut, match=f"{NAME}/c: t has no version as old as b on topic {CLUSTER}.*tidetable run"):
        pins(written)


@pytest.mark.parametrize(
    ("ends", "expected"), [((5,), Pins({}, {}, ("other/b",))), ((5, 7), None)], ids=["older", "there"]
)
def test_a_table_of_another_topology_that_is_older_than_all_versions_is_waited_for(
    written: Ports, ends: tuple[int, ...], expected: Pins | None
) -> None:
    """Its own topology brings it to the cut of the other inputs; until then nothing is wrong."""
    builder = StreamsBuilder(NAME)
    a = builder.table(TOPIC, Consumed.json(key="id bigint", value="v int"))
    b = builder.read_only_table("b", from_="other.b", key="id bigint", value="same int")
    a.join(b, select=["left.v", "right.same"]).materialize("c")
    topology = builder.build()
    log(written, "t", appended(at("t", 1, 7), 1))
    commits = [replace(at("b", n, end), table="other/b") for n, end in enumerate(ends, 1)]
    first = created(replace(at("b", 0, None), table="other/b"))
    write(written.lakehouse.table("other", "b"), first, *(appended(one, 1) for one in commits), table_id="b")
    both = Pins({"t": Input("t", 1), "other/b": Input("b", 2)}, {CLUSTER: TopicOffsets("id", {0: 7})})
    assert pin(written, topology, topology.table("c")) == (expected or both)


def test_a_topic_before_and_after_it_was_made_anew_is_two(written: Ports) -> None:
    anew = replace(at("t", 2, 5), cut={CLUSTER: TopicOffsets("another id", {0: 5})})
    log(written, "t", appended(at("t", 1, 5), 1), appended(anew, 1))
    log(written, "b", appended(at("b", 1, 5), 1))
    with pytest.raises(NoCommonCut, match=f"b and t were computed from topic {CLUSTER} before and after"):
        pins(written)


def test_an_input_that_was_just_rebuilt_does_not_go_back_behind_its_new_epoch(written: Ports) -> None:
    fresh = at("b", 0, None, data_version=2, epoch="two")
    log(
        written,
        "b",
        appended(at("b", 1, 5), 1),
        appended(at("b", 2, 7), 1),
        Entry("SET TBLPROPERTIES", position=fresh, anchor=fresh),
        merged(at("b", 1, 9, epoch="two"), updated=1),
    )
    log(written, "t", appended(at("t", 1, 5), 1), appended(at("t", 2, 7), 1))
    with pytest.raises(NoCommonCut):
        pins(written)


@pytest.fixture(scope="module")
def fell_behind(ports: Ports, kafka: Kafka, topic: Callable[..., str]) -> tuple[Topology, list[Stepped]]:
    """A diamond one of whose arms failed now and then, and what C's steps did."""
    name = topic("diamond")
    topology = diamond(name)
    done: list[Stepped] = []

    def wave(v: int, *names: str) -> None:
        send(kafka, name, *(Record(key, {"v": v}) for key in range(v, v + 3)))
        lake.land_all(ports, topology)
        lake.step_all(ports, topology, *names)
        done.append(step(ports, topology, topology.table("c"), "test"))

    wave(1, name, "b")
    wave(2, name)  # B's step failed
    done.append(step(ports, topology, topology.table("c"), "again"))
    lake.step_all(ports, topology, "b")  # B caught up, C did not step
    send(kafka, name, Record(9, {"v": 9}))
    lake.land_all(ports, topology)
    lake.step_all(ports, topology, name)  # A is ahead again
    done.append(step(ports, topology, topology.table("c"), "older"))
    lake.step_all(ports, topology, "b")
    done.append(step(ports, topology, topology.table("c"), "newest"))
    return topology, done


def test_a_table_waits_for_an_input_that_fell_behind_and_says_for_whom(
    fell_behind: tuple[Topology, list[Stepped]],
) -> None:
    _, (first, waited, again, _, _) = fell_behind
    assert first.outcome == "stepped"
    assert (waited.outcome, waited.waiting_for) == ("waiting", ("b",))
    assert waited.after == waited.before == first.after
    assert (again.outcome, again.waiting_for) == ("waiting", ("b",))


def test_a_table_steps_to_the_older_cut_that_its_inputs_have_in_common(
    fell_behind: tuple[Topology, list[Stepped]],
) -> None:
    _, (_, _, _, older, newest) = fell_behind
    ends = []
    for done in (older, newest):
        assert done.outcome == "stepped"
        assert done.after is not None
        [cut] = done.after.position.cut.values()
        ends.append(cut.offsets)
    assert ends == [{0: 6}, {0: 7}]


def test_no_version_mixes_two_prefixes_of_a_topic(ports: Ports, fell_behind: tuple[Topology, list[Stepped]]) -> None:
    topology, _ = fell_behind
    a = topology.sources[0].topic
    commits = list(StoredTable(f"{topology.name}/c", lake.path(ports, topology, "c")).commits())
    assert len(commits) == 3
    for commit in commits:
        was = commit.position.inputs
        expected = lake.rows(ports, topology, a, version=was[a].version)
        assert lake.rows(ports, topology, "b", version=was["b"].version) == {
            key: {"same": row["v"]} for key, row in expected.items()
        }
        assert lake.rows(ports, topology, "c", version=commit.version) == {
            key: {"v": row["v"], "same": row["v"]} for key, row in expected.items()
        }
