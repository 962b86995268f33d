"""A table's topic has every change of it once, in order, whatever died on the way; on a real broker and real Delta."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import confluent_kafka
import pytest

from resources.kafka import Kafka
from resources.publisher import Publisher
from spark.engine import publish as publishing
from spark.engine.errors import InputChanged, NotCommitted, PlanChanged, RecordRefused
from spark.engine.log.stored_table import StoredTable
from spark.engine.offsets import KafkaUnavailable, TopicMissing
from spark.engine.publish import publish
from spark.engine.publishing import feed, position
from spark.engine.publishing.position import PublishedPosition, group, published_position, unpublished_versions
from spark.engine.rebuild import rebuild
from spark.engine.tick import tick
from spark.topology import Consumed, StreamsBuilder, Suppressed, TimeWindows, Topology
from tests.support import lake
from tests.support.lake import Record, received, send

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, Row, SparkSession

    from spark.engine.ports import Ports
    from spark.engine.publish import Published

AT = 1_700_000_000_000  # milliseconds since 1970
FAR = 4_000_000_000_000  # which no topic takes for now
ITEMS = Consumed.json(key="id bigint", value="amount int, note string, hidden int")

Change = tuple[int, dict[str, object] | None]
"""A record by its key: its value, or that it has none."""

WAVES: list[list[Change]] = [
    [(key, {"amount": key, "note": None, "hidden": 0}) for key in range(1, 6)],
    [
        (2, {"amount": 20, "note": "zwölf", "hidden": 0}),
        (3, None),
        (4, {"amount": -4, "note": None, "hidden": 0}),  # its filter lets it go
        (5, {"amount": 5, "note": None, "hidden": 1}),  # at its old time: what the topic has of it does not change
        (11, {"amount": 11, "note": "", "hidden": 0}),
        (9, {"amount": 9, "note": "nine", "hidden": 0}),
        (9, {"amount": 99, "note": "nine", "hidden": 0}),
    ],
    [(1, None), (3, {"amount": 33, "note": "back", "hidden": 0}), (9, {"amount": 9, "note": None, "hidden": 0})],
]


def topology(items: str, sink: str, guarantee: str = "exactly_once_v2", amount: str = "amount") -> Topology:
    """A table of the items that have an amount, published."""
    builder = StreamsBuilder(f"publish-{items}", processing_guarantee=guarantee)
    table = builder.table(items, ITEMS)
    table.filter("amount > 0").map_values([amount, "note"]).materialize("large").to(sink)
    return builder.build()


def snapshots() -> list[dict[int, dict[str, object]]]:
    """The table after every wave."""
    rows: dict[int, dict[str, object]] = {}
    found = []
    for wave in WAVES:
        for key, value in wave:
            rows.pop(key, None)
            if value is not None and int(str(value["amount"])) > 0:
                rows[key] = {name: value[name] for name in ("amount", "note")}
        found.append(dict(rows))
    return found


def expected(begun: int, until: int) -> list[Change]:
    """What a topic has that was first published behind one wave, and is behind another one."""
    found = snapshots()
    told: list[Change] = sorted(found[begun].items())
    for before, after in zip(found[begun:until], found[begun + 1 : until + 1], strict=True):
        told += [
            (key, after.get(key)) for key in sorted(before.keys() | after.keys()) if before.get(key) != after.get(key)
        ]
    return told


@dataclass(frozen=True)
class World:
    """A lake behind every wave of one topic, and what publishes from it: each test has topics of its own."""

    items: str
    kafka: Kafka
    stages: list[Ports]
    topic: Callable[..., str]

    def published(self, sink: str, stage: int, **options: str) -> Published:
        """Bring a topic to where the table is behind a wave."""
        made = topology(self.items, sink, **options)
        return publish(self.stages[stage], made, made.table("large"))

    def sent(self, sink: str) -> PublishedPosition | None:
        """How far a topic is, by the group's offset."""
        made = topology(self.items, sink)
        return published_position(self.kafka, made, made.table("large"))

    def copy(self, stage: int, to: Path) -> Ports:
        """The lake behind a wave, to be changed."""
        return lake.copied(self.stages[stage], topology(self.items, "any"), to)


