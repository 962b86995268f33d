"""A stream joined to a versioned table: a record sees the row that was valid at its own event time (KIP-889, KIP-914).

A record sees the table's newest record by timestamp, among those that precede it in the merge order and are not newer
than it. The table's history limits this. Table time is the greatest timestamp among the table's records so far. A
record older than table time minus the history finds the newest row of its key or nothing, as in Kafka Streams.

With grace (KIP-923) a record waits until stream time reaches its own time plus the grace. Only the stream's own records
advance that stream time. The record looks its row up at the place of the record that advanced stream time that far, and
is emitted there. A record that arrives after that looks up at once; so does a record without a key. Waiting records are
not stored: stream time only grows, so a record waits if stream time had not reached its due time when the span began.
Waiting records are read again from their landing, no further back than the grace.

A span reads the stored rows of the table at the keys looked up, and the table's records in the span. The stored rows
are the newest by timestamp. These are enough for a record that is not older than the stored row. If no row is stored,
they are enough for a record that is not older than table time before the span, unless the span brings an older version
of the key: a tombstone may be newer than that version. For the keys of any other record, and only for those, all
records of the table are read: the version needed may be of any age, since a version is valid until the next one.
The output depends only on the places and timestamps of records, not on how they were cut into spans.
Each commit stores table time, as it stores stream time.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from spark.operators.algebra import (
    ALL,
    IDENTITY,
    OURS,
    PLACED,
    PRESENT,
    among,
    col,
    cols,
    emit,
    history,
    new_records,
    rows,
)
from spark.operators.as_of import changed, row
from spark.operators.order import micros, stream_time
from spark.topology.sql.ddl import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column

    from spark.operators.algebra import Span
    from spark.topology.nodes import Lookup, Scan

BEFORE = -(2**63)
"""The `since` of a version that existed before the span."""


def looked_up(lookup: Lookup, span: Span) -> DataFrame:
    """Every record that looks up in this span (`_left`), and the row it finds (`_right`; null if none)."""
    asked = table_time(lookup, span.keep(asking(lookup, span)), span)
    versions = known(lookup, asked, span)
    found = span.keep(newest(lookup, asked, versions))
    there = unforeseen(lookup, found, versions, span)
    remembered = F.when(forgotten(lookup), F.lit(None)).otherwise(F.col("_told"))
    return there.withColumn("_told", remembered).withColumn(
        "_right", F.expr(f"CASE WHEN _told.{PRESENT} THEN _told.row END")
    )


def asking(lookup: Lookup, span: Span) -> DataFrame:
    """The records that look up in this span: `_on0`, `_on1` and so on (the key), `_left` (the record), and times.

    `_time` is the record's event time, `_at` stream time at its lookup, `_seen` table time before the span; all in
    microseconds.
    """
    [scan] = told_of(lookup)
    new = emit(lookup.left, span).where("NOT _deleted AND _timestamp IS NOT NULL")
    found = new if lookup.grace is None else released(lookup, new, span)
    on = [F.expr(text).alias(name) for text, name in zip(lookup.on, ons(lookup), strict=True)]
    left = F.struct(*cols(column.name for column in lookup.left.columns), *cols(PLACED)).alias("_left")
    seen = F.lit(span.seen.get(scan.table)).cast("bigint").alias("_seen")
    time, at = micros().alias("_time"), F.col("_reached").alias("_at")
    return found.select(*span.apart, *on, left, time, at, seen)


def table_time(lookup: Lookup, asked: DataFrame, span: Span) -> DataFrame:
    """The lookups with `_known`: table time at the place of the lookup, in microseconds."""
    assert lookup.as_of is not None
    assert lookup.history is not None
    new = new_records(lookup.as_of, span)
    # Table time never exceeds greatest(_seen, _at): if the history covers every record from there, `_seen` is enough.
    if new is None or span.is_empty(asked.where(F.col("_time") < F.greatest("_seen", "_at") - 1000 * lookup.history)):
        return asked.withColumn("_known", F.col("_seen"))
    keyed_of = new.where(" AND ".join(f"{quoted(name)} IS NOT NULL" for name in lookup.as_of.key))
    marks = keyed_of.select(*span.apart, F.col("_reached").alias("_when"), micros().alias("_mark"))
    return (
        beside(asked, "_at", marks, span, later=False).withColumn("_known", F.greatest("_seen", "_mark")).drop("_mark")
    )


def released(lookup: Lookup, new: DataFrame, span: Span) -> DataFrame:
    """The new records that do not wait, and the waiting records, new and older, that this span releases.

    `_reached` is the stream time of the lookup, in microseconds.
    """
    assert lookup.grace is not None
    moved = [scan for scan in lookup.left.drivers if span.has_changes(scan)]
    if not moved:  # only a record advances stream time
        return new
    keyless = F.expr(" OR ".join(f"({text}) IS NULL" for text in lookup.on))
    found = new.withColumn("_due", F.when(~keyless & (due(lookup) > stream_time(span)), due(lookup)))
    if span.time_before is not None:
        since = F.timestamp_micros(F.lit(span.time_before - 1000 * lookup.grace))
        older = history(lookup.left, span.before).where(F.col("_timestamp") > since)
        waiting = older.where("NOT _deleted").where(~keyless)
        found = found.unionByName(waiting.withColumn("_due", due(lookup)))
    over = found.where(F.expr("_due IS NULL") | (F.col("_due") <= F.lit(span.time_after).cast("bigint")))
    times = [span.records(scan).select(*span.apart, F.col("_reached").alias("_when")) for scan in moved]
    marks = reduce(DataFrame.unionByName, times).withColumn("_mark", F.col("_when"))
    passed = F.when(F.col("_due").isNull(), F.col("_reached")).otherwise(F.col("_mark"))
    return beside(over, "_due", marks, span, later=True).withColumn("_reached", passed).select(*new.columns)


def due(lookup: Lookup) -> Column:
    """The stream time at which a record looks its row up, in microseconds."""
    assert lookup.grace is not None
    return micros() + 1000 * lookup.grace


def known(lookup: Lookup, asked: DataFrame, span: Span) -> DataFrame:
    """The versions that the lookups may need; columns as in `as_versions`."""
    assert lookup.as_of is not None
    keys = asked.select(*(F.col(on).alias(name) for on, name in keyed(lookup))).dropna().distinct()
    stored = rows(lookup.right, span.keep(keys) if span.is_small else ALL, span.before)
    there = as_versions(
        lookup, stored.withColumns({"_reached": F.lit(None), PRESENT: F.lit(True), "_ordinal": F.lit(0)})
    )
    gains = new_records(lookup.as_of, span)
    new = there.where("false") if gains is None else as_versions(lookup, changed(lookup.right, gains))
    older = earlier(lookup, asked, there, new, span)
    return there.unionByName(new) if older is None else there.unionByName(new).unionByName(older)


def earlier(lookup: Lookup, asked: DataFrame, stored: DataFrame, new: DataFrame, span: Span) -> DataFrame | None:
    """All versions from before the span, at the keys whose stored row may not be enough; None if there are none."""
    assert lookup.as_of is not None
    [scan] = told_of(lookup)
    if span.seen.get(scan.table) is None:
        return None
    here = stored.select(*ons(lookup), F.col("_time").alias("_newest"))
    came = new.groupBy(*ons(lookup)).agg(F.min("_time").alias("_oldest"))
    near = asked.join(here, ons(lookup), "left_outer").join(came, ons(lookup), "left_outer")
    unsure = near.where("(_newest IS NULL OR _newest > _time) AND (_time < _seen OR _oldest <= _seen)")
    keys = span.keep(unsure.select(*(F.col(on).alias(name) for on, name in keyed(lookup))).dropna().distinct())
    if span.is_empty(keys):
        return None
    return as_versions(
        lookup, changed(lookup.right, among(history(lookup.as_of, span.before), keys, lookup.right.key, span.is_small))
    )


def as_versions(lookup: Lookup, told: DataFrame) -> DataFrame:
    """Rows of a table as versions: the key (`_on0` and so on), `_time`, `_order`, and `_told` (since, present, row).

    Times are in microseconds. `since` is the stream time from which the version exists.
    """
    keys = [col(name).alias(on) for on, name in keyed(lookup)]
    since = F.coalesce(F.col("_reached").cast("bigint"), F.lit(BEFORE)).alias("since")
    version = F.struct(since, F.col(PRESENT), row(lookup.right).alias("row")).alias("_told")
    order = F.struct(*cols(OURS), F.col("_ordinal").cast("bigint").alias("_ordinal")).alias("_order")
    return told.where("_timestamp IS NOT NULL").select(*keys, micros().alias("_time"), order, version)


def newest(lookup: Lookup, asked: DataFrame, versions: DataFrame) -> DataFrame:
    """The lookups, each with the newest version (`_told`) that is not newer than the record, whatever its place.

    `_newer` is the stream time (microseconds) from which a newer version than the record's exists; null if none.
    """
    by_time = Window.partitionBy(*ons(lookup)).orderBy("_time", F.col("_left").isNotNull(), "_order")
    until = by_time.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    behind = by_time.rowsBetween(Window.currentRow, Window.unboundedFollowing)
    both = asked.unionByName(versions, allowMissingColumns=True)
    newer, last = F.min("_told.since").over(behind), F.last("_told", ignorenulls=True).over(until)
    return both.withColumns({"_newer": newer, "_told": last}).where("_left IS NOT NULL").drop("_order")


def unforeseen(lookup: Lookup, found: DataFrame, versions: DataFrame, span: Span) -> DataFrame:
    """The lookups with `_told` corrected where that version came after the lookup: all versions of the key are read."""
    if span.is_empty(found.where("_told.since > _at")):
        return found
    keys = [F.col(on).alias(f"{on}_of") for on in ons(lookup)]
    then = versions.select(*keys, F.col("_time").alias("_then"), "_order", F.col("_told").alias("_version"))
    visible = "_told.since > _at AND _then <= _time AND _version.since <= _at"
    seen = F.expr(" AND ".join([*(f"{on} = {on}_of" for on in ons(lookup)), visible]))
    one = [F.col(f"_left.{name}").alias(name) for name in IDENTITY]
    pairs = found.select("_told", *ons(lookup), "_time", "_at", *one, F.struct("*").alias("_asked"))
    best = pairs.join(then, seen, "left_outer").groupBy(*IDENTITY)
    each = best.agg(F.first("_asked").alias("_asked"), F.max_by("_version", "_order").alias("_version"))
    told = F.when(F.expr("_asked._told.since > _asked._at"), F.col("_version")).otherwise(F.col("_asked._told"))
    return each.select("_asked.*", told.alias("_seen_now")).drop("_told").withColumnRenamed("_seen_now", "_told")


def forgotten(lookup: Lookup) -> Column:
    """True if the history does not cover the record and a newer version of its key exists at its lookup."""
    assert lookup.history is not None
    beyond = F.col("_time") < F.col("_known") - 1000 * lookup.history
    return beyond & (F.col("_newer") <= F.col("_at"))


def beside(asked: DataFrame, at: str, marks: DataFrame, span: Span, later: bool) -> DataFrame:
    """As-of join: adds `_mark`, the least mark at or after each row's time in column `at` (`later`).

    Without `later`, the greatest mark at or before it. A null time has no mark. Only distinct times are sorted.
    """
    by = list(span.apart)
    times = asked.select(*by, F.col(at).alias("_when"), F.lit(None).cast("bigint").alias("_mark"))
    every = times.unionByName(marks.select(*by, "_when", "_mark").where("_when IS NOT NULL")).distinct()
    order = Window.partitionBy(*by, F.lit(0)).orderBy("_when")
    if later:
        mark = F.min("_mark").over(order.rangeBetween(Window.currentRow, Window.unboundedFollowing))
    else:
        mark = F.max("_mark").over(order.rangeBetween(Window.unboundedPreceding, Window.currentRow))
    found = every.withColumn("_beside", mark).where("_mark IS NULL")
    marked = found.where("_when IS NOT NULL").select(*by, F.col("_when").alias(at), F.col("_beside").alias("_mark"))
    return asked.join(marked, [*by, at], "left_outer")


def told_of(lookup: Lookup) -> tuple[Scan, ...]:
    """The landing whose records make the table."""
    assert lookup.as_of is not None
    return lookup.as_of.drivers


def ons(lookup: Lookup) -> list[str]:
    """The names of the columns that hold the lookup key."""
    return [f"_on{i}" for i in range(len(lookup.on))]


def keyed(lookup: Lookup) -> list[tuple[str, str]]:
    """Pairs of a column that holds the lookup key and the table's key column."""
    return list(zip(ons(lookup), lookup.right.key, strict=True))
