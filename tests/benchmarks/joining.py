"""(b) A foreign-key step, from the left and from the right, beside a hand-written MERGE of the same change."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from spark.engine.land import capture, land
from spark.engine.log.stored_table import StoredTable
from spark.engine.step import step
from tests.benchmarks.measure import Row, row
from tests.benchmarks.shop import customer, order, produce, shop

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from spark.topology import Topology
    from tests.benchmarks.measure import Bench

CHANGED = 100  # orders, or customers with ten orders each
NAME = "fk"


def run(bench: Bench) -> list[Row]:
    """Seconds of our step and of the MERGE by hand, turn by turn on the same changes."""
    orders, customers = bench.scaled(1_000_000), bench.scaled(100_000)
    rng = random.Random(2)
    topology = shop(NAME, "fk-orders", "fk-customers")
    for source in topology.sources:
        bench.kafka.create_topic(source.topic, 4)
    # Each customer has ten orders, spread evenly: the change of a customer touches ten rows.
    produce(
        bench.kafka,
        "fk-orders",
        ((n, order(rng, customers)) for n in bench.progress(range(orders), "producing orders")),
    )
    produce(bench.kafka, "fk-customers", ((n, customer(rng, n)) for n in range(customers)))
    _inputs(bench, topology)
    enriched = topology.table("enriched")
    step(bench.ports, topology, enriched, "bench")
    session = bench.engine.session()
    hand = bench.lakehouse.table(NAME, "by_hand")
    session.read.format("delta").load(bench.lakehouse.table(NAME, "enriched")).write.format("delta").option(
        "delta.enableDeletionVectors", "true"
    ).option("delta.enableChangeDataFeed", "true").save(hand)

    def left() -> None:
        some = rng.sample(range(orders), CHANGED)
        produce(bench.kafka, "fk-orders", ((n, order(rng, customers)) for n in some))

    def right() -> None:
        some = rng.sample(range(customers), CHANGED)
        produce(bench.kafka, "fk-customers", ((n, customer(rng, n)) for n in some))

    found = []
    for what, change, by_hand in (
        ("100 changed orders", left, orders_by_hand),
        ("100 changed customers", right, customers_by_hand),
    ):
        ours, theirs = _turns(bench, topology, what, change, by_hand, session, hand)
        found += [
            row(f"foreign-key step, {what}", ours, "s", at_most=2.5),
            row("the same by a hand-written MERGE", theirs, "s"),
            row("ours / by hand", [a / b for a, b in zip(ours, theirs, strict=True)], "x time", at_most=1.10),
        ]
    session.stop()
    return found


def _turns(
    bench: Bench,
    topology: Topology,
    what: str,
    change: Callable[[], None],
    by_hand: Callable[..., DataFrame],
    session: SparkSession,
    hand: str,
) -> tuple[list[float], list[float]]:
    ours, theirs = [], []
    tables = {name: bench.lakehouse.table(NAME, f"fk-{name}") for name in ("orders", "customers")}
    for turn in bench.turns(what, warm_up=2):
        before = {name: _version(path, f"fk-{name}") for name, path in tables.items()}
        change()
        _inputs(bench, topology)
        after = {name: _version(path, f"fk-{name}") for name, path in tables.items()}
        began = time.monotonic()
        done = step(bench.ports, topology, topology.table("enriched"), "bench")
        middle = time.monotonic()
        assert done.outcome == "stepped", done
        merge_by_hand(session, by_hand(session, tables, before, after), hand)
        theirs.append(time.monotonic() - middle)
        ours.append(middle - began)
        bench.say(f"turn {turn}: {ours[-1]:.2f} s, by hand {theirs[-1]:.2f} s, {done.touched} keys")
    bench.same(bench.lakehouse.table(NAME, "enriched"), hand)
    return ours[2:], theirs[2:]


def _inputs(bench: Bench, topology: Topology) -> None:
    cut = capture(bench.kafka, topology)
    for source in topology.sources:
        land(bench.ports, topology, source, cut, "bench")
        step(bench.ports, topology, topology.table(source.topic), "bench")


def _version(path: str, name: str) -> int:
    state = StoredTable(f"{NAME}/{name}", path).state()
    assert state is not None
    return state.data_version


def _changes(session: SparkSession, path: str, key: str, before: int, after: int) -> DataFrame:
    """One row of the change feed for each key: a row that was replaced is a delete and an insert in it."""
    feed = (
        session.read.option("readChangeFeed", "true")
        .option("startingVersion", before + 1)
        .option("endingVersion", after)
    )
    found = feed.format("delta").load(path).where("_change_type <> 'update_preimage'")
    newest = F.max_by(F.struct("*"), F.struct("_commit_version", F.col("_change_type") != "delete"))
    return found.groupBy(key).agg(newest.alias("_newest")).select("_newest.*")


def orders_by_hand(
    session: SparkSession, tables: dict[str, str], before: dict[str, int], after: dict[str, int]
) -> DataFrame:
    """The rows to merge after orders changed; `gone` where none is left."""
    changed = _changes(session, tables["orders"], "order_id", before["orders"], after["orders"]).alias("o")
    customers = session.read.format("delta").load(tables["customers"]).alias("c")
    return customers.join(F.broadcast(changed), F.expr("o.customer_id = c.customer_id"), "right_outer").selectExpr(
        "o.* EXCEPT (_change_type, _commit_version, _commit_timestamp, _timestamp)",
        "greatest(o._timestamp, c._timestamp) AS _timestamp",
        "c.name",
        "c.country",
        "o._change_type = 'delete' OR c.customer_id IS NULL AS gone",
    )


def customers_by_hand(
    session: SparkSession, tables: dict[str, str], before: dict[str, int], after: dict[str, int]
) -> DataFrame:
    """The rows to merge after customers changed; `gone` where none is left."""
    changed = _changes(session, tables["customers"], "customer_id", before["customers"], after["customers"]).alias("c")
    orders = session.read.format("delta").load(tables["orders"]).alias("o")
    return orders.join(F.broadcast(changed), F.expr("o.customer_id = c.customer_id")).selectExpr(
        "o.* EXCEPT (_timestamp)",
        "greatest(o._timestamp, c._timestamp) AS _timestamp",
        "c.name",
        "c.country",
        "c._change_type = 'delete' AS gone",
    )


def merge_by_hand(session: SparkSession, source: DataFrame, path: str) -> None:
    """What one would write: match by key, delete, update, insert."""
    F.broadcast(source).createOrReplaceTempView("by_hand")
    columns = [name for name in source.columns if name != "gone"]
    pairs = ", ".join(f"{name} = s.{name}" for name in columns)
    session.sql(
        f"MERGE INTO delta.`{path}` t USING by_hand s ON t.order_id = s.order_id WHEN MATCHED AND s.gone THEN DELETE "
        f"WHEN MATCHED THEN UPDATE SET {pairs} "
        f"WHEN NOT MATCHED AND NOT s.gone THEN INSERT ({', '.join(columns)}) "
        f"VALUES ({', '.join('s.' + name for name in columns)})"
    ).collect()
