"""A small step replaces the rows at its keys where every row differs for certain, and merges them elsewhere."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import Row
from pyspark.sql import functions as F

from resources.engine import Engine
from spark.engine.audit import Audited
from spark.engine.inputs import span
from spark.engine.log import merge, replacement
from spark.engine.log.stored_table import StoredTable
from spark.engine.offsets import TopicOffsets
from spark.topology import Consumed, StreamsBuilder, Topology
from tests.support import lake
from tests.support.lake import Record, send

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import ModuleType

    from pyspark.sql import SparkSession

    from resources.kafka import Kafka
    from spark.engine.attempt import Stepped
    from spark.engine.ports import Ports

ITEM = Consumed.json(key="sku string", value="price int")
LATER = 1_700_000_000_001  # milliseconds: a moment after the records of all other tests here
FIRST = [Record(sku, {"price": price}) for sku, price in (("a", 1), ("b", 2), ("it's ${x}", 3))]


@pytest.fixture
def items(kafka: Kafka, topic: Callable[..., str]) -> str:
    """A topic of items in two partitions, with three records."""
    name = topic("items", partitions=2)
    send(kafka, name, *FIRST)
    return name


def built(items: str, read: str = "") -> Topology:
    """The items' table, and what reads it."""
    builder = StreamsBuilder(f"replacement-{items}")
    table = builder.table(items, ITEM)
    match read:
        case "a view":
            table.filter("price > 1").materialize("dear")
        case "an aggregate":
            table.group_by("price").count("items").materialize("totals")
        case "its changes":
            table.to_stream().materialize("changes")
    return builder.build()


def arrived(ports: Ports, kafka: Kafka, topology: Topology, *records: Record) -> dict[str, Stepped]:
    """Send records, and step all tables."""
    send(kafka, topology.sources[0].topic, *records)
    lake.land_all(ports, topology)
    return lake.step_all(ports, topology)


def newest(ports: Ports, topology: Topology, table: str) -> dict[str, object]:
    """The newest commit of a table, as its log has it."""
    return DeltaTable(lake.path(ports, topology, table)).history(1)[0]


def how(ports: Ports, topology: Topology, table: str) -> object:
    """The operation of a table's newest commit."""
    return newest(ports, topology, table)["operation"]


def counted(done: Stepped) -> tuple[int, int, int, int]:
    return done.touched, done.inserted, done.updated, done.deleted


def test_changed_and_new_rows_are_replaced_in_one_commit(ports: Ports, kafka: Kafka, items: str) -> None:
    topology = built(items, "a view")
    arrived(ports, kafka, topology)
    done = arrived(
        ports, kafka, topology, Record("a", {"price": 9}), Record("it's ${x}", {"price": 4}), Record("d", {"price": 1})
    )
    for table in (items, "dear"):
        assert how(ports, topology, table) == "WRITE"
        assert lake.state(ports, topology, table).position.deleted == 0
    assert counted(done[items]) == (3, 1, 2, 0)
    assert counted(done["dear"]) == (3, 1, 1, 0)
    assert lake.rows(ports, topology, items) == {
        "a": {"price": 9},
        "b": {"price": 2},
        "it's ${x}": {"price": 4},
        "d": {"price": 1},
    }
    assert lake.rows(ports, topology, "dear") == {"a": {"price": 9}, "b": {"price": 2}, "it's ${x}": {"price": 4}}


def test_deleted_rows_are_counted_and_tombstones_of_unknown_keys_are_not(
    ports: Ports, kafka: Kafka, items: str
) -> None:
    topology = built(items, "a view")
    arrived(ports, kafka, topology)
    done = arrived(ports, kafka, topology, Record("b", None), Record("unknown", None), Record("a", {"price": 7}))
    assert counted(done[items]) == (3, 0, 1, 1)
    assert lake.state(ports, topology, items).position.deleted == 1
    assert counted(done["dear"]) == (2, 1, 0, 1)
    assert lake.rows(ports, topology, "dear") == {"a": {"price": 7}, "it's ${x}": {"price": 3}}
    done = arrived(ports, kafka, topology, Record("unknown", None), Record("b", None))
    assert counted(done[items]) == (2, 0, 0, 0)
    version = lake.state(ports, topology, items)
    assert version.data_version < version.version, "the commit changed no rows"


ROW = "k int, _topic string, _partition int, _offset bigint, _timestamp timestamp, _present boolean"
CUT = {
    "cluster/t": TopicOffsets("id", {0: 5, 2: 7}),
    "cluster/it's": TopicOffsets("id", {}),
    "far/t": TopicOffsets("id", {0: 3}),
}


