"""Audit a version of a table by computing it again, and rebuild a table by a step with every key."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from spark.engine import commit, merge, table
from spark.engine import position as positions
from spark.engine.changes import Pinned, version_of
from spark.engine.definition import agreed, check_landings, definition, gaining
from spark.engine.errors import ChangesExpired, InputChanged, NotCommitted, PlanChanged, PositionLost
from spark.engine.kept import keeping
from spark.engine.pin import pin
from spark.engine.position import Gap
from spark.engine.replay import behind, replayed
from spark.engine.step import (
    Stepped,
    begins,
    counting_all,
    expired,
    named,
    out,
    overtaken,
    passed,
    put_right,
    step,
    stored,
    twice,
    working,
)
from spark.engine.stream import identity
from spark.operators.algebra import ALL, PRESENT, at_keys, rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import DataFrame

    from spark.engine.doors import Doors
    from spark.engine.kept import Kept
    from spark.engine.position import Commit, Position, State
    from spark.engine.step import Gate, Work
    from spark.topology.nodes import Node
    from spark.topology.topology import Table, Topology

SAMPLE = 10  # differing rows that an audit shows
TRIES = 5  # lost races before a rebuild gives up
CREATED = "created the table, without rows"
CLEANED = "the log was cleaned up, and no longer tells of it"
FOREIGN = "made by maintenance or by somebody else: no position stands for it"
OTHER = "of another definition, or before the table was begun anew"
UNDONE = "undone by a restore"
OLDER = "older than a version that cannot be computed again"
EXPIRED = "no longer told how they changed it before they were stepped"


@dataclass(frozen=True)
class Audited:
    """The result of an audit: the rows of the version, and how many keys differ from the query at its position."""

    table: str
    version: int
    position: Position
    rows: int
    differing: int
    sample: list[dict[str, object]]
    """Some of the keys that differ, each with the row that `should_be` stored and the row that `is`, as JSON."""
    seconds: float

    @property
    def holds(self) -> bool:
        """Whether the version equals the query."""
        return self.differing == 0


@dataclass(frozen=True)
class Unprovable:
    """A version that was not audited, and why; or all versions from `version` to `until`."""

    table: str
    version: int
    why: str
    until: int | None = None


def audit(doors: Doors, topology: Topology, target: Table, version: int | None = None) -> Audited:
    """Compare a version (default: the newest) with the query over exactly the input versions that its commit names.

    A stream, windows, or a lookup-only join depend on the span: there the audit checks that the commit wrote the rows
    that the plan yields for the span that it names, at its stream time, and that no other row changed.

    Raises:
        PlanChanged: the table was computed by another definition than the one given.
        InputChanged: the version has no position, or an input is another table than it names.
        ChangesExpired: versions or changes of an input that the audit needs have expired.
    """
    began = time.monotonic()
    name, path = f"{topology.name}/{target.name}", doors.lakehouse.table(topology.name, target.name)
    state = positions.read(path, name)
    if state is None:
        raise InputChanged(f"{name} was never computed: run `tidetable run {topology.name}`")
    # Columns that it gains are null in the stored and in the computed rows.
    gaining(doors.lakehouse, topology, target, state)
    audited = state.version if version is None else version
    if not 0 <= audited <= state.version:
        raise InputChanged(f"{name} has no version {audited}: its newest is {state.version}")
    commits = list(positions.commits(path, name, until=audited))
    if not commits:
        raise InputChanged(f"{name} names no position at version {audited} or before: there is nothing to audit")
    session = doors.engine.session()
    try:
        session.conf.set("spark.sql.ansi.enabled", str(topology.settings.ansi).lower())
        stored = version_of(session, path, audited, target.plan)
        with named(topology, target), keeping(session) as keeps:
            expected = _expected(doors, keeps, topology, target, path, commits)
            wrong = _wrong(expected, stored, target.plan)
            differing = wrong.count()
            sample = _sample(wrong, stored, identity(target.plan)) if differing > 0 else []
        seconds = time.monotonic() - began
        return Audited(name, audited, commits[0].position, stored.count(), differing, sample, seconds)
    finally:
        session.stop()


def audits(doors: Doors, topology: Topology, target: Table) -> Iterator[Audited | Unprovable]:
    """Audit every version that the log has, that our commits made, and that no restore undid; newest first.

    The first version whose inputs have expired ends the audit. A version that was computed whole does not, because it
    may need older inputs than the versions before it. Yields `Unprovable` for every version that was not audited.
    """
    name, path = f"{topology.name}/{target.name}", doors.lakehouse.table(topology.name, target.name)
    yield (newest := audit(doors, topology, target))
    standing = {made.version: made for made in positions.commits(path, name) if made.version < newest.version}
    left = dict(standing)
    for made in standing.values():
        del left[made.version]
        try:
            yield audit(doors, topology, target, made.version)
        except InputChanged as error:
            yield Unprovable(name, made.version, str(error))
            if not made.position.whole:
                break
    told, epoch = positions.told(path, name), positions.app(newest.position)
    seen = standing.keys() - left.keys()
    reasons = {n: _why(n, told, epoch, n in left) for n in range(newest.version) if n not in seen}
    for version, until, why in _runs(reasons):
        yield Unprovable(name, version, why, until)


def _why(version: int, told: Mapping[int, Position | None], epoch: str, standing: bool) -> str:
    """Return why a version was not audited."""
    if standing:
        return OLDER
    if version not in told:
        return CLEANED
    position = told[version]
    if version == 0:
        return CREATED
    if position is None:
        return FOREIGN
    return UNDONE if positions.app(position) == epoch and position.n > 0 else OTHER


def _runs(reasons: Mapping[int, str]) -> list[tuple[int, int, str]]:
    """Return runs of consecutive versions with the same reason, as (first, last, reason); newest first."""
    found: list[tuple[int, int, str]] = []
    for version, why in reversed(list(reasons.items())):
        if found and (found[-1][0], found[-1][2]) == (version + 1, why):
            found[-1] = version, found[-1][1], why
        else:
            found.append((version, version, why))
    return found


def _wrong(expected: DataFrame, stored: DataFrame, plan: Node) -> DataFrame:
    """Return the keys at which the stored rows differ from the expected ones: the expected row, and `_present`.

    In aggregates doubles are compared with a tolerance, because a sum of them depends on the order of additions.
    """
    key = identity(plan)
    if plan.is_stream:  # rows have it only since another table first read the stream
        expected, stored = expected.drop("_reached"), stored.drop("_reached")
    doubled = at_keys(expected, twice(stored, key), key).withColumn(PRESENT, F.lit(True))
    return merge.difference(expected, stored, key, about=plan.aggregates).unionByName(doubled).dropDuplicates(list(key))


def _expected(
    doors: Doors,
    keeps: Kept,
    topology: Topology,
    target: Table,
    path: str,
    commits: list[Commit],
) -> DataFrame:
    at = commits[0].position
    for name, pinned in at.inputs.items():
        state = positions.read(doors.lakehouse.table(topology.name, name), f"{topology.name}/{name}")
        if state is None or state.id != pinned.id:
            raise InputChanged(f"{name} is not the table that {topology.name}/{target.name} was computed from")
    if target.plan.uses_stream_time and at.whole:
        return replayed(doors, keeps, topology, target, path, commits)[0]
    if at.whole or not target.plan.depends_on_spans:
        now = Pinned(keeps.session, doors.lakehouse, topology.name, at.inputs, at.cut, at.begun)
        return rows(target.plan, ALL, now)
    if len(commits) < 2:
        raise InputChanged(f"{topology.name}/{target.name}: the log holds no commit before this one to go on from")
    earlier = commits[1]
    was = version_of(keeps.session, path, earlier.version, target.plan)
    return behind(doors, keeps, topology, target, was, earlier.position, at)[0]


def _sample(wrong: DataFrame, stored: DataFrame, key: tuple[str, ...]) -> list[dict[str, object]]:
    """Return some of the keys that differ, each with the row that `should_be` stored and the row that `is`, as JSON."""
    should_be = F.when(F.col(PRESENT), F.to_json(F.struct(*wrong.drop(PRESENT).columns))).alias("should_be")
    is_there = stored.select(*key, F.to_json(F.struct(*stored.columns)).alias("is"))
    pairs = wrong.limit(SAMPLE).select(*key, should_be).join(is_there, list(key), "left_outer")
    return [row.asDict() for row in pairs.collect()]


def step_or_rebuild(doors: Doors, topology: Topology, target: Table, run: str, gate: Gate | None = None) -> Stepped:
    """Step a table; if changes of an input have expired, and `on_data_loss` is "ledger", rebuild it.

    The table then has the rows that it would have had, and its ledger names the versions whose changes it did not read.
    A stream, windows, and a lookup-only join depend on the changes themselves, and are not rebuilt.

    Raises:
        ChangesExpired: changes of an input have expired, and the table is not rebuilt.
    """
    try:
        return step(doors, topology, target, run, gate)
    except ChangesExpired:
        if topology.settings.on_data_loss == "fail" or target.plan.depends_on_spans:
            raise
        return rebuild(doors, topology, target, run, gate, unseen=True)


def rebuild(
    doors: Doors,
    topology: Topology,
    target: Table,
    run: str,
    gate: Gate | None = None,
    *,
    unseen: bool = False,
    from_rows: bool = False,
) -> Stepped:
    """Compute every key anew at the newest common cut, and merge what differs; also after a change of definition.

    A stored stream and windows are replayed, through the spans of their commits.

    If changes of the inputs have expired, so that the rows cannot be computed again, the rebuild fails, and the table
    does not change. With `from_rows` the table begins anew instead, and the rows of such inputs replace their changes.
    A table without rows begins so without `from_rows`.

    The change feed has only the difference, so tables that read this one step as usual. If the columns changed, all
    rows are replaced. The gate evaluates all rows. With `unseen`, the ledger gets the versions of the inputs between
    the table's position and its pins.

    Raises:
        InputChanged: an input was never computed.
        ChangesExpired: changes of an input that the rebuild needs have expired; the table's rows and definition did
            not change.
        NotCommitted: other runs committed first, `TRIES` times.
    """
    began = time.monotonic()
    name, path = f"{topology.name}/{target.name}", doors.lakehouse.table(topology.name, target.name)
    anew, gone = False, tuple[str, ...]()
    for _ in range(TRIES):
        state = _renewed(doors, topology, target, path, run, from_rows, anew)
        anew = False
        pins = pin(doors, topology, target)  # after the state: else a step in between could be ahead of the pins
        if not pins.inputs:
            raise InputChanged(
                f"{name}: {', '.join(pins.behind)} was never computed: run `tidetable run {topology.name}`"
            )
        try:
            with (
                named(topology, target),
                working(doors, topology, target, state, pins, run, gate, gone) as work,
            ):
                if overtaken(state, work) or not commit.alone(stored(work).where("false"), path, work.before):
                    continue
                gaps = (*work.position.gaps, *(_unseen(work) if unseen else ()))
                # A rebuild computes every row, so the gate evaluates every row.
                gated = None if gate is None else passed(gate, work.before.version)
                position = replace(work.position, whole=True, gaps=gaps, gated=gated)
                done = _rebuilt(doors, topology, replace(work, position=position))
        except ChangesExpired as error:
            if from_rows and state is not None and state.position.n > 0:
                anew = True
                continue
            if (from_rows or begins(state)) and (found := expired(doors, topology, target, pins)) != gone:
                gone = found
                continue
            raise _refused(topology, target, str(error).partition("\n")[0]) from error
        if done is not None:
            return replace(done, seconds=time.monotonic() - began)
    raise NotCommitted(f"{name}: {TRIES} times another run committed first; stop the ticks of {topology.name}")


def _unseen(work: Work) -> Iterator[Gap]:
    """Yield the versions of a table's inputs between its position and its pins, as gaps."""
    was, found = work.before.position.inputs, round(time.time() * 1000)
    for name, pinned in work.position.inputs.items():
        if name in was and was[name].version < pinned.version:
            yield Gap(name, None, was[name].version + 1, pinned.version, EXPIRED, found)


