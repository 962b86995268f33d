"""Mistakes with streams: joins, windows, and the order of time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark.topology import (
    JoinWindows,
    TimeWindows,
    TopologyError,
)
from spark.topology.handles import KStream, KTable
from tests.topology.mistakes import WINDOWS, prices, raised
from tests.topology.shop import Shop


@pytest.mark.parametrize(
    ("starts", "told", "ask"),
    [
        (
            "join of clicks with clicks",
            "two streams are joined within a window, and within= is missing",
            lambda shop: shop.clicks.join(shop.clicks, select=["left.sku"]),
        ),
        (
            "join of clicks with clicks",
            "on= is for a table on the right",
            lambda shop: shop.clicks.join(shop.clicks, on="sku", within=WINDOWS, select=["left.sku"]),
        ),
        (
            "left_join of clicks with clicks",
            "grace= is for a table on the right",
            lambda shop: shop.clicks.left_join(shop.clicks, within=WINDOWS, grace="1s", select=["left.sku"]),
        ),
        (
            "join of clicks with products",
            "within= is for two streams",
            lambda shop: shop.clicks.join(shop.products, on="sku", within=WINDOWS, select=["left.sku"]),
        ),
        (
            "join of clicks with products",
            "drive is 'both', and only the stream produces records",
            lambda shop: shop.clicks.join(shop.products, on="sku", drive="both", select=["left.sku"]),
        ),
        (
            "outer_join of clicks with products",
            "an outer join of a stream with a table is not available",
            lambda shop: shop.clicks.outer_join(shop.products, within=None, select=["left.sku"]),
        ),
        (
            "join of clicks with str",
            "the right side is 'products'",
            lambda shop: shop.clicks.join("products", on="sku", select=["left.sku"]),
        ),
        (
            "join of map_values of clicks",
            "user_id is bigint",
            lambda shop: shop.clicks.map_values(["cast(sku AS int) AS n"]).join(
                shop.customers.select_key("name"), select=["left.n"]
            ),
        ),
        (
            "join of clicks with customers",
            "grace= needs a versioned table, and the right side is not one",
            lambda shop: shop.clicks.join(shop.customers, on="user_id", grace="1s", select=["left.sku"]),
        ),
        (
            "join of clicks with select_key",
            "grace= needs a versioned table, and the right side is not one",
            lambda shop: shop.clicks.join(prices(shop).select_key("price"), on="1", grace="1s", select=["left.sku"]),
        ),
        (
            "join of clicks with products",
            "grace= needs a versioned table, and the right side is a global table",
            lambda shop: shop.clicks.join(shop.products, on="sku", grace="1s", select=["left.sku"]),
        ),
        (
            "join of clicks with products",
            "write on=[...] with one expression over left columns for each of: sku string",
            lambda shop: shop.clicks.join(shop.products, select=["left.sku"]),
        ),
        (
            "join of clicks with select_key of clicks",
            "give both sides the same key: compute its columns with map_values(...), and call select_key(...)",
            lambda shop: shop.clicks.join(shop.clicks.select_key("sku"), within=WINDOWS, select=["left.sku"]),
        ),
        (
            "JoinWindows of join of clicks with clicks",
            "grace is missing: without it no window would ever close",
            lambda shop: shop.clicks.join(shop.clicks, within=JoinWindows.of("10s"), select=["left.sku"]),
        ),
        (
            "join of clicks with filter of prices",
            "grace is 25h, and the history of prices is 1d",
            lambda shop: shop.clicks.join(prices(shop).filter("price > 0"), on="sku", grace="25h", select=["left.sku"]),
        ),
        (
            "join of clicks with prices",
            "'soon' is not a duration",
            lambda shop: shop.clicks.join(prices(shop), on="sku", grace="soon", select=["left.sku"]),
        ),
        (
            "JoinWindows of join of clicks with clicks",
            "'ten' is not a duration",
            lambda shop: shop.clicks.join(shop.clicks, within=JoinWindows.of("ten", grace="0s"), select=["left.sku"]),
        ),
        (
            "JoinWindows of join of clicks with clicks",
            "the window from -20000 ms before to 10000 ms after is empty",
            lambda shop: shop.clicks.join(
                shop.clicks, within=JoinWindows.of("10s", before="-20s", grace="0s"), select=["left.sku"]
            ),
        ),
        (
            "JoinWindows of join of clicks with clicks",
            "'-1s' is not a duration",
            lambda shop: shop.clicks.join(shop.clicks, within=JoinWindows.of("10s", grace="-1s"), select=["left.sku"]),
        ),
    ],
)
def test_what_a_stream_cannot_join_is_told(starts: str, told: str, ask: Callable[[Shop], object]) -> None:
    message = raised(ask)
    assert message.startswith(starts.split(" with ")[0])
    assert told in message


@pytest.mark.parametrize(
    ("told", "ask"),
    [
        (
            "a join of two streams cannot be a view",
            lambda shop: shop.clicks.join(shop.clicks, within=WINDOWS, select=["left.sku"]),
        ),
        (
            "a join with grace= cannot be a view",
            lambda shop: shop.clicks.join(prices(shop), on="sku", grace="1s", select=["left.sku"]),
        ),
        (
            "it reads join of clicks with products again, which is not stored",
            lambda shop: (
                shop.clicks.join(shop.products, on="sku", select=["left.sku"])
                .join(prices(shop), on="sku", grace="1s", select=["left.sku"])
                .materialize("n")
            ),
        ),
        (
            "it reads join of clicks with products again, which is not stored",
            lambda shop: (
                shop.clicks.join(shop.products, on="sku", select=["right.title"])
                .group_by("title")
                .count()
                .materialize("n")
            ),
        ),
        (
            "it reads join of clicks with products again, which is not stored",
            lambda shop: (
                shop.clicks.join(shop.products, on="sku", select=["right.title"])
                .filter("title > 'a'")
                .join(shop.clicks, within=WINDOWS, select=["left.title"])
                .materialize("n")
            ),
        ),
    ],
)
def test_what_depends_on_when_it_was_looked_up_is_stored(told: str, ask: Callable[[Shop], object]) -> None:
    shop = Shop()
    ask(shop)
    with pytest.raises(TopologyError) as caught:
        shop.builder.build()
    assert told in str(caught.value)
    assert "call .materialize(name) on" in str(caught.value)


@pytest.mark.parametrize(
    "reads",
    [
        lambda shop, lone: lone.filter("sku > 'a'").join(shop.clicks, within=WINDOWS, select=["left.sku"]),
        lambda _shop, lone: lone.group_by("sku").windowed_by(TimeWindows.of("1m", grace="0s")).count(),
        lambda shop, lone: lone.join(shop.customers, on="user_id", select=["left.sku"]),
    ],
)
def test_lone_records_have_no_place_in_the_order_of_time(reads: Callable[[Shop, KStream], KStream | KTable]) -> None:
    shop = Shop()
    lone = shop.clicks.left_join(shop.clicks, within=WINDOWS, select=["left.sku"]).materialize("lone")
    reads(shop, lone).materialize("read")
    with pytest.raises(TopologyError) as caught:
        shop.builder.build()
    assert "left_join of clicks with clicks emits records without a partner when stream time closes them" in str(
        caught.value
    )


@pytest.mark.parametrize(
    "reads",
    [
        lambda shop, priced: priced.filter("sku > 'a'").join(shop.clicks, within=WINDOWS, select=["left.sku"]),
        lambda _shop, priced: priced.group_by("sku").windowed_by(TimeWindows.of("1m", grace="0s")).count(),
    ],
)
def test_what_waited_would_be_late_in_windows(reads: Callable[[Shop, KStream], KStream | KTable]) -> None:
    shop = Shop()
    priced = shop.clicks.join(prices(shop), on="sku", grace="1s", select=["left.sku"]).materialize("priced")
    reads(shop, priced).materialize("read")
    with pytest.raises(TopologyError) as caught:
        shop.builder.build()
    assert "join of clicks with prices emits its records when their grace has passed" in str(caught.value)


def test_what_waited_is_looked_up_from_and_counted() -> None:
    shop = Shop()
    priced = shop.clicks.join(prices(shop), on="sku", grace="1s", select=["left.sku"]).materialize("priced")
    priced.join(shop.customers, on="user_id", select=["left.sku"]).materialize("named")
    priced.group_by("sku").count().materialize("counted")
    assert shop.builder.build().table("priced").followed


@pytest.mark.parametrize(
    ("whole", "stored"),
    [
        (True, lambda clicks: clicks.map_values(["upper(sku) AS sku"])),
        (True, lambda clicks: clicks.merge(clicks)),
        (False, lambda clicks: clicks.filter("sku > 'a'")),
        (False, lambda clicks: clicks.filter("sku > 'a'").merge(clicks.filter("sku > 'b'"))),
        (False, lambda clicks: clicks.to_table().materialize("newest").to_stream()),
    ],
)
def test_nothing_waits_for_a_time_that_is_hidden(whole: bool, stored: Callable[[KStream], KStream]) -> None:
    shop = Shop()
    read = stored(shop.clicks).materialize("stored")
    read.map_values(["sku"]).join(prices(shop), on="sku", grace="1s", select=["left.sku"]).materialize("priced")
    if whole:
        assert shop.builder.build()
        return
    with pytest.raises(TopologyError) as caught:
        shop.builder.build()
    assert "grace= needs every advance of stream time, and" in str(caught.value)


@pytest.mark.parametrize("kept", [True, False])
def test_a_join_of_streams_reads_changes_where_they_are_kept(kept: bool) -> None:
    shop = Shop()
    changes = shop.orders.to_stream()
    if kept:
        changes.materialize("changes")
    changes.join(changes, within=WINDOWS, select=["left.sku"]).materialize("pairs")
    if kept:
        assert shop.builder.build()
        return
    with pytest.raises(TopologyError) as caught:
        shop.builder.build()
    assert "the changes of a table are not retained, and a join of streams reads them again" in str(caught.value)
    assert "call .materialize(name) after .to_stream()" in str(caught.value)


def test_lone_records_are_looked_up_and_counted() -> None:
    shop = Shop()
    lone = shop.clicks.left_join(shop.clicks, within=WINDOWS, select=["left.sku"]).materialize("lone")
    lone.join(shop.products, on="sku", select=["left.sku"]).materialize("titled")
    lone.group_by("sku").count().materialize("counted")
    assert [table.name for table in shop.builder.build().tables][-3:] == ["lone", "titled", "counted"]


@pytest.mark.parametrize(
    ("told", "ask"),
    [
        ("sku is string, not an array column of the value", lambda shop: shop.clicks.flat_map("sku")),
        ("user_id is bigint, not an array column of the value", lambda shop: shop.clicks.flat_map("user_id")),
        ("no branch is given", lambda shop: shop.clicks.split()),
        ("branch large of split of clicks: ", lambda shop: shop.clicks.split(large="amount > 1")),
        ("'sku' is string, not a condition", lambda shop: shop.clicks.split(large="sku")),
        ("there is no branch 'b'\n  it has: user_id", lambda shop: shop.clicks.split(a="true", rest="true")["b"]),
        ("write one of a, rest\n", lambda shop: shop.clicks.split(a="true", rest="true")["b"]),
    ],
)
def test_what_a_stream_cannot_be_cut_into_is_told(told: str, ask: Callable[[Shop], object]) -> None:
    assert told in raised(ask)


@pytest.mark.parametrize(
    ("told", "what", "mistake"),
    [
        ("select_key of clicks", "'nobody' is not a column", lambda shop: shop.clicks.select_key("nobody")),
        ("select_key of clicks", "'upper(sku)' is not a column", lambda shop: shop.clicks.select_key(["upper(sku)"])),
        ("select_key of orders", "no column is given", lambda shop: shop.orders.select_key([])),
        ("select_key of orders", "'SKU' is given twice", lambda shop: shop.orders.select_key(["sku", "SKU"])),
        ("merge of clicks with KTable", "KTable is not a stream", lambda shop: shop.clicks.merge(shop.orders)),
        (
            "merge of clicks with select_key of clicks",
            "the two streams have different keys or columns",
            lambda shop: shop.clicks.merge(shop.clicks.select_key("sku")),
        ),
        (
            "to_stream of filter of orders",
            "a view has no change feed",
            lambda shop: [shop.orders.filter("amount > 1").to_stream(), shop.builder.build()],
        ),
        (
            "merge of to_stream of orders with to_stream of orders",
            "a deleted row has no timestamp",
            lambda shop: shop.orders.to_stream().merge(shop.orders.to_stream()),
        ),
        (
            "reduce of orders",
            "'amuont' is not a column of the source",
            lambda shop: shop.orders.group_by("sku").reduce(amuont="sum(amount)"),
        ),
        (
            "to_table of to_stream of orders",
            "to_table() of a table's changes cannot be a view",
            lambda shop: [shop.orders.to_stream().to_table().filter("true"), shop.builder.build()],
        ),
        (
            "aggregate of to_stream of orders by sku",
            "the changes of a table are not retained, and stddev(amount) needs all rows of its group",
            lambda shop: [shop.orders.to_stream().group_by("sku").aggregate(n="stddev(amount)"), shop.builder.build()],
        ),
        (
            "aggregate of clicks by sku",
            "an aggregate of a stream cannot be a view",
            lambda shop: [shop.clicks.group_by("sku").count(), shop.builder.build()],
        ),
    ],
)
def test_what_a_stream_or_a_group_cannot_do_is_told(told: str, what: str, mistake: Callable[[Shop], object]) -> None:
    message = raised(mistake)
    assert message.startswith(f"{told}")
    assert what in message
    assert "tests/topology/test_errors_streams.py:" in message
