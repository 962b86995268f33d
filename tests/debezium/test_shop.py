"""Two related tables of a PostgreSQL, by the events that the real connector wrote, and their join: what it had."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from spark.engine.ports import Ports
from spark.engine.tick import tick
from spark.topology import Consumed, StreamsBuilder
from tests.debezium.recording import recording
from tests.debezium.values import value
from tests.support import lake

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from resources.engine import Engine
    from resources.kafka import Kafka
    from resources.lakehouse import Lakehouse
    from spark.topology import Topology
    from tests.debezium.recording import Event, Format, Statement

Rows = dict[Any, dict[str, Any]]

# Types as they are in the end: a narrower value is read as the wider type. A renamed column has both its names.
CUSTOMERS = (
    "name string, country string, land string, email string, score bigint, credit decimal(12,2), note string, "
    "profile string, photo binary, ratings array<int>, tags array<string>, attributes map<string,string>"
)
ORDERS = "customer_id bigint, amount decimal(14,4), placed timestamp, status string, comment string, channel string"
ACCOUNTS = "balance decimal(12,2), memo string"
JOINED = ("name", "score", "note", "photo", "ratings", "attributes")
"""Columns of a customer that the join has."""
NEVER_KNOWN = "fees"
"""A numeric[] that is not logged arrives as null, which nothing tells from a null: it is not declared."""

DEFAULT = "a column is added with a default, which its old rows have at once"
WRITTEN = "every row is written once more, so that the default arrives"
TRUNCATE = "truncate of one table"


@dataclass
class Shop:
    """The topics, as the connector would have filled them so far, and the topology over them."""

    ports: Ports
    kafka: Kafka
    topology: Topology
    topics: dict[str, str]
    events: list[Event] = field(default_factory=list)
    """Events that are not sent yet."""

    def send(self, count: int) -> None:
        """Send the next events."""
        producer = self.kafka.producer()
        for event in self.events[:count]:
            producer.produce(self.topics[event.topic], key=event.key, value=event.value, headers=list(event.headers))
        assert producer.flush(30) == 0
        del self.events[:count]

    def tick(self) -> None:
        """Land and step everything."""
        done = tick(self.ports, self.topology, "test")
        assert done.failed == {}
        assert sum(landed.errors for landed in done.landed) == 0

    def holds(self, statement: Statement) -> None:
        """Check every table, and the join, against what the database had."""
        expected = _expected(statement)
        for name, table in zip(("customers", "orders", "accounts", "joined"), self._names(), strict=True):
            found = lake.rows(self.ports, self.topology, table)
            columns = next(iter(expected[name].values()), {})
            assert {key: _read(row, columns) for key, row in found.items()} == expected[name], (statement.name, name)

    def _names(self) -> list[str]:
        return [*self.topics.values(), "joined"]


def _read(row: dict[str, Any], columns: Collection[str]) -> dict[str, Any]:
    """A row of ours, under the columns that the database has now."""
    found = dict(row)
    if "land" in row:
        found["country"] = found["land"] if found["land"] is not None else found["country"]
    for name, of in found.items():
        if name in ("attributes", "customer_attributes") and of is not None:  # pairs, as Arrow gives a map
            found[name] = dict(of)
    return {name: found[name] for name in columns}


def _expected(statement: Statement) -> dict[str, Rows]:
    tables = {name: _rows(statement, name) for name in ("customers", "orders", "accounts")}
    joined: Rows = {}
    for key, order in tables["orders"].items():
        customer = tables["customers"].get(order["customer_id"], {})
        joined[key] = order | {f"customer_{name}": customer.get(name) for name in (*JOINED, "country")}
    return tables | {"joined": joined}


def _rows(statement: Statement, name: str) -> Rows:
    table = statement.tables[name]
    key = {"customers": ("id",), "orders": ("order_id",), "accounts": ("region", "number")}[name]
    found = {}
    for row in table.rows:
        values = {column: value(text, table.types[column]) for column, text in row.items()}
        its = tuple(values.pop(column) for column in key)
        if "placed" in values and values["placed"] is not None:
            values["placed"] = round(values["placed"].timestamp() * 1000)  # as `lake.rows` gives times
        if "land" in values:
            values["country"] = values.pop("land")
        values.pop(NEVER_KNOWN, None)
        if _between(statement, DEFAULT, WRITTEN):
            values.pop("channel", None)
        found[its[0] if len(its) == 1 else its] = values
    return found


def _between(statement: Statement, first: str, last: str) -> bool:
    """Whether a statement is the first, or lies between it and the last."""
    names = [one.name for one in recording("shop")]
    return names.index(first) <= names.index(statement.name) < names.index(last)


def shop(
    ports: Ports, kafka: Kafka, topic: Callable[..., str], format_: Format, partitions: int, truncate: bool
) -> Shop:
    """The topics of a connector, in a format, and the topology over them."""
    topics = {f"shop.public.{name}": topic(name, partitions) for name in ("customers", "orders", "accounts")}
    customers, orders, accounts = topics.values()
    builder = StreamsBuilder(f"debezium-{customers}")
    how: dict[str, Any] = {"format": format_, "truncate": truncate}
    c = builder.table(customers, Consumed.debezium(key="id bigint", value=CUSTOMERS, **how))
    o = builder.table(orders, Consumed.debezium(key="order_id bigint", value=ORDERS, **how))
    builder.table(accounts, Consumed.debezium(key="region string, number int", value=ACCOUNTS, **how))
    select = ["left.*", *(f"right.{name} AS customer_{name}" for name in JOINED)]
    country = "coalesce(right.land, right.country) AS customer_country"
    o.left_join(c, on="customer_id", select=[*select, country]).materialize("joined")
    return Shop(ports, kafka, builder.build(), topics)


def replayed(
    it: Shop, connector: str, format_: Format, until: str | None, ticks: Collection[int], inside: Random
) -> int:
    """Send the recording up to a statement; compare after the statements of some numbers. Cuts lie within them too."""
    compared = 0
    for number, statement in enumerate(recording("shop")):
        if statement.name == until:
            break
        it.events += [event for event in statement.events(connector, format_) if event.topic in it.topics]
        if number in ticks:
            if len(it.events) > 1 and inside.random() < 0.3:  # a cut within a statement
                it.send(inside.randrange(1, len(it.events)))
                it.tick()
            it.send(len(it.events))
            it.tick()
            it.holds(statement)
            compared += 1
    return compared


def test_tables_and_join_are_the_databases(
    engine: Engine, kafka: Kafka, lakehouse: Lakehouse, topic: Callable[..., str]
) -> None:
    """Through random cuts, in one partition, with truncates."""
    random = Random(7)
    it = shop(Ports(engine, lakehouse, kafka), kafka, topic, "json", 1, True)
    last = len(recording("shop")) - 1
    ticks = {*random.sample(range(last), 5), last}
    assert replayed(it, "string", "json", None, ticks, random) == len(ticks)


@pytest.mark.thorough  # some 60 ticks each
@pytest.mark.parametrize(
    ("connector", "format_", "partitions"),
    [("string", "json", 1), ("string", "json", 3), ("precise", "json_with_schemas", 1)],
)
def test_tables_and_join_are_the_databases_after_every_statement(
    engine: Engine,
    kafka: Kafka,
    lakehouse: Lakehouse,
    topic: Callable[..., str],
    connector: str,
    format_: Format,
    partitions: int,
) -> None:
    it = shop(Ports(engine, lakehouse, kafka), kafka, topic, format_, partitions, partitions == 1)
    until = None if partitions == 1 else TRUNCATE
    compared = replayed(it, connector, format_, until, range(len(recording("shop"))), Random(partitions))
    assert compared > 40
