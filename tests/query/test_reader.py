"""What a reader answers is what the oracle has, at every version; nothing internal is in it."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa  # type: ignore[import-untyped]  # has no types of its own
import pytest

from spark.query.deadline import within
from spark.query.errors import (
    KeyRefused,
    NameUnknown,
    NotCovered,
    NotWhole,
    PackageMissing,
    QueryError,
    QueryTimeout,
    QueryUnsupported,
    VersionGone,
)
from spark.query.reader import Reader
from spark.query.rows import needed
from tests.query.world import CITIES, PEOPLE
from tests.support import lake

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark.query.rows import Rows
    from spark.query.table_reader import TableReader
    from tests.query.world import Clicks, World


def by_id(rows: dict[int, dict[str, object]]) -> list[dict[str, object]]:
    return [rows[number] for number in sorted(rows)]


def test_rows_are_found_by_key_range_and_all_in_the_order_of_the_key(world: World) -> None:
    table = world.reader.table(world.table)
    for _ in range(2):  # the second query searches the small files in memory
        for number in range(PEOPLE):
            assert table.get(number) == world.people.get(number)
        assert table.all() == by_id(world.people)
        assert table.range(10, 20) == [row for row in by_id(world.people) if 10 <= row["id"] <= 20]  # type: ignore[operator]
        assert table.range(low=50, reverse=True) == by_id(world.people)[::-1][: len(table.range(low=50))]
        assert table.range(high=30, limit=3) == by_id(world.people)[:3]
        assert table.get_many([5, 3, 99, 3]) == [world.people[n] for n in (3, 5) if n in world.people]
        assert table.get_many([]) == []
        assert table.count() == len(world.people)


def test_an_aggregate_has_no_partials_and_text_is_found_by_its_beginning(world: World) -> None:
    table = world.reader.table(f"{world.topology.name}.cities")
    counts = world.cities()
    assert table.all() == [{"city": city, "count": counts[city]} for city in sorted(counts)]
    assert table.prefix("Bo") == [{"city": city, "count": counts[city]} for city in sorted(counts) if city[:2] == "Bo"]
    assert table.prefix("Kö") == [{"city": "Köln", "count": counts["Köln"]}]
    stored = lake.listed(lake.path(world.ports, world.topology, "cities"))[0]
    assert "_rows" in stored, "what a fold stores beside the row, which no query returns"


def test_an_answer_goes_on_after_the_last_key_of_the_one_before(world: World, clicks: Clicks) -> None:
    reader = world.reader
    windows = reader.table(f"{clicks.topology.name}.tumbling")
    people = reader.table(world.table)
    queries: list[tuple[TableReader, Callable[..., Rows], bool]] = [
        (people, people.all, True),
        (people, partial(people.range, 10, 40), True),
        (people, partial(people.get_many, range(0, PEOPLE, 2)), False),
        (windows, windows.windows, False),
        (windows, partial(windows.prefix, ("a",)), True),
    ]
    for table, find, is_reversible in queries:
        for options in [{}, {"reverse": True}] if is_reversible else [{}]:
            rows = list(find(**options))
            assert len(rows) > 3
            found: list[Any] = []
            after = None
            while page := list(find(limit=3, after=after, **options)):
                assert len(page) == 3 or found + page == rows
                found += page
                after = tuple(page[-1][name] for name in table.key)
            assert found == rows


def test_a_query_ends_when_its_time_is_over(world: World) -> None:
    table = world.reader.table(world.table)
    for query in (table.all, partial(table.get, 1), partial(table.history, 1)):
        with within(0), pytest.raises(QueryTimeout, match=rf"{world.table}: the query took more than 0 s"):
            query()
    assert table.all() == by_id(world.people)


def test_columns_and_coordinates_are_there_on_request(world: World) -> None:
    table = world.reader.table(world.table)
    number = min(world.people)
    assert table.get(number, columns=["city"]) == {"city": world.people[number]["city"]}
    placed = table.get(number, metadata=True)
    assert placed is not None
    assert set(placed) == {"id", "name", "city", "_timestamp", "_topic", "_partition", "_offset"}
    assert placed["_topic"] == world.topic
    assert table.schema.names == ["id", "name", "city"]


def test_every_version_is_read_as_it_was(world: World) -> None:
    reader = world.reader
    table = reader.table(world.table)
    for version, rows in world.by_version.items():
        then = table.as_of_version(version)
        assert then.version == version
        assert then.all() == by_id(rows)
        assert table.as_of_cut(then.cut).all() == by_id(rows)
    with pytest.raises(QueryError, match="as of this version"):
        then.refresh()
    with pytest.raises(VersionGone, match="no version 1000"):
        table.as_of_version(1000)
    first = min(world.by_version)
    with pytest.raises(NotWhole, match=rf"is not whole at version 0: .* its first step committed version {first}"):
        table.as_of_version(0)
    with pytest.raises(
        VersionGone, match=rf"no version without records beyond the cut .*: version {first}, its oldest"
    ):
        table.as_of_cut({world.topic: {0: 0}})


def test_a_time_is_the_newest_version_committed_up_to_it(world: World) -> None:
    table = world.reader.table(world.table)
    changes = [change for number in range(PEOPLE) for change in table.history(number)]
    times = {change.version: change.at for change in changes}
    for version, rows in world.by_version.items():
        assert table.as_of_timestamp(times[version]).all() == by_id(rows)
    with pytest.raises(VersionGone, match="the log begins with version 0"):
        table.as_of_timestamp(dt.datetime(2001, 1, 1, tzinfo=dt.UTC))
    with pytest.raises(QueryError, match="no time zone"):
        table.as_of_timestamp(dt.datetime(2001, 1, 1))


def test_the_history_of_a_key_has_every_version_that_changed_it(world: World) -> None:
    table = world.reader.table(world.table)
    for number in range(PEOPLE):
        found = table.history(number)
        assert found.since == 0
        assert [(change.version, change.row) for change in found] == world.changes_of(number)
        for change in found:
            assert change.cut == table.as_of_version(change.version).cut


def test_tables_of_a_snapshot_are_at_one_cut(world: World) -> None:
    names = [world.table, f"{world.topology.name}.cities", f"{world.topology.name}.neighbours"]
    snapshot = world.reader.snapshot(names)
    assert len({str(snapshot[name].cut) for name in names}) == 1
    counts = {row["city"]: row["count"] for row in snapshot[names[1]].all()}
    assert snapshot[names[2]].all() == [row | {"count": counts[row["city"]]} for row in snapshot[names[0]].all()]
    with pytest.raises(NameUnknown, match="the snapshot has no table 'x'"):
        snapshot["x"]


def test_what_is_not_there_is_refused_with_what_is(world: World) -> None:
    reader = world.reader
    table = reader.table(world.table)
    cities = reader.table(f"{world.topology.name}.cities")
    with pytest.raises(NameUnknown, match=rf"there is no table 'nothing.here'; the lake has .*{world.table}"):
        reader.table("nothing.here")
    with pytest.raises(NameUnknown, match=rf"did you mean {world.topology.name}.neighbours\?; the lake has"):
        reader.table(f"{world.topology.name}.neighbors")
    with pytest.raises(NameUnknown, match=r"there is no lake at /no/such/lake, so there is no table .a\.b.: name"):
        Reader("/no/such/lake").table("a.b")
    with pytest.raises(NameUnknown, match="has no column height; it has id, name, city"):
        table.get(1, columns=["height"])
    with pytest.raises(NameUnknown, match=r"has no column nam; did you mean name\?; it has id, name, city"):
        table.get(1, columns=["nam"])
    with pytest.raises(KeyRefused, match=r"'1' is str, and id is bigint. Its key is \(id bigint\)"):
        table.get("1")
    with pytest.raises(KeyRefused, match=r"True is bool"):
        table.get(True)
    with pytest.raises(KeyRefused, match=r"is no bigint"):
        table.get(2**63)
    with pytest.raises(KeyRefused, match=r"has 2 columns. Its key is \(city string\)"):
        cities.get(("Bonn", "Köln"))
    with pytest.raises(KeyRefused, match=r"has other columns"):
        cities.get({"town": "Bonn"})
    with pytest.raises(KeyRefused, match=r"None is NoneType"):
        cities.get(None)
    call: Any
    wrong: Any
    for call, wrong, says in (
        (table.as_of_version, "1", "'1' is no version"),
        (table.as_of_timestamp, "2026", "'2026' is no datetime"),
        (table.get_many, 1, "1 is one key; pass a list"),
        (partial(table.get, 1), "name", "columns='name' is text; pass a list"),
        (partial(reader.table, world.table), {"people": 99}, "names no offsets; write them by topic and partition"),
        (reader.snapshot, world.table, "pass a list of names"),
        (lambda limit: table.all(limit=limit), -1, "limit=-1 is below 0"),
    ):
        with pytest.raises(QueryError, match=says):
            call(wrong)
    with pytest.raises(QueryUnsupported, match=r"has no windows: its key is \(id\)"):
        table.windows(1)
    with pytest.raises(QueryUnsupported, match="is not a versioned table"):
        table.get_as_of(1, dt.datetime.now(dt.UTC))
    assert cities.get({"city": CITIES[0]}) == cities.get((CITIES[0],)) == cities.get(CITIES[0])


@dataclass(frozen=True)
class Delivered:
    """What a delivery report has, with the methods of confluent_kafka's `Message`."""

    name: str
    at: int

    def topic(self) -> str:
        """Return the topic."""
        return self.name

    def partition(self) -> int:
        """Return the partition."""
        return 0

    def offset(self) -> int:
        """Return the offset."""
        return self.at


