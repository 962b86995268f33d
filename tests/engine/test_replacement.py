"""A small step replaces the rows at its keys where every row differs for certain, and merges them elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable
from pyspark.sql import Row

from spark.engine.log import merge, replacement
from spark.engine.offsets import TopicOffsets
from spark.topology import Consumed, StreamsBuilder, Topology
from tests.support import lake
from tests.support.lake import Record, send

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from resources.kafka import Kafka
    from spark.engine.attempt import Stepped
    from spark.engine.ports import Ports

ITEM = Consumed.json(key="sku string", value="price int")
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


def touched(offset: int | None, topic: str = "t", present: bool = True, key: object = 1) -> Row:
    """A touched key, and the coordinates of the record that made its row."""
    return Row(k=key, _topic=topic, _partition=0, _offset=offset, _present=present)


def test_rows_differ_for_certain_if_records_beyond_the_cut_made_them() -> None:
    cut = {"cluster/t": TopicOffsets("id", {0: 5})}
    beyond = [touched(5), touched(9), touched(1, present=False)]
    assert replacement.differ(beyond, ["k"], cut)
    for other in (touched(4), touched(None), touched(7, topic="u"), touched(7, key=1.5)):
        assert not replacement.differ([*beyond, other], ["k"], cut)
    of_new_partition = Row(k=1, _topic="t", _partition=1, _offset=0, _present=True)
    assert replacement.differ([of_new_partition], ["k"], cut)


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


def test_keys_of_several_columns_are_replaced_pair_by_pair(session: SparkSession) -> None:
    key = ["a", "b"]
    keys = [Row(a=-1, b="x"), Row(a=2, b="it's"), Row(a=-(2**63), b="")]
    others = [(-1, "it's"), (2, "x"), (3, "x")]
    rows = session.createDataFrame([*(tuple(one) for one in keys), *others], "a bigint, b string")
    assert sorted(rows.where(merge.at_keys(key, keys)).collect()) == sorted(keys)


def test_only_integers_and_text_are_written_as_literals() -> None:
    assert merge.has_literals([Row(k=1), Row(k="x")], ["k"])
    assert not any(merge.has_literals([Row(k=1), Row(k=value)], ["k"]) for value in (True, 1.0, None, b"x"))
