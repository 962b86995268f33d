"""(j) Nexmark: an auction's persons, auctions and bids, and the queries that tables and windows can say.

The queries are those of https://github.com/nexmark/nexmark, and the generator keeps its proportions: of 50 events one
is a person, three are auctions, and 46 are bids, most of them on few hot auctions and by few hot bidders. Times are
milliseconds since 1970, and prices are whole cents, as there. Windows have no grace: the events are in order.
"""

from __future__ import annotations

import json
import random
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa  # type: ignore[import-untyped]  # has no types of its own

from spark.topology import Consumed, SessionWindows, StreamsBuilder, TimeWindows
from tests.benchmarks.duck import answer, rows, same
from tests.benchmarks.measure import Row, row
from tests.benchmarks.shop import produce
from tests.benchmarks.ticking import Parts, ticked

if TYPE_CHECKING:
    from spark.topology import Topology
    from spark.topology.handles import KStream, KTable
    from tests.benchmarks.measure import Bench

EVENTS = 1_000_000
CHUNK = 100_000  # events that are generated before they are sent
WARM = 10_000  # events of a run that only warms the engine up
SINCE = 1_767_225_600_000  # 2026-01-01, in milliseconds since 1970
PER_EPOCH = 50  # events: a person, three auctions, then bids
AUCTIONS = 3
ACTIVE_PERSONS, OPEN_AUCTIONS = 1000, 100  # the newest ones, of which an event that is not hot picks one
HOT_EVERY = 100  # of so many persons or auctions one is hot
CATEGORIES = (10, 11, 12, 13, 14)
CITIES = ("Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond", "Seattle", "Kent")
STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")

Event = dict[str, int | str]
"""An event's columns."""

COLUMNS = {
    "person": "name string, city string, state string, date_time bigint",
    "auction": (
        "item_name string, initial_bid bigint, reserve bigint, date_time bigint, expires bigint, seller bigint, "
        "category bigint"
    ),
    "bid": "auction bigint, bidder bigint, price bigint, channel string, date_time bigint",
}
"""By topic, the columns of a value. The key is `id`; Nexmark's bids have none, so here they are numbered."""


