"""Try a topology in a test: records in, rows out, by the operators that steps use; no broker, no Delta."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, LongType, StructType

import spark.operators  # noqa: F401  # registers the operators
from spark.engine.changes import LANDING
from spark.engine.land import landed
from spark.operators.algebra import ALL, OURS, PRESENT, cols, rows, touched

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

    from spark.topology.nodes import Scan
    from spark.topology.topology import Source, Table, Topology

KAFKA = "key binary, value binary, topic string, partition int, offset bigint, timestamp bigint"

Cell = object
Key = tuple[Cell, ...]


@dataclass(frozen=True)
class Change:
    """What one batch made of a key: its new row, or the row that it took away."""

    batch: int
    row: Row
    deleted: bool


@dataclass(frozen=True)
class Stored:
    """A table's rows by key, or a landing's records, and what the newest batch changed of them."""

    schema: StructType
    rows: Mapping[Key, Row]
    changed: Mapping[Key, Row | None] = field(default_factory=dict)
    """The new row of every key that the newest batch changed; None where it took the row away."""
    history: tuple[Change, ...] = ()
    """Every change of a table so far."""

    @property
    def gained(self) -> list[Row]:
        """The rows, or records, that the newest batch brought."""
        return [row for row in self.changed.values() if row is not None]


@dataclass(frozen=True)
class Pinned:
    """All tables at one moment: the operators' snapshot."""

    session: SparkSession
    tables: Mapping[str, Stored]

    def stored(self, scan: Scan) -> DataFrame:
        """All rows of a table, or all records of a landing."""
        stored = self.tables[scan.table]
        return self.session.createDataFrame(list(stored.rows.values()), stored.schema)

    def records(self, scan: Scan) -> DataFrame:
        """All records of a landing, or all changes of a table."""
        landing = scan.table.startswith(LANDING)
        return self.stored(scan) if landing else self.changes(scan, self.tables[scan.table].history)

    def changes(self, scan: Scan, changes: Iterable[Change]) -> DataFrame:
        """Changes of a table as a stream's records."""
        schema = self.tables[scan.table].schema
        names = [*(column.name for column in scan.columns), *OURS]
        kept = [name for name in names if name in (*scan.key, *OURS)]
        told = [
            (*(c.row[name] if not c.deleted or name in kept else None for name in names), c.batch, c.deleted)
            for c in changes
        ]
        fields = StructType([*(schema[name] for name in names)])
        fields.add("_batch", LongType()).add("_deleted", BooleanType())
        return self.session.createDataFrame(told, fields)


@dataclass(frozen=True)
class Batch:
    """One batch of records: the operators' span."""

    before: Pinned
    after: Pinned
    own: DataFrame
    few: bool = True

    def keep(self, frame: DataFrame) -> DataFrame:
        """Computed as often as it is read: the tables of a test are small."""
        return frame

    def none(self, frame: DataFrame) -> bool:
        """Whether a frame has no rows."""
        return frame.isEmpty()

    def moved(self, scan: Scan) -> bool:
        """Whether the batch changed the table."""
        return len(self.after.tables[scan.table].changed) > 0

    def changes(self, scan: Scan) -> DataFrame:
        """Every key that the batch changed, with its new row or its absence."""
        stored = self.after.tables[scan.table]
        gone = [key for key, row in stored.changed.items() if row is None]
        new = self.after.session.createDataFrame(stored.gained, stored.schema).withColumn(PRESENT, F.lit(True))
        keys = self.after.session.createDataFrame(gone, new.select(*cols(scan.key)).schema)
        return new.unionByName(keys.withColumn(PRESENT, F.lit(False)), allowMissingColumns=True)

    def previous(self, scan: Scan) -> DataFrame:
        """The rows that the batch found at the keys it changed."""
        was = self.before.tables[scan.table]
        found = [was.rows[key] for key in self.after.tables[scan.table].changed if key in was.rows]
        return self.after.session.createDataFrame(found, was.schema)

    def records(self, scan: Scan) -> DataFrame:
        """The records that the batch brought, or the changes that it made of a table."""
        stored = self.after.tables[scan.table]
        if not scan.table.startswith(LANDING):
            return self.after.changes(scan, stored.history[len(self.before.tables[scan.table].history) :])
        return self.after.session.createDataFrame(stored.gained, stored.schema)


