"""Streams without windows and versioned tables on real topics and real Delta, wave by wave, against dicts."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from spark.engine import rebuild as rebuilding
from spark.engine.audit import audit
from spark.engine.dropped_records import DroppedRecords, dropped_records
from spark.engine.errors import InputChanged
from spark.engine.log.stored_table import StoredTable
from spark.engine.ports import Ports
from spark.engine.rebuild import rebuild
from spark.engine.step import step
from spark.engine.tick import tick
from spark.topology import Consumed, SessionWindows, StreamsBuilder, TimeWindows, Topology, Versioned
from tests.support import lake
from tests.support.lake import Record, Row, send

if TYPE_CHECKING:
    from collections.abc import Callable

    from resources.engine import Engine
    from resources.kafka import Kafka
    from resources.lakehouse import Lakehouse

SINCE = 1_700_000_000_000  # milliseconds since 1970


def record(key: object, at: int, value: dict[str, object] | None) -> Record:
    """A record, some milliseconds after the first."""
    return Record(key, value, timestamp=SINCE + at)


CLICKS: list[list[Record]] = [
    [
        record("ada", 10, {"sku": "pen", "price": 1.1}),
        record("ben", 20, {"sku": "pen", "price": 2.2}),
        record("ada", 30, {"sku": "ink", "price": None}),
    ],
    [record("ada", 40, None), record("cat", 50, {"sku": None, "price": 5.0})],  # no value; in no group
    [record("cat", 45, {"sku": "pen", "price": 3.3}), record("ben", 60, {"sku": "cap", "price": 0.1})],
    [],
]
VIEWS: list[list[Record]] = [
    [record("dan", 35, {"sku": "ink", "price": 0.0})],
    [],
    [record("dan", 55, {"sku": "cap", "price": 0.0}), record("eve", 15, {"sku": "pen", "price": 9.9})],
    [record("eve", 70, {"sku": "ink", "price": 0.3})],
]
PRICES: list[list[Record]] = [
    [record("pen", 100, {"price": 1}), record("ink", 100, {"price": 7})],
    [record("pen", 90, {"price": 2}), record("ink", 120, None)],  # late: no update
    [record("ink", 110, {"price": 8}), record("pen", 100, {"price": 3})],  # late, behind a tombstone; a tie
    [record("ink", 130, {"price": 9})],
]


def topology(clicks: str, views: str, prices: str) -> Topology:
    """Counts of two merged streams, the newest click per product, and a versioned table that a count follows."""
    builder = StreamsBuilder(f"streams-{clicks}")
    click = Consumed.json(key="user string", value="sku string, price double")
    c, v = builder.stream(clicks, click), builder.stream(views, click)
    p = builder.table(prices, Consumed.json(key="sku string", value="price int"), versioned=Versioned("1d"))
    both = c.merge(v)
    both.group_by("sku").aggregate(seen="count(*)", paid="sum(price)", least="min(price)").materialize("seen")
    both.select_key("sku").map_values(["user"]).to_table().materialize("last_seen")
    c.filter("price > 1").to_table().materialize("clicked")
    c.select_key("sku").to_table().left_join(p, select=["left.user", "right.price"]).materialize("priced")
    p.select_key("price").materialize("by_price")
    p.to_stream().group_by("sku").count("changes").materialize("price_changes")
    p.to_stream().filter("price IS NULL OR price <> 2").to_table().materialize("prices_but_two")
    return builder.build()


def seen(sent: list[Record]) -> dict[object, Row]:
    """The groups of all records so far; a sum of doubles is rounded, since it depends on the order of additions."""
    prices: dict[object, list[float | None]] = {}
    for row in (sold(record) for record in sent):
        if row is not None:
            prices.setdefault(row["sku"], []).append(row["price"])
    known = {sku: [price for price in found if price is not None] for sku, found in prices.items()}
    return {
        sku: {
            "seen": len(found),
            "paid": round(sum(known[sku]), 9) if known[sku] else None,
            "least": min(known[sku], default=None),
        }
        for sku, found in prices.items()
    }


def sold(record: Record) -> dict[str, Any] | None:
    """The value of a click on a product."""
    return record.value if isinstance(record.value, dict) and record.value["sku"] is not None else None


def newest(sent: list[Record]) -> dict[object, Any]:
    """The newest record of every key by time, the later offset of equal times."""
    found: dict[object, Any] = {}
    for one in sorted(sent, key=lambda record: record.timestamp):
        found.pop(one.key, None)
        if one.value is not None:
            found[one.key] = one.value
    return found


def test_streams_and_versioned_tables_follow_their_topics_and_every_version_is_its_query(
    engine: Engine, kafka: Kafka, lakehouse: Lakehouse, topic: Callable[..., str]
) -> None:
    names = topic("clicks"), topic("views"), topic("prices")
    made, ports = topology(*names), Ports(engine, lakehouse, kafka)
    changes: Counter[object] = Counter()
    but_two: dict[object, Any] = {}
    clicks: list[Record] = []
    views: list[Record] = []
    prices: list[Record] = []
    price: dict[object, Any] = {}
    for number, waves in enumerate(zip(CLICKS, VIEWS, PRICES, strict=True)):
        for name, sent, wave in zip(names, (clicks, views, prices), waves, strict=True):
            send(kafka, name, *wave)
            sent += wave
        assert tick(ports, made, f"wave {number}").failed == {}
        both = clicks + views
        found = lake.rows(ports, made, "seen")
        assert {
            sku: row | {"paid": round(row["paid"], 9) if isinstance(row["paid"], float) else None}
            for sku, row in found.items()
        } == seen(both)
        last = sorted((one for one in both if sold(one)), key=lambda one: one.timestamp)
        assert lake.rows(ports, made, "last_seen") == {(sold(one) or {})["sku"]: {"user": one.key} for one in last}
        dear = {one.key: one.value for one in clicks if isinstance(one.value, dict) and (one.value["price"] or 0) > 1}
        assert lake.rows(ports, made, "clicked") == dear
        was, price = price, newest(prices)
        for sku, row in price.items():
            # Also a late record of equal content moves nothing; a tie of timestamps is the later offset's.
            if was.get(sku) != row:
                changes[sku] += 1
                but_two |= {} if row == {"price": 2} else {sku: row}
        but_two = {sku: row for sku, row in but_two.items() if sku in price or sku not in was}
        assert lake.rows(ports, made, names[2]) == price
        assert lake.rows(ports, made, "price_changes") == {sku: {"changes": count} for sku, count in changes.items()}
        assert lake.rows(ports, made, "prices_but_two") == but_two
        assert lake.rows(ports, made, "by_price") == {row["price"]: {"sku": sku} for sku, row in price.items()}
        assert lake.rows(ports, made, "priced") == {
            (sold(one) or {})["sku"]: {"user": one.key, "price": price.get((sold(one) or {})["sku"], {}).get("price")}
            for one in clicks
            if sold(one)
        }
        for table in made.tables[number % 2 :: 2] if number > 1 else ():  # each once: an audit costs more than a step
            assert audit(ports, made, table).holds, table.name
    assert {done.outcome for done in tick(ports, made, "again").stepped} == {"idle"}
    rebuilt = rebuild(ports, made, made.table("seen"), "rebuild")
    assert (rebuilt.inserted, rebuilt.deleted) == (0, 0)


def followed(items: str, value: str) -> Topology:
    """How often each item changed, of a topic with some columns."""
    builder = StreamsBuilder(f"followed-{items}")
    i = builder.table(items, Consumed.json(key="id bigint", value=value))
    i.to_stream().group_by("id").count("changes").materialize("changes")
    return builder.build()


def test_the_changes_of_a_table_begin_anew_where_it_was_replaced(
    engine: Engine, kafka: Kafka, lakehouse: Lakehouse, topic: Callable[..., str]
) -> None:
    name, ports = topic("items"), Ports(engine, lakehouse, kafka)
    before, after = followed(name, "v int"), followed(name, "note string")
    assert tick(ports, before, "nothing yet").failed == {}
    assert lake.rows(ports, before, "changes") == {}
    send(kafka, name, Record(1, {"v": 1}))
    assert tick(ports, before, "one").failed == {}
    send(kafka, name, Record(1, {"v": 2}), Record(2, {"v": 1}))
    assert tick(ports, before, "two").failed == {}
    assert lake.rows(ports, before, "changes") == {1: {"changes": 2}, 2: {"changes": 1}}
    assert audit(ports, before, before.table("changes")).holds
    rebuild(ports, after, after.table(name), "rebuild")
    send(kafka, name, Record(2, {"note": "new"}))
    failed = tick(ports, after, "three").failed["changes"]
    assert isinstance(failed, InputChanged)
    assert "its changes end there" in str(failed)
    rebuild(ports, after, after.table("changes"), "rebuild")
    assert lake.rows(ports, after, "changes") == {1: {"changes": 1}, 2: {"changes": 2}}
    assert audit(ports, after, after.table("changes")).holds


def told(items: str, makers: str) -> Topology:
    """The changes of a join as a stored stream, and the newest of them, which are the join's rows."""
    builder = StreamsBuilder(f"told-{items}")
    i = builder.table(items, Consumed.json(key="id bigint", value="maker string, v int"))
    m = builder.table(makers, Consumed.json(key="maker string", value="country string"))
    named = i.left_join(m, on="maker", select=["left.*", "right.country"]).filter("v >= 0").materialize("named")
    changes = named.to_stream().materialize("changes")
    changes.to_table().materialize("newest")
    return builder.build()


