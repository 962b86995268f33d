"""Two related tables of a PostgreSQL, by the events that the real connector wrote, and their join: what it had."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from spark.engine.ports import Ports
from spark.engine.tick import tick
from spark.serdes.records import decode
from spark.serdes.schemas import Schema, Schemas
from spark.testing import TopologyTestDriver
from spark.topology import Consumed, StreamsBuilder
from tests.debezium.recording import recording, registered
from tests.debezium.values import value
from tests.support import lake

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from resources.engine import Engine
    from resources.kafka import Kafka
    from resources.lakehouse import Lakehouse
    from resources.registry import Registry
    from spark.serdes.part import Part
    from spark.topology import Topology
    from tests.debezium.recording import Event, Format, Registered, Statement

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
FORMS: tuple[Format, ...] = ("avro", "json_with_schemas")
PARTS: tuple[Part, ...] = ("key", "value")

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
    ids: dict[bytes, bytes] = field(default_factory=dict)
    """Of records in Avro, by the id of a schema in the recording, the id in the registry here; as bytes."""

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
        expected = _expected(statement)
        for order in (*expected["orders"].values(), *expected["joined"].values()):
            if self.ids and order.get("status", "") is None:
                order["status"] = "new"  # Apicurio's converter writes the default of the column in place of a null
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
        if isinstance(of, datetime):  # milliseconds, as `lake.rows` gives times
            found[name] = round(of.timestamp() * 1000)
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
    return Shop(ports, kafka, _topology(*topics.values(), format=format_, truncate=truncate), topics)


def _topology(customers: str, orders: str, accounts: str, **how: Any) -> Topology:
    """The tables over three topics, and orders joined with their customers."""
    builder = StreamsBuilder(f"debezium-{customers}")
    c = builder.table(customers, Consumed.debezium(key="id bigint", value=CUSTOMERS, **how))
    o = builder.table(orders, Consumed.debezium(key="order_id bigint", value=ORDERS, **how))
    builder.table(accounts, Consumed.debezium(key="region string, number int", value=ACCOUNTS, **how))
    select = ["left.*", *(f"right.{name} AS customer_{name}" for name in JOINED)]
    country = "coalesce(right.land, right.country) AS customer_country"
    o.left_join(c, on="customer_id", select=[*select, country]).materialize("joined")
    return builder.build()


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
    ticks = {*random.sample(range(last), 2), last}
    assert replayed(it, "string", "json", None, ticks, random) == len(ticks)


@pytest.mark.parametrize(
    ("connector", "format_", "flattened"), [("precise", "json_with_schemas", False), ("string_flattened", "json", True)]
)
def test_the_other_forms_have_the_same_rows(engine: Engine, connector: str, format_: Format, flattened: bool) -> None:
    """Until the truncates, which `ExtractNewRecordState` drops, so that nobody sees them."""
    session = engine.session()
    names = {f"shop.public.{name}": name for name in ("customers", "orders", "accounts")}
    driver = TopologyTestDriver(
        _topology(*names.values(), format=format_, flattened=flattened), batch="all", session=session
    )
    statements = recording("shop")
    until = [statement.name for statement in statements].index(TRUNCATE)
    for event in (event for statement in statements[:until] for event in statement.events(connector, format_)):
        if event.topic in names:
            driver.pipe(names[event.topic], key=event.key, value=event.value, headers=dict(event.headers))
    expected = _expected(statements[until - 1])
    for name, wanted in expected.items():
        rows = driver.table(name)
        found = {
            row[key[0]] if len(key) == 1 else tuple(row[part] for part in key): _read(row, next(iter(wanted.values())))
            for key in [KEYS[name]]
            for row in rows
        }
        assert found == wanted, name
    session.stop()


def test_avro_decodes_to_the_same_records_as_json_with_schemas(engine: Engine) -> None:
    """Record by record, with their times, keys in headers, truncates, and what they leave out."""
    session = engine.session()
    ours = registered("shop")
    for name, key, columns in (
        ("customers", "id bigint", CUSTOMERS),
        ("orders", "order_id bigint", ORDERS),
        ("accounts", "region string, number int", ACCOUNTS),
    ):
        found = {}
        for format_ in FORMS:
            consumed = Consumed.debezium(key=key, value=columns, format=format_, truncate=True)
            events = [one for it in recording("shop") for one in it.events("precise", format_)]
            records = [
                (one.key, one.value, one.headers or None, "t", 0, number, None)
                for number, one in enumerate(one for one in events if one.topic == f"shop.public.{name}")
            ]
            schemas = {part: known(ours, f"shop.public.{name}-{part}") for part in PARTS}
            decoded = decode(session.createDataFrame(records, RECORDS), consumed, schemas).drop("_key", "_value")
            found[format_] = [row.asDict(recursive=True) for row in decoded.orderBy("_offset").collect()]
        changes = [[row.pop("_change") for row in rows] for rows in found.values()]
        # The number of a change need only be the same in the two events that tell it.
        pairs = [[one and rows.index(one) for one in rows] for rows in changes]
        assert pairs[0] == pairs[1]
        for avro, with_schemas in zip(found["avro"], found["json_with_schemas"], strict=True):
            if avro.get("status") == "new":
                with_schemas["status"] = with_schemas["status"] or "new"  # see `Shop.holds`
            assert avro == with_schemas
            assert avro["_error"] is None
        assert sum(row["_unavailable"] is not None for row in found["avro"]) > 0 or name == "accounts"
    other = [one for it in recording("shop") for one in it.events("precise", "avro") if "public" not in one.topic]
    consumed = Consumed.debezium(key="id string", value="name string", format="avro")
    records = [(None, one.value, None, "t", 0, 0, None) for one in other if one.value is not None]
    frame = session.createDataFrame(records, RECORDS)
    rows = decode(frame, consumed, dict.fromkeys(PARTS, known(ours, ""))).select("_error").distinct().collect()
    assert len(rows) == 3  # of messages, transactions and heartbeats
    assert all("which is no envelope of Debezium" in row["_error"] for row in rows)
    session.stop()


def known(ours: Sequence[Registered], subject: str) -> Schemas:
    """The recorded schemas of a subject; of all without one."""
    return Schemas({one.id: Schema(one.id, "AVRO", one.schema) for one in ours if subject in ("", one.subject)})


def test_avro_lands_by_the_schemas_of_a_registry(
    engine: Engine, kafka: Kafka, lakehouse: Lakehouse, topic: Callable[..., str], registry: Registry
) -> None:
    it = shop(Ports(engine, lakehouse, kafka, registry=registry), kafka, topic, "avro", 1, True)
    for one in registered("shop"):
        name, _, part = one.subject.rpartition("-")
        if name in it.topics:
            number = registry.register(f"{it.topics[name]}-{part}", "AVRO", one.schema)
            it.ids[one.id.to_bytes(4, "big")] = number.to_bytes(4, "big")
    last = len(recording("shop")) - 1
    assert replayed(it, "precise", "avro", None, {last}, Random(7)) == 1


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
