"""(h) A test of 50 records on the driver, one by one, over the README's first topology; Spark's start included."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from spark.topology import Consumed, StreamsBuilder, Topology
from tests.benchmarks.measure import row

if TYPE_CHECKING:
    from spark.testing import TopologyTestDriver
    from tests.benchmarks.measure import Bench, Row

RECORDS = 50


def run(bench: Bench) -> list[Row]:
    """Seconds of such a test in a process of its own, and of a record in it: if it waits, and if it is looked at."""
    turns = []
    for _ in bench.turns("tests on the driver"):
        # As a user's test would: a process, and Spark's own session in it.
        done = subprocess.run(
            [sys.executable, "-m", "tests.benchmarks.driver"], capture_output=True, text=True, check=True
        )
        turns.append(json.loads(done.stdout))
    return [
        row(f"a test of {RECORDS} records, and Spark's start", [one["whole"] for one in turns], "s", at_most=20),
        row(f"a record after the first, of {RECORDS} that wait", [one["waiting"] for one in turns], "s", at_most=0.3),
        row("a record after the first, looked at after each", [one["looked"] for one in turns], "s", at_most=0.3),
    ]


def first() -> Topology:
    """The README's first topology."""
    builder = StreamsBuilder("first")
    value = "customer_id bigint, amount decimal(12,2)"
    orders = builder.table("orders", Consumed.json(key="order_id bigint", value=value))
    customers = builder.table("customers", Consumed.json(key="customer_id bigint", value="name string, country string"))
    enriched = orders.join(customers, on="customer_id", select=["left.*", "right.name", "right.country"])
    enriched.materialize("orders_enriched")
    enriched.filter("amount >= 100").materialize("large_orders")
    return builder.build()


def pipe(driver: TopologyTestDriver, number: int) -> None:
    """A customer who is new or changes, or an order that is new or changes."""
    if number % 3 == 0:
        driver.pipe("customers", key=number % 5, value={"name": f"name {number}", "country": "DE"}, timestamp=number)
    else:
        value = {"customer_id": number % 5, "amount": f"{10 * number}.00"}
        driver.pipe("orders", key=number % 7, value=value, timestamp=number)


def main() -> None:
    """One test: prints its seconds as JSON."""
    began = time.monotonic()
    from spark.testing import TopologyTestDriver  # its import is a part of the test

    driver = TopologyTestDriver(first())
    pipe(driver, 0)
    assert driver.table("large_orders") == []
    after_first = time.monotonic()
    for number in range(1, RECORDS):
        pipe(driver, number)
    assert len(driver.table("large_orders")) == 7
    ended = time.monotonic()
    for number in range(RECORDS, 2 * RECORDS):
        pipe(driver, number)
        assert driver.table("large_orders")
    looked = time.monotonic() - ended
    told = {
        "whole": ended - began,
        "waiting": (ended - after_first) / (RECORDS - 1),
        "looked": looked / RECORDS,
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
