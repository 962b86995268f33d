"""Bring one table from its position to a pinned one: which keys, which rows, one commit."""

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
from spark.operators.window import begun
from spark.topology.nodes import Window

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, Row, SparkSession

    from spark.engine.doors import Doors
    from spark.engine.position import Position, State
    from spark.operators.algebra import Span
    from spark.topology.nodes import Scan
    from spark.topology.topology import Table, Topology

TRIES = 5  # lost races before a step gives up; each one means that another run did make a step

CAUSE = re.compile(r"^Caused by: \S+: (.*? SQLSTATE: (\w{5}))$", re.DOTALL | re.MULTILINE)
FAULTY = ("22", "42", "P0")  # SQL states: data that an expression fails on, expressions that mean nothing, raise_error

CHANGES_LOST = (  # Delta's error classes for a change feed that was cleaned away
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
"""Rows and position committed; only the position; nothing to do; an input is behind."""


class Gate(Protocol):
    """Looks at the rows about to be merged, and raises if they must not be published.

    Rows that were there before the gate was, or before it changed, it looks at once.
    """

    @property
    def digest(self) -> str:
        """Tells what the gate asks of rows from what any other does."""

    def __call__(self, batch: DataFrame, table: Callable[[], DataFrame], known: Gated) -> Gated:
        """`batch` holds the new rows at touched keys, `table` makes a frame of all rows as they will be then.

        What was `known` to fail of the table so far, no step can be refused for. What it says of the table with the
        new rows is kept with them.
        """

    def look(self, rows: DataFrame) -> dict[str, int | None]:
        """How many of a table's rows fail, by expectation (None: it is not about single rows); they stay."""


@dataclass(frozen=True)
class Stepped:
    """What a step did: the table's state before and after it, and how many keys it touched and rows it changed."""

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
    """Of a stored stream, or windows: what came, and how late; what it dropped so far is in the position."""

    @property
    def begun(self) -> dict[str, int]:
        """By input, the version whose rows stand for its older changes since this step: those were gone."""
        if self.after is None or self.after.position.n > 1 or self.outcome in ("idle", "waiting"):
            return {}
        return self.after.position.begun


@dataclass(frozen=True)
class Work:
    """One try at one table: where it is, what it was, and what it shall be computed from."""

    session: SparkSession
    target: Table
    path: str
    before: State
    position: Position
    now: Pinned
    keeps: Kept
    gate: Gate | None
    drops: bool = False
    """Whether the table keeps no time, and may leave records of a stream out."""


def step(doors: Doors, topology: Topology, target: Table, run: str, gate: Gate | None = None) -> Stepped:
    """Bring a table to the newest cut that all its inputs reached.

    A step that finds nothing new commits nothing and starts no Spark. Where a table reads all changes of an input, and
    the input no longer tells them all, the first step begins with the input's rows.

    Raises:
        PlanChanged: the table was computed by another definition; a rebuild is needed.
        InputChanged: an input is not the table that the position names.
        ChangesExpired: an input no longer tells how it changed.
        ExpressionFailed: an expression of the topology failed.
        NotCommitted: other runs kept stepping first.
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
    """Spark's errors that are the topology's, or an input's, by the name of the table they stopped."""
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
    """What Spark says of an expression that failed; empty where something else did."""
    told, said = condition(error), str(error).partition("\n\nJVM stacktrace:")[0]
    # A task that fails while it writes wraps what happened in an error of its own, about the write.
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
    """An engine session for one try, and what it needs; the table is created if it is not there yet.

    Of the inputs whose changes are `gone`, the rows stand for all changes so far.
    """
    path = doors.lakehouse.table(topology.name, target.name)
    if state is None:
        check_landings(doors.lakehouse, topology, target)
    session = doors.engine.session()
    try:
        session.conf.set("spark.sql.ansi.enabled", str(topology.settings.ansi).lower())
        begun_at = {name: pins.inputs[name].version for name in gone}
        if state is not None and state.position.n > 0:  # where it began is settled
            begun_at = state.position.begun
        now = Pinned(session, doors.lakehouse, topology.name, pins.inputs, pins.cut, begun_at)
        if state is None:
            beginning = Beginning(now, own=now.session.range(0).toDF("_"))
            if target.plan.is_stream:
                schema = emitted(target, beginning, 0).schema
            elif isinstance(target.plan, Window):
                schema = begun(target.plan, beginning).schema
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
    """Whether a table holds nothing yet: also nothing that a rebuild which died would have replaced."""
    return state is None or (state.position.n == 0 and state.data_version == 0)


def expired(
    doors: Doors, topology: Topology, target: Table, pins: Pins, begun: Mapping[str, int] | None = None
) -> tuple[str, ...]:
    """Of the tables that a table reads all changes of, those that no longer tell them, since they `begun`."""
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
    """What helps a table whose inputs no longer tell what it needs of them."""
    name = f"{topology.name}.{target.name}"
    if not target.plan.keeps_time and not target.plan.changelogs:
        return f"run `tidetable rebuild {name}`"
    return (
        f"Its rows stay as they are. To give up what it holds of what is gone, and begin anew with the rows that its "
        f"inputs have now, run `tidetable rebuild {name} --from-rows`"
    )


def _gated(state: State, gate: Gate | None) -> Gated | None:
    """What a gate says of a table's rows so far; None where there is no gate, or it has not seen them.

    What somebody else wrote, it has not seen.
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
    """What a gate says that every row passes."""
    return Gated(gate.digest, version, {})


def _unseen(gate: Gate | None, state: State | None) -> bool:
    """Whether a table has rows that its gate has not seen."""
    return gate is not None and state is not None and state.position.n > 0 and _gated(state, gate) is None


def looked(work: Work, again: bool = False) -> Work:
    """Show the gate the rows that are there, unless it saw them; `again` even then."""
    if work.gate is None or not (again or work.position.gated is None):
        return work
    seen = Gated(work.gate.digest, work.before.version, work.gate.look(stored(work)))
    return replace(work, position=replace(work.position, gated=seen))


def positioned(work: Work) -> Stepped | None:
    """Commit the position alone. None: somebody else made this step."""
    return _done(work, "positioned", commit.append(stored(work).where("false"), work.path, work.position))


def overtaken(state: State | None, work: Work) -> bool:
    """Whether a table that was not there has been computed meanwhile, maybe further than our pins."""
    return state is None and work.before.position.n > 0


def _advanced(work: Work) -> Stepped | None:
    """Replace the touched keys. None: somebody else made this step."""
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
    # Few changes may touch many keys: a renamed customer's orders. Up to a thousand become literals.
    keys = batch.select(*cols(work.target.plan.key)).limit(merge.LITERALS + 1).collect()
    if len(keys) <= merge.LITERALS:
        return merged(work, F.broadcast(batch), keys)
    return merged(work, F.broadcast(batch) if batch.count() <= FEW else batch)


def _computed(work: Work) -> Stepped | None:
    """Compute every key of a table that no commit of ours has filled. None: somebody else did."""
    whole = replace(work, position=replace(work.position, whole=True))
    plan, arrived = work.target.plan, None
    if plan.is_stream or isinstance(plan, Window):
        whole, span, arrived = _timed(whole, Beginning(work.now, own=stored(work).where("false")))
        found = begun(plan, span) if isinstance(plan, Window) else emitted(work.target, span, whole.position.n)
    else:
        found, whole = rows(plan, ALL, work.now), counting_all(whole)
    if work.before.data_version == 0:
        _check_types(work, stored(work), found)
        whole, batch = kept(whole, found)
        done = _done(whole, "stepped", commit.append(batch, work.path, whole.position))
    else:  # a rebuild died behind its anchor: the rows of before it are there
        done = put_right(whole, found)
    return None if done is None else replace(done, arrived=arrived)


def counting(work: Work, span: Span, so_far: dict[str, int]) -> Work:
    """With the records that a table left out in a span in its position, behind those so far."""
    if not work.drops:
        return work
    return replace(work, position=replace(work.position, dropped=left_out(work.target.plan, span, so_far)))


def counting_all(work: Work) -> Work:
    """The same, counted from nothing: of a table that is computed whole."""
    return counting(work, Beginning(work.now, own=stored(work).where("false")), {})


def _timed(work: Work, span: Timed) -> tuple[Work, Timed, Arrived]:
    """A span between its two stream times, with the later one, and what was dropped, in the position; what arrived."""
    was = Clock(work.position.time, work.position.dropped, work.position.seen)
    clock, arrived = clocked(work.target.plan, span, was)
    late = {"avg": arrived.lateness_avg, "max": arrived.lateness_max} if arrived.records else work.position.lateness
    position = replace(work.position, time=clock.time, dropped=clock.dropped, lateness=late, seen=clock.seen)
    return replace(work, position=position), span.at(was.time, clock.time, was.seen), arrived


def _emitted(work: Work, span: Clocked) -> Stepped | None:
    """Append what a span adds to a stored stream. None: somebody else made this step."""
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
    """The table's own rows, as they were when the try began."""
    return version_of(work.session, work.path, work.before.version)


def put_right(work: Work, found: DataFrame) -> Stepped | None:
    """Make a table what it should be: merge the difference, or replace what no MERGE can put right.

    None: somebody else committed first.
    """
    work, batch = kept(work, found)
    there, key = stored(work), identity(work.target.plan)
    if dict(there.dtypes) == dict(batch.dtypes) and twice(there, key).isEmpty():
        return merged(work, merge.difference(batch, there, key))
    return _done(work, "stepped", commit.replace_all(batch, work.path, work.position))


def twice(rows: DataFrame, key: tuple[str, ...]) -> DataFrame:
    """The keys that have more than one row, which no MERGE can take apart."""
    counted = rows.groupBy(*cols(key)).agg(F.count(F.lit(1)).alias("_rows"))
    return counted.where("_rows > 1").select(*cols(key))


def merged(work: Work, source: DataFrame, keys: Sequence[Row] = ()) -> Stepped | None:
    """Merge one row per touched key into the table. None: somebody else made this step."""
    source.createOrReplaceTempView("__source")
    schema = source.drop(PRESENT).schema
    statement = merge.statement(work.path, "__source", identity(work.target.plan), schema, keys)
    return _done(work, "stepped", commit.run(work.session, statement, work.path, work.position))


def kept(work: Work, batch: DataFrame, always: bool = False) -> tuple[Work, DataFrame]:
    """What is about to be committed, computed once if it is looked at before: by a gate, or for its keys.

    What was looked at is what is committed, with what the gate says of it.
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
    """All rows that a table has behind the commit of a batch."""
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
    """Refuse to merge what has other types than the table: Delta would cast it, and lose what does not fit."""
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
    """Whether a table is further than what steps may take, as it is where that was limited after it stepped.

    Of inputs that are others by now nothing of the kind can be said.
    """
    same = all(here.inputs.get(name, pinned).id == pinned.id for name, pinned in pins.inputs.items())
    return same and any(topic in pins.cut and before(pins.cut[topic], at) for topic, at in here.cut.items())


def _check_inputs(was: Position, will: Position) -> None:
    """Refuse to go on from versions of a table that is no longer there."""
    for name, pinned in will.inputs.items():
        known = was.inputs.get(name)
        if known is None or known.id != pinned.id or known.version > pinned.version:
            raise InputChanged(
                f"{will.table} was computed from {name} ({known}), which is now {pinned}: it was dropped and made "
                f"anew, or restored. Run `tidetable rebuild {will.table.replace('/', '.')}`"
            )
