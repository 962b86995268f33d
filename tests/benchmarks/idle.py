"""(c) A tick with nothing new over six tables: no Spark job, no session, a look at offsets and logs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from spark.engine.tick import tick
from spark.topology import Consumed, StreamsBuilder
from tests.benchmarks.measure import Row, row
from tests.benchmarks.shop import produce

if TYPE_CHECKING:
    from tests.benchmarks.measure import Bench


def run(bench: Bench) -> list[Row]:
    """Seconds of an idle tick; it must not even open an engine session."""
    builder = StreamsBuilder("idle")
    for number in range(4):
        bench.kafka.create_topic(f"idle-{number}", 2)
        produce(bench.kafka, f"idle-{number}", [(key, b'{"f":1}') for key in range(10)])
    tables = [builder.table(f"idle-{n}", Consumed.json(key="k bigint", value="f bigint")) for n in range(4)]
    tables[0].join(tables[1], on="f", select=["left.*"]).materialize("joined")
    tables[2].filter("f > 0").materialize("filtered")
    topology = builder.build()
    tick(bench.ports, topology, "bench")
    seconds = []
    for _ in bench.turns("idle ticks"):
        began = time.monotonic()
        done = tick(bench.idle_doors, topology, "bench")
        seconds.append(time.monotonic() - began)
        outcomes = {landed.outcome for landed in done.landed} | {stepped.outcome for stepped in done.stepped}
        assert outcomes == {"idle"}, done
    return [row("a tick with nothing new, 6 tables over 4 topics", seconds, "s", at_most=0.5)]
