"""What becomes of a follower when its leader changes other than by a step: `docs/shared-tables.md` has the table."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from spark.engine.audit import audit
from spark.engine.errors import (
    ChangesExpired,
    FormatUnknown,
    InputChanged,
    LeaderChanged,
    LeaderMissing,
    PlanChanged,
    PositionLost,
)
from spark.engine.log.position import FORMAT, STORED_FORMAT
from spark.engine.rebuild import rebuild
from spark.engine.restore import restore
from spark.engine.status import statuses
from spark.engine.step import step
from spark.engine.tick import tick
from spark.topology import Consumed, StreamsBuilder, Topology
from tests.engine import test_leaders, test_widening
from tests.engine.test_leaders import customer, files, leading
from tests.support import lake
from tests.support.lake import Record, send

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from resources.kafka import Kafka
    from spark.engine.ports import Ports

TABLES = ("copy", "counted", "changed")


def following(
    customers: str, value: str = "name string, country string", on_data_loss: str = "fail", allow_missing: bool = False
) -> Topology:
    """A copy of the leader, an aggregate, and the leader's changes as a stream."""
    builder = StreamsBuilder(f"follower-{customers}", on_data_loss=on_data_loss)
    c = builder.read_only_table(
        "c", from_=f"leading-{customers}.allowed", key="id bigint", value=value, allow_missing=allow_missing
    )
    c.map_values("*").materialize("copy")
    c.group_by("country").count().materialize("counted")
    c.to_stream().materialize("changed")
    return builder.build()


@dataclass(frozen=True)
class Pair:
    """A leader and its follower after their first tick, in which two customers are allowed."""

    ports: Ports
    kafka: Kafka
    customers: str

    @property
    def leader(self) -> Topology:
        """The leader by its first definition."""
        return leading(self.customers)

    @property
    def follower(self) -> Topology:
        """The follower by its first definition."""
        return following(self.customers)

    @property
    def name(self) -> str:
        """The leader's name in the follower's plans."""
        return f"{self.leader.name}/allowed"

    def send(self, *records: Record) -> None:
        """Send records to the leader's topic."""
        send(self.kafka, self.customers, *records)

    def tick(self, *made: Topology) -> None:
        """Tick topologies; nothing fails."""
        for one in made:
            assert tick(self.ports, one, "tick").failed == {}

    def path(self) -> str:
        """Where the leader is."""
        return lake.path(self.ports, self.leader, "allowed")

    def check_follows(self, follower: Topology | None = None) -> None:
        """The next tick of the follower has what the leader has, and every table is its query."""
        made = follower or self.follower
        self.tick(made)
        rows = lake.rows(self.ports, self.leader, "allowed")
        columns = [one.name for one in made.table("copy").plan.columns if one.name != "id"]
        assert lake.rows(self.ports, made, "copy") == {
            key: {name: row[name] for name in columns} for key, row in rows.items()
        }
        counts = [row["country"] for row in rows.values()]
        assert lake.rows(self.ports, made, "counted") == {one: {"count": counts.count(one)} for one in set(counts)}
        assert all(audit(self.ports, made, table).holds for table in made.tables)
        assert {one.outcome for one in tick(self.ports, made, "again").stepped} == {"idle"}


@pytest.fixture
def pair(ports: Ports, kafka: Kafka, topic: Callable[..., str]) -> Pair:
    """A leader with two allowed customers, and what follows it."""
    made = Pair(ports, kafka, topic("customers"))
    made.send(customer(1, "ada"), customer(2, "ben", "DE"), customer(3, "cid", "XX"))
    made.tick(made.leader, made.follower)
    return made


@pytest.mark.thorough
def test_a_rebuilt_leader_tells_the_difference(pair: Pair) -> None:
    DeltaTable(pair.path()).delete("id = 1")  # somebody, by hand
    done = rebuild(pair.ports, pair.leader, pair.leader.table("allowed"), "rebuild")
    assert (done.inserted, done.updated, done.deleted) == (1, 0, 0)
    pair.check_follows()


