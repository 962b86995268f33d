"""Audit a version of a table: compare it with the query over exactly the input versions that its commit names."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from spark.engine.advance import identity
from spark.engine.attempt import duplicate_keys, table_errors
from spark.engine.errors import InputChanged
from spark.engine.inputs.frame_cache import frame_cache
from spark.engine.inputs.snapshot import DeltaSnapshot, version_of
from spark.engine.log import merge
from spark.engine.log.definition import added_columns
from spark.engine.log.stored_table import StoredTable
from spark.engine.ports import opened
from spark.engine.replay import after_span, replayed
from spark.operators.algebra import ALL, PRESENT, at_keys, rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import DataFrame

    from spark.engine.inputs.frame_cache import FrameCache
    from spark.engine.log.position import Position
    from spark.engine.log.stored_table import Commit
    from spark.engine.ports import Ports
    from spark.topology.nodes import Node
    from spark.topology.topology import Table, Topology

SAMPLE = 10  # differing rows that an audit shows
CREATED = "created the table, without rows"
CLEANED = "the log was cleaned up, and no longer has the commit"
FOREIGN = "made by maintenance or by somebody else: the commit has no position"
OTHER = "of another definition, or of an epoch before the present one"
UNDONE = "undone by a restore"
OLDER = "older than a version that cannot be computed again"


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


def audit(ports: Ports, topology: Topology, target: Table, version: int | None = None) -> Audited:
    """Compare a version (default: the newest) with the query over exactly the input versions that its commit names.

    A stream, windows, or a lookup-only join depend on the span: there the audit checks that the commit wrote the rows
    that the plan yields for the span that it names, at its stream time, and that no other row changed.

    Raises:
        PlanChanged: the table was computed by another definition than the one given.
        InputChanged: the version has no position, or an input is another table than it names.
        ChangesExpired: versions or changes of an input that the audit needs have expired.
    """
    began = time.monotonic()
    table = StoredTable.of(ports.lakehouse, topology.name, target.name)
    state = table.state()
    if state is None:
        raise InputChanged(f"{table.name} was never computed: run `tidetable run {topology.name}`")
    # Columns that it gains are null in the stored and in the computed rows.
    added_columns(ports.lakehouse, topology, target, state)
    audited = state.version if version is None else version
    if not 0 <= audited <= state.version:
        raise InputChanged(f"{table.name} has no version {audited}: its newest is {state.version}")
    commits = list(table.commits(until=audited))
    if not commits:
        raise InputChanged(f"{table.name} names no position at version {audited} or before: there is nothing to audit")
    with opened(ports.engine, topology.settings) as session:
        at = commits[0].position
        inputs = DeltaSnapshot(session, ports.lakehouse, topology.name, at.inputs, at.cut)
        ports.engine.plan_for(session, table.size() + inputs.size())
        stored = version_of(session, table.path, audited, target.plan)
        with table_errors(topology, target), frame_cache(session) as cache:
            expected = _expected(ports, cache, topology, target, table, commits)
            wrong = _wrong(expected, stored, target.plan)
            differing = wrong.count()
            sample = _sample(wrong, stored, identity(target.plan)) if differing > 0 else []
        seconds = time.monotonic() - began
        return Audited(table.name, audited, commits[0].position, stored.count(), differing, sample, seconds)


def audits(ports: Ports, topology: Topology, target: Table) -> Iterator[Audited | Unprovable]:
    """Audit every version that the log has, that our commits made, and that no restore undid; newest first.

    The first version whose inputs have expired ends the audit. A version that was computed whole does not, because it
    may need older inputs than the versions before it. Yields `Unprovable` for every version that was not audited.
    """
    table = StoredTable.of(ports.lakehouse, topology.name, target.name)
    yield (newest := audit(ports, topology, target))
    present = {commit.version: commit for commit in table.commits() if commit.version < newest.version}
    left = dict(present)
    for commit in present.values():
        del left[commit.version]
        try:
            yield audit(ports, topology, target, commit.version)
        except InputChanged as error:
            yield Unprovable(table.name, commit.version, str(error))
            if not commit.position.whole:
                break
    by_version, epoch = table.positions_by_version(), newest.position.app_id
    audited = present.keys() - left.keys()
    reasons = {n: _why(n, by_version, epoch, n in left) for n in range(newest.version) if n not in audited}
    for version, until, why in _runs(reasons):
        yield Unprovable(table.name, version, why, until)


def _why(version: int, by_version: Mapping[int, Position | None], epoch: str, is_older: bool) -> str:
    """Return why a version was not audited."""
    if is_older:
        return OLDER
    if version not in by_version:
        return CLEANED
    position = by_version[version]
    if version == 0:
        return CREATED
    if position is None:
        return FOREIGN
    return UNDONE if position.app_id == epoch and position.n > 0 else OTHER


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
    doubled = at_keys(expected, duplicate_keys(stored, key), key).withColumn(PRESENT, F.lit(True))
    return merge.difference(expected, stored, key, about=plan.aggregates).unionByName(doubled).dropDuplicates(list(key))


def _expected(
    ports: Ports, cache: FrameCache, topology: Topology, target: Table, table: StoredTable, commits: list[Commit]
) -> DataFrame:
    position = commits[0].position
    for name, pinned in position.inputs.items():
        state = StoredTable.of(ports.lakehouse, topology.name, name).state()
        if state is None or state.id != pinned.id:
            raise InputChanged(f"{name} is not the table that {table.name} was computed from")
    if target.plan.uses_stream_time and position.whole:
        return replayed(ports, cache, topology, target, table, commits)[0]
    if position.whole or not target.plan.depends_on_spans:
        inputs, cut, begun = position.inputs, position.cut, position.begun
        return rows(target.plan, ALL, DeltaSnapshot(cache.session, ports.lakehouse, topology.name, inputs, cut, begun))
    if len(commits) < 2:
        raise InputChanged(f"{table.name}: the log has no commit before this one, from which its span begins")
    earlier = commits[1]
    own = version_of(cache.session, table.path, earlier.version, target.plan)
    return after_span(ports, cache, topology, target, own, earlier.position, position)[0]


def _sample(wrong: DataFrame, stored: DataFrame, key: tuple[str, ...]) -> list[dict[str, object]]:
    """Return some of the keys that differ, each with the row that `should_be` stored and the row that `is`, as JSON."""
    should_be = F.when(F.col(PRESENT), F.to_json(F.struct(*wrong.drop(PRESENT).columns))).alias("should_be")
    is_there = stored.select(*key, F.to_json(F.struct(*stored.columns)).alias("is"))
    pairs = wrong.limit(SAMPLE).select(*key, should_be).join(is_there, list(key), "left_outer")
    return [row.asDict() for row in pairs.collect()]
