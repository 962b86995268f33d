"""Landing: records, their offsets and the fence in one commit; nothing twice, nothing lost, nothing reset."""

from __future__ import annotations

import re
import shutil
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import NewPartitions
from deltalake import DeltaTable

from resources.kafka import Kafka
from spark.engine.audit import audit
from spark.engine.errors import InputChanged, OffsetsExpired, PlanChanged, TopicRecreated
from spark.engine.land import Landed, capture, land
from spark.engine.log import commit, table
from spark.engine.log import position as positions
from spark.engine.log.landing_definition import check_landing
from spark.engine.log.stored_table import StoredTable
from spark.engine.offsets import TopicMissing, TopicOffsets
from spark.engine.ports import Ports
from spark.engine.quarantine import redecode
from spark.engine.rebuild import rebuild
from spark.topology import Consumed, StreamsBuilder, TimeWindows, Topology
from tests.support import lake
from tests.support.lake import NoEngine, Record, send

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from spark.engine.log.stored_table import State

CONSUMED = Consumed.json(key="id bigint", value="name string, at bigint", timestamp="at")
PLAIN = Consumed.json(key="id bigint", value="name string")


def streaming(topic: str, consumed: Consumed = PLAIN, guarantee: str = "exactly_once_v2") -> Topology:
    """A topology that lands one topic and does nothing else."""
    builder = StreamsBuilder(f"land-{topic}", processing_guarantee=guarantee)
    builder.stream(topic, consumed)
    return builder.build()


def landed(ports: Ports, topology: Topology) -> Landed:
    """Land the one topic to its end."""
    [done] = lake.land_all(ports, topology)
    return done


def log(ports: Ports, topology: Topology) -> list[str]:
    """What was done to the landing, oldest first."""
    [source] = topology.sources
    return [entry["operation"] for entry in reversed(DeltaTable(lake.path(ports, topology, source.landing)).history())]


def names(ports: Ports, topology: Topology) -> list[tuple[lake.Value, lake.Value]]:
    """The names landed, by partition and offset."""
    return [(row["_partition"], row["name"]) for row in lake.records(ports, topology, topology.sources[0].topic)]


@dataclass(frozen=True)
class Mixed:
    """A topic with every kind of record, landed twice."""

    topic: str
    topology: Topology
    first: Landed
    again: Landed
    then: Landed


@pytest.fixture(scope="module")
def mixed(ports: Ports, kafka: Kafka, topic: Callable[..., str]) -> Mixed:
    """Good, deleted, keyless and broken records in two partitions, and one more after them."""
    name = topic("mixed", 2)
    topology = streaming(name, CONSUMED)
    send(
        kafka,
        name,
        Record(1, {"name": "ada", "at": 1_000}, partition=0),
        Record(2, {"name": "bob", "at": 2_000}, partition=1),
        Record(1, None, partition=0),
        Record(None, {"name": "no key", "at": 3_000}, partition=0),
        Record(b"seven", {"name": "broken key", "at": 4_000}, partition=0),
        Record(3, b'{"name": "broken', partition=1),
        Record(4, {"name": "no time"}, partition=1),
        Record(5, {"name": "beyond all time", "at": 2**63 - 1}, partition=1),
    )
    first = landed(ports, topology)
    again = landed(Ports(NoEngine(), ports.lakehouse, ports.kafka), topology)
    send(kafka, name, Record(6, {"name": "later", "at": 5_000}, partition=1))
    return Mixed(name, topology, first, again, landed(ports, topology))


def test_every_record_lands_once_with_its_coordinates(ports: Ports, mixed: Mixed) -> None:
    found = [
        (row["_topic"], row["_partition"], row["_offset"]) for row in lake.records(ports, mixed.topology, mixed.topic)
    ]
    assert found == [(mixed.topic, 0, n) for n in range(4)] + [(mixed.topic, 1, n) for n in range(5)]


