"""Mistakes in SQL text: conditions, values and fields."""

from __future__ import annotations

import pytest

from spark.topology import (
    Consumed,
    StreamsBuilder,
    TopologyError,
)
from tests.topology.mistakes import IT, raised
from tests.topology.shop import Shop


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
