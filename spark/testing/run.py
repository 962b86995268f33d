"""A run of batches: every topic lands, then every table is computed, level by level, each for all batches at once."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import groupby, repeat
from typing import TYPE_CHECKING, TypeGuard, TypeVar

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, StructField, StructType

import spark.operators  # noqa: F401  # registers the operators
from spark.operators.algebra import ALL, IDENTITY, PRESENT, cols, dropped, rows, touched
from spark.testing.apart import DIGITS, WORLD, apart
from spark.testing.steps import (
    Clock,
    PublishedPosition,
    encoded,
    identity,
    landed,
    net,
    ordered,
    stored_records,
)
from spark.testing.topics import TestRecord
from spark.testing.worlds import Change, Frames, Moved, Stored, Worlds, by_world, frame_of, micros, unmarked
from spark.topology.columns import Column
from spark.topology.consumed import Consumed
from spark.topology.errors import Place
from spark.topology.formats import WITH_SCHEMAS
from spark.topology.nodes import StreamJoin, Window
from spark.topology.produced import Produced, check_published

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from spark.testing.worlds import Emitted, Key, Row
    from spark.topology.columns import Line
    from spark.topology.topology import Source, Table, Topology

Declared = TypeVar("Declared", Consumed, Produced)

KAFKA = (
    StructType()
    .add("key", "binary")
    .add("value", "binary")
    .add("topic", "string")
    .add("partition", "integer")
    .add("offset", "long")
    .add("timestamp", "long")
    .add("headers", ArrayType(StructType().add("key", "string").add("value", "binary")))
)

QUICK = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "1",
}
"""Settings for a few rows: what is interpreted is there before code for it would be compiled."""

AT_ONCE = 2  # frames that are computed concurrently: a third faster on two cores, measured


@dataclass(frozen=True)
class Piped:
    """A record as Kafka holds it, the line that piped it, and how to name it if it must decode."""

    source: Source
    record: Row
    line: Line | None
    must_decode: Place | None


@dataclass(frozen=True)
class Run:
    """The batches that wait, the state before them, and the number of the first one."""

    session: SparkSession
    topology: Topology
    tables: Mapping[str, Stored]
    batches: Sequence[Sequence[Piped]]
    first: int
    ahead: int | None
    """How many milliseconds a record may be ahead of the clock; None for no limit."""

    def moved(self) -> dict[str, Moved]:
        """Everything stored, and what each batch did to it.

        Raises:
            TopologyError: a key or value does not have its declared type.
        """
        with quick(self.session, self.topology), ThreadPoolExecutor(AT_ONCE) as pool:
            landings = pool.map(self._landed, self.topology.sources)
            found = {source.landing: one for source, one in zip(self.topology.sources, landings, strict=True)}
            for level in self.topology.levels:
                stepped = pool.map(self._stepped, level, repeat(found))
                found |= {table.name: one for table, one in zip(level, list(stepped), strict=True)}
        return found

    def _landed(self, source: Source) -> Moved:
        places = {
            (one.record["partition"], one.record["offset"]): (batch, one)
            for batch, records in enumerate(self.batches)
            for one in records
            if one.source == source
        }
        was = self.tables.get(source.landing)
        changed: list[dict[Key, Row | None]] = [{} for _ in self.batches]
        if places or was is None:
            frame = decoded(self.session, source, [one.record for _, one in places.values()], self.ahead)
            was = Stored(frame.schema) if was is None else was
            for row in frame.collect() if places else ():
                key = row["_partition"], row["_offset"]
                batch, one = places[key]
                check_decoded(one, row["_error"])
                changed[batch][key] = row.asDict() | {"_batch": self.first + batch}
        return Moved(was, changed, [was.clock] * len(self.batches))

    def _stepped(self, table: Table, found: Mapping[str, Moved]) -> Moved:
        """A table, and what each batch did to it."""
        inputs = {scan.table: found[scan.table] for scan in table.inputs}
        batches = [batch for batch in range(len(self.batches)) if any(one.moves(batch) for one in inputs.values())]
        was = self.tables.get(table.name)
        if was is None:
            was = self._begun(table, self._worlds(table, Stored(StructType()), inputs, batches or [0]))
        clocks = [was.clock for _ in self.batches]
        changed: list[dict[Key, Row | None]] = [{} for _ in self.batches]
        if batches:
            clocks = self._clocks(table, was, inputs)
            span = self._timed(table, self._worlds(table, was, inputs, batches), was, clocks, batches)
            given, lost = self._computed(table, span, was.schema.names)
            clocks = with_dropped(was.clock, clocks, {batches[world]: counts for world, counts in lost.items()})
            for world, batch in enumerate(batches):
                changed[batch] = given.get(world, {})
        if table.plan.is_stream:
            changed = [in_order(table, one, self.first + batch) for batch, one in enumerate(changed)]
            return Moved(was, changed, clocks)
        return Moved(was, changed, clocks, self._net(table, was, changed))

    def _worlds(self, table: Table, was: Stored, inputs: Mapping[str, Moved], batches: Sequence[int]) -> Worlds:
        own = {scan.table for scan in table.plan.drivers} if table.plan.uses_stream_time else set()
        timed = {one.name for one in self.topology.tables if one.plan.uses_stream_time and one.name in inputs}
        return Worlds(apart(table.plan), Frames(self.session, inputs, batches), was, frozenset(own | timed))

    def _begun(self, table: Table, span: Worlds) -> Stored:
        """A table without rows: only Spark knows the types of its columns."""
        frame: DataFrame | None = None
        if table.plan.is_stream:
            frame = stored_records(replace(table, plan=span.plan, followed=True), span, 0)
        elif isinstance(span.plan, Window):
            frame = touched(span.plan, span)
        if frame is None:
            frame = rows(span.plan, ALL, span.after)
        return Stored(StructType([one for one in frame.schema if one.name not in (WORLD, PRESENT)]))

    def _clocks(self, table: Table, was: Stored, inputs: Mapping[str, Moved]) -> list[Clock]:
        """The clock after each batch, but for what was dropped."""
        clocks, now = [], was.clock
        for batch in range(len(self.batches)):
            if table.plan.uses_stream_time:
                now = clocked(table, now, inputs, batch)
            clocks.append(now)
        return clocks

    def _timed(
        self, table: Table, span: Worlds, was: Stored, clocks: Sequence[Clock], batches: Sequence[int]
    ) -> Worlds:
        """The span with the stream times before and after each batch."""
        if not table.plan.uses_stream_time:
            return span
        before = [clocks[batch - 1] if batch > 0 else was.clock for batch in batches]
        names = sorted({name for clock in before for name in clock.seen})
        return replace(
            span,
            time_before=by_world(clock.time for clock in before),
            time_after=by_world(clocks[batch].time for batch in batches),
            seen={name: by_world(clock.seen.get(name) for clock in before) for name in names},
        )

    def _computed(
        self, table: Table, span: Worlds, names: Sequence[str]
    ) -> tuple[dict[int, dict[Key, Row | None]], dict[int, dict[str, int]]]:
        """By world, the touched rows, or emitted records, by key; and how many records were dropped, by reason."""
        plan, is_stream = span.plan, table.plan.is_stream
        found = stored_records(replace(table, plan=plan, followed=True), span, 0) if is_stream else touched(plan, span)
        frames = [] if found is None else [found.select(WORLD, *([] if is_stream else [PRESENT]), *cols(names))]
        frames += [refused] if (refused := self._refused(table, span)) is not None else []
        if not frames:
            return {}, {}
        given: dict[int, dict[Key, Row | None]] = {}
        lost: dict[int, dict[str, int]] = {}
        # One query for both: a query of a few rows costs its planning and its way there and back.
        for values in reduce(partial(DataFrame.unionByName, allowMissingColumns=True), frames).collect():
            one = values.asDict()
            if one.get("_refused") is not None:
                lost.setdefault(one[WORLD], {})[one["_refused"]] = one["_count"]
                continue
            row = unmarked({name: one[name] for name in names})
            key = tuple(row[name] for name in identity(table.plan))
            given.setdefault(one[WORLD], {})[key] = row if one.get(PRESENT, True) else None
        if isinstance(plan, StreamJoin) and plan.how != "inner" and not span.pairs:
            pairs = {world: list(filter(is_pair, records.values())) for world, records in given.items()}
            if any(pairs.values()) and any(len(pairs[world]) < len(records) for world, records in given.items()):
                # A record that found a pair in an earlier batch of the run does not stay alone.
                return self._computed(table, replace(span, pairs=pairs), names)
        return given, lost

    def _refused(self, table: Table, span: Worlds) -> DataFrame | None:
        """How many records each batch dropped: `_world`, `_refused` (the reason), `_count`."""
        keeps_time = table.plan.uses_stream_time
        if not keeps_time and not self.topology.drops_records(table):
            return None
        if not any(span.frames.has_changes(scan.table) for scan in table.plan.drivers):
            return None
        refused = dropped(span.plan, span)
        if refused is None:
            return None
        if not keeps_time:
            refused = refused.dropDuplicates([*IDENTITY, "_reason"])
        world = F.substring("_topic", 1, DIGITS).cast("int").alias(WORLD)
        return refused.groupBy(world, F.col("_reason").alias("_refused")).agg(F.count(F.lit(1)).alias("_count"))

    def _net(self, table: Table, was: Stored, changed: list[dict[Key, Row | None]]) -> list[list[Change]]:
        """Cut touched rows down to those that differ, in the order of their keys; and the changes, if they are read."""
        read = any(scan.table == table.name for one in self.topology.tables for scan in one.plan.changelogs)
        now, by_batch = dict(was.rows), []
        for batch, given in enumerate(changed):
            net: dict[Key, Row | None] = {}
            changes: list[Change] = []
            for key in sorted(given, key=sortable):
                row, before = given[key], now.get(key)
                # MERGE leaves equal rows unchanged, and NaN equals itself there; here, NaN has an equal repr.
                if before == row or repr(before) == repr(row):
                    continue
                net[key] = row
                if row is None:
                    del now[key]
                else:
                    now[key] = row
                if read and (changed_row := before if row is None else row) is not None:
                    changes.append(Change(self.first + batch, changed_row, deleted=row is None))
            changed[batch] = net
            by_batch.append(changes)
        return by_batch


def decoded(session: SparkSession, source: Source, records: Sequence[Row], ahead: int | None) -> DataFrame:
    """Records of a topic as rows of its landing."""
    frame = frame_of(session, KAFKA, records).withColumn("timestamp", F.timestamp_millis("timestamp"))
    return landed(frame, source, 0, ahead)


def check_decoded(piped: Piped, error: str | None) -> None:
    """Refuse a record that does not decode, unless it may.

    Raises:
        TopologyError: it must decode, and does not; the error has the topic's columns and the line that piped it.
    """
    if error is not None and piped.must_decode is not None:
        place = replace(piped.must_decode, columns={"the topic": piped.source.consumed.columns})
        raise place.mistake(error, "pipe what the topic is declared to hold; bytes may be anything")


def is_pair(row: Row | None) -> TypeGuard[Row]:
    """True if a join of streams made the row of two records."""
    return row is not None and row["_left"] is not None and row["_right"] is not None


def sent(
    session: SparkSession, topology: Topology, name: str, tables: Mapping[str, Stored], found: Sequence[Emitted]
) -> Iterator[TestRecord]:
    """What publishing a table sends for its changes: each batch is a version. The table has no id and no epoch here."""
    if not found:
        return
    table, schema = topology.table(name), StructType(list(tables[name].schema.fields))
    declared = table.produced
    table = replace(table, produced=without_schemas(declared))
    names = {column.name for column in table.plan.columns}
    schema.add("_number", "long").add("_after", "boolean")
    sides = [
        row | {"_number": one.batch, "_after": after}
        for one in found
        for row, after in ((one.was, False), (one.row, True))
        if row is not None
    ]
    held = [Column(one.name, one.dataType.simpleString()) for one in schema if one.name in names]
    check_published(declared, table.plan.key, tuple(held), Place(f"{name} to topic {table.topic}", table.line))
    keys = tuple(column for column in held if column.name in table.plan.key)
    columns = keys, tuple(one for one in held if one not in keys and one.name != table.produced.headers)
    with quick(session, topology):
        rows_ = frame_of(session, StructType([StructField(one.name, one.dataType) for one in schema]), sides)
        published = ordered(table, net(table, encoded(table, rows_, F.col("_number"), F.col("_after")))).collect()
    for version, records in groupby(published, key=lambda row: row[0]):
        of_version = list(records)
        for ordinal, (_, key, value, at, *more) in enumerate(of_version):
            done, of_keys = ordinal == len(of_version) - 1, table.produced.key_format
            place = PublishedPosition("", "", version, ordinal, done, key_format=of_keys)
            headers = {
                one["key"]: bytes(one["value"] or b"").decode(errors="backslashreplace")
                for column in more
                for one in column or ()
            }
            headers |= place.headers(f"{topology.name}/{name}")
            yield TestRecord.of(table.produced, columns, (as_bytes(key), as_bytes(value)), at, headers)


def without_schemas(declared: Declared) -> Declared:
    """The declaration in JSON instead of formats with schemas: tests have none, and pipe and read columns."""
    format_, key_format = ("json" if one in WITH_SCHEMAS else one for one in (declared.format, declared.key_format))
    if isinstance(declared, Consumed):
        declared = replace(declared, message=None, key_message=None)
    return replace(declared, format=format_, key_format=key_format, registry=None)


def as_bytes(part: bytearray | None) -> bytes | None:
    """Bytes as Spark returns them, as bytes."""
    return None if part is None else bytes(part)


def clocked(table: Table, was: Clock, inputs: Mapping[str, Moved], batch: int) -> Clock:
    """The clock after a batch, without what it drops: as the engine's `advance_clock`, for a table with stream time."""
    plan = table.plan
    times = [was.time, *(inputs[scan.table].clocks[batch].time for scan in plan.drivers if scan.appended)]
    for scan in plan.drivers:
        times += (micros(row["_timestamp"]) for row in arrived(inputs[scan.table], batch))
    seen = dict(was.seen)
    for scan in plan.versioned_lookups:
        keyed = (row for row in arrived(inputs[scan.table], batch) if all(row[name] is not None for name in scan.key))
        known = [time for row in keyed if (time := micros(row["_timestamp"])) is not None]
        if known:
            seen[scan.table] = max(*known, seen.get(scan.table, known[0]))
    return replace(was, time=max((time for time in times if time is not None), default=None), seen=seen)


