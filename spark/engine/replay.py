"""Replay: compute a table whose rows depend on its spans again, through the spans that its commits name."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from spark.engine.advance import advance
from spark.engine.errors import ChangesExpired
from spark.engine.inputs.snapshot import DeltaSnapshot, version_of
from spark.engine.inputs.span import IncrementalSpan, InitialSpan
from spark.engine.inputs.stream_time import Clock

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from spark.engine.inputs.frame_cache import FrameCache
    from spark.engine.log.position import Position
    from spark.engine.log.stored_table import Commit, StoredTable
    from spark.engine.ports import Ports
    from spark.topology.topology import Table, Topology


SPANS = 50
"""Spans in one query: each adds a union to it, and Spark Connect limits how deep they nest
(`spark.connect.grpc.marshallerRecursionLimit`)."""


def replayed(
    ports: Ports, cache: FrameCache, topology: Topology, target: Table, table: StoredTable, commits: list[Commit]
) -> tuple[DataFrame, Clock]:
    """Return the rows and the clock of a table that uses stream time, after the spans of all `commits` (newest first).

    The frame has the columns of the stored table.

    Raises:
        ChangesExpired: the log was cleaned up, and the first spans are no longer in it.
    """
    if commits[-1].position.n != 1:
        raise ChangesExpired(
            f"{table.name}: its log was cleaned up and begins with number {commits[-1].position.n}; "
            f"the spans before it cannot be replayed"
        )
    rows = version_of(cache.session, table.path, commits[-1].version, target.plan).where("false")
    clock, was = Clock(), None
    spans, cached = 0, len(cache.frames)
    for commit in reversed(commits):
        position = commit.position
        if was is None or (was.inputs, was.cut) != (position.inputs, position.cut):
            rows, clock = after_span(ports, cache, topology, target, rows, was, position, clock)
            spans += 1
            if spans % SPANS == 0:
                rows = cache.replace(rows, cached)
        was = position
    return rows, clock


def after_span(
    ports: Ports,
    cache: FrameCache,
    topology: Topology,
    target: Table,
    own: DataFrame,
    was: Position | None,
    position: Position,
    clock: Clock | None = None,
) -> tuple[DataFrame, Clock]:
    """Return a table's rows and clock after the span from one position (None: from nothing) to a later one.

    The frame has the columns of `own`, the table's rows at the first position.
    """
    span = span_between(ports, cache, topology, own, was, position)
    if clock is None:
        clock = Clock() if was is None else Clock(was.time, was.dropped, was.seen)
    advanced = advance(topology, target, span, clock, position.n)
    output = advanced.output
    if output.frame is not None:
        output = replace(output, frame=cache.cache(output.frame))
    return output.applied(own, target.plan), advanced.clock


def span_between(
    ports: Ports, cache: FrameCache, topology: Topology, own: DataFrame, was: Position | None, position: Position
) -> IncrementalSpan | InitialSpan:
    """Return the span from one position (None: from nothing) to a later one; `own` has the rows at the first."""

    def at(one: Position) -> DeltaSnapshot:
        return DeltaSnapshot(cache.session, ports.lakehouse, topology.name, one.inputs, one.cut, one.begun)

    if was is None:
        return InitialSpan(at(position), own)
    return IncrementalSpan(at(was), at(position), cache, own)
