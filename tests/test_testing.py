"""`TopologyTestDriver`: a user's topology, tried without broker and Delta, whatever the batches."""

from __future__ import annotations

import inspect
import re
import time
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Literal

import pytest
from pyspark.errors import PySparkException

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


def published() -> Topology:
    """Orders by their customer's name, published; a stream, published; a table of windows."""
    builder = StreamsBuilder("published")
    orders = builder.table("orders", Consumed.json(key="order_id bigint", value="who string, amount decimal(9,2)"))
    orders.group_by("who").aggregate(total="sum(amount)").materialize("totals").to("totals-v1")
    orders.group_by("who", "amount").count().materialize("pairs")
    clicks = builder.stream("clicks", Consumed.json(key="user string", value="sku string"))
    clicks.filter("sku <> 'cap'").materialize("kept").to("kept-v1")
    clicks.group_by("sku").windowed_by(TimeWindows.of("10ms", grace="0ms")).count().materialize("windows")
    return builder.build()


def test_records_are_piped_into_a_topic_whose_time_advances(session: SparkSession) -> None:
    driver = TopologyTestDriver(published(), session=session)
    clicks = driver.create_input_topic("clicks", start_timestamp=datetime(1970, 1, 1, tzinfo=UTC), auto_advance=4)
    clicks.pipe_input("ada", {"sku": "pen"})
    clicks.pipe_input("ada", {"sku": "ink"}, timestamp=2, headers={"trace": "1", "raw": b"1"}, partition=1)
    clicks.pipe_input("ben", None)
    clicks.advance_time(timedelta(milliseconds=12))
    clicks.pipe_value_list([{"sku": "cap"}])
    clicks.pipe_key_value_list([("ada", {"sku": "pen"}), ("ben", {"sku": "pen"})], start_timestamp=30, advance=5)
    assert driver.stream_time("windows") == 35
    kept = driver.create_output_topic("kept-v1").read_records_to_list()
    assert [(record.key, record.value, record.timestamp) for record in kept] == [
        ("ada", {"sku": "pen"}, 0),
        ("ada", {"sku": "ink"}, 2),
        ("ada", {"sku": "pen"}, 30),
        ("ben", {"sku": "pen"}, 35),
    ]
    assert driver.counted("clicks").tombstones == 1
    [cap] = [row for row in driver.table("windows") if row["sku"] == "cap"]
    assert driver.table("windows").get({name: cap[name] for name in ("sku", "_window_start", "_window_end")}) == cap


def test_an_output_topic_has_what_publishing_sends(session: SparkSession) -> None:
    driver = TopologyTestDriver(published(), session=session)
    totals = driver.create_output_topic("totals-v1")
    assert totals.is_empty
    driver.pipe("orders", key=1, value={"who": "ada", "amount": "1.50"}, timestamp=7)
    driver.pipe("orders", key=2, value={"who": "ben", "amount": 2}, timestamp=5)
    assert totals.queue_size == 2
    first = totals.read_record()
    assert (first.key, first.value, first.timestamp) == ("ada", {"total": Decimal("1.50")}, 7)
    assert (first.key_bytes, first.value_bytes) == (b'"ada"', b'{"total":1.50}')
    assert first.headers["tidetable.table"] == "published/totals"
    assert first.headers["tidetable.key_format"] == "json"
    assert totals.read_key_value() == ("ben", {"total": Decimal("2.00")})
    with pytest.raises(TopologyError, match=r"(?s)all records are read.*is_empty.*test_testing.py:"):
        totals.read_value()
    driver.pipe("orders", key=1, value={"who": "ben", "amount": "1.50"}, timestamp=9)
    assert totals.read_key_values_to_map() == {"ada": None, "ben": {"total": Decimal("3.50")}}
    assert totals.is_empty
    again = driver.create_output_topic("totals")  # by the table's name, and from the first record
    gone = again.read_records_to_list()[2]
    assert (gone.key, gone.value, gone.timestamp) == ("ada", None, 7)  # a tombstone has the time of the row
    pairs = driver.create_output_topic("pairs").read_key_values_to_map()
    assert pairs[("ben", Decimal("1.50"))] == {"count": 1}


