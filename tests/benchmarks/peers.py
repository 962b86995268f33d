"""(i) What a change costs, beside Kafka Streams: the same shop, broker and records, and the same rows in the end."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles
from typing import TYPE_CHECKING

import psutil
import pyarrow as pa  # type: ignore[import-untyped]  # has no types of its own
from deltalake import DeltaTable, QueryBuilder

from resources.embedded_kafka import EmbeddedKafka
from resources.engine import Engine
from resources.lakehouse import Lakehouse
from resources.tidetable import Tidetable
from spark.engine.land import Landed, capture, land
from spark.engine.log.stored_table import StoredTable
from spark.engine.step import step
from spark.engine.tick import tick
from tests.benchmarks import idle
from tests.benchmarks.kafka_streams import LOOK, ROWS, Application, Cost, Output, compiled
from tests.benchmarks.measure import Row, cpu, peak, row
from tests.benchmarks.shop import PARTITIONER, customer, order, produce, shop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from confluent_kafka import Message

    from spark.engine.attempt import Stepped
    from spark.engine.tick import TickEvent
    from spark.topology import Topology
    from tests.benchmarks.kafka_streams import Place, Watch
    from tests.benchmarks.measure import Bench

ORDERS, CUSTOMERS = "peers-orders", "peers-customers"
WARM = 0.1  # of the records: a catch-up of so many warms both sides
WARM_UP = 5  # ticks of each kind: the engine's CPU seconds fall from 11 to 5 over the first ones
FEW = 100  # changed orders
SMALL_STEPS = 50
RATE = 10  # records per second of a stream of changes
FOLLOWED = 60  # seconds of it
SELDOM = 1.0  # seconds between two reads of a log beside the command, which shares the cores
ROOT = Path(__file__).parents[2]


@dataclass
class Peers:
    """Both sides, over the same two topics."""

    bench: Bench
    streams: Application
    rng: random.Random = field(default_factory=lambda: random.Random(8))
    customer_of: list[int] = field(default_factory=list)
    """By order, its customer now."""

    @property
    def orders(self) -> int:
        """How many orders there are."""
        return self.bench.scaled(1_000_000)

    @property
    def customers(self) -> int:
        """How many customers there are."""
        return self.bench.scaled(100_000)

    @property
    def pids(self) -> tuple[int, int, int]:
        """The processes of engine, broker and Kafka Streams."""
        engine, broker = self.bench.engine.running(), self.bench.broker.running()
        assert engine is not None
        assert broker is not None
        return engine.pid, broker.pid, self.streams.pid

    def fill(self) -> None:
        """Send every order, and then every customer. So a row's event time is the same whichever side is read first."""
        for topic in (ORDERS, CUSTOMERS, f"warm-{ORDERS}", f"warm-{CUSTOMERS}"):
            self.bench.kafka.create_topic(topic, 4)
        self.customer_of = [0] * self.orders
        self.change_orders(self.bench.progress(range(self.orders), "producing orders"))
        self.change_customers(range(self.customers))
        warm = (int(self.orders * WARM), int(self.customers * WARM))
        records = ((number, order(self.rng, warm[1])) for number in range(warm[0]))
        produce(self.bench.kafka, f"warm-{ORDERS}", records)
        records = ((number, customer(self.rng, number)) for number in range(warm[1]))
        produce(self.bench.kafka, f"warm-{CUSTOMERS}", records)

    def order(self, number: int) -> bytes:
        """A new value for an order."""
        value = order(self.rng, self.customers)
        found = re.match(rb'{"customer_id":(\d+)', value)
        assert found is not None
        self.customer_of[number] = int(found[1])
        return value

    def change_orders(self, numbers: Iterable[int]) -> None:
        """Send new values."""
        produce(self.bench.kafka, ORDERS, ((number, self.order(number)) for number in numbers))

    def change_customers(self, numbers: Iterable[int]) -> None:
        """Send new values."""
        produce(self.bench.kafka, CUSTOMERS, ((number, customer(self.rng, number)) for number in numbers))

    def some_orders(self, count: int = FEW) -> list[int]:
        """Random orders."""
        return self.rng.sample(range(self.orders), min(count, self.orders))

    def watch(self, output: Output) -> Watch:
        """Begin to watch what Kafka Streams sends."""
        _, broker, streams = self.pids
        return output.watch(streams, broker)

    def start(self, name: str, warm: str = "") -> Output:
        """Start the application under a name, and return its output; its state remains in the lake's folder."""
        output = Output(self.bench.kafka, f"{name}-joined").create()
        self.run(name, output, warm)
        return output

    def run(self, name: str, output: Output, warm: str = "") -> None:
        """Start the application over an output that is there."""
        state = str(self.bench.lake / "_streams")
        self.streams.obey("start", name, f"{warm}{ORDERS}", f"{warm}{CUSTOMERS}", output.topic, state)

    def cost(self, do: Callable[[], object]) -> Cost:
        """What it costs us: engine and this client."""
        engine, broker, _ = self.pids
        ours = (engine, os.getpid())
        began, before, beside = time.monotonic(), sum(map(cpu, ours)), cpu(broker)
        do()
        seconds = time.monotonic() - began
        return Cost(seconds, sum(map(cpu, ours)) - before, cpu(broker) - beside)

    def tick(self, topology: Topology, what: str) -> tuple[Cost, float]:
        """A tick's cost, and the seconds until everything had landed; the end of every arrow is printed."""
        ends: list[tuple[TickEvent, float]] = []
        began = time.monotonic()

        def tick_all() -> None:
            done = tick(
                self.bench.ports, topology, "bench", say=lambda event: ends.append((event, time.monotonic() - began))
            )
            assert done.failed == {}, done.failed
            assert done.stepped[-1].outcome == "stepped", done.stepped

        cost = self.cost(tick_all)
        told = ", ".join(f"{event.table} {at:.2f}" for event, at in ends if not isinstance(event, Exception))
        self.bench.say(f"{what}: {cost.seconds:.2f} s, {cost.cpu:.2f} CPU-s; done at {told}")
        return cost, max(at for event, at in ends if isinstance(event, Landed))

    def same(self, topology: Topology, output: Output, what: str) -> None:
        """The joined table must have the rows of the output topic."""
        delta = DeltaTable(self.bench.lakehouse.table(topology.name, "enriched"))
        columns = ", ".join(("order_id", *ROWS, "_timestamp"))
        read = QueryBuilder().register("t", delta).execute(f"SELECT {columns} FROM t ORDER BY order_id").read_all()
        output.read()
        theirs, ours = output.table(), pa.table(read)
        ours = ours.set_column(len(ROWS) + 1, "_timestamp", ours["_timestamp"].cast(pa.timestamp("ms", "UTC")))
        ours = ours.cast(theirs.schema)
        differing = [name for name in ours.column_names if not ours[name].equals(theirs[name])]
        assert differing == [], f"{what}: ours and Kafka Streams' differ in {differing}; {_first(ours, theirs)}"
        self.bench.say(f"{what}: {len(ours):,} rows are equal")


