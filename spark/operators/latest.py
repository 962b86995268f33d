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

An event of a Debezium topic may leave values out: `carried` has where they come from. Its table has a column
`_unavailable` with the columns of a row whose value is unknown.
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
from spark.operators.carried import (
    LACKING,
    REVEALS,
    UNAVAILABLE,
    not_truncated,
    with_carried,
    with_time,
)
from spark.topology.nodes import Latest, Records
from spark.topology.sql.ddl import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@touched.register(Latest)
def _(latest: Latest, span: Span) -> DataFrame | None:
    new = new_records(latest.source, span)
    if new is None:
        return None
    earlier = overlapping_records(latest.source, span) if latest.by_arrival else None
    stream = captured(latest)
    if stream is not None and (earlier is not None or not span.is_empty(new.where(REVEALS))):
        return revealed(latest, stream, new, span)
    if latest.by_arrival and earlier is None:
        return newest(latest, new if span.is_small else by_key(latest, new))
    keys = span.keep(keyed(latest, new).select(*cols(latest.key)).distinct())
    if earlier is not None:
        return newest(latest, new.unionByName(semi_join(earlier, keys, latest.key, span.is_small)))
    records = at_literals(history(latest.source, span.after), span.few(keys, latest.source), latest.key)
    return newest(latest, semi_join(records, keys, latest.key, span.is_small))


@rows.register(Latest)
def _(latest: Latest, keys: DataFrame | None, now: Snapshot) -> DataFrame:
    stream, records = captured(latest), history(latest.source, now)
    if keys is None:
        records = by_key(latest, records)
    if stream is None:
        return present(newest(latest, at_keys(records, keys, latest.key)))
    found = present(newest(latest, at_keys(not_truncated(stream, records), keys, latest.key)))
    if not stream.carries or records.where(LACKING).isEmpty():
        return found
    return with_carried(stream, found, now, by_time=latest.history is not None)


def revealed(latest: Latest, stream: Records, new: DataFrame, span: Span) -> DataFrame:
    """The touched keys of a span with records that leave values out, or that may complete other keys.

    The latter are all keys that a change of a key made and that leave values out: what the span has of one key may be
    what another one lacks, by any number of changes. A record that empties the table touches every key.
    """
    records = not_truncated(stream, history(stream, span.after))
    emptied = stream.truncates and not span.is_empty(new.where("_truncated"))
    others = records if emptied else records.where(f"{LACKING} AND _old_key IS NOT NULL")
    both = keyed(latest, new).select(*cols(latest.key)).unionByName(keyed(latest, others).select(*cols(latest.key)))
    keys = span.keep(both.distinct())
    found = span.keep(newest(latest, semi_join(records, keys, latest.key, span.is_small)))
    if not stream.carries:
        return found
    return with_carried(stream, found, span.after, latest.history is not None, span.keep)


def captured(latest: Latest) -> Records | None:
    """The records of a Debezium topic that the table is of; None if it is of anything else."""
    return latest.source if isinstance(latest.source, Records) and latest.source.captured else None


@dropped.register(Latest)
def _(latest: Latest, span: Span) -> DataFrame:
    return dropped_with_upstream(latest.source, span, F.when(F.expr(f"NOT ({has_key(latest)})"), "null key"))


def has_key(latest: Latest) -> str:
    """The condition under which a record has a key."""
    return " AND ".join(f"{quoted(name)} IS NOT NULL" for name in latest.key)


def keyed(latest: Latest, source: DataFrame) -> DataFrame:
    """The records that have a key; the others make no row."""
    return source.where(has_key(latest))


def by_key(latest: Latest, records: DataFrame) -> DataFrame:
    """The same records, those of a key in one partition if `newest` has two aggregations: it would shuffle for each."""
    return records if picks_at_once(latest) else records.repartition(*cols(latest.key))


def picks_at_once(latest: Latest) -> bool:
    """Whether all records of a key have one order, and not only those of a partition."""
    return latest.history is not None or latest.source.of_changes


def newest(latest: Latest, source: DataFrame) -> DataFrame:
    """One row per key: the node's columns, `OURS`, and `_present`, which is false for a record without a value.

    Of a Debezium topic also `_unavailable`.
    """
    key, stream, records = cols(latest.key), captured(latest), keyed(latest, source)
    columns = [column.name for column in latest.columns]
    ours = () if stream is None else (UNAVAILABLE,)
    record = F.struct(
        *cols([name for name in columns if name not in latest.key]),
        *cols((*STREAMED, *ours)),
        (~F.col("_deleted")).alias(PRESENT),
    ).alias("_record")
    places = {name: F.col(f"_record.{name}") for name in order(latest)}
    if stream is not None:
        places["_timestamp"] = F.col("_time")
    if picks_at_once(latest):
        candidates = records.select(*key, record)
        if stream is not None:
            candidates = with_time(stream, records).select(*key, record, "_time")
    else:
        partition = ("_batch", "_topic", "_partition") if latest.by_arrival else ("_topic", "_partition")
        place = F.struct("_offset", "_ordinal")
        last = [F.max_by(record, place).alias("_record")]
        if stream is not None:
            last.append(F.max_by("_timestamp", F.when(F.col("_timestamp").isNotNull(), place)).alias("_time"))
        candidates = records.groupBy(*key, *cols(partition)).agg(*last)
    newest_of_key = candidates.groupBy(*key).agg(F.max_by("_record", F.struct(*places.values())).alias("_record"))
    return newest_of_key.select(*key, "_record.*").select(*cols(columns), *cols(OURS), *ours, PRESENT)


def order(latest: Latest) -> tuple[str, ...]:
    """The columns that order records from old to new, the most significant first."""
    if latest.source.of_changes:
        return ("_batch", "_ordinal", *OURS)
    return ("_batch", *OURS, "_ordinal") if latest.by_arrival else (*OURS, "_ordinal")
