"""Mistakes with tables: joins, groups and stored columns."""

from __future__ import annotations

import pytest

from spark.topology import (
    Consumed,
    StreamsBuilder,
    TopologyError,
)
from spark.topology.handles import KTable
from tests.topology.mistakes import IT, JOINED, LEFT_ALONE, Act, raised, shown
from tests.topology.shop import Shop


@pytest.mark.parametrize(
    ("item", "what"),
    [
        ("name", "'name' does not name a side, at character 1 of 'name'\n"),
        ("name", "write right.name"),
        ("upper(customer_id) AS c", "write left.customer_id or right.customer_id"),
        ("_timestamp AS at", "write left._timestamp or right._timestamp"),
        ("orders.amount AS a", "write left.amount"),
        ("left.nam", "'nam' is not a column of the left side"),
        ("right.nam", "did you mean name?"),
        ("nam AS n", "write left.column or right.column; did you mean name?"),
        ("left AS l", "'left' is not a column of either side"),
        ("ofset AS o", "did you mean _offset?"),
        ("left.customer_id.x AS x", "'customer_id' is bigint, which has no field 'x'"),
        ("right.customer_id AS order_id", "is not the key 'order_id', but has its name"),
        ("left.amount * 2", "has no name"),
        ("*", "write 'left.*' or 'right.*'"),
        ("left.*, right.*", "one string has several items: 'left.*, right.*'\n"),
        ("left.*, right.name", "write a list with one string for each"),
        ("orders.*", "write 'left.*' or 'right.*'"),
        ("left._offset", "begins with an underscore"),
        ("current_user() AS u", "returns another value"),
        ("current_user AS u", "returns another value"),
        ("max(left.amount) AS m", "max() reads several rows"),
    ],
)
def test_a_wrong_item_of_a_join_is_refused(item: str, what: str) -> None:
    message = raised(lambda shop: shop.orders.join(shop.customers, on="customer_id", select=[item]))
    assert message.startswith("join of orders with customers: ")
    assert JOINED in message
    assert what in message


def test_one_name_from_both_sides_is_refused() -> None:
    message = raised(lambda shop: shop.orders.left_join(shop.orders, select=["left.*", "right.sku"]))
    assert message.startswith("left_join of orders with orders: 'right.sku' is a second column 'sku'")
    assert "'right.sku AS another_sku'" in message


@pytest.mark.parametrize(
    ("on", "what", "columns"),
    [
        ("cust_id", "'cust_id' is not a column of the source", IT),
        ("left.customer_id", "write customer_id", IT),
        ("customer_id AS c", "which is not allowed here", IT),
        ("customer_id, sku", "one string has several expressions", IT),
        (["customer_id", "sku"], "cannot look up the right key (customer_id bigint)", JOINED),
        ([], "on=[] cannot look up the right key (customer_id bigint)", JOINED),
        ("sku", "sku is string, and the right key customer_id is bigint", JOINED),
        ("sku", 'write on="cast(sku as bigint)", or declare equal types', JOINED),
        ("cast(customer_id as int)", "is int, and the right key customer_id is bigint", JOINED),
        ("customer_id::int", 'write on="cast(customer_id::int as bigint)"', JOINED),
        ("count(sku)", "count() reads several rows", IT),
        ("rand()", "rand() returns another value", IT),
        ("customer_id = customer_id", "is a condition, and the right key customer_id is bigint", JOINED),
        ("left.customer_id = right.customer_id", "the expression over left columns that the key equals", JOINED),
        ("customer_id is not null", "is a condition, and the right key", JOINED),
        ("NOT true", "is a condition, and the right key", JOINED),
        (["true"], "'true' is a condition", JOINED),
        ("null", "'null' is a condition", JOINED),
        ("_timestamp", "_timestamp is timestamp, and the right key customer_id is bigint", JOINED),
        ("_partition", "_partition is int, and the right key customer_id is bigint", JOINED),
        (
            "country",
            "'country' is a column of the right side only, and on= takes expressions over left columns",
            JOINED,
        ),
        ("Country", "write the left column or expression that equals customer_id", JOINED),
    ],
)
def test_a_wrong_lookup_is_refused(on: str | list[str], what: str, columns: str) -> None:
    message = raised(lambda shop: shop.orders.join(shop.customers, on=on, select=["left.*"]))
    assert message.startswith("join of orders with customers: ")
    assert columns in message
    assert what in message


def keyed(shop: Shop, topic: str, key: str) -> KTable:
    """A table with another key."""
    return shop.builder.table(topic, Consumed.json(key=key, value="v int"))


