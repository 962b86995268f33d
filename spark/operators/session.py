"""Sessions of a stream's records: in a group, the time from a first record to a last one, without a longer gap.

A session is open until stream time minus gap and grace has passed its end. A record is late, and dropped, if stream
time at its own place, minus gap and grace, has passed it. Any other record reaches back by the gap, but not to sessions
that are closed at its place; it is in one session with all records that it reaches. Of two records, the one with the
later time reaches the other, whichever arrives first: an out-of-order record that is not late was open at every earlier
place too. So the sessions depend only on the order of the records, not on how they were cut into spans, and sessions
never overlap.
A span's records are folded into the open sessions. The rows of these are the only state. Closed sessions do not change.
(Kafka Streams accepts a late record if an open session reaches back to it.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window as Over
from pyspark.sql import functions as F

from spark.operators.aggregate import NEWEST, final_rows, merged
from spark.operators.algebra import ALL, OURS, PRESENT, cols, rows, semi_join, touched
from spark.operators.order import millis
from spark.topology.columns import WINDOW_BOUNDS
from spark.topology.nodes import ClosedSessions, Scan, Window

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from spark.operators.algebra import Snapshot, Span

START, END = (column.name for column in WINDOW_BOUNDS)

# All times here are in milliseconds. The parts of a session are the new records of one time, and the sessions they may
# reach: from `_start` to `_end`, reaching back to `_low`. `_part` is "added" or "old", as in a fold.


def sessions(window: Window, span: Span, records: DataFrame) -> DataFrame:
    """The sessions that a span adds or changes, and, with `_present` false, those merged into another session.

    Args:
        window: the sessions' definition.
        span: the span.
        records: the new records that are not late, with event time (`_at`) and stream time minus grace at their place
            (`_passed`), in milliseconds.

    Returns:
        Columns as in `touched`.
    """
    assert window.fold is not None, "sessions whose aggregates do not fold are refused when the topology is built"
    partials = (*window.fold.partials, NEWEST)
    part = [F.expr(partial.text).alias(partial.name) for partial in partials]
    by_time = records.groupBy(*cols(window.by), "_at", "_passed").agg(*part)
    low = F.greatest("_at", "_passed") - window.size
    new = _parts(window, by_time, F.col("_at"), F.col("_at"), low, "added")
    types = {field.name: field.dataType for field in new.schema}
    if span.time_before is None:
        parts = new
    else:
        new = span.keep(new)
        reachable = semi_join(span.own, new.select(*cols(window.by)).distinct(), window.by, span.is_small)
        reachable = reachable.where(~_is_closed(window.size + window.grace, span.time_before))
        reachable = reachable.withColumn(NEWEST.name, F.struct(*cols(OURS)))
        start, end = F.unix_millis(START), F.unix_millis(END)
        # No two stored sessions reach each other: they would be one session.
        parts = new.unionByName(_parts(window, reachable, start, end, start - window.size, "old"))
    net = [merged(partial, types[partial.name]).alias(partial.name) for partial in partials]
    merged_sessions = (
        numbered(window, parts)
        .groupBy(*cols(window.by), "_session")
        .agg(
            F.timestamp_millis(F.min("_start")).alias(START),
            F.timestamp_millis(F.max("_end")).alias(END),
            F.collect_list(F.when(F.col("_part") == "old", F.struct("_start", "_end"))).alias("_old"),
            F.bool_or(F.col("_part") == "added").alias("_changed"),
            *net,
        )
    )
    changed = span.keep(merged_sessions.where("_changed"))
    final = final_rows(window, window.fold, changed, "true")
    if span.time_before is None:
        return final
    return final.unionByName(_replaced(window, changed), allowMissingColumns=True)


def _parts(window: Window, source: DataFrame, start: Column, end: Column, low: Column, part: str) -> DataFrame:
    assert window.fold is not None
    partials = cols(partial.name for partial in (*window.fold.partials, NEWEST))
    times = [start.alias("_start"), end.alias("_end"), low.alias("_low")]
    return source.select(*cols(window.by), *times, F.lit(part).alias("_part"), *partials)


def numbered(window: Window, parts: DataFrame) -> DataFrame:
    """The parts with `_session`, the number of their session in the group.

    A session begins at a part if neither it nor a later one reaches back to the parts before it.
    """
    by_start = Over.partitionBy(*cols(window.by)).orderBy("_start", "_end")
    before = F.max("_end").over(by_start.rowsBetween(Over.unboundedPreceding, -1))
    reached = F.min("_low").over(by_start.rowsBetween(0, Over.unboundedFollowing))
    begins = F.when(reached > before, 1).otherwise(0)
    return parts.withColumn("_begins", begins).withColumn("_session", F.sum("_begins").over(by_start))


def _replaced(window: Window, changed: DataFrame) -> DataFrame:
    """The old keys of sessions whose bounds changed, with `_present` false."""
    each_old = changed.select(
        *cols(window.by), F.col(START).alias("_start"), F.col(END).alias("_end"), F.explode("_old").alias("_bounds")
    )
    bounds = [F.timestamp_millis("_bounds._start").alias(START), F.timestamp_millis("_bounds._end").alias(END)]
    old = each_old.select(*cols(window.by), *bounds, "_start", "_end")
    return old.where(f"{START} <> _start OR {END} <> _end").select(
        *cols(window.by), START, END, F.lit(False).alias(PRESENT)
    )


def _is_closed(wait: int, time: int | Column | None) -> Column:
    """True if a session's end is more than `wait` milliseconds before stream time (`time`, microseconds)."""
    return F.col(END) < F.timestamp_millis(millis(F.lit(time).cast("bigint")) - wait)


@touched.register(ClosedSessions)
def _(closed: ClosedSessions, span: Span) -> DataFrame | None:
    scan = _stored(closed)
    before = span.before.time(scan)
    newly = rows(closed, ALL, span.after).where(F.coalesce(~_is_closed(closed.wait, before), F.lit(True)))
    newly = newly.withColumn(PRESENT, F.lit(True))
    if not span.has_changes(scan):
        return None if bool(before == span.after.time(scan)) else newly
    now = _is_closed(closed.wait, span.after.time(scan))
    changes = span.changes(scan)  # only a rebuild changes closed sessions
    changed = changes.withColumn(PRESENT, F.col(PRESENT) & now)
    return newly.join(changes, list(closed.key), "left_anti").unionByName(changed)


@rows.register(ClosedSessions)
def _(closed: ClosedSessions, keys: DataFrame | None, now: Snapshot) -> DataFrame:
    scan = _stored(closed)
    return rows(scan, keys, now).where(_is_closed(closed.wait, now.time(scan)))


def _stored(closed: ClosedSessions) -> Scan:
    assert isinstance(closed.source, Scan), "open sessions are stored"
    return closed.source
