"""Protobuf topics land by the engine's Python workers: framed by a registry or bare, quarantine, and errors by name."""

from __future__ import annotations

import sys
from collections import namedtuple
from typing import TYPE_CHECKING, Any

import pyarrow as pa  # type: ignore[import-untyped]  # it has no types
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from deltalake import DeltaTable, QueryBuilder

from spark.engine import python_workers
from spark.engine.errors import EngineWithoutPython
from spark.engine.land import capture, land
from spark.engine.quarantine import redecode
from spark.engine.tick import tick
from spark.topology import Consumed, StreamsBuilder
from tests.operators.test_protobuf import DECLARED, decoded, fuzzed
from tests.support.lake import Record, send
from tests.support.protos import descriptors, file, message_class

if TYPE_CHECKING:
    from collections.abc import Callable

    from resources.kafka import Kafka
    from resources.registry import Registry
    from spark.engine.land import Landed
    from spark.engine.ports import Ports
    from spark.topology.topology import Topology

FILES = descriptors(
    file(
        "orders.proto",
        {
            "Key": {"id": "int64"},
            "Order": {"customer": "int64", "note": "optional string", "lines": "repeated Line"},
            "Line": {"sku": "string", "count": "uint32"},
        },
    )
)
COLUMNS = "customer bigint, note string, lines array<struct<sku:string,count:bigint>>"


def declared(topic: str, columns: str = COLUMNS, **more: Any) -> Topology:
    given = {"key": "id bigint", "message": "shop.Order", "descriptors": FILES, "key_message": "shop.Key", **more}
    builder = StreamsBuilder(f"protobuf-{topic}")
    builder.table(topic, Consumed.protobuf(value=columns, **given))
    return builder.build()


def landing(ports: Ports, topology: Topology) -> Landed:
    return land(ports, topology, topology.sources[0], capture(ports.kafka, topology), "run")


def rows(ports: Ports, topology: Topology, columns: str, table: str | None = None) -> list[tuple[Any, ...]]:
    """Columns of a landing in the order of its offsets, or of a table in the order of its columns."""
    found = DeltaTable(ports.lakehouse.table(topology.name, table or topology.sources[0].landing))
    order = "_offset" if table is None else columns
    query = f"SELECT {columns} FROM it ORDER BY {order}"
    return [tuple(row.values()) for row in pa.table(QueryBuilder().register("it", found).execute(query)).to_pylist()]


def test_records_of_confluents_serializer_and_bare_ones_land_and_make_rows(
    ports: Ports, kafka: Kafka, registry: Registry, topic: Callable[..., str]
) -> None:
    name = topic("orders")
    key, order = message_class(FILES, "shop.Key"), message_class(FILES, "shop.Order")
    with SchemaRegistryClient({"url": registry.address}) as client:
        conf = {"use.deprecated.format": False}
        write_key, write = (ProtobufSerializer(one, client, conf) for one in (key, order))
        of_key, of_value = (SerializationContext(name, part) for part in (MessageField.KEY, MessageField.VALUE))
        framed = [
            (write_key(key(id=1), of_key), write(order(customer=7, lines=[{"sku": "a", "count": 2}]), of_value)),
            (write_key(key(id=2), of_key), write(order(customer=7, note=""), of_value)),
            (write_key(key(id=3), of_key), write(order(customer=8), of_value)),
            (write_key(key(id=3), of_key), None),
        ]
    assert framed[0][0] is not None
    assert framed[0][0][:1] == b"\0"
    bare = [(key(id=4).SerializeToString(), order(customer=8, note="é").SerializeToString())]
    broken = [(key(id=5).SerializeToString(), b"\xff"), (b"\0\0", b"")]
    send(kafka, name, *(Record(k, v) for k, v in (*framed, *bare, *broken)))
    topology = declared(name)
    done = landing(ports, topology)
    assert (done.records, done.errors, done.tombstones) == (7, 2, 1)
    found = rows(ports, topology, "id, customer, note, lines, _deleted, _error, _value")
    assert found[:5] == [
        (1, 7, None, [{"sku": "a", "count": 2}], False, None, None),
        (2, 7, "", [], False, None, None),
        (3, 8, None, [], False, None, None),
        (3, None, None, None, True, None, None),
        (4, 8, "é", [], False, None, None),
    ]
    undecoded = "the value does not decode as the Protobuf message shop.Order"
    assert found[5] == (None, None, None, None, False, undecoded, b"\xff")
    assert found[6][5].startswith("the key is neither a Protobuf message nor framed")
    assert not tick(ports, topology, "tick").failed
    assert rows(ports, topology, "id, customer, note", name) == [(1, 7, None), (2, 7, ""), (4, 8, "é")]


def test_records_in_quarantine_are_decoded_again_by_other_descriptors(
    ports: Ports, kafka: Kafka, topic: Callable[..., str]
) -> None:
    name = topic("orders")
    order = message_class(FILES, "shop.Order")(customer=7, note="é").SerializeToString()
    send(kafka, name, Record(b"1", order))
    swapped = file("orders.proto", {"Order": {"note": "optional string", "customer": "int64"}})
    columns, by_text = "customer bigint, note string", {"key_format": "kafka", "key": "id string", "key_message": None}
    wrong = declared(name, columns, descriptors=descriptors(swapped), **by_text)
    assert landing(ports, wrong).errors == 1
    [error] = rows(ports, wrong, "_error")
    assert "was written as another type than shop.Order has" in error[0]
    right = declared(name, columns, **by_text)
    assert redecode(ports, right, right.sources[0], "again").decoded == 1
    assert rows(ports, right, "id, customer, note, _error") == [("1", 7, "é", None)]


def test_10_000_fuzzed_records_land_or_are_quarantined_and_the_engine_lives(
    ports: Ports, kafka: Kafka, topic: Callable[..., str]
) -> None:
    files, made = fuzzed(10_000, seed=2)
    name = topic("fuzzed")
    send(kafka, name, *(Record(b"%d" % number, raw) for number, raw in enumerate(made)))
    builder = StreamsBuilder(f"protobuf-{name}")
    consumed = Consumed.protobuf(
        key="number string", value=DECLARED, message="shop.Row", descriptors=files, key_format="kafka"
    )
    builder.table(name, consumed)
    topology = builder.build()
    wanted = [error for _, error in decoded(files, DECLARED, *made)]
    done = landing(ports, topology)
    assert (done.records, done.errors) == (10_000, len(wanted) - wanted.count(None))
    assert [error for (error,) in rows(ports, topology, "_error")] == wanted


def test_an_engine_whose_workers_have_another_python_is_refused_by_name(
    ports: Ports, kafka: Kafka, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic("orders")
    order = message_class(FILES, "shop.Order")(customer=7).SerializeToString()
    send(kafka, name, Record(b"1", order))
    topology = declared(name, key_format="json", key_message=None)
    monkeypatch.setattr(python_workers, "passed", set())
    version = namedtuple("version", "major minor micro releaselevel serial")  # as Python's own
    monkeypatch.setattr(sys, "version_info", version(3, 99, 0, "final", 0))  # this client's: workers compare it
    says = r"topic orders.*PYTHON_VERSION_MISMATCH.* Python 3.99 with pyspark, pyarrow and protobuf"
    with pytest.raises(EngineWithoutPython, match=says):
        landing(ports, topology)
    monkeypatch.undo()
    assert landing(ports, topology).errors == 0