def test_a_changed_definition_of_the_leader_tells_the_difference(pair: Pair) -> None:
    other = leading(pair.customers, "country <> 'DE'")
    rebuild(pair.ports, other, other.table("allowed"), "rebuild")
    by_name = {one.table: one for one in statuses(pair.ports.lakehouse, pair.follower, {})}
    assert all(by_name[name].leader_lag[pair.name] > 0 for name in TABLES), "although no offset is new"
    assert all(by_name[name].is_lagging for name in TABLES)
    pair.check_follows()
    assert lake.rows(pair.ports, pair.follower, "copy").keys() == {1, 3}


@pytest.mark.thorough
def test_what_a_leader_is_restored_to_is_followed_with_its_next_step(pair: Pair) -> None:
    pair.send(customer(1, "ada l."), Record(2, None))
    pair.tick(pair.leader, pair.follower)
    known = lake.rows(pair.ports, pair.follower, "copy")
    restore(pair.ports, pair.leader, pair.leader.table("allowed"), "restore", version=1)
    assert {one.outcome for one in tick(pair.ports, pair.follower, "between").stepped} == {"idle"}
    assert lake.rows(pair.ports, pair.follower, "copy") == known
    pair.tick(pair.leader)
    pair.check_follows()
    assert lake.rows(pair.ports, pair.follower, "copy") == known


def test_a_column_that_a_leader_gains_is_read_by_who_declares_it(pair: Pair) -> None:
    value = "name string, country string, vip boolean"
    gained = leading(pair.customers, value=value)
    wider = following(pair.customers, value)
    was = files(lake.path(pair.ports, pair.follower, ""))
    with pytest.raises(LeaderChanged) as early:
        step(pair.ports, wider, wider.table("copy"), "early")
    for part in ("has no vip boolean", "it has: id bigint, name string, country string", "Nothing was changed"):
        assert part in str(early.value)
    assert files(lake.path(pair.ports, pair.follower, "")) == was
    vip = {"name": "eve", "country": "AT", "vip": True}
    pair.send(Record(5, vip))
    pair.tick(gained)
    assert step(pair.ports, wider, wider.table("copy"), "in time").outcome == "stepped"
    copied = {key: row["vip"] for key, row in lake.rows(pair.ports, wider, "copy").items()}
    assert copied == {1: None, 2: None, 5: True}
    lake.step_all(pair.ports, pair.follower, "counted", "changed")
    with pytest.raises(PlanChanged, match=f"tidetable rebuild {wider.name}.changed"):  # it has rows without the column
        step(pair.ports, wider, wider.table("changed"), "late")
    rebuild(pair.ports, wider, wider.table("changed"), "late", from_rows=True)
    pair.check_follows(wider)


@pytest.mark.thorough
def test_a_column_that_a_leader_drops_or_changes_is_refused_by_who_reads_it_alone(pair: Pair) -> None:
    was = files(lake.path(pair.ports, pair.follower, ""))
    for select, problem in (
        (["cast(name AS binary) AS name", "country"], "has name as binary, not string"),
        ("country", "has no name string"),
    ):
        other = leading(pair.customers, select=select)
        rebuild(pair.ports, other, other.table("allowed"), "rebuild")
        failed = tick(pair.ports, pair.follower, "refused").failed
        assert failed.keys() == set(TABLES)
        assert all(isinstance(error, LeaderChanged) and problem in str(error) for error in failed.values()), failed
        assert pair.leader.name in str(failed["copy"])
        assert "it has: id bigint" in str(failed["copy"])
        with pytest.raises(LeaderChanged, match=problem):
            rebuild(pair.ports, pair.follower, pair.follower.table("copy"), "refused")
        assert files(lake.path(pair.ports, pair.follower, "")) == was
        refused = {one.table: one.refused for one in statuses(pair.ports.lakehouse, pair.follower, None)}
        assert problem in str(refused["copy"])

    narrow = following(pair.customers, "country string")
    for name in ("copy", "changed"):
        rebuild(pair.ports, narrow, narrow.table(name), "narrow", from_rows=True)
    pair.check_follows(narrow)


@pytest.mark.thorough
def test_a_leader_that_lands_its_topic_anew_and_is_rebuilt_goes_on(pair: Pair) -> None:
    pair.send(customer(1, "ada l."))
    shutil.rmtree(lake.path(pair.ports, pair.leader, pair.leader.sources[0].landing))
    lake.land_all(pair.ports, pair.leader)
    for table in pair.leader.tables:
        rebuild(pair.ports, pair.leader, table, "rebuild")
    pair.check_follows()


