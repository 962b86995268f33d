"""`group_by`: one row per group, computed from all its rows, or folded from its old row and the change.

The touched groups are those that changed rows are in now, and those they were in before: a row that moves or is
deleted also changes its old group. Computing a group again from its current rows is right for every aggregate.
Folding is for aggregates whose new value follows from the old value and the change. Sums are added and subtracted.
A minimum, maximum or newest row stays until its row leaves the group; then the group is computed again. A stream only
grows: its groups lose no rows.
A group without rows has no row. A row with a null in a column of the group is in no group, like a record without a
key; a record of a stream is then dropped, and counted.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType

from spark.operators.algebra import (
    ALL,
    OURS,
    PRESENT,
    Snapshot,
    Span,
    at_keys,
    cols,
    dropped,
    dropped_with_upstream,
    history,
    new_records,
    or_absent,
    present,
    previous,
    rows,
    semi_join,
    touched,
)
from spark.topology.nodes import Aggregate, Window
from spark.topology.sql.ddl import quoted
from spark.topology.sql.fold import Fold, Partial

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

NEWEST = Partial("_newest", f"max(struct({', '.join(OURS)}))", "max")
"""Orders by timestamp first; the coordinates make the newest row unique."""


@touched.register(Aggregate)
def _(aggregate: Aggregate, span: Span) -> DataFrame | None:
    after, before = changed(aggregate, span)
    if after is None:
        return None
    if aggregate.fold is not None:
        return folded(aggregate, aggregate.fold, after, before, span)
    groups = group_keys(aggregate, after)
    if before is not None:
        groups = groups.unionByName(group_keys(aggregate, before))
    groups = span.keep(groups.distinct())
    return or_absent(groups, recomputed(aggregate, groups, span), aggregate)


@rows.register(Aggregate)
def _(aggregate: Aggregate, keys: DataFrame | None, now: Snapshot) -> DataFrame:
    return computed(aggregate, at_keys(source_rows(aggregate, now), keys, aggregate.by))


@dropped.register(Aggregate)
def _(aggregate: Aggregate, span: Span) -> DataFrame | None:
    if not aggregate.source.is_stream:
        return dropped(aggregate.source, span)
    no_group = F.expr(f"NOT ({in_a_group(aggregate)})")
    reason = F.when(F.col("_deleted"), "null value").when(no_group, "null key")
    return dropped_with_upstream(aggregate.source, span, reason)


def changed(aggregate: Aggregate, span: Span) -> tuple[DataFrame | None, DataFrame | None]:
    """The source's rows at its changed keys after and before the span; a stream has only new records."""
    if aggregate.source.is_stream:
        new = new_records(aggregate.source, span)
        return None if new is None else new.where("NOT _deleted"), None
    changes = touched(aggregate.source, span)
    if changes is None:
        return None, None
    if not aggregate.source.has_change_feed:
        changes = span.keep(changes)
    return present(changes), previous(aggregate.source, changes.select(*cols(aggregate.source.key)), span)


def source_rows(aggregate: Aggregate, now: Snapshot) -> DataFrame:
    """All rows of the source, or all its records with a value, in one snapshot."""
    if aggregate.source.is_stream:
        return history(aggregate.source, now).where("NOT _deleted")
    return rows(aggregate.source, ALL, now)


def group_keys(aggregate: Aggregate, source: DataFrame) -> DataFrame:
    """The groups of source rows, once for each row: the grouping columns."""
    return source.select(*cols(aggregate.by)).where(in_a_group(aggregate))


def recomputed(aggregate: Aggregate, groups: DataFrame, span: Span) -> DataFrame:
    """The groups computed from their rows after the span."""
    return computed(aggregate, semi_join(source_rows(aggregate, span.after), groups, aggregate.by, span.is_small))