def test_records_and_offsets_are_one_commit(ports: Ports, mixed: Mixed) -> None:
    [source] = mixed.topology.sources
    path = lake.path(ports, mixed.topology, source.landing)
    by_version = {}
    for entry in DeltaTable(path).history():
        position = positions.Position.from_json(entry.get("userMetadata"))
        if position is not None and position.n > 0:
            by_version[entry["version"]] = (int(entry["operationMetrics"]["numOutputRows"]), position)
    assert {version: rows for version, (rows, _) in by_version.items()} == {1: 8, 2: 1}
    for landing, version, end in ((mixed.first, 1, {0: 4, 1: 4}), (mixed.then, 2, {0: 4, 1: 5})):
        assert landing.version == version
        assert landing.position == by_version[version][1]
        [cut] = landing.position.cut.values()
        assert cut.offsets == landing.end == end
    batches = [row["_batch"] for row in lake.records(ports, mixed.topology, mixed.topic)]
    assert batches == [1] * 8 + [2]


def test_what_landed_is_counted(mixed: Mixed) -> None:
    assert (mixed.first.outcome, mixed.first.records, mixed.first.errors) == ("landed", 8, 2)
    assert (mixed.first.start, mixed.first.end) == ({0: 0, 1: 0}, {0: 4, 1: 4})
    assert (mixed.then.outcome, mixed.then.records, mixed.then.errors) == ("landed", 1, 0)
    assert (mixed.then.start, mixed.then.end) == ({0: 4, 1: 4}, {0: 4, 1: 5})


def test_landing_again_commits_nothing_and_opens_no_session(ports: Ports, mixed: Mixed) -> None:
    assert (mixed.again.outcome, mixed.again.version) == ("idle", mixed.first.version)
    assert log(ports, mixed.topology) == ["CREATE TABLE", "WRITE", "WRITE"]


def test_tombstones_and_records_without_a_key_are_kept(ports: Ports, mixed: Mixed) -> None:
    rows = lake.records(ports, mixed.topology, mixed.topic)
    assert [(row["id"], row["name"]) for row in rows if row["_deleted"]] == [(1, None)]
    assert [(row["id"], row["name"]) for row in rows if row["id"] is None and row["_error"] is None] == [
        (None, "no key")
    ]


def test_what_does_not_decode_is_kept_with_its_bytes_and_what_does_without(ports: Ports, mixed: Mixed) -> None:
    rows = lake.records(ports, mixed.topology, mixed.topic)
    broken = {row["_offset"]: (row["_key"], row["_value"], row["_error"]) for row in rows if row["_error"] is not None}
    assert broken == {
        3: (b"seven", b'{"name": "broken key", "at": 4000}', "the key does not decode as JSON (id bigint)"),
        1: (b"3", b'{"name": "broken', "the value does not decode as JSON (name string, at bigint)"),
    }
    assert {(row["_key"], row["_value"]) for row in rows if row["_error"] is None} == {(None, None)}


def test_event_time_is_the_declared_column_or_null_where_it_holds_none(ports: Ports, mixed: Mixed) -> None:
    times = {row["name"]: row["_timestamp"] for row in lake.records(ports, mixed.topology, mixed.topic)}
    assert (times["ada"], times["bob"], times["later"]) == (1_000, 2_000, 5_000)
    assert (times["no time"], times["beyond all time"]) == (None, None)


def test_event_time_is_the_records_own_where_none_is_declared(
    ports: Ports, kafka: Kafka, topic: Callable[..., str]
) -> None:
    topology = streaming(topic())
    send(kafka, topology.sources[0].topic, Record(1, {"name": "ada"}, timestamp=1_234_567))
    landed(ports, topology)
    [row] = lake.records(ports, topology, topology.sources[0].topic)
    assert row["_timestamp"] == 1_234_567