@pytest.mark.thorough
def test_a_leader_whose_topic_is_created_again_goes_on_although_its_offsets_begin_again(pair: Pair) -> None:
    pair.kafka.admin().delete_topics([pair.customers])[pair.customers].result()
    lake.until(lambda: pair.customers not in pair.kafka.admin().list_topics().topics)
    pair.kafka.create_topic(pair.customers, 1, None)
    pair.send(customer(7, "gil"))
    shutil.rmtree(lake.path(pair.ports, pair.leader, pair.leader.sources[0].landing))
    lake.land_all(pair.ports, pair.leader)
    for table in pair.leader.tables:
        rebuild(pair.ports, pair.leader, table, "rebuild")
    pair.check_follows()
    assert lake.rows(pair.ports, pair.follower, "copy").keys() == {7}


def test_changes_of_a_leader_that_expired_ask_for_a_rebuild_or_are_in_the_ledger(
    pair: Pair, session: SparkSession
) -> None:
    pair.send(customer(1, "ada l."))
    pair.tick(pair.leader)
    pair.send(Record(2, None))
    pair.tick(pair.leader)
    lake.forget(session, pair.path())
    was = files(lake.path(pair.ports, pair.follower, ""))
    failed = tick(pair.ports, pair.follower, "late").failed
    assert failed.keys() == set(TABLES)
    for name, error in failed.items():
        assert isinstance(error, ChangesExpired)
        assert f"tidetable rebuild {pair.follower.name}.{name}" in str(error)
    after = files(lake.path(pair.ports, pair.follower, ""))
    assert after == was
    lossy = following(pair.customers, on_data_loss="ledger")
    assert tick(pair.ports, lossy, "ledger").failed.keys() == {"changed"}, "a stream depends on the changes themselves"
    [gap] = lake.state(pair.ports, lossy, "copy").position.gaps
    assert (gap.input, gap.partition) == (pair.name, None)
    rebuild(pair.ports, pair.follower, pair.follower.table("changed"), "rows", from_rows=True)
    pair.check_follows()


@pytest.mark.thorough
def test_a_leader_that_was_made_anew_asks_for_a_rebuild(pair: Pair) -> None:
    shutil.rmtree(pair.path())
    pair.tick(pair.leader)
    failed = tick(pair.ports, pair.follower, "late").failed
    assert failed.keys() == set(TABLES)
    assert all(isinstance(error, InputChanged) for error in failed.values())
    assert f"was computed from {pair.name}" in str(failed["copy"])
    for name in TABLES:
        rebuild(pair.ports, pair.follower, pair.follower.table(name), "rebuild")
    pair.check_follows()


def test_a_leader_that_is_gone_is_missed_by_name_and_no_row_of_its_follower_is(pair: Pair) -> None:
    shutil.move(pair.path(), f"{pair.path()}-away")
    was = files(lake.path(pair.ports, pair.follower, ""))
    failed = tick(pair.ports, pair.follower, "gone").failed
    assert all(isinstance(failed[name], LeaderMissing) for name in TABLES)
    patient = following(pair.customers, allow_missing=True)
    assert {one.outcome for one in tick(pair.ports, patient, "gone").stepped} == {"waiting"}
    assert files(lake.path(pair.ports, pair.follower, "")) == was
    shutil.move(f"{pair.path()}-away", pair.path())
    pair.check_follows()


def test_a_leader_that_a_later_version_writes_is_refused_by_name_and_nothing_is_changed(
    pair: Pair, session: SparkSession
) -> None:
    pair.send(customer(1, "ada l."))
    pair.tick(pair.leader)
    later = f"'{STORED_FORMAT}' = '{FORMAT + 1}'"
    session.sql(f"ALTER TABLE delta.`{pair.path()}` SET TBLPROPERTIES ({later})").collect()
    was = files(lake.path(pair.ports, pair.follower, ""))
    failed = tick(pair.ports, pair.follower, "early").failed
    assert {*failed} == {*TABLES}
    for error in failed.values():
        assert isinstance(error, FormatUnknown)
        assert f"{pair.name} is stored in format {FORMAT + 1}" in str(error)
    assert files(lake.path(pair.ports, pair.follower, "")) == was
    [shown] = [one for one in statuses(pair.ports.lakehouse, pair.follower, None) if one.is_leader]
    assert "Install that version" in str(shown.log_error)
    of_leader = statuses(pair.ports.lakehouse, pair.leader, None)
    assert {one.table for one in of_leader if one.log_error is not None} == {"allowed"}


