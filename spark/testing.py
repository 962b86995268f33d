"""Test a topology: records in, rows out, with the operators that steps use, but without a broker and without Delta."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from difflib import ndiff
from typing import TYPE_CHECKING, Literal

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, LongType, StructType

import spark.operators  # noqa: F401  # registers the operators
from spark.engine.advance import stored_records
from spark.engine.counts import Counted
from spark.engine.inputs.snapshot import placed
from spark.engine.inputs.stream_time import Clock, advance_clock, count_dropped
from spark.engine.land import landed
from spark.engine.tick import AT_ONCE
from spark.operators.algebra import ALL, IDENTITY, OURS, PRESENT, cols, is_idle, rows, touched
from spark.operators.order import with_ordinals, with_reached
from spark.operators.window import initial_rows
from spark.topology.errors import Place, did_you_mean, user_line
from spark.topology.nodes import Window

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

    from spark.topology.nodes import Scan
    from spark.topology.topology import Source, Table, Topology

KAFKA = "key binary, value binary, topic string, partition int, offset bigint, timestamp bigint"

Cell = object
Key = tuple[Cell, ...]


@dataclass(frozen=True)
class Piped:
    """A record as Kafka holds it, and the line that piped it, if it must decode."""

    source: Source
    record: tuple[object, ...]
    place: Place | None


@dataclass(frozen=True)
class Change:
    """One change of a key by a batch: its new row, or the row that was deleted."""

    batch: int
    row: Row
    deleted: bool


@dataclass(frozen=True)
class Stored:
    """A table's rows by key, or a landing's or stream's records, and the changes of the newest batch."""

    schema: StructType
    rows: Mapping[Key, Row]
    changed: Mapping[Key, Row | None] = field(default_factory=dict)
    """The new row of every key that the newest batch changed; None if it deleted the row."""
    history: tuple[Change, ...] = ()
    """All changes of a table so far."""
    clock: Clock = field(default_factory=Clock)
    """Stream time and dropped records, for stored streams and tables."""

    @property
    def gained(self) -> list[Row]:
        """The new rows, or records, of the newest batch."""
        return [row for row in self.changed.values() if row is not None]


@dataclass(frozen=True)
class Pinned:
    """All tables at one moment: implements the operators' `Snapshot`."""

    session: SparkSession
    tables: Mapping[str, Stored]

    def stored(self, scan: Scan) -> DataFrame:
        """All rows of a table, or all records of a landing."""
        stored = self.tables[scan.table]
        return self.session.createDataFrame(list(stored.rows.values()), stored.schema)

    def records(self, scan: Scan) -> DataFrame:
        """All records of a stream, or all changes of a table; with `PLACED`."""
        stored = self.tables[scan.table]
        found = self.appended(scan, stored.rows.values()) if scan.appended else self.changes(scan, stored.history)
        return found.withColumn("_reached", F.lit(None).cast("bigint"))

    def time(self, scan: Scan) -> int | None:
        """The stream time of a table, in microseconds."""
        return self.tables[scan.table].clock.time

    def appended(self, scan: Scan, found: Iterable[Row]) -> DataFrame:
        """Records of a stream; of a landing, only the decoded ones."""
        frame = self.session.createDataFrame(list(found), self.tables[scan.table].schema)
        if not scan.landing:
            return frame
        return frame.where("_error IS NULL").withColumn("_ordinal", F.lit(0).cast("bigint"))

    def changes(self, scan: Scan, changes: Iterable[Change]) -> DataFrame:
        """Changes of a table as a stream's records."""
        schema = self.tables[scan.table].schema
        names = [*(column.name for column in scan.columns), *OURS]
        kept = [name for name in names if name in (*scan.key, *OURS)]
        told = [
            (*(c.row[n] if not c.deleted or n in kept else None for n in names), c.batch, c.deleted) for c in changes
        ]
        fields = StructType([schema[name] for name in names])
        fields.add("_batch", LongType()).add("_deleted", BooleanType())
        return with_ordinals(self.session.createDataFrame(told, fields), scan.key)


