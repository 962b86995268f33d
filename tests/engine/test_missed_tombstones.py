"""Tombstones that the log cleaner removed before they were landed: their rows go, in the landing of what is left."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from pyspark.sql import functions as F

from dagster_project.render import result_line, status_grid
from resources.kafka import Kafka
from spark.engine import missed_tombstones as cleaned
from spark.engine.audit import Audited
from spark.engine.counts import counted
from spark.engine.inputs.frame_cache import frame_cache
from spark.engine.log.position import Position
from spark.engine.missed_tombstones import LEEWAY, may_miss, newest_of
from spark.engine.status import statuses
from spark.engine.tick import tick
from spark.topology import Consumed, StreamsBuilder, Topology, Versioned
from tests.support import lake
from tests.support.lake import Record, send, transaction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import SparkSession

    from resources.lakehouse import Lakehouse
    from spark.engine.land import Landed
    from spark.engine.ports import Ports

CLEANED = {
    "cleanup.policy": "compact",
    "delete.retention.ms": "0",
    "segment.ms": "50",
    "min.cleanable.dirty.ratio": "0",
}
CONSUMED = Consumed.json(key="id bigint", value="name string")
AT = 1_700_000_000_000  # milliseconds since 1970


def topology(plain: str, timed: str, streamed: str) -> Topology:
    """The newest records of three topics: a table, with a count and its changes; a versioned one; of a stream."""
    builder = StreamsBuilder(f"cleaned-{plain}")
    table = builder.table(plain, CONSUMED)
    table.group_by("name").count().materialize("names")
    table.to_stream().materialize("changes")
    builder.table(timed, CONSUMED, versioned=Versioned("10000d"))
    builder.stream(streamed, CONSUMED).to_table().materialize(streamed)
    return builder.build()


@pytest.fixture
def quick_cleaner(kafka: Kafka) -> Iterator[None]:
    """A cleaner that looks twenty times a second what there is to do; it looks every 15 seconds by default."""
    alter(kafka, ConfigEntry("log.cleaner.backoff.ms", "50", incremental_operation=AlterConfigOpType.SET))
    yield
    alter(kafka, ConfigEntry("log.cleaner.backoff.ms", None, incremental_operation=AlterConfigOpType.DELETE))


def alter(kafka: Kafka, entry: ConfigEntry) -> None:
    """Change a setting of the only broker."""
    resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
    [done] = kafka.admin().incremental_alter_configs([resource]).values()
    done.result(30)


def named(number: int, name: str | None = "x", at: int = 0) -> Record:
    """A record; without a name a tombstone."""
    return Record(number, None if name is None else {"name": name}, timestamp=AT + at)


def offsets(kafka: Kafka, topic: str) -> list[int]:
    """The offsets of a topic's only partition that still have a record."""
    return [one.offset for one in lake.received(kafka, topic)]


def clean(kafka: Kafka, topics: Sequence[str], tombstones: set[int]) -> None:
    """Send records, each into a segment of its own, until the tombstones at some offsets are gone."""

    def gone() -> bool:
        for topic in topics:
            send(kafka, topic, Record(99, {"name": "z"}, timestamp=round(time.time() * 1000)))
        time.sleep(0.2)
        return all(tombstones.isdisjoint(offsets(kafka, topic)) for topic in topics)

    lake.until(gone)


def ticked(ports: Ports, made: Topology) -> list[Landed]:
    """What a tick landed, in the order of the sources."""
    done = tick(ports, made, "test")
    assert done.failed == {}
    landed = {one.table: one for one in done.landed}
    return [landed[f"{made.name}/{source.landing}"] for source in made.sources]


@pytest.mark.usefixtures("quick_cleaner")
def test_a_row_whose_tombstone_the_cleaner_removed_goes_with_what_is_left(
    ports: Ports, kafka: Kafka, lakehouse: Lakehouse, topic: Callable[..., str]
) -> None:
    topics = [topic(kind, config=CLEANED) for kind in ("plain", "timed", "streamed")]
    timed = topics[1]
    made = topology(*topics)
    late = [named(2, "b", 2000), named(2, "b", 1000), named(4, "d", 2000), named(4, None, 1000)]
    for name in topics:
        send(kafka, name, named(1, "a"), *late, named(3, "b"), named(5, "e"), Record(5, b"{broken"))
    before = ticked(ports, made)
    assert lake.rows(ports, made, timed)[4] == {"name": "d"}, "its tombstone was late"
    for name in topics:
        send(kafka, name, named(2, None, 3000), named(4, None, 3000))
    clean(kafka, topics, {8, 9})
    done = ticked(ports, made)
    assert [one.cleaned for one in done] == [1, 2, 1]
    assert "1 deleted by tombstones that compaction had removed" in result_line(done[0])
    rows = {1: {"name": "a"}, 3: {"name": "b"}, 5: {"name": "e"}, 99: {"name": "z"}}
    assert [lake.rows(ports, made, name) for name in topics] == [rows] * 3, "nor did what does not decode delete one"
    assert lake.rows(ports, made, "names") == {one: {"count": 1} for one in "abez"}
    changes = [row["id"] for row in lake.listed(lake.path(ports, made, "changes")) if row["_deleted"]]
    assert changes == [2]
    for source, first, then in zip(made.sources, before, done, strict=True):
        count = counted(ports.lakehouse, made, source)
        assert count is not None
        assert (count.tombstones, count.wrong) == (1 + then.cleaned, ())
        assert (first.records + then.records + then.cleaned, then.tombstones) == (count.records, 0), "none was read"
    assert all(isinstance(one, Audited) and one.holds for one in lake.audited(ports, made, *topics[1:]))
    [status] = [one for one in statuses(lakehouse, made, None) if one.table == made.sources[0].landing]
    assert "1 deleted by tombstones" in str(status_grid(made.name, [status])[1:])
    again = ticked(ports, made)
    assert [(one.outcome, one.position.cleaned) for one in again] == [("idle", 1), ("idle", 2), ("idle", 1)]
    for name in topics:
        send(kafka, name, named(2, "back", 4000))
    back = ticked(ports, made)
    assert [(one.cleaned, one.position.cleaned) for one in back] == [(0, 1), (0, 2), (0, 1)]
    assert [lake.rows(ports, made, name) for name in topics] == [rows | {2: {"name": "back"}}] * 3