def arrived(moved: Moved, batch: int) -> Iterator[Row]:
    """The decoded records that a batch brought to a stream, or its changes of a table."""
    if moved.changes:
        return (change.row for change in moved.changes[batch])
    return (row for row in moved.changed[batch].values() if row is not None and row.get("_error") is None)


def with_dropped(was: Clock, clocks: Sequence[Clock], lost: Mapping[int, Mapping[str, int]]) -> list[Clock]:
    """The clocks with the records that were dropped up to each batch."""
    total, found = Counter(was.dropped), []
    for batch, clock in enumerate(clocks):
        total.update(lost.get(batch, {}))
        found.append(replace(clock, dropped=dict(total)))
    return found


def in_order(table: Table, found: Mapping[Key, Row | None], batch: int) -> dict[Key, Row | None]:
    """Records that a batch adds to a stream, in the order in which they are emitted.

    Records that one advance of stream time releases are emitted in the order of their own event time.
    """
    order = ("_timestamp", *IDENTITY) if table.plan.waits else IDENTITY
    records = [row | {"_batch": batch} for row in found.values() if row is not None]
    records.sort(key=lambda row: (row["_reached"] or 0, *(row[name] for name in order)))
    return {tuple(row[name] for name in IDENTITY): row for row in records}


@contextmanager
def quick(session: SparkSession, topology: Topology) -> Iterator[None]:
    """Spark set up for a topology and for a few rows, and as it was afterwards."""
    was = session.conf.getAll
    ansi = {"spark.sql.ansi.enabled": str(topology.settings.ansi).lower(), "spark.sql.session.timeZone": "UTC"}
    changed = {name: value for name, value in (QUICK | ansi).items() if was.get(name) != value}
    for name, value in changed.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name in changed:
            if name in was:
                session.conf.set(name, was[name])
            else:
                session.conf.unset(name)


def sortable(key: Iterable[object]) -> tuple[tuple[bool, object], ...]:
    """A key that sorts beside others with nulls in them."""
    return tuple((part is not None, part) for part in key)