def _rebuilt(doors: Doors, topology: Topology, work: Work) -> Stepped | None:
    if work.target.plan.uses_stream_time:
        return _replayed(doors, topology, work)
    return put_right(counting_all(work), rows(work.target.plan, ALL, work.now))


def _replayed(doors: Doors, topology: Topology, work: Work) -> Stepped | None:
    """Rebuild a table that keeps stream time, through the spans of its commits; in one span if it has no commits.

    A table has no commits in a new epoch, as after a change of definition.
    """
    commits = list(positions.commits(work.path, work.position.table))
    if commits:
        newest = commits[0].position
        found, clock = replayed(doors, work.keeps, topology, work.target, work.path, commits)
        at = replace(work.position, inputs=newest.inputs, cut=newest.cut)
    else:
        nothing = stored(work).where("false")
        at = work.position
        found, clock = behind(doors, work.keeps, topology, work.target, nothing, None, at)
    position = replace(at, time=clock.time, dropped=clock.dropped, seen=clock.seen)
    return put_right(replace(work, position=position), found)


def _refused(topology: Topology, target: Table, why: str) -> ChangesExpired:
    return ChangesExpired(f"{topology.name}.{target.name} cannot be computed again: {why}\n{out(topology, target)}")


def _renewed(
    doors: Doors, topology: Topology, target: Table, path: str, run: str, from_rows: bool, anew: bool
) -> State | None:
    """Return the state to rebuild from, in a new epoch if the definition or an input changed, or the position is lost.

    In a new epoch the spans of the old one cannot be replayed. So if changes of the inputs have expired, an epoch
    begins only with `from_rows`; without it the rebuild fails before anything is lost. `anew` always begins an epoch.
    """
    name = f"{topology.name}/{target.name}"
    state, agrees = None, False
    try:
        state = positions.read(path, name)
        if state is None:
            return None
        state, agrees = agreed(doors, topology, target, state, run), True
    except (PositionLost, PlanChanged):
        check_landings(doors.lakehouse, topology, target)
    if agrees and state is not None and not anew and not _others(doors, topology, target, state, from_rows):
        if not from_rows or state.position.n == 0 or not _gone(doors, topology, target, state.position.begun):
            return state
    elif not from_rows and (state is None or not begins(state)) and (gone := _gone(doors, topology, target)):
        raise _refused(topology, target, f"{', '.join(gone)} no longer tells all of its changes")
    _new_epoch(doors, path, name, run, definition(topology, target))
    return positions.read(path, name)


