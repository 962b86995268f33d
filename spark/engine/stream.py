"""A step of a stored stream, or of a table of windows: what an operator yields for the span that its commit names.

Stream time goes from commit to commit in the position, also where nothing is emitted: a record that comes late after a
restart is late still. What was emitted stays; nothing is ever computed again but by replaying the same spans.
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
    """A snapshot in which every stream has one time."""

    def time(self, scan: Scan) -> int | None:
        """The stream time that what is stored had, which may be ahead of its newest record's."""


class Clocked(Span, Protocol):
    """A span that can be told stream time."""

    @property
    def after(self) -> Timed:
        """Every input at the later position."""

    def at(self, time_before: int | None, time_after: int | None = None, seen: Mapping[str, int] | None = None) -> Self:
        """The same span between two stream times; `seen` is what its versioned tables had seen when it began."""


@dataclass(frozen=True)
class Clock:
    """Stream time in microseconds, and how many records were dropped so far, by reason.

    And, by landing, the greatest timestamp so far of the records of the versioned tables that are looked up.
    """

    time: int | None = None
    dropped: dict[str, int] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Arrived:
    """What a span brought to an operator: records, and by how many milliseconds they were behind stream time."""

    records: int = 0
    lateness_avg: float = 0.0
    lateness_max: float = 0.0


def identity(plan: Node) -> tuple[str, ...]:
    """The columns that tell a stored table's rows apart."""
    return IDENTITY if plan.is_stream else plan.key


def clocked(plan: Node, span: Clocked, was: Clock) -> tuple[Clock, Arrived]:
    """Stream time, and what was dropped, at the end of a span that begins at `was`; and what arrived in it."""
    begun = span.at(was.time)
    moved = [scan for scan in plan.drivers if span.has_changes(scan)]
    # A stored stream's time may go on where a filter left it without a new record. A table's is not its changes': rows
    # that wait for time to close their windows would all come late.
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
    """Whether a table that keeps no time may leave records of a stream out: those without the key or value it needs.

    The table of a topic leaves none out: a record without a key is in quarantine where it landed.
    """
    if plan.keeps_time:
        return False
    if isinstance(plan, Aggregate) and plan.source.is_stream:
        return True
    if isinstance(plan, Latest):
        streams = {source.landing for source in topology.sources if source.kind == "stream"}
        return any(not scan.landing or scan.table in streams for scan in plan.scans)
    return any(drops(topology, source) for source in plan.sources)


def left_out(plan: Node, span: Span, so_far: dict[str, int]) -> dict[str, int]:
    """How many records such a table left out, by reason, with those of before a span."""
    refused = dropped(plan, span)
    if refused is None:
        return so_far
    found = refused.dropDuplicates([*IDENTITY, "_reason"]).groupBy("_reason").agg(F.count(F.lit(1)).alias("records"))
    here = {row["_reason"]: row["records"] for row in found.collect()}
    return {reason: so_far.get(reason, 0) + here.get(reason, 0) for reason in so_far | here}


def _seen(scan: Scan, span: Span) -> DataFrame:
    """One row: `time`, the greatest timestamp that a span brought to a versioned table, and no number of `records`."""
    keyed = span.records(scan).where(" AND ".join(f"`{name}` IS NOT NULL" for name in scan.key))
    no_number = F.lit(None).cast("bigint").alias("records")
    return keyed.agg(F.lit(scan.table).alias("what"), F.max(micros()).alias("time"), no_number)


def _latest(times: Iterable[int | None]) -> int | None:
    return max((time for time in times if time is not None), default=None)


def emitted(table: Table, span: Span, batch: int) -> DataFrame:
    """The rows that a stored stream gains: the stream's columns, and those of ours.

    The time reached at a record is kept where another table follows the stream; else it need not be computed.
    """
    plan = table.plan
    found = emit(plan, span)
    reached = stream_time(span) if table.followed else F.lit(None).cast("bigint")
    sides = ("_left", "_right") if isinstance(plan, StreamJoin) else ()
    placed = found.withColumns({"_reached": reached, "_batch": F.lit(batch).cast("bigint")})
    return placed.select(*cols(column.name for column in plan.columns), *cols((*STREAMED, "_reached", *sides)))