@dataclass(frozen=True)
class Batch:
    """One batch of records: implements the operators' `Span`."""

    before: Pinned
    after: Pinned
    own: DataFrame
    is_small: bool = True
    time_before: int | None = None
    time_after: int | None = None
    seen: Mapping[str, int] = field(default_factory=dict)
    apart: tuple[str, ...] = ()

    def at(
        self, time_before: int | None, time_after: int | None = None, seen: Mapping[str, int] | None = None
    ) -> Batch:
        """The same batch between two stream times, in microseconds."""
        return replace(self, time_before=time_before, time_after=time_after, seen=seen or {})

    def keep(self, frame: DataFrame) -> DataFrame:
        """The same rows, computed now: Spark would plan the frame again each time it is read."""
        return computed(frame)

    def is_empty(self, frame: DataFrame) -> bool:
        """Whether a frame has no rows."""
        return frame.isEmpty()

    def has_changes(self, scan: Scan) -> bool:
        """True if the batch changed the table."""
        return len(self.after.tables[scan.table].changed) > 0

    def changes(self, scan: Scan) -> DataFrame:
        """Every key that the batch changed, with its new row, or `_present` false."""
        stored = self.after.tables[scan.table]
        gone = [key for key, row in stored.changed.items() if row is None]
        new = self.after.session.createDataFrame(stored.gained, stored.schema).withColumn(PRESENT, F.lit(True))
        keys = self.after.session.createDataFrame(gone, new.select(*cols(scan.key)).schema)
        return new.unionByName(keys.withColumn(PRESENT, F.lit(False)), allowMissingColumns=True)

    def previous(self, scan: Scan) -> DataFrame:
        """The rows before the batch, at the keys that it changed."""
        was = self.before.tables[scan.table]
        found = [was.rows[key] for key in self.after.tables[scan.table].changed if key in was.rows]
        return self.after.session.createDataFrame(found, was.schema)

    def overlapping_records(self, scan: Scan) -> DataFrame | None:  # noqa: ARG002  # the protocol's
        """None: a batch is never split."""
        return None

    def records(self, scan: Scan) -> DataFrame:
        """The new records of the batch, or its changes of a table; with `PLACED`."""
        stored = self.after.tables[scan.table]
        if not scan.appended:
            told = stored.history[len(self.before.tables[scan.table].history) :]
            return with_reached(self.after.changes(scan, told), scan.by_time)
        return placed(scan, self.after.appended(scan, stored.gained))