def test_ends_of_transactions_and_records_that_retention_removed_delete_nothing(
    ports: Ports, kafka: Kafka, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic(config=CLEANED | {"cleanup.policy": "compact,delete"})
    builder = StreamsBuilder(f"kept-{name}")
    builder.table(name, CONSUMED)
    made = builder.build()
    send(kafka, name, named(7, "gone"), named(8, "b"))
    lake.land_all(ports, made)
    [done] = kafka.admin().delete_records([TopicPartition(name, 0, 1)]).values()
    done.result(30)
    ended(kafka, name)
    [landed] = lake.land_all(ports, made)
    assert (landed.records, landed.cleaned, landed.position.cleaned) == (1, 0, 0)
    assert landed.end == {0: 6}, "offsets without a record"

    # Nor do they where Kafka does not tell us whether the topic is compacted.
    monkeypatch.setattr(Kafka, "topic_config", lambda *_: None)
    monkeypatch.setattr(cleaned, "DAY", 0)
    ended(kafka, name)
    [landed] = lake.land_all(ports, made)
    assert (landed.records, landed.cleaned, landed.end) == (1, 0, {0: 10})


def ended(kafka: Kafka, topic: str) -> None:
    """A transaction of a record that was committed, and one that was aborted: two ends, and a record that is none."""
    [end] = kafka.end_offsets([topic])[topic].offsets.values()
    for committed in (True, False):
        with transaction(kafka, topic, f"{committed}") as producer:
            producer.commit_transaction(30) if committed else producer.abort_transaction(30)
    lake.until(lambda: kafka.end_offsets([topic])[topic].offsets == {0: end + 4})  # markers are behind the answer


def test_a_tombstone_that_landed_late_needs_no_other(session: SparkSession) -> None:
    builder = StreamsBuilder("late")
    builder.table("t", CONSUMED, versioned=Versioned("1d"))
    made = builder.build()
    columns = "id bigint, name string, _offset bigint, _timestamp timestamp, _deleted boolean, _error string"
    records = [(1, "a", 0, 2000, False), (1, None, 1, 1000, True), (2, "b", 2, 1000, False)]
    rows = [(*record[:3], datetime.fromtimestamp(record[3], UTC), record[4], None) for record in records]
    landing = session.createDataFrame(rows, columns).withColumns(
        {"_topic": F.lit("t"), "_partition": F.lit(0), "_batch": F.lit(1)}
    )
    ranges = session.createDataFrame([(0, 5, 1, 0)], "_partition int, _first bigint, _width bigint, _before bigint")
    content = landing.select("id").where("false")
    with frame_cache(session) as keeps:
        lost = cleaned.tombstones(keeps, made.sources[0], True, landing, content, {0: 0}, ranges, 2).collect()
    assert [(row["id"], row["_offset"], row["_timestamp"]) for row in lost] == [(2, 5, rows[2][3].replace(tzinfo=None))]


def test_only_a_compacted_table_that_was_away_for_long_is_looked_at(
    ports: Ports, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = StreamsBuilder("asked")
    table, stream = topic(config={"cleanup.policy": "compact"}), topic()
    builder.table(table, CONSUMED)
    builder.stream(stream, CONSUMED).materialize("records")
    made = builder.build()
    now, day = 1_800_000_000_000, 86_400_000

    def missed(away: int) -> bool:
        was = Position("t", "e", n=1, run="", cut={}, inputs={}, data_version=0, read_at=now - away)
        return may_miss(ports.kafka, made.sources[0], was, now)

    assert [missed(away) for away in (0, day // 2, day - LEEWAY, day)] == [False, False, True, True]
    assert [len(newest_of(made, source)) for source in made.sources] == [1, 0], "of a stream a record deletes nothing"
    monkeypatch.setattr(Kafka, "topic_config", lambda *_: {"cleanup.policy": "delete"})
    assert not missed(day)
    monkeypatch.setattr(Kafka, "topic_config", lambda *_: None)
    assert [missed(away) for away in (day // 2, day)] == [False, True]
    monkeypatch.setattr(Kafka, "topic_config", lambda *_: {"delete.retention.ms": f"{day // 4}"})
    assert missed(day // 2), "not to tell a policy is not to say that there is none"