def _first(ours: pa.Table, theirs: pa.Table) -> str:
    """The first rows that differ."""
    pairs = zip(ours.to_pylist(), theirs.to_pylist(), strict=False)
    one, other = next(((a, b) for a, b in pairs if a != b), (None, None))
    return f"{len(ours)} and {len(theirs)} rows, first {one} and {other}"


def run(bench: Bench) -> list[Row]:
    """Every case, ours and Kafka Streams', turn by turn on the same records."""
    bench.engine_warm_up()
    folder = bench.lake / "_streams"
    (folder / "classes").mkdir(parents=True)
    command, log = compiled(folder / "classes"), folder / "log"
    with Application(command, bench.kafka.address, log) as streams:
        peers = Peers(bench, streams)
        peers.fill()
        found, topology, output = _catch_up(peers)
        found += _changes(peers, topology, output)
        found += _small_steps(peers, output)
        found += _followed(peers, topology, output)
        engine, _, application = peers.pids
        found += [
            row("peers: peak memory of the engine", [peak(engine)], "MiB", at_most=2048),
            row("peers: peak memory, Kafka Streams", [peak(application)], "MiB"),
        ]
        streams.obey("stop")
    found += _cold(peers, command, log, topology, output)
    return found + idle.fifty(bench)


def compared(
    what: str,
    ours: list[Cost],
    theirs: list[Cost],
    seconds: float | None = None,
    spent: float | None = None,
    x_seconds: float | None = None,
    x_spent: float | None = None,
) -> list[Row]:
    """The rows of one case: both sides' time and processors, and ours over theirs, with what is wanted of them."""
    pairs = list(zip(ours, theirs, strict=True))
    return [
        row(what, [cost.seconds for cost in ours], "s", at_most=seconds),
        row(f"{what}, engine and client", [cost.cpu for cost in ours], "CPU-s", at_most=spent),
        row(f"{what}, broker", [cost.broker for cost in ours], "CPU-s"),
        row(f"{what}, Kafka Streams", [cost.seconds for cost in theirs], "s"),
        row(f"{what}, Kafka Streams, its JVM", [cost.cpu for cost in theirs], "CPU-s"),
        row(f"{what}, Kafka Streams, broker", [cost.broker for cost in theirs], "CPU-s"),
        row(f"{what}, ours / theirs", [a.seconds / b.seconds for a, b in pairs], "x time", at_most=x_seconds),
        row(f"{what}, ours / theirs, CPU", [a.cpu / b.cpu for a, b in pairs], "x CPU", at_most=x_spent),
    ]


