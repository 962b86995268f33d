"""(f) Engine, broker and client killed with SIGKILL at work: how long until a new client has made the table fresh."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from resources.embedded_kafka import EmbeddedKafka
from resources.engine import Engine
from resources.lakehouse import Lakehouse
from resources.tidetable import Tidetable
from spark.engine.log.stored_table import StoredTable
from spark.engine.tick import tick
from tests.benchmarks.measure import Row, row
from tests.benchmarks.shop import customer, order, produce, shop

if TYPE_CHECKING:
    from spark.topology import Topology
    from tests.benchmarks.measure import Bench

CHANGED = 100  # orders that are on their way when everything dies
NAME, ORDERS, CUSTOMERS = "recovering", "rc-orders", "rc-customers"
LOOK = 0.05  # seconds between two looks at a log


def run(bench: Bench) -> list[Row]:
    """Seconds from the start of a new client, all servers down, to its end: the changes are in the joined table."""
    orders, customers = bench.scaled(1_000_000), bench.scaled(100_000)
    rng, made = random.Random(6), declared()
    for source in made.sources:
        bench.kafka.create_topic(source.topic, 4)
    keys = bench.progress(range(orders), "producing orders")
    produce(bench.kafka, ORDERS, ((n, order(rng, customers)) for n in keys))
    produce(bench.kafka, CUSTOMERS, ((n, customer(rng, n)) for n in range(customers)))
    tick(bench.ports, made, "bench")
    seconds = []
    for turn in bench.turns("recovery"):
        assert {done.outcome for done in tick(bench.idle_doors, made, "idle").stepped} == {"idle"}
        changed = rng.sample(range(orders), CHANGED)
        produce(bench.kafka, ORDERS, ((n, order(rng, customers)) for n in changed))
        _killed_at_work(bench, made)
        before = _version(bench, made, "enriched")
        began = time.monotonic()
        assert _client(bench).wait() == 0
        seconds.append(time.monotonic() - began)
        assert _version(bench, made, "enriched") == before + 1
        bench.say(f"turn {turn}: {seconds[-1]:.1f} s")
    what = f"kill -9 of engine, broker and client, {orders:,} rows of state: restart to fresh"
    return [row(what, seconds, "s", at_most=60)]


def declared() -> Topology:
    """Orders that look up customers."""
    return shop(NAME, ORDERS, CUSTOMERS)


def _killed_at_work(bench: Bench, made: Topology) -> None:
    """Let a client land the changes, and kill it, engine and broker before it has stepped all tables."""
    landing = made.source(ORDERS).landing
    before = _version(bench, made, landing)
    client = _client(bench)
    while _version(bench, made, landing) == before:
        assert client.poll() is None, "the client ended before it was killed"
        time.sleep(LOOK)
    for running in (bench.engine.running(), bench.broker.running()):
        assert running is not None
        os.kill(running.pid, signal.SIGKILL)
    client.kill()
    client.wait()
    while bench.engine.running() or bench.broker.running():
        time.sleep(LOOK)


def _client(bench: Bench) -> subprocess.Popen[bytes]:
    """A client that ticks once, in a process of its own."""
    return subprocess.Popen([sys.executable, "-m", __name__, str(bench.lake)])


def _version(bench: Bench, made: Topology, name: str) -> int:
    return StoredTable("", bench.lakehouse.table(made.name, name)).version()


def client(lake: Path) -> None:
    """Tick once, whatever has to be started for it."""
    tidetable = Tidetable(Engine(lake, cores="2"), Lakehouse(str(lake)), EmbeddedKafka(lake))
    done = tick(tidetable.ports(), declared(), f"client-{os.getpid()}")
    assert done.failed == {}, done.failed


if __name__ == "__main__":
    client(Path(sys.argv[1]))
