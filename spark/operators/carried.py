"""Values that an event of a Debezium topic leaves out are carried over from the newest earlier event that has them.

The database does not log a long value that a change leaves as it was (PostgreSQL's TOAST), so the event has a
placeholder for it. The landing names these columns (`_unavailable`). The value is that of the newest earlier record of
the key that has it, since the last record that deleted the key.

A change of a key is two events: one deletes the old key and names the new one (`_new_key`), one makes a row at the new
key and names the old one (`_old_key`). Both have the same `_change`. The value lies in the records of the old key, up
to the one that deletes it. The two may be in different partitions and land in any order; while the first one has not
landed, the value is unknown. The records of a key from one deletion to the next are a life of the key; the lives that
changes of a key link are the life of one row of the database.

A value that no record has is null, and `_unavailable` names it.

Only records that leave values out are read again, with the records of their keys and of all keys that changed. If there
are none, the landing is read as that of any other topic.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from spark.operators.algebra import col, cols, history, semi_join
from spark.topology.envelope import may_be_unavailable
from spark.topology.nodes import Records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame

    from spark.operators.algebra import Snapshot, Span
    from spark.topology.nodes import Node

UNAVAILABLE = "_unavailable"
LACKING = f"{UNAVAILABLE} IS NOT NULL"
"""The condition of a record that leaves values out."""
REVEALS = f"{LACKING} OR _new_key IS NOT NULL OR _truncated"
"""The condition of a record that leaves values out, or may change the row of another key."""
COORDINATES = ("_topic", "_partition", "_offset")


def with_carried(
    stream: Records,
    found: DataFrame,
    now: Snapshot,
    by_time: bool,
    keep: Callable[[DataFrame], DataFrame] = lambda frame: frame,
) -> DataFrame:
    """Records, or rows made of them, with the values that they leave out, as far as they are known at a snapshot.

    Args:
        stream: the records of the topic.
        found: some of its records, with the stream's columns, their coordinates and `_unavailable`.
        now: the snapshot with all records that may have the values.
        by_time: whether the order of a key's records is that of their timestamps, as in a versioned table.
        keep: caches a frame that is read more than once, as `Span.keep` does.

    Returns:
        The columns of `found`; `_unavailable` has the columns that are unknown, and is null if there are none.
    """
    key, long = (
        stream.key,
        [one.name for one in stream.columns if may_be_unavailable(one) and one.name not in stream.key],
    )
    if not long:
        return found
    everything = not_truncated(stream, history(stream, now))
    moved, lost = (
        everything.where("_new_key IS NOT NULL").select(*cols(key)),
        found.where(LACKING).select(*cols(key)),
    )
    keys_change = not moved.isEmpty()  # seldom
    keys = (lost.unionByName(moved) if keys_change else lost).distinct()
    lives = keep(with_lives(stream, semi_join(everything, keys, key, broadcast=False), long, by_time))
    names = [f"_known{number}" for number in range(len(long))]
    resolved = lives.where(LACKING).select(*COORDINATES, "_link", *names)
    if keys_change:
        inherited = [F.col(name).alias(f"_inherited{number}") for number, name in enumerate(names)]
        before = ends_of(key, lives, len(long)).select(F.col("_end").alias("_link"), *inherited)
        both = [F.coalesce(name, f"_inherited{number}").alias(name) for number, name in enumerate(names)]
        resolved = resolved.join(before, "_link", "left_outer").select(*COORDINATES, *both)
    else:
        resolved = resolved.drop("_link")
    joined = found.join(resolved, list(COORDINATES), "left_outer")
    left_out = {name: F.array_contains(UNAVAILABLE, name) for name in long}
    unknown = [
        F.when(left_out[name] & F.col(known).isNull(), F.lit(name)) for name, known in zip(long, names, strict=True)
    ]
    values = {
        name: F.when(left_out[name], F.col(f"{known}.value")).otherwise(col(name))
        for name, known in zip(long, names, strict=True)
    }
    still = F.array_compact(F.array(*unknown))
    values[UNAVAILABLE] = F.when(F.size(still) > 0, still)
    return joined.select(*(values[name].alias(name) if name in values else col(name) for name in found.columns))


def completed(stream: Node, found: DataFrame, span: Span, by_time: bool) -> DataFrame:
    """Records of a table's topic, with the values that they leave out; the same records if none does.

    For lookups. `found` has the stream's columns and `PLACED`; arguments as in `with_carried`.
    """
    if not isinstance(stream, Records) or not stream.carries or span.is_empty(found.where(LACKING)):
        return found
    return with_carried(stream, found, span.after, by_time, span.keep)


def order(by_time: bool) -> tuple[str, ...]:
    """The columns that order the records of a key from old to new; `_last` is the time of the last in its partition."""
    return ("_time", *COORDINATES, "_ordinal") if by_time else ("_batch", "_last", *COORDINATES, "_ordinal")


def with_time(stream: Records, records: DataFrame) -> DataFrame:
    """Records with `_time`: their timestamp. A tombstone has none, and has the time of the deletion that it repeats."""
    in_partition = Window.partitionBy(*cols(stream.key), "_topic", "_partition").orderBy("_offset", "_ordinal")
    return records.withColumn("_time", F.last("_timestamp", ignorenulls=True).over(in_partition))


def not_truncated(stream: Records, records: DataFrame) -> DataFrame:
    """Records in which those before a record that emptied the table delete their row. The topic has one partition."""
    if not stream.truncates:
        return records
    emptied = records.where("_truncated").groupBy("_topic").agg(F.max("_offset").alias("_emptied"))
    both = records.join(F.broadcast(emptied), "_topic", "left_outer")
    before = F.coalesce(F.col("_offset") < F.col("_emptied"), F.lit(False))
    return both.withColumn("_deleted", F.col("_deleted") | before).drop("_emptied")


def with_lives(stream: Records, records: DataFrame, long: Sequence[str], by_time: bool) -> DataFrame:
    """Records with what their key's life tells up to them.

    `_known0` and so on, one for each column of `long`: a struct with its newest value, null if no record has it.
    `_link`: the change of key that the life began with, as in `_end` of `ends_of`; null if none.
    """
    key, timed = cols(stream.key), with_time(stream, records)
    arrived = Window.partitionBy(*key, "_batch", "_topic", "_partition").orderBy("_offset", "_ordinal")
    whole = arrived.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    ordered = timed.withColumn("_last", F.last("_time").over(whole))
    of_key = Window.partitionBy(*key).orderBy(*order(by_time))
    deletions = F.sum(F.col("_deleted").cast("int")).over(of_key.rowsBetween(Window.unboundedPreceding, -1))
    numbered = ordered.withColumn("_life", F.coalesce(deletions, F.lit(0)))
    so_far = (
        Window.partitionBy(*key, "_life")
        .orderBy(*order(by_time))
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    has = {name: ~F.col("_deleted") & ~F.coalesce(F.array_contains(UNAVAILABLE, name), F.lit(False)) for name in long}
    known = [
        F.last(F.when(has[name], F.struct(col(name).alias("value"))), ignorenulls=True).over(so_far).alias(f"_known{n}")
        for n, name in enumerate(long)
    ]
    began = F.when(F.col("_old_key").isNotNull(), change(stream.key, "_old_key", None))
    return numbered.select("*", *known, F.last(began, ignorenulls=True).over(so_far).alias("_link"))


def ends_of(key: tuple[str, ...], lives: DataFrame, count: int) -> DataFrame:
    """What each change of a key leaves to the new key: `_end`, the change, and `_known0` and so on as in `with_lives`.

    A life that has no value has that of the life before it, from which a change of the key made it.
    """
    names = [f"_known{number}" for number in range(count)]
    ends = lives.where("_new_key IS NOT NULL").withColumn("_end", change(key, None, "_new_key"))
    # A connector that starts again sends events again, so the same change may be told twice.
    newest = F.struct("_batch", "_offset")
    told = [F.max_by(name, F.when(F.col(name).isNotNull(), newest)).alias(name) for name in (*names, "_link")]
    left = ends.groupBy("_end").agg(*told)
    lacking = " OR ".join(f"{name} IS NULL" for name in names)
    links = left.where(f"_link IS NOT NULL AND ({lacking})").select("_end", "_link").collect()
    if not links:
        return left.drop("_link")
    # Spark has no recursion. Keys seldom change twice, so the changes that follow each other are few.
    before: dict[str, str] = {row["_end"]: row["_link"] for row in links}
    pairs = [
        {"end": later, "earlier": earlier, "distance": distance}
        for later in before
        for distance, earlier in enumerate(_earlier(before, later))
    ]
    text = json.dumps(pairs)
    kind = "array<struct<end: string, earlier: string, distance: int>>"
    one_row = left.sparkSession.range(1)
    chain = one_row.select(F.inline(F.from_json(F.lit(text), kind)))
    earlier_ones = left.select(F.col("_end").alias("earlier"), *names)
    nearest = [
        F.min_by(name, F.when(F.col(name).isNotNull(), F.col("distance"))).alias(f"_earlier{name}") for name in names
    ]
    inherited = chain.join(earlier_ones, "earlier").groupBy(F.col("end").alias("_end")).agg(*nearest)
    return left.join(inherited, "_end", "left_outer").select(
        "_end", *(F.coalesce(name, f"_earlier{name}").alias(name) for name in names)
    )


def _earlier(before: Mapping[str, str], change: str) -> Iterator[str]:
    """The changes that lead to a change, the nearest first."""
    seen = {change}
    while (change := before.get(change, "")) and change not in seen:
        seen.add(change)
        yield change


def change(key: tuple[str, ...], old: str | None, new: str | None) -> Expression:
    """A change of a key, as JSON text of the old key, the new key and `_change`; the own key where None is given.

    A column of the key that begins with an underscore is not the topic's own, and does not change.
    """
    parts = []
    for side, given in (("old", old), ("new", new)):
        for name in key:
            own = given is None or name.startswith("_")
            value = col(name) if own else F.col(given or "").getField(name)
            parts.append(value.alias(f"{side}_{name}"))
    return F.to_json(F.struct(*parts, F.col("_change").alias("change")))
