"""A stream joined to a table: every record looks a row up, and the table's changes drive nothing (KIP-99).

Where the table holds the newest records of a stream, as a topic's table does, a record sees it as it was at the
record's own place in the merge order, or of a versioned table the row of the record's own event time; anything else,
such as a global table, is read at the pin that the commit names.
A record without a value is no event. One that looks up a null finds nothing: it is dropped, or, in a left join,
keeps its place with nulls on the right (KIP-962).
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
    alongside,
    col,
    cols,
    dropped,
    emit,
    gained,
    records,
    refused,
    rows,
)
from spark.operators.order import LEFT, TABLE, place
from spark.operators.told import changed, newer, row
from spark.topology.nodes import Join

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from spark.operators.algebra import Span
    from spark.topology.nodes import Node


@records.register(Join)
def _(join: Join, read: Callable[[Node], DataFrame]) -> DataFrame:
    return read(join)


@emit.register(Join)
def _(join: Join, span: Span) -> DataFrame:
    if join.history is not None:
        return chosen(join, versioned.looked_up(join, span))
    on = [F.expr(text).alias(f"_on{i}") for i, text in enumerate(join.on)]
    events = emit(join.left, span).where("NOT _deleted").alias("left").select("*", *on)
    told = gained(join.told, span) if join.told is not None else None
    right = rows(join.right, ALL, span.after if join.told is None else span.before)
    pairs = looked_up(join, events, right)
    if told is not None and join.told is not None:
        pairs = as_of(join, pairs, changed(join.right, newer(join.right, told, alongside(join.told, span))))
    return chosen(join, pairs)


@dropped.register(Join)
def _(join: Join, span: Span) -> DataFrame:
    nothing = " OR ".join(f"({text}) IS NULL" for text in join.on)
    no_key = F.expr(nothing) if join.how == "inner" else F.lit(False)
    no_time = F.col("_timestamp").isNull() if join.history is not None else F.lit(False)
    reason = F.when(F.col("_deleted"), "null value").when(no_time, "no timestamp").when(no_key, "null key")
    here = refused(emit(join.left, span), reason)
    before = dropped(join.left, span)
    return here if before is None else before.unionByName(here)


def looked_up(join: Join, events: DataFrame, right: DataFrame) -> DataFrame:
    """Every record (`_left`) with the row it looks up (`_right`; null: none)."""
    keys = [col(name).alias(f"_key{i}") for i, name in enumerate(join.right.key)]
    table = right.select(*keys, row(join.right).alias("_right"))
    on = F.expr(" AND ".join(f"_on{i} = _key{i}" for i in range(len(keys))))
    ons = [f"_on{i}" for i in range(len(keys))]
    kept = events.select(*ons, F.struct(*cols(c.name for c in join.left.columns), *cols(PLACED)).alias("_left"))
    return kept.join(F.broadcast(table) if join.sent else table, on, "left_outer").select(*ons, "_left", "_right")


def as_of(join: Join, pairs: DataFrame, changes: DataFrame) -> DataFrame:
    """The pairs again, where a record sees the newest change of its row before its own place, if there is one."""
    ons = [f"_on{i}" for i in range(len(join.on))]
    keys = [col(name).alias(on) for name, on in zip(join.right.key, ons, strict=True)]
    told = changes.select(
        *keys, place(TABLE).alias("_place"), F.struct(PRESENT, row(join.right).alias("row")).alias("_told")
    )
    at_left = pairs.select("*", *(F.col(f"_left.{name}").alias(name) for name in PLACED))
    asked = at_left.withColumn("_place", place(LEFT)).drop(*PLACED)
    events = asked.unionByName(told, allowMissingColumns=True)
    before = Window.partitionBy(*ons).orderBy("_place").rowsBetween(Window.unboundedPreceding, 0)
    seen = events.withColumn("_told", F.last("_told", ignorenulls=True).over(before)).where("_left IS NOT NULL")
    newest = F.when(F.col(f"_told.{PRESENT}"), F.col("_told.row"))
    return seen.withColumn("_right", F.when(F.col("_told").isNotNull(), newest).otherwise(F.col("_right")))


def chosen(join: Join, pairs: DataFrame) -> DataFrame:
    """The join's columns; a record keeps its own time, coordinates and place."""
    there = pairs if join.how == "left" else pairs.where("_right IS NOT NULL")
    sides = there.select(F.col("_left").alias("left"), F.col("_right").alias("right"))
    ours = [F.col(f"left.{name}").alias(name) for name in PLACED]
    return sides.select(*(F.expr(text).alias(name) for name, text in join.select), *ours)
