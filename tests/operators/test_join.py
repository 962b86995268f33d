"""Joins row by row: what a left row finds, and which changes touch it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import pytest

from spark.operators.algebra import ALL, rows, touched
from spark.topology import Consumed, StreamsBuilder
from tests.support.tables import assert_table

if TYPE_CHECKING:
    from spark.topology.nodes import Drive, Node
    from tests.operators.drawn import Draw

How = Literal["join", "left_join"]

ORDERS = "order_id bigint | customer_id bigint | amount int"
CUSTOMERS = "customer_id bigint | name string"
NOBODY = CUSTOMERS + " | _present boolean"
NONE = ORDERS + " | _present boolean"


def plan(how: How, on: str | None = "customer_id", drive: Drive = "both", kind: str = "table") -> Node:
    """Orders joined with customers: by foreign key, or by the order's own key."""
    builder = StreamsBuilder("shop")
    orders = builder.table("orders", Consumed.json(key="order_id bigint", value="customer_id bigint, amount int"))
    declare = builder.table if kind == "table" else builder.global_table
    customers = declare("customers", Consumed.json(key="customer_id bigint", value="name string"))
    getattr(orders, how)(customers, on=on, select=["left.*", "right.name"], drive=drive).materialize("joined")
    return builder.build().table("joined").plan