def test_a_record_too_far_ahead_of_the_clock_is_put_into_quarantine(
    ports: Ports, kafka: Kafka, topic: Callable[..., str]
) -> None:
    """Of a stream it would close all windows; of a table, no topic that it is published to would take it."""
    now, hour = time.time_ns() // 1_000_000, 3_600_000
    builders = [StreamsBuilder("guarded"), StreamsBuilder("trusting", message_timestamp_after_max_ms=None)]
    topics = (topic(), topic(), topic())
    for name in topics:
        send(kafka, name, *(Record(n, {"name": f"{n}", "at": now + n * hour // 2}) for n in (1, 3)))
    for builder in builders:
        builder.stream(topics[0], CONSUMED)
        builder.table(topics[1], CONSUMED)  # one that is ahead would be published by a time that brokers refuse
        builder.global_table(topics[2], CONSUMED)
        lake.land_all(ports, builder.build())
    for name in topics:
        guarded, trusting = (lake.records(ports, builder.build(), name) for builder in builders)
        assert [row["_error"] is None for row in guarded] == [True, False]
        assert "is more than 3600000 ms ahead of the clock" in str(guarded[1]["_error"])
        assert guarded[1]["_value"] == b'{"name": "3", "at": %d}' % (now + 3 * hour // 2)
        assert [row["_error"] for row in trusting] == [None] * 2


def test_every_record_of_a_table_is_a_row_a_tombstone_superseded_or_in_quarantine(
    ports: Ports, kafka: Kafka, topic: Callable[..., str]
) -> None:
    name = topic()
    builder = StreamsBuilder("conserving")
    builder.table(name, Consumed.json(key="a bigint, b decimal(4,2)", value="n int"))
    topology = builder.build()
    whole = [{"a": 1, "b": "1.23"}, {"a": 1, "b": 1.230}, {"a": 2, "b": 1}]
    broken = [{"a": 1}, {"b": 1}, {}, None, {"a": "one", "b": 1}]
    records = [Record(key, {"n": n}) for n, key in enumerate([*whole, *broken])]
    send(kafka, name, *records, Record(whole[2], None), Record(None, None))
    landed_ = landed(ports, topology)
    lake.step_all(ports, topology)
    assert (landed_.records, landed_.errors, landed_.tombstones) == (len(records) + 2, len(broken) + 1, 1)
    stored = lake.listed(lake.path(ports, topology, name))
    assert [(row["a"], str(row["b"]), row["n"]) for row in stored] == [(1, "1.23", 1)]
    told = [str(row["_error"]) for row in lake.records(ports, topology, name) if row["_error"] is not None]
    assert [error.partition(" (")[0] for error in told] == [
        *["the key"] * 4,
        "the key does not decode as JSON",
        "the key",
    ]


@pytest.mark.thorough
def test_another_event_time_or_key_is_refused_and_the_landing_can_be_made_anew(
    ports: Ports, kafka: Kafka, topic: Callable[..., str]
) -> None:
    name, clicks = topic(), topic("clicks")

    def declared(key: str, value: str, timestamp: str | None) -> Topology:
        builder = StreamsBuilder(f"timed-{name}")
        builder.table(name, Consumed.json(key=key, value=value, timestamp=timestamp))
        visits = builder.stream(clicks, Consumed.json(key="id bigint", value="at bigint", timestamp=timestamp))
        visits.filter("id > 0").materialize("visits").group_by("id").count().materialize("visitors")
        visits.group_by("id").windowed_by(TimeWindows.of("10ms", grace="1h")).count().materialize("windows")
        return builder.build()

    first = declared("id bigint", "name string, at bigint", None)
    send(kafka, name, Record(b'{"id": 1, "at": 2}', {"name": "ada", "at": 2}, timestamp=1_000))
    send(kafka, clicks, Record(1, {"at": 2}, timestamp=1_000))
    lake.land_all(ports, first)
    lake.step_all(ports, first)
    timed, keyed = (
        declared("id bigint", "name string, at bigint", "at"),
        declared("id bigint, at bigint", "name string", None),
    )
    for topology, differ in (
        (timed, "- timestamp of Kafka's record\n+ timestamp of at"),
        (keyed, "- key id\n+ key id, at"),
    ):
        with pytest.raises(PlanChanged, match=re.escape(differ)):
            lake.land_all(Ports(NoEngine(), ports.lakehouse, ports.kafka), topology)
    written = lake.state(ports, first, first.sources[0].landing)
    other = replace(first.sources[0], consumed=replace(first.sources[0].consumed, format="text", key_format="text"))
    with pytest.raises(PlanChanged, match=re.escape("- format in json\n+ format in text")):
        check_landing("landing", written, other)
    assert lake.versions(ports, first, first.sources[0].landing) == 1

    for source in first.sources:
        where = lake.path(ports, first, source.landing)
        shutil.move(where, f"{where}-old")
    lake.land_all(ports, timed)
    for table_ in (name, "visits", "windows"):
        with pytest.raises(InputChanged, match="tidetable rebuild"):
            lake.step_all(ports, timed, table_)
    for target in timed.tables:
        rebuild(ports, timed, target, "anew")
    for table_ in (name, "visits"):
        assert [row["_timestamp"] for row in lake.listed(lake.path(ports, timed, table_))] == [2]
    assert lake.rows(ports, timed, "windows").keys() == {(1, 0, 10)}
    send(kafka, clicks, Record(1, {"at": 13}, timestamp=1_000))
    lake.land_all(ports, timed)
    lake.step_all(ports, timed)
    assert lake.rows(ports, timed, "windows").keys() == {(1, 0, 10), (1, 10, 20)}
    assert lake.rows(ports, timed, "visitors") == {1: {"count": 2}}
    assert all(audit(ports, timed, target).holds for target in timed.tables)

    # Nor does a rebuild replay what somebody else changed behind the table's position.
    DeltaTable(lake.path(ports, timed, timed.source(clicks).landing)).delete("at = 13")
    with pytest.raises(InputChanged, match=r"by somebody else(.|\n)*tidetable rebuild"):
        lake.step_all(ports, timed, "windows")
    rebuild(ports, timed, timed.table("windows"), "anew")
    lake.step_all(ports, timed, "windows")
    assert lake.rows(ports, timed, "windows").keys() == {(1, 0, 10)}


def test_a_stream_is_no_table_since_its_records_may_lack_a_key(
    ports: Ports, kafka: Kafka, topic: Callable[..., str]
) -> None:
    name = topic()
    stream, builder = streaming(name), StreamsBuilder(f"land-{name}")
    builder.table(name, PLAIN)
    table_ = builder.build()
    send(kafka, name, Record(None, {"name": "ada"}))
    landed(ports, stream)
    differ = "- records of a stream, whose keys may be null\n+ records of a table, whose keys are whole"
    with pytest.raises(PlanChanged, match=f"(?s){re.escape(differ)}.*to_table"):
        landed(Ports(NoEngine(), ports.lakehouse, ports.kafka), table_)
    assert log(ports, stream) == ["CREATE TABLE", "WRITE"]


def test_a_table_becomes_a_stream(ports: Ports, kafka: Kafka, topic: Callable[..., str]) -> None:
    name = topic()
    stream, builder = streaming(name), StreamsBuilder(f"land-{name}")
    builder.table(name, PLAIN)
    send(kafka, name, Record(None, {"name": "ada"}))
    assert landed(ports, builder.build()).errors == 1
    send(kafka, name, Record(None, {"name": "bob"}))
    assert landed(ports, stream).errors == 0
    redecode(ports, stream, stream.sources[0], "again")
    assert names(ports, stream) == [(0, "ada"), (0, "bob")]


def test_an_empty_topic_lands_as_an_empty_table_at_its_offsets(ports: Ports, topic: Callable[..., str]) -> None:
    topology = streaming(topic())
    done = landed(ports, topology)
    assert (done.outcome, done.records, done.end, done.position.n) == ("landed", 0, {0: 0}, 1)
    assert landed(Ports(NoEngine(), ports.lakehouse, ports.kafka), topology).outcome == "idle"


def test_a_partition_added_later_is_landed_from_its_beginning(
    ports: Ports, kafka: Kafka, topic: Callable[..., str]
) -> None:
    name = topic()
    topology = streaming(name)
    send(kafka, name, Record(1, {"name": "before"}))
    landed(ports, topology)
    kafka.admin().create_partitions([NewPartitions(name, 2)])[name].result()
    lake.until(lambda: len(kafka.end_offsets([name])[name].offsets) == 2)
    send(kafka, name, Record(2, {"name": "after"}, partition=1), Record(1, {"name": "too"}))
    done = landed(ports, topology)
    assert (done.start, done.end) == ({0: 1, 1: 0}, {0: 2, 1: 1})
    assert names(ports, topology) == [(0, "before"), (0, "too"), (1, "after")]


def test_what_was_aborted_never_lands_and_an_open_transaction_holds_the_cut(
    ports: Ports, kafka: Kafka, topic: Callable[..., str]
) -> None:
    name = topic()
    topology = streaming(name)
    with lake.transaction(kafka, name, "a", "b") as producer:
        producer.commit_transaction(30)
    with lake.transaction(kafka, name, "aborted") as producer:
        producer.abort_transaction(30)
    lake.until(lambda: kafka.end_offsets([name])[name].offsets == {0: 5})  # markers are written behind the answer
    with lake.transaction(kafka, name, "open") as producer:
        send(kafka, name, Record(1, {"name": "behind the open one"}))
        first = landed(ports, topology)
        # a, b, their marker, the aborted one, its marker: the open one is at offset 5.
        assert (first.end, first.records) == ({0: 5}, 2)
        assert names(ports, topology) == [(0, "a"), (0, "b")]
        assert landed(Ports(NoEngine(), ports.lakehouse, ports.kafka), topology).outcome == "idle"
        producer.commit_transaction(30)
    lake.until(lambda: kafka.end_offsets([name])[name].offsets == {0: 8})
    then = landed(ports, topology)
    assert (then.start, then.end, then.records) == ({0: 5}, {0: 8}, 2)
    assert names(ports, topology) == [(0, "a"), (0, "b"), (0, "open"), (0, "behind the open one")]


def test_markers_at_the_end_are_passed_and_never_waited_for(
    ports: Ports, kafka: Kafka, topic: Callable[..., str]
) -> None:
    name = topic()
    topology = streaming(name)
    with lake.transaction(kafka, name, "aborted") as producer:
        producer.abort_transaction(30)
    lake.until(lambda: kafka.end_offsets([name])[name].offsets == {0: 2})
    done = landed(ports, topology)
    assert (done.end, done.records) == ({0: 2}, 0)
    assert landed(Ports(NoEngine(), ports.lakehouse, ports.kafka), topology).outcome == "idle"


def test_at_least_once_lands_what_is_not_yet_committed_and_may_turn_to_exactly_once(
    ports: Ports, kafka: Kafka, topic: Callable[..., str]
) -> None:
    name = topic()
    eager, strict = streaming(name, guarantee="at_least_once"), streaming(name)
    with lake.transaction(kafka, name, "open") as producer:
        done = landed(ports, eager)
        assert (done.end, done.records) == ({0: 1}, 1)
        # The last stable offset is behind what was landed: nothing is lost, there is only nothing to do.
        assert landed(Ports(NoEngine(), ports.lakehouse, ports.kafka), strict).outcome == "idle"
        producer.abort_transaction(30)


def test_a_topic_that_is_not_there_is_named(ports: Ports) -> None:
    with pytest.raises(TopicMissing, match="nowhere"):
        capture(ports.kafka, streaming("nowhere"))


def test_a_topic_made_anew_is_refused_and_nothing_is_committed(
    ports: Ports, kafka: Kafka, topic: Callable[..., str]
) -> None:
    name = topic()
    topology = streaming(name)
    send(kafka, name, Record(1, {"name": "old"}))
    landed(ports, topology)
    kafka.admin().delete_topics([name])[name].result()
    with pytest.raises(TopicMissing, match=name):
        lake.until(lambda: not kafka.end_offsets([name]))
    kafka.create_topic(name)
    send(kafka, name, Record(1, {"name": "new"}), Record(2, {"name": "new"}))
    with pytest.raises(TopicRecreated, match=f"{name} was deleted and created again"):
        landed(Ports(NoEngine(), ports.lakehouse, ports.kafka), topology)
    assert names(ports, topology) == [(0, "old")]
    assert log(ports, topology) == ["CREATE TABLE", "WRITE"]


def test_offsets_that_expired_before_they_were_landed_are_refused_and_nothing_is_committed(
    ports: Ports, kafka: Kafka, topic: Callable[..., str]
) -> None:
    name = topic()
    topology = streaming(name)
    send(kafka, name, *(Record(n, {"name": f"{n}"}) for n in range(3)))
    kafka.admin().delete_records([TopicPartition(name, 0, 1)])
    lake.until(lambda: kafka.beginning_offsets([name])[name].offsets == {0: 1})
    done = landed(ports, topology)
    assert (done.start, done.end, done.position.floor) == ({0: 1}, {0: 3}, {0: 1}), (
        "a first landing starts at what is left"
    )

    send(kafka, name, *(Record(n, {"name": f"{n}"}) for n in range(3)))
    kafka.admin().delete_records([TopicPartition(name, 0, 5)])
    lake.until(lambda: kafka.beginning_offsets([name])[name].offsets == {0: 5})
    with pytest.raises(OffsetsExpired, match=f"{name} no longer holds .*partition 0: offsets 3 to 4"):
        landed(Ports(NoEngine(), ports.lakehouse, ports.kafka), topology)
    assert names(ports, topology) == [(0, "1"), (0, "2")]


def test_a_topic_that_ends_before_what_was_landed_is_refused(
    ports: Ports, kafka: Kafka, topic: Callable[..., str], session: SparkSession
) -> None:
    name = topic()
    topology = streaming(name)
    send(kafka, name, Record(1, {"name": "ada"}))
    landed(ports, topology)
    # As after an unclean election: the landing holds offsets that the topic no longer reaches.
    landing = topology.sources[0].landing
    stored = StoredTable(f"{topology.name}/{landing}", lake.path(ports, topology, landing))
    at = lake.state(ports, topology, landing).position
    ahead = {topic: TopicOffsets(cut.topic_id, {0: 9}) for topic, cut in at.cut.items()}
    nothing = session.read.format("delta").load(stored.path).where("false")
    assert commit.append(nothing, stored, replace(at, n=at.n + 1, cut=ahead, data_version=1)) is not None
    with pytest.raises(TopicRecreated, match=f"{name} ends at .*its newest records are gone"):
        landed(Ports(NoEngine(), ports.lakehouse, ports.kafka), topology)


def test_a_cut_older_than_what_was_landed_lands_nothing(ports: Ports, kafka: Kafka, topic: Callable[..., str]) -> None:
    name = topic()
    topology = streaming(name)
    send(kafka, name, Record(1, {"name": "ada"}))
    old = capture(kafka, topology)
    send(kafka, name, Record(2, {"name": "bob"}))
    landed(ports, topology)
    idle = Ports(NoEngine(), ports.lakehouse, ports.kafka)
    assert land(idle, topology, topology.sources[0], old, "a slower tick").outcome == "idle"
    assert names(ports, topology) == [(0, "ada"), (0, "bob")]


def test_a_landing_that_another_run_made_meanwhile_is_gone_on_from(
    ports: Ports, kafka: Kafka, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic()
    topology = streaming(name)
    send(kafka, name, Record(1, {"name": "ada"}))
    early = capture(kafka, topology)
    create = table.create

    def late(*arguments: Any) -> State:
        """Another run, further on, is through before this one creates the table."""
        monkeypatch.undo()
        send(kafka, name, Record(2, {"name": "bob"}))
        landed(ports, topology)
        return create(*arguments)

    monkeypatch.setattr(table, "create", late)
    done = land(ports, topology, topology.sources[0], early, "late")
    assert (done.outcome, done.position.run) == ("idle", "test")
    assert names(ports, topology) == [(0, "ada"), (0, "bob")]


def test_another_cluster_is_never_landed_on_top(ports: Ports, kafka: Kafka, topic: Callable[..., str]) -> None:
    name = topic()
    topology = streaming(name)
    send(kafka, name, Record(1, {"name": "ada"}))
    landed(ports, topology)
    elsewhere = Elsewhere(kafka.config)
    with pytest.raises(TopicRecreated, match=f"holds records of .*/{name}, and this is elsewhere/{name}"):
        landed(Ports(NoEngine(), ports.lakehouse, elsewhere), topology)


def test_a_partition_that_a_broker_has_not_heard_of_stays_where_it_was(
    ports: Ports, kafka: Kafka, topic: Callable[..., str]
) -> None:
    name = topic("partitioned", 2)
    topology = streaming(name)
    [source] = topology.sources
    send(kafka, name, Record(1, {"name": "ada"}, partition=0), Record(2, {"name": "bob"}, partition=1))
    landed(ports, topology)
    send(kafka, name, Record(3, {"name": "cid"}, partition=0))
    cut = capture(kafka, topology)
    partial = {at: TopicOffsets(ends.topic_id, {0: ends.offsets[0]}) for at, ends in cut.items()}
    assert land(ports, topology, source, partial, "partial").end == {0: 2, 1: 1}
    assert landed(ports, topology).outcome == "idle"
    assert names(ports, topology) == [(0, "ada"), (0, "cid"), (1, "bob")]


class Elsewhere(Kafka):
    """The same broker by another id: what a migrated cluster looks like."""

    def cluster_id(self) -> str:
        """Not the id that landed."""
        return "elsewhere"


def test_a_value_column_that_is_declared_later_is_null_in_older_records(
    ports: Ports, kafka: Kafka, topic: Callable[..., str]
) -> None:
    name = topic()
    send(kafka, name, Record(1, {"name": "ada", "age": 36}))
    landed(ports, streaming(name))
    wider = streaming(name, Consumed.json(key="id bigint", value="name string, age int"))
    send(kafka, name, Record(2, {"name": "bob", "age": 37}))
    assert landed(ports, wider).outcome == "landed"
    assert [(row["name"], row["age"]) for row in lake.records(ports, wider, name)] == [("ada", None), ("bob", 37)]

    send(kafka, name, Record(3, {"name": "cid", "age": 38}))
    assert landed(ports, streaming(name)).outcome == "landed", "and it may be left out again"
    assert [row["age"] for row in lake.records(ports, wider, name)] == [None, 37, None]
    done = log(ports, wider)
    assert done == ["CREATE TABLE", "WRITE", "ADD COLUMNS", "SET TBLPROPERTIES", "WRITE", "WRITE"]


def test_a_column_added_by_a_run_that_died_before_it_said_so_is_no_hindrance(
    ports: Ports, kafka: Kafka, topic: Callable[..., str], session: SparkSession
) -> None:
    name = topic()
    send(kafka, name, Record(1, {"name": "ada"}))
    landed(ports, streaming(name))
    wider = streaming(name, Consumed.json(key="id bigint", value="name string, age int, more string"))
    where = lake.path(ports, wider, wider.sources[0].landing)
    session.sql(f"ALTER TABLE delta.`{where}` ADD COLUMNS (age int)").collect()
    send(kafka, name, Record(2, {"name": "bob", "age": 37}))
    assert landed(ports, wider).outcome == "landed"
    assert [row["age"] for row in lake.records(ports, wider, name)] == [None, 37]


def test_a_column_of_another_type_is_refused_by_name(ports: Ports, kafka: Kafka, topic: Callable[..., str]) -> None:
    name = topic()
    send(kafka, name, Record(1, {"name": "ada"}))
    landed(ports, streaming(name))
    other = streaming(name, Consumed.json(key="id bigint", value="name int"))
    with pytest.raises(PlanChanged, match="name is string, declared int"):
        landed(ports, other)  # although no record came: tables would be computed anew for nothing
    send(kafka, name, Record(1, {"name": 1}))
    with pytest.raises(PlanChanged, match="name is string, declared int"):
        landed(ports, other)
    assert log(ports, other) == ["CREATE TABLE", "WRITE"]


def test_a_topic_made_anew_behind_the_cut_is_refused(ports: Ports, kafka: Kafka, topic: Callable[..., str]) -> None:
    name = topic()
    topology = streaming(name)
    [source] = topology.sources
    send(kafka, name, *(Record(n, {"name": "old"}) for n in range(3)))
    lake.land_all(ports, topology)
    send(kafka, name, *(Record(n, {"name": "old"}) for n in (3, 4)))
    cut = capture(kafka, topology)
    kafka.admin().delete_topics([name])[name].result()
    with pytest.raises(TopicMissing, match=name):
        lake.until(lambda: not kafka.end_offsets([name]))
    kafka.create_topic(name)
    lake.until(lambda: kafka.beginning_offsets([name])[name].offsets == {0: 0})
    send(kafka, name, *(Record(n, {"name": "new"}) for n in range(6)))
    with pytest.raises(TopicRecreated, match="was deleted and created again"):
        land(ports, topology, source, cut, "behind")
    assert [name for _, name in names(ports, topology)] == ["old"] * 3
