"""What a topology prints, against golden files; `TIDETABLE_RECORD=1 pytest tests/topology` writes them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from spark.topology import Topology
from tests.topology.shop import Shop, whole_shop

GOLDEN = Path(__file__).parent / "golden"


def fingerprints(topology: Topology) -> str:
    """Every fingerprint of a topology, a line each."""
    lines = [f"{topology.name} {topology.fingerprint()}"]
    return "\n".join([*lines, *(f"{t.name} {topology.fingerprint(t.name)}" for t in topology.tables)]) + "\n"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("shop.describe.txt", Topology.describe),
        ("shop.mermaid", Topology.graph),
        ("shop.fingerprints.txt", fingerprints),
    ],
)
def test_the_shop_prints_as_recorded(name: str, text: Callable[[Topology], str]) -> None:
    golden = GOLDEN / name
    printed = text(whole_shop())
    if os.environ.get("TIDETABLE_RECORD"):
        golden.write_text(printed)
    assert printed == golden.read_text()


def test_one_table_is_described_alone() -> None:
    topology = whole_shop()
    words = topology.describe("orders_enriched")
    assert words.startswith("orders_enriched\n  key: order_id bigint\n")
    assert "foreign-key inner join on customer_id, both sides drive" in words
    assert "products" not in words


def test_a_view_that_nothing_reads_is_listed_with_its_line() -> None:
    shop = Shop()
    shop.orders.filter("amount > 100").materialize("large_orders")
    assert "Not stored" not in shop.builder.build().describe()
    shop.customers.filter("country = 'NO'")
    last = shop.builder.build().describe().splitlines()[-2:]
    assert last[0] == "Not stored, and read by no stored table:"
    assert last[1].startswith("   filter of customers, at tests/topology/test_describe.py:")


def test_a_view_inside_a_stored_table_is_not_listed() -> None:
    shop = Shop()
    shop.orders.filter("amount > 100").map_values(["amount"]).materialize("large_orders")
    assert shop.builder.build().unread == ()


def test_what_is_not_connected_is_another_sub_topology() -> None:
    shop = Shop()
    assert [line.strip() for line in shop.builder.build().describe().splitlines() if "Sub-" in line] == [
        f"Sub-topology: {number}" for number in range(4)
    ]
