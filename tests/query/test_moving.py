"""Readers beside a writer: a version stays as it is, a reader moves on by changes, and old versions end by name."""

from __future__ import annotations

import json
import random
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest

from spark.engine.compact import compact
from spark.engine.land import capture, land
from spark.engine.step import step
from spark.query.errors import NameUnknown, NotCovered, VersionGone
from tests.query.world import PEOPLE, World
from tests.support import lake
from tests.support.lake import Record, send

if TYPE_CHECKING:
    from collections.abc import Callable

    from confluent_kafka import Message
    from pyspark.sql import SparkSession

    from resources.kafka import Kafka
    from spark.engine.ports import Ports
    from spark.query.reader import Reader

READERS = 100
Row = dict[str, Any]


@pytest.fixture(scope="module")
def early(ports: Ports, kafka: Kafka, topic: Callable[..., str]) -> World:
    """A table that no step has made yet."""
    return World.made(ports, kafka, topic, seed=2)


@pytest.fixture(scope="module")
def moving(early: World) -> World:
    if not early.by_version:
        early.wave()
    return early


def rows_of(world: World) -> list[Row]:
    return [world.people[number] for number in sorted(world.people)]


def test_a_query_that_must_cover_a_record_waits_for_the_first_step(early: World) -> None:
    wanted: dict[str, Any] = {"at_least": {early.topic: {0: 1}}}
    cities = f"{early.topology.name}.cities"
    with pytest.raises(NameUnknown, match="A table exists from its first step on"):
        early.reader.table(early.table, **wanted, timeout=0)
    with ThreadPoolExecutor(2) as pool:
        table = pool.submit(early.reader.table, early.table, **wanted, timeout=300)
        snapshot = pool.submit(early.reader.snapshot, [early.table, cities], **wanted, timeout=300)
        early.wave()
        assert table.result().all() == rows_of(early)
        assert snapshot.result()[cities].count() == len(early.cities())


def test_a_snapshot_goes_back_to_the_table_that_lags(moving: World) -> None:
    names = [moving.table, f"{moving.topology.name}.cities"]
    was, counts, cut = rows_of(moving), moving.cities(), moving.reader.table(names[0]).cut
    moving.people[1] = {"id": 1, "name": "new", "city": "Bonn"}
    send(moving.kafka, moving.topic, Record(1, {"name": "new", "city": "Bonn"}))
    moving.sent += 1
    lake.land_all(moving.ports, moving.topology)
    lake.step_all(moving.ports, moving.topology, moving.topic)
    snapshot = moving.reader.snapshot(names)
    assert moving.reader.table(names[0]).all() == rows_of(moving)
    assert snapshot[names[0]].all() == was
    assert {row["city"]: row["count"] for row in snapshot[names[1]].all()} == counts
    assert snapshot.cut == cut
    with pytest.raises(NotCovered, match=r"no common cut that covers .* up to offset"):
        moving.reader.snapshot(names, at_least={moving.topic: {0: moving.sent}}, timeout=0)
    lake.step_all(moving.ports, moving.topology)
    covered = moving.reader.snapshot(names, at_least={moving.topic: {0: moving.sent}}, timeout=0)
    assert covered[names[0]].all() == rows_of(moving)
    with pytest.raises(NotCovered, match="no table of the snapshot is computed from other"):
        moving.reader.snapshot(names, at_least={"other": {0: 1}}, timeout=0)


def test_a_pinned_reader_stays_and_a_refreshed_one_has_what_is_new(moving: World) -> None:
    reader = moving.reader
    pinned, moves = reader.table(moving.table), reader.table(moving.table)
    was = rows_of(moving)
    for _ in range(2):
        moving.wave()
        assert moves.refresh()
        assert not moves.refresh()
        assert moves.all() == rows_of(moving)
        assert [moves.get(number) for number in range(PEOPLE)] == [moving.people.get(n) for n in range(PEOPLE)]
        assert pinned.all() == was


