"""A shop in five waves of records, and its oracle: the newest record of every key in dicts, then the joins."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spark.engine.tick import Ticked, tick
from spark.topology import Consumed, StreamsBuilder, Topology
from tests.support import lake
from tests.support.lake import Key, Record, Row, send

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from resources.kafka import Kafka
    from spark.engine.attempt import Stepped
    from spark.engine.ports import Ports

Rows = dict[Key, Row]
DERIVED = ("enriched", "titled", "looked_up", "chained")
LATER = 1_700_000_000_000  # milliseconds: orders are newer than what they look up, so that theirs is the joined time
EARLIER = 1_600_000_000_000


@dataclass
class Topic:
    """A topic, and the newest record of each of its keys."""

    name: str
    kafka: Kafka
    partitions: int
    since: int
    columns: tuple[str, ...]
    newest: Rows = field(default_factory=dict)
    sent: int = 0
    moved: set[Key] = field(default_factory=set)
    """Keys with a record since this was last emptied."""

    def send(self, changes: Iterable[tuple[Key, Row | None]]) -> None:
        """Send the new row of each key, or its tombstone; a key stays in one partition."""
        records = []
        for key, row in changes:
            self.sent += 1
            at = self.since + self.sent
            partition = (key if isinstance(key, int) else len(str(key))) % self.partitions
            records.append(Record(key, row, partition, at))
            self.newest.pop(key, None)
            self.moved.add(key)
            if row is not None:
                self.newest[key] = {name: row.get(name) for name in self.columns} | {"_timestamp": at}
        send(self.kafka, self.name, *records)


@dataclass
class Shop:
    """The topics, the topology over them, and what its tables must hold."""

    kafka: Kafka
    orders: Topic
    customers: Topic
    products: Topic
    looked_up: Rows = field(default_factory=dict)
    """What a lookup-only join found is history: it is kept as the waves go by."""

    @property
    def topology(self) -> Topology:
        """Every kind of join over the three topics."""
        return topology(self.orders.name, self.customers.name, self.products.name)

    def names(self) -> list[str]:
        """The stored tables, in order."""
        return [table.name for table in self.topology.tables]

    def expected(self) -> dict[str, Rows]:
        """The rows of every table, by the records sent so far."""
        orders, customers, products = self.orders.newest, self.customers.newest, self.products.newest
        titled = {key: _titled(row, products) for key, row in orders.items()}
        self.looked_up = {
            key: row if key in self.orders.moved or key not in self.looked_up else self.looked_up[key]
            for key, row in titled.items()
        }
        for topic in (self.orders, self.customers, self.products):
            topic.moved.clear()
        allowed = {key: row for key, row in customers.items() if row["country"] not in ("XX", None)}
        positive = {key: row for key, row in orders.items() if isinstance(row["amount"], int) and row["amount"] > 0}
        named = _named(positive, allowed)
        return {
            self.orders.name: dict(orders),
            self.customers.name: dict(customers),
            self.products.name: dict(products),
            "enriched": _named(orders, customers),
            "titled": titled,
            "looked_up": dict(self.looked_up),
            "chained": {
                key: {"name": row["name"], "amount": row["amount"], "title": _titled(row, products)["title"]}
                | {"_timestamp": _titled(row, products)["_timestamp"]}
                for key, row in named.items()
            },
        }


def topology(orders: str, customers: str, products: str) -> Topology:
    """Foreign-key, global and lookup-only joins, and a chain of them through views."""
    builder = StreamsBuilder(f"shop-{orders}")
    o = builder.table(orders, Consumed.json(key="order_id bigint", value="customer_id bigint, sku string, amount int"))
    c = builder.table(
        customers, Consumed.json(key="customer_id bigint", value="name string, country string, note string")
    )
    p = builder.global_table(products, Consumed.json(key="sku string", value="title string"))
    o.join(c, on="customer_id", select=["left.*", "right.name"]).materialize("enriched")
    titled = ["left.customer_id", "left.sku", "right.title"]
    o.left_join(p, on="sku", select=titled).materialize("titled")
    o.left_join(p, on="sku", select=titled, drive="left").materialize("looked_up")
    named = o.filter("amount > 0").join(c.filter("country <> 'XX'"), on="customer_id", select=["left.*", "right.name"])
    named.left_join(p, on="sku", select=["left.name", "left.amount", "right.title"]).materialize("chained")
    return builder.build()


def _named(orders: Rows, customers: Rows) -> Rows:
    found = {key: customers.get(row["customer_id"]) for key, row in orders.items()}
    return {
        key: {**row, "name": found_row["name"], "_timestamp": _later(row, found_row)}
        for key, row in orders.items()
        if (found_row := found[key]) is not None
    }


def _titled(order: Row, products: Rows) -> Row:
    product = products.get(order["sku"])
    at = order["_timestamp"] if product is None else _later(order, product)
    title = None if product is None else product["title"]
    return {"customer_id": order["customer_id"], "sku": order["sku"], "title": title, "_timestamp": at}


def _later(one: Row, other: Row) -> int:
    first, second = one["_timestamp"], other["_timestamp"]
    assert isinstance(first, int)
    assert isinstance(second, int)
    return max(first, second)


def order(customer_id: int | None, sku: str | None, amount: int | None) -> Row:
    """An order's columns."""
    return {"customer_id": customer_id, "sku": sku, "amount": amount}