@pytest.mark.parametrize(
    ("topic", "partition", "offset", "second", "certain"),
    [
        ("t", 0, 5, 1, True),
        ("t", 0, 4, 1, False),  # beyond a topic of that name in another cluster only
        ("t", 0, None, 1, False),
        ("t", 1, 0, 1, True),  # a partition that was empty
        ("t", 2, 6, 1, False),
        ("t", 2, 7, 1, True),
        ("t", 9, 0, 1, True),  # a new partition
        ("it's", 0, 0, 1, True),  # a topic that was empty
        ("u", 0, 7, 1, False),  # a topic that no row was made of
        (None, None, None, 1, False),
        ("t", 0, 4, 3, True),  # later than every stored row
        (None, None, None, None, False),
    ],
)
def test_a_row_differs_for_certain_if_its_record_is_beyond_the_cut_or_its_time_later_than_all(
    session: SparkSession,
    topic: str | None,
    partition: int | None,
    offset: int | None,
    second: int | None,
    certain: bool,
) -> None:
    at = None if second is None else datetime.fromtimestamp(second, UTC)
    rows = session.createDataFrame([(1, topic, partition, offset, at, True)], ROW)
    differs = replacement.differs(CUT, newest_time=2_500_000)
    found = replacement.touched(rows, ["k"], differs, limit=1)
    assert found is not None
    assert replacement.differ(found) is certain
    assert replacement.counts(rows, ["k"], differs) == replacement.Counts(1, 0, int(not certain), Row(k=1))
    absent = rows.withColumn("_present", F.lit(False))
    assert replacement.differ(replacement.touched(absent, ["k"], differs, limit=1) or [])
    assert replacement.counts(absent, ["k"], differs) == replacement.Counts(1, 1, 0, None)


def test_the_times_of_stored_rows_are_known_by_the_statistics_of_their_files(
    ports: Ports, kafka: Kafka, items: str
) -> None:
    topology = built(items)
    arrived(ports, kafka, topology, Record("a", {"price": 1}, timestamp=1_700_000_000_123))
    stored = StoredTable.of(ports.lakehouse, topology.name, items)
    assert stored.newest_time() == 1_700_000_000_124_000


@pytest.mark.parametrize(
    ("read", "operation"), [("a view", "WRITE"), ("an aggregate", "MERGE"), ("its changes", "MERGE")]
)
def test_a_table_whose_former_rows_are_read_is_merged(
    ports: Ports, kafka: Kafka, items: str, read: str, operation: str
) -> None:
    topology = built(items, read)
    arrived(ports, kafka, topology)
    arrived(ports, kafka, topology, Record("a", {"price": 9}))
    assert how(ports, topology, items) == operation


def test_readers_that_come_later_take_a_replaced_row_for_one_change(ports: Ports, kafka: Kafka, items: str) -> None:
    alone = built(items)
    arrived(ports, kafka, alone)
    arrived(ports, kafka, alone, Record("a", {"price": 9}), Record("b", None))
    assert how(ports, alone, items) == "WRITE"
    followed = built(items, "its changes")
    lake.step_all(ports, followed)
    records = [
        (row["sku"], row["price"], row["_deleted"]) for row in lake.listed(lake.path(ports, followed, "changes"))
    ]
    wanted = [("a", 1, False), ("a", 9, False), ("b", 2, False), ("b", None, True), ("it's ${x}", 3, False)]
    assert sorted(records, key=repr) == sorted(wanted, key=repr)


def test_an_aggregate_that_comes_later_folds_what_was_replaced(ports: Ports, kafka: Kafka, items: str) -> None:
    summed, alone = built(items, "an aggregate"), built(items)
    arrived(ports, kafka, summed)
    send(kafka, items, Record("a", {"price": 9}), Record("b", None))
    lake.land_all(ports, alone)
    lake.step_all(ports, alone)
    assert how(ports, alone, items) == "WRITE", "while no aggregate reads it"
    lake.step_all(ports, summed)
    assert lake.rows(ports, summed, "totals") == {3: {"items": 1}, 9: {"items": 1}}


def shop(orders: str, customers: str) -> Topology:
    """Orders with their customer, by a foreign key; and what reads the result."""
    builder = StreamsBuilder(f"replacement-{orders}")
    left = builder.table(orders, Consumed.json(key="id int", value="customer int"))
    right = builder.table(customers, Consumed.json(key="customer int", value="name string"))
    joined = left.join(right, on="customer", select=["left.*", "right.name"]).materialize("joined")
    joined.filter("name <> 'Eve'").materialize("trusted")
    return builder.build()


