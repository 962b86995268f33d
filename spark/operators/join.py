"""Primary-key, foreign-key and global joins: one lookup by the right side's primary key.

Touched are the left keys that changed, and the left keys that look up a right key that changed; a moved foreign key
is a changed left key already. `drive="left"` leaves the second half out (KIP-99), "both" is what KIP-314 asked for.
A null foreign key finds nothing: no row in an inner join, a null right side in a left join. An outer join, over equal
keys, looks every key that changed on either side up on both.
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
    or_absent,
    present,
    rows,
    touched,
)
from spark.topology.nodes import Join
from spark.topology.sql.ddl import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column

    from spark.topology.nodes import Node


@touched.register(Join)
def _(join: Join, span: Span) -> DataFrame | None:
    left = kept(join.left, span)
    right = kept(join.right, span) if join.drive == "both" else None
    if join.how == "outer":
        return on_both_sides(join, left, right, span)
    parts = []
    if left is not None:
        found = rows(join.right, looked_up(join, left) if span.is_small else ALL, span.after)
        parts.append(joined(join, left, found, span.is_small))
    if right is not None:
        lookers = looking_up(join, rows(join.left, ALL, span.after), right, span.is_small)
        if left is not None:
            changed = left.select(*cols(join.key))
            lookers = lookers.join(F.broadcast(changed) if span.is_small else changed, list(join.key), "left_anti")
        parts.append(joined(join, lookers.withColumn(PRESENT, F.lit(True)), present(right), span.is_small))
    return reduce(DataFrame.unionByName, parts) if parts else None


@rows.register(Join)
def _(join: Join, keys: DataFrame | None, now: Snapshot) -> DataFrame:
    if join.how == "outer":
        theirs = ALL if keys is None else keys.select(*renamed(join.key, join.right.key))
        return either(join, rows(join.left, keys, now), rows(join.right, theirs, now))
    left = rows(join.left, keys, now).withColumn(PRESENT, F.lit(True))
    right = rows(join.right, ALL if keys is None else looked_up(join, left), now)
    return present(joined(join, left, right, broadcast=keys is not None))


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


def looking_up(join: Join, left: DataFrame, right: DataFrame, broadcast: bool) -> DataFrame:
    """The left rows that look up one of some right keys."""
    keys = right.select(*(col(name).alias(f"_key{i}") for i, name in enumerate(join.right.key)))
    on = F.expr(" AND ".join(f"({text}) = _key{i}" for i, text in enumerate(join.on)))
    return left.alias("left").join(F.broadcast(keys) if broadcast else keys, on, "left_semi")


def joined(join: Join, left: DataFrame, right: DataFrame, broadcast: bool) -> DataFrame:
    """One row per left row, with what it looks up; absent where it, or in an inner join its right row, is missing."""
    keys = [col(name).alias(f"_key{i}") for i, name in enumerate(join.right.key)]
    found = right.select("*", *keys, F.lit(True).alias("_found")).alias("right")
    on = F.expr(" AND ".join(f"left._on{i} = right._key{i}" for i in range(len(join.on))))
    pairs = with_on(join, left).alias("left").join(F.broadcast(found) if broadcast else found, on, "left_outer")
    here = f"left.{PRESENT}" if join.how == "left" else f"(left.{PRESENT} AND right._found IS NOT NULL)"
    computed = [
        F.expr(f"left.{quoted(name)}" if name in join.key else f"CASE WHEN {here} THEN {text} END").alias(name)
        for name, text in join.select
    ]
    timestamp = F.greatest("left._timestamp", "right._timestamp").alias("_timestamp")
    coordinates = [col(name, "left") for name in OURS if name != "_timestamp"]
    return pairs.select(*computed, timestamp, *coordinates, F.expr(here).alias(PRESENT))


def on_both_sides(join: Join, left: DataFrame | None, right: DataFrame | None, span: Span) -> DataFrame | None:
    """Outer: the keys that changed on either side, each with the row it has now."""
    changed = [] if left is None else [left.select(*cols(join.key))]
    changed += [] if right is None else [right.select(*renamed(join.right.key, join.key))]
    if not changed:
        return None
    keys = span.keep(reduce(DataFrame.unionByName, changed).distinct())
    return or_absent(keys, rows(join, keys if span.is_small else ALL, span.after), join)


def either(join: Join, left: DataFrame, right: DataFrame) -> DataFrame:
    """One row per key of either side; a row that only the right side has takes its coordinates from there."""
    keys = [col(name).alias(f"_key{i}") for i, name in enumerate(join.right.key)]
    pairs = left.alias("left").join(
        right.select("*", *keys).alias("right"),
        F.expr(" AND ".join(f"left.{quoted(name)} = right._key{i}" for i, name in enumerate(join.key))),
        "full_outer",
    )
    key = {name: F.coalesce(col(name, "left"), F.col(f"right._key{i}")) for i, name in enumerate(join.key)}
    computed = [(key[name] if name in key else F.expr(text)).alias(name) for name, text in join.select]
    timestamp = F.greatest("left._timestamp", "right._timestamp").alias("_timestamp")
    here = col(join.key[0], "left").isNotNull()
    coordinates = [
        F.when(here, col(name, "left")).otherwise(col(name, "right")).alias(name)
        for name in OURS
        if name != "_timestamp"
    ]
    return pairs.select(*computed, timestamp, *coordinates)


def renamed(names: tuple[str, ...], others: tuple[str, ...]) -> list[Column]:
    """Columns by the names that the other side has for them."""
    return [col(name).alias(other) for name, other in zip(names, others, strict=True)]
