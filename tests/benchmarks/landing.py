"""(a) Landing a million JSON records, beside a hand-written Spark job that does the same; and many partitions."""

from __future__ import annotations

import json
import random
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from deltalake import DeltaTable
from pyspark.sql import functions as F

from spark.engine.land import capture, land
from tests.benchmarks.measure import Row, row
from tests.benchmarks.shop import ORDER, order, produce, shop

if TYPE_CHECKING:
    from tests.benchmarks.measure import Bench

PARTITIONS, WARM_UP = 1_000, 2


def run(bench: Bench) -> list[Row]:
    """Records per second of both, turn by turn in one run."""
    count = bench.scaled(1_000_000)
    rng = random.Random(1)
    for topic in ("orders", "customers"):
        bench.kafka.create_topic(topic, 4)
    produce(
        bench.kafka,
        "orders",
        ((number, order(rng, 100_000)) for number in bench.progress(range(count), "producing orders")),
    )
    bench.engine_warm_up()
    ours: list[float] = []
    theirs: list[float] = []
    for turn in bench.turns("landing"):
        topology = shop(f"land{turn}")
        source = topology.source("orders")
        cut = capture(bench.kafka, topology)
        ends = cut[f"{bench.kafka.cluster_id()}/orders"].offsets
        start = dict.fromkeys(ends, 0)
        nothing = {topic: replace(at, offsets=dict.fromkeys(at.offsets, 0)) for topic, at in cut.items()}
        # Both tables are there before the clock runs: a topic is created once and landed for years.
        land(bench.ports, topology, source, nothing, "bench")
        _by_hand(bench, turn, 1, start, start)
        began = time.monotonic()
        land(bench.ports, topology, source, cut, "bench")
        landed = time.monotonic()
        _by_hand(bench, turn, 2, start, ends)
        ours.append(landed - began)
        theirs.append(time.monotonic() - landed)
        for table in (bench.lakehouse.table(topology.name, source.landing), _path(bench, turn)):
            assert sum(DeltaTable(table).get_add_actions(flatten=True).column("num_records").to_pylist()) == count
    return [
        *_many_partitions(bench),
        row(
            "land 1 M records of 140 bytes, 4 partitions",
            [count / s for s in ours],
            "records/s",
            at_least=120_000,
        ),
        row("the same by a hand-written Spark job", [count / s for s in theirs], "records/s"),
        row("ours / by hand", [a / b for a, b in zip(ours, theirs, strict=True)], "x time", at_most=1.10),
    ]


def _many_partitions(bench: Bench) -> list[Row]:
    """Seconds of landing one record of every partition, where there are many of them."""
    count = bench.scaled(PARTITIONS)
    topology = shop("wide", "wide-orders", "wide-customers")
    bench.kafka.create_topic("wide-orders", count)
    bench.kafka.create_topic("wide-customers", 1)
    source, rng = topology.source("wide-orders"), random.Random(1)
    seconds = []
    for _ in bench.turns("many partitions", warm_up=WARM_UP):
        producer = bench.kafka.producer()
        for partition in range(count):
            producer.produce("wide-orders", key=str(partition), value=order(rng, 10), partition=partition)
        producer.flush()
        began = time.monotonic()
        landed = land(bench.ports, topology, source, capture(bench.kafka, topology), "bench")
        seconds.append(time.monotonic() - began)
        assert landed.records == count
        bench.say(f"a record of each of {count:,} partitions: {seconds[-1]:.2f} s")
    return [row(f"land a record of each of {count:,} partitions", seconds[WARM_UP:], "s", at_most=2)]


def _by_hand(bench: Bench, turn: int, commit: int, start: dict[int, int], end: dict[int, int]) -> None:
    """What one would write: read, parse, append, with the coordinates and Delta's idempotent write."""
    session = bench.engine.session()
    records = (
        session.read.format("kafka")
        .options(**bench.kafka.spark_options())
        .option("subscribe", "orders")
        .option("startingOffsets", json.dumps({"orders": start}))
        .option("endingOffsets", json.dumps({"orders": end}))
        .load()
    )
    parsed = records.select(
        F.col("key").cast("string").cast("bigint").alias("order_id"),
        F.from_json(F.col("value").cast("string"), ORDER).alias("value"),
        F.col("timestamp").alias("_timestamp"),
        F.col("topic").alias("_topic"),
        F.col("partition").alias("_partition"),
        F.col("offset").alias("_offset"),
    ).select("order_id", "value.*", "_timestamp", "_topic", "_partition", "_offset")
    writer = parsed.write.format("delta").mode("append").option("txnAppId", f"hand{turn}").option("txnVersion", commit)
    writer.save(_path(bench, turn))
    session.stop()


def _path(bench: Bench, turn: int) -> str:
    return bench.lakehouse.table("by_hand", f"orders{turn}")
