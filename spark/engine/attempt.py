"""One attempt to bring a table to a position: what it reads, and how its rows are gated and committed.

Steps, rebuilds, restores and checks are made of attempts. An attempt that returns None lost a race: another run
committed first, and the caller reads the table's state again.
"""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark.engine.advance import identity, output_of, with_touched
from spark.engine.errors import ChangesExpired, ExpressionFailed, PlanChanged, condition
from spark.engine.failing_row import find_failing_row
from spark.engine.gate import known_result, passed
from spark.engine.inputs.frame_cache import FrameCache, frame_cache
from spark.engine.inputs.snapshot import DeltaSnapshot, version_of
from spark.engine.inputs.span import InitialSpan, can_be_broadcast
from spark.engine.inputs.stream_time import Clock
from spark.engine.log import commit, merge, replacement, table
from spark.engine.log.definition import check_definition, check_landings, definition
from spark.engine.log.position import Gated
from spark.engine.log.stored_table import StoredTable
from spark.engine.log.table import stored_types
from spark.engine.ports import opened
from spark.operators.algebra import PRESENT, col, cols, present
from spark.topology.sql.widening import is_wider

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame, Row, SparkSession

    from spark.engine.advance import Advance
    from spark.engine.gate import Gate
    from spark.engine.inputs.pin import Pins
    from spark.engine.inputs.span import IncrementalSpan
    from spark.engine.log.position import Position
    from spark.engine.log.stored_table import State
    from spark.engine.ports import Engine, Ports
    from spark.topology.topology import Table, Topology

CAUSE = re.compile(r"^Caused by: \S+: (.*? SQLSTATE: (\w{5}))$", re.DOTALL | re.MULTILINE)
FAULTY = ("22", "42", "P0")  # SQLSTATE classes: data that an expression fails on, invalid expressions, raise_error

CHANGES_LOST = (  # Delta's error classes for a change feed whose files were removed
    "DELTA_UNSUPPORTED_TIME_TRAVEL_BEYOND_DELETED_FILE_RETENTION_DURATION",
    "DELTA_CHANGE_DATA_FEED_INCOMPATIBLE",
    "DELTA_LOG_FILE_NOT_FOUND",
    "DELTA_MISSING_CHANGE_DATA",
    "DELTA_TRUNCATED_TRANSACTION_LOG",
    "DELTA_VERSIONS_NOT_CONTIGUOUS",
    "DELTA_VERSION_NOT_FOUND",
    "FAILED_READ_FILE.FILE_NOT_EXIST",
)

Outcome = Literal["stepped", "positioned", "idle", "waiting"]
"""Rows and position committed; only the position; nothing to do; an input has not reached the cut of the others."""


@dataclass(frozen=True)
class Stepped:
    """The result of a step: the state of the table before and after it, the number of keys touched and rows changed."""

    table: str
    outcome: Outcome
    before: State | None
    after: State | None
    waiting_for: tuple[str, ...] = ()
    touched: int = 0
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    seconds: float = 0.0

    @property
    def begun(self) -> dict[str, int]:
        """By input, the version whose rows this first step read instead of the older changes, which had expired."""
        if self.after is None or self.after.position.n > 1 or self.outcome in ("idle", "waiting"):
            return {}
        return self.after.position.begun


