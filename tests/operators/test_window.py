"""Windows: which records are in them, when they close, and that batches change nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import pytest

from spark.operators.algebra import dropped, touched
from spark.testing import TopologyTestDriver
from spark.topology import Consumed, SessionWindows, SlidingWindows, StreamsBuilder, Suppressed, TimeWindows, Topology
from spark.topology.columns import WINDOW_BOUNDS, Column
from spark.topology.nodes import Records, Scan, Window
from tests.support.quick import quick_session
from tests.support.tables import assert_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from resources.engine import Engine
    from tests.operators.drawn import Draw, DrawnSpan

CLICKS = Scan("clicks", ("user",), (Column("user", "string"), Column("v", "int")), appended=True)
KEYS = (Column("user", "string"), *WINDOW_BOUNDS)
TUMBLING = Window(
    *(Records(CLICKS), ("user",)),
    select=(("n", "count(1)"), ("v", "sum(v)")),
    columns=(*KEYS, Column("n", "bigint"), Column("v", None)),
    kind="time",
    size=10,
    advance=10,
    grace=5,
)
SLIDING = replace(TUMBLING, kind="sliding", advance=0)
RECORD = (
    "user string | v int | _timestamp timestamp | _topic string | _partition int | _offset bigint | _deleted boolean"
    " | _error string | _batch bigint\n"
)
SECOND = 1_000_000


def drawn(draw: Draw, new: str, older: str = "", before: int | None = None, after: int | None = None) -> DrawnSpan:
    """A span of clicks, between two stream times in milliseconds."""
    span = draw.span(draw.now(clicks=RECORD + older + new), clicks=RECORD + new)
    begun = draw.now(clicks=RECORD + older)
    times = [None if time is None else time * 1000 for time in (before, after)]
    return replace(span, before=begun, time_before=times[0], time_after=times[1])


def found(node: Window, span: DrawnSpan) -> DataFrame:
    """The rows touched, with bounds that can be drawn."""
    frame = touched(node, span)
    assert frame is not None
    return frame.selectExpr("*", "unix_millis(_window_start) AS start", "unix_millis(_window_end) AS end")


@pytest.fixture(scope="module")
def session(engine: Engine) -> Iterator[SparkSession]:
    session = quick_session(engine)
    session.conf.set("spark.sql.session.timeZone", "UTC")
    yield session
    session.stop()


def test_a_window_holds_its_start_and_not_its_end_and_its_row_is_of_its_newest_record(draw: Draw) -> None:
    span = drawn(
        draw,
        """
        ada | 1 | 1970-01-01 00:00:00.010 | c | 0 | 0 | false | null | 1
        ada | 2 | 1970-01-01 00:00:00.019 | c | 0 | 1 | false | null | 1
        ada | 4 | 1970-01-01 00:00:00.012 | c | 0 | 2 | false | null | 1
        ben | 5 | 1970-01-01 00:00:00.020 | c | 0 | 3 | false | null | 1
        """,
    )
    assert_table(
        found(TUMBLING, span),
        """
        user | start | end | n | v | _timestamp              | _offset | _present
        ada  | 10    | 20  | 3 | 7 | 1970-01-01 00:00:00.019 | 1       | true
        ben  | 20    | 30  | 1 | 5 | 1970-01-01 00:00:00.02  | 3       | true
        """,
    )


def test_a_record_that_fits_some_of_its_windows_counts_in_those(draw: Draw) -> None:
    hopping = replace(TUMBLING, advance=5)
    span = drawn(
        draw,
        """
        ada | 1 | 1970-01-01 00:00:00.025 | c | 0 | 0 | false | null | 1
        ada | 2 | 1970-01-01 00:00:00.016 | c | 0 | 1 | false | null | 1
        """,
    )
    # Stream time 25 less grace 5 closes the window up to 20.
    assert_table(
        found(hopping, span),
        """
        user | start | end | n | v
        ada  | 15    | 25  | 1 | 2
        ada  | 20    | 30  | 1 | 1
        ada  | 25    | 35  | 1 | 1
        """,
    )
    assert_table(dropped(hopping, span) or span.after.stored(CLICKS), "_offset | _reason\n")


def test_what_is_in_no_window_is_dropped_with_the_reason(draw: Draw) -> None:
    span = drawn(
        draw,
        """
        ada  | 1    | 1970-01-01 00:00:00.025 | c | 0 | 0 | false | null | 1
        ada  | 1    | 1970-01-01 00:00:00.010 | c | 0 | 1 | false | null | 1
        ada  | 1    | 1970-01-01 00:00:00.009 | c | 0 | 2 | false | null | 1
        null | 1    | 1970-01-01 00:00:00.025 | c | 0 | 3 | false | null | 1
        ada  | null | 1970-01-01 00:00:00.025 | c | 0 | 4 | true  | null | 1
        ada  | 1    | null                    | c | 0 | 5 | false | null | 1
        ada  | 1    | 1969-12-31 23:59:59.999 | c | 0 | 6 | false | null | 1
        """,
    )
    refused = dropped(TUMBLING, span)
    assert refused is not None
    assert_table(
        refused,
        """
        _offset | _reason
        1       | late
        2       | late
        3       | null key
        4       | null value
        5       | no timestamp
        6       | before 1970
        """,
    )
    assert_table(found(TUMBLING, span), "user | start | n\nada | 20 | 1")


def test_touched_are_the_windows_of_new_records_with_their_older_ones(draw: Draw) -> None:
    older = """
        ada | 1 | 1970-01-01 00:00:00.003 | c | 0 | 0 | false | null | 1
        ada | 2 | 1970-01-01 00:00:00.014 | c | 0 | 1 | false | null | 1
        ben | 9 | 1970-01-01 00:00:00.014 | c | 0 | 2 | false | null | 1
        ada | 8 | 1970-01-01 00:00:00.015 | c | 0 | 3 | true  | null | 1
        """
    new = """
        ada | 4 | 1970-01-01 00:00:00.011 | c | 0 | 4 | false | null | 2
        """
    span = drawn(draw, new, older, before=14, after=14)
    assert_table(found(TUMBLING, span), "user | start | n | v\nada | 10 | 2 | 6")


def test_a_suppressed_row_is_there_in_the_span_that_closes_its_window_and_in_no_other(draw: Draw) -> None:
    older = """
        ada | 1 | 1970-01-01 00:00:00.003 | c | 0 | 0 | false | null | 1
        ada | 2 | 1970-01-01 00:00:00.014 | c | 0 | 1 | false | null | 1
        ben | 9 | 1970-01-01 00:00:00.022 | c | 0 | 2 | false | null | 1
        """
    new = """
        cat | 4 | 1970-01-01 00:00:00.034 | c | 0 | 3 | false | null | 2
        cat | 5 | 1970-01-01 09:00:00.000 | c | 0 | 4 | false | null | 2
        """
    until = 9 * 3_600_000
    span = drawn(draw, new, older, before=22, after=until)
    # [0, 10) was closed at 22, less grace of 5.
    assert_table(
        found(replace(TUMBLING, suppressed=True), span),
        """
        user | start | n | v
        ada  | 10    | 1 | 2
        ben  | 20    | 1 | 9
        cat  | 30    | 1 | 4
        """,
    )


def test_sliding_windows_end_at_a_record_or_begin_behind_one_and_hold_both_their_ends(draw: Draw) -> None:
    span = drawn(
        draw,
        """
        ada | 1 | 1970-01-01 00:00:00.020 | c | 0 | 0 | false | null | 1
        ada | 2 | 1970-01-01 00:00:00.030 | c | 0 | 1 | false | null | 1
        ada | 4 | 1970-01-01 00:00:00.041 | c | 0 | 2 | false | null | 1
        """,
    )
    assert_table(
        found(SLIDING, span),
        """
        user | start | end | n | v
        ada  | 10    | 20  | 1 | 1
        ada  | 20    | 30  | 2 | 3
        ada  | 21    | 31  | 1 | 2
        ada  | 31    | 41  | 1 | 4
        """,
    )


def test_a_sliding_window_does_not_begin_before_1970(draw: Draw) -> None:
    span = drawn(
        draw,
        """
        ada | 1 | 1970-01-01 00:00:00.004 | c | 0 | 0 | false | null | 1
        ada | 2 | 1970-01-01 00:00:00.006 | c | 0 | 1 | false | null | 1
        """,
    )
    assert_table(found(SLIDING, span), "user | start | end | n\nada | 0 | 10 | 2\nada | 5 | 15 | 1")


def topology() -> Topology:
    """Windows over the clicks of users, as they come and once they are closed, and a view of some."""
    builder = StreamsBuilder("clicks")
    clicks = builder.stream("clicks", Consumed.json(key="user string", value="sku string, v int"))
    by_sku = clicks.filter("v > 0").group_by("sku")
    tumbling = by_sku.windowed_by(TimeWindows.of("10ms", grace="4ms")).aggregate(n="count(*)", v="sum(v)")
    tumbling.materialize("tumbling")
    tumbling.filter("v > 3 AND _window_start >= timestamp'1970-01-01 00:00:00.010'").materialize("large")
    closed = Suppressed.until_window_closes()
    tumbling.suppress(closed).materialize("tumbling_final")
    hopping = by_sku.windowed_by(TimeWindows.of("10ms", advance="3ms", grace="0s")).reduce(v="max(v)")
    hopping.materialize("hopping")
    by_sku.windowed_by(SlidingWindows.of("10ms", grace="2ms")).count().suppress(closed).materialize("sliding_final")
    return builder.build()


IN_ORDER = [(at, at // 20 % 2) for at in (3, 9, 10, 12, 12, 23, 31, 90, 95, 200)]
OUT_OF_ORDER = [(at, 0) for at in (3, 15, 9, 4, 21, 12, 33, 19, 70, 61, 300)]
Batches = Literal["each", "all"] | int


def piped(session: SparkSession, batch: Batches, times: list[tuple[int, int]]) -> dict[str, list[dict[str, object]]]:
    """All tables behind clicks at some times, on a partition each."""
    made = topology()
    driver = TopologyTestDriver(made, batch, session)
    for n, (at, partition) in enumerate(times):
        value = None if n == 4 else {"sku": "pen" if n % 3 else "ink", "v": n % 7}
        driver.pipe("clicks", key=f"u{n}", value=value, timestamp=at, partition=partition)
    return {table.name: driver.table(table.name) for table in made.tables}


@pytest.mark.parametrize("times", [IN_ORDER, OUT_OF_ORDER], ids=["in order", "out of order"])
def test_the_windows_are_the_same_whatever_the_batches(session: SparkSession, times: list[tuple[int, int]]) -> None:
    whole = piped(session, "all", times)
    assert all(whole.values())
    assert piped(session, 3, times) == whole
    assert piped(session, "each", times) == whole


def test_a_final_row_is_sent_once_and_one_so_far_as_often_as_it_changes(session: SparkSession) -> None:
    driver = TopologyTestDriver(topology(), "each", session)
    for at in (1, 2, 13, 3, 14, 1000):
        driver.pipe("clicks", key="u", value={"sku": "pen", "v": 1}, timestamp=at)
    totals = [record["value"]["n"] for record in driver.records("tumbling") if isinstance(record["value"], dict)]
    assert totals == [1, 2, 1, 3, 2, 1]
    finals = [record["value"]["n"] for record in driver.records("tumbling_final") if isinstance(record["value"], dict)]
    assert finals == [3, 2]


def test_sessions_may_be_grouped_by_a_column_of_any_name(session: SparkSession) -> None:
    builder = StreamsBuilder("named")
    clicks = builder.stream("clicks", Consumed.json(key="id string", value="col string"))
    visits = clicks.group_by("col").windowed_by(SessionWindows.of("5ms", grace="5ms")).count()
    visits.materialize("visits")
    driver = TopologyTestDriver(builder.build(), "each", session)
    for at in (1, 5, 8):
        driver.pipe("clicks", key="u", value={"col": "pen"}, timestamp=at)
    assert [row["count"] for row in driver.table("visits")] == [3]


def test_how_late_many_records_of_a_clock_that_was_never_set_are_is_counted(session: SparkSession) -> None:
    builder = StreamsBuilder("unset", ansi=True)
    clicks = builder.stream("clicks", Consumed.json(key="id string", value="v int"))
    clicks.group_by("id").windowed_by(TimeWindows.of("10ms", grace="0ms")).count().materialize("counted")
    driver = TopologyTestDriver(builder.build(), "all", session)
    driver.pipe("clicks", key="u", value={"v": 1}, timestamp=1_795_000_000_000)
    for _ in range(5_400):  # 5,400 of 1.8e15 microseconds: more than a bigint holds
        driver.pipe("clicks", key="u", value={"v": 1}, timestamp=0)
    assert [row["count"] for row in driver.table("counted")] == [1]
