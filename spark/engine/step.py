"""Bring one table from its position to its pins: find the touched keys, compute their rows, commit once."""

from __future__ import annotations

import re
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from spark.engine import commit, merge, table
from spark.engine import position as positions
from spark.engine.changes import FEW, Beginning, Between, Pinned, version_of
from spark.engine.definition import agreed, check_definition, check_landings, definition
from spark.engine.errors import ChangesExpired, ExpressionFailed, InputChanged, NotCommitted, PlanChanged, condition
from spark.engine.failing import failing
from spark.engine.kept import Kept, keeping
from spark.engine.pin import Pins, before, pin
from spark.engine.position import Gated
from spark.engine.stream import Arrived, Clock, Clocked, clocked, drops, emitted, identity, left_out
from spark.operators.algebra import ALL, PRESENT, cols, is_idle, present, rows, touched
from spark.operators.window import initial_rows
from spark.topology.nodes import Window

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, Row, SparkSession

    from spark.engine.doors import Doors
    from spark.engine.position import Position, State
    from spark.operators.algebra import Span
    from spark.topology.nodes import Scan
    from spark.topology.topology import Table, Topology

TRIES = 5  # lost races before a step gives up; each one means that another run committed a step

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

Timed = TypeVar("Timed", bound=Clocked)

Outcome = Literal["stepped", "positioned", "idle", "waiting"]
"""Rows and position committed; only the position; nothing to do; an input has not reached the cut of the others."""


class Gate(Protocol):
    """Evaluates rows before they are committed, and raises if they must not be.

    It evaluates once the rows that the table had before the gate was added or changed.
    """

    @property
    def digest(self) -> str:
        """The digest of the gate's expectations: gates with other expectations have another one."""

    def __call__(self, batch: DataFrame, table: Callable[[], DataFrame], known: Gated) -> Gated:
        """Return the result for the table with the new rows, which is committed with them; raise if they must not be.

        `batch` has the new rows at touched keys; `table` returns a frame of all rows after the commit. Failures that
        are `known` from earlier versions refuse no step.
        """

    def look(self, rows: DataFrame) -> dict[str, int | None]:
        """Return how many rows fail, by expectation (None: it is not about single rows). It refuses none."""


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
    arrived: Arrived | None = None
    """For a stored stream or windows: the records that arrived. The position counts the records dropped so far."""

    @property
    def begun(self) -> dict[str, int]:
        """By input, the version whose rows this first step read instead of the older changes, which had expired."""
        if self.after is None or self.after.position.n > 1 or self.outcome in ("idle", "waiting"):
            return {}
        return self.after.position.begun


@dataclass(frozen=True)
class Work:
    """One try to step one table: its path, its state before, and the position and snapshot to compute it at."""

    session: SparkSession
    target: Table
    path: str
    before: State
    position: Position
    now: Pinned
    keeps: Kept
    gate: Gate | None
    drops: bool = False
    """Whether the table keeps no stream time, and may leave out records of a stream."""


