"""What the killed ones work at: a topology with every kind of table, random changes, and oracles on dicts."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from spark.topology import Consumed, StreamsBuilder, TimeWindows

if TYPE_CHECKING:
    from spark.topology import Topology
    from tests.support.lake import Key, Row

ORDERS, CUSTOMERS, CLICKS = 200, 40, 10  # keys of each topic: few, so that they change again and again
COUNTRIES = ("at", "de", "ch", "it")
SKUS = ("pen", "ink", "cap", "bot")
PARTITIONS = 2
SINCE, APART = round(time.time() * 1000), 50  # milliseconds: the first record, and how much later each next one is
"""Kafka forgets by its records' times, after a day, a producer that has no transaction open: of one that writes old
times it takes a record again, when it is sent again behind a restart of the broker.
"""
WINDOW = 10_000  # milliseconds
MOST = 8  # records of a wave

Kind = Literal["plain", "committed", "aborted"]
KINDS: tuple[Kind, ...] = ("plain", "plain", "committed", "aborted")


@dataclass(frozen=True)
class Topics:
    """The names of the topics, those that the topology reads and those that it writes."""

    orders: str
    customers: str
    clicks: str
    joined: str
    by_country: str
    seen: str

    @property
    def read(self) -> tuple[str, str, str]:
        """Those that are landed."""
        return self.orders, self.customers, self.clicks

    @property
    def written(self) -> dict[str, str]:
        """Those that tables are published to, by table."""
        return {"joined": self.joined, "by_country": self.by_country, "seen": self.seen}


def topology(topics: Topics) -> Topology:
    """A foreign-key join with a fold over it, a stream, and windows of that."""
    builder = StreamsBuilder(f"kills-{topics.orders}")
    orders = builder.table(topics.orders, Consumed.json(key="order_id bigint", value="customer_id bigint, amount int"))
    person = Consumed.json(key="customer_id bigint", value="name string, country string")
    customers = builder.table(topics.customers, person)
    clicks = builder.stream(topics.clicks, Consumed.json(key="user bigint", value="sku string"))
    joined = orders.join(customers, on="customer_id", select=["left.amount", "right.name", "right.country"])
    joined.materialize("joined").to(topics.joined)
    by_country = joined.group_by("country").aggregate(orders="count(*)", total="sum(amount)")
    by_country.materialize("by_country").to(topics.by_country)
    clicks.filter("sku <> 'bot'").materialize("seen").to(topics.seen)
    windows = TimeWindows.of(f"{WINDOW}ms", grace="1d")  # nothing is late: the oracle counts, whatever the order
    clicks.group_by("sku").windowed_by(windows).count().materialize("counted")
    return builder.build()


@dataclass(frozen=True)
class Sent:
    """A record with a number of its own, by which it is known again."""

    number: int
    topic: str
    key: int
    value: Row | None

    @property
    def partition(self) -> int:
        """Equal keys, equal partitions."""
        return self.key % PARTITIONS

    @property
    def timestamp(self) -> int:
        """Milliseconds since 1970."""
        return SINCE + self.number * APART


@dataclass(frozen=True)
class Wave:
    """Records sent together: plainly, or in a transaction and its end."""

    kind: Kind
    records: tuple[Sent, ...]


def waves(topics: Topics, seed: int) -> Iterator[Wave]:
    """Changes without end, the same for equal seeds."""
    rng = random.Random(seed)
    number = 0
    while True:
        sent = []
        for _ in range(rng.randint(1, MOST)):
            sent.append(_changed(topics, rng, number))
            number += 1
        yield Wave(rng.choice(KINDS), tuple(sent))


def _changed(topics: Topics, rng: random.Random, number: int) -> Sent:
    topic = rng.choices(topics.read, (6, 1, 2))[0]
    gone = rng.random() < 0.15
    if topic == topics.orders:
        order: Row = {"customer_id": rng.randrange(CUSTOMERS + 4), "amount": rng.randrange(1000)}
        return Sent(number, topic, rng.randrange(ORDERS), None if gone else order)
    if topic == topics.customers:
        customer: Row = {"name": f"customer {number}", "country": rng.choice(COUNTRIES)}
        return Sent(number, topic, rng.randrange(CUSTOMERS), None if gone else customer)
    return Sent(number, topic, rng.randrange(CLICKS), {"sku": rng.choice(SKUS)})


@dataclass(frozen=True)
class Logged:
    """A record as a reader of committed records has it."""

    partition: int
    offset: int
    key: int
    value: Row | None
    timestamp: int
    number: int


Log = dict[str, list[Logged]]
"""By topic: its records, in the order of each partition."""


def newest(log: Iterable[Logged]) -> dict[Key, Row]:
    """The last row of every key that has one."""
    found: dict[Key, Row] = {}
    for one in log:
        found.pop(one.key, None)
        if one.value is not None:
            found[one.key] = one.value
    return found


def tables(topics: Topics, log: Log) -> dict[str, dict[Key, Row]]:
    """What every table must hold, by key; a stream's by partition and offset."""
    orders, customers = newest(log[topics.orders]), newest(log[topics.customers])
    joined: dict[Key, Row] = {
        key: {"amount": order["amount"], **customers[order["customer_id"]]}
        for key, order in orders.items()
        if order["customer_id"] in customers
    }
    by_country: dict[Key, Row] = {}
    for row in joined.values():
        group = by_country.get(row["country"], {"orders": 0, "total": 0})
        count, total = _int(group["orders"]) + 1, _int(group["total"]) + _int(row["amount"])
        by_country[row["country"]] = {"orders": count, "total": total}
    clicks = [(one, str((one.value or {})["sku"])) for one in log[topics.clicks]]
    counts = Counter((sku, one.timestamp // WINDOW * WINDOW) for one, sku in clicks)
    return {
        topics.orders: orders,
        topics.customers: customers,
        "joined": joined,
        "by_country": by_country,
        "seen": {(one.partition, one.offset): {"user": one.key, "sku": sku} for one, sku in clicks if sku != "bot"},
        "counted": {key: {"count": count} for key, count in counts.items()},
    }


def _int(value: object) -> int:
    assert isinstance(value, int)
    return value
