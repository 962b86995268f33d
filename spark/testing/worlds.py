"""All batches of a run at once: in world i, `before` is the state before batch i, and `after` the state after it.

A step of a table reads its inputs as they are before a batch and after it, and nothing else. So all batches of a run,
each a world of its own, are one span in one frame, and the operators that steps use compute them together. A version
of a row is sent to Spark once, with the batches in which it is there; Spark copies it into their worlds.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F
from pyspark.sql.conversion import LocalDataToArrowConversion
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import IntegerType, StructField, StructType

from spark.operators.algebra import ALL, OURS, PRESENT, cols, present, rows, touched
from spark.operators.order import with_ordinals, with_reached
from spark.testing.apart import DIGITS, WORLD
from spark.testing.steps import Clock, placed
from spark.topology.nodes import Aggregate, Join, Lookup, StreamJoin, Window

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql import Row as SparkRow

    from spark.topology.nodes import Node, Scan
    from spark.topology.topology import Table

Row = dict[str, Any]
"""A row, or a record, by column."""
Key = tuple[object, ...]

InWorld = tuple[int, Row]
"""A row, and its world."""

_IDENTITY = (
    StructType().add("_topic", "string").add("_partition", "integer").add("_offset", "long").add("_ordinal", "long")
)
SIDES = (
    StructType().add("_timestamp", "timestamp").add("_topic", "string").add("_left", _IDENTITY).add("_right", _IDENTITY)
)
"""What a join of streams reads of its own rows."""
READ_TWICE = (Aggregate, Join, Lookup, StreamJoin, Window)
DEEP = 2
"""The greatest depth at which it is cheaper to plan all in one query: each level multiplies the frames by three."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Change:
    """One change of a key by a batch: its new row, or the row that was deleted."""

    batch: int
    row: Row
    deleted: bool


@dataclass(frozen=True)
class Emitted:
    """What a table emitted at a key in a batch: its row before, and its row after; of a stream, the record alone."""

    batch: int
    was: Row | None
    row: Row | None

    def as_record(self, table: Table) -> dict[str, object]:
        """The key and the value, by column; the value is None for a tombstone."""
        keys, row = table.plan.key, self.was if self.row is None else self.row
        assert row is not None
        gone = self.row is None or (table.plan.is_stream and row["_deleted"])
        value = {column.name: row[column.name] for column in table.plan.columns if column.name not in keys}
        return {"key": {name: row[name] for name in keys}, "value": None if gone else value}


@dataclass(frozen=True)
class Stored:
    """A table's rows by key, or a landing's or stream's records by coordinates."""

    schema: StructType
    rows: Mapping[Key, Row] = field(default_factory=dict)
    history: tuple[Change, ...] = ()
    """All changes of a table so far."""
    clock: Clock = field(default_factory=Clock)


@dataclass(frozen=True)
class Moved:
    """A stored table, landing or stream in a run of batches: what it was before, and what each batch did to it."""

    was: Stored
    changed: Sequence[Mapping[Key, Row | None]]
    """By batch, the new row of every key that it changed; None if it deleted the row."""
    clocks: Sequence[Clock]
    """By batch, the clock after it."""
    changes: Sequence[Sequence[Change]] = ()
    """By batch, the changes of a table, if another table reads all of them."""

    def before(self, batch: int) -> Clock:
        """The clock before a batch."""
        return self.clocks[batch - 1] if batch > 0 else self.was.clock

    def moves(self, batch: int) -> bool:
        """True if a batch changed rows, or stream time."""
        return bool(self.changed[batch]) or self.before(batch).time != self.clocks[batch].time

    def emitted(self, first: int) -> Iterator[Emitted]:
        """What the batches changed, in order; `first` is the number of the first one."""
        rows = dict(self.was.rows)
        for batch, changed in enumerate(self.changed, first):
            for key, row in changed.items():
                yield Emitted(batch, rows.get(key), row)
            apply(rows, changed)

    def now(self) -> Stored:
        """The table after the run."""
        rows = dict(self.was.rows)
        for changed in self.changed:
            apply(rows, changed)
        history = (*self.was.history, *(change for batch in self.changes for change in batch))
        return replace(self.was, rows=rows, history=history, clock=self.clocks[-1])


