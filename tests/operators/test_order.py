"""The merge order of a span: what a choice of the smallest head, taken record by record, visits in turn."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa  # type: ignore[import-untyped]  # has no types of its own
from pyspark.sql import Window
from pyspark.sql import functions as F

from spark.operators.order import LEFT, RIGHT, TABLE, pair_number, place, stream_time, with_reached
from tests.operators.drawn import Drawn, DrawnSpan
from tests.support.simulation import later, visited

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark.operators.algebra import Span
    from tests.support.reference import Row
    from tests.support.simulation import Queue

CASES = 20_000
RANKS = (TABLE, LEFT, RIGHT)


@dataclass(frozen=True)
class Case:
    """The records of two sources in their queues, and stream time before them."""

    queues: dict[Queue, list[Row]]
    time: int | None


def drawn(rng: random.Random, number: int) -> Case:
    """One case. Its topics are its own, and no order of their names is that of the ranks."""
    names = rng.sample("abc", 3)
    queues: dict[Queue, list[Row]] = {}
    for rank, topics in zip(sorted(rng.sample(RANKS, 2)), ([names[0]], names[1 : rng.randrange(2, 4)]), strict=True):
        for topic in topics:
            for partition in range(rng.randrange(1, 4)):
                queue = rank, f"{topic}{number}", partition
                queues[queue] = [
                    {"_timestamp": rng.choice((None, *range(7)[: rng.randrange(1, 8)])), "_offset": offset}
                    for offset in range(rng.randrange(5))
                ]
    return Case(queues, rng.choice((None, 0, 3, 9)))


def frame(session: SparkSession, cases: list[Case], rank: int) -> DataFrame:
    """The records of all sources of a rank. Batches follow offsets, as landing steps do."""
    found = [
        (number, case.time, topic, partition, row["_offset"], row["_timestamp"], row["_offset"] // 2)
        for number, case in enumerate(cases)
        for (of, topic, partition), rows in case.queues.items()
        if of == rank
        for row in rows
    ]
    names = ("case", "time", "_topic", "_partition", "_offset", "micros", "_batch")
    arrays = [pa.array(values) for values in zip(*random.Random(rank).sample(found, len(found)), strict=True)]
    records = session.createDataFrame(pa.table(dict(zip(names, arrays, strict=True))))
    timed = records.withColumn("_timestamp", F.timestamp_micros("micros")).withColumn("_ordinal", F.lit(0))
    return with_reached(timed).select(
        "case", "time", "_topic", "_partition", "_offset", "_reached", place(rank).alias("at")
    )


def test_the_place_of_a_record_is_where_the_smallest_head_is_taken(session: SparkSession) -> None:
    rng = random.Random(7)
    cases = [drawn(rng, number) for number in range(CASES)]
    left, middle, right = (frame(session, cases, rank) for rank in RANKS)
    span: Span = DrawnSpan(Drawn({}), {}, time_before=F.col("time"))
    nth = F.row_number().over(Window.partitionBy("case").orderBy("at"))
    records = left.unionByName(middle).unionByName(right).select("*", nth.alias("nth"), stream_time(span).alias("now"))
    there: dict[int, list[tuple[object, ...]]] = defaultdict(list)
    for row in records.orderBy("case", "nth").toArrow().to_pylist():
        there[row["case"]].append((row["_topic"], row["_partition"], row["_offset"], row["now"]))
    for number, case in enumerate(cases):
        assert there[number] == in_turn(case), case


def in_turn(case: Case) -> list[tuple[object, ...]]:
    """The records of a case as they are taken, each with stream time."""
    named = {
        queue: [row | {"_topic": queue[1], "_partition": queue[2]} for row in rows]
        for queue, rows in case.queues.items()
    }
    time = case.time
    found: list[tuple[object, ...]] = []
    for _, row in visited(named):
        time = later(time, row["_timestamp"])
        found.append((row["_topic"], row["_partition"], row["_offset"], time))
    return found


def test_a_number_of_two_is_in_the_order_of_both_and_told_apart_from_every_other(session: SparkSession) -> None:
    some = [0, 1, 2, 15, 16, 2**16 - 1, 2**16, 2**41, 2**42 - 1, 2**42, 2**59]
    pairs = sorted((one, other) for one in some for other in some[:8])
    frame = session.createDataFrame(pairs, "one bigint, other bigint")
    found = [
        row[0] for row in frame.orderBy("one", "other").select(pair_number(F.col("one"), F.col("other"))).collect()
    ]
    assert len(set(found)) == len(pairs)
    assert all(0 <= number < 2**59 for number in found)
    short = [number for number, (one, other) in zip(found, pairs, strict=True) if one < 2**42 and other < 2**16]
    assert short == sorted(short)
