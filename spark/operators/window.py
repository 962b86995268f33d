"""Windows of a stream's records: one row for every group and time window that holds records of the group.

A window is open until stream time minus grace has passed its end. A record counts in those of its windows that are
open at its own place, with stream time at that place. A record that finds no open window is late, and dropped. So the
content of a window depends only on the order of the records, not on how they were cut into spans.
A window is touched if it takes a new record. It is computed again from its new and its older records. It was open when
the span began, hence also when its older records arrived, since stream time only grows. Older records are read from
their landing, as far back as a record can be in an open window.
A suppressed row appears when its window closes: a span adds the rows of the windows that were open at its beginning or
opened in it, and that stream time has passed at its end.
(Kafka Streams also counts a record without a value, and loses windows when time jumps.)
Sessions have no fixed windows that could be computed again: see `spark.operators.session`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from spark.operators.aggregate import NEWEST, in_a_group
from spark.operators.algebra import (
    OURS,
    PRESENT,
    cols,
    dropped,
    dropped_by,
    emit,
    history,
    is_idle,
    semi_join,
    touched,
)
from spark.operators.order import millis, stream_time
from spark.operators.session import sessions
from spark.topology.columns import WINDOW_BOUNDS
from spark.topology.nodes import Window

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from spark.operators.algebra import Span

# All times here are in milliseconds, as in Kafka: `_at` is the record's event time; `_passed` is stream time minus
# grace at the record's place (for an older record, at the beginning of the span); `_start` and `_end` are the window's.


@touched.register(Window)
def _(window: Window, span: Span) -> DataFrame | None:
    return None if is_idle(window, span) else changed(window, span)


def changed(window: Window, span: Span) -> DataFrame:
    """The rows that a span adds or changes; for sessions also the removed ones. Columns as in `touched`."""
    if window.kind == "session":
        return sessions(window, span, accepted(window, span))
    members = in_sliding_windows(window, span) if window.kind == "sliding" else in_time_windows(window, span)
    if window.suppressed:
        passed = millis(F.lit(span.time_after).cast("bigint")) - window.grace
        members = members.where(~is_open(window, passed))
    else:
        members = span.keep(members)
        with_new = members.where("_new").select(*cols(window.by), "_start").distinct()
        members = semi_join(members, with_new, (*window.by, "_start"), span.is_small)
    return computed(window, members).withColumn(PRESENT, F.lit(True))


@dropped.register(Window)
def _(window: Window, span: Span) -> DataFrame:
    return dropped_by(emit(window.source, span), reason(window, span))


def is_open(window: Window, passed: Column) -> Column:
    """True if stream time minus grace has not passed the window's end, which a sliding window includes."""
    return F.col("_end") >= passed if window.kind == "sliding" else F.col("_end") > passed


def reason(window: Window, span: Span) -> Column:
    """Why a new record is in no window; null if it is in one."""
    passed = millis(stream_time(span)) - window.grace
    at = F.unix_millis("_timestamp")
    if window.kind in ("sliding", "session"):  # the last window that holds a record begins at its time
        late = at + window.size < passed
    else:
        late = at - at % window.advance + window.size <= passed
    return (
        F.when(F.col("_deleted"), "null value")
        .when(F.col("_timestamp").isNull(), "no timestamp")
        .when(at < 0, "before 1970")
        .when(F.expr(f"NOT ({in_a_group(window)})"), "null key")
        .when(late, "late")
    )


def accepted(window: Window, span: Span) -> DataFrame:
    """The new records that are not dropped, with `_at` and `_passed` (milliseconds)."""
    new = emit(window.source, span).where(reason(window, span).isNull())
    return new.withColumns({"_at": F.unix_millis("_timestamp"), "_passed": millis(stream_time(span)) - window.grace})


def candidates(window: Window, span: Span) -> DataFrame:
    """The records that may be in an open window, with `_at`, `_passed` (milliseconds) and `_new` (false: older)."""
    records = accepted(window, span).withColumn("_new", F.lit(True))
    if span.time_before is not None:
        passed = millis(F.lit(span.time_before).cast("bigint")) - window.grace
        since = F.timestamp_millis(passed - window.size - 1)
        older = history(window.source, span.before).where(F.col("_timestamp") >= since)
        older = older.where(F.expr(f"NOT _deleted AND {in_a_group(window)}") & (F.unix_millis("_timestamp") >= 0))
        older = older.withColumns({"_at": F.unix_millis("_timestamp"), "_passed": passed, "_new": F.lit(False)})
        records = records.unionByName(older)
    return records


def in_time_windows(window: Window, span: Span) -> DataFrame:
    """One row for every record and window that was open for it, with `_start` and `_end` (milliseconds)."""
    last = F.col("_at") - F.col("_at") % window.advance
    first = F.greatest(F.col("_at") - window.size + window.advance, F.lit(0))
    starts = F.sequence(first - first % window.advance, last, F.lit(window.advance).cast("bigint"))
    members = candidates(window, span).withColumn("_start", F.explode(starts))
    return members.withColumn("_end", F.col("_start") + window.size).where(is_open(window, F.col("_passed")))


def in_sliding_windows(window: Window, span: Span) -> DataFrame:
    """One row for every record and sliding window that was open for it, with `_start` and `_end` (milliseconds).

    A record makes two windows, if they are open at its place. One ends at the record's time, or begins in 1970. The
    other begins one millisecond after the record, and exists once it holds a record.
    """
    records = span.keep(candidates(window, span))
    end = (F.col("_start") + window.size).alias("_end")
    starts = F.explode(F.array(F.greatest(F.col("_at") - window.size, F.lit(0)), F.col("_at") + 1)).alias("_start")
    made = records.select(*cols(window.by), starts, "_passed", "_new").select("*", end)
    made = made.where(is_open(window, F.col("_passed")))
    windows = made.groupBy(*cols(window.by), "_start", "_end").agg(F.bool_or("_new").alias("_made"))
    members = records.join(windows, list(window.by)).where(F.col("_at").between(F.col("_start"), F.col("_end")))
    return members.where(is_open(window, F.col("_passed"))).withColumn("_new", F.expr("_new OR _made"))


def computed(window: Window, members: DataFrame) -> DataFrame:
    """One row per group and window; event time and coordinates are those of its newest record."""
    aggregates = [F.expr(text).alias(name) for name, text in window.select]
    newest = F.expr(NEWEST.text).alias(NEWEST.name)
    groups = members.groupBy(*cols(window.by), "_start", "_end").agg(*aggregates, newest)
    bounds = [
        F.timestamp_millis(name).alias(column.name)
        for name, column in zip(("_start", "_end"), WINDOW_BOUNDS, strict=True)
    ]
    ours = [F.col(f"{NEWEST.name}.{name}").alias(name) for name in OURS]
    return groups.select(*cols(window.by), *bounds, *cols(name for name, _ in window.select), *ours)