def _catch_up(peers: Peers) -> tuple[list[Row], Topology, Output]:
    """Every record from the topics to the joined table; the tables of the last turn stay, and Kafka Streams runs on."""
    bench, landed = peers.bench, []
    peers.tick(shop("warm", f"warm-{ORDERS}", f"warm-{CUSTOMERS}"), "warm-up")
    warm = peers.start("warm", "warm-")
    peers.watch(warm).complete(int(peers.orders * WARM) - len(warm.newest))
    ours, theirs = [], []
    for turn in bench.turns("catch-up"):
        peers.streams.obey("stop")
        topology, output = shop(f"peers{turn}", ORDERS, CUSTOMERS), Output(bench.kafka, f"peers{turn}-joined").create()
        watch = peers.watch(output)
        peers.run(f"peers{turn}", output)
        theirs.append(watch.cost(watch.complete(peers.orders)))
        bench.say(f"Kafka Streams: {theirs[-1].seconds:.1f} s, {theirs[-1].cpu:.1f} CPU-s")
        cost, seconds = peers.tick(topology, "catch-up")
        ours.append(cost)
        landed.append((peers.orders + peers.customers) / seconds)
        peers.same(topology, output, "catch-up")
    what = f"catch-up of {peers.orders + peers.customers:,} records"
    found = [
        *compared(what, ours, theirs, x_seconds=0.25, x_spent=0.2),
        row(f"{what}, landing", landed, "records/s", at_least=250_000),
    ]
    return found, topology, output