def step(doors: Doors, topology: Topology, target: Table, run: str, gate: Gate | None = None) -> Stepped:
    """Bring a table to the newest cut that all its inputs reached.

    A step that finds nothing new commits nothing and starts no Spark session. If a table reads all changes of an input,
    and some of them have expired, the first step reads the rows of the input instead.

    Raises:
        PlanChanged: the table was computed by another definition; a rebuild is needed.
        InputChanged: an input is not the table that the position names.
        ChangesExpired: changes of an input that the step needs have expired.
        ExpressionFailed: an expression of the topology failed.
        NotCommitted: other runs committed first, `TRIES` times.
    """
    began = time.monotonic()
    name, path = f"{topology.name}/{target.name}", doors.lakehouse.table(topology.name, target.name)
    gone: tuple[str, ...] = ()
    for _ in range(TRIES):
        state = positions.read(path, name)
        if state is not None:
            state = agreed(doors, topology, target, state, run)
        pins = pin(doors, topology, target)
        here = Pins({}, {}) if state is None else Pins(state.position.inputs, state.position.cut)
        idle = (pins.inputs, pins.cut) == (here.inputs, here.cut) or not pins.inputs or _past(here, pins)
        if idle and not _unseen(gate, state):
            outcome: Outcome = "waiting" if pins.behind else "idle"
            return Stepped(name, outcome, state, state, pins.behind, seconds=time.monotonic() - began)
        until = replace(here, behind=pins.behind) if idle else pins
        try:
            with (
                named(topology, target),
                working(doors, topology, target, state, until, run, gate, gone) as work,
            ):
                if overtaken(state, work) or not commit.alone(stored(work).where("false"), path, work.before):
                    continue
                work = looked(work)
                if idle:
                    done = positioned(work)
                elif work.before.position.n == 0:
                    done = _computed(work)
                else:
                    done = _advanced(work)
        except ChangesExpired as error:
            if begins(state) and (found := expired(doors, topology, target, until)) != gone:
                gone = found
                continue
            raise ChangesExpired(f"{error}\n{out(topology, target)}") from error
        if done is not None:
            return replace(done, waiting_for=pins.behind if idle else (), seconds=time.monotonic() - began)
    raise NotCommitted(
        f"{name}: {TRIES} times another run stepped first; is more than one tick of {topology.name} running?"
    )


@contextmanager
def named(topology: Topology, target: Table) -> Iterator[None]:
    """Raise Spark's errors that an expression or an expired input caused as ours, with the name of the table."""
    try:
        yield
    except PySparkException as error:
        name, told = f"{topology.name}.{target.name}", condition(error)
        said = str(error).partition("\n\nJVM stacktrace:")[0]
        if told.startswith(CHANGES_LOST):
            raise ChangesExpired(f"{name}: an input no longer tells how it changed: {said}") from error
        if fault := _fault(error):
            where = "".join(f"\nthe row: {note}" for note in getattr(error, "__notes__", ()))
            raise ExpressionFailed(f"{name}, at {target.line}, cannot be computed: {fault}{where}") from error
        raise


def _fault(error: PySparkException) -> str:
    """Return Spark's message about an expression that failed; empty if something else failed."""
    told, said = condition(error), str(error).partition("\n\nJVM stacktrace:")[0]
    # A task that fails while it writes raises an error about the write, with the failure as its cause.
    causes = CAUSE.findall(str(error)) if told == "TASK_WRITE_FAILED" else [(said, error.getSqlState() or "")]
    faulty = causes and causes[-1][1].startswith(FAULTY) and not told.startswith("DELTA_")
    return str(causes[-1][0]) if faulty else ""


@contextmanager
def working(
    doors: Doors,
    topology: Topology,
    target: Table,
    state: State | None,
    pins: Pins,
    run: str,
    gate: Gate | None = None,
    gone: Sequence[str] = (),
) -> Iterator[Work]:
    """Open a session for one try, and yield its work. Creates the table if it does not exist.

    For the inputs in `gone`, whose changes have expired, their rows at the pin replace all changes up to it.
    """
    path = doors.lakehouse.table(topology.name, target.name)
    if state is None:
        check_landings(doors.lakehouse, topology, target)
    session = doors.engine.session()
    try:
        session.conf.set("spark.sql.ansi.enabled", str(topology.settings.ansi).lower())
        begun_at = {name: pins.inputs[name].version for name in gone}
        if state is not None and state.position.n > 0:  # its first step has set this
            begun_at = state.position.begun
        now = Pinned(session, doors.lakehouse, topology.name, pins.inputs, pins.cut, begun_at)
        if state is None:
            beginning = Beginning(now, own=now.session.range(0).toDF("_"))
            if target.plan.is_stream:
                schema = emitted(target, beginning, 0).schema
            elif isinstance(target.plan, Window):
                schema = initial_rows(target.plan, beginning).schema
            else:
                schema = rows(target.plan, ALL, now).schema
            name = f"{topology.name}/{target.name}"
            state = table.create(session, path, name, schema, run, definition(topology, target))
            check_definition(topology, target, state)  # a run of another definition may have created it
        position = replace(
            state.position,
            n=state.position.n + 1,
            run=run,
            cut=pins.cut,
            inputs=pins.inputs,
            data_version=state.data_version,
            whole=False,
            restored=None,
            gated=_gated(state, gate),
            begun=begun_at,
            enforced=state.position.enforced + pins.enforced,
        )
        with keeping(session) as keeps:
            try:
                yield Work(session, target, path, state, position, now, keeps, gate, drops(topology, target.plan))
            except PySparkException as error:
                if _fault(error) and (row := failing(session, target.plan, now)):
                    error.add_note(row)
                raise
    finally:
        session.stop()


