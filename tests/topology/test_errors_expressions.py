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
        ("left.amount > 1", "'left.amount' is qualified, and there is one source here"),
        ("orders.amount > 1", "write amount"),
        ("sku.length > 1", "'length' is asked of 'sku', which is string and has no fields"),
        ("sku", "'sku' is string, and no condition\n"),
        ("sku", "such as 'sku IS NOT NULL'"),
        ("_topic", "'_topic' is string, and no condition"),
        ("sku::int", "'sku::int' is int, and no condition"),
        ("timestamp > date '2026-01-01'", "did you mean _timestamp?"),
        ("_timestamp.day = 1", "'day' is asked of '_timestamp', which is timestamp"),
        ("", "the expression '' is empty"),
        ("   ", "is empty"),
        ("(amount > 1", "'(' is never closed, at character 1"),
        ("amount > 1)", "')' closes nothing, at character 11"),
        ("f(amount]", "']' closes nothing"),
        ("sku = 'a", "the quote ' at character 7 of \"sku = 'a\" is never closed"),
        ("`sku = 1", "the quote ` at character 1"),
        ("amount >", "nothing stands after '>'"),
        ("amount > AND sku = 'a'", "nothing stands after '>'"),
        ("= 1", "nothing stands before '='"),
        ("amount > 1 AND", "nothing stands after 'AND'"),
        ("coalesce(amount,)", "nothing stands after ','"),
        ("amount sku", "no operator stands between 'amount' and 'sku'"),
        ("amount 1", "no operator stands between 'amount' and '1'"),
        ("amount > 1 AS large", "has a name, and here a name means nothing"),
        ("amount, sku", "one text holds several expressions"),
        ("amount > 1; drop", "the ; at character 11"),
        ("amount = :limit", "':' means nothing"),
        ("amount > 1 -- large", "holds a comment"),
        ("amount /* large */ > 1", "holds a comment"),
        ("struct(*) IS NULL", "* stands for all columns only as an item of its own"),
        ("amount::money > 1", "there is no type 'money'"),
        ("cast(amount AS decimal(50)) > 1", "a decimal has 1 to 38 digits"),
        ("amount > (SELECT 1)", "a subquery reads a table that the plan does not know"),
        ("EXISTS (SELECT 1 FROM other)", "a subquery reads a table"),
        ("amount > avg(amount)", "avg() reads many rows, and an expression sees one"),
        ("any(amount > 1)", "any() reads many rows"),
        ("sum(amount) OVER (PARTITION BY sku) > 1", "a window function reads other rows"),
        ("row_number() = 1", "row_number() reads many rows"),
        ("explode(array(1)) = 1", "explode() makes several rows of one"),
        ("uper(sku) = 'A'", "uper() is no function of Spark's, at character 1 of"),
        ("uper(sku) = 'A'", "write one that it has, or `uper`() for one of your own; did you mean upper?"),
        ("coalesce(upper(sku, 1), 'A') = 'A'", "upper() takes 1 argument, and is given 2, at character 10 of"),
        ("substring(sku) = 'A'", "substring() takes 2 to 3 arguments, and is given 1"),
        ("concat_ws() = 'A'", "concat_ws() takes 1 or more arguments, and is given 0"),
        ("`exists`(array(1)) AND `rand`() = 1", "rand() gives another answer"),
        ("window(_timestamp, '1 m').start IS NULL", "window() belongs to windows"),
        ("rand() < 0.5", "rand() gives another answer when the plan is replayed"),
        ("now() > _timestamp", "now() gives another answer when the plan is replayed"),
        ("CURRENT_TIMESTAMP > _timestamp", "CURRENT_TIMESTAMP gives another answer"),
        ("to_date(sku) = current_date", "current_date gives another answer"),
        ("uuid() = sku", "uuid() gives another answer"),
        ("monotonically_increasing_id() = 1", "gives another answer"),
        ("input_file_name() = sku", "gives another answer"),
        ("unix_timestamp() > 1", "unix_timestamp() gives another answer"),
        ("_timestamp > timestamp 'now'", "timestamp 'now' gives another answer"),
        ("to_date(sku) = date 'yesterday UTC'", "date 'yesterday UTC' gives another answer"),
    ],
)
def test_a_wrong_condition_is_refused(sql: str, what: str) -> None:
    message = raised(lambda shop: shop.orders.filter(sql))
    assert message.startswith("filter of orders: ")
    assert IT in message
    assert what in message


def test_a_condition_that_is_no_text_is_refused() -> None:
    assert "True is no text" in raised(lambda shop: shop.orders.filter(True))  # type: ignore[arg-type]  # the mistake


@pytest.mark.parametrize(
    ("items", "what"),
    [
        (["amount * 2"], "'amount * 2' has no name\n"),
        (["amount * 2"], "write 'amount * 2 AS name'"),
        (["amount double_amount"], "no operator stands between"),
        (["amount AS"], "AS is not followed by one name"),
        (["amount AS a b"], "AS is not followed by one name"),
        (["sku", "amount AS SKU"], "'amount AS SKU' makes a second column 'SKU'"),
        (["*", "amount * 2 AS amount"], "give one of them another name: 'amount * 2 AS another_amount'"),
        (["*", "amount"], "makes a second column 'amount'"),
        (["customer_id AS order_id"], "is not the key 'order_id', but takes its name"),
        (["order_id + 1 AS Order_Id"], "but takes its name"),
        (["amount AS _amount"], "the column name '_amount' begins with an underscore"),
        (["_timestamp"], "the column name '_timestamp' begins with an underscore"),
        (["amount AS `the amount`"], "the column name 'the amount' cannot be stored"),
        (["left.*"], "'left.*' names no columns here\n"),
        (["left.*"], "write '*'"),
        (["amout AS a"], "'amout' is not a column of the source"),
        (["null AS a"], "write 'cast(null as string) AS a', or another type"),
        ("sku, amount", "one text holds several expressions"),
        ("sku AS a, amount AS b", "one text holds several expressions, at character 9 of"),
        ("*, amount + 1 AS b, upper(sku) AS c", "write a list, one text for each"),
        (["sku, *"], "one text holds several: 'sku, *'"),
        ([1], "1 is no text"),
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
        ("a.r = 1", "'r' is not among the fields p int, in struct<Q:string>, at character 3 of 'a.r = 1'"),
        ("a.pp = 1", "write one of them; did you mean p?"),
        ("a.in.zz = ''", "'zz' is not among the fields Q string"),
        ("a.p.zz = 1", "'zz' is asked of 'p', which is int and has no fields"),
        ("xs[0].zz = 1", "'zz' is not among the fields p int"),
        ("size(xs.zz) = 1", "'zz' is not among the fields p int"),
        ("xs[0].p.zz = 1", "'zz' is asked of 'p', which is int"),
        ("a.in.q", "'a.in.q' is string, and no condition"),
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
