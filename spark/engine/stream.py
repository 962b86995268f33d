"""Steps of stored streams and of tables of windows: what an operator emits for the span that its commit names.

Every position has the stream time, even if the step emitted nothing, so a record that is late is late after a restart
too. Emitted records do not change. They are computed again only by a replay of the same spans.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Protocol, Self

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark.operators.algebra import IDENTITY, STREAMED, Snapshot, Span, cols, dropped, emit
from spark.operators.order import arrivals, micros, stream_time
from spark.topology.nodes import Aggregate, Latest, StreamJoin

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from spark.topology.nodes import Node, Scan
    from spark.topology.topology import Table, Topology


class Timed(Snapshot, Protocol):
    """A snapshot that knows the stream time of every stream."""

    def time(self, scan: Scan) -> int | None:
        """Return the stream time of a stored table, in microseconds; it may exceed the newest record's timestamp."""


class Clocked(Span, Protocol):
    """A span to which stream time can be added."""

    @property
    def after(self) -> Timed:
        """Every input at the later position of the span."""

    def at(self, time_before: int | None, time_after: int | None = None, seen: Mapping[str, int] | None = None) -> Self:
        """Return the span with its stream times, in microseconds since 1970; `seen` is `Clock.seen` at its start."""


@dataclass(frozen=True)
class Clock:
    """Stream time in microseconds since 1970, and how many records were dropped so far, by reason.

    `seen` has, by landing, the greatest timestamp so far of each versioned table that is looked up, in microseconds.
    """

    time: int | None = None
    dropped: dict[str, int] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Arrived:
    """The number of records that arrived at an operator in a span, and their lateness in milliseconds."""

    records: int = 0
    lateness_avg: float = 0.0
    lateness_max: float = 0.0


def identity(plan: Node) -> tuple[str, ...]:
    """Return the columns that identify a row of a stored table: its key, or a stream's coordinates."""
    return IDENTITY if plan.is_stream else plan.key


def clocked(plan: Node, span: Clocked, was: Clock) -> tuple[Clock, Arrived]:
    """Return the clock at the end of a span that begins at `was`, and the records that arrived in it."""
    begun = span.at(was.time)
    moved = [scan for scan in plan.drivers if span.has_changes(scan)]
    # A stored stream's time advances even if a filter removed the record. The stream time of a table is not used for
    # its changes: rows that waited for stream time to close their windows would all be late.
    times = [was.time, *(span.after.time(scan) for scan in plan.drivers if scan.appended)]
    told = [arrivals(span.records(scan), begun) for scan in moved]
    told += [_seen(scan, span) for scan in plan.versioned_lookups if span.has_changes(scan)]
    if not told:
        return Clock(_latest(times), was.dropped, was.seen), Arrived()
    refused = dropped(plan, begun) if moved else None
    if refused is not None:
        told.append(refused.groupBy(F.col("_reason").alias("what")).agg(F.count(F.lit(1)).alias("records")))
    counted = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), told).collect()
    arrived = [row for row in counted if row["what"] is None]
    reasons = {row["what"]: row["records"] for row in counted if row["what"] is not None and row["records"] is not None}
    times_seen = {row["what"]: row["time"] for row in counted if row["records"] is None and row["time"] is not None}
    time = _latest([*times, *(row["time"] for row in arrived)])
    count = sum(row["records"] for row in arrived)
    behind = sum(row["lateness"] for row in arrived)
    here = Arrived(
        count, behind / count / 1000 if count else 0.0, max((row["latest"] for row in arrived), default=0) / 1000
    )
    total = {reason: was.dropped.get(reason, 0) + reasons.get(reason, 0) for reason in was.dropped | reasons}
    seen = was.seen | {name: max(at, was.seen.get(name, at)) for name, at in times_seen.items()}
    return Clock(time, total, seen), here


def drops(topology: Topology, plan: Node) -> bool:
    """Return whether a table without stream time may leave out records of a stream: those without a key or value.

    The table of a topic leaves none out: its landing has records without a key in quarantine.
    """
    if plan.uses_stream_time:
        return False
    if isinstance(plan, Aggregate) and plan.source.is_stream:
        return True
    if isinstance(plan, Latest):
        streams = {source.landing for source in topology.sources if source.kind == "stream"}
        return any(not scan.landing or scan.table in streams for scan in plan.scans)
    return any(drops(topology, source) for source in plan.sources)


def left_out(plan: Node, span: Span, so_far: dict[str, int]) -> dict[str, int]:
    """Return how many records such a table has left out by the end of a span, by reason: `so_far`, and in the span."""
    refused = dropped(plan, span)
    if refused is None:
        return so_far
    found = refused.dropDuplicates([*IDENTITY, "_reason"]).groupBy("_reason").agg(F.count(F.lit(1)).alias("records"))
    here = {row["_reason"]: row["records"] for row in found.collect()}
    return {reason: so_far.get(reason, 0) + here.get(reason, 0) for reason in so_far | here}


def _seen(scan: Scan, span: Span) -> DataFrame:
    """Return one row: `what`, the landing of a versioned table; `time`, its greatest in the span; null `records`."""
    keyed = span.records(scan).where(" AND ".join(f"`{name}` IS NOT NULL" for name in scan.key))
    no_number = F.lit(None).cast("bigint").alias("records")
    return keyed.agg(F.lit(scan.table).alias("what"), F.max(micros()).alias("time"), no_number)


def _latest(times: Iterable[int | None]) -> int | None:
    return max((time for time in times if time is not None), default=None)


def emitted(table: Table, span: Span, batch: int) -> DataFrame:
    """Return the rows that a span adds to a stored stream: the plan's columns, `STREAMED`, and `_reached`.

    A stream join has `_left` and `_right` too. `_reached`, the stream time at a record in microseconds since 1970, is
    null unless another table reads the stream.
    """
    plan = table.plan
    found = emit(plan, span)
    reached = stream_time(span) if table.followed else F.lit(None).cast("bigint")
    sides = ("_left", "_right") if isinstance(plan, StreamJoin) else ()
    placed = found.withColumns({"_reached": reached, "_batch": F.lit(batch).cast("bigint")})
    return placed.select(*cols(column.name for column in plan.columns), *cols((*STREAMED, "_reached", *sides)))