def begins(state: State | None) -> bool:
    """Return whether a table holds no rows yet, not even rows from before a rebuild that died."""
    return state is None or (state.position.n == 0 and state.data_version == 0)


def expired(
    doors: Doors, topology: Topology, target: Table, pins: Pins, begun: Mapping[str, int] | None = None
) -> tuple[str, ...]:
    """Return those inputs that the table reads all changes of, and whose changes have expired.

    `begun` has, by input, the version from which on the changes are needed; without one, all of them are.
    """
    told = target.plan.changelogs
    if not told or not pins.inputs:
        return ()
    session = doors.engine.session()
    try:
        now = Pinned(session, doors.lakehouse, topology.name, pins.inputs, pins.cut, begun or {})
        return tuple(dict.fromkeys(scan.table for scan in told if not _tells(now, scan)))
    finally:
        session.stop()


def _tells(now: Pinned, scan: Scan) -> bool:
    try:
        now.changelog(scan).count()  # opens every file of the feed, and reads no column
    except ChangesExpired:
        return False
    except PySparkException as error:
        if not condition(error).startswith(CHANGES_LOST):
            raise
        return False
    return True


def out(topology: Topology, target: Table) -> str:
    """Return what to do about a table that needs expired changes of its inputs."""
    name = f"{topology.name}.{target.name}"
    if not target.plan.uses_stream_time and not target.plan.changelogs:
        return f"run `tidetable rebuild {name}`"
    return (
        f"Its rows stay as they are. To give up what it holds of what is gone, and begin anew with the rows that its "
        f"inputs have now, run `tidetable rebuild {name} --from-rows`"
    )


def _gated(state: State, gate: Gate | None) -> Gated | None:
    """Return the gate's result for the table's rows so far; None without a gate, or if it has not evaluated them all.

    It has not evaluated rows that somebody else wrote.
    """
    if gate is None:
        return None
    if state.position.n == 0:
        return passed(gate, state.version)
    if state.data_version > state.own:
        return None
    known = state.position.gated
    return known if known is not None and known.gate == gate.digest else None


def passed(gate: Gate, version: int) -> Gated:
    """Return the result of a gate that every row passes."""
    return Gated(gate.digest, version, {})


def _unseen(gate: Gate | None, state: State | None) -> bool:
    """Return whether a table has rows that its gate has not evaluated."""
    return gate is not None and state is not None and state.position.n > 0 and _gated(state, gate) is None


def looked(work: Work, again: bool = False) -> Work:
    """Evaluate the gate on the stored rows, if it has not yet, or if `again`; return the work with the result."""
    if work.gate is None or not (again or work.position.gated is None):
        return work
    seen = Gated(work.gate.digest, work.before.version, work.gate.look(stored(work)))
    return replace(work, position=replace(work.position, gated=seen))


def positioned(work: Work) -> Stepped | None:
    """Commit the position alone. None: another run committed this step."""
    return _done(work, "positioned", commit.append(stored(work).where("false"), work.path, work.position))


def overtaken(state: State | None, work: Work) -> bool:
    """Return whether another run has computed a table that did not exist before, maybe further than our pins."""
    return state is None and work.before.position.n > 0


def _advanced(work: Work) -> Stepped | None:
    """Replace the rows of the touched keys. None: another run committed this step."""
    was = work.before.position
    _check_inputs(was, work.position)
    before = replace(work.now, inputs=was.inputs, cut=was.cut)
    span = Between(before, work.now, work.keeps, own=stored(work))
    if work.target.plan.is_stream:
        return _emitted(work, span)
    arrived = None
    if isinstance(work.target.plan, Window):
        work, span, arrived = _timed(work, span)
    done = _replaced_at_keys(work, span)
    return None if done is None else replace(done, arrived=arrived)