class TopologyTestDriver:
    """Pipes records through a topology and shows its tables, as Kafka Streams' driver of this name does.

    A batch is what one step of a table sees: "each" record alone, "all" that were piped since the last look, or so
    many records. A topology's tables must not depend on it.

    Example:
        driver = TopologyTestDriver(topology)
        driver.pipe("customers", key=7, value={"name": "Ada"})
        driver.pipe("orders", key=1, value={"customer_id": 7, "amount": "120.00"})
        assert driver.table("orders_enriched")[0]["name"] == "Ada"
    """

    def __init__(
        self, topology: Topology, batch: Literal["each", "all"] | int = "each", session: SparkSession | None = None
    ) -> None:
        """Begin with empty topics.

        Args:
            topology: what to try.
            batch: how many records make a batch.
            session: a Spark session to compute with; without one, `SparkSession.builder.getOrCreate()`.

        Raises:
            ValueError: the batch is neither "each" nor "all" nor a number from 1.
        """
        if batch not in ("each", "all") and (not isinstance(batch, int) or batch < 1):
            raise ValueError(f'batch is {batch!r}; write "each", "all", or a number from 1')
        self._topology = topology
        self._size = 1 if batch == "each" else None if batch == "all" else int(batch)
        self._session = session if session is not None else SparkSession.builder.getOrCreate()
        self._session.conf.set("spark.sql.session.timeZone", "UTC")
        self._session.conf.set("spark.sql.ansi.enabled", str(topology.settings.ansi).lower())
        self._piped: list[tuple[Source, tuple[object, ...]]] = []
        self._offsets: Counter[tuple[str, int]] = Counter()
        self._batches = 0
        self._tables: dict[str, Stored] = {}
        self._emitted: dict[str, list[dict[str, object]]] = {table.name: [] for table in topology.tables}

    def pipe(self, topic: str, *, key: object, value: object, timestamp: int = 0, partition: int = 0) -> None:
        """Send a record.

        Args:
            topic: one of the topology's topics.
            key: what JSON can hold, or bytes as they are; None for a record without a key.
            value: the same; None for a tombstone.
            timestamp: milliseconds since 1970.
            partition: where to.

        Raises:
            TopologyError: the topology has no such topic.
        """
        source = self._topology.source(topic)
        offset = self._offsets[topic, partition]
        self._offsets[topic, partition] += 1
        self._piped.append((source, (_bytes(key), _bytes(value), topic, partition, offset, timestamp)))
        if self._size is not None and len(self._piped) >= self._size:
            self.advance()

    def advance(self) -> None:
        """Let what was piped through, as one batch."""
        if not self._piped and self._tables:
            return
        piped, self._piped = self._piped, []
        self._batches += 1
        before = Pinned(self._session, dict(self._tables))
        now = {name: replace(stored, changed={}) for name, stored in self._tables.items()}
        after = Pinned(self._session, now)
        for source in self._topology.sources:
            records = [record for to, record in piped if to == source]
            now[source.landing] = self._landed(source, records, now.get(source.landing))
        for table in self._topology.tables:
            now[table.name] = self._stepped(table, before, after)
        self._tables = now

    def table(self, name: str) -> list[dict[str, object]]:
        """The rows of a stored table by key, without columns of ours; what was piped goes through first.

        Raises:
            TopologyError: the topology has no such table.
        """
        self.advance()
        table = self._topology.table(name)
        stored = self._tables[name].rows
        columns = [column.name for column in table.plan.columns]
        return [{column: stored[key][column] for column in columns} for key in sorted(stored, key=repr)]

    def records(self, name: str) -> list[dict[str, object]]:
        """What a stored table sent to those who follow it, in order: `key`, and `value`, which is None for a tombstone.

        Raises:
            TopologyError: the topology has no such table.
        """
        self.advance()
        return list(self._emitted[self._topology.table(name).name])

    def _landed(self, source: Source, records: list[tuple[object, ...]], stored: Stored | None) -> Stored:
        frame = self._session.createDataFrame(records, KAFKA)
        batch = landed(frame.withColumn("timestamp", F.timestamp_millis("timestamp")), source.consumed, self._batches)
        found: list[Row] = batch.collect() if records else []
        new: dict[Key, Row] = {(row["_partition"], row["_offset"]): row for row in found}
        old: Mapping[Key, Row] = stored.rows if stored is not None else {}
        return Stored(batch.schema if stored is None else stored.schema, {**old, **new}, new)

    def _stepped(self, table: Table, before: Pinned, after: Pinned) -> Stored:
        was = before.tables.get(table.name)
        if was is None:
            frame = rows(table.plan, ALL, after)
            found = {_key(table, row): row for row in frame.collect()}
            self._emit(table, found)
            return Stored(frame.schema, found, found, self._changes({}, found))
        own = self._session.createDataFrame(list(was.rows.values()), was.schema)
        source = touched(table.plan, Batch(before, after, own))
        if source is None:
            return replace(was, changed={})
        changed: dict[Key, Row | None] = {}
        for key, row in _by_key(table, source, was.schema.names):
            # As a MERGE does, which leaves equal rows alone; NaN equals itself there, and prints alike here.
            if was.rows.get(key) != row and repr(was.rows.get(key)) != repr(row):
                changed[key] = row
        now = {key: row for key, row in {**was.rows, **changed}.items() if row is not None}
        self._emit(table, changed)
        return Stored(was.schema, now, changed, was.history + self._changes(was.rows, changed))

    def _changes(self, was: Mapping[Key, Row], changed: Mapping[Key, Row | None]) -> tuple[Change, ...]:
        return tuple(
            Change(self._batches, was[key] if row is None else row, deleted=row is None) for key, row in changed.items()
        )

    def _emit(self, table: Table, changed: Mapping[Key, Row | None]) -> None:
        values = [column.name for column in table.plan.columns[len(table.plan.key) :]]
        for key in sorted(changed, key=repr):
            row = changed[key]
            value = None if row is None else {name: row[name] for name in values}
            self._emitted[table.name].append({"key": dict(zip(table.plan.key, key, strict=True)), "value": value})


def _by_key(table: Table, source: DataFrame, columns: list[str]) -> Iterable[tuple[Key, Row | None]]:
    there = source.select(PRESENT, F.struct(*cols(columns)).alias("row"))
    for present, row in there.collect():
        yield _key(table, row), row if present else None


def _key(table: Table, row: Row) -> Key:
    return tuple(row[name] for name in table.plan.key)


def _bytes(part: object) -> bytes | None:
    return part if part is None or isinstance(part, bytes) else json.dumps(part).encode()