@dataclass(frozen=True)
class Frames:
    """The inputs of a table in some batches of a run, each batch in its world."""

    session: SparkSession
    inputs: Mapping[str, Moved]
    batches: Sequence[int]
    """The batches in which an input moved, by world. In between, nothing changes for the table."""
    found: dict[tuple[str, str], DataFrame] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """The number of worlds."""
        return len(self.batches)

    def has_changes(self, name: str) -> bool:
        """True if a batch changed the input."""
        return any(self.inputs[name].changed[batch] for batch in self.batches)

    def times(self, name: str, later: bool) -> Column:
        """The stream time of an input after or before each batch, in microseconds."""
        moved = self.inputs[name]
        return by_world((moved.clocks[batch] if later else moved.before(batch)).time for batch in self.batches)

    def around(self, name: str, later: bool) -> DataFrame:
        """All rows of a table, or records of a landing or stream, after (`later`) or before each batch."""

        def rows_() -> Iterator[InWorld]:
            state = dict(self.inputs[name].was.rows)
            for world, changed in self._changed(name):
                if not later:
                    yield from ((world, row) for row in state.values())
                apply(state, changed)
                if later:
                    yield from ((world, row) for row in state.values())

        return self._local(f"after {later}", name, rows_)

    def made(self, name: str) -> DataFrame:
        """The rows that each batch wrote, or the records that it brought."""
        return self._local(
            "made",
            name,
            lambda: (
                (world, row) for world, changed in self._changed(name) for row in changed.values() if row is not None
            ),
        )

    def replaced(self, name: str, only_deleted: bool = False) -> DataFrame:
        """The rows that each batch replaced or deleted."""

        def rows_() -> Iterator[InWorld]:
            state = dict(self.inputs[name].was.rows)
            for world, changed in self._changed(name):
                for key, row in changed.items():
                    if key in state and (row is None or not only_deleted):
                        yield world, state[key]
                apply(state, changed)

        return self._local(f"replaced {only_deleted}", name, rows_)

    def history(self, scan: Scan, later: bool) -> DataFrame:
        """All changes of a table after (`later`) or before each batch, as records."""

        def changes() -> Iterator[tuple[int, Change]]:
            moved = self.inputs[scan.table]
            state = list(moved.was.history)
            for world, batch in enumerate(self.batches):
                now = [*state, *moved.changes[batch]]
                yield from ((world, change) for change in (now if later else state))
                state = now

        return self._change_records(f"history {later}", scan, changes)

    def changes(self, scan: Scan) -> DataFrame:
        """The changes of a table by each batch, as records."""
        by_batch = self.inputs[scan.table].changes

        def changes() -> Iterator[tuple[int, Change]]:
            return ((world, change) for world, batch in enumerate(self.batches) for change in by_batch[batch])

        return self._change_records("changes", scan, changes)

    def _change_records(self, what: str, scan: Scan, changes: Callable[[], Iterable[tuple[int, Change]]]) -> DataFrame:
        names = [name for name in dict.fromkeys((*(c.name for c in scan.columns), *OURS)) if name != WORLD]
        of_deleted = {*scan.key, *OURS}

        def rows_() -> Iterator[InWorld]:
            for world, change in changes():
                row = {name: change.row[name] if not change.deleted or name in of_deleted else None for name in names}
                yield world, row | {"_batch": change.batch, "_deleted": change.deleted}

        schema = StructType([self.inputs[scan.table].was.schema[name] for name in names])
        schema.add("_batch", "long").add("_deleted", "boolean")
        return with_ordinals(self._local(what, scan.table, rows_, schema), scan.key)

    def _changed(self, name: str) -> Iterator[tuple[int, Mapping[Key, Row | None]]]:
        return ((world, self.inputs[name].changed[batch]) for world, batch in enumerate(self.batches))

    def _local(
        self, what: str, name: str, found: Callable[[], Iterable[InWorld]], schema: StructType | None = None
    ) -> DataFrame:
        if (name, what) not in self.found:
            schema = self.inputs[name].was.schema if schema is None else schema
            self.found[name, what] = in_worlds(self.session, schema, found())
        return self.found[name, what]


