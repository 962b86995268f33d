"""Every kind of plan and key: the stored definition says the key, and deletion vectors are read as deltalake does."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # has no types of its own
import pytest
from deltalake import DeltaTable

from spark.engine.advance import identity
from spark.engine.log import delta_log
from spark.query.conditions import Among, Between, Everything, StartsWith
from spark.query.deletion_vectors import deleted_rows
from spark.query.errors import KeyRefused, LayoutUnknown
from spark.query.files import FileCache, Files
from spark.query.keys import Key, key_of, plan_of
from spark.query.reader import Reader
from spark.topology import Consumed, StreamsBuilder, Topology, Versioned
from spark.topology.topology import Table
from tests.laws.test_laws import PLANS
from tests.query.world import BASE, MINUTE
from tests.support import lake
from tests.support.lake import Record, send

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from resources.kafka import Kafka
    from spark.engine.ports import Ports
    from spark.query.rows import Rows
    from tests.query.world import Clicks


@pytest.mark.parametrize("name", PLANS)
def test_the_stored_definition_says_which_columns_are_the_key(name: str) -> None:
    table = Table("t", PLANS[name])
    stored = json.dumps({"plan": Topology("x", (), (table,)).computed_by("t")})
    plan = plan_of("x.t", {"tidetable.definition": stored}, None)
    fields = pa.schema([(column, pa.int64()) for column in identity(table.plan)])
    assert key_of("x.t", plan, fields).names == identity(table.plan)


@pytest.mark.parametrize("stored", [{}, {"plan": [{"is": "a kind of a later version"}]}, {"plan": [1]}, {"plan": []}])
def test_a_definition_without_a_key_says_what_to_do(stored: dict[str, object]) -> None:
    with pytest.raises(LayoutUnknown, match=r"x\.t: .* Pass the topology, .* or run `tidetable rebuild x\.t`"):
        plan_of("x.t", {"tidetable.definition": json.dumps(stored)}, None)


@pytest.mark.parametrize(
    ("kind", "text", "value", "wrong"),
    [
        (pa.int32(), "7", 7, 7.0),
        (pa.string(), "7", "7", 7),
        (pa.decimal128(5, 2), "7.25", Decimal("7.25"), 7.25),
        (pa.float64(), "0.5", 0.5, "0.5"),
        (pa.bool_(), "true", True, 1),
        (pa.date32(), "2026-01-02", dt.date(2026, 1, 2), dt.datetime(2026, 1, 2)),
        (pa.timestamp("us", "UTC"), "2026-01-02T03:00", dt.datetime(2026, 1, 2, 3, tzinfo=dt.UTC), "2026-01-02"),
        (pa.timestamp("us"), "2026-01-02T03:00", dt.datetime(2026, 1, 2, 3), dt.datetime(2026, 1, 2, tzinfo=dt.UTC)),
        (pa.binary(), "00ff", b"\x00\xff", "00ff"),
    ],
)
def test_a_key_has_the_type_of_its_column(kind: pa.DataType, text: str, value: object, wrong: object) -> None:
    key = Key("x.t", (pa.field("k", kind),))
    assert key.parsed((text,)) == (value,)
    assert key.whole(value)[0].as_py() == value
    with pytest.raises(KeyRefused, match="Its key is"):
        key.whole(wrong)


def test_deletion_vectors_of_every_form_are_read_as_deltalake_reads_them(
    session: SparkSession, tmp_path: Path, lake_root: Path
) -> None:
    where = f"{lake_root}/{tmp_path.name}-vectors"
    session.range(0, 300_000, 1, 1).write.format("delta").option("delta.enableDeletionVectors", "true").save(where)
    left = np.arange(300_000)
    cases = {
        # arrays of three containers, and a run
        "id IN (0, 1, 70000, 299999) OR id BETWEEN 1000 AND 9000": np.isin(left, (0, 1, 70_000, 299_999))
        | ((left >= 1000) & (left <= 9000)),
        "id > 99999 AND id < 200000 AND id % 2 = 0": (left > 99_999) & (left < 200_000) & (left % 2 == 0),  # bitmaps
        "id BETWEEN 10000 AND 290000": (left >= 10_000) & (left <= 290_000),
    }
    gone = np.zeros(len(left), bool)
    for number, (where_deleted, deleted) in enumerate(cases.items(), 1):
        session.sql(f"DELETE FROM delta.`{where}` WHERE {where_deleted}").collect()
        gone |= deleted
        files = Files.of("x", where, DeltaTable(where), FileCache())
        [added] = [action["add"] for action in delta_log.actions(where, number) or [] if "add" in action]
        assert np.array_equal(deleted_rows(added["deletionVector"], files.bytes_of), files.deleted[added["path"]])
        assert files.select(Everything(), ["id"])["id"].to_pylist() == left[~gone].tolist()
        assert files.count() == len(left) - gone.sum()
    assert DeltaTable(where).count() == len(left), "deltalake counts deleted rows; when it does not, this can go"


KEYS = {
    "bigint": "id - 5000",
    "string": "concat(repeat('x', 40), lpad(cast(id as string), 5, '0'))",  # Delta cuts text off after 32 characters
    "text": "concat(char(200 + id % 50), id)",
    "timestamp": "timestamp_micros(1700000000000000 + id)",  # Delta cuts times off after milliseconds
    "date": "date_add(date'2020-01-01', cast(id as int))",
    "decimal": "cast(id as decimal(38,10)) / 3",  # JSON has some 15 digits of it
}


@pytest.mark.parametrize("clustered", [False, True])
def test_no_statistics_hide_a_row(session: SparkSession, tmp_path: Path, lake_root: Path, clustered: bool) -> None:
    """Keys of each type in small files, and in files of many row groups, in the order of their values and in none."""
    where = f"{lake_root}/{tmp_path.name}-statistics"
    session.conf.set("parquet.block.size", "8192" if clustered else "100000000")
    frame = session.range(0, 12_000, 1, 1).selectExpr("id", *(f"{text} AS `{name}`" for name, text in KEYS.items()))
    (frame if clustered else frame.orderBy("text").coalesce(1)).write.format("delta").save(where)
    files = Files.of("x", where, DeltaTable(where), FileCache())
    assert (files.cache.footer(where, files.names[0]).metadata.num_row_groups > 1) == clustered
    rows = files.select(Everything(), files.schema.names)
    for name in KEYS:
        for place in range(0, 12_000, 599):
            value = rows[name][place]
            found = files.select(Between((name,), (value,), (value,)), ["id"])
            assert found["id"].to_pylist() == [rows["id"][place].as_py()], (name, value)
            assert rows["id"][place].as_py() in files.select(Between((name,), (value,), None), ["id"])["id"].to_pylist()
        some = rows.take(pa.array(range(0, 12_000, 1_000)))
        among = files.select(Among(some.select([name])), ["id"])
        assert sorted(among["id"].to_pylist()) == sorted(some["id"].to_pylist()), name
    start = StartsWith("text", rows["text"][7].as_py()[:2])
    expected = [one for one in rows["text"].to_pylist() if one.startswith(start.text)]
    assert sorted(files.select(start, ["text"])["text"].to_pylist()) == sorted(expected)


def test_windows_sessions_and_composite_keys_are_found_by_their_parts(ports: Ports, clicks: Clicks) -> None:
    topology, at = clicks.topology, clicks.minutes
    reader = Reader(ports.lakehouse)

    def after(minute: int) -> dt.datetime:
        return dt.datetime.fromtimestamp((BASE + minute * MINUTE) / 1000, dt.UTC)

    windows = reader.table(f"{topology.name}.tumbling")
    expected: dict[tuple[str, str, dt.datetime], int] = {}
    for (page, user), minutes in at.items():
        for minute in minutes:
            start = (BASE + minute * MINUTE) // (10 * MINUTE) * 10 * MINUTE
            window = (page, user, dt.datetime.fromtimestamp(start / 1000, dt.UTC))
            expected[window] = expected.get(window, 0) + 1

    def found(rows: Rows) -> list[tuple[tuple[str, str, dt.datetime], int]]:
        return [((row["page"], row["user"], row["_window_start"]), row["count"]) for row in rows]

    assert found(windows.all()) == sorted(expected.items())
    mine = sorted(item for item in expected.items() if item[0][:2] == ("a", "x"))
    assert found(windows.windows(("a", "x"))) == mine
    assert found(windows.windows(("a", "x"), since=mine[1][0][2], until=mine[1][0][2])) == [mine[1]]
    assert found(windows.windows(since=mine[-1][0][2])) == sorted(
        item for item in expected.items() if item[0][2] >= mine[-1][0][2]
    )
    assert set(windows.all()[0]) == {"page", "user", "_window_start", "_window_end", "count"}

    sittings = reader.table(f"{topology.name}.sittings")
    spans = [(row["_window_start"], row["_window_end"], row["count"]) for row in sittings.sessions(("a", "x"))]
    assert spans == [(after(0), after(1), 2), (after(12), after(13), 2), (after(30), after(30), 1)]
    between = sittings.sessions(("a", "x"), since=after(1), until=after(12))
    assert [row["count"] for row in between] == [2, 2]
    assert [row["count"] for row in sittings.sessions(("a", "x"), since=after(2), until=after(11))] == []

    totals = reader.table(f"{topology.name}.totals")
    rows = [{"page": page, "user": user, "count": len(minutes)} for (page, user), minutes in sorted(at.items())]
    assert totals.all() == rows
    assert totals.get(("a", "y")) == totals.get({"user": "y", "page": "a"}) == rows[1]
    assert totals.prefix(("a",)) == totals.prefix("a") == rows[:2]
    assert totals.range(("a", "y"), ("b",)) == rows[1:]
    assert totals.range(("a", "x"), ("a", "x")) == rows[:1]
    assert totals.get_many([("b", "x"), ("a", "x"), ("b", "y")]) == [rows[0], rows[2]]
    with pytest.raises(KeyRefused, match=r"has 1 of 2 columns. Its key is \(page string, user string\)"):
        totals.get("a")

    stream = reader.table(f"{topology.name}.kept")
    assert [row["id"] for row in stream.all()] == list(range(clicks.count))
    assert stream.get((clicks.topic, 0, 2, 0)) == stream.all()[2]


def test_a_versioned_table_is_read_as_of_an_event_time(ports: Ports, kafka: Kafka, topic: Callable[..., str]) -> None:
    name = topic("prices")
    builder = StreamsBuilder(f"versioned-{name}")
    builder.table(name, Consumed.json(key="sku string", value="price int"), versioned=Versioned("1d"))
    topology = builder.build()
    waves: list[list[tuple[int, str, int | None]]] = [
        [(10, "a", 1), (20, "a", 2), (15, "b", 7)],
        [(12, "a", 3), (30, "a", None), (40, "a", 4), (20, "a", 5)],  # out of order, a deletion, and the same time
    ]
    reader = Reader(ports.lakehouse)
    known: list[tuple[int, int, str, int | None]] = []
    pinned = []
    for wave in waves:
        for minute, sku, price in wave:
            known.append((minute, len(known), sku, price))
            value = None if price is None else {"price": price}
            send(kafka, name, Record(sku, value, timestamp=BASE + minute * MINUTE))
        lake.land_all(ports, topology)
        lake.step_all(ports, topology)
        pinned.append((reader.table(f"{topology.name}.{name}"), list(known)))
    for table, records in pinned:
        for sku in "ab":
            for minute in range(5, 45):
                when = dt.datetime.fromtimestamp((BASE + minute * MINUTE) / 1000, dt.UTC)
                valid = max((one for one in records if one[2] == sku and one[0] <= minute), default=None)
                expected = None if valid is None or valid[3] is None else {"sku": sku, "price": valid[3]}
                assert table.get_as_of(sku, when) == expected, (sku, minute)
