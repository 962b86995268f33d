"""Two streams joined: pairs of records of one key whose times are near each other.

A record is open while its time, what its side may have to wait for, and grace are not behind stream time. A record
that is not open when it arrives is late, and dropped. Otherwise it is paired with every open record of the other side
that is within the window; the later of the two triggers the pair, with stream time at its own place. A record of an
outer side that never had a pair gets a row of its own when stream time closes it. So what is emitted depends on the
order of the records alone, not on how they were cut into spans: nothing but stream time is remembered. Earlier records
are read from where they landed, as far back as one can be open; whether one had a pair is in the rows emitted before.
(Kafka Streams has several clocks here, and emits some rows early, or twice: tests/conformance/divergences.yaml.)
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from spark.operators.algebra import IDENTITY, PLACED, dropped, emit, history, records, refused
from spark.operators.order import from_zero, micros, of_both, stream_time
from spark.topology.nodes import StreamJoin
from spark.topology.sql.ddl import quoted

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column

    from spark.operators.algebra import Span
    from spark.topology.nodes import Node

# A stored join has `_left` and `_right` besides: the `IDENTITY` of both records, null where one is missing.


@records.register(StreamJoin)
def _(join: StreamJoin, read: Callable[[Node], DataFrame]) -> DataFrame:
    return read(join)


@emit.register(StreamJoin)
def _(join: StreamJoin, span: Span) -> DataFrame:
    left, right = span.keep(open_records(join, "left", span)), span.keep(open_records(join, "right", span))
    pairs = span.keep(paired(join, left, right))
    found = [numbered(pairs)]
    if join.how in ("left", "outer"):
        found.append(alone(join, "left", left, right, pairs, span))
    if join.how == "outer":
        found.append(alone(join, "right", right, left, pairs, span))
    return chosen(join, reduce(DataFrame.unionByName, found))


@dropped.register(StreamJoin)
def _(join: StreamJoin, span: Span) -> DataFrame:
    def of(node: Node, side: str) -> DataFrame:
        return refused(emit(node, span), reason(join, side, span))

    return of(join.left, "left").unionByName(of(join.right, "right"))


def wait(join: StreamJoin, side: str) -> int:
    """How long a record of a side stays open, in microseconds: what its partner may be later, and grace."""
    return 1000 * (max(join.after if side == "left" else join.before, 0) + join.grace)


def reach(join: StreamJoin) -> int:
    """How far behind stream time a record can be and still be open, in microseconds."""
    return 1000 * (max(join.before, join.after, 0) + join.grace)


def reason(join: StreamJoin, side: str, span: Span) -> Column:
    """Why a new record of a side has no part in the join; null if it has."""
    node = join.left if side == "left" else join.right
    no_key = F.expr(" OR ".join(f"{quoted(name)} IS NULL" for name in node.key))
    alone = join.how == "outer" or (join.how == "left" and side == "left")
    late = micros() + wait(join, side) < stream_time(span)
    return (
        F.when(F.col("_deleted"), "null value")
        .when(F.col("_timestamp").isNull(), "no timestamp")
        .when(no_key, None if alone else "null key")
        .when(late, "late")
    )


def open_records(join: StreamJoin, side: str, span: Span) -> DataFrame:
    """The records of a side that may have a row in this span: `_open_until` in microseconds, and whether `_keyed`.

    New ones that are not dropped, and older ones that were open when the span began: those that were open then were
    open when they arrived, since stream time only grows.
    """
    node = join.left if side == "left" else join.right
    keyed = F.expr(" AND ".join(f"{quoted(name)} IS NOT NULL" for name in node.key)).alias("_keyed")
    until = (micros() + wait(join, side)).alias("_open_until")
    new = emit(node, span).where(reason(join, side, span).isNull())
    found = new.select("*", keyed, until, stream_time(span).alias("_at"), F.lit(True).alias("_new"))
    if span.time_before is None:
        return found

    since = F.timestamp_micros(F.lit(span.time_before - reach(join)))
    older = history(node, span.before).where(F.col("_timestamp") >= since).select("*", keyed, until)
    older = older.where("NOT _deleted AND _keyed").where(F.col("_open_until") >= span.time_before)
    return found.unionByName(older.select("*", F.lit(None).cast("bigint").alias("_at"), F.lit(False).alias("_new")))


def paired(join: StreamJoin, left: DataFrame, right: DataFrame) -> DataFrame:
    """The pairs that a record of this span triggers: `left` and `right` as structs, and which is the `_last`."""
    apart = micros("right._timestamp") - micros("left._timestamp")
    equal = [f"left.{quoted(ours)} = right.{quoted(theirs)}" for ours, theirs in zip(*keys(join), strict=True)]
    on = F.expr(" AND ".join(equal)) & apart.between(-1000 * join.before, 1000 * join.after)
    found = left.alias("left").join(right.alias("right"), on & F.expr("left._new OR right._new"))
    pairs = found.select(side_of("left"), side_of("right"))
    # Of records that reached the same time the right one stands behind the left one.
    left_last = F.expr("left._new AND (NOT right._new OR left._reached > right._reached)")
    at = F.when(left_last, F.col("left._at")).otherwise(F.col("right._at"))
    both_open = F.least("left._open_until", "right._open_until") >= at
    return pairs.where(both_open).withColumn("_last", F.when(left_last, "left").otherwise("right"))


def keys(join: StreamJoin) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The key columns of both sides, which are equal in a pair."""
    return join.left.key, join.right.key


