"""The newest record of every key of a landing.

Newest is by offset within a partition. A key that lives in several partitions takes, of the last records that one
landing step found in each, the one with the greatest (timestamp, partition, offset); a later landing step goes before
an earlier one. So a step needs only the records it gained: a key's newest record is always among them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from spark.operators.algebra import OURS, PRESENT, Snapshot, Span, at, cols, present, rows, touched
from spark.topology.nodes import Latest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@touched.register(Latest)
def _(latest: Latest, span: Span) -> DataFrame | None:
    return newest(latest, span.records(latest.source)) if span.moved(latest.source) else None


@rows.register(Latest)
def _(latest: Latest, keys: DataFrame | None, now: Snapshot) -> DataFrame:
    return present(newest(latest, at(now.stored(latest.source), keys, latest.key)))


def newest(latest: Latest, records: DataFrame) -> DataFrame:
    """One row per key. Records without a key, or that did not decode, are no rows; a tombstone is an absence."""
    key = cols(latest.key)
    decoded = records.where("_error IS NULL").where(" AND ".join(f"`{name}` IS NOT NULL" for name in latest.key))
    columns = [column.name for column in latest.columns]
    record = F.struct(
        *cols([name for name in columns if name not in latest.key]),
        *cols(OURS),
        "_batch",
        (~F.col("_deleted")).alias(PRESENT),
    )
    per_partition = decoded.groupBy(*key, "_batch", "_partition").agg(F.max_by(record, "_offset").alias("_record"))
    newer = F.struct("_record._batch", "_record._timestamp", "_record._partition", "_record._offset")
    last = per_partition.groupBy(*key).agg(F.max_by("_record", newer).alias("_record"))
    return last.select(*key, "_record.*").select(*cols(columns), *cols(OURS), PRESENT)
