"""Joins of two streams: pairs of records of one key whose event times are within a window.

A record is open until stream time passes its event time plus the longest wait for a partner plus grace. A record that
is not open when it arrives is late, and dropped. Otherwise it is paired with every open record of the other side
within the window. The later record of a pair triggers it, with stream time at its own place. A record of an outer side
without a partner gets a row of its own when stream time closes it. So the output depends only on the order of the
records, not on how they were cut into spans, and stream time is the only state. Earlier records are read from their
landing, as far back as a record can be open. The rows emitted before show whether a record had a partner.
(Kafka Streams has several stream times here, and emits some rows early, or twice: tests/conformance/divergences.yaml.)
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from spark.operators.algebra import IDENTITY, PLACED, dropped, dropped_by, emit, history, records
from spark.operators.order import from_zero, micros, pair_number, stream_time
from spark.topology.nodes import StreamJoin
from spark.topology.sql.ddl import quoted

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column

    from spark.operators.algebra import Span
    from spark.topology.nodes import Node

# A stored join also has `_left` and `_right`: the `IDENTITY` of both records, null if there is none.


@records.register(StreamJoin)
def _(join: StreamJoin, read: Callable[[Node], DataFrame]) -> DataFrame:
    return read(join)


@emit.register(StreamJoin)
def _(join: StreamJoin, span: Span) -> DataFrame:
    left, right = span.keep(open_records(join, "left", span)), span.keep(open_records(join, "right", span))
    pairs = span.keep(paired(join, left, right))
    emitted = [numbered(pairs)]
    if join.how in ("left", "outer"):
        emitted.append(unpaired(join, "left", left, right, pairs, span))
    if join.how == "outer":
        emitted.append(unpaired(join, "right", right, left, pairs, span))
    return output(join, reduce(DataFrame.unionByName, emitted))


@dropped.register(StreamJoin)
def _(join: StreamJoin, span: Span) -> DataFrame:
    left = dropped_by(emit(join.left, span), reason(join, "left", span))
    return left.unionByName(dropped_by(emit(join.right, span), reason(join, "right", span)))


def wait(join: StreamJoin, side: str) -> int:
    """How long a record of a side stays open, in microseconds: the longest wait for a partner, plus grace."""
    return 1000 * (max(join.after if side == "left" else join.before, 0) + join.grace)


def reach(join: StreamJoin) -> int:
    """How far before stream time an open record can be, in microseconds."""
    return 1000 * (max(join.before, join.after, 0) + join.grace)


def reason(join: StreamJoin, side: str, span: Span) -> Column:
    """Why a new record of a side is dropped; null if it is not."""
    node = join.left if side == "left" else join.right
    no_key = F.expr(" OR ".join(f"{quoted(name)} IS NULL" for name in node.key))
    emits_unpaired = join.how == "outer" or (join.how == "left" and side == "left")
    late = micros() + wait(join, side) < stream_time(span)
    return (
        F.when(F.col("_deleted"), "null value")
        .when(F.col("_timestamp").isNull(), "no timestamp")
        .when(no_key, None if emits_unpaired else "null key")
        .when(late, "late")
    )


def open_records(join: StreamJoin, side: str, span: Span) -> DataFrame:
    """The records of a side that may have a row in this span.

    They are the new records that are not dropped, and older ones that were open when the span began. Those were open
    when they arrived, since stream time only grows. Columns: the stream's, `PLACED`, `_keyed` (its key has no null),
    `_open_until` and `_at` (stream time at a new record; both in microseconds), and `_new`.
    """
    node = join.left if side == "left" else join.right
    keyed = F.expr(" AND ".join(f"{quoted(name)} IS NOT NULL" for name in node.key)).alias("_keyed")
    until = (micros() + wait(join, side)).alias("_open_until")
    new = emit(node, span).where(reason(join, side, span).isNull())
    new = new.select("*", keyed, until, stream_time(span).alias("_at"), F.lit(True).alias("_new"))
    if span.time_before is None:
        return new

    since = F.timestamp_micros(F.lit(span.time_before - reach(join)))
    older = history(node, span.before).where(F.col("_timestamp") >= since).select("*", keyed, until)
    older = older.where("NOT _deleted AND _keyed").where(F.col("_open_until") >= span.time_before)
    return new.unionByName(older.select("*", F.lit(None).cast("bigint").alias("_at"), F.lit(False).alias("_new")))


def paired(join: StreamJoin, left: DataFrame, right: DataFrame) -> DataFrame:
    """The pairs that a record of this span triggers: structs `left` and `right`, and `_last` (the trigger's side)."""
    difference = micros("right._timestamp") - micros("left._timestamp")
    equal = [f"left.{quoted(name)} = right.{quoted(other)}" for name, other in zip(*keys(join), strict=True)]
    on = F.expr(" AND ".join(equal)) & difference.between(-1000 * join.before, 1000 * join.after)
    matches = left.alias("left").join(right.alias("right"), on & F.expr("left._new OR right._new"))
    pairs = matches.select(side_struct("left"), side_struct("right"))
    # Of records that reached the same time, the right one comes after the left one.
    left_last = F.expr("left._new AND (NOT right._new OR left._reached > right._reached)")
    at = F.when(left_last, F.col("left._at")).otherwise(F.col("right._at"))
    both_open = F.least("left._open_until", "right._open_until") >= at
    return pairs.where(both_open).withColumn("_last", F.when(left_last, "left").otherwise("right"))


def keys(join: StreamJoin) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The key columns of both sides, which are equal in a pair."""
    return join.left.key, join.right.key


def side_struct(side: str) -> Column:
    """All columns of an aliased frame as one struct of that name."""
    return F.struct(f"{side}.*").alias(side)


def numbered(pairs: DataFrame) -> DataFrame:
    """The pairs with the time of the later record, and the coordinates, `_batch` and `_at` of their trigger.

    `_ordinal` numbers the pairs of one trigger in the order of their partners. All pairs of a trigger are in one span.
    Other triggers may have the same coordinates, so `_ordinal` includes the trigger's own ordinal.
    """
    left_last = F.col("_last") == "left"
    trigger = [
        F.when(left_last, F.col(f"left.{name}")).otherwise(F.col(f"right.{name}")).alias(name) for name in PLACED
    ]
    partner = F.when(left_last, F.struct(*(f"right.{name}" for name in ("_timestamp", *IDENTITY)))).otherwise(
        F.struct(*(f"left.{name}" for name in ("_timestamp", *IDENTITY)))
    )
    at = F.when(left_last, F.col("left._at")).otherwise(F.col("right._at"))
    triggered = pairs.select("left", "right", *trigger, partner.alias("_partner"), at.alias("_at"), "_last")
    nth = F.row_number().over(Window.partitionBy(*IDENTITY, "_last").orderBy("_partner"))
    of_trigger = 2 * from_zero(F.col("_ordinal")) + F.when(left_last, 0).otherwise(1)
    later = F.greatest("left._timestamp", "right._timestamp")
    return triggered.withColumn("_ordinal", pair_number(of_trigger, nth)).select(
        "left", "right", later.alias("_timestamp"), *IDENTITY[:3], "_batch", "_ordinal", "_at"
    )


def unpaired(join: StreamJoin, side: str, own: DataFrame, other: DataFrame, pairs: DataFrame, span: Span) -> DataFrame:
    """The records of an outer side that this span closed without a partner, and those without a key, at once."""
    closed = F.lit(False) if span.time_after is None else F.col("_open_until") < span.time_after
    leaving = own.where(F.expr("NOT _keyed") | closed)
    with_partner = pairs.select(*(F.col(f"{side}.{name}").alias(name) for name in IDENTITY))
    if span.time_before is not None:  # a pair has the time of its later record
        emitted = span.own.where(F.col("_timestamp") >= F.timestamp_micros(F.lit(span.time_before - reach(join))))
        with_partner = with_partner.unionByName(emitted.where(f"_{side} IS NOT NULL").select(f"_{side}.*"))
    without_partner = leaving.join(with_partner, list(IDENTITY), "left_anti")
    absent = F.lit(None).cast(other.schema)
    both = without_partner.alias(side).select(
        *(side_struct(side) if name == side else absent.alias(name) for name in ("left", "right"))
    )
    # Its place is where stream time passes `_open_until`, before the record that advanced stream time.
    at = F.when(F.col(f"{side}._keyed"), F.col(f"{side}._open_until") + 1).otherwise(F.col(f"{side}._at"))
    return both.select(
        "left",
        "right",
        *(F.col(f"{side}.{name}").alias(name) for name in ("_timestamp", *IDENTITY[:3], "_batch")),
        # Ordinals of pairs are not negative, so these never equal one.
        (-2 * from_zero(F.col(f"{side}._ordinal")) - (1 if side == "left" else 2)).alias("_ordinal"),
        at.alias("_at"),
    )


def output(join: StreamJoin, emitted: DataFrame) -> DataFrame:
    """The join's columns, `PLACED`, and `_left` and `_right`."""
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
    return emitted.select(
        *computed, *ours, F.lit(False).alias("_deleted"), ordinal, F.col("_at").alias("_reached"), *sides
    )
