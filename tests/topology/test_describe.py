"""What a topology prints, against golden files; `TIDETABLE_RECORD=1 pytest tests/topology` writes them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from spark.topology import Consumed, StreamsBuilder, Topology
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


def test_global_tables_are_joined_to_a_view_that_is_looked_up_as_one() -> None:
    builder = StreamsBuilder("shop")
    lines = builder.table("lines", Consumed.json(key="id bigint", value="sku string, quantity int"))
    products = builder.global_table("products", Consumed.json(key="sku string", value="maker string"))
    makers = builder.global_table("makers", Consumed.json(key="maker string", value="country string"))
    made = products.left_join(makers, on="maker", select=["right.country"])
    lines.left_join(made, on="sku", select=["right.country"]).materialize("lines_made")
    told = builder.build().describe("lines_made")
    assert "left_join of products with makers" in told
    assert "a change of makers costs: the changed keys, and a scan of products for the rows whose maker" in told
    assert "[makers, products]" not in told


def test_groups_and_outer_joins_are_told() -> None:
    builder = StreamsBuilder("shop")
    orders = builder.table("orders", Consumed.json(key="id bigint", value="sku string, quantity int"))
    notes = builder.table("notes", Consumed.json(key="id bigint", value="note string"))
    orders.group_by("sku").aggregate(sold="sum(quantity)").materialize("sold")
    orders.outer_join(notes, select=["left.sku", "right.note"]).materialize("noted")
    topology = builder.build()
    assert topology.describe("sold") == (
        "sold\n"
        "  key: sku string\n"
        "  columns: sold\n"
        "  is: sum(quantity) AS sold by sku, each group computed again from its rows\n"
        "    of: orders\n"
        "  a change of orders costs: the changed keys, and a scan of orders for the rows of their groups, old and new\n"
    )
    assert "  is: primary-key outer join on id, both sides drive\n" in topology.describe("noted")
    assert "KTABLE-OUTERJOIN" in topology.describe()
    assert "KTABLE-AGGREGATE" in topology.describe()