def customer(name: str | None, country: str | None = "AT", note: str | None = None) -> Row:
    """A customer's columns."""
    return {"name": name, "country": country, "note": note}


def open_shop(kafka: Kafka, topic: Callable[..., str]) -> Shop:
    """A shop with topics of its own and nothing in them."""
    return Shop(
        kafka,
        Topic(topic("orders", 2), kafka, 2, LATER, ("customer_id", "sku", "amount")),
        Topic(topic("customers"), kafka, 1, EARLIER, ("name", "country", "note")),
        Topic(topic("products", 2), kafka, 2, EARLIER, ("title",)),
    )


def first(shop: Shop) -> None:
    """Everything is new; order 4 looks for a customer that is not there, order 5 for none, order 7 is all null."""
    shop.customers.send([(1, customer("ada")), (2, customer("bob")), (3, customer("cid", "XX"))])
    shop.products.send([("tea", {"title": "Tea"}), ("mug", {"title": "Mug"})])
    shop.orders.send(
        [
            (1, order(1, "tea", 10)),
            (2, order(2, "mug", 20)),
            (3, order(3, "tea", 30)),
            (4, order(4, "tea", 40)),
            (5, order(None, None, 50)),
            (6, order(1, "tea", -5)),
            (7, order(None, None, None)),
            (8, order(2, "tea", 80)),
            (9, order(2, "mug", 90)),
            (10, order(1, "tea", 100)),
        ]
    )


def left(shop: Shop) -> None:
    """Orders alone move: changed, deleted, moved to another customer and to none, new, and broken."""
    shop.orders.send(
        [
            (1, order(1, "tea", 11)),
            (2, None),
            (8, order(1, "tea", 80)),
            (9, order(None, "mug", 90)),
            (11, order(2, "mug", 110)),
            (99, None),
        ]
    )
    send(shop.kafka, shop.orders.name, Record(10, b"broken"), Record(None, order(1, "tea", 1)))


def right(shop: Shop) -> None:
    """What orders look up moves alone: renamed, deleted, new, let in by its filter."""
    shop.customers.send([(1, customer("ada l.")), (2, None), (4, customer("dan")), (3, customer("cid", "FR"))])
    shop.products.send([("tea", {"title": "Green tea"}), ("mug", None)])


def both(shop: Shop) -> None:
    """Both sides of one row move in one span."""
    shop.orders.send([(3, order(1, "mug", 31)), (10, None), (5, order(2, "tea", 51)), (4, order(4, "tea", -1))])
    shop.customers.send([(1, customer("ada k.")), (3, None), (2, customer(None))])
    shop.products.send([("mug", {"title": "Big mug"}), ("pot", {"title": "Pot"})])


def nothing(shop: Shop) -> None:
    """A record without a key, and a customer of whom only what nobody reads changes: no joined row differs."""
    send(shop.kafka, shop.orders.name, Record(None, order(1, "tea", 1)))
    shop.customers.send([(1, customer("ada k.", note="moved house"))])


def noise(shop: Shop, rng: random.Random) -> None:
    """Records of twenty orders, five customers and five products, at random."""
    people, things = range(100, 105), [f"p{i}" for i in range(5)]
    shop.customers.send(
        [
            (key, None if rng.random() < 0.3 else customer(f"{key} {rng.random()}", rng.choice(["AT", "XX", None])))
            for key in people
            if rng.random() < 0.5
        ]
    )
    shop.products.send(
        [
            (key, None if rng.random() < 0.3 else {"title": f"{key} {rng.random()}"})
            for key in things
            if rng.random() < 0.5
        ]
    )
    shop.orders.send(
        [
            (
                key,
                None
                if rng.random() < 0.3
                else order(rng.choice([None, *people]), rng.choice([None, *things]), rng.randrange(-2, 5)),
            )
            for key in range(100, 120)
            for _ in range(rng.choice([0, 0, 1, 1, 2]))
        ]
    )


WAVES = {"first": first, "left": left, "right": right, "both": both, "nothing": nothing}


@dataclass(frozen=True)
class Wave:
    """The world after a wave: what its tick did, what must be there, and the lake as it was."""

    ticked: Ticked
    expected: dict[str, Rows]
    versions: dict[str, int]
    ports: Ports

    def stepped(self, name: str) -> Stepped:
        """What the tick did to a table."""
        return next(done for done in self.ticked.stepped if done.table.endswith(f"/{name}"))


@dataclass(frozen=True)
class Story:
    """All waves of a shop; nobody touches its lake, whoever needs one takes a copy."""

    shop: Shop
    waves: dict[str, Wave]

    @property
    def topology(self) -> Topology:
        """The shop's topology."""
        return self.shop.topology

    @property
    def last(self) -> Wave:
        """The world after the last wave."""
        return list(self.waves.values())[-1]


def tell(ports: Ports, kafka: Kafka, topic: Callable[..., str], snapshots: Path) -> Story:
    """Live through all waves, one tick each, and keep a copy of the lake after each."""
    shop, rng = open_shop(kafka, topic), random.Random(7)
    waves = {}
    for name, wave in WAVES.items():
        wave(shop)
        if name != "nothing":
            noise(shop, rng)
        ticked = tick(ports, shop.topology, run=name)
        assert ticked.failed == {}
        waves[name] = Wave(
            ticked,
            shop.expected(),
            {table: lake.versions(ports, shop.topology, table) for table in shop.names()},
            lake.copied(ports, shop.topology, snapshots / name),
        )
    return Story(shop, waves)