@dataclass(frozen=True)
class Attempt:
    """One attempt at a table: its state before, and the position to commit with the snapshot to compute it at."""

    engine: Engine
    session: SparkSession
    target: Table
    table: StoredTable
    before: State
    position: Position
    now: DeltaSnapshot
    cache: FrameCache
    gate: Gate | None

    @property
    def row_key(self) -> tuple[str, ...]:
        """The columns that identify a row of the stored table."""
        return identity(self.target.plan)

    def stored(self) -> DataFrame:
        """Return the rows, with all columns, of the stored table at the version that the attempt began with."""
        return version_of(self.session, self.table.path, self.before.version)

    def no_rows(self) -> DataFrame:
        """Return a frame without rows, with all columns of the stored table."""
        return self.stored().where("false")

    def initial_span(self) -> InitialSpan:
        """Return the span from empty inputs."""
        return InitialSpan(self.now, own=self.no_rows())

    def plan_for_all_rows(self) -> None:
        """Let the session plan queries that read the inputs and the table whole."""
        self.engine.plan_for(self.session, self.table.size() + self.now.size())

    def overtaken(self, state: State | None) -> bool:
        """Return whether another run has computed a table that did not exist in `state`, maybe beyond our pins."""
        return state is None and self.before.position.n > 0

    def timed(self, advance: Advance) -> Attempt:
        """Return the attempt with the clock of an advance, and the lateness of what arrived, in its position."""
        clock, arrived = advance.clock, advance.arrived
        late = self.position.lateness
        if arrived is not None and arrived.records:
            late = {"avg": arrived.lateness_avg, "max": arrived.lateness_max}
        position = replace(self.position, time=clock.time, dropped=clock.dropped, lateness=late, seen=clock.seen)
        return replace(self, position=position)

    @property
    def clock(self) -> Clock:
        """The clock in the position."""
        return Clock(self.position.time, self.position.dropped, self.position.seen)

    def widen(self, source: DataFrame) -> bool:
        """Widen the stored columns of which `source` has a wider type. Return whether there are any.

        The rows so far have the same values in the wider types (`spark.engine.log.definition`). They are committed with
        these types at the position that the table has, so the caller must read its state again.

        Raises:
            PlanChanged: other types differ: Delta would cast the rows, and lose values that do not fit.
        """
        wider = self._wider(source)
        if wider is None:
            stored, given = dict(self.stored().dtypes), dict(source.drop(PRESENT).dtypes)
            differ = [column for column in stored | given if stored.get(column) != given.get(column)]
            name = self.table.dotted_name
            what = f"{name} has other columns than its inputs now give it:"
            other = [f"  {column}: {stored.get(column)}, now {given.get(column)}" for column in differ]
            raise PlanChanged("\n".join([what, *other, f"run `tidetable rebuild {name}`"]))
        if not wider:
            return False
        table.widen_columns(self.session, self.table, self.before, wider, self.position.run)
        return True

    def _wider(self, source: DataFrame) -> dict[str, str] | None:
        """Return the columns of `source`, type by name, that are wider than the stored ones; None if others differ.

        A table without a step in its epoch has no position at which its rows could be written again.
        """
        given = StructType([field for field in source.schema if field.name != PRESENT])
        stored = StructType.fromJson(json.loads(self.table.schema()))  # of the log: a frame would ask the engine
        kinds, stored_kinds = _kinds(given), _kinds(stored)
        if kinds == stored_kinds:
            return {}
        now, before = stored_types(given.json()), stored_types(stored.json())
        differ = [name for name in now if before.get(name) != now[name]]
        if self.before.position.n == 0 or now.keys() != before.keys():
            return None
        only_wider = all(is_wider(now[name], before[name]) for name in differ)
        return {name: kinds[name] for name in differ} if only_wider else None

    def as_stored(self, rows: DataFrame) -> DataFrame:
        """Return rows of an older version with the types that the table's columns were widened to since."""
        types = [stored_types(frame.schema.json()) for frame in (self.stored(), rows)]
        kinds = {field.name: field.dataType for field in self.stored().schema}
        wider = [name for name, old in types[1].items() if name in types[0] and is_wider(types[0][name], old)]
        return rows.withColumns({name: col(name).cast(kinds[name]) for name in wider}) if wider else rows

    # Commits. Each returns None if another run committed first.

    def commit_position(self) -> Stepped | None:
        """Commit the position alone."""
        return self._stepped("positioned", commit.append(self.no_rows(), self.table, self.position))

    def append(self, rows: DataFrame) -> Stepped | None:
        """Append rows."""
        attempt, batch = self._gated(rows)
        return attempt._stepped("stepped", commit.append(batch, attempt.table, attempt.position))

    def merge(self, source: DataFrame, span: IncrementalSpan) -> Stepped | None:
        """Replace the rows of touched keys; `source` has one row per key, and `_present`."""
        attempt, batch = self._gated(source, always=span.is_small, few=span.is_few)
        if not span.is_small:
            return attempt._merged(batch)
        # A few changes may touch many keys, as a renamed customer touches its orders. Up to `LITERALS` are literals.
        key, may_replace = self.row_key, not self.target.former_rows_read
        newest_time = self.table.newest_time() if may_replace else None
        differs = replacement.differs(self.before.position.cut, newest_time)
        touched = replacement.touched(batch, key, differs, merge.LITERALS)
        if touched is None:
            return attempt._many(batch, replacement.counts(batch, key, differs), may_replace)
        if may_replace and merge.has_literals(touched, key) and replacement.differ(touched):
            return attempt._replaced(batch, touched)
        return attempt._merged(F.broadcast(batch), touched)

    def replace_rows(self, rows: DataFrame) -> Stepped | None:
        """Make the table equal to `rows`: merge the difference, or replace all rows where a MERGE cannot.

        A MERGE cannot if columns changed, or a key has several rows. The caller has planned for all rows, before it
        computed them.
        """
        if self._wider(rows) and self.widen(rows):
            return None
        attempt, batch = self._gated(rows)
        stored, key = self.stored(), self.row_key
        if dict(stored.dtypes) == dict(batch.dtypes) and duplicate_keys(stored, key).isEmpty():
            return attempt._merged(merge.difference(batch, stored, key))
        table.narrow_statistics(self.session, self.table, batch.schema)
        return attempt._stepped("stepped", commit.replace_all(batch, attempt.table, attempt.position))

    def _replaced(self, source: DataFrame, touched: Sequence[Row]) -> Stepped | None:
        """Replace the rows at the touched keys by those of `source`, which all differ from the stored ones."""
        key = self.row_key
        absent = [row for row in touched if not row[PRESENT]]
        gone = []
        if absent:
            gone = self.stored().where(merge.at_keys(key, absent)).select(*cols(key)).collect()
        written = [row for row in touched if row[PRESENT]]
        if not written and not gone:
            done = self._stepped("stepped", commit.append(self.no_rows(), self.table, self.position))
            return done and replace(done, touched=len(touched))
        # Few rows, so one file: every later read opens each file.
        rows, position = present(source).coalesce(1), replace(self.position, deleted=len(gone))
        after = commit.replace_where(rows, merge.at_keys(key, [*written, *gone]), self.table, position)
        return self._with_replaced(after, len(written), len(gone), len(touched))

    def _many(self, source: DataFrame, counts: replacement.Counts, may_replace: bool) -> Stepped | None:
        """Replace or merge the rows at more touched keys than a condition has; the span is small."""
        few = can_be_broadcast(self.table, counts.touched)
        if not few:
            self.plan_for_all_rows()
        gone = self._gone(source, counts) if may_replace and self.engine.has_replace_on else None
        on = "" if gone is None else merge.on_keys(self.row_key, gone, counts.written)
        if gone is None or len(on) > merge.ON_LENGTH:
            return self._merged(F.broadcast(source) if few else source)
        rows = present(source).coalesce(self.engine.width) if few else present(source)
        after = commit.replace_on(rows, on, self.table, replace(self.position, deleted=len(gone)))
        return self._with_replaced(after, counts.touched - counts.absent, len(gone), counts.touched)

    def _gone(self, source: DataFrame, counts: replacement.Counts) -> Sequence[Row] | None:
        """Return the stored keys at which a step leaves no row; None if it cannot replace the rows at its keys."""
        if counts.uncertain or counts.written is None:
            return None
        if not replacement.can_be_read(self.table.largest_file(), counts.touched):
            return None
        if not counts.absent:
            return ()
        literals = merge.has_literals([counts.written], self.row_key)
        if not literals or not can_be_broadcast(self.table, counts.absent):
            return None
        return replacement.gone(self.stored(), source, self.row_key, merge.GONE)

    def _merged(self, source: DataFrame, keys: Sequence[Row] = ()) -> Stepped | None:
        source.createOrReplaceTempView("__source")
        schema = source.drop(PRESENT).schema
        statement = merge.statement(self.table.path, "__source", self.row_key, schema, keys)
        return self._stepped("stepped", commit.merge(self.session, statement, self.table, self.position))

    def _with_replaced(self, after: State | None, written: int, deleted: int, touched: int) -> Stepped | None:
        """Return the result of a replacement, whose metrics count the rows it removed: `deleted`, and those updated."""
        done = self._stepped("stepped", after)
        if done is None or after is None:
            return None
        updated = after.metrics.get("numDeletedRows", 0) - deleted  # Delta leaves the count out if it is none
        return replace(done, touched=touched, inserted=written - updated, updated=updated, deleted=deleted)

    def _stepped(self, outcome: Outcome, after: State | None) -> Stepped | None:
        if after is None:
            return None
        counts = after.metrics
        inserted = counts.get("numTargetRowsInserted", counts.get("numOutputRows", 0))
        return Stepped(
            self.table.name,
            outcome,
            self.before,
            after,
            touched=counts.get("numSourceRows", inserted),
            inserted=inserted,
            updated=counts.get("numTargetRowsUpdated", 0),
            deleted=counts.get("numTargetRowsDeleted", 0),
        )

    # The gate.

    def _gated(self, batch: DataFrame, always: bool = False, few: bool = False) -> tuple[Attempt, DataFrame]:
        """Return the attempt with the gate's result, and the batch to commit, cached if it is read before the commit.

        A gate reads it, or with `always` the caller does. The cache makes the rows that were read those that are
        committed. `few`: it is likely to have few rows.
        """
        if self.gate is None and not always:
            return self, batch
        cached = self.cache.cache(batch, few)
        if self.gate is None:
            return self, cached
        new_rows = present(cached) if PRESENT in cached.columns else cached
        known = self.position.gated or passed(self.gate, self.before.version)
        result = self.gate(new_rows, lambda: self._after(cached), known)
        return replace(self, position=replace(self.position, gated=result)), cached

    def _after(self, batch: DataFrame) -> DataFrame:
        """Return all rows that the table has after the commit of a batch."""
        if self.position.whole:
            return batch
        if PRESENT not in batch.columns:
            return self.stored().unionByName(batch)
        return with_touched(self.stored(), batch, self.row_key)

    def evaluate_gate(self, always: bool = False) -> Attempt:
        """Evaluate the gate on the stored rows, if it has not yet, or `always`; return the attempt with the result."""
        if self.gate is None or not (always or self.position.gated is None):
            return self
        result = Gated(self.gate.digest, self.before.version, self.gate.look(self.stored()))
        return replace(self, position=replace(self.position, gated=result))