@pytest.mark.thorough
def test_the_newest_of_the_stored_changes_of_a_table_are_its_rows(
    engine: Engine, kafka: Kafka, lakehouse: Lakehouse, topic: Callable[..., str]
) -> None:
    items, makers, ports = topic("items"), topic("makers"), Ports(engine, lakehouse, kafka)
    made = told(items, makers)
    waves: list[tuple[list[Record], list[Record]]] = [
        ([record(1, 0, {"maker": "bic", "v": 1}), record(2, 1, {"maker": "bic", "v": 1})], []),
        ([], [record("bic", 2, {"country": "FR"})]),  # one record, and two rows change
        ([record(1, 3, None)], []),
        # Here the newest changes follow for the first time: a row went whose older change they see with that.
        ([record(3, 4, {"maker": "bic", "v": 1})], []),
        ([record(3, 5, None), record(2, 6, {"maker": "bic", "v": 2})], []),
        ([record(3, 3, {"maker": "bic", "v": 3})], [record("bic", 1, {"country": "US"})]),  # by offset, whatever time
        ([record(2, 7, None)], []),
    ]
    for number, (one, other) in enumerate(waves):
        send(kafka, items, *one)
        send(kafka, makers, *other)
        lake.land_all(ports, made)
        lake.step_all(ports, made, items, makers, "named")
        if number in (2, 6):  # several commits at once
            lake.step_all(ports, made, "changes", "newest")
            assert lake.rows(ports, made, "newest") == lake.rows(ports, made, "named")
            assert audit(ports, made, made.table("changes")).holds
            assert audit(ports, made, made.table("newest")).holds
    assert lake.rows(ports, made, "newest") == {3: {"maker": "bic", "v": 3, "country": "US"}}
    rebuilt = rebuild(ports, made, made.table("changes"), "rebuild")
    assert (rebuilt.inserted, rebuilt.updated, rebuilt.deleted) == (0, 0, 0)
    assert step(ports, made, made.table("newest"), "behind it").outcome in ("idle", "positioned", "stepped")
    assert audit(ports, made, made.table("newest")).holds