@pytest.fixture
def two(kafka: Kafka, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> tuple[Topology, str, str]:
    """Four orders of two customers; a condition has at most two keys, so three are many."""
    monkeypatch.setattr(merge, "LITERALS", 2)
    monkeypatch.setattr(span, "FEW", 2)
    orders, customers = topic("orders", partitions=2), topic("customers")
    send(kafka, customers, *(Record(n, {"name": name}) for n, name in ((1, "Ada"), (2, "Bob"))))
    send(kafka, orders, *(Record(n, {"customer": 1 if n < 4 else 2}) for n in range(1, 5)))
    return shop(orders, customers), orders, customers


def changed(ports: Ports, kafka: Kafka, topology: Topology, topic: str, *records: Record) -> dict[str, Stepped]:
    """Send records to one topic, step all tables, and hold every version to its query."""
    send(kafka, topic, *records)
    lake.land_all(ports, topology)
    done = lake.step_all(ports, topology)
    audits = lake.audited(ports, topology, *(table.name for table in topology.tables))
    assert all(isinstance(audit, Audited) and audit.holds for audit in audits), audits
    return done


def by_keys(ports: Ports, topology: Topology, table: str) -> bool:
    """Whether the newest commit of a table replaced the rows at the keys of a frame."""
    parameters = newest(ports, topology, table)["operationParameters"]
    assert isinstance(parameters, dict)
    return "replaceOnCond" in parameters


def test_rows_at_many_keys_are_replaced_if_all_differ_for_certain(
    ports: Ports, kafka: Kafka, two: tuple[Topology, str, str]
) -> None:
    topology, orders, customers = two
    changed(ports, kafka, topology, orders)
    moved = [Record(n, {"customer": 2}) for n in (1, 2, 5)]
    done = changed(ports, kafka, topology, orders, *moved)
    for table in (orders, "joined"):
        assert by_keys(ports, topology, table)
        assert counted(done[table]) == (3, 1, 2, 0)
        stored = StoredTable.of(ports.lakehouse, topology.name, table)
        [changes] = stored.changed_versions(stored.version() - 1, stored.version())
        assert (changes.rows, changes.read_rows) == (5, 3), "a reader takes the insertions alone"
    # The rows of a renamed customer have the coordinates of their orders, and are later than all stored rows.
    done = changed(ports, kafka, topology, customers, Record(2, {"name": "Eve"}, timestamp=LATER))
    assert by_keys(ports, topology, "joined")
    assert counted(done["joined"]) == (4, 0, 4, 0)
    assert {key: row["name"] for key, row in lake.rows(ports, topology, "trusted").items()} == {3: "Ada"}
    done = changed(ports, kafka, topology, customers, Record(2, {"name": "Kim"}, timestamp=LATER + 1))
    assert counted(done["trusted"]) == (4, 4, 0, 0)


@pytest.mark.parametrize(
    ("where", "limit", "most", "replaced"),
    [
        (merge, "GONE", 1, True),
        (merge, "GONE", 0, False),
        (merge, "ON_LENGTH", 10, False),
        (replacement, "BITMAP", 10, False),
    ],
)
def test_some_of_many_keys_are_deleted_in_the_same_commit_within_its_limits(
    ports: Ports,
    kafka: Kafka,
    two: tuple[Topology, str, str],
    monkeypatch: pytest.MonkeyPatch,
    where: ModuleType,
    limit: str,
    most: int,
    replaced: bool,
) -> None:
    monkeypatch.setattr(where, limit, most)
    topology, orders, _ = two
    changed(ports, kafka, topology, orders)
    moved = [Record(n, {"customer": 2}) for n in (1, 5)]
    done = changed(ports, kafka, topology, orders, *moved, Record(3, None), Record(9, None))
    for table in (orders, "joined"):
        assert by_keys(ports, topology, table) is replaced
        assert counted(done[table]) == (4 if table == orders else 3, 1, 1, 1)
        assert lake.state(ports, topology, table).position.deleted == (1 if replaced else None)
    assert lake.rows(ports, topology, "trusted").keys() == {1, 2, 4, 5}


def test_many_keys_that_have_no_row_any_more_are_merged(
    ports: Ports, kafka: Kafka, two: tuple[Topology, str, str]
) -> None:
    topology, orders, _ = two
    changed(ports, kafka, topology, orders)
    done = changed(ports, kafka, topology, orders, *(Record(n, None) for n in (1, 2, 3)))
    assert how(ports, topology, "joined") == "MERGE"
    assert counted(done["joined"]) == (3, 0, 0, 3)


def test_rows_at_many_keys_are_merged_if_some_may_be_equal(
    ports: Ports, kafka: Kafka, two: tuple[Topology, str, str]
) -> None:
    """A renamed customer is no later than the orders that it touches."""
    topology, orders, customers = two
    changed(ports, kafka, topology, orders, Record(9, {"customer": 2}))
    changed(ports, kafka, topology, customers, Record(1, {"name": "Eve"}))
    assert how(ports, topology, "joined") == "MERGE"


@pytest.mark.parametrize(
    ("name", "kind", "known", "deleted", "replaced"),
    [
        ("IN", "string", True, 0, True),
        ("IN", "string", False, 0, False),
        ("größe-x", "string", True, 0, True),
        ("größe-x", "string", True, 1, True),
        ("größe-x", "string", False, 1, False),
        ("at", "date", True, 0, True),
        ("at", "date", True, 1, False),  # only integers and text are written as literals
    ],
)
def test_rows_at_many_keys_are_merged_by_another_delta_and_if_a_deleted_key_cannot_be_written(
    ports: Ports,
    kafka: Kafka,
    topic: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    kind: str,
    known: bool,
    deleted: int,
    replaced: bool,
) -> None:
    monkeypatch.setattr(merge, "LITERALS", 2)
    monkeypatch.setattr(Engine, "has_replace_on", known)
    sizes = topic("sizes")
    builder = StreamsBuilder(f"replacement-{sizes}")
    builder.table(sizes, Consumed.json(key=f"k int, `{name}` {kind}", value="s int, t int"))
    topology = builder.build()
    text = "2026-01-01" if kind == "date" else "it's ${x}"
    for wave in range(2):
        gone = range(deleted if wave else 0)
        records = [Record({"k": n, name: text}, None if n in gone else {"s": wave, "t": n}) for n in range(3)]
        done = changed(ports, kafka, topology, sizes, *records)
    assert counted(done[sizes]) == (3, 0, 3 - deleted, deleted)
    assert by_keys(ports, topology, sizes) is replaced


@pytest.mark.parametrize(("rows", "replaced", "readable"), [(393_216, 200_000, True), (500_000, 40_000, False)])
def test_what_many_replaced_rows_were_can_be_read(
    session: SparkSession, tmp_path: Path, rows: int, replaced: int, readable: bool
) -> None:
    """Delta cannot read the second one's: if it can some day, there is no limit any more."""
    assert replacement.can_be_read(rows, replaced) is readable
    path = str(tmp_path / "table")
    written = session.range(rows, numPartitions=1).selectExpr("id AS k", "0 AS v").write.format("delta")
    written = written.option("maxRecordsPerFile", rows)  # more than the engine's
    written.option("delta.enableDeletionVectors", "true").option("delta.enableChangeDataFeed", "true").save(path)
    for version in (1, 2):
        some = session.range(rows, numPartitions=1).where(f"pmod(xxhash64(id, {version}), {rows}) < {replaced}")
        new = some.selectExpr("id AS k", f"{version} AS v").alias(merge.NEW).write.format("delta").mode("overwrite")
        new.option("replaceOn", merge.on_keys(["k"])).option("targetAlias", merge.OLD).save(path)
    feed = session.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 2).load(path)
    with nullcontext() if readable else pytest.raises(PySparkException, match="too long"):
        assert feed.where("_change_type = 'delete'").count() == feed.where("_change_type = 'insert'").count() > 0


def test_keys_of_several_columns_are_replaced_pair_by_pair(session: SparkSession) -> None:
    key = ["a", "b"]
    keys = [Row(a=-1, b="x"), Row(a=2, b="it's"), Row(a=-(2**63), b="")]
    others = [(-1, "it's"), (2, "x"), (3, "x")]
    rows = session.createDataFrame([*(tuple(one) for one in keys), *others], "a bigint, b string")
    assert sorted(rows.where(merge.at_keys(key, keys)).collect()) == sorted(keys)


def test_only_integers_and_text_are_written_as_literals() -> None:
    assert merge.has_literals([Row(k=1), Row(k="x")], ["k"])
    assert not any(merge.has_literals([Row(k=1), Row(k=value)], ["k"]) for value in (True, 1.0, None, b"x"))
