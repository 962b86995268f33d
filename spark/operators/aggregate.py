"""`group_by` on a table: one row per group, computed from all its rows.

Touched are the groups that changed rows are in, and those they were in before: a row that moved, or went, takes its
part of the old group along. Each is computed again from the rows it has now, which is right for every aggregate. A
group without rows has no row. A row with a null in a column of the group is in none, as a record without key is.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark.operators.algebra import ALL, OURS, Snapshot, Span, at, cols, or_absent, present, rows, touched
from spark.topology.ddl import quoted
from spark.topology.nodes import Aggregate


@touched.register(Aggregate)
def _(aggregate: Aggregate, span: Span) -> DataFrame | None:
    changed = touched(aggregate.source, span)
    if changed is None:
        return None
    changed = span.keep(changed)
    keys = changed.select(*cols(aggregate.source.key))
    old = rows(aggregate.source, keys if span.few else ALL, span.before)
    old = old if span.few else old.join(keys, list(aggregate.source.key), "left_semi")
    groups = span.keep(grouped(aggregate, present(changed)).unionByName(grouped(aggregate, old)).distinct())
    source = rows(aggregate.source, ALL, span.after)
    members = source.join(F.broadcast(groups) if span.few else groups, list(aggregate.by), "left_semi")
    return or_absent(groups, computed(aggregate, members), aggregate)


@rows.register(Aggregate)
def _(aggregate: Aggregate, keys: DataFrame | None, now: Snapshot) -> DataFrame:
    return computed(aggregate, at(rows(aggregate.source, ALL, now), keys, aggregate.by))


def grouped(aggregate: Aggregate, source: DataFrame) -> DataFrame:
    """The groups of source rows, as often as they have rows."""
    return source.select(*cols(aggregate.by)).where(in_a_group(aggregate))


def computed(aggregate: Aggregate, source: DataFrame) -> DataFrame:
    """One row per group; event time and coordinates are those of its newest source row."""
    aggregates = [F.expr(text).alias(name) for name, text in aggregate.select[len(aggregate.by) :]]
    newest = F.max(F.struct(*cols(OURS))).alias("_newest")  # by timestamp first; coordinates make it one row
    found = source.where(in_a_group(aggregate)).groupBy(*cols(aggregate.by)).agg(*aggregates, newest)
    ours = [F.col(f"_newest.{name}").alias(name) for name in OURS]
    return found.select(*cols(column.name for column in aggregate.columns), *ours)


def in_a_group(aggregate: Aggregate) -> str:
    """The condition under which a row is in a group."""
    return " AND ".join(f"{quoted(name)} IS NOT NULL" for name in aggregate.by)
