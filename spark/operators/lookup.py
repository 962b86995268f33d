"""A stream joined to a table: every record looks a row up, and changes of the table emit nothing (KIP-99).

If the table holds the newest records of a stream, as a topic's table does, a record sees the table as it was at the
record's own place in the merge order. In a versioned table it sees the row that was valid at its own event time. Any
other table, such as a global table, is read at the pin that the commit names.
A record without a value is dropped. A record with a null lookup key finds nothing: an inner join drops it, a left join
emits it with nulls on the right (KIP-962).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from spark.operators import versioned
from spark.operators.algebra import (
    ALL,
    PLACED,
    PRESENT,
    at_literals,
    col,
    cols,
    dropped,
    dropped_with_upstream,
    emit,
    new_records,
    overlapping_records,
    records,
    rows,
)
from spark.operators.as_of import as_changes, row, without_superseded
from spark.operators.carried import completed
from spark.operators.order import LEFT, TABLE, place
from spark.topology.nodes import Lookup

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from spark.operators.algebra import Span
    from spark.topology.nodes import Node


@records.register(Lookup)
def _(lookup: Lookup, read: Callable[[Node], DataFrame]) -> DataFrame:
    return read(lookup)


@emit.register(Lookup)
def _(lookup: Lookup, span: Span) -> DataFrame:
    if lookup.history is not None:
        return output(lookup, versioned.looked_up(lookup, span))
    on = [F.expr(text).alias(f"_on{i}") for i, text in enumerate(lookup.on)]
    events = emit(lookup.left, span).where("NOT _deleted").alias("left").select("*", *on)
    new = new_records(lookup.as_of, span) if lookup.as_of is not None else None
    right = rows(lookup.right, ALL, span.after if lookup.as_of is None else span.before)
    keys = events.select(*(F.col(f"_on{i}").alias(name) for i, name in enumerate(lookup.right.key))).distinct()
    pairs = looked_up(lookup, events, at_literals(right, span.few(keys, lookup.right), lookup.right.key))
    if new is not None and lookup.as_of is not None:
        new = completed(lookup.as_of, new, span, by_time=False)
        new = without_superseded(lookup.right, new, overlapping_records(lookup.as_of, span))
        pairs = as_of(lookup, pairs, as_changes(lookup.right, new))
    return output(lookup, pairs)


@dropped.register(Lookup)
def _(lookup: Lookup, span: Span) -> DataFrame:
    is_null = " OR ".join(f"({text}) IS NULL" for text in lookup.on)
    no_key = F.expr(is_null) if lookup.how == "inner" else F.lit(False)
    no_time = F.col("_timestamp").isNull() if lookup.history is not None else F.lit(False)
    reason = F.when(F.col("_deleted"), "null value").when(no_time, "no timestamp").when(no_key, "null key")
    return dropped_with_upstream(lookup.left, span, reason)


def looked_up(lookup: Lookup, events: DataFrame, right: DataFrame) -> DataFrame:
    """Every record (`_left`), its lookup key (`_on0` and so on), and the row it finds (`_right`; null if none)."""
    keys = [col(name).alias(f"_key{i}") for i, name in enumerate(lookup.right.key)]
    table = right.select(*keys, row(lookup.right).alias("_right"))
    on = F.expr(" AND ".join(f"_on{i} = _key{i}" for i in range(len(keys))))
    ons = [f"_on{i}" for i in range(len(keys))]
    left = events.select(*ons, F.struct(*cols(c.name for c in lookup.left.columns), *cols(PLACED)).alias("_left"))
    return left.join(F.broadcast(table) if lookup.broadcast else table, on, "left_outer").select(
        *ons, "_left", "_right"
    )


def as_of(lookup: Lookup, pairs: DataFrame, changes: DataFrame) -> DataFrame:
    """The pairs with `_right` from the newest change of the row before the record's own place, if there is one."""
    ons = [f"_on{i}" for i in range(len(lookup.on))]
    keys = [col(name).alias(on) for name, on in zip(lookup.right.key, ons, strict=True)]
    versions = changes.select(
        *keys, place(TABLE).alias("_place"), F.struct(PRESENT, row(lookup.right).alias("row")).alias("_version")
    )
    with_place = pairs.select("*", *(F.col(f"_left.{name}").alias(name) for name in PLACED))
    lookups = with_place.withColumn("_place", place(LEFT)).drop(*PLACED)
    events = lookups.unionByName(versions, allowMissingColumns=True)
    before = Window.partitionBy(*ons).orderBy("_place").rowsBetween(Window.unboundedPreceding, 0)
    newest = F.last("_version", ignorenulls=True).over(before)
    found = events.withColumn("_version", newest).where("_left IS NOT NULL")
    right = F.when(F.col(f"_version.{PRESENT}"), F.col("_version.row"))
    return found.withColumn("_right", F.when(F.col("_version").isNotNull(), right).otherwise(F.col("_right")))


def output(lookup: Lookup, pairs: DataFrame) -> DataFrame:
    """The join's columns and `PLACED`; a record keeps its own time, coordinates and place."""
    joined = pairs if lookup.how == "left" else pairs.where("_right IS NOT NULL")
    sides = joined.select(F.col("_left").alias("left"), F.col("_right").alias("right"))
    ours = [F.col(f"left.{name}").alias(name) for name in PLACED]
    return sides.select(*(F.expr(text).alias(name) for name, text in lookup.select), *ours)
