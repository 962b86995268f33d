"""The merge order of a span's records, and stream time in that order (KIP-353).

Kafka Streams takes, among the records at the heads of the partitions, the one with the smallest timestamp. In closed
form, records sort by the running maximum of the timestamps in their partition, which starts again with the span; then
tables before streams and the left side before the right; then by topic, partition, offset. Stream time at a record is
the greatest timestamp up to it. So it is the greater of stream time before the span and the record's own running
maximum, which needs a window per partition and no global sort.
A derived record has the place of the record that triggered it: it is stored with the time reached there.
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
"""The rank of a source among records that reached the same time: smaller comes first."""

BITS = 16
"""The low bits of a combined number, for its second part: up to 65,536 elements of a record, partners of a trigger, or
rows that one record changes in a commit, are numbered in their order."""

WHOLE = 58
"""The bits of an exact combined number, which can then be doubled a few times in a bigint. Longer ones are hashed."""


def with_reached(records: DataFrame, by_time: bool = False) -> DataFrame:
    """A span's records of one source with `_reached` (microseconds). Records without key or value advance it too.

    `by_time`: the records are rows of windows, and those of one commit are in the order in which their windows closed.
    """
    order = ("_batch", *(("_window_end", "_timestamp") if by_time else ()), "_offset", "_ordinal")
    partition = Window.partitionBy("_topic", "_partition").orderBy(*order).rowsBetween(Window.unboundedPreceding, 0)
    return records.withColumn("_reached", F.max(micros()).over(partition))


def micros(name: str = "_timestamp") -> Column:
    """An event time in microseconds since 1970."""
    return F.unix_micros(F.col(name))


def millis(microseconds: Column) -> Column:
    """Microseconds as whole milliseconds."""
    return F.unix_millis(F.timestamp_micros(microseconds))


def from_zero(ordinal: Column) -> Column:
    """An ordinal as a number from 0: a record that an outer stream join emits without a partner has a negative one."""
    return F.when(ordinal < 0, -2 * ordinal - 1).otherwise(2 * ordinal)


def pair_number(first: Column, second: Column) -> Column:
    """One number for every pair of numbers from 0, ordered by the first, then the second.

    A pair that is too long is hashed. Only the few records with equal coordinates must differ.
    """
    fits = (first < 2 ** (WHOLE - BITS)) & (second < 2**BITS)
    hashed = F.xxhash64(first, second).bitwiseAND(2**WHOLE - 1) + 2**WHOLE
    return F.when(fits, first * 2**BITS + second).otherwise(hashed).cast("bigint")


def with_ordinals(changes: DataFrame, key: tuple[str, ...]) -> DataFrame:
    """Changes of a table, each with the `_batch` of its commit, as records with `_ordinal`, which grows by commit.

    In a commit, deletions come before new rows: under another key, both may belong to one key. The rows that one record
    changed, such as all rows that look it up, have its coordinates. They are numbered in the order of their key.
    """
    same_coordinates = Window.partitionBy("_batch", "_deleted", "_topic", "_partition", "_offset").orderBy(
        *map(quoted, key)
    )
    commit = 2 * F.col("_batch") + F.when(F.col("_deleted"), 0).otherwise(1)
    return changes.withColumn("_ordinal", pair_number(commit, F.row_number().over(same_coordinates) - 1))


def place(rank: int) -> Column:
    """A record's place in the merge order: smaller comes first, and null `_reached` (before the span) before all."""
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
    """One row about some records: `what` (null), `time`, `records`, `lateness` and `latest`.

    `time` is their greatest timestamp and `records` their number; `lateness` is the sum, and `latest` the maximum, of
    the time by which they are before stream time. Times are in microseconds.
    """
    lateness = F.greatest(stream_time(span) - micros(), F.lit(0))
    return records.agg(
        F.lit(None).cast("string").alias("what"),
        F.max(micros()).alias("time"),
        F.count(F.lit(1)).alias("records"),
        F.coalesce(F.sum(lateness.cast("double")), F.lit(0.0)).alias("lateness"),  # 5,000 clocks at 0 overflow a bigint
        F.coalesce(F.max(lateness), F.lit(0)).alias("latest"),
    )