def side_of(side: str) -> Column:
    """All columns of an aliased frame as one struct of that name."""
    return F.struct(f"{side}.*").alias(side)


def numbered(pairs: DataFrame) -> DataFrame:
    """The pairs with `PLACED` of their trigger; those of one trigger are numbered in the order of their partners.

    All pairs of a trigger are of one span. Others may have its coordinates, so its own number is part of theirs.
    """
    of_left = F.col("_last") == "left"
    trigger = [F.when(of_left, F.col(f"left.{name}")).otherwise(F.col(f"right.{name}")).alias(name) for name in PLACED]
    partner = F.when(of_left, F.struct(*(f"right.{name}" for name in ("_timestamp", *IDENTITY)))).otherwise(
        F.struct(*(f"left.{name}" for name in ("_timestamp", *IDENTITY)))
    )
    at = F.when(of_left, F.col("left._at")).otherwise(F.col("right._at"))
    found = pairs.select("left", "right", *trigger, partner.alias("_partner"), at.alias("_at"), "_last")
    nth = F.row_number().over(Window.partitionBy(*IDENTITY, "_last").orderBy("_partner"))
    triggered = 2 * from_zero(F.col("_ordinal")) + F.when(of_left, 0).otherwise(1)
    later = F.greatest("left._timestamp", "right._timestamp")
    return found.withColumn("_ordinal", of_both(triggered, nth)).select(
        "left", "right", later.alias("_timestamp"), *IDENTITY[:3], "_batch", "_ordinal", "_at"
    )


def alone(join: StreamJoin, side: str, ours: DataFrame, theirs: DataFrame, pairs: DataFrame, span: Span) -> DataFrame:
    """The records of an outer side that this span closed and that never had a pair; at once those without a key."""
    closed = F.lit(False) if span.time_after is None else F.col("_open_until") < span.time_after
    leaving = ours.where(F.expr("NOT _keyed") | closed)
    found = pairs.select(*(F.col(f"{side}.{name}").alias(name) for name in IDENTITY))
    if span.time_before is not None:  # a pair is as young as its younger record
        emitted = span.own.where(F.col("_timestamp") >= F.timestamp_micros(F.lit(span.time_before - reach(join))))
        had = emitted.where(f"_{side} IS NOT NULL").select(f"_{side}.*")
        found = found.unionByName(had)
    never = leaving.join(found, list(IDENTITY), "left_anti")
    absent = F.lit(None).cast(theirs.schema)
    both = never.alias(side).select(
        *(side_of(side) if name == side else absent.alias(name) for name in ("left", "right"))
    )
    # It stands where stream time passed it, before the record that made it pass.
    at = F.when(F.col(f"{side}._keyed"), F.col(f"{side}._open_until") + 1).otherwise(F.col(f"{side}._at"))
    return both.select(
        "left",
        "right",
        *(F.col(f"{side}.{name}").alias(name) for name in ("_timestamp", *IDENTITY[:3], "_batch")),
        # Below zero, where no pair is.
        (-2 * from_zero(F.col(f"{side}._ordinal")) - (1 if side == "left" else 2)).alias("_ordinal"),
        at.alias("_at"),
    )


def chosen(join: StreamJoin, found: DataFrame) -> DataFrame:
    """The join's columns, and those of ours."""
    key = dict(zip(*keys(join), strict=True))
    computed = [
        (F.coalesce(f"left.{quoted(name)}", f"right.{quoted(key[name])}") if name in key else F.expr(text)).alias(name)
        for name, text in join.select
    ]
    sides = [
        F.when(F.col(f"{side}._topic").isNotNull(), F.struct(*(f"{side}.{name}" for name in IDENTITY))).alias(
            f"_{side}"
        )
        for side in ("left", "right")
    ]
    ours = [F.col(name) for name in ("_timestamp", *IDENTITY[:3], "_batch")]
    ordinal = F.col("_ordinal").cast("bigint").alias("_ordinal")
    return found.select(
        *computed, *ours, F.lit(False).alias("_deleted"), ordinal, F.col("_at").alias("_reached"), *sides
    )