def _replaced_at_keys(work: Work, span: Between) -> Stepped | None:
    source = touched(work.target.plan, span)
    if source is None:
        return positioned(work)
    _check_types(work, span.own, source)
    work = counting(work, span, work.position.dropped)
    work, batch = kept(work, source, always=span.is_small)
    if not span.is_small:
        return merged(work, batch)
    # A few changes may touch many keys, as a renamed customer does for its orders. Up to `LITERALS` become literals.
    keys = batch.select(*cols(work.target.plan.key)).limit(merge.LITERALS + 1).collect()
    if len(keys) <= merge.LITERALS:
        return merged(work, F.broadcast(batch), keys)
    return merged(work, F.broadcast(batch) if batch.count() <= FEW else batch)


def _computed(work: Work) -> Stepped | None:
    """Compute every key of a table for its first commit. None: another run committed it."""
    whole = replace(work, position=replace(work.position, whole=True))
    plan, arrived = work.target.plan, None
    if plan.is_stream or isinstance(plan, Window):
        whole, span, arrived = _timed(whole, Beginning(work.now, own=stored(work).where("false")))
        found = initial_rows(plan, span) if isinstance(plan, Window) else emitted(work.target, span, whole.position.n)
    else:
        found, whole = rows(plan, ALL, work.now), counting_all(whole)
    if work.before.data_version == 0:
        _check_types(work, stored(work), found)
        whole, batch = kept(whole, found)
        done = _done(whole, "stepped", commit.append(batch, work.path, whole.position))
    else:  # a rebuild died after it committed its anchor: the table has the rows from before
        done = put_right(whole, found)
    return None if done is None else replace(done, arrived=arrived)


def counting(work: Work, span: Span, so_far: dict[str, int]) -> Work:
    """Return the work with `dropped` in its position: `so_far`, and the records that the table leaves out in a span."""
    if not work.drops:
        return work
    return replace(work, position=replace(work.position, dropped=left_out(work.target.plan, span, so_far)))


def counting_all(work: Work) -> Work:
    """Return the work with `dropped` in its position, counted over all records: for a table that is computed whole."""
    return counting(work, Beginning(work.now, own=stored(work).where("false")), {})


def _timed(work: Work, span: Timed) -> tuple[Work, Timed, Arrived]:
    """Return the work with the later stream time and the dropped records in its position, the span, what arrived.

    The span has its two stream times, in microseconds since 1970.
    """
    was = Clock(work.position.time, work.position.dropped, work.position.seen)
    clock, arrived = clocked(work.target.plan, span, was)
    late = {"avg": arrived.lateness_avg, "max": arrived.lateness_max} if arrived.records else work.position.lateness
    position = replace(work.position, time=clock.time, dropped=clock.dropped, lateness=late, seen=clock.seen)
    return replace(work, position=position), span.at(was.time, clock.time, was.seen), arrived


def _emitted(work: Work, span: Clocked) -> Stepped | None:
    """Append the records that a span adds to a stored stream. None: another run committed this step."""
    plan = work.target.plan
    work, span, arrived = _timed(work, span)
    if is_idle(plan, span):
        return positioned(work)
    batch = emitted(work.target, span, work.position.n)
    _check_types(work, span.own, batch)
    work, batch = kept(work, batch)
    done = _done(work, "stepped", commit.append(batch, work.path, work.position))
    return None if done is None else replace(done, arrived=arrived)


def stored(work: Work) -> DataFrame:
    """Return the rows, with all columns, of the stored table at the version that the try began with."""
    return version_of(work.session, work.path, work.before.version)


def put_right(work: Work, found: DataFrame) -> Stepped | None:
    """Make the table equal to `found`: merge the difference, or replace all rows where a MERGE cannot.

    A MERGE cannot if columns changed, or a key has several rows. None: another run committed first.
    """
    work, batch = kept(work, found)
    there, key = stored(work), identity(work.target.plan)
    if dict(there.dtypes) == dict(batch.dtypes) and twice(there, key).isEmpty():
        return merged(work, merge.difference(batch, there, key))
    return _done(work, "stepped", commit.replace_all(batch, work.path, work.position))


