"""Windows in the DSL: what they are in a plan, what reads their bounds, and what is told of every mistake."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from spark.topology import (
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    Topology,
    TopologyError,
)
from spark.topology.nodes import Aggregate, ClosedSessions, Scan, Select, Window
from tests.topology.shop import CLICKS, Shop

MINUTE = TimeWindows.of("1m", grace="10s")
VISITS = SessionWindows.of("5m", grace="10s")
CLOSED = Suppressed.until_window_closes()

Act = Callable[[Shop], object]


def built(act: Act) -> Topology:
    """The shop with what an act declares."""
    shop = Shop()
    act(shop)
    return shop.builder.build()


def test_windows_are_keyed_by_group_and_bounds() -> None:
    made = built(
        lambda shop: (
            shop.clicks.group_by("sku")
            .windowed_by(TimeWindows.of("1m", advance="20s", grace="10s"))
            .aggregate(users="count(user_id)", newest="max(at)")
            .materialize("per_minute")
        )
    )
    plan = made.table("per_minute").plan
    assert isinstance(plan, Window)
    assert (plan.kind, plan.size, plan.advance, plan.grace, plan.suppressed) == ("time", 60_000, 20_000, 10_000, False)
    assert plan.key == ("sku", "_window_start", "_window_end")
    assert [(column.name, column.type) for column in plan.columns] == [
        *(("sku", "string"), ("_window_start", "timestamp"), ("_window_end", "timestamp")),
        *(("users", "bigint"), ("newest", None)),
    ]
    assert Topology.from_dict(json.loads(json.dumps(made.to_dict()))) == made


def test_their_bounds_are_read_like_other_key_columns() -> None:
    def act(shop: Shop) -> None:
        counted = shop.clicks.group_by("sku").windowed_by(MINUTE).count()
        counted.materialize("counted")
        late = counted.filter("_window_start > timestamp'2026-01-01 00:00:00' AND count > 1")
        late.map_values(["_window_start", "unix_millis(_window_end) AS until", "count"]).materialize("late")
        counted.group_by("_window_start").aggregate(clicks="sum(count)").materialize("at_once")
        counted.select_key("sku").materialize("newest")
        counted.join(shop.products, on="sku", select=["left.*", "right.title"]).materialize("titled")
        counted.to_stream().filter("_window_end IS NOT NULL").materialize("told")

    made = built(act)
    plan = made.table("late").plan
    assert isinstance(plan, Select)
    assert [column.name for column in plan.columns] == ["sku", "_window_start", "_window_end", "until", "count"]
    scan = Scan("counted", ("sku", "_window_start", "_window_end"), made.table("counted").plan.columns)
    assert made.table("titled").inputs[0] == scan
    assert made.table("at_once").plan.key == ("_window_start",)
    assert isinstance(made.table("newest").plan, Aggregate)
    assert made.table("told").plan.key == scan.key


def test_suppressed_windows_may_stand_beside_those_they_come_of() -> None:
    def act(shop: Shop) -> None:
        counted = shop.clicks.group_by("sku").windowed_by(SlidingWindows.of("10s", grace="0s")).count()
        counted.suppress(CLOSED).materialize("final")
        counted.materialize("so_far")

    made = built(act)
    assert made.unread == ()
    assert [plan.suppressed for table in made.tables if isinstance(plan := table.plan, Window)] == [True, False]
    assert made.fingerprint("final") != made.fingerprint("so_far")


def test_describe_tells_when_windows_close_and_what_is_kept() -> None:
    def act(shop: Shop) -> None:
        by_sku = shop.clicks.group_by("sku")
        by_sku.windowed_by(MINUTE).count().suppress(CLOSED).materialize("tumbling")
        hops = TimeWindows.of("1m", advance="30s", grace="0s")
        by_sku.windowed_by(hops).reduce(at="max(at)").materialize("hopping")
        by_sku.windowed_by(SlidingWindows.of("10s", grace="2s")).count().materialize("sliding")

    made = built(act)
    assert made.describe("tumbling") == (
        "tumbling\n"
        "  key: sku string, _window_start timestamp, _window_end timestamp\n"
        "  columns: count bigint\n"
        "  is: count(1) AS count by sku in tumbling windows of 1m, a row once its window is closed; a window closes "
        "when stream time minus 10s of grace reaches its end; state: the stored rows; the records of the last 70s "
        "are read again\n"
        "    of: the records of topic clicks\n"
        "  a change of _landing/clicks costs: the new records, and the records of 70s before them\n"
    )
    assert "hopping windows of 1m every 30s, a row from the first record on" in made.describe("hopping")
    assert "sliding windows of 10s" in made.describe("sliding")
    assert "minus 2s of grace passes its end" in made.describe("sliding")
    assert "KTABLE-SUPPRESS" in made.describe()
    assert "KSTREAM-AGGREGATE" in made.describe()


@pytest.mark.parametrize(
    ("node", "told", "ask"),
    [
        (
            "TimeWindows of windowed_by of clicks",
            "grace is missing",
            lambda shop: shop.clicks.group_by("sku").windowed_by(TimeWindows.of("1m")),
        ),
        (
            "SlidingWindows of windowed_by of clicks",
            "grace is missing",
            lambda shop: shop.clicks.group_by("sku").windowed_by(SlidingWindows.of("1m")),
        ),
        (
            "TimeWindows of windowed_by of clicks",
            "the windows advance by 2m, and their size is 1m",
            lambda shop: shop.clicks.group_by("sku").windowed_by(TimeWindows.of("1m", advance="2m", grace="0s")),
        ),
        (
            "TimeWindows of windowed_by of clicks",
            "the windows advance by 0s",
            lambda shop: shop.clicks.group_by("sku").windowed_by(TimeWindows.of("1m", advance="0s", grace="0s")),
        ),
        (
            "TimeWindows of windowed_by of clicks",
            "'-1s' is not a duration",
            lambda shop: shop.clicks.group_by("sku").windowed_by(TimeWindows.of("1m", advance="-1s", grace="0s")),
        ),
        (
            "TimeWindows of windowed_by of clicks",
            "the size of the windows is 0",
            lambda shop: shop.clicks.group_by("sku").windowed_by(TimeWindows.of("0s", grace="0s")),
        ),
        (
            "TimeWindows of windowed_by of clicks",
            "'soon' is not a duration",
            lambda shop: shop.clicks.group_by("sku").windowed_by(TimeWindows.of("1m", grace="soon")),
        ),
        (
            "SessionWindows of windowed_by of clicks",
            "grace is missing",
            lambda shop: shop.clicks.group_by("sku").windowed_by(SessionWindows.of("5m")),
        ),
        (
            "windowed_by of clicks",
            "the windows are '1m'",
            lambda shop: shop.clicks.group_by("sku").windowed_by("1m"),
        ),
        (
            "windowed_by of orders",
            "windows hold the records of a stream",
            lambda shop: shop.orders.group_by("sku").windowed_by(MINUTE),
        ),
        (
            "suppress of orders",
            "the rows are not aggregates of windows",
            lambda shop: shop.orders.suppress(CLOSED),
        ),
        (
            "suppress of filter of windows of clicks by sku",
            "call it directly on",
            lambda shop: shop.clicks.group_by("sku").windowed_by(MINUTE).count().filter("count > 1").suppress(CLOSED),
        ),
        (
            "suppress of windows of clicks by sku",
            "suppressed is '1m'",
            lambda shop: shop.clicks.group_by("sku").windowed_by(MINUTE).count().suppress("1m"),
        ),
        (
            "suppress of suppress of windows of clicks by sku",
            "already suppressed",
            lambda shop: shop.clicks.group_by("sku").windowed_by(MINUTE).count().suppress(CLOSED).suppress(CLOSED),
        ),
        (
            "aggregate of clicks by sku",
            "the column name '_window_start' begins with an underscore",
            lambda shop: shop.clicks.group_by("sku").windowed_by(MINUTE).aggregate(_window_start="min(at)"),
        ),
        (
            "map_values of windows of clicks by sku",
            "is not the key '_window_start', but has its name",
            lambda shop: (
                shop.clicks.group_by("sku").windowed_by(MINUTE).count().map_values(["_window_end AS _window_start"])
            ),
        ),
        (
            "count of clicks by sku",
            "'sku' is already a column",
            lambda shop: shop.clicks.group_by("sku").windowed_by(MINUTE).count("sku"),
        ),
        (
            "windowed_by of to_stream of windows of clicks by sku",
            "_window_start is a grouping column, and the new windows have a column of that name",
            lambda shop: (
                shop.clicks.group_by("sku")
                .windowed_by(MINUTE)
                .count()
                .to_stream()
                .group_by("_window_start")
                .windowed_by(MINUTE)
            ),
        ),
    ],
)
def test_every_mistake_is_told_with_its_remedy(node: str, told: str, ask: Act) -> None:
    with pytest.raises(TopologyError) as caught:
        ask(Shop())
    message = str(caught.value)
    assert message.startswith(f"{node}: ")
    assert told in message
    assert "test_windows.py:" in message.splitlines()[-1]


@pytest.mark.parametrize(
    ("told", "act"),
    [
        (
            "aggregates of windows cannot be a view",
            lambda shop: shop.clicks.group_by("sku").windowed_by(MINUTE).count(),
        ),
        (
            "aggregates of windows cannot be a view",
            lambda shop: shop.clicks.group_by("sku").windowed_by(MINUTE).count().suppress(CLOSED),
        ),
        (
            "aggregates of windows cannot be a view",
            lambda shop: shop.clicks.group_by("sku").windowed_by(MINUTE).count().filter("count > 1").materialize("f"),
        ),
        (
            "aggregates of windows cannot be a view",
            lambda shop: shop.clicks.group_by("sku").windowed_by(VISITS).count().suppress(CLOSED).materialize("f"),
        ),
        (
            "it reads join of clicks with products again, which is not stored",
            lambda shop: (
                shop.clicks.join(shop.products, on="sku", select=["right.title"])
                .group_by("title")
                .windowed_by(MINUTE)
                .count()
                .materialize("f")
            ),
        ),
        (
            "the changes of a table are not retained, and windows read them again",
            lambda shop: (
                shop.orders.to_stream()
                .filter("amount > 1")
                .group_by("sku")
                .windowed_by(MINUTE)
                .count()
                .materialize("f")
            ),
        ),
    ],
)
def test_what_cannot_be_computed_again_is_stored(told: str, act: Act) -> None:
    with pytest.raises(TopologyError, match=r"call \.materialize") as caught:
        built(act)
    assert told in str(caught.value)


def test_sessions_hold_what_folds() -> None:
    def act(shop: Shop) -> None:
        visits = shop.clicks.group_by("sku").windowed_by(VISITS)
        visits.count().materialize("visits").suppress(CLOSED).materialize("ended")
        visits.aggregate(users="percentile(user_id, 0.5)").materialize("users")

    told = "sessions merge, so their aggregates must fold, and percentile\\(user_id, 0.5\\) needs all rows of its group"
    with pytest.raises(TopologyError, match=told):
        built(act)


def test_sessions_tell_what_they_keep_and_when_they_close() -> None:
    def act(shop: Shop) -> None:
        visits = shop.clicks.group_by("sku").windowed_by(VISITS).count()
        visits.materialize("visits").suppress(CLOSED).materialize("ended")

    made = built(act)
    visits, ended = made.table("visits").plan, made.table("ended").plan
    assert isinstance(visits, Window)
    assert (visits.kind, visits.size, visits.grace) == ("session", 300_000, 10_000)
    assert visits.fold is not None
    assert isinstance(ended, ClosedSessions)
    assert ended.source == Scan("visits", visits.key, visits.columns)
    assert Topology.from_dict(json.loads(json.dumps(made.to_dict()))) == made
    assert made.describe("visits") == (
        "visits\n"
        "  key: sku string, _window_start timestamp, _window_end timestamp\n"
        "  columns: count bigint\n"
        "  is: count(1) AS count by sku in sessions with gaps of at most 5m, folded; a session closes when stream time "
        "minus 310s of gap and grace passes its end; state: the stored rows; no record is read again\n"
        "    of: the records of topic clicks\n"
        "  a change of _landing/clicks costs: the new records, folded into the open sessions of their groups\n"
    )
    assert "those whose end is more than 310s before stream time" in made.describe("ended")


def test_a_view_beside_suppressed_windows_needs_those_it_reads() -> None:
    def act(shop: Shop) -> None:
        counted = shop.clicks.group_by("sku").windowed_by(MINUTE).count()
        counted.suppress(CLOSED).materialize("final")
        counted.filter("count > 1").materialize("several")

    with pytest.raises(TopologyError, match="aggregates of windows cannot be a view"):
        built(act)


def test_stored_changes_of_a_table_have_windows() -> None:
    def act(shop: Shop) -> None:
        changes = shop.orders.to_stream().filter("amount > 1")
        changes.materialize("changes")
        changes.group_by("sku").windowed_by(MINUTE).count().materialize("per_minute")

    assert [scan.table for scan in built(act).table("per_minute").inputs] == ["changes"]


def test_windows_travel_with_their_fingerprint() -> None:
    prints = set()
    for windows in (MINUTE, TimeWindows.of("1m", grace="11s"), SlidingWindows.of("1m", grace="10s")):
        builder = StreamsBuilder("shop")
        builder.stream("clicks", CLICKS).group_by("sku").windowed_by(windows).count().materialize("counted")
        prints.add(builder.build().fingerprint("counted"))
    assert len(prints) == 3
