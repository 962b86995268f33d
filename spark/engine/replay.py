"""Replay: compute a table whose rows depend on its spans again, through the spans that its commits name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark.engine.changes import Beginning, Between, Pinned, version_of
from spark.engine.errors import ChangesExpired
from spark.engine.stream import Clock, clocked, emitted
from spark.operators.algebra import is_idle, present, touched

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from spark.engine.doors import Doors
    from spark.engine.kept import Kept
    from spark.engine.position import Commit, Position
    from spark.topology.topology import Table, Topology


SPANS = 50
"""Spans in one query: each adds a union to it, and Spark Connect limits how deep they nest
(`spark.connect.grpc.marshallerRecursionLimit`)."""


def replayed(
    doors: Doors, keeps: Kept, topology: Topology, target: Table, path: str, commits: list[Commit]
) -> tuple[DataFrame, Clock]:
    """Return the rows and the clock of a table that keeps time, after the spans of all `commits` (newest first).

    The frame has the columns of the stored table.

    Raises:
        ChangesExpired: the log was cleaned up, and the first spans are no longer in it.
    """
    if commits[-1].position.n != 1:
        raise ChangesExpired(
            f"{topology.name}/{target.name}: its log was cleaned up and begins with number {commits[-1].position.n}; "
            f"the spans before it cannot be replayed"
        )
    nothing = version_of(keeps.session, path, commits[-1].version, target.plan).where("false")
    found, clock, was = nothing, Clock(), None
    spans, kept = 0, len(keeps.frames)
    for made in reversed(commits):
        at = made.position
        if was is None or (was.inputs, was.cut) != (at.inputs, at.cut):
            found, clock = behind(doors, keeps, topology, target, found, was, at, clock)
            spans += 1
            if spans % SPANS == 0:
                found = keeps.keep_instead(found, kept)
        was = at
    return found, clock


def behind(
    doors: Doors,
    keeps: Kept,
    topology: Topology,
    target: Table,
    own: DataFrame,
    was: Position | None,
    at: Position,
    clock: Clock | None = None,
) -> tuple[DataFrame, Clock]:
    """Return a table's rows and clock after the span from one position (None: from nothing) to a later one.

    The frame has the columns of `own`, the table's rows at the first position.
    """
    span = span_between(doors, keeps, topology, own, was, at)
    begun = clock if clock is not None else Clock() if was is None else Clock(was.time, was.dropped, was.seen)
    plan = target.plan
    ended = clocked(plan, span, begun)[0] if plan.uses_stream_time else begun
    span = span.at(begun.time, ended.time, begun.seen)
    if plan.is_stream:
        if is_idle(plan, span):
            return own, ended
        return own.unionByName(keeps.keep(emitted(target, span, at.n))), ended
    written = touched(plan, span)
    if written is None:
        return own, ended
    written = keeps.keep(written)
    return own.join(written, list(plan.key), "left_anti").unionByName(present(written)), ended


def span_between(
    doors: Doors, keeps: Kept, topology: Topology, own: DataFrame, was: Position | None, at: Position
) -> Between | Beginning:
    """Return the span from one position (None: from nothing) to a later one; `own` has the rows at the first."""
    now = Pinned(keeps.session, doors.lakehouse, topology.name, at.inputs, at.cut, at.begun)
    if was is None:
        return Beginning(now, own)
    before = Pinned(keeps.session, doors.lakehouse, topology.name, was.inputs, was.cut, was.begun)
    return Between(before, now, keeps, own)
