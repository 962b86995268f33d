"""The merge order of a span's records, and stream time in it (KIP-353).

Kafka Streams takes, of all records that are there, the one with the smallest timestamp at the head of its partition.
In closed form: by the running maximum of the timestamps in the record's partition, begun with the span; then tables
before streams and the left side before the right, then topic, partition, offset. Stream time at a record is the
greatest timestamp up to it, so it is the greater of stream time before the span and the record's own running maximum:
a window per partition, never a sort of the whole.
A derived record has the place of the record that triggered it: it was stored with the time reached there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from spark.topology.sql.ddl import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from spark.operators.algebra import Span

TABLE, LEFT, RIGHT = 0, 1, 2
"""The rank of a source among records that reached the same time."""

BITS = 16
"""Of a number made of two, those of the second: so many elements of a record, partners of a trigger, rows of a commit
that come of one record, are told apart in their order."""

WHOLE = 58
"""The bits that a number made of two may have, and still be doubled a few times. Longer ones are a hash."""


def reached(records: DataFrame, by_time: bool = False) -> DataFrame:
    """A span's records of one source with `_reached`: those without key or value count as well.

    `by_time` says that they are rows of windows, and those of one commit came as their windows closed.
    """
    order = ("_batch", *(("_window_end", "_timestamp") if by_time else ()), "_offset", "_ordinal")
    partition = Window.partitionBy("_topic", "_partition").orderBy(*order).rowsBetween(Window.unboundedPreceding, 0)
    return records.withColumn("_reached", F.max(micros()).over(partition))


def micros(name: str = "_timestamp") -> Column:
    """An event time in microseconds since 1970."""
    return F.unix_micros(F.col(name))


def millis(microseconds: Column) -> Column:
    """Microseconds in whole milliseconds."""
    return F.unix_millis(F.timestamp_micros(microseconds))


def from_zero(ordinal: Column) -> Column:
    """An ordinal as a number from 0: what a join emitted alone has one below."""
    return F.when(ordinal < 0, -2 * ordinal - 1).otherwise(2 * ordinal)


def of_both(one: Column, other: Column) -> Column:
    """One number for every pair of numbers from 0, by the first and then the second.

    Where it would be too long it is a hash: of the few records that have the same coordinates, no two have the same.
    """
    fits = (one < 2 ** (WHOLE - BITS)) & (other < 2**BITS)
    hashed = F.xxhash64(one, other).bitwiseAND(2**WHOLE - 1) + 2**WHOLE
    return F.when(fits, one * 2**BITS + other).otherwise(hashed).cast("bigint")


def told_apart(changes: DataFrame, key: tuple[str, ...]) -> DataFrame:
    """Changes of a table, each with the `_batch` of its commit, as records with `_ordinal`, which grows by commit.

    What a commit put there is behind what it took away: under another key, both may be one key's. The rows that one
    record changed, as of all who look it up, have its coordinates: they are numbered, by their key.
    """
    alike = Window.partitionBy("_batch", "_deleted", "_topic", "_partition", "_offset").orderBy(*map(quoted, key))
    commit = 2 * F.col("_batch") + F.when(F.col("_deleted"), 0).otherwise(1)
    return changes.withColumn("_ordinal", of_both(commit, F.row_number().over(alike) - 1))


def place(rank: int) -> Column:
    """Where a record stands: smaller comes earlier, and what was there before the span comes first."""
    return F.struct(
        F.col("_reached").alias("reached"),
        F.lit(rank).alias("rank"),
        *(F.col(f"_{name}").alias(name) for name in ("topic", "partition", "offset", "ordinal")),
    )


def stream_time(span: Span) -> Column:
    """Stream time at a record of the span, in microseconds."""
    before = F.lit(span.time_before).cast("bigint")
    return F.greatest(before, F.col("_reached"))


def arrivals(records: DataFrame, span: Span) -> DataFrame:
    """One row: `time`, the greatest timestamp of some records, their number, and how far behind (microseconds)."""
    behind = F.greatest(stream_time(span) - micros(), F.lit(0))
    return records.agg(
        F.lit(None).cast("string").alias("what"),
        F.max(micros()).alias("time"),
        F.count(F.lit(1)).alias("records"),
        F.coalesce(F.sum(behind.cast("double")), F.lit(0.0)).alias("lateness"),  # a bigint overflows: 5,000 clocks at 0
        F.coalesce(F.max(behind), F.lit(0)).alias("latest"),
    )