def test_at_least_fails_by_name_when_it_is_not_covered_in_time(world: World) -> None:
    reader = world.reader
    end = world.sent
    assert reader.table(world.table, at_least={world.topic: {0: end}}, timeout=0).count() == len(world.people)
    assert reader.table(world.table, at_least=Delivered(world.topic, end - 1), timeout=0).count() == len(world.people)
    with pytest.raises(NotCovered, match=rf"{world.topic}/0 up to offset {end} \(it has {end - 1}\) after 0 s"):
        reader.table(world.table, at_least=[Delivered(world.topic, end)], timeout=0)
    with pytest.raises(NotCovered, match=rf"knows no partition 7 of {world.topic}: it has 0\) after 0 s"):
        reader.table(world.table, at_least={world.topic: {7: 1}}, timeout=0)
    with pytest.raises(NotCovered, match="is not computed from topic 'other', but from people"):
        reader.table(world.table, at_least={"other": {0: 1}}, timeout=0)
    with pytest.raises(NotCovered, match="was not delivered"):
        reader.table(world.table, at_least=Delivered(world.topic, -1001), timeout=0)
    with pytest.raises(NotCovered, match="up to offset"):
        reader.snapshot([world.table], at_least={world.topic: {0: end + 1}}, timeout=0)


def test_results_are_what_the_packages_of_the_field_make_of_them(world: World) -> None:
    rows = world.reader.table(world.table).all()
    assert rows.arrow().column_names == ["id", "name", "city"]
    assert pa.types.is_int64(rows.arrow().schema.field("id").type)
    assert rows.pandas()["id"].tolist() == sorted(world.people)
    assert rows.duckdb().aggregate("count(*)").fetchall() == [(len(world.people),)]
    assert rows[0] == by_id(world.people)[0]
    assert rows[-1] == by_id(world.people)[-1]
    with pytest.raises(PackageMissing, match=r"polars\(\) needs .*, which is not installed: pip install"):
        needed("no_such_package_of_anybody", "polars()")


def test_a_topology_that_is_passed_gives_its_names_and_keys(world: World) -> None:
    reader = Reader(world.ports.lakehouse, world.topology)
    assert reader.table("cities").all() == world.reader.table(f"{world.topology.name}.cities").all()
