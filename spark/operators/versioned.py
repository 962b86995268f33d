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
    at_literals,
    col,
    cols,
    emit,
    history,
    new_records,
    rows,
    semi_join,
)
from spark.operators.as_of import as_changes, row
from spark.operators.carried import completed
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
    lookups = with_table_time(lookup, span.keep(lookups_of(lookup, span)), span)
    versions = candidate_versions(lookup, lookups, span)
    found = span.keep(newest(lookup, lookups, versions))
    corrected = without_later(lookup, found, versions, span)
    visible = F.when(beyond_history(lookup), F.lit(None)).otherwise(F.col("_version"))
    return corrected.withColumn("_version", visible).withColumn(
        "_right", F.expr(f"CASE WHEN _version.{PRESENT} THEN _version.row END")
    )


def lookups_of(lookup: Lookup, span: Span) -> DataFrame:
    """The records that look up in this span: `_on0`, `_on1` and so on (the key), `_left` (the record), and times.

    `_time` is the record's event time, `_at` stream time at its lookup, `_seen` table time before the span; all in
    microseconds.
    """
    [scan] = table_landing(lookup)
    new = emit(lookup.left, span).where("NOT _deleted AND _timestamp IS NOT NULL")
    records = new if lookup.grace is None else released(lookup, new, span)
    on = [F.expr(text).alias(name) for text, name in zip(lookup.on, ons(lookup), strict=True)]
    left = F.struct(*cols(column.name for column in lookup.left.columns), *cols(PLACED)).alias("_left")
    seen = F.lit(span.seen.get(scan.table)).cast("bigint").alias("_seen")
    time, at = micros().alias("_time"), F.col("_reached").alias("_at")
    return records.select(*span.apart, *on, left, time, at, seen)


def with_table_time(lookup: Lookup, lookups: DataFrame, span: Span) -> DataFrame:
    """The lookups with `_known`: table time at the place of the lookup, in microseconds."""
    assert lookup.as_of is not None
    assert lookup.history is not None
    new = new_records(lookup.as_of, span)
    # Table time never exceeds greatest(_seen, _at): if the history covers every record from there, `_seen` is enough.
    if new is None or span.is_empty(lookups.where(F.col("_time") < F.greatest("_seen", "_at") - 1000 * lookup.history)):
        return lookups.withColumn("_known", F.col("_seen"))
    with_key = new.where(" AND ".join(f"{quoted(name)} IS NOT NULL" for name in lookup.as_of.key))
    marks = with_key.select(*span.apart, F.col("_reached").alias("_when"), micros().alias("_mark"))
    marked = with_mark(lookups, "_at", marks, span, later=False)
    return marked.withColumn("_known", F.greatest("_seen", "_mark")).drop("_mark")


def released(lookup: Lookup, new: DataFrame, span: Span) -> DataFrame:
    """The new records that do not wait, and the waiting records, new and older, that this span releases.

    `_reached` is the stream time of the lookup, in microseconds.
    """
    assert lookup.grace is not None
    changed = [scan for scan in lookup.left.drivers if span.has_changes(scan)]
    if not changed:  # only a record advances stream time
        return new
    keyless = F.expr(" OR ".join(f"({text}) IS NULL" for text in lookup.on))
    records = new.withColumn("_due", F.when(~keyless & (due(lookup) > stream_time(span)), due(lookup)))
    if span.time_before is not None:
        since = F.timestamp_micros(F.lit(span.time_before - 1000 * lookup.grace))
        older = history(lookup.left, span.before).where(F.col("_timestamp") > since)
        waiting = older.where("NOT _deleted").where(~keyless)
        records = records.unionByName(waiting.withColumn("_due", due(lookup)))
    is_due = records.where(F.expr("_due IS NULL") | (F.col("_due") <= F.lit(span.time_after).cast("bigint")))
    times = [span.records(scan).select(*span.apart, F.col("_reached").alias("_when")) for scan in changed]
    marks = reduce(DataFrame.unionByName, times).withColumn("_mark", F.col("_when"))
    passed = F.when(F.col("_due").isNull(), F.col("_reached")).otherwise(F.col("_mark"))
    return with_mark(is_due, "_due", marks, span, later=True).withColumn("_reached", passed).select(*new.columns)


