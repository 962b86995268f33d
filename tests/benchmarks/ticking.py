"""What a tick costs: its parts on the clock, and the processors of engine and client."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark.engine.attempt import Stepped
from spark.engine.land import Landed
from spark.engine.tick import tick
from tests.benchmarks.measure import cpu

if TYPE_CHECKING:
    from spark.engine.tick import TickEvent
    from spark.topology import Topology
    from tests.benchmarks.measure import Bench


@dataclass(frozen=True)
class Parts:
    """Seconds of a tick until all topics were landed, then until their tables were stepped, then of all other tables.

    `cpu` has the CPU seconds of engine and client over the whole tick.
    """

    landing: float
    inputs: float
    query: float
    cpu: float

    def __str__(self) -> str:
        parts = f"landing {self.landing:.2f} s, tables of topics {self.inputs:.2f} s, others {self.query:.2f} s"
        return f"{parts}; {self.cpu:.2f} CPU-s"

    @property
    def steps(self) -> float:
        """Seconds of all tables, those of the topics included."""
        return self.inputs + self.query

    @property
    def whole(self) -> float:
        """Seconds of the tick."""
        return self.landing + self.steps


def ticked(bench: Bench, topology: Topology) -> Parts:
    """Run a tick. The engine must be running."""
    engine = bench.engine.running()
    assert engine is not None
    pids = (engine.pid, os.getpid())
    ends: list[tuple[TickEvent, float]] = []
    before, began = sum(map(cpu, pids)), time.monotonic()
    done = tick(bench.ports, topology, "bench", say=lambda event: ends.append((event, time.monotonic() - began)))
    whole, spent = time.monotonic() - began, sum(map(cpu, pids)) - before
    assert done.failed == {}, done.failed
    topics = {f"{topology.name}/{source.topic}" for source in topology.sources}
    landed = max(at for event, at in ends if isinstance(event, Landed))
    inputs = [at for event, at in ends if isinstance(event, Stepped) and event.table in topics]
    stepped = max(inputs, default=landed)
    return Parts(landed, stepped - landed, whole - stepped, spent)