def doubled(items: str, value: str) -> Topology:
    """The stored changes of what is computed of items, by an expression whose type Spark alone knows."""
    builder = StreamsBuilder(f"doubled-{items}")
    i = builder.table(items, Consumed.json(key="id bigint", value="v int")).map_values([f"{value} AS w"])
    i.materialize("computed").to_stream().materialize("changes").to_table().materialize("newest")
    return builder.build()


@pytest.mark.thorough
def test_the_stored_changes_of_a_table_that_was_replaced_go_on_behind_a_rebuild(
    engine: Engine, kafka: Kafka, lakehouse: Lakehouse, topic: Callable[..., str]
) -> None:
    items, ports = topic("items"), Ports(engine, lakehouse, kafka)
    before, after = doubled(items, "v * 2"), doubled(items, "v * 2.5")
    send(kafka, items, Record(1, {"v": 1}))
    assert tick(ports, before, "before").failed == {}
    rebuild(ports, after, after.table("computed"), "rebuild")  # of another type: replaced whole
    assert "its changes end there" in str(tick(ports, after, "stopped").failed["changes"])
    for table in ("changes", "newest"):
        rebuild(ports, after, after.table(table), "rebuild")
    send(kafka, items, Record(2, {"v": 2}))
    assert tick(ports, after, "on").failed == {}
    assert lake.rows(ports, after, "newest") == lake.rows(ports, after, "computed")
    assert all(audit(ports, after, table).holds for table in after.tables)


def kept(clicks: str, cheapest: int) -> Topology:
    """Dear clicks, as a stored stream and in sessions."""
    builder = StreamsBuilder(f"kept-{clicks}")
    dear = builder.stream(clicks, Consumed.json(key="user string", value="price int")).filter(f"price >= {cheapest}")
    dear.materialize("dear")
    dear.group_by("user").windowed_by(SessionWindows.of("5ms", grace="0ms")).count().materialize("visits")
    return builder.build()


