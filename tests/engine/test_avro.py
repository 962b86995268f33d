"""Avro topics with a real registry land: ids of subjects and of records, quarantine, and errors by name."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa  # type: ignore[import-untyped]  # it has no types
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry import record_subject_name_strategy as by_record
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from deltalake import DeltaTable, QueryBuilder

from resources.process import free_port
from resources.registry import Registry
from spark.engine import schemas as engine_schemas
from spark.engine.errors import EngineUnlimited, RegistryUnavailable, SchemaMismatch
from spark.engine.land import capture, land
from spark.engine.ports import Ports
from spark.engine.quarantine import redecode
from spark.topology import Consumed, StreamsBuilder
from tests.support.lake import NoEngine

if TYPE_CHECKING:
    from collections.abc import Callable

    from resources.kafka import Kafka
    from spark.engine.land import Landed
    from spark.topology.topology import Topology

KEY = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "long"}]}


def value(name: str = "Order", **fields: object) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": n, "type": kind} for n, kind in fields.items()]}


@dataclass(frozen=True)
class Topic:
    """A topic in Avro, written by confluent-kafka's own serializer."""

    kafka: Kafka
    registry: Registry
    name: str

    def send(
        self, schema: object, *rows: tuple[object, dict[str, Any] | bytes | None], key: object = KEY, **conf: object
    ) -> None:
        """Send records: keys and values, which may be bytes; a value may be None."""
        producer = self.kafka.producer()
        with SchemaRegistryClient({"url": self.registry.address}) as client:
            write_key = AvroSerializer(client, json.dumps(key), conf=conf or None)
            write = AvroSerializer(client, json.dumps(schema), conf=conf or None)
            for number, row in rows:
                of_key = SerializationContext(self.name, MessageField.KEY)
                of_value = SerializationContext(self.name, MessageField.VALUE)
                key_bytes = number if isinstance(number, bytes) else write_key({"id": number}, of_key)
                raw = row if isinstance(row, bytes) else None if row is None else write(row, of_value)
                producer.produce(self.name, key=key_bytes, value=raw)
        assert producer.flush(30) == 0


@pytest.fixture
def orders(kafka: Kafka, registry: Registry, topic: Callable[..., str]) -> Topic:
    return Topic(kafka, registry, topic("orders"))


def declared(topic: Topic, columns: str, **more: Any) -> Topology:
    builder = StreamsBuilder(f"avro-{topic.name}")
    builder.table(topic.name, Consumed.avro(key="id bigint", value=columns, **more))
    return builder.build()


def landing(ports: Ports, topology: Topology) -> Landed:
    return land(ports, topology, topology.sources[0], capture(ports.kafka, topology), "run")


def rows(ports: Ports, topology: Topology, columns: str) -> list[tuple[Any, ...]]:
    """The records of a landing in the order of their offsets: some columns, and the error."""
    table = DeltaTable(ports.lakehouse.table(topology.name, topology.sources[0].landing))
    query = f"SELECT {columns}, _error FROM it ORDER BY _offset"
    found = pa.table(QueryBuilder().register("it", table).execute(query)).to_pylist()
    return [tuple(row.values()) for row in found]


@pytest.fixture
def avro(ports: Ports, registry: Registry) -> Ports:
    return replace(ports, registry=registry)


def test_a_topic_lands_through_changes_of_its_schema(avro: Ports, orders: Topic) -> None:
    old, new = value(amount="int"), value(amount="long", note=["null", "string"])
    orders.send(old, (1, {"amount": 5}), (2, {"amount": 6}))
    orders.send(new, (2, {"amount": 2**40, "note": "é"}), (1, None))
    topology = declared(orders, "amount bigint, note string")
    done = landing(avro, topology)
    assert (done.records, done.errors, done.tombstones) == (4, 0, 1)
    assert rows(avro, topology, "id, amount, note") == [
        (1, 5, None, None),
        (2, 6, None, None),
        (2, 2**40, "é", None),
        (1, None, None, None),
    ]
    away = replace(avro, registry=Registry({"url": f"http://127.0.0.1:{free_port()}"}), engine=NoEngine())
    assert landing(away, topology).outcome == "idle"


def test_subjects_named_by_record_are_found_by_the_ids_of_the_records(avro: Ports, orders: Topic) -> None:
    one, other = value("Placed", amount="int"), value("Paid", amount="long")
    orders.send(one, (1, {"amount": 5}), **{"subject.name.strategy": by_record})
    orders.send(other, (2, {"amount": 6}), **{"subject.name.strategy": by_record})
    topology = declared(orders, "amount bigint")
    assert landing(avro, topology).errors == 0
    orders.send(value("Sent", amount="long"), (3, {"amount": 7}), **{"subject.name.strategy": by_record})
    assert landing(avro, topology).errors == 0  # an id that the topic did not have before
    assert rows(avro, topology, "id, amount") == [(1, 5, None), (2, 6, None), (3, 7, None)]


