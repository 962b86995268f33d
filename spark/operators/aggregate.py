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
    among,
    at,
    cols,
    dropped,
    history,
    new_records,
    or_absent,
    present,
    previous,
    refused_of,
    rows,
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
    now, old = changed(aggregate, span)
    if now is None:
        return None
    if aggregate.fold is not None:
        return folded(aggregate, aggregate.fold, now, old, span)
    groups = grouped(aggregate, now) if old is None else grouped(aggregate, now).unionByName(grouped(aggregate, old))
    groups = span.keep(groups.distinct())
    return or_absent(groups, again(aggregate, groups, span), aggregate)


@rows.register(Aggregate)
def _(aggregate: Aggregate, keys: DataFrame | None, now: Snapshot) -> DataFrame:
    return computed(aggregate, at(members(aggregate, now), keys, aggregate.by))


@dropped.register(Aggregate)
def _(aggregate: Aggregate, span: Span) -> DataFrame | None:
    if not aggregate.source.is_stream:
        return dropped(aggregate.source, span)
    no_group = F.expr(f"NOT ({in_a_group(aggregate)})")
    return refused_of(aggregate.source, span, F.when(F.col("_deleted"), "null value").when(no_group, "null key"))


def changed(aggregate: Aggregate, span: Span) -> tuple[DataFrame | None, DataFrame | None]:
    """The source's rows at its changed keys after and before the span; a stream has only new records."""
    if aggregate.source.is_stream:
        new = new_records(aggregate.source, span)
        return None if new is None else new.where("NOT _deleted"), None
    found = touched(aggregate.source, span)
    if found is None:
        return None, None
    if not aggregate.source.has_change_feed:
        found = span.keep(found)
    return present(found), previous(aggregate.source, found.select(*cols(aggregate.source.key)), span)


def members(aggregate: Aggregate, now: Snapshot) -> DataFrame:
    """All rows of the source, or all its records with a value, in one snapshot."""
    if aggregate.source.is_stream:
        return history(aggregate.source, now).where("NOT _deleted")
    return rows(aggregate.source, ALL, now)


def grouped(aggregate: Aggregate, source: DataFrame) -> DataFrame:
    """The groups of source rows, once for each row: the grouping columns."""
    return source.select(*cols(aggregate.by)).where(in_a_group(aggregate))


def again(aggregate: Aggregate, groups: DataFrame, span: Span) -> DataFrame:
    """The groups computed from their rows after the span."""
    return computed(aggregate, among(members(aggregate, span.after), groups, aggregate.by, span.is_small))


def folded(aggregate: Aggregate, fold: Fold, now: DataFrame, old: DataFrame | None, span: Span) -> DataFrame:
    """The groups with the change added to their partials and the removed rows subtracted; columns as in `touched`."""
    partials = (*fold.partials, NEWEST)
    came = now.withColumn("_part", F.lit("gained"))
    source = came if old is None else came.unionByName(old.withColumn("_part", F.lit("lost")))
    change = span.keep(parts(aggregate, partials, source, "_part"))
    groups = change.select(*cols(aggregate.by)).distinct()
    were = among(span.own.withColumn(NEWEST.name, F.struct(*cols(OURS))), groups, aggregate.by, span.is_small)
    were = were.select(*cols(aggregate.by), F.lit("were").alias("_part"), *cols(partial.name for partial in partials))
    types = {field.name: field.dataType for field in change.schema}
    net = [merged(partial, types[partial.name]).alias(partial.name) for partial in partials]
    stale = reduce(or_, (left(partial) for partial in partials if partial.how != "sum"))
    together = were.unionByName(change).groupBy(*cols(aggregate.by)).agg(*net, stale.alias("_stale"))
    if old is None:
        return finished(aggregate, fold, together, "_rows > 0")
    # Only all rows of a group can tell its new extreme after the old one left.
    found = span.keep(
        finished(aggregate, fold, together, "CASE WHEN _stale AND _rows > 0 THEN NULL ELSE _rows > 0 END")
    )
    groups = found.where(f"{PRESENT} IS NULL").select(*cols(aggregate.by))
    if span.is_empty(groups):
        return found
    right = again(aggregate, groups, span).withColumn(PRESENT, F.lit(True))
    return found.where(f"{PRESENT} IS NOT NULL").unionByName(right)


def merged(partial: Partial, kind: DataType) -> Column:
    """A partial merged from a group's old value, gained rows and lost rows; an extreme ignores the lost rows."""
    value = F.col(partial.name)
    if partial.how == "sum":
        if isinstance(kind, LongType):  # the gained sum may exceed a bigint before the lost sum is subtracted
            value = value.cast("decimal(20,0)")
        return F.sum(F.when(F.col("_part") == "lost", -value).otherwise(value)).cast(kind)
    there = F.when(F.col("_part") != "lost", value)
    return F.max(there) if partial.how == "max" else F.min(there)


def left(partial: Partial) -> Column:
    """True if a group lost its extreme and gained none at least as extreme; the new one is among its other rows."""
    value = F.col(partial.name)
    extreme = F.max if partial.how == "max" else F.min
    were, lost, came = (extreme(F.when(F.col("_part") == part, value)) for part in ("were", "lost", "gained"))
    reached = came >= were if partial.how == "max" else came <= were
    return F.coalesce((lost == were) & ~F.coalesce(reached, F.lit(False)), F.lit(False))


def parts(aggregate: Aggregate, partials: tuple[Partial, ...], source: DataFrame, *apart: str) -> DataFrame:
    """The partials of every group of source rows, separately for each value of the columns `apart`."""
    found = [F.expr(partial.text).alias(partial.name) for partial in partials]
    return source.where(in_a_group(aggregate)).groupBy(*cols(aggregate.by), *apart).agg(*found)


def computed(aggregate: Aggregate, source: DataFrame) -> DataFrame:
    """One row per group; event time and coordinates are those of its newest source row."""
    if aggregate.fold is not None:
        whole = parts(aggregate, (*aggregate.fold.partials, NEWEST), source)
        return present(finished(aggregate, aggregate.fold, whole, "true"))
    found = source.where(in_a_group(aggregate)).groupBy(*cols(aggregate.by))
    aggregates = [F.expr(text).alias(name) for name, text in aggregate.select[len(aggregate.by) :]]
    return dated(aggregate, found.agg(*aggregates, F.expr(NEWEST.text).alias(NEWEST.name)))


def finished(aggregate: Aggregate | Window, fold: Fold, partials: DataFrame, there: str) -> DataFrame:
    """One row per group: the aggregate's columns, `OURS`, the partials, and `_present`, computed by `there`."""
    # Nothing is computed for a group without rows: an average would divide by zero.
    computed = [F.expr(f"CASE WHEN _rows > 0 THEN {text} END").alias(name) for name, text in fold.select]
    found = partials.select("*", *computed)
    hidden = [F.col(partial.name) for partial in fold.partials]
    return dated(aggregate, found, *hidden, F.expr(there).alias(PRESENT))


def dated(aggregate: Aggregate | Window, found: DataFrame, *more: Column) -> DataFrame:
    """The aggregate's columns, `OURS` from the newest row of each group, and `more`."""
    ours = [F.col(f"{NEWEST.name}.{name}").alias(name) for name in OURS]
    return found.select(*cols(column.name for column in aggregate.columns), *ours, *more)


def in_a_group(aggregate: Aggregate | Window) -> str:
    """The condition under which a row is in a group."""
    return " AND ".join(f"{quoted(name)} IS NOT NULL" for name in aggregate.by)
