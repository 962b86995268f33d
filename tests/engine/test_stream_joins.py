"""Stream joins on real topics and real Delta, tick by tick: what is emitted, remembered, audited and replayed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from spark.engine.audit import audit
from spark.engine.dropped_records import dropped_records
from spark.engine.ports import Ports
from spark.engine.rebuild import rebuild
from spark.engine.tick import tick
from spark.topology import Consumed, JoinWindows, StreamsBuilder, Topology, Versioned
from tests.support import lake
from tests.support.lake import Record, send

if TYPE_CHECKING:
    from collections.abc import Callable

    from resources.engine import Engine
    from resources.kafka import Kafka
    from resources.lakehouse import Lakehouse

SINCE = 1_700_000_000_000  # milliseconds since 1970
TABLES = ("either", "priced", "charged", "titled", "pens", "pens_bought", "sold")


def record(key: str | None, at: int, value: dict[str, object] | None) -> Record:
    """A record, some milliseconds after the first."""
    return Record(key, value, timestamp=SINCE + at)


Wave = dict[str, list[Record]]
WAVES: list[Wave] = [
    {
        "prices": [record("pen", 0, {"price": 1}), record("pen", 25, {"price": 2})],
        "fees": [record("pen", 5, {"fee": 1})],
        "products": [record("pen", 0, {"title": "A pen"})],
        "clicks": [
            record("ada", 10, {"sku": "pen", "n": 1}),
            record("ben", 20, {"sku": "ink", "n": 2}),
            record("ada", 30, {"sku": "pen", "n": 3}),
            record(None, 31, {"sku": "pen", "n": 4}),
            record("eve", 32, None),
        ],
        "buys": [record("ada", 15, {"paid": 1})],
    },
    {
        "prices": [record("ink", 40, {"price": 7}), record("pen", 50, None)],
        "fees": [record("pen", 28, {"fee": 2}), record("pen", 50, {"fee": 3})],
        "products": [record("ink", 0, {"title": "An ink"})],
        "clicks": [record("cat", 45, {"sku": "ink", "n": 5}), record("ada", 60, {"sku": "pen", "n": 6})],
        "buys": [record("cat", 47, {"paid": 2}), record("dan", 61, {"paid": 3})],
    },
    # Behind a restart: a record that is late, one that is not yet, and a buy whose click came two ticks ago.
    {
        "clicks": [record("ben", 44, {"sku": "pen", "n": 7}), record("eve", 46, {"sku": "ink", "n": 8})],
        "buys": [record("ada", 55, {"paid": 4})],
    },
    {},
    {"buys": [record("zoe", 90_000, {"paid": 5})]},
]


def topology(names: dict[str, str]) -> Topology:
    """Clicks and buys within 10 ms of each other, clicks with prices, fees, titles, and a join of a stored stream."""
    builder = StreamsBuilder(f"joins-{names['clicks']}")
    clicks = builder.stream(names["clicks"], Consumed.json(key="user string", value="sku string, n int"))
    buys = builder.stream(names["buys"], Consumed.json(key="user string", value="paid int"))
    prices = builder.table(names["prices"], Consumed.json(key="sku string", value="price int"))
    fees = builder.table(names["fees"], Consumed.json(key="sku string", value="fee int"), versioned=Versioned("1d"))
    products = builder.global_table(names["products"], Consumed.json(key="sku string", value="title string"))
    near = JoinWindows.of("10ms", grace="5ms")
    clicks.outer_join(buys, within=near, select=["left.n", "right.paid"]).materialize("either")
    clicks.left_join(prices.filter("price > 0"), on="sku", select=["left.n", "right.price"]).materialize("priced")
    clicks.left_join(fees, on="sku", grace="10ms", select=["left.n", "right.fee"]).materialize("charged")
    titled = clicks.join(products, on="sku", select=["left.n", "left.sku", "right.title"])
    titled.filter("n <> 3").materialize("titled")
    pens = clicks.filter("sku = 'pen'").materialize("pens")
    pens.join(buys, within=near, select=["left.n", "right.paid"]).materialize("pens_bought")
    pens.group_by("sku").count("clicks").materialize("sold")
    return builder.build()


@pytest.fixture(scope="module")
def played(
    engine: Engine, kafka: Kafka, lakehouse: Lakehouse, topic: Callable[..., str]
) -> tuple[Ports, Topology, list[dict[str, list[tuple[object, ...]]]]]:
    """The waves, a tick each, and what every table gained in it."""
    config = {"retention.ms": "-1"}
    names = {name: topic(name, config=config) for name in ("clicks", "buys", "prices", "fees", "products")}
    ports, made = Ports(engine, lakehouse, kafka), topology(names)
    gained: list[dict[str, list[tuple[object, ...]]]] = []
    seen: dict[str, set[tuple[object, ...]]] = {name: set() for name in TABLES}
    for number, wave in enumerate(WAVES):
        for name, sent in wave.items():
            send(kafka, names[name], *sent)
        assert tick(ports, made, f"run-{number}").failed == {}
        gained.append({})
        for name in TABLES:
            rows = set(map(shown, lake.listed(lake.path(ports, made, name))))
            gained[-1][name] = sorted(rows - seen[name], key=repr)
            assert name == "sold" or seen[name] <= rows, "a stream only grows"
            seen[name] = rows
    return ports, made, gained


def shown(row: lake.Row) -> tuple[object, ...]:
    """A row without columns of ours, but with its event time."""
    at = row["_timestamp"]
    assert isinstance(at, int)
    return (*(value for name, value in row.items() if not name.startswith("_")), at - SINCE)


Played = tuple[Ports, Topology, list[dict[str, list[tuple[object, ...]]]]]


def test_pairs_are_emitted_with_the_later_record_and_lone_records_when_time_closes_them(played: Played) -> None:
    _, _, gained = played
    assert [wave["either"] for wave in gained] == [
        [("ada", 1, 1, 15), (None, 4, None, 31)],
        sorted([("ada", 3, None, 30), ("ben", 2, None, 20), ("cat", 5, 2, 47)], key=repr),
        [("ada", 6, 4, 60)],
        [],
        sorted([("dan", None, 3, 61), ("eve", 8, None, 46)], key=repr),
    ]


def test_a_record_sees_a_topics_table_at_its_own_place_and_a_global_one_at_the_pin(played: Played) -> None:
    _, _, gained = played
    assert [wave["priced"] for wave in gained][:3] == [
        sorted([("ada", 1, 1, 10), ("ben", 2, None, 20), ("ada", 3, 2, 30), (None, 4, 2, 31)], key=repr),
        sorted([("cat", 5, 7, 45), ("ada", 6, None, 60)], key=repr),
        sorted([("ben", 7, None, 44), ("eve", 8, 7, 46)], key=repr),
    ]
    assert [wave["titled"] for wave in gained][:2] == [
        sorted([("ada", 1, "pen", "A pen", 10), (None, 4, "pen", "A pen", 31)], key=repr),
        sorted([("cat", 5, "ink", "An ink", 45), ("ada", 6, "pen", "A pen", 60)], key=repr),
    ]


def test_a_record_sees_a_versioned_table_as_of_its_own_time_once_its_grace_is_over(played: Played) -> None:
    ports, made, gained = played
    assert [wave["charged"] for wave in gained] == [
        [("ada", 1, 1, 10), ("ben", 2, None, 20)],
        sorted([("ada", 3, 2, 30), (None, 4, 2, 31), ("cat", 5, None, 45)], key=repr),
        [("ben", 7, 2, 44), ("eve", 8, None, 46)],  # too late to wait, and looked up all the same
        [],
        [],
    ]
    position = lake.state(ports, made, "charged").position
    assert list(position.seen.values()) == [(SINCE + 50) * 1000]
    assert position.dropped == {"null value": 1}


def test_a_stored_stream_is_joined_and_counted_like_a_topic(played: Played) -> None:
    ports, made, gained = played
    assert [wave["pens_bought"] for wave in gained][:3] == [[("ada", 1, 1, 15)], [], [("ada", 6, 4, 60)]]
    assert lake.rows(ports, made, "sold") == {"pen": {"clicks": 5}}


def test_stream_time_and_what_was_dropped_are_in_the_position(played: Played) -> None:
    ports, made, _ = played
    either = lake.state(ports, made, "either").position
    assert either.time == (SINCE + 90_000) * 1000
    assert either.dropped == {"null value": 1, "late": 1}
    assert lake.state(ports, made, "titled").position.dropped == {"null value": 1}
    # A tick that emits nothing moves the time on: a filter hides no record from the clock.
    assert lake.state(ports, made, "pens_bought").position.time == (SINCE + 90_000) * 1000


def test_what_was_dropped_is_listed_with_the_reason(played: Played) -> None:
    ports, made, _ = played
    every = dropped_records(ports, made, made.table("either"), 9).records
    found = [(one.topic.partition("-")[0], one.offset, one.reason) for one in every]
    assert found == [("clicks", 7, "late"), ("clicks", 4, "null value")]
    [newest] = dropped_records(ports, made, made.table("either"), 1).records
    assert newest.version > every[1].version
    assert dropped_records(ports, made, made.table("sold"), 9).records == []


@pytest.mark.parametrize("name", [name for name in TABLES if name != "sold"])
def test_a_version_is_what_its_span_yields(played: Played, name: str) -> None:
    ports, made, _ = played
    newest = lake.versions(ports, made, name)
    for version in range(1 if name == "priced" else newest, newest + 1):  # an audit costs what a step does
        audited = audit(ports, made, made.table(name), version)
        assert audited.holds, (version, audited.sample)


@pytest.mark.thorough
def test_a_rebuild_replays_the_spans_and_puts_right_what_somebody_broke(played: Played) -> None:
    ports, made, _ = played
    before = sorted(map(shown, lake.listed(lake.path(ports, made, "either"))), key=repr)
    session = ports.engine.session()
    session.sql(f"DELETE FROM delta.`{lake.path(ports, made, 'either')}` WHERE n = 3").collect()
    session.sql(f"UPDATE delta.`{lake.path(ports, made, 'either')}` SET paid = 9 WHERE n = 5").collect()
    session.stop()
    table = made.table("either")
    assert audit(ports, made, table).differing == 2
    done = rebuild(ports, made, table, "rebuild")
    assert (done.inserted, done.updated, done.deleted) == (1, 1, 0)
    assert sorted(map(shown, lake.listed(lake.path(ports, made, "either"))), key=repr) == before
    assert audit(ports, made, table).holds
    assert {done.outcome for done in tick(ports, made, "again").stepped} == {"idle"}