@pytest.mark.parametrize(
    "on",
    ["customer_id >> 1", "customer_id >>> 1", "CASE WHEN amount > 1 AND sku = 'a' THEN customer_id END", "_offset"],
)
def test_what_may_hold_a_key_is_no_condition(on: str) -> None:
    shop = Shop()
    assert shop.orders.join(shop.customers, on=on, select=["left.*"])


def test_a_condition_may_hold_a_key_that_is_true_or_false() -> None:
    shop = Shop()
    assert shop.orders.join(keyed(shop, "flags", "flag boolean"), on="amount > 100", select=["left.*"])


OTHER_JOINS: list[tuple[str, str, Act]] = [
    (
        "join of orders with t",
        "order_id is bigint, and the right key id is int",
        lambda shop: shop.orders.join(keyed(shop, "t", "id int"), select=["left.*"]),
    ),
    (
        "join of orders with t",
        "the left key (order_id) cannot look up the right key (id bigint, n int)",
        lambda shop: shop.orders.join(keyed(shop, "t", "id bigint, n int"), select=["left.*"]),
    ),
    (
        "left_join of orders with t",
        "order_id is bigint, and the right key id is decimal(20,0)",
        lambda shop: shop.orders.left_join(keyed(shop, "t", "id decimal(20)"), select=["left.*"]),
    ),
    (
        "join of orders with products",
        "write on=[...] with one expression over left columns for each of: sku string",
        lambda shop: shop.orders.join(shop.products, select=["left.*"]),
    ),
    (
        "outer_join of orders with t",
        "the left key (order_id) cannot look up the right key (id bigint, n int)\n  left has: order_id bigint",
        lambda shop: shop.orders.outer_join(keyed(shop, "t", "id bigint, n int"), select=["left.*"]),
    ),
    (
        "outer_join of orders with t",
        "give both sides the same key: compute its columns with map_values(...), and call select_key(...)",
        lambda shop: shop.orders.outer_join(keyed(shop, "t", "id bigint, n int"), select=["left.*"]),
    ),
    (
        "join of orders with customers",
        "within= is for streams, and the left side is a table",
        lambda shop: shop.orders.join(shop.customers, on="customer_id", within="10s", select=["left.*"]),
    ),
    (
        "left_join of orders with customers",
        "leave out grace=",
        lambda shop: shop.orders.left_join(shop.customers, on="customer_id", grace="10s", select=["left.*"]),
    ),
    (
        "join of orders with customers",
        'write drive="both" or drive="left"',
        lambda shop: shop.orders.join(shop.customers, on="customer_id", select=[], drive="right"),  # type: ignore[arg-type]  # the mistake
    ),
    (
        "join of orders with clicks",
        "clicks is a stream, and a table cannot look rows up in a stream",
        lambda shop: shop.orders.join(shop.clicks, select=["left.*"]),  # type: ignore[arg-type]  # the mistake
    ),
    (
        "join of orders with str",
        "the right side is 'customers'",
        lambda shop: shop.orders.join("customers", select=["left.*"]),  # type: ignore[arg-type]  # the mistake
    ),
    (
        "join of orders with customers",
        "customers belongs to another builder (shop)",
        lambda shop: shop.orders.join(Shop().customers, on="customer_id", select=["left.*"]),
    ),
    (
        "outer_join of orders with customers",
        "a foreign-key outer join is not possible",
        lambda shop: shop.orders.outer_join(
            shop.customers,
            on="customer_id",  # type: ignore[arg-type]  # the mistake
            select=["left.*"],
        ),
    ),
    (
        "outer_join of orders with customers",
        "both sides drive an outer join",
        lambda shop: shop.orders.outer_join(
            shop.customers,
            select=["left.*"],
            drive="left",  # type: ignore[arg-type]  # the mistake
        ),
    ),
    (
        "outer_join of orders with products",
        "products is a global table, which can only be looked up",
        lambda shop: shop.orders.outer_join(shop.products, select=["left.*"]),  # type: ignore[arg-type]  # the mistake
    ),
    (
        "right_join of orders with customers",
        "swap the sides: right.left_join(left, ...)",
        lambda shop: shop.orders.right_join(shop.customers, on="customer_id", select=["left.*"]),
    ),
]


@pytest.mark.parametrize(("node", "what", "act"), OTHER_JOINS)
def test_a_join_that_cannot_be_is_refused(node: str, what: str, act: Act) -> None:
    message = raised(act)
    assert message.startswith(f"{node}: ")
    assert LEFT_ALONE in message
    assert what in message


@pytest.mark.parametrize("method", ["join", "left_join", "outer_join"])
def test_a_global_table_is_no_left_side(method: str) -> None:
    message = raised(lambda shop: getattr(shop.products, method)(shop.orders, select=["left.*"]))
    assert message.startswith(f"{method} of products with orders: a global table cannot be the left side")
    assert "left has: sku string, title string\n" in message
    assert "declare products with table()" in message


