"""(c) A tick with nothing new over six and fifty tables: no Spark job, no session, a look at offsets and logs."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from spark.engine.tick import tick
from spark.topology import Consumed, StreamsBuilder
from tests.benchmarks.measure import Row, cpu, row
from tests.benchmarks.shop import produce

if TYPE_CHECKING:
    from spark.topology import Topology
    from tests.benchmarks.measure import Bench


WIDE = 50  # tables
TOPICS = 10


def run(bench: Bench) -> list[Row]:
    """Seconds of an idle tick of six tables, and of fifty."""
    return [*_ticked(bench, _six(), "6 tables over 4 topics", 0.5), *fifty(bench)]


def fifty(bench: Bench) -> list[Row]:
    """Seconds of an idle tick of fifty tables, over ten topics."""
    builder = StreamsBuilder("idle50")
    tables = [builder.table(f"wide-{n}", Consumed.json(key="k bigint", value="f bigint")) for n in range(TOPICS)]
    for number in range(WIDE - TOPICS):
        tables[number % TOPICS].filter(f"f > {number // TOPICS - 3}").materialize(f"filtered{number}")
    return _ticked(bench, builder.build(), f"{WIDE} tables over {TOPICS} topics", 0.3)


def _six() -> Topology:
    builder = StreamsBuilder("idle")
    tables = [builder.table(f"idle-{n}", Consumed.json(key="k bigint", value="f bigint")) for n in range(4)]
    tables[0].join(tables[1], on="f", select=["left.*"]).materialize("joined")
    tables[2].filter("f > 0").materialize("filtered")
    return builder.build()


def _ticked(bench: Bench, topology: Topology, what: str, wanted: float) -> list[Row]:
    """Idle ticks of a topology; they must not even open an engine session."""
    for source in topology.sources:
        bench.kafka.create_topic(source.topic, 2)
        produce(bench.kafka, source.topic, [(key, b'{"f":1}') for key in range(10)])
    assert tick(bench.ports, topology, "bench").failed == {}
    seconds, spent = [], []
    for _ in bench.turns(f"idle ticks, {what}"):
        began, before = time.monotonic(), cpu(os.getpid())
        done = tick(bench.idle_doors, topology, "bench")
        seconds.append(time.monotonic() - began)
        spent.append(cpu(os.getpid()) - before)
        outcomes = {landed.outcome for landed in done.landed} | {stepped.outcome for stepped in done.stepped}
        assert outcomes == {"idle"}, done
    name = f"a tick with nothing new, {what}, no engine"
    return [row(name, seconds, "s", at_most=wanted), row(f"{name}, client", spent, "CPU-s")]
