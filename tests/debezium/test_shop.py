"""Two related tables of a PostgreSQL, by the events that the real connector wrote, and their join: what it had.

`tests/faults/test_debezium_kills.py` compares them at random cuts, in JSON, while the client is killed.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from spark.engine.ports import Ports
from spark.serdes.records import decode
from spark.testing import TopologyTestDriver
from spark.topology import Consumed
from tests.debezium.recording import recording, registered, schemas_of
from tests.debezium.shop import ACCOUNTS, CUSTOMERS, KEYS, ORDERS, RECORDS, Shop, as_recorded, expected, shop, topology

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from resources.engine import Engine
    from resources.kafka import Kafka
    from resources.lakehouse import Lakehouse
    from resources.registry import Registry
    from spark.serdes.part import Part
    from tests.debezium.recording import Format

FORMS: tuple[Format, ...] = ("avro", "json_with_schemas")
PARTS: tuple[Part, ...] = ("key", "value")

TRUNCATE = "truncate of one table"


def replayed(
    it: Shop, connector: str, format_: Format, until: str | None, ticks: Collection[int], inside: Random
) -> int:
    """Send the recording up to a statement; compare after the statements of some numbers. Cuts lie within them too."""
    compared = 0
    for number, statement in enumerate(recording("shop")):
        if statement.name == until:
            break
        it.take(statement, connector, format_)
        if number in ticks:
            if len(it.events) > 1 and inside.random() < 0.3:  # a cut within a statement
                it.send(inside.randrange(1, len(it.events)))
                it.tick()
            it.send(len(it.events))
            it.tick()
            it.holds(statement)
            compared += 1
    return compared


@pytest.mark.parametrize(
    ("connector", "format_", "flattened"), [("precise", "json_with_schemas", False), ("string_flattened", "json", True)]
)
def test_the_other_forms_have_the_same_rows(engine: Engine, connector: str, format_: Format, flattened: bool) -> None:
    """Until the truncates, which `ExtractNewRecordState` drops, so that nobody sees them."""
    session = engine.session()
    names = {f"shop.public.{name}": name for name in ("customers", "orders", "accounts")}
    driver = TopologyTestDriver(
        topology(*names.values(), format=format_, flattened=flattened), batch="all", session=session
    )
    statements = recording("shop")
    until = [statement.name for statement in statements].index(TRUNCATE)
    for event in (event for statement in statements[:until] for event in statement.events(connector, format_)):
        if event.topic in names:
            driver.pipe(names[event.topic], key=event.key, value=event.value, headers=dict(event.headers))
    for name, wanted in expected(statements[until - 1]).items():
        rows = driver.table(name)
        found = {
            row[key[0]] if len(key) == 1 else tuple(row[part] for part in key): as_recorded(
                row, next(iter(wanted.values()))
            )
            for key in [KEYS[name]]
            for row in rows
        }
        assert found == wanted, name
    session.stop()


def test_avro_decodes_to_the_same_records_as_json_with_schemas(engine: Engine) -> None:
    """Record by record, with their times, keys in headers, truncates, and what they leave out."""
    session = engine.session()
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
            schemas = {part: schemas_of("shop", f"shop.public.{name}-{part}") for part in PARTS}
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
    rows = decode(frame, consumed, dict.fromkeys(PARTS, schemas_of("shop"))).select("_error").distinct().collect()
    assert len(rows) == 3  # of messages, transactions and heartbeats
    assert all("which is no envelope of Debezium" in row["_error"] for row in rows)
    session.stop()


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