def due(lookup: Lookup) -> Column:
    """The stream time at which a record looks its row up, in microseconds."""
    assert lookup.grace is not None
    return micros() + 1000 * lookup.grace


def candidate_versions(lookup: Lookup, lookups: DataFrame, span: Span) -> DataFrame:
    """The versions that the lookups may need; columns as in `as_versions`."""
    assert lookup.as_of is not None
    keys = lookups.select(*(F.col(on).alias(name) for on, name in key_pairs(lookup))).dropna().distinct()
    rows_before = rows(lookup.right, span.keep(keys) if span.is_small else ALL, span.before)
    stored = as_versions(
        lookup, rows_before.withColumns({"_reached": F.lit(None), PRESENT: F.lit(True), "_ordinal": F.lit(0)})
    )
    records = new_records(lookup.as_of, span)
    if records is None:
        new = stored.where("false")
    else:
        new = as_versions(lookup, as_changes(lookup.right, completed(lookup.as_of, records, span, by_time=True)))
    older = older_versions(lookup, lookups, stored, new, span)
    return stored.unionByName(new) if older is None else stored.unionByName(new).unionByName(older)


def older_versions(
    lookup: Lookup, lookups: DataFrame, stored: DataFrame, new: DataFrame, span: Span
) -> DataFrame | None:
    """All versions from before the span, at the keys whose stored row may not be enough; None if there are none."""
    assert lookup.as_of is not None
    [scan] = table_landing(lookup)
    if span.seen.get(scan.table) is None:
        return None
    newest_stored = stored.select(*ons(lookup), F.col("_time").alias("_newest"))
    oldest_new = new.groupBy(*ons(lookup)).agg(F.min("_time").alias("_oldest"))
    bounded = lookups.join(newest_stored, ons(lookup), "left_outer").join(oldest_new, ons(lookup), "left_outer")
    uncertain = bounded.where("(_newest IS NULL OR _newest > _time) AND (_time < _seen OR _oldest <= _seen)")
    keys = span.keep(uncertain.select(*(F.col(on).alias(name) for on, name in key_pairs(lookup))).dropna().distinct())
    if span.is_empty(keys):
        return None
    older = at_literals(history(lookup.as_of, span.before), span.few(keys, lookup.as_of), lookup.right.key)
    records = completed(lookup.as_of, semi_join(older, keys, lookup.right.key, span.is_small), span, by_time=True)
    return as_versions(lookup, as_changes(lookup.right, records))


def as_versions(lookup: Lookup, changes: DataFrame) -> DataFrame:
    """Changes of a table as versions: the key (`_on0` and so on), `_time`, `_order`, `_version` (since, present, row).

    Times are in microseconds. `since` is the stream time from which the version exists.
    """
    keys = [col(name).alias(on) for on, name in key_pairs(lookup)]
    since = F.coalesce(F.col("_reached").cast("bigint"), F.lit(BEFORE)).alias("since")
    version = F.struct(since, F.col(PRESENT), row(lookup.right).alias("row")).alias("_version")
    order = F.struct(*cols(OURS), F.col("_ordinal").cast("bigint").alias("_ordinal")).alias("_order")
    return changes.where("_timestamp IS NOT NULL").select(*keys, micros().alias("_time"), order, version)


