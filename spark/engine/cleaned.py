"""Tombstones that compaction removed from a topic before they were landed.

Kafka keeps a tombstone for `delete.retention.ms` (24 hours by default) after the log cleaner has passed it. A landing
that was away for longer may miss some, and would keep their rows for ever. Where that can be, and offsets are missing
in what it reads next, the landing is compared with all that the topic holds: a key of which the topic has no record
any more gets a tombstone, in the commit that lands what is left. It takes one of the offsets that are missing, and the
timestamp of the row that it deletes: when the key was deleted, nobody knows any more.

Only compaction says that. A row whose record is before the first offset of its partition stays: retention, or somebody,
removed that, and Kafka Streams would keep the row too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from spark.engine.errors import OffsetsExpired
from spark.operators.algebra import col, cols

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

    from spark.engine.doors import Kafka
    from spark.engine.kept import Kept
    from spark.engine.position import Position
    from spark.topology.topology import Source

LEEWAY = 3_600_000
"""Milliseconds that may pass from a cut to the end of the landing that reads up to it."""

DAY = 86_400_000
"""Kafka's default of `delete.retention.ms`: what is taken where the cluster tells nobody of us."""


def may_miss(kafka: Kafka, source: Source, was: Position, now: int) -> bool:
    """Whether tombstones may be gone that were written since a landing last read its topic to the end.

    Args:
        kafka: where the topic is.
        source: a table, or a global table; of a stream a record that is gone deletes nothing.
        was: the landing's position.
        now: milliseconds since 1970.

    Raises:
        OffsetsExpired: it may be, and the cluster does not tell whether the topic is compacted.
    """
    if source.kind == "stream" or was.n == 0:
        return False
    config = kafka.topic_config(source.topic)
    if config is not None and "compact" not in config.get("cleanup.policy", ""):
        return False
    kept = DAY if config is None else int(config.get("delete.retention.ms", DAY))
    if was.read_at is not None and now - was.read_at < kept - min(LEEWAY, kept // 2):
        return False
    if config is None:
        raise OffsetsExpired(
            f"topic {source.topic} was not read for about a day, and Kafka does not tell us whether it is compacted: "
            f"tombstones may be gone. Allow us the operation DescribeConfigs on it (an ACL)"
        )
    return True


def missing(records: DataFrame, start: Mapping[int, int], end: Mapping[int, int]) -> DataFrame:
    """The ranges of offsets that have no record: `_partition`, `_first`, `_width`, and how many are missing `_before`.

    Args:
        records: what was read, of it `partition` and `offset`.
        start: of each partition, the first offset that was read.
        end: of each partition, the offset behind the last.
    """
    session = records.sparkSession
    ends = [(partition, offset) for partition, offset in end.items() if offset > start[partition]]
    there = records.select("partition", "offset").union(session.createDataFrame(ends, "partition int, offset bigint"))
    starts = F.create_map(*(F.lit(one) for partition in start for one in (partition, start[partition])))
    by_offset = Window.partitionBy("partition").orderBy("offset")
    first = F.coalesce(F.lag("offset").over(by_offset) + 1, starts[F.col("partition")])
    ranges = there.select(
        F.col("partition").alias("_partition"), first.alias("_first"), (F.col("offset") - first).alias("_width")
    )
    before = F.sum("_width").over(Window.partitionBy("_partition").orderBy("_first")) - F.col("_width")
    return ranges.where("_width > 0").withColumn("_before", before)


def tombstones(
    keeps: Kept,
    source: Source,
    landing: DataFrame,
    content: DataFrame,
    first: Mapping[int, int],
    ranges: DataFrame,
    batch: int,
) -> DataFrame:
    """A landing's tombstones for the keys that have a row there, and no record in the topic.

    Args:
        keeps: keeps them until they are committed.
        source: what was landed.
        landing: its rows so far.
        content: all records of the topic, as rows of a landing.
        first: of each partition, the first offset that the topic still has.
        ranges: the offsets that are `missing` in what is landed now.
        batch: the number of the landing's commit.

    Raises:
        OffsetsExpired: a partition has more such keys than offsets that are missing.
    """
    key = [column.name for column in source.consumed.key]
    known = landing.where(" AND ".join(["_error IS NULL", *(f"`{name}` IS NOT NULL" for name in key)]))
    newest = known.groupBy(*cols(key)).agg(
        F.max_by(
            F.struct("_deleted", "_offset", "_partition", "_timestamp", "_topic"), F.struct("_batch", "_offset")
        ).alias("_is")
    )
    there = content.select(*cols(key)).distinct()
    same = [col(name, "newest").eqNullSafe(col(name, "there")) for name in key]
    begins = F.create_map(*(F.lit(one) for partition in first for one in (partition, first[partition])))
    rows = newest.where(~F.col("_is._deleted") & (F.col("_is._offset") >= begins[F.col("_is._partition")]))
    gone = rows.alias("newest").join(there.alias("there"), same, "left_anti")
    rank = F.row_number().over(Window.partitionBy("_is._partition").orderBy(*cols(key))) - 1
    ahead = F.col("_rank") - F.col("_before")
    at = (F.col("_is._partition") == F.col("_partition")) & (ahead >= 0) & (ahead < F.col("_width"))
    placed = keeps.keep(gone.withColumn("_rank", rank).join(ranges, at, "left"))
    lacking = placed.where("_first IS NULL").count()
    if lacking:
        raise OffsetsExpired(
            f"topic {source.topic} has no record any more of {lacking} keys that have rows, and fewer offsets are "
            f"missing: it got more partitions while nobody read it. Land it under another "
            f"topology name, or move {source.landing} away to start over"
        )
    value = [column for column in source.consumed.value if column.name not in key]
    return placed.select(
        *cols(key),
        *(F.lit(None).cast(str(column.type)).alias(column.name) for column in value),
        F.col("_is._timestamp").alias("_timestamp"),
        F.col("_is._topic").alias("_topic"),
        F.col("_is._partition").alias("_partition"),
        (F.col("_first") + ahead).alias("_offset"),
        F.lit(True).alias("_deleted"),
        F.lit(None).cast("string").alias("_error"),
        F.lit(None).cast("binary").alias("_key"),
        F.lit(None).cast("binary").alias("_value"),
        F.lit(batch).cast("bigint").alias("_batch"),
    )
