"""The newest record of every key of a stream: `table`, `global_table`, and `to_table`.

In a partition the newest record is the one with the greatest offset. If a key has records in several partitions, each
landing step contributes the last record of each partition, and the one with the greatest (timestamp, partition,
offset) is the newest. A later landing step takes precedence over an earlier one. So a step needs only its new records:
they contain the newest record of each of their keys. If a landing step was taken in pieces, the other records of that
landing step are needed too.

This does not hold in three cases: several merged topics, whose landing steps have no common order; a stream with
another key, whose records come from several partitions; and a versioned table, where the timestamp alone decides.
There a step reads all records of the keys that have new records, and orders the last ones of each partition by
(timestamp, topic, partition, offset).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from spark.operators.algebra import (
    OURS,
    PRESENT,
    STREAMED,
    Snapshot,
    Span,
    at_keys,
    at_literals,
    cols,
    dropped,
    dropped_with_upstream,
    history,
    new_records,
    overlapping_records,
    present,
    rows,
    semi_join,
    touched,
)
from spark.topology.nodes import Latest
from spark.topology.sql.ddl import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@touched.register(Latest)
def _(latest: Latest, span: Span) -> DataFrame | None:
    new = new_records(latest.source, span)
    if new is None:
        return None
    earlier = overlapping_records(latest.source, span) if latest.by_arrival else None
    if latest.by_arrival and earlier is None:
        return newest(latest, new)
    keys = span.keep(keyed(latest, new).select(*cols(latest.key)).distinct())
    if earlier is not None:
        return newest(latest, new.unionByName(semi_join(earlier, keys, latest.key, span.is_small)))
    records = at_literals(history(latest.source, span.after), span.few(keys, latest.source), latest.key)
    return newest(latest, semi_join(records, keys, latest.key, span.is_small))


@rows.register(Latest)
def _(latest: Latest, keys: DataFrame | None, now: Snapshot) -> DataFrame:
    return present(newest(latest, at_keys(history(latest.source, now), keys, latest.key)))


@dropped.register(Latest)
def _(latest: Latest, span: Span) -> DataFrame:
    return dropped_with_upstream(latest.source, span, F.when(F.expr(f"NOT ({has_key(latest)})"), "null key"))


def has_key(latest: Latest) -> str:
    """The condition under which a record has a key."""
    return " AND ".join(f"{quoted(name)} IS NOT NULL" for name in latest.key)


def keyed(latest: Latest, source: DataFrame) -> DataFrame:
    """The records that have a key; the others make no row."""
    return source.where(has_key(latest))


def newest(latest: Latest, source: DataFrame) -> DataFrame:
    """One row per key: the node's columns, `OURS`, and `_present`, which is false for a record without a value."""
    key = cols(latest.key)
    columns = [column.name for column in latest.columns]
    record = F.struct(
        *cols([name for name in columns if name not in latest.key]),
        *cols(STREAMED),
        (~F.col("_deleted")).alias(PRESENT),
    )
    if latest.history is not None or latest.source.of_changes:
        candidates = keyed(latest, source).select(*key, record.alias("_record"))
    else:
        partition = ("_batch", "_topic", "_partition") if latest.by_arrival else ("_topic", "_partition")
        of_partition = keyed(latest, source).groupBy(*key, *partition)
        candidates = of_partition.agg(F.max_by(record, F.struct("_offset", "_ordinal")).alias("_record"))
    newer = F.struct(*(f"_record.{name}" for name in order(latest)))
    newest_of_key = candidates.groupBy(*key).agg(F.max_by("_record", newer).alias("_record"))
    return newest_of_key.select(*key, "_record.*").select(*cols(columns), *cols(OURS), PRESENT)


def order(latest: Latest) -> tuple[str, ...]:
    """The columns that order records from old to new, the most significant first."""
    if latest.source.of_changes:
        return ("_batch", "_ordinal", *OURS)
    return ("_batch", *OURS, "_ordinal") if latest.by_arrival else (*OURS, "_ordinal")