@pytest.fixture(scope="module")
def world(ports: Ports, kafka: Kafka, topic: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> World:
    """Nobody changes its lakes: tests that do take copies."""
    items, stages = topic("items"), []
    made = topology(items, "any")
    for number, wave in enumerate(WAVES):
        times = [AT if value is not None and value["hidden"] == 1 else AT + number for _, value in wave]
        send(kafka, items, *(Record(*one, timestamp=at) for one, at in zip(wave, times, strict=True)))
        lake.land_all(ports, made)
        lake.step_all(ports, made)
        stages.append(lake.copied(ports, made, tmp_path_factory.mktemp("stages") / str(number)))
    return World(items, kafka, stages, topic)


def changes(kafka: Kafka, topic: str) -> list[Change]:
    """What a reader of committed records has of a topic."""
    return [told.change for told in received(kafka, topic)]


def test_a_topic_begins_with_the_whole_table_and_goes_on_with_what_each_version_changed(world: World) -> None:
    sink = world.topic("sink")
    done = [world.published(sink, stage) for stage in range(3)]
    assert changes(world.kafka, sink) == expected(0, 2)
    assert [(one.records, one.tombstones, one.transactions) for one in done] == [(5, 0, 1), (5, 2, 1), (3, 1, 1)]
    assert world.published(sink, 2).outcome == "idle"

    at_once = world.topic("sink")
    world.published(at_once, 0)
    assert world.published(at_once, 2).records == 8
    assert changes(world.kafka, at_once) == expected(0, 2)

    late = world.topic("sink")
    world.published(late, 2)
    assert changes(world.kafka, late) == expected(2, 2)


def test_records_have_the_time_of_their_row_and_say_what_they_are_of(world: World) -> None:
    sink = world.topic("sink")
    world.published(sink, 0)
    world.published(sink, 1)
    told = received(world.kafka, sink)
    times = {one.change[0]: one.timestamp for one in told[5:]}
    assert times == {2: AT + 1, 3: AT, 4: AT, 9: AT + 1, 11: AT + 1}  # a deleted row has no timestamp
    state = lake.state(world.stages[1], topology(world.items, sink), "large")
    assert told[-1].headers == {
        "tidetable.table": f"publish-{world.items}/large",
        "tidetable.id": state.id,
        "tidetable.epoch": state.position.epoch,
        "tidetable.version": str(state.own),
        "tidetable.ordinal": "4",
        "tidetable.key_format": "json",
        "tidetable.last": "true",
    }
    assert "tidetable.whole" in told[0].headers


def test_equal_keys_are_in_the_partition_that_kafkas_own_clients_put_them_in(world: World) -> None:
    sink = world.topic("sink", 4)
    for stage in range(3):
        world.published(sink, stage)
    told = received(world.kafka, sink)
    assert {one.partition for one in told} > {0}
    assert all(one.partition == confluent_kafka.murmur2(one.key or b"", 4) for one in told)
    for key in {one.change[0] for one in told}:
        assert [one.change for one in told if one.change[0] == key] == [c for c in expected(0, 2) if c[0] == key]


class Crash(Exception):
    """What ends a publisher between two effects."""


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transactions of two records, and pages of three rows."""
    monkeypatch.setattr(publishing, "BATCH", 2)
    monkeypatch.setattr(feed, "PAGE", 3)


def stopped(world: World, sink: str, stage: int, transactions: int, **options: str) -> None:
    """Publish, and end behind so many transactions."""
    heard: list[PublishedPosition] = []

    def say(sent: PublishedPosition, _: int) -> None:
        heard.append(sent)
        if len(heard) == transactions:
            raise Crash

    made = topology(world.items, sink, **options)
    with pytest.raises(Crash):
        publish(world.stages[stage], made, made.table("large"), say)


@pytest.mark.usefixtures("small")
def test_a_version_of_several_transactions_goes_on_where_it_was_left(world: World) -> None:
    sink = world.topic("sink")
    stopped(world, sink, 0, 2)
    assert changes(world.kafka, sink) == expected(0, 0)[:4]
    sent = world.sent(sink)
    assert sent is not None
    assert (sent.ordinal, sent.done, sent.whole) == (4, False, True)
    # The whole table is that of its version still, although the table went on.
    assert world.published(sink, 2).records == 1 + 8
    assert changes(world.kafka, sink) == expected(0, 2)


@pytest.mark.thorough
def test_no_transaction_is_open_while_what_comes_next_is_computed_or_fetched(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "BATCH", 2)
    monkeypatch.setattr(feed, "PAGE", 4)  # the last of which is sent when the next page tells that one follows
    sink = world.topic("sink")
    stopped(world, sink, 0, 1)
    sent, looked = [len(changes(world.kafka, sink))], 0
    send_one, missing = Publisher.send, feed.Feed.missing

    def counted(*arguments: Any) -> None:
        sent[0] += 1
        send_one(*arguments)

    def look() -> None:
        nonlocal looked
        looked += 1
        assert len(changes(world.kafka, sink)) == sent[0], "what was sent is committed"

    class Fetched:
        """A page that looks when it is asked for."""

        def __init__(self, page: DataFrame) -> None:
            self.page = page

        def toLocalIterator(self) -> Iterator[Row]:  # a name of Spark's
            look()
            return self.page.toLocalIterator()

    def watched(*arguments: Any) -> Iterator[tuple[Callable[[], list[Fetched]], bool]]:
        for pages, whole in missing(*arguments):

            def computed(pages: feed.Pages = pages) -> list[Fetched]:
                look()
                return [Fetched(page) for page in pages()]

            yield computed, whole

    monkeypatch.setattr(Publisher, "send", counted)
    monkeypatch.setattr(feed.Feed, "missing", watched)
    world.published(sink, 2)
    assert looked >= 2 + 2 + 2, "two parts, the first of which has two pages"
    assert changes(world.kafka, sink) == expected(0, 2)


@pytest.mark.thorough
@pytest.mark.usefixtures("small")
def test_a_topic_whose_group_expired_goes_on_behind_its_newest_records(world: World) -> None:
    sink = world.topic("sink", 2)
    world.published(sink, 0)
    stopped(world, sink, 2, 1)
    send(world.kafka, sink, *(Record(n, b"of somebody else", n % 2) for n in range(50)))
    was = group(topology(world.items, sink), topology(world.items, sink).table("large"))
    world.kafka.admin().delete_consumer_groups([was])[was].result(10)
    assert world.sent(sink) is None
    world.published(sink, 2)
    found = [told.change for told in received(world.kafka, sink) if told.headers]
    assert sorted(found, key=str) == sorted(expected(0, 2), key=str)
    sent = world.sent(sink)
    assert sent is not None
    assert sent.done


def forgotten(world: World, sink: str, *partitions: int) -> None:
    """The broker forgets the group's offset, after a week, and retention removes what is in some partitions."""
    was = group(topology(world.items, sink), topology(world.items, sink).table("large"))
    admin = world.kafka.admin()
    admin.delete_consumer_groups([was])[was].result(10)
    ends = world.kafka.end_offsets([sink])[sink].offsets
    for partition in partitions:
        spot = confluent_kafka.TopicPartition(sink, partition, ends[partition])
        for emptied in admin.delete_records([spot]).values():
            emptied.result(10)


@pytest.mark.usefixtures("small")
def test_a_topic_that_nothing_tells_of_any_more_gets_nothing_twice(world: World) -> None:
    """Idle for longer than the broker keeps offsets, and its records were removed by retention."""
    sink = world.topic("sink")
    stopped(world, sink, 0, 1)  # died behind its first transaction
    before = changes(world.kafka, sink)
    assert len(before) == 2
    forgotten(world, sink, 0)
    end = world.kafka.end_offsets([sink])[sink].offsets[0]
    for _ in range(2):
        with pytest.raises(InputChanged, match=rf"how far topic {sink} is, is not known: .*at tests/.*--repeat"):
            world.published(sink, 0)
    assert world.kafka.end_offsets([sink])[sink].offsets[0] == end, "nothing was sent"
    made = topology(world.items, sink)
    publish(world.stages[0], made, made.table("large"), repeat=True)
    assert changes(world.kafka, sink) == expected(0, 0), "the whole table, when asked for"
    # Another topic begins with the whole table, as ever.
    other = world.topic("other")
    world.published(other, 0)
    assert changes(world.kafka, other) == expected(0, 0)


def test_a_topic_that_lost_its_newest_records_is_not_taken_for_what_is_left_of_it(world: World) -> None:
    sink = world.topic("sink", 2)
    for stage in range(3):
        world.published(sink, stage)
    told = received(world.kafka, sink)
    versions = {n: max(int(one.headers["tidetable.version"]) for one in told if one.partition == n) for n in (0, 1)}
    newest = max(told, key=lambda one: (int(one.headers["tidetable.version"]), int(one.headers["tidetable.ordinal"])))
    forgotten(world, sink, newest.partition)
    with pytest.raises(InputChanged, match=rf"records were removed from partition {newest.partition}, the newest"):
        world.published(sink, 2)
    left = [one for one in received(world.kafka, sink) if one.headers]
    made = topology(world.items, sink)
    publish(world.stages[2], made, made.table("large"), repeat=True)
    again = [one for one in received(world.kafka, sink) if one not in left]
    assert {int(one.headers["tidetable.version"]) for one in again} <= {
        versions[1 - newest.partition],
        max(versions.values()),
    }
    assert newest.change in [one.change for one in again]
    # Where a partition has any of the table's records, it has the newest that it ever had.
    forgotten(world, sink)
    assert world.published(sink, 2).records == 0


def test_a_topic_that_was_made_anew_begins_with_the_whole_table(world: World) -> None:
    sink = world.topic("sink")
    world.published(sink, 0)
    admin = world.kafka.admin()
    admin.delete_topics([sink])[sink].result(10)
    lake.until(lambda: world.kafka.partitions([sink]) == {})
    world.kafka.create_topic(sink)
    world.published(sink, 1)
    assert changes(world.kafka, sink) == expected(1, 1)


def test_the_newest_records_are_not_looked_for_before_a_transaction_of_others_that_is_open(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = world.topic("sink")
    was = group(topology(world.items, sink), topology(world.items, sink).table("large"))
    world.published(sink, 0)
    with lake.transaction(world.kafka, sink, "foreign") as foreign:
        world.published(sink, 1)  # nobody reads that yet
        world.kafka.admin().delete_consumer_groups([was])[was].result(10)
        monkeypatch.setattr("resources.publisher.TIMEOUT", 3.0)
        with pytest.raises(
            KafkaUnavailable, match=r"an open transaction hides the records of partition 0 from offset 6 on"
        ):
            world.published(sink, 2)
        foreign.abort_transaction(30)
    world.published(sink, 2)
    assert changes(world.kafka, sink) == expected(0, 2)


def test_what_is_not_kafkas_is_not_told_as_kafkas(world: World) -> None:
    sink = world.topic("sink")

    def fails() -> None:
        with world.kafka.publishing("ours", sink, True) as publisher:
            publisher.send(b"1", b"2", None, {})
            raise SystemError("our own")

    with pytest.raises(SystemError, match="our own"):
        fails()
    with pytest.raises(KafkaUnavailable, match="acks"):
        Kafka({**world.kafka.config, "acks": "1"}).publishing("ours", sink, True)


@pytest.mark.usefixtures("small")
def test_a_publisher_that_another_one_overtook_commits_nothing_more(world: World) -> None:
    sink = world.topic("sink")
    made = topology(world.items, sink)
    heard: list[PublishedPosition] = []

    def say(sent: PublishedPosition, _: int) -> None:
        heard.append(sent)
        if len(heard) == 1:
            world.published(sink, 2)

    with pytest.raises(NotCommitted, match="took over"):
        publish(world.stages[0], made, made.table("large"), say)
    assert changes(world.kafka, sink) == expected(0, 2)


def test_a_publisher_that_is_inside_a_transaction_is_fenced_and_its_records_are_undone(world: World) -> None:
    sink = world.topic("sink")
    made = topology(world.items, sink)
    name = group(made, made.table("large"))
    with world.kafka.publishing(name, sink, True) as zombie:
        zombie.send(b"0", b"from the grave", None, {})
        assert zombie._producer.flush(10) == 0
        world.published(sink, 0)
        with pytest.raises(NotCommitted, match="took over"):
            zombie.commit(99, "{}")
    assert changes(world.kafka, sink) == expected(0, 0)
    assert len(received(world.kafka, sink, committed=False)) == 6
    world.published(sink, 1)
    assert changes(world.kafka, sink) == expected(0, 1)


@pytest.mark.parametrize("asks", [lambda zombie: zombie._producer.flush(10), lambda zombie: zombie._producer.poll(10)])
def test_a_publisher_that_hears_of_its_records_that_it_was_fenced_says_so(
    world: World, asks: Callable[[Publisher], object]
) -> None:
    sink = world.topic("sink")
    made = topology(world.items, sink)
    name = group(made, made.table("large"))

    def awake(zombie: Publisher) -> None:
        with zombie:
            asks(zombie)
            zombie.commit(99, "{}")

    fenced = world.kafka.publishing(name, sink, True)
    fenced.send(b"0", b"from the grave", None, {})
    assert fenced._producer.flush(10) == 0
    world.published(sink, 0)
    fenced.send(b"1", b"from the grave", None, {})
    with pytest.raises(NotCommitted, match="took over"):
        awake(fenced)
    assert changes(world.kafka, sink) == expected(0, 0)


@pytest.mark.usefixtures("small")
def test_at_least_once_repeats_a_batch_whose_position_was_not_committed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = world.topic("sink")
    world.published(sink, 0, guarantee="at_least_once")
    stopped(world, sink, 1, 1, guarantee="at_least_once")

    def crash(*_: object) -> None:
        raise Crash

    with monkeypatch.context() as crashing:
        crashing.setattr(Publisher, "_insist", crash)  # the records are there, and the position is not
        with pytest.raises(Crash):
            world.published(sink, 1, guarantee="at_least_once")
    world.published(sink, 1, guarantee="at_least_once")
    told = expected(0, 1)
    assert changes(world.kafka, sink) == [*told[:9], *told[7:]]


def test_a_rebuild_publishes_what_it_corrected_alone(world: World, tmp_path: Path) -> None:
    sink = world.topic("sink")
    world.published(sink, 0)
    ports = world.copy(1, tmp_path)
    made = topology(world.items, sink, amount="if(id = 2, 2000, amount) AS amount")
    with pytest.raises(PlanChanged, match="tidetable rebuild"):
        publish(ports, made, made.table("large"))
    rebuild(ports, made, made.table("large"), "rebuild")
    publish(ports, made, made.table("large"))
    assert changes(world.kafka, sink) == [*expected(0, 1), (2, {"amount": 2000, "note": "zwölf"})]


@pytest.mark.thorough
@pytest.mark.usefixtures("small")
def test_a_table_whose_columns_were_replaced_goes_on_by_the_difference_of_its_versions(
    world: World, tmp_path: Path
) -> None:
    sink = world.topic("sink")
    world.published(sink, 0)
    stopped(world, sink, 1, 1)  # behind two changes of the feed, which the replaced table no longer tells
    ports = world.copy(1, tmp_path)
    made = topology(world.items, sink, amount="if(id = 2, 2.5, amount) AS amount")
    rebuild(ports, made, made.table("large"), "rebuild")
    publish(ports, made, made.table("large"))
    now = {key: {**row, "amount": row["amount"]} for key, row in snapshots()[1].items()}
    now[2]["amount"] = 2.5
    told = changes(world.kafka, sink)
    assert told[:10] == expected(0, 1)
    assert told[10:] == [(2, now[2])] or told[10:] == sorted(now.items())


def test_a_table_that_is_another_one_or_has_another_key_is_refused_by_name(world: World, tmp_path: Path) -> None:
    sink = world.topic("sink")
    world.published(sink, 1)
    with pytest.raises(InputChanged, match="an older copy"):
        world.published(sink, 0)
    ports = world.copy(1, tmp_path)
    made = topology(world.items, sink)
    shutil.rmtree(lake.path(ports, made, "large"))
    lake.step_all(ports, made, "large")
    with pytest.raises(InputChanged, match="no longer there"):
        publish(ports, made, made.table("large"))
    large = StoredTable(f"{made.name}/large", lake.path(ports, made, "large"))
    assert unpublished_versions(large, world.sent(sink)) == 1


def test_changes_that_were_cleaned_away_are_refused_by_name(world: World, tmp_path: Path) -> None:
    sink = world.topic("sink")
    world.published(sink, 0)
    ports, made = world.copy(2, tmp_path), topology(world.items, sink)
    shutil.rmtree(Path(lake.path(ports, made, "large")) / "_change_data")
    with pytest.raises(InputChanged, match="it begins with the whole table"):
        publish(ports, made, made.table("large"))
    assert changes(world.kafka, sink) == expected(0, 0)


def test_what_others_changed_is_published_with_the_commit_that_stands_on_it(
    world: World, session: SparkSession, tmp_path: Path
) -> None:
    sink = world.topic("sink")
    world.published(sink, 1)
    ports, made = world.copy(1, tmp_path), topology(world.items, sink)
    session.sql(f"UPDATE delta.`{lake.path(ports, made, 'large')}` SET note = 'by hand' WHERE id = 2").collect()
    assert publish(ports, made, made.table("large")).outcome == "idle"
    rebuild(ports, made, made.table("large"), "rebuild")  # puts it right again
    publish(ports, made, made.table("large"))
    right = {"amount": 20, "note": "zwölf"}
    assert changes(world.kafka, sink)[-2:] == [(2, right | {"note": "by hand"}), (2, right)]


def test_a_tick_publishes_and_a_topic_that_is_missing_stops_nothing_else(
    world: World, kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports, sink = world.copy(0, tmp_path), f"{world.items}-created-later"
    made = topology(world.items, sink)
    done = tick(ports, made, "missing")
    assert list(done.failed) == [f"kafka/{sink}"]
    assert isinstance(done.failed[f"kafka/{sink}"], TopicMissing)
    assert "tidetable topics create" in str(done.failed[f"kafka/{sink}"])
    assert lake.rows(ports, made, "large") == snapshots()[2]
    kafka.create_topic(sink)
    told: list[object] = []
    done = tick(ports, made, "there", say=told.append)
    assert done.failed == {}
    assert [(one.outcome, one.records) for one in done.published] == [("published", len(snapshots()[2]))]
    assert done.published[0] in told
    send(kafka, world.items, Record(None, {"amount": 1}))  # moves the table's position, and no row
    assert [one.outcome for one in tick(ports, made, "again").published] == ["idle"]
    monkeypatch.setattr(publishing, "RECOMMIT_VERSIONS", 1)
    (kept,) = tick(ports, made, "far").published
    assert (kept.records, kept.transactions) == (0, 1)
    assert kept.after is not None
    assert kept.after.version == lake.state(ports, made, "large").own
    assert tick(ports, made, "kept").published[0].transactions == 0
    monkeypatch.setattr(position, "RECOMMIT_MS", 0)  # the broker forgets what nobody commits for a week
    (aged,) = tick(ports, made, "aged").published
    assert (aged.outcome, aged.records, aged.transactions, aged.after) == ("idle", 0, 1, kept.after)
    at = published_position(kafka, made, made.table("large"))
    assert at is not None
    assert at.at > kept.after.at


@pytest.mark.parametrize("metadata", ["", "null", "{}", "None", '{"tidetable": 2'])
def test_an_offset_that_somebody_else_committed_is_none_of_ours(metadata: str) -> None:
    assert PublishedPosition.from_json(metadata) is None


def refused(items: str, guarantee: str = "exactly_once_v2") -> Topology:
    """A record from the far future, and a large one, each published to a topic that takes none of the kind."""
    # By default the landing would keep a record from the far future.
    builder = StreamsBuilder(f"refused-{items}", processing_guarantee=guarantee, message_timestamp_after_max_ms=None)
    table = builder.table(items, Consumed.json(key="id bigint", value="at bigint, note string", timestamp="at"))
    for number, name in enumerate(("far", "large")):
        table.filter(f"id = {number}").materialize(name).to(f"{items}-{name}")
    return builder.build()


@pytest.fixture(scope="module")
def refusing(ports: Ports, kafka: Kafka, topic: Callable[..., str]) -> str:
    """The topic they are from, landed and stepped."""
    items = topic(config={"max.message.bytes": "2000000"})
    producer = kafka.producer(**{"message.max.bytes": 2_000_000})
    for number, value in enumerate(({"at": FAR, "note": ""}, {"at": AT, "note": "x" * 1_100_000})):
        producer.produce(items, key=str(number).encode(), value=json.dumps(value).encode(), timestamp=AT)
    producer.flush()
    made = refused(items)
    for table in made.tables:
        if table.topic is not None:
            kafka.create_topic(table.topic)
    lake.land_all(ports, made)
    lake.step_all(ports, made)
    return items


@pytest.mark.parametrize("guarantee", ["exactly_once_v2", pytest.param("at_least_once", marks=pytest.mark.thorough)])
@pytest.mark.parametrize(
    ("name", "setting"), [("far", "message.timestamp.after.max.ms"), ("large", "max.message.bytes")]
)
def test_a_record_that_a_topic_refuses_is_told_by_the_setting_that_refuses_it(
    ports: Ports, kafka: Kafka, refusing: str, guarantee: str, name: str, setting: str
) -> None:
    made = refused(refusing, guarantee)
    with pytest.raises(RecordRefused, match=setting):
        publish(ports, made, made.table(name))
    assert received(kafka, f"{refusing}-{name}") == []


@pytest.mark.parametrize("guarantee", ["exactly_once_v2", pytest.param("at_least_once", marks=pytest.mark.thorough)])
def test_a_refused_record_names_its_key_and_is_left_out_once_the_row_was_corrected(
    ports: Ports, kafka: Kafka, topic: Callable[..., str], guarantee: str
) -> None:
    items, sink = topic("items"), topic("sink")
    builder = StreamsBuilder(f"far-{items}", processing_guarantee=guarantee, message_timestamp_after_max_ms=None)
    shape = Consumed.json(key="id bigint", value="at bigint", timestamp="at")
    builder.table(items, shape).filter("true").materialize("kept").to(sink)
    made = builder.build()
    kept = made.table("kept")

    def arrive(*records: Record) -> None:
        send(kafka, items, *records)
        lake.land_all(ports, made)
        lake.step_all(ports, made)

    def refused(key: int) -> None:
        with pytest.raises(
            RecordRefused, match=rf"refuses the record of key {key} of .*kept.*correct the row at its source"
        ):
            publish(ports, made, kept)

    arrive(Record(5, {"at": AT}))
    publish(ports, made, kept)
    # Two in one batch, and neither is its first: the broker names other records beside them.
    arrive(*(Record(key, {"at": FAR if key in (7, 8) else AT}) for key in (6, 7, 8, 9)))
    refused(7)
    arrive(Record(7, {"at": AT + 1}))
    refused(8)
    arrive(Record(8, {"at": AT + 1}))
    done = publish(ports, made, kept)
    assert (done.outcome, done.records, done.left_out, done.skipped) == ("published", 4, 2, ())
    found = [one.change[0] for one in received(kafka, sink)]
    assert sorted(set(found)) == [5, 6, 7, 8, 9]
    assert guarantee == "at_least_once" or found == [5, 6, 9, 7, 8]
    assert publish(ports, made, kept).outcome == "idle"


@pytest.mark.thorough
def test_a_bad_row_that_was_corrected_before_the_tables_columns_were_replaced_is_left_out(
    ports: Ports, kafka: Kafka, topic: Callable[..., str]
) -> None:
    items, sink = topic("items"), topic("sink")

    def defined(*columns: str) -> Topology:
        builder = StreamsBuilder(f"replaced-{items}", message_timestamp_after_max_ms=None)
        shape = Consumed.json(key="id bigint", value="at bigint, note string", timestamp="at")
        builder.table(items, shape).map_values(columns).materialize("kept").to(sink)
        return builder.build()

    both, one = defined("at", "note"), defined("at")
    publish_kept = partial(publish, ports, one, one.table("kept"))
    for wave in ([Record(5, {"at": AT})], [Record(7, {"at": FAR})], [Record(7, {"at": AT + 1})]):
        send(kafka, items, *wave)
        lake.land_all(ports, both)
        lake.step_all(ports, both)
        if wave[0].key == 5:
            publish(ports, both, both.table("kept"))
    rebuild(ports, one, one.table("kept"), "rebuild")
    assert publish_kept().left_out == 1
    newest = dict(told.change for told in received(kafka, sink))
    assert newest[7] == {"at": AT + 1}
    assert publish_kept().outcome == "idle"


@pytest.mark.parametrize("kind", ["table", pytest.param("stream", marks=pytest.mark.thorough)])
def test_a_record_that_a_topic_never_takes_is_skipped_when_asked_for_and_the_position_counts_it(
    ports: Ports, kafka: Kafka, topic: Callable[..., str], kind: str
) -> None:
    items, sink = topic("items"), topic("sink", config={"cleanup.policy": "compact"})
    builder = StreamsBuilder(f"skipped-{items}", message_timestamp_after_max_ms=None)
    shape = Consumed.json(key="id bigint", value="at bigint", timestamp="at")
    if kind == "table":
        builder.table(items, shape).filter("true").materialize("kept").to(sink)
    else:
        builder.stream(items, shape).materialize("kept").to(sink)
    made = builder.build()
    kept = made.table("kept")
    # Too far ahead; and a compacted topic takes no record without a key.
    bad = Record(2, {"at": FAR}) if kind == "table" else Record(None, {"at": AT})

    def arrive(*records: Record) -> None:
        send(kafka, items, *records)
        lake.land_all(ports, made)
        lake.step_all(ports, made)

    arrive(Record(1, {"at": AT}), bad, Record(3, {"at": AT}))
    named, later = ("key 2", True) if kind == "table" else ("number 1 in version 1", False)
    with pytest.raises(RecordRefused, match=named) as told:
        publish(ports, made, kept)
    assert f"tidetable publish {made.name}.kept --skip-refused" in str(told.value)
    assert ("another row of its key" in str(told.value)) is later
    done = publish(ports, made, kept, skip_refused=True)
    assert (done.records, done.left_out, len(done.skipped)) == (2, 0, 1)
    arrive(Record(4, {"at": AT}))
    assert publish(ports, made, kept).skipped == ()
    assert [one.change[0] for one in received(kafka, sink)] == [1, 3, 4]
    sent = published_position(kafka, made, kept)
    assert sent is not None
    assert (sent.skipped, sent.done) == (1, True)
    was = group(made, kept)
    kafka.admin().delete_consumer_groups([was])[was].result(10)
    after = publish(ports, made, kept).after
    assert after is not None
    assert after.skipped == 1, "records tell it, too"


def told_by(kafka: Kafka, topic: str) -> list[tuple[object, object, int]]:
    """Key, value and time of every record."""
    return [(*one.change, one.timestamp - AT) for one in received(kafka, topic)]


def test_a_stream_is_published_record_by_record_and_a_window_once_it_is_closed(
    ports: Ports, kafka: Kafka, topic: Callable[..., str]
) -> None:
    clicks, seen, counted = topic("clicks"), topic("seen"), topic("counted")
    builder = StreamsBuilder(f"streams-{clicks}")
    stream = builder.stream(clicks, Consumed.json(key="user string", value="sku string"))
    stream.filter("sku IS NULL OR sku <> 'bot'").materialize("seen").to(seen)
    windows = stream.group_by("sku").windowed_by(TimeWindows.of("1s", grace="0s"))
    windows.count().suppress(Suppressed.until_window_closes()).to(counted)
    made = builder.build()
    assert [table.name for table in made.tables] == ["seen", counted]

    def wave(*records: tuple[str | None, str | None, int]) -> None:
        sent = (Record(key, None if sku is None else {"sku": sku}, timestamp=AT + at) for key, sku, at in records)
        send(kafka, clicks, *sent)
        assert tick(ports, made, "wave").failed == {}

    wave(("ada", "pen", 10), ("ben", "bot", 20), ("ada", None, 30), ("ada", "pen", 5))
    first = [("ada", {"sku": "pen"}, 10), ("ada", None, 30), ("ada", {"sku": "pen"}, 5)]
    assert told_by(kafka, seen) == first
    assert told_by(kafka, counted) == []
    wave(("cat", "ink", 1500), ("ada", "pen", 1400))
    assert told_by(kafka, seen) == [*first, ("cat", {"sku": "ink"}, 1500), ("ada", {"sku": "pen"}, 1400)]
    start, end = (datetime.fromtimestamp(AT / 1000 + n, UTC).isoformat(timespec="microseconds") for n in (0, 1))
    bounds = {"window_start": start.replace("+00:00", "Z"), "window_end": end.replace("+00:00", "Z")}
    assert told_by(kafka, counted) == [
        ({"sku": "bot", **bounds}, {"count": 1}, 20),
        ({"sku": "pen", **bounds}, {"count": 2}, 10),
    ]


def priced(items: str, sink: str, *columns: str) -> Topology:
    """Some columns of all items, published."""
    builder = StreamsBuilder(f"priced-{items}")
    builder.table(items, ITEMS).map_values(columns).materialize("priced").to(sink)
    return builder.build()


@pytest.mark.thorough
@pytest.mark.usefixtures("small")
def test_a_version_that_was_begun_is_ended_with_the_columns_it_had(
    ports: Ports, kafka: Kafka, topic: Callable[..., str]
) -> None:
    items, sink = topic("items"), topic("sink")
    both, one = priced(items, sink, "amount", "note"), priced(items, sink, "amount")

    def step(*values: tuple[int, str]) -> None:
        for key, (amount, note) in enumerate(values, 1):
            send(kafka, items, Record(key, {"amount": amount, "note": note, "hidden": 0}, timestamp=AT))
        lake.land_all(ports, both)
        lake.step_all(ports, both)

    step((1, ""), (1, ""), (1, ""), (1, ""))
    publish(ports, both, both.table("priced"))
    step((1, "new"), (2, ""), (2, ""), (2, ""))  # of the first item the note alone changes

    def say(*_: object) -> None:
        raise Crash

    with pytest.raises(Crash):  # behind two of the four
        publish(ports, both, both.table("priced"), say)
    rebuild(ports, one, one.table("priced"), "rebuild")
    publish(ports, one, one.table("priced"))
    newest = dict(told.change for told in received(kafka, sink))
    assert {key: value["amount"] for key, value in newest.items()} == {1: 1, 2: 2, 3: 2, 4: 2}


@pytest.mark.thorough
def test_the_stored_changes_of_a_table_are_published_in_the_order_of_its_commits(
    ports: Ports, kafka: Kafka, topic: Callable[..., str]
) -> None:
    items, sink = topic("items"), topic("sink")
    builder = StreamsBuilder(f"changes-{items}")
    counts = builder.table(items, ITEMS).group_by("note").count().materialize("counts")
    counts.to_stream().materialize("changes").to(sink)
    made = builder.build()
    ada = {"amount": 1, "note": "ada", "hidden": 0}
    for wave in ([Record(1, ada, timestamp=AT), Record(2, ada, timestamp=AT + 1)], [Record(2, None, timestamp=AT + 2)]):
        send(kafka, items, *wave)
        lake.land_all(ports, made)
        lake.step_all(ports, made, items, "counts")
    lake.step_all(ports, made, "changes")  # two commits at once: the newer row has the older coordinates
    publish(ports, made, made.table("changes"))
    assert [told.change for told in received(kafka, sink)] == [("ada", {"count": 2}), ("ada", {"count": 1})]