def _changes(peers: Peers, topology: Topology, output: Output) -> list[Row]:
    """A tick for changed orders, and one for changed customers with all their orders."""

    def orders() -> int:
        numbers = peers.some_orders()
        peers.change_orders(numbers)
        return len(numbers)

    def customers() -> int:
        numbers = set(peers.rng.sample(range(peers.customers), peers.customers // 10))
        peers.change_customers(numbers)
        return sum(number in numbers for number in peers.customer_of)

    def measured(what: str, change: Callable[[], int]) -> tuple[str, list[Cost], list[Cost]]:
        ours, theirs = [], []
        for _ in peers.bench.turns(what, warm_up=WARM_UP):
            watch = peers.watch(output)
            rows = change()
            theirs.append(watch.cost(watch.complete(rows)))
            peers.bench.say(f"Kafka Streams: {rows:,} rows in {theirs[-1].seconds:.2f} s, {theirs[-1].cpu:.2f} CPU-s")
            ours.append(peers.tick(topology, what)[0])
        peers.same(topology, output, what)
        return what, ours[WARM_UP:], theirs[WARM_UP:]

    few = measured(f"tick of {FEW} changed orders", orders)
    many = measured(f"tick of {peers.customers // 10:,} changed customers", customers)
    return compared(*few, seconds=2.5, spent=3.5) + compared(*many, x_seconds=1.3, x_spent=1.5)


def _small_steps(peers: Peers, output: Output) -> list[Row]:
    """Arrow by arrow: a landing, and a step of a joined table that is fresh, after many small steps, and compacted."""
    bench, topology = peers.bench, shop("aged", ORDERS, CUSTOMERS)
    source, enriched = topology.source(ORDERS), topology.table("enriched")
    waiting: set[int] = set()  # changed orders, which Kafka Streams must not join while ours is measured

    def stepped(name: str) -> Stepped:
        done = step(bench.ports, topology, topology.table(name), "bench")
        assert done.outcome == "stepped", done
        return done

    def changed() -> tuple[Cost, Cost]:
        numbers = peers.some_orders()
        peers.change_orders(numbers)
        waiting.update(numbers)
        cut = capture(bench.kafka, topology)
        landing = peers.cost(lambda: land(bench.ports, topology, source, cut, "bench"))
        # A table steps to the newest cut that all its inputs have reached, so the other topic is landed to it as well.
        land(bench.ports, topology, topology.source(CUSTOMERS), cut, "bench")
        step(bench.ports, topology, topology.table(CUSTOMERS), "bench")
        stepped(ORDERS)
        return landing, peers.cost(lambda: stepped(enriched.name))

    def measured(when: str, wanted: float | None) -> list[Row]:
        costs = [changed() for _ in bench.turns(f"small steps, {when}", warm_up=1)][1:]
        landings, steps = [cost for cost, _ in costs], [cost for _, cost in costs]
        found = figures(f"a landing of {FEW} records, {when}", landings, 0.5)
        return found + figures(f"a step of {FEW} keys, joined table, {when}", steps, wanted)

    def figures(what: str, costs: list[Cost], wanted: float | None) -> list[Row]:
        seconds = row(what, [cost.seconds for cost in costs], "s", at_most=wanted)
        bench.say(f"{what}: {seconds.median:.2f} s")
        return [seconds, row(f"{what}, engine and client", [cost.cpu for cost in costs], "CPU-s")]

    peers.tick(topology, "a table to age")
    peers.streams.obey("pause")
    found = measured("fresh", 1.0)
    count = min(SMALL_STEPS, max(bench.scaled(SMALL_STEPS), 5))
    for _ in bench.progress(range(count), "small steps"):
        changed()
    found += measured(f"after {count} small steps", 1.2)
    session = bench.engine.session()
    for table in topology.tables:
        session.sql(f"OPTIMIZE delta.`{bench.lakehouse.table(topology.name, table.name)}`").collect()
    session.stop()
    found += measured("freshly compacted", None)
    watch = peers.watch(output)
    peers.streams.obey("resume")
    watch.complete(len(waiting))
    peers.same(topology, output, "small steps")
    return found


def _followed(peers: Peers, topology: Topology, output: Output) -> list[Row]:
    """Seconds from a record's produce to its row, while the command follows, then while Kafka Streams does."""
    bench, joined = peers.bench, bench_table(peers.bench, topology)
    peers.streams.obey("pause")
    with _following(peers, topology) as client:
        version = joined.version()
        peers.change_orders(peers.some_orders(1))
        while joined.version() == version:
            assert client.poll() is None, "the command ended"
            time.sleep(SELDOM)
        spent = _spent(peers.pids[0], client.pid)
        began = time.monotonic()
        sent = _streamed(peers, lambda: None)
        while not (seen := _seen(peers, topology, [place for _, place in sent.values()])):
            assert client.poll() is None, "the command ended"
            time.sleep(SELDOM)
        ours = [at - sent_at for (sent_at, _), at in zip(sent.values(), seen, strict=True)]
        ours_spent = (_spent(peers.pids[0], client.pid) - spent) / (time.monotonic() - began)
    watch = peers.watch(output)
    peers.streams.obey("resume")
    watch.complete(len(sent))
    watch = peers.watch(output)
    sent = _streamed(peers, watch.look)
    places = watch.complete(len(sent))
    theirs = [watch.visible(places[number]).at - at for number, (at, _) in sent.items()]
    first, last = watch.moments[0], watch.moments[-1]
    peers.tick(topology, "what Kafka Streams had")
    peers.same(topology, output, "produce to visible")
    what = f"produce to visible, {RATE} records/s"
    found = []
    for name, values, wanted in ((what, ours, (2.5, 5.0)), (f"{what}, Kafka Streams", theirs, (None, None))):
        bench.say(f"{name}: {len(values)} records, {min(values):.2f} to {max(values):.2f} s")
        percentiles = quantiles(values, n=100, method="inclusive")
        found += [
            row(f"{name}, p50", [percentiles[49]], "s", at_most=wanted[0]),
            row(f"{name}, p99", [percentiles[98]], "s", at_most=wanted[1]),
        ]
    streams_spent = (last.cpu - first.cpu) / (last.at - first.at)
    return [
        *found,
        row(f"{what}, engine and client", [ours_spent * 60], "CPU-s/min"),
        row(f"{what}, Kafka Streams, its JVM", [streams_spent * 60], "CPU-s/min"),
    ]


def bench_table(bench: Bench, topology: Topology) -> StoredTable:
    """The joined table."""
    return StoredTable.of(bench.lakehouse, topology.name, "enriched")


def _spent(engine: int, client: int) -> float:
    return cpu(engine) + cpu(client)


@contextmanager
def _following(peers: Peers, topology: Topology) -> Iterator[subprocess.Popen[bytes]]:
    """The command, as a user starts it; its interval between two checks for new records is the default, a second."""
    folder = peers.bench.lake / "_topologies"
    folder.mkdir()
    text = f"from tests.benchmarks.shop import shop\n\ntopology = shop({topology.name!r}, {ORDERS!r}, {CUSTOMERS!r})\n"
    (folder / "peers.py").write_text(text)
    environment = os.environ | {"TIDETABLE_LAKE": str(peers.bench.lake), "TIDETABLE_TOPOLOGIES": str(folder)}
    command = [sys.executable, "-m", "tidetable", "run", topology.name, "--follow"]
    with (folder / "log").open("wb") as log:
        client = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
    try:
        yield client
    finally:
        client.terminate()  # not SIGINT: a shell's background jobs ignore it, and so do their children
        client.wait()


def _streamed(peers: Peers, between: Callable[[], None]) -> dict[int, tuple[float, Place]]:
    """Send changed orders at a rate. By order: when it was sent, and its place in the topic."""
    seconds = min(FOLLOWED, max(peers.bench.scaled(FOLLOWED), FOLLOWED // 3))
    numbers = peers.some_orders(seconds * RATE)
    producer, began = peers.bench.kafka.producer(partitioner=PARTITIONER), time.time()
    sent: dict[int, tuple[float, Place]] = {}
    for count, number in enumerate(peers.bench.progress(numbers, "a stream of changes")):
        while time.time() < began + count / RATE:
            between()
            time.sleep(LOOK)
        at, value = time.time(), peers.order(number)

        def acknowledged(error: object, message: Message, number: int = number, at: float = at) -> None:
            assert error is None, error
            sent[number] = at, (message.partition() or 0, message.offset() or 0)

        producer.produce(ORDERS, key=str(number), value=value, on_delivery=acknowledged)
        producer.poll(0)
    producer.flush()
    assert len(sent) == len(numbers)
    return sent


def _seen(peers: Peers, topology: Topology, places: list[Place]) -> list[float]:
    """When the version of the joined table was written that has each of these records; nothing if one is not there."""
    joined = bench_table(peers.bench, topology)
    topic = f"{peers.bench.kafka.cluster_id()}/{ORDERS}"
    seen = [0.0] * len(places)
    for commit in joined.commits():  # newest first
        ends = commit.position.cut[topic].offsets
        has = [offset < ends.get(partition, 0) for partition, offset in places]
        if not any(has) or (not all(has) and not all(seen)):
            break
        at = (Path(joined.path) / "_delta_log" / f"{commit.version:020}.json").stat().st_mtime
        seen = [at if there else before for there, before in zip(has, seen, strict=True)]
    return seen if all(seen) else []


def _cold(peers: Peers, command: list[str], log: Path, topology: Topology, output: Output) -> list[Row]:
    """From no process at all to the rows of changed orders; state and tables are there."""
    bench, ours, theirs = peers.bench, [], []
    for turn in bench.turns("cold start"):
        peers.change_orders(peers.some_orders())
        bench.engine.stop()
        bench.broker.stop()
        before, children = time.monotonic(), psutil.Process().cpu_times()
        done = subprocess.run([sys.executable, "-m", __name__, str(bench.lake), topology.name], cwd=ROOT, check=False)
        seconds, after = time.monotonic() - before, psutil.Process().cpu_times()
        assert done.returncode == 0
        engine, broker = bench.engine.running(), bench.broker.running()
        assert engine is not None
        assert broker is not None
        client = after.children_user + after.children_system - children.children_user - children.children_system
        ours.append(Cost(seconds, cpu(engine.pid) + client, cpu(broker.pid)))
        bench.say(f"turn {turn}: ours {seconds:.1f} s, client {client:.1f} CPU-s")
        bench.broker.stop()
        began = time.time()
        bench.broker.start()
        ready = time.time()
        broker = bench.broker.running()
        assert broker is not None
        with Application(command, bench.kafka.address, log) as peers.streams:
            watch = output.watch(peers.streams.pid, broker.pid)
            peers.run(topology.name, output)
            last = watch.last(watch.complete(FEW))
            theirs.append(Cost(last.at - began, last.cpu, last.broker))
            bench.say(f"turn {turn}: Kafka Streams {last.at - began:.1f} s, of which the broker {ready - began:.1f}")
            peers.streams.obey("stop")
        peers.same(topology, output, "cold start")
    return compared(f"first {FEW} changed orders, all processes started", ours, theirs, seconds=25)


def client(lake: Path, name: str) -> None:
    """Tick once, whatever has to be started for it."""
    tidetable = Tidetable(Engine(lake, cores="2"), Lakehouse(str(lake)), EmbeddedKafka(lake))
    done = tick(tidetable.ports(), shop(name, ORDERS, CUSTOMERS), "cold")
    assert done.failed == {}, done.failed


if __name__ == "__main__":
    client(Path(sys.argv[1]), sys.argv[2])