def _kinds(schema: StructType) -> dict[str, str]:
    """Return the types of columns, by name, as Spark writes them."""
    return {field.name: field.dataType.simpleString() for field in schema}


@contextmanager
def attempting(
    ports: Ports,
    topology: Topology,
    target: Table,
    state: State | None,
    pins: Pins,
    run: str,
    gate: Gate | None = None,
    expired: Sequence[str] = (),
) -> Iterator[Attempt]:
    """Open a session for one attempt, and yield the attempt. Creates the table if it does not exist.

    For the inputs in `expired`, whose changes have expired, their rows at the pin replace all changes up to it.

    Raises:
        PlanChanged: a landing differs from its declaration, or another run created the table by another definition.
        ChangesExpired: changes of an input that the attempt needs have expired.
        ExpressionFailed: an expression of the topology failed.
    """
    stored = StoredTable.of(ports.lakehouse, topology.name, target.name)
    if state is None:
        check_landings(ports.lakehouse, topology, target)
    with table_errors(topology, target), opened(ports.engine, topology.settings) as session:
        begun_at = {name: pins.inputs[name].version for name in expired}
        if state is not None and state.position.n > 0:  # its first step has set this
            begun_at = state.position.begun
        now = DeltaSnapshot(session, ports.lakehouse, topology.name, pins.inputs, pins.cut, begun_at)
        if state is None:
            output = output_of(target, InitialSpan(now, own=session.range(0).toDF("_")), 0)
            assert output.frame is not None, "the first span has every row"
            state = table.create(
                session, stored, output.frame.schema, run, definition(topology, target), identity(target.plan)
            )
            check_definition(topology, target, state)  # a run of another definition may have created it
        elif state.position.n > 0:
            table.keep_statistics(session, stored, state, identity(target.plan))
            table.keep_format(session, stored, state)
        position = replace(
            state.position.next(run, state.data_version),
            cut=pins.cut,
            inputs=pins.inputs,
            gated=known_result(gate, state),
            begun=begun_at,
            enforced=state.position.enforced + pins.enforced,
        )
        with frame_cache(session) as cache:
            try:
                yield Attempt(ports.engine, session, target, stored, state, position, now, cache, gate)
            except PySparkException as error:
                if _failed_expression(error) and (row := find_failing_row(session, target.plan, now)):
                    error.add_note(row)
                raise