@dataclass(frozen=True)
class Side:
    """All inputs before or after each batch: the operators' `Snapshot`."""

    frames: Frames
    later: bool

    def stored(self, scan: Scan) -> DataFrame:
        """All rows of a table, or all records of a landing."""
        return self.frames.around(scan.table, self.later)

    def records(self, scan: Scan) -> DataFrame:
        """All records of a stream, or all changes of a table; with `PLACED`."""
        found = decoded(scan, self.stored(scan)) if scan.appended else self.frames.history(scan, self.later)
        return found.withColumn("_reached", F.lit(None).cast("bigint"))

    def time(self, scan: Scan) -> Column:
        """The stream time of a table, in microseconds."""
        return self.frames.times(scan.table, self.later)


@dataclass(frozen=True)
class Worlds:
    """The batches, each in its world: the operators' `Span`. Times are in microseconds, one for each world."""

    plan: Node
    """A plan apart, whose key begins with the world."""
    frames: Frames
    stored: Stored
    """The plan's own table before the run."""
    timed: frozenset[str]
    """The inputs with a stream time, and those that drive a plan with one: it may pass where nothing changes."""
    time_before: Column | None = None
    time_after: Column | None = None
    seen: Mapping[str, Column] = field(default_factory=dict)
    pairs: Mapping[int, Sequence[Row]] = field(default_factory=dict)
    """By world, the pairs that a join of streams emitted in it."""
    apart: tuple[str, ...] = (WORLD,)
    is_small: bool = True

    @property
    def before(self) -> Side:
        """All inputs before each batch."""
        return Side(self.frames, later=False)

    @property
    def after(self) -> Side:
        """All inputs after each batch."""
        return Side(self.frames, later=True)

    @property
    def own(self) -> DataFrame:
        """The rows of the plan's own table before each batch.

        The batches before made them, in this very span. So the rows of a fold are computed by its query, and sessions
        are folded from all records before a batch at once. Of a join of streams, only the pairs are read, which depend
        on no earlier row: they are computed first.
        """
        if isinstance(self.plan, Aggregate):
            return rows(self.plan, ALL, self.before)
        if isinstance(self.plan, StreamJoin):
            return self.own_before(SIDES)
        before = touched(self.plan, self.prefix())
        assert before is not None, "its drivers are timed"
        before = self.keep(before)
        stored = self.own_before(self.stored.schema)
        unchanged = stored.join(before, list(self.plan.key), "left_anti")
        return unchanged.unionByName(present(before).select(*cols(unchanged.columns)))

    def own_before(self, schema: StructType) -> DataFrame:
        """The rows of the plan's own table before the run, and the pairs before each batch, in every world."""
        made = [(-1, row) for row in self.stored.rows.values()]
        made += [(world, row) for world, pairs in self.pairs.items() for row in pairs]
        worlds = range(self.frames.count)
        return in_worlds(self.frames.session, schema, ((w, row) for w in worlds for since, row in made if since < w))

    def prefix(self) -> Prefix:
        """All records of the run before each batch, as one span."""
        begin = by_world([self.stored.clock.time] * self.frames.count)
        return Prefix(self.plan, self.frames, self.stored, self.timed, begin, self.time_before, at=self.time_before)

    def keep(self, frame: DataFrame) -> DataFrame:
        """The same rows; computed now if the plan is deep: Spark would plan the frame again each time it is read."""
        return computed(frame) if depth(self.plan) > DEEP else frame

    def is_empty(self, frame: DataFrame) -> bool:
        """Whether a frame has no rows, if it is computed."""
        return depth(self.plan) > DEEP and frame.isEmpty()

    def few(self, keys: DataFrame, node: Node) -> None:  # the protocol's
        """None: no table is large."""

    def has_changes(self, scan: Scan) -> bool:
        """True if a batch changed the input, or may have advanced its stream time."""
        return scan.table in self.timed or self.frames.has_changes(scan.table)

    def changes(self, scan: Scan) -> DataFrame:
        """Every key that a batch changed, with its new row, or `_present` false."""
        new = self.frames.made(scan.table).withColumn(PRESENT, F.lit(True))
        gone = self.frames.replaced(scan.table, only_deleted=True).select(*cols(scan.key))
        return new.unionByName(gone.withColumn(PRESENT, F.lit(False)), allowMissingColumns=True)

    def previous(self, scan: Scan) -> DataFrame:
        """The rows before a batch, at the keys that it changed."""
        return self.frames.replaced(scan.table)

    def overlapping_records(self, scan: Scan) -> DataFrame | None:  # noqa: ARG002  # the protocol's
        """None: a batch is never split."""
        return None

    def records(self, scan: Scan) -> DataFrame:
        """The new records of each batch, or its changes of a table; with `PLACED`."""
        if scan.appended:
            return placed(scan, decoded(scan, self.frames.made(scan.table)))
        return with_reached(self.frames.changes(scan), scan.by_time)