def twice(rows: DataFrame, key: tuple[str, ...]) -> DataFrame:
    """Return the keys (columns: `key`) that have more than one row, which a MERGE cannot tell apart."""
    counted = rows.groupBy(*cols(key)).agg(F.count(F.lit(1)).alias("_rows"))
    return counted.where("_rows > 1").select(*cols(key))


def merged(work: Work, source: DataFrame, keys: Sequence[Row] = ()) -> Stepped | None:
    """Merge one row per touched key into the table. None: another run committed this step."""
    source.createOrReplaceTempView("__source")
    schema = source.drop(PRESENT).schema
    statement = merge.statement(work.path, "__source", identity(work.target.plan), schema, keys)
    return _done(work, "stepped", commit.run(work.session, statement, work.path, work.position))


def kept(work: Work, batch: DataFrame, always: bool = False) -> tuple[Work, DataFrame]:
    """Return the work with the gate's result, and the batch to commit, cached if it is read before the commit.

    A gate reads it, or with `always` the caller does. The cache makes the rows that were read those that are committed.
    """
    if work.gate is None and not always:
        return work, batch
    rows_kept = work.keeps.keep(batch)
    if work.gate is not None:
        news = present(rows_kept) if PRESENT in rows_kept.columns else rows_kept
        known = work.position.gated or passed(work.gate, work.before.version)
        gated = work.gate(news, lambda: _behind(work, rows_kept), known)
        work = replace(work, position=replace(work.position, gated=gated))
    return work, rows_kept


def _behind(work: Work, batch: DataFrame) -> DataFrame:
    """Return all rows that the table has after the commit of a batch."""
    if work.position.whole:
        return batch
    if PRESENT not in batch.columns:
        return stored(work).unionByName(batch)
    key = identity(work.target.plan)
    untouched = stored(work).join(batch.select(*cols(key)), list(key), "left_anti")
    return untouched.unionByName(present(batch))


def _done(work: Work, outcome: Outcome, after: State | None) -> Stepped | None:
    if after is None:
        return None
    counted = after.metrics
    inserted = counted.get("numTargetRowsInserted", counted.get("numOutputRows", 0))
    return Stepped(
        work.position.table,
        outcome,
        work.before,
        after,
        touched=counted.get("numSourceRows", inserted),
        inserted=inserted,
        updated=counted.get("numTargetRowsUpdated", 0),
        deleted=counted.get("numTargetRowsDeleted", 0),
    )


def _check_types(work: Work, own: DataFrame, source: DataFrame) -> None:
    """Refuse rows whose types differ from the table's: Delta would cast them, and lose values that do not fit."""
    there, given = dict(own.dtypes), dict(source.drop(PRESENT).dtypes)
    if there == given:
        return
    name = work.position.table.replace("/", ".")
    other = [
        f"  {column}: {there.get(column)}, now {given.get(column)}"
        for column in there | given
        if there.get(column) != given.get(column)
    ]
    raise PlanChanged(
        "\n".join([f"{name} has other columns than its inputs now give it:", *other, f"run `tidetable rebuild {name}`"])
    )


def _past(here: Pins, pins: Pins) -> bool:
    """Return whether a table is ahead of its pins, as it is when the topology was limited after the table stepped.

    False if an input is another table by now: the two cannot be compared.
    """
    same = all(here.inputs.get(name, pinned).id == pinned.id for name, pinned in pins.inputs.items())
    return same and any(topic in pins.cut and before(pins.cut[topic], at) for topic, at in here.cut.items())


def _check_inputs(was: Position, will: Position) -> None:
    """Refuse to step from versions of an input that was recreated or restored."""
    for name, pinned in will.inputs.items():
        known = was.inputs.get(name)
        if known is None or known.id != pinned.id or known.version > pinned.version:
            raise InputChanged(
                f"{will.table} was computed from {name} ({known}), which is now {pinned}: it was dropped and made "
                f"anew, or restored. Run `tidetable rebuild {will.table.replace('/', '.')}`"
            )