@dataclass
class Events:
    """The events so far, which are the same ones in every run: in topics, and as tables for DuckDB."""

    bench: Bench
    prefix: str
    count: int = 0
    tables: dict[str, list[pa.Table]] = field(default_factory=lambda: defaultdict(list))
    _rng: random.Random = field(default_factory=lambda: random.Random(9))
    _persons: int = 0
    _auctions: int = 0

    def send(self, count: int) -> None:
        """Generate so many further events, and send them."""
        end = self.count + count
        while self.count < end:
            self._send_some(range(self.count, min(self.count + CHUNK, end)))

    def _send_some(self, numbers: range) -> None:
        found: dict[str, list[Event]] = {topic: [] for topic in COLUMNS}
        for number in numbers:
            of = number % PER_EPOCH
            topic = "person" if of == 0 else "auction" if of <= AUCTIONS else "bid"
            found[topic].append(getattr(self, f"_{topic}")(number, SINCE + number))  # one event every millisecond
        self.count = numbers.stop
        for topic, events in found.items():
            values = ((event["id"], {name: event[name] for name in event if name != "id"}) for event in events)
            produce(self.bench.kafka, self.prefix + topic, ((key, json.dumps(v).encode()) for key, v in values))
            if events:
                self.tables[topic].append(pa.Table.from_pylist(events))

    def answer(self, sql: str) -> pa.Table:
        """DuckDB's answer over all events."""
        return answer(sql, {topic: pa.concat_tables(tables) for topic, tables in self.tables.items()})

    def _person(self, _: int, now: int) -> Event:
        self._persons += 1
        rng, number = self._rng, self._persons - 1
        name = f"{rng.choice('ABCDEFGHIJ')}. {rng.randrange(1000)}"
        return {"id": number, "name": name, "city": rng.choice(CITIES), "state": rng.choice(STATES), "date_time": now}

    def _auction(self, number: int, now: int) -> Event:
        self._auctions += 1
        rng, bid = self._rng, self._price()
        lasts = 1 + rng.randrange(2 * OPEN_AUCTIONS * PER_EPOCH // AUCTIONS)  # milliseconds: as long as it is open
        return {
            "id": self._auctions - 1,
            "item_name": f"item {number}",
            "initial_bid": bid,
            "reserve": bid + self._price(),
            "date_time": now,
            "expires": now + lasts,
            "seller": self._some_person(hot_of=4),
            "category": rng.choice(CATEGORIES),
        }

    def _bid(self, number: int, now: int) -> Event:
        rng, newest = self._rng, self._auctions - 1
        auction = newest // HOT_EVERY * HOT_EVERY
        if rng.random() < 0.5:
            auction = newest - rng.randrange(min(OPEN_AUCTIONS, newest + 1))
        return {
            "id": number,
            "auction": auction,
            "bidder": self._some_person(hot_of=4),
            "price": self._price(),
            "channel": f"channel-{rng.randrange(10_000)}",
            "date_time": now,
        }

    def _some_person(self, hot_of: int) -> int:
        newest = self._persons - 1
        if self._rng.randrange(hot_of) > 0:
            return newest // HOT_EVERY * HOT_EVERY
        return newest - self._rng.randrange(min(ACTIVE_PERSONS, newest + 1))

    def _price(self) -> int:
        return round(10 ** (self._rng.random() * 6) * 100)


@dataclass(frozen=True)
class Sources:
    """A builder, with the topics as a query declares them: each once, as a stream or as a table."""

    builder: StreamsBuilder
    prefix: str

    def stream(self, topic: str) -> KStream:
        """Every event."""
        return self.builder.stream(self.prefix + topic, _consumed(topic))

    def table(self, topic: str) -> KTable:
        """The events by their number."""
        return self.builder.table(self.prefix + topic, _consumed(topic))


def _consumed(topic: str) -> Consumed:
    return Consumed.json(key="id bigint", value=COLUMNS[topic], timestamp="date_time")


@dataclass(frozen=True)
class Query:
    """A query as a topology, whose last table is `answer`; the same rows as DuckDB's SQL; the columns to compare."""

    declare: Callable[[Sources], KStream | KTable]
    sql: str
    columns: tuple[str, ...]

    def topology(self, name: str, prefix: str) -> Topology:
        """The topology of that name."""
        builder = StreamsBuilder(name)
        self.declare(Sources(builder, prefix)).materialize("answer")
        return builder.build()


def q0(sources: Sources) -> KStream:
    """Pass through: every bid."""
    return sources.stream("bid").map_values(["auction", "bidder", "price", "date_time"])


def q1(sources: Sources) -> KStream:
    """Currency conversion: every bid, its price in euros; an exact decimal."""
    euros = "CAST(price * 0.908 AS decimal(23,3)) AS price"
    return sources.stream("bid").map_values(["auction", "bidder", euros, "date_time"])


def q2(sources: Sources) -> KStream:
    """Selection: the bids on every 123rd auction."""
    return sources.stream("bid").filter("auction % 123 = 0").map_values(["auction", "price"])


def q3(sources: Sources) -> KTable:
    """Local item suggestion: the auctions of a category whose sellers live in three states, with their sellers."""
    sellers = sources.table("person").filter("state IN ('OR', 'ID', 'CA')")
    auctions = sources.table("auction").filter("category = 10")
    return auctions.join(sellers, on="seller", select=["right.name", "right.city", "right.state"])


def q4(sources: Sources) -> KTable:
    """Average price for a category: of the highest bids of its auctions, while these were open."""
    select = [
        "left.auction",
        "left.price",
        "left.date_time",
        "right.category",
        "right.date_time AS opened",
        "right.expires",
    ]
    bids = sources.table("bid").join(sources.table("auction"), on="auction", select=select)
    valid = bids.filter("date_time BETWEEN opened AND expires")
    highest = valid.group_by("auction", "category").aggregate(final="max(price)").materialize("highest_bids")
    return highest.group_by("category").aggregate(average="avg(final)")


def q7(sources: Sources) -> KTable:
    """Highest bid: the bids with the highest price of each ten seconds.

    The highest price is an aggregate of windows over all bids, whose group is one constant. Each bid then looks up its
    window, so both the stream of bids and their table are read.
    """
    bids = sources.stream("bid")
    everything = bids.map_values(["price", "0 AS everything"]).group_by("everything")
    highest = everything.windowed_by(TimeWindows.of("10s", grace="0s")).aggregate(highest="max(price)")
    highest.materialize("highest_prices")
    on = ["0", *(f"timestamp_millis(date_time DIV 10000 * 10000 + {after})" for after in (0, 10_000))]
    select = ["left.auction", "left.bidder", "left.price", "left.date_time", "right.highest"]
    found = bids.to_table().materialize("bids").join(highest, on=on, select=select)
    return found.filter("price = highest")


def q8(sources: Sources) -> KTable:
    """Monitor new users: the persons who opened an auction in the ten seconds in which they registered."""
    windows = TimeWindows.of("10s", grace="0s")
    persons = sources.stream("person").group_by("id", "name").windowed_by(windows).count().materialize("registered")
    sellers = sources.stream("auction").group_by("seller").windowed_by(windows).count().materialize("sellers")
    return persons.join(sellers, on=["id", "_window_start", "_window_end"], select=["right.count AS auctions"])


def q11(sources: Sources) -> KTable:
    """User sessions: how many bids each bidder made before a pause of more than ten seconds."""
    return sources.stream("bid").group_by("bidder").windowed_by(SessionWindows.of("10s", grace="0s")).count("bids")


def q20(sources: Sources) -> KTable:
    """Expand bid with auction: the bids on auctions of a category, with these auctions."""
    auctions = sources.table("auction").filter("category = 10")
    return sources.table("bid").join(auctions, on="auction", select=["left.*", "right.item_name", "right.seller"])


BIDS = ("id", "auction", "bidder", "price", "date_time")
STARTS = "epoch_ms(_window_start) AS starts"
QUERIES = {
    "q0": Query(q0, "SELECT id, auction, bidder, price, date_time FROM bid", BIDS),
    "q1": Query(
        q1,
        "SELECT id, auction, bidder, CAST(CAST(price AS decimal(20,0)) * 0.908 AS decimal(23,3)) AS price, date_time "
        "FROM bid",
        BIDS,
    ),
    "q2": Query(q2, "SELECT id, auction, price FROM bid WHERE auction % 123 = 0", ("id", "auction", "price")),
    "q3": Query(
        q3,
        "SELECT a.id, p.name, p.city, p.state FROM auction a JOIN person p ON a.seller = p.id "
        "WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')",
        ("id", "name", "city", "state"),
    ),
    "q4": Query(
        q4,
        "SELECT category, avg(final) AS average FROM (SELECT a.id, a.category, max(b.price) AS final "
        "FROM auction a JOIN bid b ON a.id = b.auction WHERE b.date_time BETWEEN a.date_time AND a.expires "
        "GROUP BY a.id, a.category) GROUP BY category",
        ("category", "average"),
    ),
    "q7": Query(
        q7,
        "SELECT id, auction, bidder, price, date_time FROM bid "
        "QUALIFY price = max(price) OVER (PARTITION BY date_time // 10000)",
        BIDS,
    ),
    "q8": Query(
        q8,
        "SELECT p.id, p.name, p.date_time // 10000 * 10000 AS starts, count(*) AS auctions FROM person p "
        "JOIN auction a ON a.seller = p.id AND a.date_time // 10000 = p.date_time // 10000 GROUP BY ALL",
        ("id", "name", STARTS, "auctions"),
    ),
    "q11": Query(
        q11,
        "SELECT bidder, min(date_time) AS starts, count(*) AS bids FROM ("
        "SELECT bidder, date_time, count(*) FILTER (pause > 10000) OVER (PARTITION BY bidder ORDER BY date_time) AS s "
        "FROM (SELECT bidder, date_time, date_time - lag(date_time) OVER (PARTITION BY bidder ORDER BY date_time) "
        "AS pause FROM bid)) GROUP BY bidder, s",
        ("bidder", STARTS, "bids"),
    ),
    "q20": Query(
        q20,
        "SELECT b.id, b.auction, b.bidder, b.price, b.date_time, a.item_name, a.seller "
        "FROM bid b JOIN auction a ON b.auction = a.id WHERE a.category = 10",
        (*BIDS, "item_name", "seller"),
    ),
}


def run(bench: Bench) -> list[Row]:
    """Catch-up of all events by every query, then a tick of one event more in a hundred; turn by turn."""
    bench.engine_warm_up()
    warm = _created(bench, "nexmark-warm-")
    for count in (WARM, WARM // 100):  # a first step, and one of the changes
        warm.send(count)
        for name, query in QUERIES.items():
            ticked(bench, query.topology(f"nexmark_{name}_warm", "nexmark-warm-"))
    events = _created(bench, "nexmark-")
    count = bench.scaled(EVENTS)
    events.send(count)
    first: dict[str, list[Parts]] = defaultdict(list)
    more: dict[str, list[Parts]] = defaultdict(list)
    for turn in bench.turns("Nexmark"):
        topologies = {name: query.topology(f"nexmark_{name}_{turn}", "nexmark-") for name, query in QUERIES.items()}
        for name, topology in topologies.items():
            first[name].append(ticked(bench, topology))
        events.send(count // 100)
        for name, topology in topologies.items():
            more[name].append(ticked(bench, topology))
            found = _compared(bench, topology, QUERIES[name], events, f"Nexmark {name}")
            one, other = first[name][-1], more[name][-1]
            bench.say(
                f"Nexmark {name}: landing {one.landing:.1f} s, steps {one.steps:.1f} s; then landing "
                f"{other.landing:.1f} s, steps {other.steps:.1f} s; {found:,} rows are DuckDB's"
            )
            # The tables of all queries and turns would take tens of gigabytes.
            shutil.rmtree(Path(bench.lakehouse.table(topology.name, "answer")).parent)
    return [
        figure
        for name in QUERIES
        for figure in (
            *_rows(f"Nexmark {name}, catch-up of {count:,} events", first[name]),
            *_rows(f"Nexmark {name}, a tick of {count // 100:,} events", more[name]),
        )
    ]


def _created(bench: Bench, prefix: str) -> Events:
    for topic in COLUMNS:
        bench.kafka.create_topic(prefix + topic, 4)
    return Events(bench, prefix)


def _compared(bench: Bench, topology: Topology, query: Query, events: Events, what: str) -> int:
    """The number of rows, which are the same ones in our table and in DuckDB's answer."""
    stored = rows(bench.lakehouse.table(topology.name, "answer"))
    ours = answer(f"SELECT {', '.join(query.columns)} FROM ours", {"ours": stored})
    found = same(ours, events.answer(query.sql), what)
    assert found > 0, f"{what} has no rows: there was nothing to compare"
    return found


def _rows(what: str, parts: Iterable[Parts]) -> list[Row]:
    turns = list(parts)
    return [
        row(f"{what}: landing", [each.landing for each in turns], "s"),
        row(f"{what}: steps", [each.steps for each in turns], "s"),
        row(f"{what}: engine and client", [each.cpu for each in turns], "CPU-s"),
    ]
