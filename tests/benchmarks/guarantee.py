"""(g) What exactly once costs: publishing in transactions beside plainly, landing behind the fence beside without."""

from __future__ import annotations

import json
import random
import time
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from spark.engine.land import capture, land, landed
from spark.engine.publish import publish
from spark.engine.tick import tick
from tests.benchmarks.measure import Row, row
from tests.benchmarks.shop import customer, order, produce, shop

if TYPE_CHECKING:
    from spark.topology import Topology
    from spark.topology.model import Guarantee, Source
    from tests.benchmarks.measure import Bench

PUBLISHED, LANDED = 200_000, 1_000_000
GUARANTEES: tuple[Guarantee, ...] = ("exactly_once_v2", "at_least_once")
ORDERS, CUSTOMERS = "gu-orders", "gu-customers"
WARM_UP = 1  # turns


def run(bench: Bench) -> list[Row]:
    """Records per second with and without, turn by turn in one run."""
    rng = random.Random(7)
    for topic in (ORDERS, CUSTOMERS):
        bench.kafka.create_topic(topic, 4)
    produce(bench.kafka, CUSTOMERS, ((n, customer(rng, n)) for n in range(100)))
    produce(bench.kafka, ORDERS, ((n, order(rng, 100)) for n in range(bench.scaled(PUBLISHED))))
    made = shop("guarantee", ORDERS, CUSTOMERS)
    tick(bench.ports, made, "bench")
    found = _publishing(bench, made)
    keys = range(bench.scaled(PUBLISHED), bench.scaled(LANDED))
    produce(bench.kafka, ORDERS, ((n, order(rng, 100)) for n in bench.progress(keys, "producing orders")))
    return found + _landing(bench)


def _publishing(bench: Bench, made: Topology) -> list[Row]:
    """The whole of a table to new topics, by each guarantee in turn."""
    seconds: dict[str, list[float]] = defaultdict(list)
    for turn in bench.turns("publishing", warm_up=WARM_UP):
        for guarantee in GUARANTEES if turn % 2 else GUARANTEES[::-1]:
            topic = f"gu-{guarantee}-{turn}"
            bench.kafka.create_topic(topic, 4)
            settings = replace(made.settings, processing_guarantee=guarantee)
            done = publish(bench.ports, replace(made, settings=settings), replace(made.table("enriched"), topic=topic))
            assert done.records == bench.scaled(PUBLISHED)
            if turn >= WARM_UP:
                seconds[guarantee].append(done.seconds)
    once, plain = (seconds[guarantee] for guarantee in GUARANTEES)
    count = bench.scaled(PUBLISHED)
    return [
        row(f"publish {count:,} records in transactions", [count / s for s in once], "records/s"),
        row("the same at least once", [count / s for s in plain], "records/s"),
        row("in transactions / at least once", [a / b for a, b in zip(once, plain, strict=True)], "x time"),
    ]


def _landing(bench: Bench) -> list[Row]:
    """A topic to new tables: behind the fence, with its position, and by a plain append of the same rows."""
    count = bench.scaled(LANDED)
    fenced: list[float] = []
    plain: list[float] = []
    for turn in bench.turns("landing", warm_up=WARM_UP):
        made = shop(f"guarded{turn}", ORDERS, CUSTOMERS)
        source, cut = made.source(ORDERS), capture(bench.kafka, made)
        ends = cut[f"{bench.kafka.cluster_id()}/{ORDERS}"].offsets
        start = dict.fromkeys(ends, 0)
        nothing = {topic: replace(at, offsets=dict.fromkeys(at.offsets, 0)) for topic, at in cut.items()}
        # Both tables are there before the clock runs: a topic is created once and landed for years.
        land(bench.ports, made, source, nothing, "bench")
        _appended(bench, source, turn, start, start)
        for fence in (True, False) if turn % 2 else (False, True):
            began = time.monotonic()
            if fence:
                assert land(bench.ports, made, source, cut, "bench").records == count
            else:
                _appended(bench, source, turn, start, ends)
            if turn >= WARM_UP:
                (fenced if fence else plain).append(time.monotonic() - began)
    return [
        row(f"land {count:,} records with fence and position", [count / s for s in fenced], "records/s"),
        row("the same rows by a plain append", [count / s for s in plain], "records/s"),
        row("with fence / without", [a / b for a, b in zip(fenced, plain, strict=True)], "x time"),
    ]


def _appended(bench: Bench, source: Source, turn: int, start: dict[int, int], end: dict[int, int]) -> None:
    """Read, decode, append; whoever runs it twice has everything twice."""
    session = bench.engine.session()
    records = (
        session.read.format("kafka")
        .options(**bench.kafka.spark_options())
        .option("subscribe", ORDERS)
        .option("startingOffsets", json.dumps({ORDERS: start}))
        .option("endingOffsets", json.dumps({ORDERS: end}))
        .load()
    )
    rows = landed(records, source, turn)
    rows.write.format("delta").mode("append").save(bench.lakehouse.table("unfenced", f"orders{turn}"))
    session.stop()
