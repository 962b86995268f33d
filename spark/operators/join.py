"""Primary-key, foreign-key and global joins: each left row looks up a right row by the right side's primary key.

The touched keys are the changed left keys, and the left keys that look up a changed right key. A left row whose
foreign key changes is a changed left key already. `drive="left"` leaves out the second kind (KIP-99); `drive="both"`
is what KIP-314 requested.
A null foreign key finds nothing: an inner join has no row, a left join has nulls on the right. An outer join is over
equal keys: it looks up every key that changed on either side, on both sides.
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
    left = cached_touched(join.left, span)
    right = cached_touched(join.right, span) if join.drive == "both" else None
    if join.how == "outer":
        return outer_touched(join, left, right, span)
    parts = []
    if left is not None:
        right_rows = rows(join.right, lookup_keys(join, left) if span.is_small else ALL, span.after)
        parts.append(joined(join, left, right_rows, span.is_small))
    if right is not None:
        left_rows = looking_up(join, rows(join.left, ALL, span.after), right, span.is_small)
        if left is not None:
            changed = left.select(*cols(join.key))
            left_rows = left_rows.join(F.broadcast(changed) if span.is_small else changed, list(join.key), "left_anti")
        parts.append(joined(join, left_rows.withColumn(PRESENT, F.lit(True)), present(right), span.is_small))
    return reduce(DataFrame.unionByName, parts) if parts else None


@rows.register(Join)
def _(join: Join, keys: DataFrame | None, now: Snapshot) -> DataFrame:
    if join.how == "outer":
        right_keys = ALL if keys is None else keys.select(*renamed(join.key, join.right.key))
        return outer_joined(join, rows(join.left, keys, now), rows(join.right, right_keys, now))
    left = rows(join.left, keys, now).withColumn(PRESENT, F.lit(True))
    right = rows(join.right, ALL if keys is None else lookup_keys(join, left), now)
    return present(joined(join, left, right, broadcast=keys is not None))


def cached_touched(side: Node, span: Span) -> DataFrame | None:
    """The touched rows of one side, cached: they are read several times, and chained joins multiply that."""
    changes = touched(side, span)
    return None if changes is None else span.keep(changes)


def with_on(join: Join, left: DataFrame) -> DataFrame:
    """The left rows with the right key they look up, as `_on0`, `_on1` and so on; null if the row is absent."""
    on = [F.expr(f"CASE WHEN {PRESENT} THEN {text} END").alias(f"_on{i}") for i, text in enumerate(join.on)]
    return left.alias("left").select("*", *on)


def lookup_keys(join: Join, left: DataFrame) -> DataFrame:
    """The right keys that left rows look up, once for each left row; named as the right side's key."""
    on = [F.col(f"_on{i}").alias(name) for i, name in enumerate(join.right.key)]
    return with_on(join, left).select(*on)


def looking_up(join: Join, left: DataFrame, right: DataFrame, broadcast: bool) -> DataFrame:
    """The left rows that look up one of the right rows' keys."""
    keys = right.select(*(col(name).alias(f"_key{i}") for i, name in enumerate(join.right.key)))
    on = F.expr(" AND ".join(f"({text}) = _key{i}" for i, text in enumerate(join.on)))
    return left.alias("left").join(F.broadcast(keys) if broadcast else keys, on, "left_semi")


def joined(join: Join, left: DataFrame, right: DataFrame, broadcast: bool) -> DataFrame:
    """One row per left row, with the right row it looks up. Columns: the join's, `OURS`, `_present`.

    `_present` is false if the left row is absent, or if an inner join finds no right row.
    """
    keys = [col(name).alias(f"_key{i}") for i, name in enumerate(join.right.key)]
    keyed = right.select("*", *keys, F.lit(True).alias("_found")).alias("right")
    on = F.expr(" AND ".join(f"left._on{i} = right._key{i}" for i in range(len(join.on))))
    pairs = with_on(join, left).alias("left").join(F.broadcast(keyed) if broadcast else keyed, on, "left_outer")
    is_present = f"left.{PRESENT}" if join.how == "left" else f"(left.{PRESENT} AND right._found IS NOT NULL)"
    computed = [
        F.expr(f"left.{quoted(name)}" if name in join.key else f"CASE WHEN {is_present} THEN {text} END").alias(name)
        for name, text in join.select
    ]
    timestamp = F.greatest("left._timestamp", "right._timestamp").alias("_timestamp")
    coordinates = [col(name, "left") for name in OURS if name != "_timestamp"]
    return pairs.select(*computed, timestamp, *coordinates, F.expr(is_present).alias(PRESENT))


def outer_touched(join: Join, left: DataFrame | None, right: DataFrame | None, span: Span) -> DataFrame | None:
    """Outer join: the keys that changed on either side, each with its row after the span, or `_present` false."""
    changed = [] if left is None else [left.select(*cols(join.key))]
    changed += [] if right is None else [right.select(*renamed(join.right.key, join.key))]
    if not changed:
        return None
    keys = span.keep(reduce(DataFrame.unionByName, changed).distinct())
    return or_absent(keys, rows(join, keys if span.is_small else ALL, span.after), join)


def outer_joined(join: Join, left: DataFrame, right: DataFrame) -> DataFrame:
    """One row per key of either side: the join's columns and `OURS`.

    The coordinates are those of the left row, or of the right row if there is no left one.
    """
    keys = [col(name).alias(f"_key{i}") for i, name in enumerate(join.right.key)]
    pairs = left.alias("left").join(
        right.select("*", *keys).alias("right"),
        F.expr(" AND ".join(f"left.{quoted(name)} = right._key{i}" for i, name in enumerate(join.key))),
        "full_outer",
    )
    key = {name: F.coalesce(col(name, "left"), F.col(f"right._key{i}")) for i, name in enumerate(join.key)}
    computed = [(key[name] if name in key else F.expr(text)).alias(name) for name, text in join.select]
    timestamp = F.greatest("left._timestamp", "right._timestamp").alias("_timestamp")
    has_left = col(join.key[0], "left").isNotNull()
    coordinates = [
        F.when(has_left, col(name, "left")).otherwise(col(name, "right")).alias(name)
        for name in OURS
        if name != "_timestamp"
    ]
    return pairs.select(*computed, timestamp, *coordinates)


def renamed(names: tuple[str, ...], others: tuple[str, ...]) -> list[Column]:
    """Columns renamed to the other side's names."""
    return [col(name).alias(other) for name, other in zip(names, others, strict=True)]