def folded(aggregate: Aggregate, fold: Fold, after: DataFrame, before: DataFrame | None, span: Span) -> DataFrame:
    """The groups with the rows after the span added to their partials, and the rows before it subtracted.

    Columns as in `touched`.
    """
    partials = (*fold.partials, NEWEST)
    source = after.withColumn("_part", F.lit("added"))
    if before is not None:
        source = source.unionByName(before.withColumn("_part", F.lit("removed")))
    change = span.keep(partial_aggregates(aggregate, partials, source, "_part"))
    groups = change.select(*cols(aggregate.by)).distinct()
    old = semi_join(span.own.withColumn(NEWEST.name, F.struct(*cols(OURS))), groups, aggregate.by, span.is_small)
    old = old.select(*cols(aggregate.by), F.lit("old").alias("_part"), *cols(partial.name for partial in partials))
    types = {field.name: field.dataType for field in change.schema}
    net = [merged(partial, types[partial.name]).alias(partial.name) for partial in partials]
    stale = reduce(or_, (lost_extreme(partial) for partial in partials if partial.how != "sum"))
    combined = old.unionByName(change).groupBy(*cols(aggregate.by)).agg(*net, stale.alias("_stale"))
    if before is None:
        return final_rows(aggregate, fold, combined, "_rows > 0")
    # A group that lost its extreme needs all of its rows: `_present` is null until it is computed from them.
    is_present = "CASE WHEN _stale AND _rows > 0 THEN NULL ELSE _rows > 0 END"
    final = span.keep(final_rows(aggregate, fold, combined, is_present))
    groups = final.where(f"{PRESENT} IS NULL").select(*cols(aggregate.by))
    if span.is_empty(groups):
        return final
    from_all_rows = recomputed(aggregate, groups, span).withColumn(PRESENT, F.lit(True))
    return final.where(f"{PRESENT} IS NOT NULL").unionByName(from_all_rows)


def merged(partial: Partial, kind: DataType) -> Column:
    """A partial merged from a group's old value, added rows and removed rows; an extreme ignores the removed rows."""
    value = F.col(partial.name)
    if partial.how == "sum":
        if isinstance(kind, LongType):  # the added sum may exceed a bigint before the removed sum is subtracted
            value = value.cast("decimal(20,0)")
        return F.sum(F.when(F.col("_part") == "removed", -value).otherwise(value)).cast(kind)
    candidate = F.when(F.col("_part") != "removed", value)
    return F.max(candidate) if partial.how == "max" else F.min(candidate)


def lost_extreme(partial: Partial) -> Column:
    """True if a group's extreme was removed and no value at least as extreme was added.

    The new extreme is then among the group's other rows.
    """
    value = F.col(partial.name)
    extreme = F.max if partial.how == "max" else F.min
    old, removed, added = (extreme(F.when(F.col("_part") == part, value)) for part in ("old", "removed", "added"))
    replaced = added >= old if partial.how == "max" else added <= old
    return F.coalesce((removed == old) & ~F.coalesce(replaced, F.lit(False)), F.lit(False))


def partial_aggregates(
    aggregate: Aggregate, partials: tuple[Partial, ...], source: DataFrame, *split_by: str
) -> DataFrame:
    """The partials of every group of source rows, separately for each value of the columns `split_by`."""
    values = [F.expr(partial.text).alias(partial.name) for partial in partials]
    return source.where(in_a_group(aggregate)).groupBy(*cols(aggregate.by), *split_by).agg(*values)


def computed(aggregate: Aggregate, source: DataFrame) -> DataFrame:
    """One row per group; event time and coordinates are those of its newest source row."""
    if aggregate.fold is not None:
        partials = partial_aggregates(aggregate, (*aggregate.fold.partials, NEWEST), source)
        return present(final_rows(aggregate, aggregate.fold, partials, "true"))
    groups = source.where(in_a_group(aggregate)).groupBy(*cols(aggregate.by))
    aggregates = [F.expr(text).alias(name) for name, text in aggregate.select[len(aggregate.by) :]]
    return with_newest(aggregate, groups.agg(*aggregates, F.expr(NEWEST.text).alias(NEWEST.name)))


def final_rows(aggregate: Aggregate | Window, fold: Fold, partials: DataFrame, is_present: str) -> DataFrame:
    """One row per group: the aggregate's columns, `OURS`, the partials, and `_present`, computed by `is_present`."""
    # Nothing is computed for a group without rows: an average would divide by zero.
    aggregates = [F.expr(f"CASE WHEN _rows > 0 THEN {text} END").alias(name) for name, text in fold.select]
    hidden = [F.col(partial.name) for partial in fold.partials]
    return with_newest(aggregate, partials.select("*", *aggregates), *hidden, F.expr(is_present).alias(PRESENT))


def with_newest(aggregate: Aggregate | Window, groups: DataFrame, *more: Column) -> DataFrame:
    """The aggregate's columns, `OURS` from the newest row of each group, and `more`."""
    ours = [F.col(f"{NEWEST.name}.{name}").alias(name) for name in OURS]
    return groups.select(*cols(column.name for column in aggregate.columns), *ours, *more)


def in_a_group(aggregate: Aggregate | Window) -> str:
    """The condition under which a row is in a group."""
    return " AND ".join(f"{quoted(name)} IS NOT NULL" for name in aggregate.by)