def newest(lookup: Lookup, lookups: DataFrame, versions: DataFrame) -> DataFrame:
    """The lookups, each with the newest version (`_version`) that is not newer than the record, whatever its place.

    `_newer` is the stream time (microseconds) from which a newer version than the record's exists; null if none.
    """
    by_time = Window.partitionBy(*ons(lookup)).orderBy("_time", F.col("_left").isNotNull(), "_order")
    up_to = by_time.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    following = by_time.rowsBetween(Window.currentRow, Window.unboundedFollowing)
    both = lookups.unionByName(versions, allowMissingColumns=True)
    newer, last = F.min("_version.since").over(following), F.last("_version", ignorenulls=True).over(up_to)
    return both.withColumns({"_newer": newer, "_version": last}).where("_left IS NOT NULL").drop("_order")


def without_later(lookup: Lookup, found: DataFrame, versions: DataFrame, span: Span) -> DataFrame:
    """The lookups with `_version` replaced where that version arrived after the lookup.

    The newest version that existed at the lookup replaces it; this reads all versions of the key.
    """
    if span.is_empty(found.where("_version.since > _at")):
        return found
    keys = [F.col(on).alias(f"{on}_of") for on in ons(lookup)]
    others = versions.select(*keys, F.col("_time").alias("_other_time"), "_order", F.col("_version").alias("_other"))
    existed = "_version.since > _at AND _other_time <= _time AND _other.since <= _at"
    on = F.expr(" AND ".join([*(f"{on} = {on}_of" for on in ons(lookup)), existed]))
    identity = [F.col(f"_left.{name}").alias(name) for name in IDENTITY]
    pairs = found.select("_version", *ons(lookup), "_time", "_at", *identity, F.struct("*").alias("_lookup"))
    of_lookup = pairs.join(others, on, "left_outer").groupBy(*IDENTITY)
    best = of_lookup.agg(F.first("_lookup").alias("_lookup"), F.max_by("_other", "_order").alias("_other"))
    is_later = F.expr("_lookup._version.since > _lookup._at")
    version = F.when(is_later, F.col("_other")).otherwise(F.col("_lookup._version"))
    replaced = best.select("_lookup.*", version.alias("_replaced"))
    return replaced.drop("_version").withColumnRenamed("_replaced", "_version")


def beyond_history(lookup: Lookup) -> Column:
    """True if the history does not cover the record and a newer version of its key exists at its lookup."""
    assert lookup.history is not None
    beyond = F.col("_time") < F.col("_known") - 1000 * lookup.history
    return beyond & (F.col("_newer") <= F.col("_at"))


def with_mark(lookups: DataFrame, time: str, marks: DataFrame, span: Span, later: bool) -> DataFrame:
    """As-of join: adds `_mark`, the least mark at or after each row's time in column `time` (`later`).

    Without `later`, the greatest mark at or before it. A null time has no mark. Only distinct times are sorted.
    """
    by = list(span.apart)
    times = lookups.select(*by, F.col(time).alias("_when"), F.lit(None).cast("bigint").alias("_mark"))
    every = times.unionByName(marks.select(*by, "_when", "_mark").where("_when IS NOT NULL")).distinct()
    order = Window.partitionBy(*by, F.lit(0)).orderBy("_when")
    if later:
        mark = F.min("_mark").over(order.rangeBetween(Window.currentRow, Window.unboundedFollowing))
    else:
        mark = F.max("_mark").over(order.rangeBetween(Window.unboundedPreceding, Window.currentRow))
    marked = every.withColumn("_as_of", mark).where("_mark IS NULL AND _when IS NOT NULL")
    by_time = marked.select(*by, F.col("_when").alias(time), F.col("_as_of").alias("_mark"))
    return lookups.join(by_time, [*by, time], "left_outer")


def table_landing(lookup: Lookup) -> tuple[Scan, ...]:
    """The landing whose records make the table."""
    assert lookup.as_of is not None
    return lookup.as_of.drivers


def ons(lookup: Lookup) -> list[str]:
    """The names of the columns that hold the lookup key."""
    return [f"_on{i}" for i in range(len(lookup.on))]


def key_pairs(lookup: Lookup) -> list[tuple[str, str]]:
    """Pairs of a column that holds the lookup key and the table's key column."""
    return list(zip(ons(lookup), lookup.right.key, strict=True))
