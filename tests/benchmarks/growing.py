"""(d) How a step's cost grows with its tables, kind by kind, beside all rows computed again by plain Spark."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

import psutil
from rich.table import Table as Printed

from spark.engine.land import capture, land
from spark.engine.step import step
from spark.topology import Consumed, StreamsBuilder
from tests.benchmarks.joining import customers_by_hand, merge_by_hand, orders_by_hand
from tests.benchmarks.measure import Row, row
from tests.benchmarks.shop import ORDER, customer, order, produce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark.engine.attempt import Stepped
    from spark.topology import Topology
    from tests.benchmarks.measure import Bench

SIZES = (100_000, 1_000_000)  # orders; ten million take hours and tens of gigabytes, so they are asked for
GREATEST = 10_000_000  # where the targets against a recompute are set
CHUNK = 1_000_000  # records sent before the broker is waited for: the client's queue holds two million
WARM_UP = 1  # turns of each change; the smallest size warms the engine for the others
RIGHTS = {"inner": "customers", "left": "customers", "global": "directory", "outer": "notes"}
BY_HAND, RECOMPUTE = "inner by hand", "recompute"

JOINED = "o.* EXCEPT (_timestamp), greatest(o._timestamp, r._timestamp) AS _timestamp, r.name, r.country"
QUERIES = {  # what one would write for Spark; an aggregate of ours has event time and coordinates besides
    "inner": f"SELECT {JOINED} FROM {{orders}} o JOIN {{customers}} r ON o.customer_id = r.customer_id",
    "left": f"SELECT {JOINED} FROM {{orders}} o LEFT JOIN {{customers}} r ON o.customer_id = r.customer_id",
    "global": f"SELECT {JOINED} FROM {{orders}} o JOIN {{directory}} r ON o.customer_id = r.customer_id",
    "outer": (
        "SELECT coalesce(o.order_id, r.order_id) AS order_id, r.text, "
        "o.* EXCEPT (order_id, _timestamp, _topic, _partition, _offset), "
        "greatest(o._timestamp, r._timestamp) AS _timestamp, coalesce(o._topic, r._topic) AS _topic, "
        "coalesce(o._partition, r._partition) AS _partition, coalesce(o._offset, r._offset) AS _offset "
        "FROM {orders} o FULL JOIN {notes} r ON o.order_id = r.order_id"
    ),
    "folded": "SELECT customer_id, count(*) AS orders, sum(amount) AS total FROM {orders} GROUP BY customer_id",
    "again": "SELECT customer_id, percentile(quantity, 0.5) AS middle FROM {orders} GROUP BY customer_id",
}


@dataclass(frozen=True)
class Change:
    """So many rows of each table on one side, at keys anywhere or one behind the other; 0 is one in a hundred."""

    side: str
    count: int
    ordered: bool = False

    def __str__(self) -> str:
        return f"{f'{self.count:,}' if self.count else '1 %'} {self.side}{', ordered' if self.ordered else ''}"

    def of(self, rows: int) -> int:
        """How many of a table's rows."""
        return min(self.count or max(rows // 100, 1), rows)


LEFT = (Change("left", 100), Change("left", 100, ordered=True), Change("left", 10_000), Change("left", 0))
RIGHT = (Change("right", 100), Change("right", 10_000), Change("right", 0))


@dataclass(frozen=True)
class Cost:
    """Seconds on the clock, and of the engine's processor."""

    seconds: float
    cpu: float


@dataclass(frozen=True)
class World:
    """The topics and tables of one size, a session for what is done by hand, and what each of them cost."""

    bench: Bench
    size: int
    topology: Topology
    session: SparkSession
    rng: random.Random
    costs: dict[tuple[str, str], list[Cost]] = field(default_factory=lambda: defaultdict(list))

    @property
    def greatest(self) -> bool:
        """Whether the targets for large tables hold here."""
        return self.size == self.bench.scaled(GREATEST)

    def keys(self, name: str) -> range:
        """The keys of a topic. Half of the orders have no note, and some notes have no order."""
        notes = range(self.size // 2, self.size + self.size // 10)
        return {"orders": range(self.size), "notes": notes}.get(name, range(min(self.size // 10, 1_000_000)))

    def path(self, name: str) -> str:
        """Where a table is, by its name or by its topic's without the size."""
        topic = name in ("orders", *RIGHTS.values())
        return self.bench.lakehouse.table(self.topology.name, f"{name}-{self.size}" if topic else name)

    def produce(self, name: str, keys: Iterable[int]) -> None:
        """Send a new value for each key; one order in twenty names a customer that is not there."""
        values: dict[str, Callable[[int], bytes]] = {
            "orders": lambda _: order(self.rng, len(self.keys("customers")) * 20 // 19),
            "notes": lambda key: f'{{"text":"note {self.rng.randrange(1_000_000)} on {key}"}}'.encode(),
        }
        value = values.get(name, partial(customer, self.rng))
        produce(self.bench.kafka, f"{name}-{self.size}", ((key, value(key)) for key in keys))

    def change(self, change: Change) -> None:
        """Send a change to each topic of a side."""
        for name in ("orders",) if change.side == "left" else sorted(set(RIGHTS.values())):
            keys = self.keys(name)
            count = change.of(len(keys))
            start = self.rng.randrange(len(keys) - count + 1)
            self.produce(name, keys[start : start + count] if change.ordered else self.rng.sample(keys, count))

    def seconds(self, name: str, what: object) -> float:
        """The median."""
        return median(cost.seconds for cost in self.costs[name, str(what)])


def run(bench: Bench) -> list[Row]:
    """The cost of one step for every size, kind and change; then how it grew."""
    found: list[Row] = []
    worlds: list[World] = []
    for size in bench.sizes:
        world = _filled(bench, bench.scaled(size))
        for change in (*LEFT, *RIGHT):
            _turns(world, change)
        _again(world)
        _check(world)
        world.session.stop()
        found += _rows(world)
        worlds.append(world)
    return found + [figure for small, large in pairwise(worlds) for figure in _growth(small, large)]


def declared(size: int) -> Topology:
    """Every kind over the same topics. The directory is the customers once more: a topic is declared once."""
    builder = StreamsBuilder(f"growing{size}")
    person = Consumed.json(key="customer_id bigint", value="name string, country string")
    orders = builder.table(f"orders-{size}", Consumed.json(key="order_id bigint", value=ORDER))
    customers, directory = builder.table(f"customers-{size}", person), builder.global_table(f"directory-{size}", person)
    notes = builder.table(f"notes-{size}", Consumed.json(key="order_id bigint", value="text string"))
    select = ["left.*", "right.name", "right.country"]
    orders.join(customers, on="customer_id", select=select).materialize("inner")
    orders.left_join(customers, on="customer_id", select=select).materialize("left")
    orders.join(directory, on="customer_id", select=select, drive="both").materialize("global")
    orders.outer_join(notes, select=["left.*", "right.text"]).materialize("outer")
    by_customer = orders.group_by("customer_id")
    by_customer.aggregate(orders="count(*)", total="sum(amount)").materialize("folded")
    by_customer.aggregate(middle="percentile(quantity, 0.5)").materialize("again")
    return builder.build()


def _filled(bench: Bench, size: int) -> World:
    """Topics of a size, and every table computed from them."""
    world = World(bench, size, declared(size), bench.engine.session(), random.Random(size))
    for name in ("orders", *sorted(set(RIGHTS.values()))):
        bench.kafka.create_topic(f"{name}-{size}", 4)
        keys = world.keys(name)
        for start in bench.progress(range(0, len(keys), CHUNK), f"producing {len(keys):,} {name}"):
            world.produce(name, keys[start : start + CHUNK])
    _inputs(bench, world.topology)
    for name in QUERIES:
        bench.say(f"{size:,} orders: {name} filled in {_stepped(bench, world.topology, name).seconds:.1f} s")
    inner = world.session.read.format("delta").load(world.path("inner")).write.format("delta")
    inner = inner.option("delta.enableDeletionVectors", "true").option("delta.enableChangeDataFeed", "true")
    inner.save(world.path(BY_HAND))
    return world


def _turns(world: World, change: Change) -> None:
    """Turns of one change, each followed by every table it reaches."""
    bench, names = world.bench, list(QUERIES) if change.side == "left" else list(RIGHTS)
    for turn in bench.turns(f"{world.size:,} orders, {change}", warm_up=WARM_UP):
        world.change(change)
        inputs = _inputs(bench, world.topology)
        costs = {name: _stepped(bench, world.topology, name) for name in names}
        costs[BY_HAND] = _cost(bench, partial(_merged, world, change, inputs))
        for name, cost in costs.items() if turn >= WARM_UP else ():
            world.costs[name, str(change)].append(cost)
    for name in (*names, BY_HAND):
        bench.say(f"{world.size:,} orders, {change}: {name} {world.seconds(name, change):.2f} s")


def _again(world: World) -> None:
    """Everything computed again by plain Spark; what this costs does not depend on what changed."""
    for turn in world.bench.turns(f"{world.size:,} orders, again", warm_up=WARM_UP):
        for name in QUERIES:
            cost = _cost(world.bench, partial(_recomputed, world, name))
            if turn >= WARM_UP:
                world.costs[name, RECOMPUTE].append(cost)
    for name in QUERIES:
        world.bench.say(f"{world.size:,} orders: {name} recomputed in {world.seconds(name, RECOMPUTE):.2f} s")


def _cost(bench: Bench, do: Callable[[], object]) -> Cost:
    running = bench.engine.running()
    assert running is not None
    engine = psutil.Process(running.pid)
    before, began = engine.cpu_times(), time.monotonic()
    do()
    seconds, after = time.monotonic() - began, engine.cpu_times()
    return Cost(seconds, after.user + after.system - before.user - before.system)


def _stepped(bench: Bench, topology: Topology, name: str) -> Cost:
    done: list[Stepped] = []
    cost = _cost(bench, lambda: done.append(step(bench.ports, topology, topology.table(name), "bench")))
    assert done[0].outcome == "stepped", done
    return cost


def _inputs(bench: Bench, topology: Topology) -> dict[str, Stepped]:
    """Land and step the topics; by their names without the size."""
    cut, done = capture(bench.kafka, topology), {}
    for source in topology.sources:
        land(bench.ports, topology, source, cut, "bench")
        name = source.topic.partition("-")[0]
        done[name] = step(bench.ports, topology, topology.table(source.topic), "bench")
    return done


def _merged(world: World, change: Change, inputs: dict[str, Stepped]) -> None:
    """The inner join's change as one would write it by hand."""
    before = {name: done.before.data_version for name, done in inputs.items() if done.before}
    after = {name: done.after.data_version for name, done in inputs.items() if done.after}
    source = orders_by_hand if change.side == "left" else customers_by_hand
    tables = {name: world.path(name) for name in inputs}
    merge_by_hand(world.session, source(world.session, tables, before, after), world.path(BY_HAND))


def _recomputed(world: World, name: str) -> None:
    tables = {topic: f"delta.`{world.path(topic)}`" for topic in ("orders", *RIGHTS.values())}
    rows = world.session.sql(QUERIES[name].format(**tables))
    rows.write.format("delta").mode("overwrite").save(world.path(f"{name} {RECOMPUTE}"))


def _check(world: World) -> None:
    """What was measured yields the same rows, after all changes; in the columns that the query by hand has."""
    for name, by_hand in (*((name, f"{name} {RECOMPUTE}") for name in QUERIES), ("inner", BY_HAND)):
        world.bench.same(world.path(by_hand), world.path(name))
        world.bench.say(f"{world.size:,} orders: {name} equals {by_hand}")


def _rows(world: World) -> list[Row]:
    """The figures of one size, printed as a table as well."""
    table = Printed("kind", "change", "s", "CPU-s", "recompute s", "ratio", title=f"{world.size:,} orders")
    found, changes = [], {str(change): change for change in (*LEFT, *RIGHT)}
    for (name, changed), costs in sorted(world.costs.items()):
        what, seconds = f"{world.size:,}, {name}, {changed}", [cost.seconds for cost in costs]
        found += [row(what, seconds, "s"), row(f"{what}, engine", [cost.cpu for cost in costs], "CPU-s")]
        cells = [name, changed, *(f"{figure.median:.2f}" for figure in found[-2:])]
        if name in QUERIES and changed in changes:
            change, again = changes[changed], world.seconds(name, RECOMPUTE)
            rows = len(world.keys("orders" if change.side == "left" else RIGHTS[name]))
            wanted = 1.0 if world.greatest and change.of(rows) * 100 < rows else None
            found.append(row(f"{what}, step / recompute", [s / again for s in seconds], "x time", at_most=wanted))
            cells += [f"{again:.2f}", f"{found[-1].median:.2f}"]
        table.add_row(*cells)
    world.bench.console.print(table)
    return found


def _growth(small: World, large: World) -> list[Row]:
    """How many times longer a step takes over the larger tables. One change in a hundred grows with them."""
    return [
        row(
            f"{small.size:,} to {large.size:,} orders, {name}, {change}: growth",
            [large.seconds(name, change) / small.seconds(name, change)],
            "x time",
            at_most=1.5 if change.count and large.greatest else None,
        )
        for name in QUERIES
        for change in LEFT
    ]
