"""Mistakes that every handle answers: methods, arguments and lists of texts."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections import UserList
from collections.abc import Callable
from typing import Any

import pytest

from spark.topology import (
    Consumed,
    StreamsBuilder,
    TimeWindows,
)
from spark.topology.handles import KTable
from tests.topology.mistakes import WINDOWS, Act, raised
from tests.topology.shop import PRODUCTS, Shop

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
    (
        "Consumed.json",
        "write json(key=..., value=..., [timestamp=...], [key_format=...], [headers=...])",
        lambda _: Consumed.json("id int"),  # type: ignore[call-arg]  # the mistake
    ),
    ("TimeWindows", "write TimeWindows.of(size, [adv", lambda _: TimeWindows("1m")),  # type: ignore[call-arg]
    ("filter of orders", "SQL has no '&&'", lambda s: s.orders.filter("amount > 1 && sku = 'x'")),
]


@pytest.mark.parametrize(("node", "what", "act"), CALLS)
def test_a_call_with_other_arguments_is_told_with_those_it_takes(node: str, what: str, act: Act) -> None:
    message = raised(act)
    assert message.startswith(f"{node}: ")
    assert what in message
