"""(d) How a step's cost grows with its tables, kind by kind, beside all rows computed again by plain Spark."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

import psutil
from rich.table import Table as Printed

from spark.engine.land import capture, land
from spark.engine.step import step
from spark.topology import Consumed, StreamsBuilder
from tests.benchmarks.joining import customers_by_hand, merge_by_hand, orders_by_hand
from tests.benchmarks.measure import Row, row
from tests.benchmarks.shop import ORDER, customer, order, produce, shop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import SparkSession

    from spark.engine.step import Stepped
    from spark.topology import Topology
    from tests.benchmarks.measure import Bench

SIZES = (100_000, 1_000_000, 10_000_000)  # orders
AGED, GREATEST = SIZES[1:]  # where the targets for many small steps, and for the ratio to a recompute, are set
CHUNK = 1_000_000  # records sent before the broker is waited for: the client's queue holds two million
WARM_UP = 2  # turns
SMALL_STEPS = 50
CUSTOMER = "name string, country string"


@dataclass(frozen=True)
class Kind:
    """A derived table: which table is on its right, and the same query as one would write it for Spark."""

    name: str
    right: str | None
    query: str


JOINED = "SELECT o.* EXCEPT (_timestamp), greatest(o._timestamp, r._timestamp) AS _timestamp, r.name, r.country"
KINDS = (
    Kind("inner", "customers", f"{JOINED} FROM {{orders}} o JOIN {{customers}} r ON o.customer_id = r.customer_id"),
    Kind("left", "customers", f"{JOINED} FROM {{orders}} o LEFT JOIN {{customers}} r ON o.customer_id = r.customer_id"),
    Kind("global", "directory", f"{JOINED} FROM {{orders}} o JOIN {{directory}} r ON o.customer_id = r.customer_id"),
    Kind(
        "outer",
        "notes",
        "SELECT coalesce(o.order_id, r.order_id) AS order_id, "
        "o.* EXCEPT (order_id, _timestamp, _topic, _partition, _offset), r.text, "
        "greatest(o._timestamp, r._timestamp) AS _timestamp, coalesce(o._topic, r._topic) AS _topic, "
        "coalesce(o._partition, r._partition) AS _partition, coalesce(o._offset, r._offset) AS _offset "
        "FROM {orders} o FULL JOIN {notes} r ON o.order_id = r.order_id",
    ),
    Kind(
        "folded",
        None,
        "SELECT customer_id, count(*) AS orders, sum(amount) AS total FROM {orders} GROUP BY customer_id",
    ),
    Kind(
        "again",
        None,
        "SELECT customer_id, percentile(quantity, 0.5) AS middle FROM {orders} GROUP BY customer_id",
    ),
)


@dataclass(frozen=True)
class Change:
    """So many rows of each table on one side, at keys far apart or one behind the other."""

    side: str
    count: int | None  # None: one in a hundred
    ordered: bool = False

    def __str__(self) -> str:
        count = "1 %" if self.count is None else f"{self.count:,}"
        return f"{count} {self.side}{', ordered' if self.ordered else ''}"

    def of(self, rows: int) -> int:
        """How many of a table's rows."""
        return rows // 100 if self.count is None else min(self.count, rows)


CHANGES = (
    Change("left", 100),
    Change("left", 100, ordered=True),
    Change("left", 10_000),
    Change("left", None),
    Change("right", 100),
    Change("right", 10_000),
    Change("right", None),
)


@dataclass(frozen=True)
class Cost:
    """What something took: seconds on the clock, and of the engine's processor."""

    seconds: float
    cpu: float


Costs = defaultdict[tuple[str, str], list[Cost]]
"""By kind and change."""


