"""Two related tables of a recorded PostgreSQL: their topics, the topology over them, and what the database had."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from spark.engine.tick import tick
from spark.topology import Consumed, StreamsBuilder
from tests.debezium.recording import recording
from tests.debezium.values import value
from tests.support import lake

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from resources.kafka import Kafka
    from spark.engine.ports import Ports
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
KEYS = {
    "customers": ("id",),
    "orders": ("order_id",),
    "accounts": ("region", "number"),
    "joined": ("order_id",),
}
JOINED = ("name", "score", "note", "photo", "ratings", "attributes")
"""Columns of a customer that the join has."""
NEVER_KNOWN = "fees"
"""A numeric[] that is not logged arrives as null, which nothing tells from a null: it is not declared."""

RECORDS = (
    "_key binary, _value binary, _headers array<struct<key: string, value: binary>>, _topic string, _partition int, "
    "_offset bigint, _timestamp timestamp"
)

DEFAULT = "a column is added with a default, which its old rows have at once"
WRITTEN = "every row is written once more, so that the default arrives"


@dataclass
class Shop:
    """The topics, as the connector would have filled them so far, and the topology over them."""

    ports: Ports
    kafka: Kafka
    topology: Topology
    topics: dict[str, str]
    events: list[Event] = field(default_factory=list)
    """Events that are not sent yet."""
    ids: dict[bytes, bytes] = field(default_factory=dict)
    """Of records in Avro, by the id of a schema in the recording, the id in the registry here; as bytes."""

    def take(self, statement: Statement, connector: str, format_: Format) -> None:
        """Take the events of a statement, to be sent."""
        self.events += [event for event in statement.events(connector, format_) if event.topic in self.topics]

    def send(self, count: int) -> None:
        """Send the next events."""
        producer = self.kafka.producer()
        for event in self.events[:count]:
            key, value = (self._named(part) if self.ids else part for part in (event.key, event.value))
            producer.produce(self.topics[event.topic], key=key, value=value, headers=list(event.headers))
        assert producer.flush(30) == 0
        del self.events[:count]

    def _named(self, part: bytes | None) -> bytes | None:
        """Bytes in Avro, with the id of their schema here."""
        return None if part is None else part[:1] + self.ids[part[1:5]] + part[5:]

    def tick(self) -> None:
        """Land and step everything."""
        done = tick(self.ports, self.topology, "test")
        assert done.failed == {}
        assert sum(landed.errors for landed in done.landed) == 0

    def holds(self, statement: Statement) -> None:
        """Check every table, and the join, against what the database had."""
        wanted = expected(statement)
        for order in (*wanted["orders"].values(), *wanted["joined"].values()):
            if self.ids and order.get("status", "") is None:
                order["status"] = "new"  # Apicurio's converter writes the default of the column in place of a null
        for name, table in zip(("customers", "orders", "accounts", "joined"), self._names(), strict=True):
            found = lake.rows(self.ports, self.topology, table)
            columns = next(iter(wanted[name].values()), {})
            assert {key: as_recorded(row, columns) for key, row in found.items()} == wanted[name], (
                statement.name,
                name,
            )

    def _names(self) -> list[str]:
        return [*self.topics.values(), "joined"]


def as_recorded(row: dict[str, Any], columns: Collection[str]) -> dict[str, Any]:
    """A row of ours, under the columns that the database has now."""
    found = dict(row)
    if "land" in row:
        found["country"] = found["land"] if found["land"] is not None else found["country"]
    for name, of in found.items():
        if name in ("attributes", "customer_attributes") and of is not None:  # pairs, as Arrow gives a map
            found[name] = dict(of)
        if isinstance(of, datetime):  # milliseconds, as `lake.rows` gives times
            found[name] = round(of.timestamp() * 1000)
    return {name: found[name] for name in columns}


def expected(statement: Statement) -> dict[str, Rows]:
    tables = {name: rows_of(statement, name) for name in ("customers", "orders", "accounts")}
    joined: Rows = {}
    for key, order in tables["orders"].items():
        customer = tables["customers"].get(order["customer_id"], {})
        joined[key] = order | {f"customer_{name}": customer.get(name) for name in (*JOINED, "country")}
    return tables | {"joined": joined}


def rows_of(statement: Statement, name: str) -> Rows:
    table = statement.tables[name]
    key = KEYS[name]
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
    return Shop(ports, kafka, topology(*topics.values(), format=format_, truncate=truncate), topics)


def topology(customers: str, orders: str, accounts: str, **how: Any) -> Topology:
    """The tables over three topics, and orders joined with their customers."""
    builder = StreamsBuilder(f"debezium-{customers}")
    c = builder.table(customers, Consumed.debezium(key="id bigint", value=CUSTOMERS, **how))
    o = builder.table(orders, Consumed.debezium(key="order_id bigint", value=ORDERS, **how))
    builder.table(accounts, Consumed.debezium(key="region string, number int", value=ACCOUNTS, **how))
    select = ["left.*", *(f"right.{name} AS customer_{name}" for name in JOINED)]
    country = "coalesce(right.land, right.country) AS customer_country"
    o.left_join(c, on="customer_id", select=[*select, country]).materialize("joined")
    return builder.build()