@dataclass(frozen=True)
class Prefix(Worlds):
    """What came in the run before each batch, as one span in which each record has the stream time of its own batch."""

    at: Column | None = None
    """Stream time before each batch; `time_before` is that before the run."""

    @property
    def own(self) -> DataFrame:
        """The rows before the run."""
        return self.own_before(self.stored.schema)

    def records(self, scan: Scan) -> DataFrame:
        """The new records of all batches before each."""
        new = super().records(scan).withColumn("_reached", F.greatest("_reached", F.lit(self.at).cast("bigint")))
        last = self.frames.count - 1
        later = F.explode(F.expr(f"CASE WHEN {WORLD} < {last} THEN sequence({WORLD} + 1, {last}) END"))
        topic = f"concat(lpad(cast({WORLD} AS string), {DIGITS}, '0'), substring(_topic, {DIGITS + 1}))"
        return new.withColumn(WORLD, later).withColumn("_topic", F.expr(topic))


def depth(plan: Node) -> int:
    """How many of the operators that read a frame more than once are on each other."""
    return isinstance(plan, READ_TWICE) + max(map(depth, plan.sources), default=0)


def computed(frame: DataFrame) -> DataFrame:
    """The same rows in a new frame. A local checkpoint would belong to the active session, which may be another one."""
    return frame_of(frame.sparkSession, frame.schema, frame.collect())


def frame_of(session: SparkSession, schema: StructType, found: Sequence[Row | SparkRow]) -> DataFrame:
    """Rows in a frame of one partition, by way of Arrow: classic Spark sends a list through a Python worker."""
    if found:
        table = LocalDataToArrowConversion.convert(list(found), schema, use_large_var_types=False)
    else:
        table = to_arrow_schema(schema).empty_table()
    return session.createDataFrame(table, schema).coalesce(1)  # one partition needs no exchange


def in_worlds(session: SparkSession, schema: StructType, found: Iterable[InWorld]) -> DataFrame:
    """Rows in a frame, each in its world, which `_topic` begins with, too."""
    fields = [StructField(WORLD, IntegerType()), *(StructField(one.name, one.dataType) for one in schema)]
    return frame_of(session, StructType(fields), [marked(row, world) for world, row in found])


def marked(row: Row, world: int) -> Row:
    """A row in a world."""
    mark = f"{world:0{DIGITS}d}#"
    there = {WORLD: world, "_topic": None if row["_topic"] is None else mark + row["_topic"]}
    for name in ("_left", "_right"):
        if row.get(name) is not None:
            there[name] = row[name] | {"_topic": mark + row[name]["_topic"]}
    return row | there


def unmarked(row: Row) -> Row:
    """A row of a world, in none."""
    there = {"_topic": row["_topic"] and row["_topic"][DIGITS + 1 :]}
    for name in ("_left", "_right"):
        if row.get(name) is not None:
            there[name] = row[name].asDict() | {"_topic": row[name]["_topic"][DIGITS + 1 :]}
    return row | there


def decoded(scan: Scan, frame: DataFrame) -> DataFrame:
    """The records of a landing that were decoded, or all of a stored stream."""
    return frame.where("_error IS NULL").withColumn("_ordinal", F.lit(0).cast("bigint")) if scan.landing else frame


def apply(state: dict[Key, Row], changed: Mapping[Key, Row | None]) -> None:
    """Change rows by key as a batch did."""
    for key, row in changed.items():
        if row is None:
            del state[key]
        else:
            state[key] = row


def by_world(values: Iterable[int | None]) -> Column:
    """A number for each world, some of them null."""
    texts = ["CAST(NULL AS BIGINT)" if value is None else f"{value}L" for value in values]
    return F.expr(f"get(array({', '.join(texts)}), {WORLD})")


def micros(at: object) -> int | None:
    """An event time in microseconds since 1970; None if there is none."""
    if at is None:
        return None
    assert isinstance(at, datetime)
    return (at.astimezone(UTC) - _EPOCH) // timedelta(microseconds=1)
