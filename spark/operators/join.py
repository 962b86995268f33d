"""Primary-key, foreign-key and global joins, inner and left: one lookup by the right side's primary key.

Touched are the left keys that changed, and the left keys that look up a right key that changed; a moved foreign key
is a changed left key already. `drive="left"` leaves the second half out (KIP-99), "both" is what KIP-314 asked for.
A null foreign key finds nothing: no row in an inner join, a null right side in a left join.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark.operators.algebra import (
    ALL,
    OURS,
    PRESENT,
    Snapshot,
    Span,
    col,
    cols,
    present,
    rows,
    touched,
)
from spark.topology.ddl import quoted
from spark.topology.nodes import Join

if TYPE_CHECKING:
    from spark.topology.nodes import Node


@touched.register(Join)
def _(join: Join, span: Span) -> DataFrame | None:
    left = kept(join.left, span)
    right = kept(join.right, span) if join.drive == "both" else None
    parts = []
    if left is not None:
        found = rows(join.right, looked_up(join, left) if span.few else ALL, span.after)
        parts.append(joined(join, left, found, span.few))
    if right is not None:
        lookers = looking_up(join, rows(join.left, ALL, span.after), right, span.few)
        if left is not None:
            changed = left.select(*cols(join.key))
            lookers = lookers.join(F.broadcast(changed) if span.few else changed, list(join.key), "left_anti")
        parts.append(joined(join, lookers.withColumn(PRESENT, F.lit(True)), present(right), span.few))
    return reduce(DataFrame.unionByName, parts) if parts else None


@rows.register(Join)
def _(join: Join, keys: DataFrame | None, now: Snapshot) -> DataFrame:
    left = rows(join.left, keys, now).withColumn(PRESENT, F.lit(True))
    right = rows(join.right, ALL if keys is None else looked_up(join, left), now)
    return present(joined(join, left, right, few=keys is not None))


def kept(side: Node, span: Span) -> DataFrame | None:
    """What is touched on one side. It is read several times, and a chain of joins would multiply that."""
    found = touched(side, span)
    return None if found is None else span.keep(found)


def with_on(join: Join, left: DataFrame) -> DataFrame:
    """The left rows with the right key they look up, as `_on0`, `_on1` and so on; null where the row is absent."""
    on = [F.expr(f"CASE WHEN {PRESENT} THEN {text} END").alias(f"_on{i}") for i, text in enumerate(join.on)]
    return left.alias("left").select("*", *on)


def looked_up(join: Join, left: DataFrame) -> DataFrame:
    """The right keys that left rows look up, as often as they do."""
    on = [F.col(f"_on{i}").alias(name) for i, name in enumerate(join.right.key)]
    return with_on(join, left).select(*on)


def looking_up(join: Join, left: DataFrame, right: DataFrame, few: bool) -> DataFrame:
    """The left rows that look up one of some right keys."""
    keys = right.select(*(col(name).alias(f"_key{i}") for i, name in enumerate(join.right.key)))
    on = F.expr(" AND ".join(f"({text}) = _key{i}" for i, text in enumerate(join.on)))
    return left.alias("left").join(F.broadcast(keys) if few else keys, on, "left_semi")


def joined(join: Join, left: DataFrame, right: DataFrame, few: bool) -> DataFrame:
    """One row per left row, with what it looks up; absent where it, or in an inner join its right row, is missing."""
    keys = [col(name).alias(f"_key{i}") for i, name in enumerate(join.right.key)]
    found = right.select("*", *keys, F.lit(True).alias("_found")).alias("right")
    on = F.expr(" AND ".join(f"left._on{i} = right._key{i}" for i in range(len(join.on))))
    pairs = with_on(join, left).alias("left").join(F.broadcast(found) if few else found, on, "left_outer")
    here = f"left.{PRESENT}" if join.how == "left" else f"(left.{PRESENT} AND right._found IS NOT NULL)"
    computed = [
        F.expr(f"left.{quoted(name)}" if name in join.key else f"CASE WHEN {here} THEN {text} END").alias(name)
        for name, text in join.select
    ]
    timestamp = F.greatest("left._timestamp", "right._timestamp").alias("_timestamp")
    coordinates = [col(name, "left") for name in OURS if name != "_timestamp"]
    return pairs.select(*computed, timestamp, *coordinates, F.expr(here).alias(PRESENT))
