"""Every mistake is a TopologyError that names the node, the columns it has, a remedy and the user's line."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections import UserList
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark.topology import (
    Consumed,
    JoinWindows,
    Produced,
    StreamsBuilder,
    TimeWindows,
    Topology,
    TopologyError,
    Versioned,
)
from spark.topology.handles import KStream, KTable
from tests.topology.shop import CLICKS, CUSTOMERS, ORDERS, PRODUCTS, Shop

ORDER_COLUMNS = "order_id bigint, customer_id bigint, sku string, amount decimal(12,2)"
CUSTOMER_COLUMNS = "customer_id bigint, name string, country string"
JOINED = f"left has: {ORDER_COLUMNS}\n  right has: {CUSTOMER_COLUMNS}"
LEFT_ALONE = f"left has: {ORDER_COLUMNS}"
IT = f"it has: {ORDER_COLUMNS}"
THIS_FILE = Path(__file__).relative_to(Path.cwd()) if Path(__file__).is_relative_to(Path.cwd()) else Path(__file__)

Act = Callable[[Shop], object]


WINDOWS = JoinWindows.of("10s", grace="1m")


def prices(shop: Shop) -> KTable:
    """A versioned table."""
    declared = Consumed.json(key="sku string", value="price int")
    return shop.builder.table("prices", declared, versioned=Versioned("1d"))


def raised(act: Act, by: Callable[..., object] | None = None) -> str:
    """The message of a mistake made on the one line of a lambda, or of one it calls; its last line is that line."""
    with pytest.raises(TopologyError) as caught:
        act(Shop())
    message = str(caught.value)
    assert message.endswith(f"\n  at {THIS_FILE}:{(by or act).__code__.co_firstlineno}")
    assert len(message.splitlines()) >= 3, "what, what to do, where"
    return message


@pytest.mark.parametrize(
    ("sql", "what"),
    [
        ("amout > 1", "'amout' is not a column of the source, at character 1"),
        ("amout > 1", "did you mean amount?"),
        ("amount > 1 AND _deleted", "'_deleted' is not a column"),
        ("left.amount > 1", "'left.amount' has a qualifier, and there is only one source"),
        ("orders.amount > 1", "write amount"),
        ("sku.length > 1", "'sku' is string, which has no field 'length'"),
        ("sku", "'sku' is string, not a condition\n"),
        ("sku", "such as 'sku IS NOT NULL'"),
        ("_topic", "'_topic' is string, not a condition"),
        ("sku::int", "'sku::int' is int, not a condition"),
        ("timestamp > date '2026-01-01'", "did you mean _timestamp?"),
        ("_timestamp.day = 1", "'_timestamp' is timestamp, which has no field 'day'"),
        ("", "the expression '' is empty"),
        ("   ", "is empty"),
        ("(amount > 1", "'(' is not closed, at character 1"),
        ("amount > 1)", "')' has no opening bracket, at character 11"),
        ("f(amount]", "']' has no opening bracket"),
        ("sku = 'a", "the quote ' at character 7 of \"sku = 'a\" is not closed"),
        ("`sku = 1", "the quote ` at character 1"),
        ("amount >", "an operand is missing after '>'"),
        ("amount > AND sku = 'a'", "an operand is missing after '>'"),
        ("= 1", "an operand is missing before '='"),
        ("amount > 1 AND", "an operand is missing after 'AND'"),
        ("coalesce(amount,)", "an operand is missing after ','"),
        ("amount sku", "an operator is missing between 'amount' and 'sku'"),
        ("amount 1", "an operator is missing between 'amount' and '1'"),
        ("amount > 1 AS large", "has an alias, which is not allowed here"),
        ("amount, sku", "one string has several expressions"),
        ("amount > 1; drop", "unexpected ; at character 11"),
        ("amount = :limit", "unexpected ':'"),
        ("amount > 1 -- large", "has a comment"),
        ("amount /* large */ > 1", "has a comment"),
        ("struct(*) IS NULL", "* is allowed only as an item of its own"),
        ("amount::money > 1", "there is no type 'money'"),
        ("cast(amount AS decimal(50)) > 1", "a decimal has 1 to 38 digits"),
        ("amount > (SELECT 1)", "a subquery reads a table that is not an input of the plan"),
        ("EXISTS (SELECT 1 FROM other)", "a subquery reads a table"),
        ("amount > avg(amount)", "avg() reads several rows, and an expression reads one"),
        ("any(amount > 1)", "any() reads several rows"),
        ("sum(amount) OVER (PARTITION BY sku) > 1", "a window function reads several rows"),
        ("row_number() = 1", "row_number() reads several rows"),
        ("explode(array(1)) = 1", "explode() returns several rows"),
        ("uper(sku) = 'A'", "uper() is not a Spark function, at character 1 of"),
        ("uper(sku) = 'A'", "write a Spark function, or `uper`() for a function of your own; did you mean upper?"),
        ("coalesce(upper(sku, 1), 'A') = 'A'", "upper() takes 1 argument, and 2 are given, at character 10 of"),
        ("substring(sku) = 'A'", "substring() takes 2 to 3 arguments, and 1 is given"),
        ("concat_ws() = 'A'", "concat_ws() takes 1 or more arguments, and 0 are given"),
        ("`exists`(array(1)) AND `rand`() = 1", "rand() returns another value"),
        ("window(_timestamp, '1 m').start IS NULL", "window() cannot be called in an expression"),
        ("rand() < 0.5", "rand() returns another value when the plan is computed again"),
        ("now() > _timestamp", "now() returns another value when the plan is computed again"),
        ("CURRENT_TIMESTAMP > _timestamp", "CURRENT_TIMESTAMP returns another value"),
        ("to_date(sku) = current_date", "current_date returns another value"),
        ("uuid() = sku", "uuid() returns another value"),
        ("monotonically_increasing_id() = 1", "returns another value"),
        ("input_file_name() = sku", "returns another value"),
        ("unix_timestamp() > 1", "unix_timestamp() returns another value"),
        ("_timestamp > timestamp 'now'", "timestamp 'now' returns another value"),
        ("to_date(sku) = date 'yesterday UTC'", "date 'yesterday UTC' returns another value"),
    ],
)
def test_a_wrong_condition_is_refused(sql: str, what: str) -> None:
    message = raised(lambda shop: shop.orders.filter(sql))
    assert message.startswith("filter of orders: ")
    assert IT in message
    assert what in message


def test_a_condition_that_is_no_text_is_refused() -> None:
    assert "True is not a string" in raised(lambda shop: shop.orders.filter(True))  # type: ignore[arg-type]  # the mistake


@pytest.mark.parametrize(
    ("items", "what"),
    [
        (["amount * 2"], "'amount * 2' has no name\n"),
        (["amount * 2"], "write 'amount * 2 AS name'"),
        (["amount double_amount"], "an operator is missing between"),
        (["amount AS"], "AS is not followed by one name"),
        (["amount AS a b"], "AS is not followed by one name"),
        (["sku", "amount AS SKU"], "'amount AS SKU' is a second column 'SKU'"),
        (["*", "amount * 2 AS amount"], "give one of them another name: 'amount * 2 AS another_amount'"),
        (["*", "amount"], "is a second column 'amount'"),
        (["customer_id AS order_id"], "is not the key 'order_id', but has its name"),
        (["order_id + 1 AS Order_Id"], "but has its name"),
        (["amount AS _amount"], "the column name '_amount' begins with an underscore"),
        (["_timestamp"], "the column name '_timestamp' begins with an underscore"),
        (["amount AS `the amount`"], "the column name 'the amount' cannot be stored"),
        (["left.*"], "'left.*' is not available here\n"),
        (["left.*"], "write '*'"),
        (["amout AS a"], "'amout' is not a column of the source"),
        (["null AS a"], "write 'cast(null as string) AS a', or another type"),
        ("sku, amount", "one string has several expressions"),
        ("sku AS a, amount AS b", "one string has several expressions, at character 9 of"),
        ("*, amount + 1 AS b, upper(sku) AS c", "write a list with one string for each"),
        (["sku, *"], "one string has several items: 'sku, *'"),
        ([1], "1 is not a string"),
    ],
)
def test_a_wrong_value_is_refused(items: list[str], what: str) -> None:
    message = raised(lambda shop: shop.orders.map_values(items))
    assert message.startswith("map_values of orders: ")
    assert IT in message
    assert what in message


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


NO_LISTS: list[Callable[[Shop], object]] = [
    lambda _: {"sku": "upper(sku)"},
    lambda _: {"sku"},
    lambda _: (text for text in ["sku"]),
    lambda _: 7,
    lambda shop: shop.customers,
]
TAKE_LISTS: list[Callable[[Shop, Any], object]] = [
    lambda shop, given: shop.orders.map_values(given),
    lambda shop, given: shop.clicks.map_values(given),
    lambda shop, given: shop.products.map_values(given),
    lambda shop, given: shop.orders.select_key(given),
    lambda shop, given: shop.clicks.select_key(given),
    lambda shop, given: shop.orders.group_by(given),
    lambda shop, given: shop.clicks.group_by(given),
    lambda shop, given: shop.orders.join(shop.customers, on=given, select=["left.*"]),
    lambda shop, given: shop.orders.left_join(shop.customers, on="customer_id", select=given),
    lambda shop, given: shop.clicks.join(shop.products, on=given, select=["left.*"]),
    lambda shop, given: shop.clicks.join(shop.clicks, within=WINDOWS, select=given),
]


@pytest.mark.parametrize("no_list", NO_LISTS)
@pytest.mark.parametrize("take", TAKE_LISTS)
def test_what_is_no_list_of_texts_is_refused(take: Callable[[Shop, Any], object], no_list: Act) -> None:
    message = raised(lambda shop: take(shop, no_list(shop)), take)
    assert "is not a string or a list of strings\n" in message
    assert " has: " in message
    assert len(message) < 500, "a handle is told by its name"


@pytest.mark.parametrize("take", TAKE_LISTS[:7])
@pytest.mark.parametrize("given", [None, [None], [["sku"]]])
def test_what_is_no_text_is_refused(take: Callable[[Shop, Any], object], given: object) -> None:
    assert "is not a string" in raised(lambda shop: take(shop, given), take)


def test_groups_are_named_one_by_one_or_in_a_list() -> None:
    shop = Shop()
    nodes = [shop.orders.group_by(*columns).count().node for columns in (("sku", "amount"), (["sku", "amount"],))]
    assert nodes[0] == nodes[1]


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


STRUCTS = Consumed.json(key="id bigint", value="a struct<p:int,`in`:struct<Q:string>>, xs array<struct<p:int>>")


@pytest.mark.parametrize(
    ("sql", "what"),
    [
        ("a.r = 1", "'r' is not one of the fields p int, in struct<Q:string>, at character 3 of 'a.r = 1'"),
        ("a.pp = 1", "write one of them; did you mean p?"),
        ("a.in.zz = ''", "'zz' is not one of the fields Q string"),
        ("a.p.zz = 1", "'p' is int, which has no field 'zz'"),
        ("xs[0].zz = 1", "'zz' is not one of the fields p int"),
        ("size(xs.zz) = 1", "'zz' is not one of the fields p int"),
        ("xs[0].p.zz = 1", "'p' is int, which has no field 'zz'"),
        ("a.in.q", "'a.in.q' is string, not a condition"),
    ],
)
def test_a_wrong_field_is_refused(sql: str, what: str) -> None:
    message = raised(lambda shop: shop.builder.table("structs", STRUCTS).filter(sql))
    assert message.startswith("filter of structs: ")
    assert "it has: id bigint, a struct<" in message
    assert what in message


def test_a_field_is_looked_up_with_its_own_type() -> None:
    shop = Shop()
    structs = shop.builder.table("structs", STRUCTS)
    assert structs.join(shop.products, on="a.in.q", select=["left.*"])
    with pytest.raises(TopologyError, match=r"xs\[0\]\.p is int, and the right key sku is string"):
        structs.join(shop.products, on="xs[0].p", select=["left.*"])


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


NO_METHODS: list[tuple[str, str, Callable[[Any], object]]] = [
    ("filterNot of orders", "a KTable has no filterNot()\n", lambda shop: shop.orders.filterNot("true")),
    ("filterNot of orders", "did you mean filter_not?", lambda shop: shop.orders.filterNot("true")),
    ("mapValues of clicks", "did you mean map_values?", lambda shop: shop.clicks.mapValues("*")),
    ("groupByKey of clicks", "did you mean group_by?", lambda shop: shop.clicks.groupByKey()),
    ("toTable of clicks", "did you mean to_table?", lambda shop: shop.clicks.toTable()),
    ("peek of clicks", "write one of filter, filter_not, flat_map, group_by, join, ", lambda shop: shop.clicks.peek()),
    ("count of orders", "a KTable has no count(), but a KGroupedTable", lambda shop: shop.orders.count()),
    ("suppress of clicks", "a KStream has no suppress(), but a KTable has\n", lambda shop: shop.clicks.suppress()),
    (
        "materialize of products",
        "a GlobalKTable has no materialize(), but a KTable and a KStream has\n",
        lambda shop: shop.products.materialize("stored"),
    ),
    (
        "to of products",
        "declare its topic with table(), or write one of filter, filter_not, ",
        lambda shop: shop.products.to("out"),
    ),
    ("StreamsBuilder shop", "did you mean global_table?", lambda shop: shop.builder.globalTable("t", PRODUCTS)),
    ("windowBy of clicks", "did you mean windowed_by?", lambda shop: shop.clicks.group_by("sku").windowBy()),
    (
        "right_join of clicks with clicks",
        "swap the sides: right.left_join(left, ...)",
        lambda shop: shop.clicks.right_join(shop.clicks, within=WINDOWS, select=["left.sku"]),
    ),
    (
        "right_join of clicks with products",
        "write left_join(...): a row of the table that no record looks up produces no record",
        lambda shop: shop.clicks.right_join(shop.products, on="sku", select=["left.sku"]),
    ),
    (
        "right_join of products with orders",
        "swap the sides: right.left_join(left, ...)",
        lambda shop: shop.products.right_join(shop.orders, select=["left.sku"]),
    ),
    (
        "outer_join of clicks with products",
        "an outer join of a stream with a table is not available",
        lambda shop: shop.clicks.outer_join(shop.products, on="sku", within=WINDOWS, select=["left.sku"]),
    ),
    (
        "outer_join of clicks with clicks",
        "two streams are joined within a window, and within= is missing",
        lambda shop: shop.clicks.outer_join(shop.clicks, select=["left.sku"]),
    ),
]


@pytest.mark.parametrize(("node", "what", "act"), NO_METHODS)
def test_what_is_no_method_is_told_with_those_there_are(node: str, what: str, act: Callable[[Any], object]) -> None:
    message = raised(act)
    assert message.startswith(f"{node}: ")
    assert what in message


def test_handles_are_asked_and_copied_like_other_values() -> None:
    shop = Shop()
    assert not hasattr(shop.orders, "peek")
    assert not hasattr(shop.builder, "peek")
    for one in (shop.orders, shop.clicks.group_by("sku"), shop.products):
        assert copy.copy(one).node == one.node
        assert pickle.loads(pickle.dumps(copy.deepcopy(one))).node == one.node
    assert copy.deepcopy(shop.builder).build() == shop.builder.build()
    name = "peek"
    with pytest.raises(AttributeError) as caught:
        getattr(shop.orders, name)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize("method", ["join", "left_join", "outer_join"])
def test_a_global_table_is_no_left_side(method: str) -> None:
    message = raised(lambda shop: getattr(shop.products, method)(shop.orders, select=["left.*"]))
    assert message.startswith(f"{method} of products with orders: a global table cannot be the left side")
    assert "left has: sku string, title string\n" in message
    assert "declare products with table()" in message


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


def test_a_topic_is_produced_in_a_format_that_there_is() -> None:
    shop = Shop()
    with pytest.raises(TopologyError, match=r"produced is 'json'\n.*\n  write to\(topic, Produced.json\(\)\)"):
        shop.orders.to("orders-again", "json")  # type: ignore[arg-type]  # what a user may write
    shop.orders.to("orders-again", Produced.json())
    assert shop.builder.build().table("orders").produced == Produced.json()


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


def test_keys_of_equal_names_in_another_order_are_not_paired_by_their_place() -> None:
    builder = StreamsBuilder("keys")
    left = builder.table("left", Consumed.json(key="a bigint, b bigint", value="v int"))
    right = builder.table("right", Consumed.json(key="b bigint, a bigint", value="w int"))
    with pytest.raises(TopologyError) as caught:
        left.join(right, select=["left.v", "right.w"])
    assert "the left key is (a, b), and the right key has another order: (b, a)" in str(caught.value)
    assert "declare both keys in the same order" in str(caught.value)
    assert left.join(right, on=["b", "a"], select=["left.v", "right.w"])


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
        f"  at {THIS_FILE}:{line}"
    )


def test_a_view_of_a_stored_lookup_is_a_view_like_others() -> None:
    shop = Shop()
    stored = shop.orders.join(shop.products, on="sku", select=["right.title"], drive="left")
    stored.filter("title IS NOT NULL").materialize("titled")
    stored.materialize("looked_up")
    assert [table.name for table in shop.builder.build().tables][-2:] == ["looked_up", "titled"]


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("orders", "'orders' is already stored: orders at tests/topology/shop.py:"),
        ("Products", "'products' is already stored"),
        ("_large", "the name '_large' cannot be a folder"),
        (".large", "cannot be a folder"),
        ("large/orders", "cannot be a folder"),
        ("large orders", "cannot be a folder"),
        ("", "cannot be a folder"),
        ("x" * 250, "at most 249 characters"),
    ],
)
def test_a_wrong_name_of_a_table_is_refused(name: str, what: str) -> None:
    message = raised(lambda shop: shop.orders.filter("amount > 1").materialize(name))
    assert message.startswith(f"table {name} (filter of orders): ")
    assert IT in message
    assert what in message


def test_two_tables_of_one_name_are_told_by_both_lines() -> None:
    shop = Shop()
    shop.orders.filter("amount > 1").materialize("large")
    with pytest.raises(TopologyError) as caught:
        shop.orders.filter("amount > 2").materialize("large")
    line = shop.builder.build().table("large").line
    assert line is not None
    message = str(caught.value)
    assert message.startswith(
        f"table large (filter of orders): 'large' is already stored: filter of orders at {line}\n"
    )
    assert message.endswith(f"  at {THIS_FILE}:{line.line + 2}")


def test_the_same_rows_are_not_stored_twice() -> None:
    shop = Shop()
    shop.orders.filter("amount > 1").materialize("large")
    with pytest.raises(TopologyError, match="the same rows are already stored as 'large' at"):
        shop.orders.filter("amount > 1").materialize("also_large")
    with pytest.raises(TopologyError, match="the same rows are already stored as 'orders' at"):
        shop.orders.materialize("orders_again")


def test_a_topic_cannot_take_the_name_of_a_table() -> None:
    shop = Shop()
    shop.orders.filter("amount > 1").materialize("large")
    with pytest.raises(TopologyError, match="'large' is already stored: filter of orders at"):
        shop.builder.table("large", ORDERS)


def counted(shop: Shop) -> KTable:
    """Windows of clicks."""
    return shop.clicks.group_by("sku").windowed_by(TimeWindows.of("1m", grace="0s")).count("Window_Start")


@pytest.mark.parametrize(
    ("told", "what", "mistake"),
    [
        (
            "orders to topic orders",
            "the topology reads this topic, as table() at",
            lambda shop: shop.orders.to("orders"),
        ),
        ("orders to topic a b", "'a b' is not a valid topic name", lambda shop: shop.orders.to("a b")),
        (
            "customers to topic out",
            "the table 'orders' is already published to this topic",
            lambda shop: [shop.orders.to("out"), shop.customers.to("out")],
        ),
        (
            "orders to topic b",
            "the table 'orders' is already published to 'a'",
            lambda shop: [shop.orders.to("a"), shop.orders.to("b")],
        ),
        (
            "table later",
            "'orders' is published to this topic",
            lambda shop: [shop.orders.to("later"), shop.builder.table("later", ORDERS)],
        ),
        (
            "table out (clicks)",
            "'out' is already stored",
            lambda shop: [shop.orders.filter("true").materialize("out"), shop.clicks.to("out")],
        ),
        ("windows of clicks by sku to topic out", "published as window_start", lambda shop: counted(shop).to("out")),
    ],
)
def test_what_cannot_be_published_is_told(told: str, what: str, mistake: Callable[[Shop], object]) -> None:
    message = raised(mistake)
    assert message.startswith(f"{told}: ")
    assert what in message
    assert "tests/topology/test_errors.py:" in message


SOURCES: list[tuple[str, str, Act]] = [
    (
        "table orders",
        "the topic 'orders' is already declared as table() at tests/topology/shop.py:",
        lambda shop: shop.builder.table("orders", CUSTOMERS),
    ),
    (
        "stream orders",
        "declare a topic once, and use its handle several times",
        lambda shop: shop.builder.stream("orders", ORDERS),
    ),
    (
        "global_table clicks",
        "the topic 'clicks' is already declared as stream() at",
        lambda shop: shop.builder.global_table("clicks", CLICKS),
    ),
    (
        "stream Clicks",
        "the topic 'clicks' is already declared as stream() at",
        lambda shop: shop.builder.stream("Clicks", CLICKS),
    ),
    (
        "table prices",
        "'7 days' is not a duration",
        lambda shop: shop.builder.table("prices", PRODUCTS, versioned=Versioned("7 days")),
    ),
    (
        "global_table prices",
        'write versioned=Versioned("7d")',
        lambda shop: shop.builder.global_table("prices", PRODUCTS, versioned="7d"),  # type: ignore[arg-type]  # the mistake
    ),
    (
        "table prices",
        "consumed is 'id bigint'\n  write Consumed.json(",
        lambda shop: shop.builder.table("prices", "id bigint"),  # type: ignore[arg-type]  # the mistake
    ),
    (
        "stream a b",
        "'a b' is not a valid topic name",
        lambda shop: shop.builder.stream("a b", PRODUCTS),
    ),
    (
        "stream ..",
        "'..' is not a valid topic name",
        lambda shop: shop.builder.stream("..", PRODUCTS),
    ),
    (
        "table _schemas (_schemas)",
        "the name '_schemas' cannot be a folder",
        lambda shop: shop.builder.table("_schemas", PRODUCTS),
    ),
]


@pytest.mark.parametrize(("node", "what", "act"), SOURCES)
def test_a_wrong_source_is_refused(node: str, what: str, act: Act) -> None:
    message = raised(act)
    assert message.startswith(f"{node}: ")
    assert what in message


def test_a_topic_declared_twice_shows_its_columns() -> None:
    assert IT in raised(lambda shop: shop.builder.table("orders", CUSTOMERS))


CONSUMED: list[tuple[str, str, Act]] = [
    (
        "Consumed.json key",
        "a column name is missing, at character 1 of ''",
        lambda _: Consumed.json(key="", value="v int"),
    ),
    (
        "Consumed.json value",
        "there is no type 'decimall'; did you mean decimal?, at character 8 of 'amount decimall(12,2)'",
        lambda _: Consumed.json(key="id int", value="amount decimall(12,2)"),
    ),
    (
        "Consumed.json value",
        "the column name '_offset' begins with an underscore",
        lambda _: Consumed.json(key="id int", value="_offset bigint"),
    ),
    (
        "Consumed.json",
        "the key column 'id' is double, and a key needs exact equality\n  key has: id double",
        lambda _: Consumed.json(key="id double", value="v int"),
    ),
    (
        "Consumed.json",
        "the key column 'ids' is array<int>",
        lambda _: Consumed.json(key="ids array<int>", value="v int"),
    ),
    (
        "Consumed.json",
        "the timestamp 'at' is not a column\n  key has: id int\n  value has: v int",
        lambda _: Consumed.json(key="id int", value="v int", timestamp="at"),
    ),
    (
        "Consumed.json",
        "the timestamp 'v' is int\n",
        lambda _: Consumed.json(key="id int", value="v int", timestamp="v"),
    ),
    (
        "Consumed.json",
        "the timestamp 7 is not a column\n",
        lambda _: Consumed.json(key="id int", value="v int", timestamp=7),  # type: ignore[arg-type]  # the mistake
    ),
    (
        "Consumed.json",
        "the column 'm' is map<int,string>, and the keys of a JSON object are strings\n",
        lambda _: Consumed.json(key="id int", value="m map<int,string>"),
    ),
    (
        "Consumed.json",
        "'id' is int in the key and string in the value\n  key has: id int\n  value has: ID string",
        lambda _: Consumed.json(key="id int", value="ID string"),
    ),
]


@pytest.mark.parametrize(("node", "what", "act"), CONSUMED)
def test_a_wrong_declaration_is_refused(node: str, what: str, act: Act) -> None:
    message = raised(act)
    assert message.startswith(f"{node}: ")
    assert what in message


BUILDERS: list[tuple[str, Act]] = [
    ("the name 'a/b' cannot be a folder", lambda _: StreamsBuilder("a/b")),
    ("the name '_shop' cannot be a folder", lambda _: StreamsBuilder("_shop")),
    ("the name 7 cannot be a folder", lambda _: StreamsBuilder(7)),  # type: ignore[arg-type]  # the mistake
    ("max_task_idle_ms is -2", lambda _: StreamsBuilder("s", max_task_idle_ms=-2)),
    ("message_timestamp_after_max_ms is -1", lambda _: StreamsBuilder("s", message_timestamp_after_max_ms=-1)),
    ("max_task_idle_ms is '1 s'", lambda _: StreamsBuilder("s", max_task_idle_ms="1 s")),  # type: ignore[arg-type]  # the mistake
    ("max_records_per_tick is 0", lambda _: StreamsBuilder("s", max_records_per_tick=0)),
    ("max_records_per_tick is True", lambda _: StreamsBuilder("s", max_records_per_tick=True)),
    ('write "exactly_once_v2" or "at', lambda _: StreamsBuilder("s", processing_guarantee="exactly_twice")),
    ('write "fail" or "ledger"', lambda _: StreamsBuilder("s", on_data_loss="ignore")),
    ("processing_guarantee is ['x']", lambda _: StreamsBuilder("s", processing_guarantee=["x"])),  # type: ignore[arg-type]  # the mistake
    ("on_data_loss is {}", lambda _: StreamsBuilder("s", on_data_loss={})),  # type: ignore[arg-type]  # the mistake
    ("ansi is 'no'", lambda _: StreamsBuilder("s", ansi="no")),  # type: ignore[arg-type]  # the mistake
]


@pytest.mark.parametrize(("what", "act"), BUILDERS)
def test_a_wrong_setting_is_refused(what: str, act: Act) -> None:
    message = raised(act)
    assert message.startswith("StreamsBuilder ")
    assert what in message


def test_an_empty_topology_is_refused() -> None:
    assert raised(lambda _: StreamsBuilder("empty").build()).startswith("topology empty: no topic is declared\n")


def test_data_that_is_no_topology_is_refused() -> None:
    with pytest.raises(TopologyError, match=r"the data is a settings; pass what Topology\.to_dict"):
        Topology.from_dict({"is": "settings", "ansi": True})


def test_a_file_outside_the_working_folder_is_named_in_full(tmp_path: Path) -> None:
    file = tmp_path / "topology.py"
    code = compile("\n\nbuilder.stream('a b', None)", str(file), "exec")
    with pytest.raises(TopologyError) as caught:
        exec(code, {"builder": StreamsBuilder("s")})
    assert str(caught.value).endswith(f"  at {file}:3")


def test_an_error_can_be_sent_to_another_process() -> None:
    with pytest.raises(TopologyError) as caught:
        StreamsBuilder("a/b")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


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
    assert "tests/topology/test_errors.py:" in message


@pytest.mark.parametrize(
    "sql",
    [
        "xs['inner'].u[0] > 1",
        "transform(xs, x -> x.inner)[0].u IS NULL",
        "cast(null as struct<variant_id:bigint,invariant:string>) IS NULL",
    ],
)
def test_what_spark_reads_as_a_field_is_one(sql: str) -> None:
    builder = StreamsBuilder("fields")
    builder.table("t", Consumed.json(key="id bigint", value="xs array<struct<inner:struct<u:array<int>>>>")).filter(sql)


def test_a_struct_may_have_a_field_whose_name_holds_a_types() -> None:
    kind = "struct<variant_id:bigint,variant:string>"
    builder = StreamsBuilder("shopify")
    table = builder.table("items", Consumed.json(key="id bigint", value=f"item {kind}"))
    table.map_values(f"cast(item as {kind}) AS x").materialize("kept")
    builder.build()
    with pytest.raises(TopologyError, match="cannot compare a variant"):
        Consumed.json(key="id bigint", value="item struct<id:bigint,v:variant>")


def test_a_column_called_case_is_no_condition() -> None:
    builder = StreamsBuilder("cases")
    left = builder.table("l", Consumed.json(key="id bigint", value="`case` bigint, n bigint"))
    right = builder.table("r", Consumed.json(key="k bigint", value="v int"))
    left.join(right, on="case when n > 1 then id end", select="right.v").materialize("found")
    left.join(right, on="case", select="right.v").materialize("by_column")
    builder.build()


def test_a_handle_is_frozen_and_asked_like_any_object(monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Shop()
    for handle in (shop.orders, shop.clicks, shop.orders.group_by("sku")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            handle.filter = None  # type: ignore[method-assign, union-attr]  # what is tried
    monkeypatch.setattr(KTable, "top", lambda self: self, raising=False)
    assert not hasattr(shop.orders, "peek")
    with pytest.raises(KeyError, match="there is no branch 'c'"):
        shop.clicks.split(a="user_id > 1")["c"]


def test_any_sequence_of_texts_is_a_list() -> None:
    shop = Shop()
    assert shop.orders.map_values(UserList(["amount"])).node == shop.orders.map_values(["amount"]).node


CALLS: list[tuple[str, str, Callable[[Any], object]]] = [
    (
        "aggregate of orders",
        "name the column: aggregate(name='sum(amount)')",
        lambda s: s.orders.group_by("sku").aggregate("sum(amount)"),
    ),
    ("join of orders", "missing a required argument: 'select'", lambda s: s.orders.join(s.customers, on="customer_id")),
    ("left_join of orders", "select=..., [drive=...]", lambda s: s.orders.left_join(s.customers)),
    ("filter of orders", "write filter(sql)", lambda s: s.orders.filter("true", "false")),
    ("materialize of orders", "write materialize(name)", lambda s: s.orders.materialize()),
    ("StreamsBuilder.table", "write table(topic, consumed, [versioned=...])", lambda s: s.builder.table("t")),
    ("StreamsBuilder", "write StreamsBuilder(name, [max_task", lambda _: StreamsBuilder()),  # type: ignore[call-arg]
    ("Consumed.json", "write json(key=..., value=..., [timestamp=...])", lambda _: Consumed.json("id int")),  # type: ignore[call-arg]
    ("TimeWindows", "write TimeWindows.of(size, [adv", lambda _: TimeWindows("1m")),  # type: ignore[call-arg]
    ("filter of orders", "SQL has no '&&'", lambda s: s.orders.filter("amount > 1 && sku = 'x'")),
]


@pytest.mark.parametrize(("node", "what", "act"), CALLS)
def test_a_call_with_other_arguments_is_told_with_those_it_takes(node: str, what: str, act: Act) -> None:
    message = raised(act)
    assert message.startswith(f"{node}: ")
    assert what in message
