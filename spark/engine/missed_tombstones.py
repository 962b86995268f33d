"""Tombstones that compaction removed from a topic before they were landed.

Kafka retains a tombstone for `delete.retention.ms` (24 hours by default) after the log cleaner has passed it. A landing
that did not read for longer may miss some, and would have their rows for ever. If that is possible, and offsets are
missing in the records that it reads next, the landing is compared with the whole topic. A key that has no record in the
topic gets a tombstone, in the commit of the records read. The tombstone has one of the missing offsets, and the
timestamp of the row that it deletes, because the time of the deletion is unknown.

Only a record that compaction removed proves a deletion. A row whose record is before the first offset of its partition
stays: retention, or DeleteRecords, removed the record, and Kafka Streams would keep the row too. A topic that is not
compacted has every other record, so it is not compared. If its configuration cannot be read, the topic is compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from spark.engine.errors import OffsetsExpired
from spark.operators.algebra import OURS, col, cols
from spark.topology.nodes import Latest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Set

    from pyspark.sql import DataFrame

    from spark.engine.inputs.frame_cache import FrameCache
    from spark.engine.log.position import Position
    from spark.engine.ports import Kafka
    from spark.topology.nodes import Node
    from spark.topology.topology import Source, Topology

LEEWAY = 3_600_000
"""Milliseconds from a cut to the end of the landing that reads up to it, at most."""

DAY = 86_400_000
"""Milliseconds: Kafka's default of `delete.retention.ms`, used if the configuration of the topic cannot be read."""


def newest_of(topology: Topology, source: Source) -> list[Latest]:
    """Return the nodes that hold the newest record of every key of a source, or of a stream derived from it.

    Only these have rows that a tombstone deletes; a missing tombstone does not change any other node.
    """
    found: list[Latest] = []
    read = {source.landing}
    for table in topology.tables:
        found += _newest(table.plan, read)
        if table.plan.is_stream and any(scan.table in read for scan in table.inputs):
            read.add(table.name)
    return found


def _newest(node: Node, read: Set[str]) -> Iterator[Latest]:
    if isinstance(node, Latest) and any(scan.table in read for scan in node.source.scans):
        yield node
    for source in node.sources:
        yield from _newest(source, read)


def may_miss(kafka: Kafka, source: Source, was: Position, now: int) -> bool:
    """Return whether compaction may have removed tombstones that were written since the landing's last commit.

    An idle topic commits nothing, so the last commit may be older than the last read. Then this may be True although no
    tombstone is missing, and the comparison finds none.

    Args:
        kafka: the cluster of the topic. If it does not show the configuration, compaction and `DAY` are assumed.
        source: the topic.
        was: the landing's position.
        now: milliseconds since 1970.
    """
    if was.n == 0:
        return False
    config = kafka.topic_config(source.topic) or {}
    if "compact" not in config.get("cleanup.policy", "compact"):
        return False
    retention = int(config.get("delete.retention.ms", DAY))
    return was.read_at is None or now - was.read_at >= retention - min(LEEWAY, retention // 2)


def missing(records: DataFrame, start: Mapping[int, int], end: Mapping[int, int]) -> DataFrame:
    """Return the ranges of offsets without a record.

    Columns: `_partition`; `_first`, the first offset; `_width`, the number of offsets; `_before`, the number of missing
    offsets in earlier ranges of the partition.

    Args:
        records: the records read, with `partition` and `offset`.
        start: by partition, the first offset that was read.
        end: by partition, the offset after the last one.
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
    cache: FrameCache,
    source: Source,
    versioned: bool,
    landing: DataFrame,
    content: DataFrame,
    first: Mapping[int, int],
    ranges: DataFrame,
    batch: int,
) -> DataFrame:
    """Return tombstones for the keys that have a row in the landing, and no record in the topic.

    Columns: those of `spark.engine.land.landed`.

    Args:
        cache: caches the tombstones until they are committed.
        source: the topic.
        versioned: whether a table holds the newest records by timestamp.
        landing: the rows of the landing so far.
        content: the keys of all records of the topic.
        first: by partition, the first offset that the topic has.
        ranges: the `missing` ranges of the records that are landed now.
        batch: the number of the landing's commit.

    Raises:
        OffsetsExpired: a partition has more such keys than missing offsets.
    """
    key = [column.name for column in source.consumed.key]
    known = landing.where(" AND ".join(["_error IS NULL", *(f"`{name}` IS NOT NULL" for name in key)]))
    landed = F.struct("_batch", "_offset")
    newest = known.groupBy(*cols(key)).agg(
        F.max_by(
            F.struct("_deleted", "_offset", "_partition", "_timestamp", "_topic"),
            F.struct(*OURS) if versioned else landed,
        ).alias("_is"),
        F.max_by("_deleted", landed).alias("_late"),  # true for a key with a row: its tombstone landed late
    )
    there = content.select(*cols(key)).distinct()
    same = [col(name, "newest").eqNullSafe(col(name, "there")) for name in key]
    begins = F.create_map(*(F.lit(one) for partition in first for one in (partition, first[partition])))
    rows = newest.where(~F.col("_is._deleted") & (F.col("_is._offset") >= begins[F.col("_is._partition")]))
    gone = rows.alias("newest").join(there.alias("there"), same, "left_anti")
    rank = F.row_number().over(Window.partitionBy("_is._partition").orderBy("_late", *cols(key))) - 1
    ahead = F.col("_rank") - F.col("_before")
    at = (F.col("_is._partition") == F.col("_partition")) & (ahead >= 0) & (ahead < F.col("_width"))
    placed = cache.cache(gone.withColumn("_rank", rank).join(ranges, at, "left"))
    lacking = placed.where("_first IS NULL AND NOT _late").count()
    if lacking:
        raise OffsetsExpired(
            f"topic {source.topic} has no record any more of {lacking} keys that have rows, and fewer offsets are "
            f"missing in what comes next: it got more partitions while nobody read it, or the tombstones were passed "
            f"before a landing looked for them. Land it under another topology name, or move {source.landing} away to "
            f"start over"
        )
    value = [column for column in source.consumed.columns if column.name not in key]
    return placed.where("_first IS NOT NULL").select(
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