@pytest.mark.thorough
def test_a_leader_that_somebody_put_back_by_hand_names_the_leaders_rebuild(pair: Pair) -> None:
    pair.send(customer(1, "ada l."))
    pair.tick(pair.leader)
    DeltaTable(pair.path()).restore(1)
    with pytest.raises(PositionLost, match=f"tidetable rebuild {pair.leader.name}.allowed"):
        step(pair.ports, pair.follower, pair.follower.table("copy"), "late")
    [shown] = [one for one in statuses(pair.ports.lakehouse, pair.follower, None) if one.is_leader]
    assert "was restored" in str(shown.log_error)
    rebuild(pair.ports, pair.leader, pair.leader.table("allowed"), "rebuild")
    pair.check_follows()


def test_what_is_no_table_of_that_key_is_refused(pair: Pair) -> None:
    builder = StreamsBuilder(f"streaming-{pair.customers}")
    stream = builder.stream(pair.customers, Consumed.json(key="id bigint", value="name string, country string"))
    stream.materialize("records")
    streaming = builder.build()
    pair.tick(streaming)

    def read(from_: str, key: str, value: str) -> Topology:
        builder = StreamsBuilder(f"wrong-{pair.customers}")
        builder.read_only_table("c", from_=from_, key=key, value=value).materialize("copy")
        return builder.build()

    for made, problem in (
        (read(f"{streaming.name}.records", "id bigint", "name string"), "is a stream, and not a table"),
        (read(f"{pair.leader.name}.allowed", "name string", "id bigint"), "has the key id, not name"),
    ):
        with pytest.raises(LeaderChanged, match=problem):
            step(pair.ports, made, made.table("copy"), "wrong")


OUTCOMES = {
    "it steps": test_leaders.test_a_follower_has_what_its_leader_has_and_touches_no_file_of_it,
    "it does not exist, or was removed": test_a_leader_that_is_gone_is_missed_by_name_and_no_row_of_its_follower_is,
    "it is rebuilt, also by a changed definition with the same columns": (
        test_a_changed_definition_of_the_leader_tells_the_difference
    ),
    "it is restored to an earlier version": test_what_a_leader_is_restored_to_is_followed_with_its_next_step,
    "it gains a column": test_a_column_that_a_leader_gains_is_read_by_who_declares_it,
    "it widens a column": (
        test_widening.test_a_run_that_died_while_it_widened_is_taken_up_and_a_follower_says_what_it_declares
    ),
    "it drops a column, or changes its type otherwise": (
        test_a_column_that_a_leader_drops_or_changes_is_refused_by_who_reads_it_alone
    ),
    "it lands its topic again and is rebuilt": test_a_leader_that_lands_its_topic_anew_and_is_rebuilt_goes_on,
    "its changes expired before they were read": (
        test_changes_of_a_leader_that_expired_ask_for_a_rebuild_or_are_in_the_ledger
    ),
    "it was removed and created again": test_a_leader_that_was_made_anew_asks_for_a_rebuild,
    "somebody restored it by hand": test_a_leader_that_somebody_put_back_by_hand_names_the_leaders_rebuild,
    "a later version of Tidetable writes it": (
        test_a_leader_that_a_later_version_writes_is_refused_by_name_and_nothing_is_changed
    ),
    "another definition of it ticks, from another checkout": (
        test_leaders.test_a_second_leader_with_another_definition_is_refused_before_anything_is_changed
    ),
    "it is a stream, or has another key": test_what_is_no_table_of_that_key_is_refused,
}
"""The rows of the page, and the test of each."""


def test_every_outcome_of_the_page_has_a_test() -> None:
    text = Path("docs/shared-tables.md").read_text()
    _, _, rows = text.partition("|---|---|\n")
    told = [row.split("|")[1].strip() for row in rows.partition("\n\n")[0].splitlines()]
    assert told == [*OUTCOMES]
