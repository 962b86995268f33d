"""`TopologyTestDriver`: a user's topology, tried without broker and Delta, whatever the batches."""

from __future__ import annotations

import inspect
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Literal

import pytest

from spark.testing import TopologyTestDriver
from spark.topology import (
    Consumed,
    JoinWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    Topology,
    TopologyError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from resources.engine import Engine


@pytest.fixture(scope="module")
def session(engine: Engine) -> Iterator[SparkSession]:
    """A session of the engine; a user's test has Spark's own."""
    session = engine.session()
    yield session
    session.stop()


def topology() -> Topology:
    """Orders with their customer's name, and how many each name has."""
    builder = StreamsBuilder("shop")
    orders = builder.table("orders", Consumed.json(key="order_id bigint", value="customer_id bigint, amount int"))
    customers = builder.global_table("customers", Consumed.json(key="customer_id bigint", value="name string"))
    named = orders.left_join(customers, on="customer_id", select=["left.*", "right.name"])
    named.materialize("named")
    named.group_by("name").aggregate(orders="count(*)", total="sum(amount)").materialize("by_name")
    return builder.build()


def piped(driver: TopologyTestDriver) -> TopologyTestDriver:
    """Orders that move, a customer who is renamed and one who leaves, a record that is no JSON."""
    driver.pipe("customers", key=7, value={"name": "Ada"}, timestamp=1)
    driver.pipe("customers", key=8, value={"name": "Ben"}, timestamp=2)
    driver.pipe("orders", key=1, value={"customer_id": 7, "amount": 10}, timestamp=3)
    driver.pipe("orders", key=2, value={"customer_id": 8, "amount": 20}, timestamp=4)
    driver.pipe("orders", key=3, value=b"{", timestamp=5)
    driver.pipe("orders", key=1, value={"customer_id": 8, "amount": 11}, timestamp=6)
    driver.pipe("customers", key=8, value={"name": "Benno"}, timestamp=7)
    driver.pipe("customers", key=7, value=None, timestamp=8)
    driver.pipe("orders", key=2, value=None, timestamp=9)
    return driver


@pytest.mark.parametrize("batch", ["each", 4, "all"])
def test_the_tables_are_the_same_whatever_the_batches(
    session: SparkSession, batch: Literal["each", "all"] | int
) -> None:
    driver = piped(TopologyTestDriver(topology(), batch, session))
    assert driver.table("customers") == [{"customer_id": 8, "name": "Benno"}]
    assert driver.table("named") == [{"order_id": 1, "customer_id": 8, "amount": 11, "name": "Benno"}]
    assert driver.table("by_name") == [{"name": "Benno", "orders": 1, "total": 11}]


def test_what_was_emitted_is_told_in_order(session: SparkSession) -> None:
    driver = piped(TopologyTestDriver(topology(), session=session))
    assert driver.records("customers") == [
        {"key": {"customer_id": 7}, "value": {"name": "Ada"}},
        {"key": {"customer_id": 8}, "value": {"name": "Ben"}},
        {"key": {"customer_id": 8}, "value": {"name": "Benno"}},
        {"key": {"customer_id": 7}, "value": None},
    ]
    names = [(record["key"], record["value"]) for record in driver.records("by_name")]
    assert names == [
        ({"name": "Ada"}, {"orders": 1, "total": 10}),
        ({"name": "Ben"}, {"orders": 1, "total": 20}),
        ({"name": "Ada"}, None),
        ({"name": "Ben"}, {"orders": 2, "total": 31}),
        ({"name": "Ben"}, None),
        ({"name": "Benno"}, {"orders": 2, "total": 31}),
        ({"name": "Benno"}, {"orders": 1, "total": 11}),
    ]


def test_a_batch_is_one_span(session: SparkSession) -> None:
    driver = TopologyTestDriver(topology(), "all", session)
    driver.pipe("orders", key=1, value={"customer_id": 7, "amount": 10})
    driver.advance()
    driver.pipe("orders", key=1, value=None)
    driver.pipe("orders", key=1, value={"customer_id": 7, "amount": 10})
    driver.pipe("orders", key=1, value=None)
    driver.advance()
    assert driver.records("orders") == [
        {"key": {"order_id": 1}, "value": {"customer_id": 7, "amount": 10}},
        {"key": {"order_id": 1}, "value": None},
    ]


def test_what_is_mistyped_is_named(session: SparkSession) -> None:
    driver = TopologyTestDriver(topology(), session=session)
    with pytest.raises(TopologyError, match="reads no topic 'order'"):
        driver.pipe("order", key=1, value=None)
    with pytest.raises(TopologyError, match="there is no table"):
        driver.table("name")
    with pytest.raises(TopologyError, match=r"JSON cannot hold it: .*Decimal.*\n(.*\n)*.*at tests/test_testing.py:"):
        driver.pipe("orders", key=1, value={"amount": Decimal(1)})
    with pytest.raises(TopologyError, match="timestamp is '2026-01-01'"):
        driver.pipe("orders", key=1, value=None, timestamp="2026-01-01")  # type: ignore[arg-type]  # what is mistyped
    with pytest.raises(ValueError, match='write "each", "all", or a number from 1'):
        TopologyTestDriver(topology(), 0, session)


def test_the_changes_of_a_table_are_as_many_as_the_batches_tell_apart(session: SparkSession) -> None:
    builder = StreamsBuilder("prices")
    prices = builder.table("prices", Consumed.json(key="sku string", value="price int, maker string"))
    prices.to_stream().group_by("sku").count("changes").materialize("changes")
    prices.to_stream().select_key("maker").to_table().materialize("newest_of_maker")
    made = builder.build()
    batches: tuple[tuple[Literal["each", "all"], int], ...] = (("each", 2), ("all", 1))
    for batch, changes in batches:
        driver = TopologyTestDriver(made, batch, session)
        driver.pipe("prices", key="pen", value={"price": 1, "maker": "bic"}, timestamp=1)
        driver.pipe("prices", key="pen", value={"price": 2, "maker": "bic"}, timestamp=2)
        driver.pipe("prices", key="ink", value={"price": 9, "maker": "bic"}, timestamp=3)
        assert driver.table("changes") == [{"sku": "ink", "changes": 1}, {"sku": "pen", "changes": changes}]
        assert driver.table("newest_of_maker") == [{"maker": "bic", "sku": "ink", "price": 9}]
        driver.pipe("prices", key="pen", value=None, timestamp=4)
        assert driver.table("changes") == [{"sku": "ink", "changes": 1}, {"sku": "pen", "changes": changes}]
        assert driver.table("newest_of_maker") == [{"maker": "bic", "sku": "ink", "price": 9}]


@pytest.mark.parametrize("batch", ["each", "all"])
def test_time_that_a_filter_hides_closes_windows_and_lone_records(
    session: SparkSession, batch: Literal["each", "all"]
) -> None:
    builder = StreamsBuilder("hidden")
    clicks = builder.stream("clicks", Consumed.json(key="k int", value="v int"))
    kept = clicks.filter("v > 0").materialize("kept")
    windows = kept.group_by("v").windowed_by(TimeWindows.of("10ms", grace="0ms")).count()
    windows.suppress(Suppressed.until_window_closes()).materialize("final")
    near = JoinWindows.of("5ms", before="-1ms", grace="0ms")
    kept.left_join(kept, within=near, select=["left.v", "right.v AS w"]).materialize("lone")
    driver = TopologyTestDriver(builder.build(), batch, session)
    driver.pipe("clicks", key=1, value={"v": 7}, timestamp=1)
    driver.pipe("clicks", key=1, value={"v": 0}, timestamp=100)
    assert [(row["v"], row["count"]) for row in driver.table("final")] == [(7, 1)]
    assert driver.table("lone") == [{"k": 1, "v": 7, "w": None}]


@pytest.mark.parametrize("batch", ["each", "all"])
def test_a_stored_view_of_a_topics_table_is_looked_up_as_it_was(
    session: SparkSession, batch: Literal["each", "all"]
) -> None:
    builder = StreamsBuilder("views")
    customers = builder.table("customers", Consumed.json(key="customer_id bigint", value="name string, vip boolean"))
    vip = customers.filter("vip").map_values("upper(name) AS called").materialize("vip")
    orders = builder.stream("orders", Consumed.json(key="order_id bigint", value="customer_id bigint"))
    orders.join(vip, on="customer_id", select="right.called").materialize("called")
    driver = TopologyTestDriver(builder.build(), batch, session)
    driver.pipe("customers", key=7, value={"name": "Ada", "vip": False}, timestamp=1)
    driver.pipe("orders", key=1, value={"customer_id": 7}, timestamp=2)
    driver.pipe("customers", key=7, value={"name": "Ada", "vip": True}, timestamp=3)
    driver.pipe("orders", key=2, value={"customer_id": 7}, timestamp=4)
    assert driver.records("called") == [{"key": {"order_id": 2}, "value": {"called": "ADA"}}]


@pytest.mark.parametrize("batch", ["each", "all"])
def test_the_newest_of_a_stored_stream_does_not_depend_on_its_steps(
    session: SparkSession, batch: Literal["each", "all"]
) -> None:
    builder = StreamsBuilder("newest")
    clicks = builder.stream("clicks", Consumed.json(key="user string", value="sku string"))
    by_sku = clicks.select_key("sku").materialize("by_sku")
    by_sku.to_table().materialize("newest")
    driver = TopologyTestDriver(builder.build(), batch, session)
    driver.pipe("clicks", key="ada", value={"sku": "pen"}, timestamp=5, partition=0)
    driver.pipe("clicks", key="ben", value={"sku": "pen"}, timestamp=3, partition=1)
    assert driver.table("newest") == [{"sku": "pen", "user": "ada"}]


@pytest.mark.parametrize("batch", ["each", "all"])
def test_rows_of_closed_windows_are_in_time_for_windows_behind_them(
    session: SparkSession, batch: Literal["each", "all"]
) -> None:
    builder = StreamsBuilder("twice")
    clicks = builder.stream("clicks", Consumed.json(key="user string", value="sku string"))
    waiting, closed = TimeWindows.of("10ms", grace="50ms"), Suppressed.until_window_closes()
    counted = clicks.group_by("sku").windowed_by(waiting).count().suppress(closed).materialize("counted")
    told = counted.to_stream().map_values("count AS clicks").materialize("told")
    windows = TimeWindows.of("10ms", grace="0ms")
    told.group_by("sku").windowed_by(windows).aggregate(clicks="sum(clicks)").materialize("again")
    driver = TopologyTestDriver(builder.build(), batch, session)
    for at in (1, 15, 2, 65, 200):  # the first window, whose newest record came last, closes at 65, the others at 200
        driver.pipe("clicks", key="ada", value={"sku": "pen"}, timestamp=at)
    assert [row["clicks"] for row in driver.table("again")] == [2, 1, 1]


def test_a_sum_folds_although_what_came_and_what_went_are_more_than_it_can_hold(session: SparkSession) -> None:
    builder = StreamsBuilder("sums")
    orders = builder.table("orders", Consumed.json(key="id int", value="who string, amount bigint"))
    orders.group_by("who").aggregate(total="sum(amount)").materialize("totals")
    driver = TopologyTestDriver(builder.build(), session=session)
    for at in (1, 2):
        driver.pipe("orders", key=1, value={"who": "ada", "amount": 5 * 10**18}, timestamp=at)
    assert driver.table("totals") == [{"who": "ada", "total": 5 * 10**18}]


def test_rows_are_told_by_key(session: SparkSession) -> None:
    driver = TopologyTestDriver(topology(), session=session)
    for number in (10, 2, 1):
        driver.pipe("customers", key=number, value={"name": "Ada"})
    assert [row["customer_id"] for row in driver.table("customers")] == [1, 2, 10]


@pytest.mark.parametrize("batch", ["each", "all"])
def test_rows_of_windows_that_overlap_come_as_their_windows_close(
    session: SparkSession, batch: Literal["each", "all"]
) -> None:
    builder = StreamsBuilder("overlapping")
    clicks = builder.stream("clicks", Consumed.json(key="user string", value="sku string"))
    hopping, closed = TimeWindows.of("10ms", advance="5ms", grace="0ms"), Suppressed.until_window_closes()
    counted = clicks.group_by("sku").windowed_by(hopping).count().suppress(closed).materialize("counted")
    told = counted.to_stream().materialize("told")
    told.group_by("sku").windowed_by(TimeWindows.of("2ms", grace="0ms")).count("rows").materialize("again")
    driver = TopologyTestDriver(builder.build(), batch, session)
    for sku, at in (("pen", 6), ("ink", 9), ("cap", 10), ("cap", 15), ("cap", 40)):
        driver.pipe("clicks", key="ada", value={"sku": sku}, timestamp=at)
    again = [(row["sku"], row["rows"]) for row in driver.table("again") if row["sku"] != "cap"]
    assert again == [("ink", 2), ("pen", 1)]  # the second window of the pen closes behind the first one of the ink


def test_a_table_that_is_another_one_is_told_row_by_row(session: SparkSession) -> None:
    driver = TopologyTestDriver(topology(), session=session)
    for number, name in ((2, "Ben"), (10, "Ada")):
        driver.pipe("customers", key=number, value={"name": name})
    driver.expect("customers", [{"customer_id": 10, "name": "Ada"}, {"customer_id": 2, "name": "Ben"}])
    with pytest.raises(AssertionError) as caught:
        driver.expect("customers", [{"customer_id": 2, "name": "Bea"}, {"customer_id": 10, "name": "Ada"}])
    head, *lines = str(caught.value).splitlines()
    assert head == "customers is another table (- wanted, + found):"
    assert [line for line in lines if line[0] in "-+"] == [
        "- {'customer_id': 2, 'name': 'Bea'}",
        "+ {'customer_id': 2, 'name': 'Ben'}",
    ]


def test_what_does_not_decode_is_an_error_at_the_line_that_pipes_it(session: SparkSession) -> None:
    builder = StreamsBuilder("typed")
    builder.table("orders", Consumed.json(key="a bigint, b string", value="n int"))
    driver = TopologyTestDriver(builder.build(), session=session)
    for key, value, what in (
        ({"a": 1, "b": "x"}, {"n": "one"}, "the value does not decode as JSON (n int)"),
        (7, {"n": 1}, "the key does not decode as JSON (a bigint, b string)"),
        ({"a": 1}, {"n": 1}, "the key "),
    ):
        line = inspect.currentframe().f_lineno + 2  # type: ignore[union-attr]  # CPython has frames
        with pytest.raises(TopologyError, match=re.escape(what)) as failed:
            driver.pipe("orders", key=key, value=value)
        assert f"test_testing.py:{line}" in str(failed.value)
        assert "the topic has: a bigint, b string, n int" in str(failed.value)
    with pytest.raises(TopologyError, match=r"(?s)reads no topic 'order'.*did you mean orders\?.*test_testing.py:"):
        driver.pipe("order", key=1, value={})
    assert driver.quarantined("orders") == []
    driver.pipe("orders", key=None, value={"n": 1})
    driver.pipe("orders", key={"a": 1, "b": "x"}, value=b"{no json")
    driver.pipe("orders", key={"a": 1, "b": "x"}, value={"n": 1})
    nobodys, broken = driver.quarantined("orders")
    assert (nobodys["offset"], nobodys["key"]) == (3, None)
    assert "no row of a table has such a key" in str(nobodys["error"])
    assert (broken["value"], broken["error"]) == (b"{no json", "the value does not decode as JSON (n int)")
    assert driver.table("orders") == [{"a": 1, "b": "x", "n": 1}]