@dataclass(frozen=True)
class World:
    """The topics and tables of one size, and a session for what is done by hand."""

    bench: Bench
    size: int
    topology: Topology
    session: SparkSession
    rng: random.Random
    steps: Costs = field(default_factory=lambda: defaultdict(list))
    by_hand: Costs = field(default_factory=lambda: defaultdict(list))
    recomputed: Costs = field(default_factory=lambda: defaultdict(list))

    def keys(self, name: str) -> range:
        """The keys of a topic. Half of the orders have no note, and some notes have no order."""
        customers = max(min(self.size // 10, 1_000_000), 1)
        notes = range(self.size // 2, self.size + self.size // 10)
        return {"orders": range(self.size), "notes": notes}.get(name, range(customers))

    def value(self, name: str, key: int) -> bytes:
        """A record's value; one order in twenty names a customer that is not there."""
        if name == "orders":
            return order(self.rng, len(self.keys("customers")) * 20 // 19)
        if name == "notes":
            return f'{{"text":"note {self.rng.randrange(1_000_000)} on {key}"}}'.encode()
        return customer(self.rng, key)

    def path(self, name: str) -> str:
        """Where a table is, by the topic's name without its size."""
        names = [table.name for table in self.topology.tables]
        topic = f"{name}-{self.size}"
        return self.bench.lakehouse.table(self.topology.name, topic if topic in names else name)

    def produce(self, name: str, keys: Iterable[int]) -> None:
        """Send a new value for each key."""
        produce(self.bench.kafka, f"{name}-{self.size}", ((key, self.value(name, key)) for key in keys))

    def change(self, change: Change) -> None:
        """Send a change to each topic of a side."""
        for name in ("orders",) if change.side == "left" else ("customers", "directory", "notes"):
            keys = self.keys(name)
            count = change.of(len(keys))
            start = self.rng.randrange(len(keys) - count + 1)
            self.produce(name, keys[start : start + count] if change.ordered else self.rng.sample(keys, count))


def run(bench: Bench) -> list[Row]:
    """The cost of one step for every size, kind and change; then how it grew, and what many small steps add."""
    found: list[Row] = []
    before: World | None = None
    for size in bench.sizes:
        world = _filled(bench, bench.scaled(size))
        for change in CHANGES:
            _turns(world, change)
        _check(world)
        world.session.stop()
        found += _rows(world, size)
        if before is not None:
            found += _growth(before, world)
        if size == AGED:
            found += _aged(world)
        before = world
    return found


def declared(size: int) -> Topology:
    """Every kind over the same topics. The directory is the customers once more: a topic is declared once."""
    builder = StreamsBuilder(f"growing{size}")
    orders = builder.table(f"orders-{size}", Consumed.json(key="order_id bigint", value=ORDER))
    customers = builder.table(f"customers-{size}", Consumed.json(key="customer_id bigint", value=CUSTOMER))
    directory = builder.global_table(f"directory-{size}", Consumed.json(key="customer_id bigint", value=CUSTOMER))
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
    for name in ("orders", "customers", "directory", "notes"):
        bench.kafka.create_topic(f"{name}-{size}", 4)
        keys = world.keys(name)
        for start in bench.progress(range(0, len(keys), CHUNK), f"producing {len(keys):,} {name}"):
            world.produce(name, keys[start : start + CHUNK])
    _inputs(bench, world.topology)
    for kind in KINDS:
        filling = _cost(bench, partial(_stepped, bench, world.topology, kind.name))
        bench.say(f"{size:,} orders: {kind.name} filled in {filling.seconds:.1f} s")
    inner = world.session.read.format("delta").load(world.path("inner")).write.format("delta")
    inner = inner.option("delta.enableDeletionVectors", "true").option("delta.enableChangeDataFeed", "true")
    inner.save(world.path("inner_by_hand"))
    return world


def _turns(world: World, change: Change) -> None:
    """Turns of one change, each followed by every table it reaches; then everything again, by plain Spark."""
    bench, kinds = world.bench, [kind for kind in KINDS if change.side == "left" or kind.right]
    for turn in bench.turns(f"{world.size:,} orders, {change}", warm_up=WARM_UP):
        world.change(change)
        inputs = _inputs(bench, world.topology)
        costs = {kind.name: _cost(bench, partial(_stepped, bench, world.topology, kind.name)) for kind in kinds}
        by_hand = _cost(bench, partial(_merged, world, change, inputs))
        if turn >= WARM_UP:
            world.by_hand["inner", str(change)].append(by_hand)
            for name, cost in costs.items():
                world.steps[name, str(change)].append(cost)
    for kind in KINDS:  # all of them: what it costs does not depend on what changed, so every one counts
        world.recomputed[kind.name, ""].append(_cost(bench, partial(_recomputed, world, kind)))
    for kind in kinds:
        seconds, cpu, again, ratio = _figures(world, kind, change)
        bench.say(f"{kind.name}: {seconds:.2f} s, {cpu:.2f} CPU-s, recomputed in {again:.2f} s: {ratio:.2f} of it")


def _cost(bench: Bench, do: Callable[[], object]) -> Cost:
    running = bench.engine.running()
    assert running is not None
    engine = psutil.Process(running.pid)
    before, began = engine.cpu_times(), time.monotonic()
    do()
    seconds, after = time.monotonic() - began, engine.cpu_times()
    return Cost(seconds, after.user + after.system - before.user - before.system)


def _stepped(bench: Bench, topology: Topology, name: str) -> None:
    done = step(bench.doors, topology, topology.table(name), "bench")
    assert done.outcome == "stepped", done


def _inputs(bench: Bench, topology: Topology) -> dict[str, Stepped]:
    """Land and step the topics, by their names without the size."""
    cut = capture(bench.kafka, topology)
    done = {}
    for source in topology.sources:
        land(bench.doors, topology, source, cut, "bench")
        name = source.topic.partition("-")[0]
        done[name] = step(bench.doors, topology, topology.table(source.topic), "bench")
    return done


def _merged(world: World, change: Change, inputs: dict[str, Stepped]) -> None:
    """The inner join's change as one would write it by hand."""
    tables = {name: world.path(name) for name in inputs}
    before = {name: done.before.data_version for name, done in inputs.items() if done.before}
    after = {name: done.after.data_version for name, done in inputs.items() if done.after}
    by_hand = orders_by_hand if change.side == "left" else customers_by_hand
    merge_by_hand(world.session, by_hand(world.session, tables, before, after), world.path("inner_by_hand"))


def _recomputed(world: World, kind: Kind) -> None:
    tables = {name: f"delta.`{world.path(name)}`" for name in ("orders", "customers", "directory", "notes")}
    rows = world.session.sql(kind.query.format(**tables))
    rows.write.format("delta").mode("overwrite").save(world.path(f"{kind.name}_recomputed"))


def _check(world: World) -> None:
    """What was measured must be the same rows: after all changes, of every kind, and of the MERGE by hand."""
    pairs = [(kind.name, f"{kind.name}_recomputed") for kind in KINDS] + [("inner", "inner_by_hand")]
    for ours, theirs in pairs:
        world.bench.same(world.path(theirs), world.path(ours))  # over their columns: ours may hold more
        world.bench.say(f"{world.size:,} orders: {ours} equals {theirs}")


def _figures(world: World, kind: Kind, change: Change) -> tuple[float, float, float, float]:
    """Seconds and engine CPU-seconds of a step, seconds of a recompute, and the step's part of that."""
    costs = world.steps[kind.name, str(change)]
    seconds, cpu = median(cost.seconds for cost in costs), median(cost.cpu for cost in costs)
    again = median(cost.seconds for cost in world.recomputed[kind.name, ""])
    return seconds, cpu, again, seconds / again


def _rows(world: World, size: int) -> list[Row]:
    """Rows for every kind and change of one size, which are also printed as a table of this size."""
    table = Printed("kind", "change", "step s", "CPU-s", "recompute s", "ratio", title=f"{world.size:,} orders")
    found = []
    for kind in KINDS:
        recomputed = world.recomputed[kind.name, ""]
        found.append(row(f"{world.size:,}, {kind.name}: recompute", [cost.seconds for cost in recomputed], "s"))
        for change in (change for change in CHANGES if (kind.name, str(change)) in world.steps):
            figures = _figures(world, kind, change)
            table.add_row(kind.name, str(change), *(f"{figure:.2f}" for figure in figures))
            costs, what = world.steps[kind.name, str(change)], f"{world.size:,}, {kind.name}, {change}"
            changed = len(world.keys("orders" if change.side == "left" else kind.right or ""))
            wanted = 1.0 if size == GREATEST and change.of(changed) * 100 < changed else None
            found += [
                row(f"{what}: step", [cost.seconds for cost in costs], "s"),
                row(f"{what}: engine", [cost.cpu for cost in costs], "CPU-s"),
                row(f"{what}: step / recompute", [cost.seconds / figures[2] for cost in costs], "x time", None, wanted),
            ]
    for (name, changed_by), costs in world.by_hand.items():
        what = f"{world.size:,}, {name}, {changed_by}: by hand"
        found.append(row(what, [cost.seconds for cost in costs], "s"))
        seconds, cpu = (f"{median(values):.2f}" for values in zip(*((c.seconds, c.cpu) for c in costs), strict=True))
        table.add_row(f"{name} by hand", changed_by, seconds, cpu)
    world.bench.console.print(table)
    return found


def _growth(small: World, large: World) -> list[Row]:
    """How much longer a step takes over the larger tables. One change in a hundred grows with them."""
    return [
        row(
            f"{small.size:,} to {large.size:,}, {kind.name}, {change}: growth",
            [_figures(large, kind, change)[0] / _figures(small, kind, change)[0]],
            "x time",
            at_most=1.5 if change.count is not None else None,
        )
        for kind in KINDS
        for change in CHANGES
        if change.side == "left"
    ]


def _aged(world: World) -> list[Row]:
    """A foreign-key table of its own over the same topics: fresh, after many small steps, and compacted then."""
    bench = world.bench
    topology = shop("aged", f"orders-{world.size}", f"customers-{world.size}")
    _inputs(bench, topology)
    _stepped(bench, topology, "enriched")

    def small_step() -> Cost:
        world.change(CHANGES[0])
        _inputs(bench, topology)
        return _cost(bench, partial(_stepped, bench, topology, "enriched"))

    def measured(what: str, wanted: float | None) -> list[Row]:
        costs = [small_step() for _ in bench.turns(what, warm_up=WARM_UP)][WARM_UP:]
        what = f"{world.size:,}, inner, {CHANGES[0]}, {what}"
        bench.say(f"{what}: {median(cost.seconds for cost in costs):.2f} s")
        seconds = row(f"{what}: step", [cost.seconds for cost in costs], "s", at_most=wanted)
        return [seconds, row(f"{what}: engine", [cost.cpu for cost in costs], "CPU-s")]

    found = measured("fresh", 1.5)
    for _ in bench.progress(range(SMALL_STEPS), "many small steps"):
        small_step()
    found += measured(f"after {SMALL_STEPS} steps", 2.5)
    session = bench.engine.session()
    for table in topology.tables:
        session.sql(f"OPTIMIZE delta.`{bench.lakehouse.table(topology.name, table.name)}`").collect()
    session.stop()
    return found + measured("freshly compacted", None)
