"""Tombstones that the log cleaner removed before they were landed: their rows go, in the landing of what is left."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from assets.lag import standings
from dagster_project.told import line, standing_shown
from resources.kafka import Kafka
from spark.engine.cleaned import LEEWAY, may_miss
from spark.engine.counts import counted
from spark.engine.errors import OffsetsExpired
from spark.engine.position import Position
from spark.engine.repair import Audited
from spark.engine.tick import tick
from spark.topology import Consumed, StreamsBuilder, Topology, Versioned
from tests import lake
from tests.lake import Record, send, transaction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from resources.lakehouse import Lakehouse
    from spark.engine.doors import Doors
    from spark.topology.topology import Source

CLEANED = {
    "cleanup.policy": "compact",
    "delete.retention.ms": "0",
    "segment.ms": "50",
    "min.cleanable.dirty.ratio": "0",
}
CONSUMED = Consumed.json(key="id bigint", value="name string")
AT = 1_700_000_000_000  # milliseconds since 1970


def topology(topic: str, versioned: Versioned | None = None) -> Topology:
    """A topic's table, what is counted of it, and its changes."""
    builder = StreamsBuilder(f"cleaned-{topic}")
    table = builder.table(topic, CONSUMED, versioned=versioned)
    table.group_by("name").count().materialize("names")
    table.to_stream().materialize("changes")
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


def clean(kafka: Kafka, topic: str, tombstone: int) -> None:
    """Send records, each into a segment of its own, until the tombstone at an offset is gone."""

    def gone() -> bool:
        send(kafka, topic, Record(99, {"name": "z"}, timestamp=round(time.time() * 1000)))
        time.sleep(0.2)
        return tombstone not in offsets(kafka, topic)

    lake.until(gone)


@pytest.mark.parametrize("versioned", [None, Versioned("10000d")], ids=["by offset", "versioned"])
@pytest.mark.usefixtures("quick_cleaner")
def test_a_row_whose_tombstone_the_cleaner_removed_goes_with_what_is_left(
    doors: Doors, kafka: Kafka, lakehouse: Lakehouse, topic: Callable[..., str], versioned: Versioned | None
) -> None:
    name = topic(config=CLEANED)
    made = topology(name, versioned)
    send(kafka, name, named(1, "a"), named(2, "b"), named(3, "b"))
    assert tick(doors, made, "before").failed == {}
    send(kafka, name, named(2, None, 1000))
    clean(kafka, name, 3)
    done = tick(doors, made, "after")
    assert done.failed == {}
    [landed] = done.landed
    assert (landed.cleaned, landed.tombstones, landed.position.cleaned) == (1, 1, 1)
    assert "1 deleted by tombstones that compaction had removed" in line(landed)
    rows = {1: {"name": "a"}, 3: {"name": "b"}, 99: {"name": "z"}}
    assert lake.rows(doors, made, name) == rows
    assert lake.rows(doors, made, "names") == {one: {"count": 1} for one in "abz"}
    [deleted] = [row for row in lake.listed(lake.path(doors, made, "changes")) if row["_deleted"]]
    assert deleted["id"] == 2
    count = counted(doors.lakehouse, made, made.sources[0])
    assert count is not None
    assert (count.tombstones, count.wrong) == (1, ())
    for table in (name, "names"):
        assert all(isinstance(one, Audited) and one.holds for one in lake.audited(doors, made, table))
    [standing] = [one for one in standings(lakehouse, made, None) if one.table == made.sources[0].landing]
    assert "1 deleted by tombstones" in str(standing_shown(made.name, [standing])[1:])
    [again] = tick(doors, made, "again").landed
    assert (again.outcome, again.position.cleaned) == ("idle", 1)
    send(kafka, name, named(2, "back", 2000))
    [back] = tick(doors, made, "back").landed
    assert (back.cleaned, back.position.cleaned) == (0, 1)
    assert lake.rows(doors, made, name) == rows | {2: {"name": "back"}}


def test_ends_of_transactions_and_records_that_retention_removed_delete_nothing(
    doors: Doors, kafka: Kafka, topic: Callable[..., str]
) -> None:
    name = topic(config=CLEANED | {"cleanup.policy": "compact,delete"})
    made = topology(name)
    send(kafka, name, named(7, "gone"), named(8, "b"))
    lake.land_all(doors, made)
    [done] = kafka.admin().delete_records([TopicPartition(name, 0, 1)]).values()
    done.result(30)
    for committed in (True, False):
        with transaction(kafka, name, f"{committed}") as producer:
            producer.commit_transaction(30) if committed else producer.abort_transaction(30)
    [landed] = lake.land_all(doors, made)
    assert (landed.records, landed.cleaned, landed.position.cleaned) == (1, 0, 0)
    assert landed.end == {0: 6}, "offsets without a record"


def test_only_a_compacted_table_that_was_away_for_long_is_looked_at(
    doors: Doors, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = StreamsBuilder("asked")
    table, stream = topic(config={"cleanup.policy": "compact"}), topic()
    builder.table(table, CONSUMED)
    builder.stream(stream, CONSUMED).materialize("records")
    made = builder.build()
    [of_table, of_stream] = made.sources
    now, day = 1_800_000_000_000, 86_400_000

    def missed(away: int, source: Source = of_table) -> bool:
        was = Position("t", "e", n=1, run="", cut={}, inputs={}, data_version=0, read_at=now - away)
        return may_miss(doors.kafka, source, was, now)

    assert [missed(away) for away in (0, day // 2, day - LEEWAY, day)] == [False, False, True, True]
    assert not missed(day, of_stream)
    monkeypatch.setattr(Kafka, "topic_config", lambda *_: {"cleanup.policy": "delete"})
    assert not missed(day)
    monkeypatch.setattr(Kafka, "topic_config", lambda *_: None)
    assert not missed(day // 2)
    with pytest.raises(OffsetsExpired, match="DescribeConfigs"):
        missed(day)