def _gone(doors: Doors, topology: Topology, target: Table, begun: Mapping[str, int] | None = None) -> tuple[str, ...]:
    """Return the inputs whose changes the table reads, and whose changes have expired."""
    return expired(doors, topology, target, pin(doors, topology, target), begun) if target.plan.changelogs else ()


def _others(doors: Doors, topology: Topology, target: Table, state: State, from_rows: bool) -> bool:
    """Return whether a replay cannot go through the inputs, because one of them changed other than by steps.

    It was recreated; or it is a stream that was computed anew by another definition, or changed by somebody else; or a
    table that was replaced, where its change feed ends.
    """
    for scan in target.inputs if target.plan.uses_stream_time or target.plan.changelogs else ():
        name, path = f"{topology.name}/{scan.table}", doors.lakehouse.table(topology.name, scan.table)
        pinned, now = state.position.inputs.get(scan.table), positions.read(path, name)
        if pinned is None or now is None:
            continue
        if now.id != pinned.id or now.version < pinned.version:
            return True
        if target.plan.uses_stream_time and (scan.appended or scan in target.plan.drivers):
            try:
                told = positions.changed(path, name, pinned.version, now.version)
            except ChangesExpired as error:
                if from_rows:
                    return True
                raise _refused(topology, target, str(error)) from error
            for one in told:
                if one.replaced or (scan.appended and (one.position is None or one.position.n == 1)):
                    return True
    return False


def _new_epoch(doors: Doors, path: str, name: str, run: str, given: str) -> None:
    """Close the old epoch, so that none of its writers can commit, and anchor a new one.

    Raises:
        NotCommitted: other runs committed first, `TRIES` times.
    """
    old = positions.salvage(path, name).position
    session = doors.engine.session()
    try:
        nothing = session.read.format("delta").load(path).where("false")
        if not any(commit.retire(nothing, path, old) for _ in range(TRIES)):
            raise NotCommitted(f"{name}: {TRIES} times another run committed first; stop the ticks of its topology")
        now = positions.salvage(path, name)
        if now.position.epoch == old.epoch:  # else another rebuild has anchored a new one meanwhile
            begun = table.unpositioned(name, table.new_epoch(), run)
            fresh = replace(begun, data_version=now.data_version, gaps=old.gaps)
            with commit.races():  # another rebuild may anchor at the same time: its epoch serves as well
                table.anchor(session, path, fresh, given)
    finally:
        session.stop()
