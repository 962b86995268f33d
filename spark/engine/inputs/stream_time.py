"""The clock of a stored table: its stream time, and how many records it dropped, at the end of a span.

Every position of a stored stream, or of a table of windows, has the stream time, even if the step added no record. So a
record that is late is late after a restart too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Protocol, Self

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark.operators.algebra import IDENTITY, Snapshot, Span, dropped
from spark.operators.order import arrivals, micros

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from spark.topology.nodes import Node, Scan


class TimedSnapshot(Snapshot, Protocol):
    """A snapshot that knows the stream time of every stream."""

    def time(self, scan: Scan) -> int | None:
        """Return the stream time of a stored table, in microseconds; it may exceed the newest record's timestamp."""


class TimedSpan(Span, Protocol):
    """A span to which stream time can be added."""

    @property
    def after(self) -> TimedSnapshot:
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


def advance_clock(plan: Node, span: TimedSpan, was: Clock) -> tuple[Clock, Arrived]:
    """Return the clock at the end of a span that begins at `was`, and the records that arrived in it."""
    timed = span.at(was.time)
    changed = [scan for scan in plan.drivers if span.has_changes(scan)]
    # A stored stream's time advances even if a filter removed the record. The stream time of a table is not used for
    # its changes: rows that waited for stream time to close their windows would all be late.
    times = [was.time, *(span.after.time(scan) for scan in plan.drivers if scan.appended)]
    counts = [arrivals(span.records(scan), timed) for scan in changed]
    counts += [_newest(scan, span) for scan in plan.versioned_lookups if span.has_changes(scan)]
    if not counts:
        return Clock(_latest(times), was.dropped, was.seen), Arrived()
    refused = dropped(plan, timed) if changed else None
    if refused is not None:
        counts.append(refused.groupBy(F.col("_reason").alias("what")).agg(F.count(F.lit(1)).alias("records")))
    rows = reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), counts).collect()
    arrived = [row for row in rows if row["what"] is None]
    reasons = {row["what"]: row["records"] for row in rows if row["what"] is not None and row["records"] is not None}
    newest = {row["what"]: row["time"] for row in rows if row["records"] is None and row["time"] is not None}
    time = _latest([*times, *(row["time"] for row in arrived)])
    count = sum(row["records"] for row in arrived)
    lateness = sum(row["lateness"] for row in arrived)
    arrivals_here = Arrived(
        count, lateness / count / 1000 if count else 0.0, max((row["latest"] for row in arrived), default=0) / 1000
    )
    total = {reason: was.dropped.get(reason, 0) + reasons.get(reason, 0) for reason in was.dropped | reasons}
    seen = was.seen | {name: max(at, was.seen.get(name, at)) for name, at in newest.items()}
    return Clock(time, total, seen), arrivals_here


def count_dropped(plan: Node, span: Span, so_far: dict[str, int]) -> dict[str, int]:
    """Return how many records a plan without stream time dropped by the end of a span, by reason.

    `so_far` has those dropped before the span.
    """
    refused = dropped(plan, span)
    if refused is None:
        return so_far
    records = refused.dropDuplicates([*IDENTITY, "_reason"]).groupBy("_reason").agg(F.count(F.lit(1)).alias("records"))
    counts = {row["_reason"]: row["records"] for row in records.collect()}
    return {reason: so_far.get(reason, 0) + counts.get(reason, 0) for reason in so_far | counts}


def _newest(scan: Scan, span: Span) -> DataFrame:
    """Return one row: `what`, the landing of a versioned table; `time`, its greatest in the span; null `records`."""
    keyed = span.records(scan).where(" AND ".join(f"`{name}` IS NOT NULL" for name in scan.key))
    no_number = F.lit(None).cast("bigint").alias("records")
    return keyed.agg(F.lit(scan.table).alias("what"), F.max(micros()).alias("time"), no_number)


def _latest(times: Iterable[int | None]) -> int | None:
    return max((time for time in times if time is not None), default=None)
