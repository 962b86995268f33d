"""Records that did not decode are decoded again where they landed, and tables take them by their next step."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from spark.engine.audit import audit
from spark.engine.counts import counted
from spark.engine.errors import NotInQuarantine
from spark.engine.log import commit as committing
from spark.engine.log.stored_table import StoredTable
from spark.engine.quarantine import drop, raw_record, redecode, undecodable
from spark.engine.rebuild import rebuild
from spark.topology import Consumed, StreamsBuilder, TimeWindows, Versioned
from tests.support import lake
from tests.support.lake import Record, send

if TYPE_CHECKING:
    from collections.abc import Callable

    from resources.kafka import Kafka
    from spark.engine.ports import Ports
    from spark.topology import Topology

KEY = "id bigint"
STRICT = Consumed.json(key=KEY, value="name string, at bigint")
LENIENT = Consumed.json(key=KEY, value="name string")
BROKEN = "soon"
NOW, HOUR = time.time_ns() // 1_000_000, 3_600_000


def row(name: str, at: object = 1) -> dict[str, object]:
    return {"name": name, "at": at}


def people(topic: str) -> Topology:
    """The newest name of everybody, and how many have each."""
    builder = StreamsBuilder(f"people-{topic}")
    table = builder.table(topic, LENIENT)
    table.group_by("name").count().materialize("by_name")
    return builder.build()


@pytest.fixture
def strictly(ports: Ports, kafka: Kafka, topic: Callable[..., str]) -> tuple[str, Callable[..., None]]:
    """A topic, and how to land more of it by a declaration that some records do not meet."""
    name = topic("people", 2)
    builder = StreamsBuilder(f"people-{name}")
    builder.table(name, STRICT)

    def landing(*records: Record) -> None:
        send(kafka, name, *records)
        lake.land_all(ports, builder.build())

    return name, landing


def holds(ports: Ports, topology: Topology) -> None:
    """Every version of every table is its query."""
    for table in topology.tables:
        where = lake.path(ports, topology, table.name)
        for commit in StoredTable(f"{topology.name}/{table.name}", where).commits():
            found = audit(ports, topology, table, commit.version)
            assert found.holds, found.sample


def test_what_decodes_now_is_taken_at_its_own_place(ports: Ports, strictly: tuple[str, Callable[..., None]]) -> None:
    topic, landing = strictly
    landing(
        Record(1, row("ada")),
        Record(1, row("ada b.", BROKEN)),
        Record(2, row("bob", BROKEN)),
        Record(3, row("cyd"), partition=1),
        Record(4, b"no JSON", partition=1),
    )
    landing(Record(1, row("ada c.")), Record(3, row("bob", BROKEN), partition=1))
    topology = people(topic)
    [source] = topology.sources
    lake.step_all(ports, topology)
    before = lake.state(ports, topology, source.landing)
    assert lake.rows(ports, topology, topic) == {1: {"name": "ada c."}, 3: {"name": "cyd"}}
    assert len(undecodable(ports, topology, source, 9)) == 4

    done = redecode(ports, topology, source, "again")
    assert (done.decoded, done.left) == (3, 1)
    [left] = undecodable(ports, topology, source, 9)
    assert (left.partition, left.offset, left.value) == (1, 1, "no JSON")
    stepped = lake.step_all(ports, topology)
    assert {one.outcome for one in stepped.values()} == {"stepped"}
    assert lake.rows(ports, topology, topic) == {
        n: {"name": name} for n, name in ((1, "ada c."), (2, "bob"), (3, "bob"))
    }
    assert lake.rows(ports, topology, "by_name") == {"ada c.": {"count": 1}, "bob": {"count": 2}}

    landed = lake.state(ports, topology, source.landing)
    assert [at.offsets for at in landed.position.cut.values()] == [at.offsets for at in before.position.cut.values()]
    assert {one.outcome for one in lake.step_all(ports, topology).values()} == {"idle"}
    again = redecode(ports, topology, source, "once more")
    assert (again.decoded, again.left, again.version) == (0, 1, landed.version)
    landing(Record(2, None))
    lake.step_all(ports, topology)
    assert lake.rows(ports, topology, "by_name") == {"ada c.": {"count": 1}, "bob": {"count": 1}}
    holds(ports, topology)


def test_what_is_dropped_leaves_the_quarantine_and_stays_counted_and_no_step_sees_it(
    ports: Ports, strictly: tuple[str, Callable[..., None]]
) -> None:
    topic, landing = strictly
    landing(
        Record(1, row("ada")),
        Record(2, b"no JSON"),
        Record(2, b"no 'JSON' \\ either"),
        Record(3, b"\xff\x00", partition=1),
        Record(None, row("nobody"), partition=1),
    )
    topology = people(topic)
    [source] = topology.sources
    lake.step_all(ports, topology)
    before = lake.state(ports, topology, source.landing)
    raw = raw_record(ports, topology, source, 1, 0)
    assert (raw.error, raw.key, raw.key_hex) == (
        "the value does not decode as JSON (name string, at bigint)",
        "3",
        "33",
    )
    assert (raw.value, raw.value_hex) == ("\\xff\x00", "ff00")

    def counts() -> tuple[object, ...]:
        found = counted(ports.lakehouse, topology, source)
        assert found is not None
        assert found.wrong == ()
        assert found.records == found.rows + found.tombstones + found.quarantined + sum(found.dropped.values())
        return found.records, found.rows, found.quarantined, found.dropped

    assert counts() == (5, 1, 4, {})
    with pytest.raises(NotInQuarantine, match="partition 0 offset 0, partition 0 offset 9"):
        drop(ports, topology, source, {0: [0, 1, 9]}, "a test", "ada", "drop")
    with pytest.raises(NotInQuarantine, match="no record is in quarantine for this reason: no such 'reason"):
        drop(ports, topology, source, "no such 'reason", "a test", "ada", "drop")
    assert lake.state(ports, topology, source.landing).version == before.version

    done = drop(ports, topology, source, {0: [1]}, "a test", "ada", "drop")
    assert (done.dropped, done.left) == (1, 3)
    assert counts() == (5, 1, 3, {"a test (ada)": 1})
    done = drop(ports, topology, source, raw.error, "a test", "ada", "drop more")
    assert (done.dropped, done.left) == (2, 1)
    assert counts() == (5, 1, 1, {"a test (ada)": 3})
    state = lake.state(ports, topology, source.landing)
    assert (state.position.run, state.position.dropped) == ("drop more", {"a test (ada)": 3})
    assert state.position.cut == before.position.cut
    assert "stepped" not in {one.outcome for one in lake.step_all(ports, topology).values()}
    assert len(undecodable(ports, topology, source, 9)) == 1
    with pytest.raises(NotInQuarantine, match="partition 0 offset 1"):
        raw_record(ports, topology, source, 0, 1)

    landing(Record(4, row("dan")), Record(4, b"broken"), Record(1, None))
    assert counts() == (8, 2, 2, {"a test (ada)": 3})
    redecode(ports, topology, source, "again")
    lake.step_all(ports, topology)
    assert lake.rows(ports, topology, topic) == {4: {"name": "dan"}}
    rebuild(ports, topology, topology.table(topic), "rebuild")
    assert lake.rows(ports, topology, topic) == {4: {"name": "dan"}}
    holds(ports, topology)


def test_a_landing_that_commits_before_a_drop_or_right_behind_it_changes_no_count(
    ports: Ports, strictly: tuple[str, Callable[..., None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, landing = strictly
    topology = people(topic)
    [source] = topology.sources
    landing(Record(1, b"no JSON"), Record(2, b"no JSON"))
    merge, races = committing.merge, ["before", "behind"]

    def racing(*args: Any) -> Any:
        monkeypatch.undo()
        if races.pop(0) == "before":
            landing(Record(3, row("cyd")))
            monkeypatch.setattr(committing, "merge", racing)
            return merge(*args)
        landing_behind = merge(*args)
        assert landing_behind is not None
        landing(Record(4, row("dan")))
        return None  # as if this landing had come before the commit was read back

    monkeypatch.setattr(committing, "merge", racing)
    done = drop(ports, topology, source, {0: [0]}, "a test", "ada", "drop")
    assert (done.dropped, done.left, races) == (1, 1, [])
    found = counted(ports.lakehouse, topology, source)
    assert found is not None
    assert (found.records, found.rows, found.quarantined, found.dropped) == (4, 2, 1, {"a test (ada)": 1})
    assert found.wrong == ()


@pytest.mark.thorough
def test_a_table_that_is_behind_takes_them_with_what_it_is_behind(
    ports: Ports, strictly: tuple[str, Callable[..., None]]
) -> None:
    topic, landing = strictly
    topology = people(topic)
    landing(Record(1, row("ada", BROKEN)))
    lake.step_all(ports, topology)
    landing(Record(2, row("bob")))
    redecode(ports, topology, topology.sources[0], "again")
    lake.step_all(ports, topology, topic)
    landing(Record(3, row("bob")))
    lake.step_all(ports, topology, topic)
    lake.step_all(ports, topology, "by_name")
    assert lake.rows(ports, topology, "by_name") == {"ada": {"count": 1}, "bob": {"count": 2}}
    holds(ports, topology)


def counting(topic: str, limit: int | None) -> Topology:
    """How many records come in every hour."""
    builder = StreamsBuilder("counting", message_timestamp_after_max_ms=limit)
    stream = builder.stream(topic, Consumed.json(key=KEY, value="at bigint", timestamp="at"))
    stream.group_by("id").windowed_by(TimeWindows.of("1h", grace="1h")).count().materialize("hourly")
    stream.filter("id > 0").materialize("kept")
    return builder.build()


def test_a_record_days_ahead_freezes_neither_a_versioned_table_nor_the_windows_over_its_changes(
    ports: Ports, kafka: Kafka, topic: Callable[..., str]
) -> None:
    ahead = {"message.timestamp.after.max.ms": str(2**63 - 1)}
    prices, clicks = topic("prices", config=ahead), topic("clicks")
    builder = StreamsBuilder(f"ahead-{prices}")
    price = builder.table(prices, Consumed.json(key=KEY, value="price int"), versioned=Versioned("1d"))
    dear = price.filter("price > 0").materialize("dear")
    changes = dear.to_stream().materialize("changes").group_by("id")
    changes.windowed_by(TimeWindows.of("10m", grace="0ms")).count().materialize("counted")
    stream = builder.stream(clicks, Consumed.json(key=KEY, value="page string"))
    stream.join(price, on="id", select=["left.*", "right.price"]).materialize("clicked")
    topology = builder.build()

    def ticked(price: int, at: int) -> None:
        send(kafka, prices, Record(1, {"price": price}, timestamp=at))
        send(kafka, clicks, Record(1, {"page": f"{price}"}, timestamp=NOW + price))
        lake.land_all(ports, topology)
        lake.step_all(ports, topology)

    for price_, at in ((10, NOW), (20, NOW + 48 * HOUR), (30, NOW + 30)):
        ticked(price_, at)
    assert lake.rows(ports, topology, "dear") == lake.rows(ports, topology, prices) == {1: {"price": 30}}
    assert sorted(int(str(r["price"])) for r in lake.listed(lake.path(ports, topology, "clicked"))) == [10, 10, 30]
    counts = lake.listed(lake.path(ports, topology, "counted"))
    assert sum(int(str(r["count"])) for r in counts) == 2
    assert lake.state(ports, topology, "counted").position.dropped == {}
    assert len(undecodable(ports, topology, topology.source(prices), 9)) == 1
    holds(ports, topology)


@pytest.mark.thorough
def test_a_streams_record_that_is_let_in_later_is_late_only_by_its_time(
    ports: Ports, kafka: Kafka, topic: Callable[..., str]
) -> None:
    name = topic()
    guarded, trusting = counting(name, HOUR), counting(name, None)
    send(kafka, name, *(Record(1, {"at": NOW + n * HOUR}) for n in (-9, 3, 5)))
    lake.land_all(ports, guarded)
    lake.step_all(ports, guarded)
    assert [r["count"] for r in lake.listed(lake.path(ports, guarded, "hourly"))] == [1]
    assert len(lake.listed(lake.path(ports, guarded, "kept"))) == 1
    done = redecode(ports, trusting, trusting.sources[0], "again")
    assert (done.decoded, done.left) == (2, 0)
    lake.step_all(ports, trusting)
    assert len(lake.listed(lake.path(ports, guarded, "hourly"))) == 3
    assert {r["_offset"] for r in lake.listed(lake.path(ports, guarded, "kept"))} == {0, 1, 2}
    send(kafka, name, Record(1, {"at": NOW - 9 * HOUR}))
    lake.land_all(ports, trusting)
    lake.step_all(ports, trusting)
    assert lake.state(ports, trusting, "hourly").position.dropped == {"late": 1}
    for table in trusting.tables:
        assert rebuild(ports, trusting, table, "rebuild").inserted == 0
    holds(ports, trusting)


@pytest.mark.thorough
def test_a_stream_never_looks_up_what_was_overtaken_before_it_decoded(
    ports: Ports, kafka: Kafka, topic: Callable[..., str], strictly: tuple[str, Callable[..., None]]
) -> None:
    people_, landing = strictly
    clicks = topic("clicks")
    builder = StreamsBuilder(f"people-{people_}")
    names = builder.table(people_, LENIENT)
    stream = builder.stream(clicks, Consumed.json(key=KEY, value="page string"))
    stream.join(names, on="id", select=["left.*", "right.name"]).materialize("clicked")
    topology = builder.build()

    def click() -> list[tuple[object, object]]:
        """What a click of everybody finds."""
        send(kafka, clicks, *(Record(n, {"page": "p"}, timestamp=1_700_000_100_000) for n in (1, 2, 3)))
        lake.land_all(ports, topology)
        lake.step_all(ports, topology)
        found = lake.listed(lake.path(ports, topology, "clicked"))
        newest = max((int(str(one["_batch"])) for one in found), default=0)
        return sorted((one["id"], one["name"]) for one in found if one["_batch"] == newest)

    landing(Record(1, row("old", BROKEN)), Record(1, row("new")), Record(2, row("bob", BROKEN)))
    landing(Record(3, row("gone", BROKEN)), Record(3, None))
    assert click() == [(1, "new")]
    redecode(ports, topology, topology.source(people_), "again")
    assert click() == [(1, "new"), (2, "bob")]
    holds(ports, topology)


def test_a_record_that_did_not_decode_keeps_its_time(ports: Ports, kafka: Kafka, topic: Callable[..., str]) -> None:
    name = topic()
    for consumed in (STRICT, LENIENT):
        builder = StreamsBuilder(f"timed-{name}")
        builder.stream(name, consumed)
        topology = builder.build()
        if consumed is STRICT:
            send(kafka, name, Record(1, row("ada", BROKEN), timestamp=1_234_567))
            lake.land_all(ports, topology)
    done = redecode(ports, topology, topology.sources[0], "again")
    assert (done.decoded, done.left) == (1, 0)
    [found] = lake.records(ports, topology, name)
    assert (found["name"], found["_timestamp"], found["_error"]) == ("ada", 1_234_567, None)