@pytest.mark.thorough
def test_a_rebuild_of_what_keeps_time_that_died_behind_its_anchor_is_resumed_by_a_step(
    engine: Engine, kafka: Kafka, lakehouse: Lakehouse, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, ports = topic("clicks"), Ports(engine, lakehouse, kafka)
    made, changed = kept(name, 2), kept(name, 1)
    send(kafka, name, *(record("ada", at, {"price": price}) for at, price in ((1, 1), (3, 2), (4, 3))))
    assert tick(ports, made, "before").failed == {}

    def died(*_: object) -> None:
        raise InterruptedError

    for table in changed.tables:
        with monkeypatch.context() as patched:
            patched.setattr(rebuilding, "_rebuilt", died)
            with pytest.raises(InterruptedError):
                rebuild(ports, changed, table, "dies")
        assert step(ports, changed, table, "resumed").outcome == "stepped"
        assert audit(ports, changed, table).holds
    assert [row["price"] for row in lake.listed(lake.path(ports, changed, "dear"))] == [1, 2, 3]
    assert [row["count"] for row in lake.listed(lake.path(ports, changed, "visits"))] == [3]


@pytest.mark.parametrize("wider", [False, True])
def test_a_rebuild_by_a_definition_of_other_columns_replaces_a_stream_and_windows(
    engine: Engine, kafka: Kafka, lakehouse: Lakehouse, topic: Callable[..., str], wider: bool
) -> None:
    name, ports = topic("clicks"), Ports(engine, lakehouse, kafka)

    def clicks(price: str, *more: str) -> Topology:
        builder = StreamsBuilder(f"columns-{name}")
        stream = builder.stream(name, Consumed.json(key="user string", value="price int"))
        stream.map_values([f"{price} AS price", *more]).materialize("priced")
        most = {"most": "max(price)"} if more else {}
        windows = stream.group_by("user").windowed_by(TimeWindows.of("5ms", grace="0ms"))
        windows.aggregate(total=f"sum({price})", **most).materialize("totals")
        return builder.build()

    made = clicks("price")
    changed = clicks("CAST(price AS double)") if wider else clicks("price", "price * 2 AS twice")
    send(kafka, name, *(record("ada", at, {"price": price}) for at, price in ((1, 1), (3, 2), (6, 3))))
    assert tick(ports, made, "before").failed == {}
    for table in changed.tables:
        rebuild(ports, changed, table, "rebuild")
        assert audit(ports, changed, table).holds
    [first, *_] = lake.listed(lake.path(ports, changed, "priced"))
    assert (type(first["price"]) is float) == wider
    assert first.get("twice") == (None if wider else 2)
    send(kafka, name, record("ada", 12, {"price": 4}))
    assert tick(ports, changed, "on").failed == {}
    assert all(audit(ports, changed, table).holds for table in changed.tables)


def test_late_records_are_told_whatever_their_clock_said(
    engine: Engine, kafka: Kafka, lakehouse: Lakehouse, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic("clicks", config={"message.timestamp.after.max.ms": str(2**63 - 1)})
    ports = Ports(engine, lakehouse, kafka)
    builder = StreamsBuilder(f"far-{name}", message_timestamp_after_max_ms=None)
    clicks = builder.stream(name, Consumed.json(key="user string", value="price int"))
    clicks.group_by("user").windowed_by(TimeWindows.of("5ms", grace="0ms")).count().materialize("counted")
    made = builder.build()
    far = 1_000_000_000_000_000  # milliseconds: the year 33658
    send(kafka, name, Record("ada", {"price": 1}, timestamp=far), record("ada", 1, {"price": 1}))
    assert tick(ports, made, "far").failed == {}
    (dropped,) = dropped_records(ports, made, made.table("counted"), limit=9).records
    assert (dropped.offset, dropped.timestamp) == (1, "2023-11-14 22:13:20.001")
    assert str(dropped.stream_time).startswith("+33658-09-27")
    # Where the first commit is no longer told, nobody knows what it began with.
    send(kafka, name, record("ada", 2, None))
    assert tick(ports, made, "again").failed == {}
    commits = list(StoredTable(f"{made.name}/counted", lake.path(ports, made, "counted")).commits())
    with monkeypatch.context() as patched:
        patched.setattr(StoredTable, "commits", lambda *_, **__: iter(commits[:-1]))
        assert dropped_records(ports, made, made.table("counted"), limit=9) == DroppedRecords(
            [], {"late": 1, "null value": 1}
        )
        patched.setattr(StoredTable, "commits", lambda *_, **__: iter(commits))
        told = dropped_records(ports, made, made.table("counted"), limit=9)
        assert ([one.reason for one in told.records], told.older) == (["null value", "late"], {})