def test_keys_of_equal_names_in_another_order_are_not_paired_by_their_place() -> None:
    builder = StreamsBuilder("keys")
    left = builder.table("left", Consumed.json(key="a bigint, b bigint", value="v int"))
    right = builder.table("right", Consumed.json(key="b bigint, a bigint", value="w int"))
    with pytest.raises(TopologyError) as caught:
        left.join(right, select=["left.v", "right.w"])
    assert "the left key is (a, b), and the right key has another order: (b, a)" in str(caught.value)
    assert "declare both keys in the same order" in str(caught.value)
    assert left.join(right, on=["b", "a"], select=["left.v", "right.w"])


def test_a_lookup_only_join_that_is_not_stored_is_refused_at_its_own_line() -> None:
    def unstored(shop: Shop) -> None:
        shop.orders.join(shop.products, on="sku", select=["right.title"], drive="left").filter("true")

    shop = Shop()
    unstored(shop)
    with pytest.raises(TopologyError) as caught:
        shop.builder.build()
    line = unstored.__code__.co_firstlineno + 1
    assert str(caught.value) == (
        'join of orders with products: a join with drive="left" cannot be a view\n'
        "  it has: order_id bigint, title string\n"
        "  call .materialize(name) on it\n"
        f"  at {shown(__file__)}:{line}"
    )


def test_a_view_of_a_stored_lookup_is_a_view_like_others() -> None:
    shop = Shop()
    stored = shop.orders.join(shop.products, on="sku", select=["right.title"], drive="left")
    stored.filter("title IS NOT NULL").materialize("titled")
    stored.materialize("looked_up")
    assert [table.name for table in shop.builder.build().tables][-2:] == ["looked_up", "titled"]


AGGREGATES: list[tuple[dict[str, str], str]] = [
    ({}, "no aggregate is given"),
    ({"total": "amount"}, "'amount' has no aggregate function"),
    ({"total": "sum(amount) + amount"}, "amount is neither a grouping column nor inside an aggregate function"),
    ({"total": "sum(amout)"}, "did you mean amount?"),
    ({"total": "sum(count(*))"}, "aggregate functions cannot be nested"),
    ({"total": "first(amount)"}, "first() depends on the order of the rows"),
    ({"total": "collect_list(amount)"}, "sort_array(collect_list(value))"),
    ({"total": "max_by(sku, amount)"}, "max(struct(at, value)).value"),
    ({"total": "row_number()"}, "row_number() reads several rows"),
    ({"SKU": "count(*)"}, "'SKU' is already a column"),
    ({"_n": "count(*)"}, "_n"),
    ({"total": "sum(amount) AS total"}, "has an alias"),
]


@pytest.mark.parametrize(("aggregates", "what"), AGGREGATES)
def test_a_wrong_aggregate_is_refused(aggregates: dict[str, str], what: str) -> None:
    message = raised(lambda shop: shop.orders.group_by("sku").aggregate(**aggregates))
    assert message.startswith("aggregate of orders by sku: ")
    assert what in message
    assert "it has: order_id bigint" in message


@pytest.mark.parametrize(
    ("columns", "what"),
    [
        ((), "no column is given"),
        (("sku", "sku"), "'sku' is given twice"),
        (("skuu",), "did you mean sku?"),
        (("upper(sku)",), "call map_values with 'upper(sku) AS name' first"),
        (("_offset",), "'_offset' is not a column of the source"),
    ],
)
def test_a_wrong_group_is_refused(columns: tuple[str, ...], what: str) -> None:
    message = raised(lambda shop: shop.orders.group_by(*columns))
    assert message.startswith("group_by of orders: ")
    assert what in message


@pytest.mark.parametrize("kind", ["variant", "array<map<string,int>>", "struct<m:map<string,int>>", "map<int,variant>"])
def test_a_column_that_no_merge_could_compare_is_refused(kind: str) -> None:
    message = raised(lambda _: Consumed.json(key="id int", value=f"v {kind}"))
    assert f"the column 'v' is {kind.lower()}" in message
    assert "make v a string" in message


def test_a_stored_column_that_no_merge_could_compare_is_refused() -> None:
    message = raised(lambda shop: shop.orders.map_values(["cast(sku AS variant) AS v"]).materialize("variants"))
    assert message.startswith("table variants (map_values of orders): the column 'v' is variant")
    assert "make v a string" in message
    assert Shop().orders.map_values(["cast(sku AS variant) AS v"]).filter("v IS NOT NULL")
