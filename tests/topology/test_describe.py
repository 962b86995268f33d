"""What a topology prints, against golden files; `TIDETABLE_RECORD=1 pytest tests/topology` writes them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from spark.topology import Consumed, StreamsBuilder, Topology, Versioned
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
        "  is: sum(quantity) AS sold by sku, folded: the new value is computed from the old value and the change\n"
        "    of: orders\n"
        "  a change of orders costs: the changed keys, each folded into its group; "
        "if a group loses its newest row, a scan of orders for its rows\n"
    )
    assert "  is: primary-key outer join on id, both sides drive\n" in topology.describe("noted")
    assert "KTABLE-OUTERJOIN" in topology.describe()
    assert "KTABLE-AGGREGATE" in topology.describe()


def test_an_aggregate_says_why_it_does_not_fold() -> None:
    builder = StreamsBuilder("shop")
    orders = builder.table("orders", Consumed.json(key="id bigint", value="sku string, price double, n int"))
    by_sku = orders.group_by("sku")
    by_sku.aggregate(prices="sum(price)").materialize("priced")
    by_sku.aggregate(middle="percentile(n, 0.5)").materialize("middle")
    by_sku.count().filter("count > 1").materialize("several")
    topology = builder.build()
    again = "each group computed again from its rows"
    assert f"{again}: price is double; an integer, or a decimal with fewer digits, folds: sum(cast(price AS ...))" in (
        topology.describe("priced")
    )
    assert f"{again}: percentile(n, 0.5) needs all rows of its group\n" in topology.describe("middle")
    assert f"{again}: it is not stored\n" in topology.describe("several")


def test_streams_are_told() -> None:
    builder = StreamsBuilder("shop")
    clicks = builder.stream("clicks", Consumed.json(key="user string", value="sku string"))
    views = builder.stream("views", Consumed.json(key="user string", value="sku string"))
    both = clicks.filter("sku <> ''").merge(views).select_key("sku")
    both.to_table().materialize("newest")
    both.group_by("sku").count().materialize("counted")
    topology = builder.build()
    assert topology.describe("newest") == (
        "newest\n"
        "  key: sku string\n"
        "  columns: user string\n"
        "  is: the newest record of every key\n"
        "    of: select_key sku\n"
        "      of: the records of both streams\n"
        "        left: filter sku <> ''\n"
        "          of: the records of topic clicks\n"
        "        right: the records of topic views\n"
        "  a change of _landing/clicks costs: the keys of the new records, and a scan of "
        "select_key of merge of filter of clicks and views for all records that have them\n"
        "  a change of _landing/views costs: the keys of the new records, and a scan of "
        "select_key of merge of filter of clicks and views for all records that have them\n"
    )
    assert "a change of _landing/clicks costs: the new records, each folded into its group\n" in (
        topology.describe("counted")
    )
    printed = topology.describe()
    for word in ("KSTREAM-FILTER", "KSTREAM-MERGE", "KSTREAM-KEY-SELECT", "KSTREAM-TOTABLE", "KSTREAM-AGGREGATE"):
        assert word in printed
    assert Topology.from_dict(topology.to_dict()) == topology


def test_a_versioned_table_says_so() -> None:
    builder = StreamsBuilder("shop")
    builder.table("prices", Consumed.json(key="sku string", value="price int"), versioned=Versioned("36h"))
    assert "the newest record of every key of topic prices, by timestamp (versioned, history 36h)" in (
        builder.build().describe("prices")
    )


def test_a_look_back_says_how_far_and_what_waits() -> None:
    builder = StreamsBuilder("shop")
    clicks = builder.stream("clicks", Consumed.json(key="user string", value="sku string"))
    prices = builder.table("prices", Consumed.json(key="sku string", value="price int"), versioned=Versioned("36h"))
    clicks.join(prices, on="sku", select=["left.sku", "right.price"]).materialize("priced")
    clicks.join(prices, on="sku", grace="5s", select=["left.sku", "right.price"]).materialize("patient")
    topology = builder.build()
    assert topology.describe("priced") == (
        "priced\n"
        "  key: user string\n"
        "  columns: sku string, price int\n"
        "  is: stream-table inner join on sku, prices as of the record's event time, "
        "at most 36h before table time\n"
        "    left: the records of topic clicks\n"
        "    right: prices\n"
        "  a change of _landing/clicks costs: the new records, each looked up once in prices; "
        "for a record older than the stored row, all records of its key\n"
        "  a change of prices costs: nothing: it is only looked up\n"
        "  a change of _landing/prices costs: nothing: it is only looked up\n"
    )
    patient = topology.describe("patient")
    assert "; looked up when stream time reaches the record's event time plus 5s of grace; state: none; " in patient
    assert "the records of the last 5s are read again\n" in patient
    assert "costs: the new records, and the records of 5s before them, each looked up once in prices; " in patient
    assert Topology.from_dict(topology.to_dict()) == topology