def test_a_row_is_found_by_its_key(session: SparkSession) -> None:
    driver = TopologyTestDriver(published(), session=session)
    driver.pipe("orders", key=1, value={"who": "ada", "amount": 2}, timestamp=7)
    row = {"who": "ada", "amount": Decimal("2.00"), "count": 1}
    assert driver.table("pairs") == [row]
    assert driver.table("pairs").get(("ada", 2)) == driver.table("pairs").get({"amount": 2, "who": "ada"}) == row
    assert driver.table("orders").get(1) == {"order_id": 1, "who": "ada", "amount": Decimal("2.00")}
    assert driver.table("orders").get(2) is None
    for key in ("ada", ("ada",), ("ada", 2, 3), {"who": "ada"}):
        with pytest.raises(TopologyError, match=r"(?s)the key has: who string, amount decimal.*test_testing.py:"):
            driver.table("pairs").get(key)


def test_topics_and_times_that_are_not_there_are_named(session: SparkSession) -> None:
    driver = TopologyTestDriver(published(), session=session)
    with pytest.raises(TopologyError, match=r"reads no topic 'click'(?s:.*)did you mean clicks\?"):
        driver.create_input_topic("click")
    with pytest.raises(TopologyError, match=r"publishes no topic(?s:.*)did you mean totals-v1\?"):
        driver.create_output_topic("totals-v2")
    with pytest.raises(TopologyError, match=r"keeps no stream time(?s:.*)kept, windows"):
        driver.stream_time("totals")
    clicks = driver.create_input_topic("clicks")
    with pytest.raises(TopologyError, match="time does not go back"):
        clicks.advance_time(-1)
    with pytest.raises(TopologyError, match="a datetime with a time zone"):
        clicks.pipe_input("ada", None, timestamp=datetime(2026, 1, 1))  # what is wrong here
    with pytest.raises(TopologyError, match="the header 'n' is 1"):
        clicks.pipe_input("ada", None, headers={"n": 1})  # type: ignore[dict-item]  # what is mistyped


def test_the_clock_decides_which_records_are_from_the_future(session: SparkSession) -> None:
    driver = TopologyTestDriver(published(), session=session)
    ahead = int(time.time() * 1000) + 2 * 3_600_000  # an hour more than is allowed
    clicks = driver.create_input_topic("clicks", start_timestamp=ahead)
    with pytest.raises(TopologyError, match="ahead of the clock"):
        clicks.pipe_input("ada", {"sku": "pen"})
    driver.advance_wall_clock_time(timedelta(hours=2))
    clicks.pipe_input("ada", {"sku": "pen"})
    assert driver.stream_time("windows") == ahead


def test_a_batch_that_fails_is_left_out_and_named(session: SparkSession) -> None:
    builder = StreamsBuilder("failing")
    table = builder.table("parts", Consumed.json(key="id int", value="whole int, by int"))
    table.map_values("whole div by AS part").materialize("divided")
    driver = TopologyTestDriver(builder.build(), session=session)
    driver.pipe("parts", key=1, value={"whole": 6, "by": 2})
    line = inspect.currentframe().f_lineno + 1  # type: ignore[union-attr]  # CPython has frames
    driver.pipe("parts", key=2, value={"whole": 6, "by": 0})
    driver.pipe("parts", key=3, value={"whole": 6, "by": 3})
    with pytest.raises(PySparkException, match="DIVIDE_BY_ZERO") as failed:
        driver.table("divided")
    assert f"test_testing.py:{line}" in failed.value.__notes__[0]
    assert driver.table("divided") == [{"id": 1, "part": 3}, {"id": 3, "part": 2}]


def test_a_read_only_table_is_piped_and_looked_up_as_upstreams_read_only_store_is(session: SparkSession) -> None:
    """Kafka's `ReadOnlyStoreTest`: a store that its own topic fills, and records that look themselves up in it."""
    builder = StreamsBuilder("follower")
    key = "id int"
    store = builder.read_only_table("readOnlyStore", from_="leader.store", key=key, value="value string")
    inputs = builder.stream("inputTopic", Consumed.json(key=key, value="value string"))
    inputs.join(store, select=["left.value || ' -- ' || right.value AS value"]).materialize("outputTopic")
    store.filter("value <> 'foo'").materialize("subset")
    driver = TopologyTestDriver(builder.build(), session=session)
    for number, value in ((1, "foo"), (2, "bar")):
        driver.pipe("readOnlyStore", key=number, value={"value": value})
    for number, value in ((1, "bar"), (2, "foo")):
        driver.pipe("inputTopic", key=number, value={"value": value})
    assert driver.table("leader/store") == [{"id": 1, "value": "foo"}, {"id": 2, "value": "bar"}]
    assert driver.records("outputTopic") == [
        {"key": {"id": 1}, "value": {"value": "bar -- foo"}},
        {"key": {"id": 2}, "value": {"value": "foo -- bar"}},
    ]
    driver.pipe("readOnlyStore", key=2, value=None)
    assert driver.table("subset") == []