def test_rows_and_history_are_the_same_after_a_compaction(moving: World) -> None:
    table = moving.reader.table(moving.table)
    histories = [list(table.history(number)) for number in range(PEOPLE)]
    assert compact(moving.ports.engine, moving.ports.lakehouse, moving.topology, moving.topic).removed > 1
    assert table.refresh()
    assert table.all() == rows_of(moving)
    assert [list(table.history(number)) for number in range(PEOPLE)] == histories
    moving.wave()
    table.refresh()
    assert table.all() == rows_of(moving)


def test_a_version_whose_files_were_vacuumed_ends_by_name_and_never_with_other_rows(
    moving: World, session: SparkSession
) -> None:
    reader = moving.reader
    pinned = reader.table(moving.table)
    was = rows_of(moving)
    moving.wave()
    where = lake.path(moving.ports, moving.topology, moving.topic)
    compact(moving.ports.engine, moving.ports.lakehouse, moving.topology, moving.topic)
    lake.vacuum(session, where)
    with pytest.raises(VersionGone, match=rf"VACUUM removed files of version {pinned.version}.*refresh\(\)"):
        pinned.all()
    with pytest.raises(VersionGone, match="VACUUM removed"):
        pinned.as_of_version(pinned.version).get(1)
    assert pinned.refresh()
    assert pinned.all() == rows_of(moving)
    assert rows_of(moving) != was
    history = pinned.history(1)
    assert history.since > 0, "the files of older versions are gone, and the history says from where it is whole"
    moving.wave()
    pinned.refresh()
    assert [(change.version, change.row) for change in pinned.history(1)][len(history) :] == [
        change for change in moving.changes_of(1) if change[0] == pinned.version
    ]


def test_hundred_readers_beside_a_writer_read_whole_versions_only(moving: World) -> None:
    reader: Reader = moving.reader
    seen: dict[int, list[Row]] = {}
    done = Event()

    def read(number: int) -> int:
        rng, table, reads = random.Random(number), reader.table(moving.table), 0
        while not done.is_set():
            table.refresh()
            pinned = table.as_of_version(table.version) if rng.random() < 0.1 else table
            version, rows = pinned.version, list(pinned.all())
            assert seen.setdefault(version, rows) == rows
            one = rng.randrange(PEOPLE)
            if pinned.version == version:
                assert pinned.get(one) == next((row for row in rows if row["id"] == one), None)
            reads += 1
            time.sleep(rng.random())
        return reads

    with ThreadPoolExecutor(READERS) as pool:
        readers = [pool.submit(read, number) for number in range(READERS)]
        for _ in range(2):
            moving.wave()
        time.sleep(1)
        done.set()
        assert min(one.result() for one in readers) > 0
    for version in seen.keys() & moving.by_version.keys():
        rows = moving.by_version[version]
        assert seen[version] == [rows[number] for number in sorted(rows)]


def test_what_was_written_is_read_however_late_the_tick_is(moving: World) -> None:
    """A writer reads its own record after random delays of landing and stepping, by the record's delivery report."""
    rng = random.Random(3)
    reader = moving.reader

    def tick_later() -> None:
        time.sleep(rng.random())
        cut = capture(moving.ports.kafka, moving.topology)
        land(moving.ports, moving.topology, moving.topology.sources[0], cut, "test")
        time.sleep(rng.random())
        step(moving.ports, moving.topology, moving.topology.table(moving.topic), "test")

    with ThreadPoolExecutor(1) as pool:
        for number in range(2):
            reports: list[Message] = []

            def delivered(_: object, report: Message, to: list[Message] = reports) -> None:
                to.append(report)

            producer = moving.kafka.producer()
            row = {"name": f"own {number}", "city": "Bonn"}
            producer.produce(moving.topic, key=str(number), value=json.dumps(row), callback=delivered)
            producer.flush()
            tick = pool.submit(tick_later)
            assert reader.table(moving.table, at_least=reports, timeout=60).get(number) == {"id": number, **row}
            tick.result()
