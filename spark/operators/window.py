"""Windows of a stream's records: one row for every group and window of time that holds records of it.

A window is open until stream time, less grace, has passed its end. A record counts in those of its windows that are
open where it comes, with stream time at its own place; one that finds none open is late, and dropped. So what a window
holds depends on the order of the records alone, not on how they were cut into spans.
Touched are the windows that take a new record. Each is computed again, of the new records it takes and of the older
ones in it: it was open when the span began, hence also when those came, since stream time only grows. Earlier records
are read from where they landed, as far back as one can be in an open window.
A suppressed row is there once its window is closed: a span has the rows of the windows that were open when it began,
or were opened in it, and that stream time has passed at its end, however far it went.
(Kafka Streams counts a record without value too, and loses windows where time jumps.)
Sessions have no windows of their own to be computed again: `spark.operators.session`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from spark.operators.aggregate import NEWEST, in_a_group
from spark.operators.algebra import (
    OURS,
    PRESENT,
    among,
    cols,
    dropped,
    emit,
    history,
    is_idle,
    present,
    refused,
    touched,
)
from spark.operators.order import millis, stream_time
from spark.operators.session import sessions
from spark.topology.columns import WINDOW_BOUNDS
from spark.topology.nodes import Window

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from spark.operators.algebra import Span

# All times here are in milliseconds, as Kafka's are: `_at` the record's own, `_passed` what stream time less grace had
# passed where it came (for an older record, where the span began), `_start` and `_end` a window's.


@touched.register(Window)
def _(window: Window, span: Span) -> DataFrame | None:
    return None if is_idle(window, span) else changed(window, span)


def changed(window: Window, span: Span) -> DataFrame:
    """The rows that a span makes or changes; of sessions also those that went."""
    if window.kind == "session":
        return sessions(window, span, accepted(window, span))
    members = in_sliding_windows(window, span) if window.kind == "sliding" else in_time_windows(window, span)
    if window.suppressed:
        passed = millis(F.lit(span.time_after).cast("bigint")) - window.grace
        found = members.where(~is_open(window, passed))
    else:
        members = span.keep(members)
        gained = members.where("_new").select(*cols(window.by), "_start").distinct()
        found = among(members, gained, (*window.by, "_start"), span.is_small)
    return computed(window, found).withColumn(PRESENT, F.lit(True))


def begun(window: Window, beginning: Span) -> DataFrame:
    """The rows after a span that nothing was before."""
    return present(changed(window, beginning))


@dropped.register(Window)
def _(window: Window, span: Span) -> DataFrame:
    return refused(emit(window.source, span), reason(window, span))


def is_open(window: Window, passed: Column) -> Column:
    """Whether stream time less grace has not passed a window's end, which is part of a sliding window."""
    return F.col("_end") >= passed if window.kind == "sliding" else F.col("_end") > passed


def reason(window: Window, span: Span) -> Column:
    """Why a new record is in no window; null if it is in one."""
    passed = millis(stream_time(span)) - window.grace
    at = F.unix_millis("_timestamp")
    if window.kind in ("sliding", "session"):  # the last window that holds a record begins with it
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
    """The new records that are not dropped."""
    new = emit(window.source, span).where(reason(window, span).isNull())
    return new.withColumns({"_at": F.unix_millis("_timestamp"), "_passed": millis(stream_time(span)) - window.grace})


def arrived(window: Window, span: Span) -> DataFrame:
    """The records that may be in an open window: new ones, and older ones."""
    found = accepted(window, span).withColumn("_new", F.lit(True))
    if span.time_before is not None:
        passed = millis(F.lit(span.time_before).cast("bigint")) - window.grace
        since = F.timestamp_millis(passed - window.size - 1)
        older = history(window.source, span.before).where(F.col("_timestamp") >= since)
        older = older.where(F.expr(f"NOT _deleted AND {in_a_group(window)}") & (F.unix_millis("_timestamp") >= 0))
        older = older.withColumns({"_at": F.unix_millis("_timestamp"), "_passed": passed, "_new": F.lit(False)})
        found = found.unionByName(older)
    return found


def in_time_windows(window: Window, span: Span) -> DataFrame:
    """Every record in each of its windows that was open for it."""
    last = F.col("_at") - F.col("_at") % window.advance
    first = F.greatest(F.col("_at") - window.size + window.advance, F.lit(0))
    starts = F.sequence(first - first % window.advance, last, F.lit(window.advance).cast("bigint"))
    found = arrived(window, span).withColumn("_start", F.explode(starts))
    return found.withColumn("_end", F.col("_start") + window.size).where(is_open(window, F.col("_passed")))


def in_sliding_windows(window: Window, span: Span) -> DataFrame:
    """Every record in each of the windows around it that was open for it.

    A record makes two windows, as far as they are open where it comes: one that ends at it (or begins in 1970), and one
    that begins behind it, which is there once a record is in it.
    """
    records = span.keep(arrived(window, span))
    end = (F.col("_start") + window.size).alias("_end")
    starts = F.explode(F.array(F.greatest(F.col("_at") - window.size, F.lit(0)), F.col("_at") + 1)).alias("_start")
    made = records.select(*cols(window.by), starts, "_passed", "_new").select("*", end)
    made = made.where(is_open(window, F.col("_passed")))
    windows = made.groupBy(*cols(window.by), "_start", "_end").agg(F.bool_or("_new").alias("_made"))
    found = records.join(windows, list(window.by)).where(F.col("_at").between(F.col("_start"), F.col("_end")))
    return found.where(is_open(window, F.col("_passed"))).withColumn("_new", F.expr("_new OR _made"))


def computed(window: Window, members: DataFrame) -> DataFrame:
    """One row per group and window; event time and coordinates are those of its newest record."""
    aggregates = [F.expr(text).alias(name) for name, text in window.select]
    newest = F.expr(NEWEST.text).alias(NEWEST.name)
    found = members.groupBy(*cols(window.by), "_start", "_end").agg(*aggregates, newest)
    bounds = [
        F.timestamp_millis(name).alias(column.name)
        for name, column in zip(("_start", "_end"), WINDOW_BOUNDS, strict=True)
    ]
    ours = [F.col(f"{NEWEST.name}.{name}").alias(name) for name in OURS]
    return found.select(*cols(window.by), *bounds, *cols(name for name, _ in window.select), *ours)