@contextmanager
def table_errors(topology: Topology, target: Table) -> Iterator[None]:
    """Raise Spark's errors that an expression or an expired input caused as ours, with the name of the table.

    Raises:
        ChangesExpired: an input no longer has the changes.
        ExpressionFailed: an expression failed; the message has the row, if it was found.
    """
    try:
        yield
    except PySparkException as error:
        name = f"{topology.name}.{target.name}"
        if changes_lost(error):
            raise ChangesExpired(f"{name}: an input no longer has the changes: {message(error)}") from error
        if fault := _failed_expression(error):
            where = "".join(f"\nthe row: {note}" for note in getattr(error, "__notes__", ()))
            raise ExpressionFailed(f"{name}, at {target.line}, cannot be computed: {fault}{where}") from error
        raise


def changes_lost(error: PySparkException) -> bool:
    """Return whether Delta could not read changes, or a version, because their files were removed."""
    return condition(error).startswith(CHANGES_LOST)


def message(error: PySparkException) -> str:
    """Return Spark's message, without the stack of the engine."""
    return str(error).partition("\n\nJVM stacktrace:")[0]


def _failed_expression(error: PySparkException) -> str:
    """Return Spark's message about an expression that failed; empty if something else failed."""
    # A task that fails while it writes raises an error about the write, with the failure as its cause.
    writing = condition(error) == "TASK_WRITE_FAILED"
    causes = CAUSE.findall(str(error)) if writing else [(message(error), error.getSqlState() or "")]
    failed = causes and causes[-1][1].startswith(FAULTY) and not condition(error).startswith("DELTA_")
    return str(causes[-1][0]) if failed else ""


def duplicate_keys(rows: DataFrame, key: tuple[str, ...]) -> DataFrame:
    """Return the keys (columns: `key`) that have more than one row, which a MERGE cannot tell apart."""
    counted = rows.groupBy(*cols(key)).agg(F.count(F.lit(1)).alias("_rows"))
    return counted.where("_rows > 1").select(*cols(key))