class TopologyTestDriver:
    """Pipes records through a topology and returns its tables, like Kafka Streams' driver of the same name.

    A batch is what one step of a table reads: "each" record alone, "all" records piped since the last read, or a
    number of records. The content of a topology's tables must not depend on it.

    Example:
        driver = TopologyTestDriver(topology)
        driver.pipe("customers", key=7, value={"name": "Ada"})
        driver.pipe("orders", key=1, value={"customer_id": 7, "amount": "120.00"})
        assert driver.table("orders_enriched")[0]["name"] == "Ada"
    """

    def __init__(
        self, topology: Topology, batch: Literal["each", "all"] | int = "each", session: SparkSession | None = None
    ) -> None:
        """Start with empty topics.

        Args:
            topology: the topology to test.
            batch: how many records make a batch.
            session: the Spark session to compute with; by default `SparkSession.builder.getOrCreate()`.

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
        self._piped: list[Piped] = []
        self._offsets: Counter[tuple[str, int]] = Counter()
        self._batches = 0
        self._tables: dict[str, Stored] = {}
        self._emitted_by: dict[str, list[dict[str, object]]] = {table.name: [] for table in topology.tables}

    def pipe(self, topic: str, *, key: object, value: object, timestamp: int = 0, partition: int = 0) -> None:
        """Send a record.

        Args:
            topic: one of the topology's topics.
            key: a value that JSON can hold, or bytes, sent unchanged; None for a record without a key.
            value: the same; None for a tombstone.
            timestamp: milliseconds since 1970.
            partition: the partition's number.

        A record that does not decode is an error. Bytes, which may be anything, and a record without a key are not:
        they go into quarantine, as they do when they land.

        Raises:
            TopologyError: the topology has no such topic; the timestamp or partition is no valid number; JSON cannot
                hold the key or value; or, when the batch is processed, the key or value does not have its declared
                type.
        """
        place = Place(f"pipe({topic!r})", user_line())
        topics = [source.topic for source in self._topology.sources]
        if topic not in topics:
            what = f"the topology {self._topology.name} reads no topic {topic!r}"
            raise place.mistake(what, f"write one of {', '.join(topics)}{did_you_mean(topic, topics)}")
        source = self._topology.source(topic)
        for what, number in (("timestamp", timestamp), ("partition", partition)):
            if not isinstance(number, int) or isinstance(number, bool):
                raise place.mistake(f"{what} is {number!r}", f"write {what}= as a whole number")
        if partition < 0:
            raise place.mistake(f"partition is {partition}", "write a number from 0")
        try:
            sent = _bytes(key), _bytes(value)
        except (TypeError, ValueError) as error:
            raise place.mistake(f"JSON cannot hold it: {error}", "write decimals and times as text") from None
        offset = self._offsets[topic, partition]
        self._offsets[topic, partition] += 1
        record = (*sent, topic, partition, offset, timestamp)
        on_purpose = key is None or isinstance(key, bytes) or isinstance(value, bytes)
        self._piped.append(Piped(source, record, None if on_purpose else place))
        if self._size is not None and len(self._piped) >= self._size:
            self.advance()

    def advance(self) -> None:
        """Process the piped records as one batch.

        Raises:
            TopologyError: a key or value does not have its declared type.
        """
        if not self._piped and self._tables:
            return
        piped, self._piped = self._piped, []
        self._batches += 1
        before = Pinned(self._session, dict(self._tables))
        now = {name: replace(stored, changed={}) for name, stored in self._tables.items()}
        after = Pinned(self._session, now)
        for source in self._topology.sources:
            records = [one for one in piped if one.source == source]
            now[source.landing] = self._landed(source, records, now.get(source.landing))
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for level in self._topology.levels:
                stepped = list(pool.map(lambda table: self._stepped(table, before, after), level))
                now |= {table.name: stored for table, stored in zip(level, stepped, strict=True)}
        self._tables = now

    def table(self, name: str) -> list[dict[str, object]]:
        """The rows of a stored table in key order, without our own columns; processes the piped records first.

        Raises:
            TopologyError: the topology has no such table.
        """
        self.advance()
        table = self._topology.table(name)
        stored = self._tables[name].rows
        columns = [column.name for column in table.plan.columns]
        return [{column: stored[key][column] for column in columns} for key in sorted(stored, key=_sortable)]

    def expect(self, name: str, rows: Iterable[Mapping[str, object]]) -> None:
        """Compare a stored table with the expected rows, in any order.

        Raises:
            AssertionError: the rows differ; the message shows the difference, line by line.
            TopologyError: the topology has no such table.
        """
        key = self._topology.table(name).plan.key
        wanted = sorted(rows, key=lambda row: _sortable(tuple(row.get(column) for column in key)))
        found = self.table(name)
        if found != wanted:
            lines = ndiff([repr(dict(row)) for row in wanted], [repr(row) for row in found])
            told = [f"{name} is another table (- wanted, + found):", *(line.rstrip() for line in lines)]
            raise AssertionError("\n".join(told))

    def records(self, name: str) -> list[dict[str, object]]:
        """The records that a stored table emitted, in order: `key`, and `value`, which is None for a tombstone.

        Raises:
            TopologyError: the topology has no such table.
        """
        self.advance()
        return list(self._emitted_by[self._topology.table(name).name])

    def quarantined(self, topic: str) -> list[dict[str, object]]:
        """The records of a topic in quarantine: `partition`, `offset`, `error`, and `key` and `value` as bytes.

        Raises:
            TopologyError: the topology has no such topic.
        """
        landing = self._topology.source(topic).landing
        self.advance()
        names = ("partition", "offset", "error", "key", "value")
        stored = self._tables[landing].rows if landing in self._tables else {}
        broken = (row for _, row in sorted(stored.items()) if row["_error"] is not None)
        return [{name: row[f"_{name}"] for name in names} for row in broken]

    def counted(self, topic: str) -> Counted:
        """Counts of a topic's records: with a value, tombstones, and in quarantine, by reason.

        Raises:
            TopologyError: the topology has no such topic.
        """
        landing = self._topology.source(topic).landing
        self.advance()
        stored = list(self._tables[landing].rows.values()) if landing in self._tables else []
        reasons = Counter(row["_error"] for row in stored if row["_error"] is not None)
        good = [row for row in stored if row["_error"] is None]
        tombstones = sum(row["_deleted"] for row in good)
        return Counted(
            records=len(stored),
            rows=len(good) - tombstones,
            tombstones=tombstones,
            quarantined=reasons.total(),
            offsets=sum(offset for (piped, _), offset in self._offsets.items() if piped == topic),
            reasons=dict(reasons),
        )

    def dropped(self, name: str) -> dict[str, int]:
        """How many records of a stream a table, or a join of streams, dropped, by reason.

        Raises:
            TopologyError: the topology has no such table.
        """
        table = self._topology.table(name)
        self.advance()
        return dict(self._tables[table.name].clock.dropped)

    def _landed(self, source: Source, records: list[Piped], stored: Stored | None) -> Stored:
        frame = self._session.createDataFrame([one.record for one in records], KAFKA)
        at = F.timestamp_millis("timestamp")
        ahead = self._topology.settings.message_timestamp_after_max_ms
        batch = landed(frame.withColumn("timestamp", at), source, self._batches, ahead)
        found: list[Row] = batch.collect() if records else []
        new: dict[Key, Row] = {(row["_partition"], row["_offset"]): row for row in found}
        for one in records:
            error = new[one.record[3], one.record[4]]["_error"]
            if error is not None and one.place is not None:
                declared = replace(one.place, columns={"the topic": source.consumed.columns})
                raise declared.mistake(str(error), "pipe what the topic is declared to hold; bytes may be anything")
        old: Mapping[Key, Row] = stored.rows if stored is not None else {}
        return Stored(batch.schema if stored is None else stored.schema, {**old, **new}, new)

    def _stepped(self, table: Table, before: Pinned, after: Pinned) -> Stored:
        was = before.tables.get(table.name)
        if table.plan.is_stream:
            return self._emitted(replace(table, followed=True), was, before, after)  # records() sorts by `_reached`
        clock = Clock()
        span = self._span(was, before, after)
        if isinstance(table.plan, Window):
            clock, _ = advance_clock(table.plan, span, Clock() if was is None else was.clock)
            span = span.at(None if was is None else was.clock.time, clock.time)
        elif self._topology.drops_records(table):
            clock = Clock(dropped=count_dropped(table.plan, span, {} if was is None else was.clock.dropped))
        if was is None:
            frame = initial_rows(table.plan, span) if isinstance(table.plan, Window) else rows(table.plan, ALL, after)
            found = {_key(table, row): row for row in frame.collect()}
            self._emit(table, found)
            return Stored(frame.schema, found, found, self._changes({}, found), clock)
        source = touched(table.plan, span)
        if source is None:
            return replace(was, changed={}, clock=clock)
        changed: dict[Key, Row | None] = {}
        for key, row in _by_key(table, source, was.schema.names):
            # MERGE leaves equal rows unchanged, and NaN equals itself there; here, NaN has an equal repr.
            if was.rows.get(key) != row and repr(was.rows.get(key)) != repr(row):
                changed[key] = row
        now = {key: row for key, row in {**was.rows, **changed}.items() if row is not None}
        self._emit(table, changed)
        return Stored(was.schema, now, changed, was.history + self._changes(was.rows, changed), clock)

    def _span(self, was: Stored | None, before: Pinned, after: Pinned) -> Batch:
        """The batch as the span of a table; a table's first span begins with no input."""
        if was is not None:
            return Batch(before, after, self._session.createDataFrame(list(was.rows.values()), was.schema))
        empty = {name: replace(stored, rows={}, history=(), clock=Clock()) for name, stored in after.tables.items()}
        nothing = Pinned(self._session, empty)
        return Batch(nothing, after, self._session.createDataFrame([], "_ int"), is_small=False)

    def _emitted(self, table: Table, was: Stored | None, before: Pinned, after: Pinned) -> Stored:
        """A stored stream after the batch."""
        span = self._span(was, before, after)
        if was is None:
            was = Stored(stored_records(table, span, 0).schema, {})
        clock, _ = advance_clock(table.plan, span, was.clock)
        span = span.at(was.clock.time, clock.time, was.clock.seen)
        if is_idle(table.plan, span):
            return replace(was, changed={}, clock=clock)
        found = stored_records(table, span, self._batches).collect()
        new = {tuple(row[name] for name in IDENTITY): row for row in found}
        columns = [column.name for column in table.plan.columns]
        # Records that one advance of stream time releases are emitted in the order of their own event time.
        waited = table.plan.waits
        order = ("_timestamp", *IDENTITY) if waited else IDENTITY
        placed = sorted(found, key=lambda row: (row["_reached"] or 0, *(row[name] for name in order)))
        for row in placed:
            key = {name: row[name] for name in columns if name in table.plan.key}
            value = {name: row[name] for name in columns if name not in table.plan.key}
            self._emitted_by[table.name].append({"key": key, "value": None if row["_deleted"] else value})
        return replace(was, rows={**was.rows, **new}, changed=new, clock=clock)

    def _changes(self, was: Mapping[Key, Row], changed: Mapping[Key, Row | None]) -> tuple[Change, ...]:
        return tuple(
            Change(self._batches, was[key] if row is None else row, deleted=row is None) for key, row in changed.items()
        )

    def _emit(self, table: Table, changed: Mapping[Key, Row | None]) -> None:
        values = [column.name for column in table.plan.columns[len(table.plan.key) :]]
        for key in sorted(changed, key=_sortable):
            row = changed[key]
            value = None if row is None else {name: row[name] for name in values}
            self._emitted_by[table.name].append({"key": dict(zip(table.plan.key, key, strict=True)), "value": value})


def computed(frame: DataFrame) -> DataFrame:
    """The same rows in a new frame. A local checkpoint would belong to the active session, which may be another one."""
    return frame.sparkSession.createDataFrame(frame.collect(), frame.schema)


def _by_key(table: Table, source: DataFrame, columns: list[str]) -> Iterable[tuple[Key, Row | None]]:
    there = source.select(PRESENT, F.struct(*cols(columns)).alias("row"))
    for present, row in there.collect():
        yield _key(table, row), row if present else None


def _key(table: Table, row: Row) -> Key:
    return tuple(row[name] for name in table.plan.key)


def _sortable(key: Key) -> tuple[tuple[bool, object], ...]:
    return tuple((part is not None, part) for part in key)


def _bytes(part: object) -> bytes | None:
    return part if part is None or isinstance(part, bytes) else json.dumps(part).encode()
