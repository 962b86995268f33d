"""A table over a Debezium topic is the database's table: what an event makes of its row, and what is no event."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from spark.testing import TopologyTestDriver
from spark.topology import Consumed, StreamsBuilder

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

    from resources.engine import Engine

GONE = "__debezium_unavailable_value"
WIDE = "name string, note string, photo binary, tags array<string>, ratings array<int>, attributes map<string,string>"


@pytest.fixture(scope="module")
def session(engine: Engine) -> Iterator[SparkSession]:
    session = engine.session()
    yield session
    session.stop()


class Source:
    """A table of a database, and the events that a connector writes of it."""

    def __init__(self, driver: TopologyTestDriver, form: str = "json") -> None:
        self.driver = driver
        self.form = form
        self.lsn = 0

    def event(
        self, op: str, key: object, after: object = None, at: int = 0, partition: int = 0, **headers: object
    ) -> None:
        """Pipe one event."""
        source = {"connector": "postgresql", "ts_ms": at, "table": "t", "lsn": self.lsn}
        # What `before` has besides the key are defaults, under the default replica identity.
        before = None if op in "cr" else {"id": key, "name": "", "note": "wrong"}
        value = {"before": before, "after": after, "source": source, "op": op, "ts_ms": at + 5}
        self.pipe(None if key is None else {"id": key}, value, at, partition, headers)

    def pipe(
        self, key: object, value: object, at: int = 0, partition: int = 0, headers: Mapping[str, object] | None = None
    ) -> None:
        """Pipe one record as JSON; a header has a key."""
        texts = {f"__debezium.{name}": json.dumps({"id": old}) for name, old in (headers or {}).items()}
        sent = (None if part is None else json.dumps(part).encode() for part in (key, value))
        key_bytes, value_bytes = sent
        self.driver.pipe("t", key=key_bytes, value=value_bytes, timestamp=at + 1000, partition=partition, headers=texts)

    def put(self, key: int, at: int = 0, op: str = "u", partition: int = 0, **row: object) -> None:
        """Insert or update a row."""
        self.lsn += 1
        self.event(op, key, {"id": key, **row}, at, partition)

    def delete(self, key: int, at: int = 0, partition: int = 0) -> None:
        """Delete a row."""
        self.lsn += 1
        self.event("d", key, None, at, partition)
        self.pipe({"id": key}, None, at, partition)

    def move(self, old: int, new: int, at: int = 0, partitions: tuple[int, int] = (0, 0), **row: object) -> None:
        """Change a key: two events and a tombstone, of one place in the database's log."""
        self.lsn += 1
        self.left(old, new, at, partitions[0])
        self.event("c", new, {"id": new, **row}, at, partitions[1], oldkey=old)

    def left(self, old: int, new: int, at: int = 0, partition: int = 0) -> None:
        """Tell the first part of a change of a key."""
        self.event("d", old, None, at, partition, newkey=new)
        self.pipe({"id": old}, None, at, partition, {"newkey": new})


def source(session: SparkSession, value: str = "name string, note string", batch: Any = "all", **given: Any) -> Source:
    builder = StreamsBuilder("captured")
    versioned = given.pop("versioned", None)
    builder.table("t", Consumed.debezium(key="id int", value=value, **given), versioned=versioned)
    return Source(TopologyTestDriver(builder.build(), batch=batch, session=session))


def rows(it: Source, *names: str) -> dict[object, object]:
    found = it.driver.table("t")
    columns = names or ("name", "note")
    return {row["id"]: tuple(row[name] for name in columns) if len(columns) > 1 else row[columns[0]] for row in found}


def reasons(it: Source) -> list[str]:
    return [str(record["error"]) for record in it.driver.quarantined("t")]


@pytest.mark.parametrize("batch", ["each", "all", 3])
def test_the_table_is_the_source_table_row_for_row(session: SparkSession, batch: Any) -> None:
    it = source(session, batch=batch)
    it.put(1, op="r", name="Ada", note="long")
    it.put(2, op="r", name="Ben", note=None)
    it.put(1, op="u", at=1, name="Ada L.", note=GONE)
    it.put(3, op="c", at=2, name="Cyd", note="c")
    it.delete(2, at=3)
    it.put(1, op="r", at=4, name="Ada L.", note="long")  # an incremental snapshot over the stream
    it.delete(3, at=5)
    it.put(3, op="c", at=6, name="Cy", note="new")
    it.put(3, op="u", at=7, name="Cyd", note=GONE)
    it.move(1, 10, at=8, name="Ada", note=GONE)
    it.move(10, 11, at=9, name="Ada", note=GONE)
    it.put(11, op="u", at=10, name="Ada!", note=GONE)
    assert rows(it) == {3: ("Cyd", "new"), 11: ("Ada!", "long")}
    assert reasons(it) == []