KINDS: dict[str, tuple[str | None, str]] = {
    "foreign key": ("customer_id", "table"),
    "primary key": (None, "table"),
    "global": ("customer_id", "global_table"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_inner_join_has_the_rows_that_find_and_a_left_join_all_of_them(draw: Draw, kind: str) -> None:
    now = draw.now(
        orders=ORDERS
        + """
        1 | 1    | 10
        2 | 2    | 20
        3 | null | 30
        """,
        customers=CUSTOMERS + "\n1 | ada",
    )
    on, declared = KINDS[kind]
    assert_table(
        rows(plan("join", on, kind=declared), ALL, now),
        """
        order_id | customer_id | amount | name
        1        | 1           | 10     | ada
        """,
    )
    assert_table(
        rows(plan("left_join", on, kind=declared), ALL, now),
        """
        order_id | customer_id | amount | name
        1        | 1           | 10     | ada
        2        | 2           | 20     | null
        3        | null        | 30     | null
        """,
    )


def test_a_null_foreign_key_finds_no_row_not_even_one_with_nulls(draw: Draw) -> None:
    now = draw.now(orders=ORDERS + "\n1 | null | 10", customers=CUSTOMERS + "\nnull | nobody\n0 | zero")
    assert_table(rows(plan("join"), ALL, now), "order_id | name")
    assert_table(rows(plan("left_join"), ALL, now), "order_id | name\n1 | null")


@pytest.mark.parametrize("how", ["join", "left_join"])
def test_a_right_row_whose_columns_are_all_null_is_found(draw: Draw, how: How) -> None:
    now = draw.now(orders=ORDERS + "\n1 | 7 | 10", customers=CUSTOMERS + "\n7 | null")
    assert_table(rows(plan(how), ALL, now), "order_id | customer_id | name\n1 | 7 | null")


@pytest.mark.parametrize("few", [True, False])
@pytest.mark.parametrize("how", ["join", "left_join"])
def test_a_changed_left_row_is_looked_up_anew(draw: Draw, how: How, few: bool) -> None:
    after = draw.now(orders=ORDERS + "\n1 | 2 | 10", customers=CUSTOMERS + "\n1 | ada\n2 | bob")
    changes = (
        NONE
        + """
        1 | 2    | 10   | true
        2 | 9    | 20   | true
        3 | null | 30   | true
        4 | null | null | false
        5 | null | null | true
        """
    )
    found = touched(plan(how), draw.span(after, few, orders=changes))
    assert found is not None
    here = str(how == "left_join").lower()
    assert_table(
        found.select("order_id", "name", "_present"),
        f"""
        order_id | name | _present
        1        | bob  | true
        2        | null | {here}
        3        | null | {here}
        4        | null | false
        5        | null | {here}
        """,
    )


@pytest.mark.parametrize("few", [True, False])
def test_a_changed_right_row_touches_the_left_rows_that_look_it_up(draw: Draw, few: bool) -> None:
    after = draw.now(
        orders=ORDERS
        + """
        1 | 1    | 10
        2 | 2    | 20
        3 | 1    | 30
        4 | 3    | 40
        5 | null | 50
        """,
        customers=CUSTOMERS + "\n1 | ada, renamed\n3 | cid",
    )
    changes = NOBODY + "\n1 | ada, renamed | true\n2 | null | false\n9 | looked up by nobody | true"
    found = touched(plan("join"), draw.span(after, few, customers=changes))
    assert found is not None
    assert_table(
        found,
        """
        order_id | customer_id | amount | name         | _present
        1        | 1           | 10     | ada, renamed | true
        3        | 1           | 30     | ada, renamed | true
        2        | null        | null   | null         | false
        """,
    )


def test_a_deleted_right_row_leaves_nulls_in_a_left_join(draw: Draw) -> None:
    after = draw.now(orders=ORDERS + "\n1 | 1 | 10", customers=CUSTOMERS)
    found = touched(plan("left_join"), draw.span(after, customers=NOBODY + "\n1 | null | false"))
    assert found is not None
    assert_table(
        found,
        """
        order_id | customer_id | amount | name | _present
        1        | 1           | 10     | null | true
        """,
    )


@pytest.mark.parametrize("few", [True, False])
def test_a_moved_foreign_key_is_touched_once_though_its_new_customer_changed_too(draw: Draw, few: bool) -> None:
    after = draw.now(orders=ORDERS + "\n1 | 2 | 10\n2 | 2 | 20", customers=CUSTOMERS + "\n1 | ada\n2 | bob, renamed")
    span = draw.span(after, few, orders=NONE + "\n1 | 2 | 10 | true", customers=NOBODY + "\n2 | bob, renamed | true")
    found = touched(plan("join"), span)
    assert found is not None
    assert_table(
        found,
        """
        order_id | customer_id | name         | _present
        1        | 2           | bob, renamed | true
        2        | 2           | bob, renamed | true
        """,
    )


def test_both_sides_deleted_in_one_span_leave_no_row(draw: Draw) -> None:
    after = draw.now(orders=ORDERS, customers=CUSTOMERS)
    span = draw.span(after, orders=NONE + "\n1 | null | null | false", customers=NOBODY + "\n1 | null | false")
    found = touched(plan("left_join"), span)
    assert found is not None
    assert_table(found, "order_id | name | _present\n1 | null | false")


def test_a_lookup_only_join_follows_its_left_side_and_sees_the_right_one_as_it_is(draw: Draw) -> None:
    lookup = plan("left_join", drive="left", kind="global_table")
    after = draw.now(orders=ORDERS + "\n1 | 1 | 10\n2 | 1 | 20", customers=CUSTOMERS + "\n1 | renamed")
    renamed = NOBODY + "\n1 | renamed | true"
    assert touched(lookup, draw.span(after, customers=renamed)) is None
    found = touched(lookup, draw.span(after, orders=NONE + "\n2 | 1 | 20 | true", customers=renamed))
    assert found is not None
    assert_table(found, "order_id | name\n2 | renamed")


def test_nulls_in_values_are_values_to_a_join(draw: Draw) -> None:
    builder = StreamsBuilder("shop")
    orders = builder.table("orders", Consumed.json(key="order_id bigint", value="customer_id bigint, amount int"))
    customers = builder.table("customers", Consumed.json(key="customer_id bigint", value="name string"))
    select = [
        "left.amount + 1 AS more",
        "coalesce(right.name, 'none') AS said",
        "left.amount <=> null AS unknown",
    ]
    orders.left_join(customers, on="customer_id", select=select).materialize("joined")
    now = draw.now(
        orders=ORDERS
        + """
        1 | 1    | null
        2 | 2    | 5
        3 | null | 6
        """,
        customers=CUSTOMERS + "\n1 | ''\n2 | null",
    )
    assert_table(
        rows(builder.build().table("joined").plan, ALL, now),
        """
        order_id | more | said | unknown
        1        | null | ''   | true
        2        | 6    | none | false
        3        | 7    | none | false
        """,
    )


def test_a_composite_key_is_looked_up_as_a_whole_and_a_null_part_finds_nothing(draw: Draw) -> None:
    builder = StreamsBuilder("shop")
    orders = builder.table("orders", Consumed.json(key="order_id bigint", value="country string, sku string"))
    prices = builder.table("prices", Consumed.json(key="country string, sku string", value="price int"))
    orders.left_join(prices, on=["upper(country)", "sku"], select=["right.price"]).materialize("priced")
    priced = builder.build().table("priced").plan
    now = draw.now(
        orders="""
        order_id bigint | country string | sku string
        1               | at             | tea
        2               | AT             | mug
        3               | null           | tea
        4               | AT             | null
        """,
        prices="""
        country string | sku string | price int
        AT             | tea        | 3
        DE             | mug        | 9
        """,
    )
    assert_table(
        rows(priced, ALL, now),
        """
        order_id | price
        1        | 3
        2        | null
        3        | null
        4        | null
        """,
    )
    changes = "country string | sku string | price int | _present boolean\nAT | tea | 4 | true\nDE | tea | 5 | true"
    found = touched(priced, draw.span(now, prices=changes))
    assert found is not None
    assert_table(found, "order_id | price | _present\n1 | 4 | true")


def test_a_row_has_its_left_records_coordinates_and_the_later_of_the_two_timestamps(draw: Draw) -> None:
    ours = "_timestamp timestamp | _topic string | _partition int | _offset bigint"
    now = draw.now(
        orders=f"{ORDERS} | {ours}"
        + """
        1 | 1    | 10 | 2026-01-01 | orders | 1 | 11
        2 | 2    | 20 | 2026-01-05 | orders | 1 | 12
        3 | 2    | 30 | null       | orders | 1 | 13
        4 | null | 40 | 2026-01-01 | orders | 1 | 14
        5 | null | 50 | null       | orders | 1 | 15
        """,
        customers=f"{CUSTOMERS} | {ours}"
        + """
        1 | ada | 2026-01-02 | customers | 0 | 7
        2 | bob | 2026-01-03 | customers | 0 | 8
        """,
    )
    assert_table(
        rows(plan("left_join"), ALL, now),
        """
        order_id | _timestamp          | _topic | _partition | _offset
        1        | 2026-01-02 00:00:00 | orders | 1          | 11
        2        | 2026-01-05 00:00:00 | orders | 1          | 12
        3        | 2026-01-03 00:00:00 | orders | 1          | 13
        4        | 2026-01-01 00:00:00 | orders | 1          | 14
        5        | null                | orders | 1          | 15
        """,
    )