def test_an_unknown_id_is_quarantined_and_replayed_when_the_registry_has_it(
    avro: Ports, orders: Topic, registry: Registry
) -> None:
    schema = value("Late", amount="int")
    orders.send(schema, (1, {"amount": 5}))
    [known] = registry.versions(f"{orders.name}-value")
    unknown = known.id + 100_000
    later = value("Later", amount="long")
    orders.send(schema, (2, framed(unknown, later, {"amount": 6})), (b"\0\0\0", {"amount": 7}))
    topology = declared(orders, "amount bigint")
    assert landing(avro, topology).errors == 2
    errors = [row[-1] for row in rows(avro, topology, "id")]
    assert errors[0] is None
    assert errors[1] == f"the value was written by a schema that the registry does not have, id {unknown}"
    assert "the key has no Avro framing" in errors[2]
    source = topology.sources[0]
    has_it = Registry({"url": registry.address})
    has_it._schemas[unknown] = replace(known, id=unknown, text=json.dumps(later))  # ids cannot be chosen
    assert redecode(replace(avro, registry=has_it), topology, source, "again").decoded == 1
    assert rows(avro, topology, "id, amount")[1] == (2, 6, None)


def framed(number: int, schema: Any, row: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row)
    return b"\0" + number.to_bytes(4, "big") + out.getvalue()


def test_a_poisoned_record_is_quarantined_and_the_engine_lives(avro: Ports, orders: Topic, registry: Registry) -> None:
    schema = value(note="string")
    orders.send(schema, (1, {"note": "x"}))
    [known] = registry.versions(f"{orders.name}-value")
    two_gb = framed(known.id, schema, {"note": ""})[:5] + b"\xfe\xff\xff\xff\x0f"
    orders.send(schema, (2, two_gb), (3, {"note": "y"}))
    topology = declared(orders, "note string")
    done = landing(avro, topology)
    assert (done.records, done.errors) == (3, 1)
    assert "does not decode as Avro" in rows(avro, topology, "note")[1][-1]


def test_an_engine_without_limits_is_refused_with_its_options(
    avro: Ports, orders: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.send(value(note="string"), (1, {"note": "x"}))
    monkeypatch.setattr(engine_schemas, "LIMITS", {**engine_schemas.LIMITS, "tidetable.tests.limit": 1})
    monkeypatch.setattr(engine_schemas, "passed", set())
    with pytest.raises(EngineUnlimited, match=r"-Dorg.apache.avro.limits.string.maxLength=.*-Dtidetable.tests.limit=1"):
        landing(avro, declared(orders, "note string"))


def test_a_registry_that_is_away_or_not_set_fails_the_landing_by_name(avro: Ports, orders: Topic) -> None:
    orders.send(value(note="string"), (1, {"note": "x"}))
    topology = declared(orders, "note string")
    with pytest.raises(RegistryUnavailable, match="TIDETABLE_SCHEMA_REGISTRY_URL"):
        landing(replace(avro, registry=None), topology)
    away = Registry({"url": f"http://127.0.0.1:{free_port()}"})
    with pytest.raises(RegistryUnavailable, match="does not answer"):
        landing(replace(avro, registry=away), topology)
    own = declared(orders, "note string", registry=orders.registry.address)
    assert landing(replace(avro, registry=away), own).records == 1


def test_a_declaration_that_does_not_fit_is_refused_with_what_to_declare(avro: Ports, orders: Topic) -> None:
    orders.send(value(amount=value("Money", cents="long")), (1, {"amount": {"cents": 5}}))
    with pytest.raises(
        SchemaMismatch, match=r"amount is declared bigint, .* record Money: declare amount struct<cents"
    ):
        landing(avro, declared(orders, "amount bigint"))
    with pytest.raises(SchemaMismatch, match="no schema of the value has the column total"):
        landing(avro, declared(orders, "total bigint"))
    assert landing(avro, declared(orders, "amount struct<cents:bigint>")).errors == 0


@pytest.mark.parametrize(("key_format", "key"), [("kafka", (7).to_bytes(8, "big")), ("json", b"7")])
def test_a_key_may_have_another_format(avro: Ports, orders: Topic, key_format: str, key: bytes) -> None:
    orders.send(value(amount="int"), (key, {"amount": 5}))
    topology = declared(orders, "amount int", key_format=key_format)
    assert landing(avro, topology).errors == 0
    assert rows(avro, topology, "id, amount") == [(7, 5, None)]
