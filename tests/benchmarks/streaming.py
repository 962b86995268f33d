"""(e) Streams: records per second of joins and windows, against landing, and what a tick costs as history grows."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING

from spark.engine.land import capture, land
from spark.engine.step import step
from spark.topology import Consumed, JoinWindows, SessionWindows, StreamsBuilder, TimeWindows
from tests.benchmarks.measure import Row, row

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spark.engine.log.position import Cut
    from spark.topology import Topology
    from tests.benchmarks.measure import Bench

SINCE = 1_700_000_000_000  # milliseconds since 1970
RECORDS, ROWS, SIDE, TICK = 1_000_000, 100_000, 500_000, 2_000
TICKS, COMPARED = 50, 10
LAST = 1_000_000  # milliseconds that the streams last
TOPICS = ("clicks", "views", "buys", "prices", "products")
DRIVEN = {"titled": RECORDS, "priced": RECORDS, "bought": 2 * SIDE, "counted": RECORDS, "visits": RECORDS}
"""How many records drive each table."""
PAGES = 10_000


def run(bench: Bench) -> list[Row]:
    """Every table over all its records in one step, turn by turn; then many small ticks."""
    rng = random.Random(1)
    for topic in TOPICS:
        bench.kafka.create_topic(topic, 4, {"retention.ms": "-1"})
    for topic, count in (("clicks", RECORDS), ("views", SIDE), ("buys", SIDE)):
        _produce(bench, topic, range(bench.scaled(count)), bench.scaled(count), rng)
    for topic in ("prices", "products"):
        _produce(bench, topic, range(bench.scaled(ROWS)), LAST * LAST, rng)
    bench.engine_warm_up()
    seconds: dict[str, list[float]] = {"clicks": [], **{name: [] for name in DRIVEN}}
    for turn in bench.turns("joining streams", warm_up=1):
        found = _turn(bench, declared(f"streaming{turn}"))
        for name, took in found.items() if turn >= 1 else ():
            seconds[name].append(took)
    landed = [bench.scaled(RECORDS) / took for took in seconds["clicks"]]
    figures = [row("land 1 M clicks", landed, "records/s")]
    for name, count in DRIVEN.items():
        rates = [bench.scaled(count) / took for took in seconds[name]]
        wanted = 0.8 if name in ("titled", "priced") else None
        ratios = [rate / other for rate, other in zip(rates, landed, strict=True)]
        figures += [
            row(f"{name}: {count:,} records", rates, "records/s"),
            row(f"{name} / landing", ratios, "x rate", at_least=wanted),
        ]
    return figures + _ticks(bench, rng)


def declared(name: str) -> Topology:
    """A stream with a global table, with a topic's table, in windows and sessions; two streams within ten seconds."""
    builder = StreamsBuilder(name)
    click = Consumed.json(key="user bigint", value="sku bigint, n int, page string")
    clicks, views, buys = (builder.stream(topic, click) for topic in ("clicks", "views", "buys"))
    prices = builder.table("prices", Consumed.json(key="user bigint", value="sku bigint, n int, page string"))
    products = builder.global_table("products", Consumed.json(key="sku bigint", value="n int, page string"))
    clicks.join(products, on="sku", select=["left.*", "right.page AS title"]).materialize("titled")
    clicks.left_join(prices, select=["left.*", "right.n AS price"]).materialize("priced")
    near = JoinWindows.of("10s", grace="1s")
    views.left_join(buys, within=near, select=["left.sku", "right.n AS bought"]).materialize("bought")
    pages = clicks.map_values([f"sku % {PAGES} AS item"]).group_by("item")
    pages.windowed_by(TimeWindows.of("10s", grace="1s")).count().materialize("counted")
    pages.windowed_by(SessionWindows.of("10s", grace="1s")).count().materialize("visits")
    return builder.build()


def _produce(bench: Bench, topic: str, numbers: Iterable[int], count: int, rng: random.Random) -> None:
    """Records in the order of time, spread over the same span; of the tables, all at its beginning."""
    settings: dict[str, int | str] = {"linger.ms": 50, "compression.type": "lz4"}
    producer = bench.kafka.producer(**settings, **{"queue.buffering.max.messages": 2_000_000})
    rows = max(bench.scaled(ROWS), 1)
    for number in numbers:
        key = number if count > LAST else rng.randrange(rows)
        value = f'{{"sku":{rng.randrange(rows)},"n":{number % 100},"page":"page {number % 1000} of this shop"}}'
        at = SINCE + number * LAST // count
        producer.produce(topic, key=str(key), value=value.encode(), timestamp=at, partition=number % 4)
        if number % 10_000 == 0:
            producer.poll(0)
    producer.flush()


def _turn(bench: Bench, topology: Topology) -> dict[str, float]:
    """Seconds to land the clicks, and of each table's step over everything; what is looked up is there before."""
    cut = capture(bench.kafka, topology)
    nothing = {topic: replace(at, offsets=dict.fromkeys(at.offsets, 0)) for topic, at in cut.items()}
    tables = {topic: at for topic, at in cut.items() if topic.endswith(("/prices", "/products"))}
    _land(bench, topology, {**nothing, **tables})
    for table in topology.tables:
        step(bench.ports, topology, table, "bench")
    took = _land(bench, topology, cut)
    seconds = {"clicks": took["clicks"]}
    for table in topology.tables:
        began = time.monotonic()
        step(bench.ports, topology, table, "bench")
        seconds[table.name] = time.monotonic() - began
    return {name: seconds[name] for name in ("clicks", *DRIVEN)}


def _land(bench: Bench, topology: Topology, cut: Cut) -> dict[str, float]:
    took = {}
    for source in topology.sources:
        began = time.monotonic()
        land(bench.ports, topology, source, cut, "bench")
        took[source.topic] = time.monotonic() - began
    return took


def _ticks(bench: Bench, rng: random.Random) -> list[Row]:
    """Small ticks, one behind the other: the steps of the tables, early and late."""
    topology = declared("ticking")
    _land(bench, topology, capture(bench.kafka, topology))
    for table in topology.tables:
        step(bench.ports, topology, table, "bench")
    seconds: dict[str, list[float]] = {name: [] for name in DRIVEN}
    for tick in bench.progress(range(TICKS), "ticks"):
        for topic in ("clicks", "views", "buys"):
            start = bench.scaled(RECORDS if topic == "clicks" else SIDE)
            numbers = range(start + tick * TICK, start + (tick + 1) * TICK)
            _produce(bench, topic, numbers, start, rng)
        _land(bench, topology, capture(bench.kafka, topology))
        for table in topology.tables:
            began = time.monotonic()
            step(bench.ports, topology, table, "bench")
            if table.name in DRIVEN:
                seconds[table.name].append(time.monotonic() - began)
    return [
        figure
        for name, took in seconds.items()
        for figure in (
            row(f"{name}: a tick of {TICK:,} records", took, "s"),
            row(
                f"{name}: the last {COMPARED} ticks of {TICKS} / the first",
                [median(took[-COMPARED:]) / median(took[:COMPARED])],
                "x time",
                at_most=1.2,
            ),
        )
    ]
