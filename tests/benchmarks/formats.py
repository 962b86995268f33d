"""Landing a million records of the same columns in each format, turn by turn in one run: records per CPU-second.

Protobuf has no decimals: its amount is a text.
"""

from __future__ import annotations

import io
import json
import random
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING

import fastavro
import psutil

from resources.embedded_registry import EmbeddedRegistry
from resources.registry import Registry
from spark.engine.land import capture, land
from spark.engine.ports import Ports
from spark.topology import Consumed, StreamsBuilder
from tests.benchmarks.measure import Row, cpu, row
from tests.benchmarks.shop import NOTE, ORDER, produce
from tests.support.protos import descriptors, file, message_class, well_known

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spark.topology import Topology
    from tests.benchmarks.measure import Bench

JSON, AVRO, PROTOBUF = "orders_json", "orders_avro", "orders_protobuf"
SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "customer_id", "type": "long"},
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}},
        {"name": "quantity", "type": "int"},
        {"name": "status", "type": ["null", "string"]},
        {"name": "placed_at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "note", "type": ["null", "string"]},
    ],
}
FILES = descriptors(
    well_known("timestamp"),
    file(
        "orders.proto",
        {
            "Order": {
                **{"customer_id": "int64", "amount": "string", "quantity": "int32", "status": "optional string"},
                **{"placed_at": ".google.protobuf.Timestamp", "note": "optional string"},
            }
        },
        imports=["google/protobuf/timestamp.proto"],
    ),
)


def run(bench: Bench) -> list[Row]:
    """Records per CPU-second of the engine, and how many times as many as JSON."""
    count, own = bench.scaled(1_000_000), EmbeddedRegistry(bench.lake)
    registry = Registry({"url": own.start()})
    try:
        number = registry.register(f"{AVRO}-value", "AVRO", json.dumps(SCHEMA))
        for topic, records in ((JSON, _json(count)), (AVRO, _avro(count, number)), (PROTOBUF, _protobuf(count))):
            bench.kafka.create_topic(topic, 4)
            produce(bench.kafka, topic, records)
        bench.engine_warm_up()
        ports = Ports(bench.engine, bench.lakehouse, bench.kafka, registry)
        found: dict[str, list[float]] = {JSON: [], AVRO: [], PROTOBUF: []}
        for turn in bench.turns("formats", warm_up=1):
            for topic, rates in found.items():
                rate = count / _landed(ports, _topology(topic, turn), count)
                if turn > 0:
                    rates.append(rate)
    finally:
        own.stop()
    times = [avro / json_ for json_, avro in zip(found[JSON], found[AVRO], strict=True)]
    return [
        row("land 1 M records of JSON", found[JSON], "records/CPU-s"),
        row("land 1 M records of Avro", found[AVRO], "records/CPU-s"),
        row("land 1 M records of Protobuf", found[PROTOBUF], "records/CPU-s"),
        row("Avro / JSON", times, "x records/CPU-s", at_least=2),
    ]


def _topology(topic: str, turn: int) -> Topology:
    builder = StreamsBuilder(f"formats{turn}")
    key = "order_id bigint"
    text = ORDER.replace("decimal(12,2)", "string")
    declared = {
        JSON: Consumed.json(key=key, value=ORDER),
        AVRO: Consumed.avro(key=key, value=ORDER, key_format="json"),
        PROTOBUF: Consumed.protobuf(key=key, value=text, message="shop.Order", descriptors=FILES, key_format="json"),
    }
    builder.table(topic, declared[topic])
    return builder.build()


def _landed(ports: Ports, topology: Topology, count: int) -> float:
    """The CPU seconds of the engine for the landing of a whole topic."""
    running = ports.engine.running()  # type: ignore[attr-defined]  # the lake's own engine
    before, cut = _cpu(running.pid), capture(ports.kafka, topology)
    done = land(ports, topology, topology.sources[0], cut, "bench")
    assert (done.records, done.errors) == (count, 0)
    return _cpu(running.pid) - before


def _cpu(pid: int) -> float:
    """The CPU seconds of an engine so far, with its Python workers."""
    engine = psutil.Process(pid)
    return sum(cpu(one.pid) for one in (engine, *engine.children(recursive=True)))


def _orders(count: int) -> Iterator[dict[str, object]]:
    rng = random.Random(1)
    for _ in range(count):
        yield {
            "customer_id": rng.randrange(100_000),
            "amount": Decimal(rng.randrange(100_000)).scaleb(-2),
            "quantity": rng.randrange(1, 10),
            "status": "paid",
            "placed_at": datetime(2026, 11, 20, 10, rng.randrange(60), tzinfo=UTC),
            "note": NOTE[: rng.randrange(10, 22)],
        }


def _json(count: int) -> Iterator[tuple[int, bytes]]:
    for number, order in enumerate(_orders(count)):
        text = {**order, "amount": str(order["amount"]), "placed_at": f"{order['placed_at']:%Y-%m-%dT%H:%M:%SZ}"}
        yield number, json.dumps(text, separators=(",", ":")).encode()


def _avro(count: int, schema_id: int) -> Iterator[tuple[int, bytes]]:
    schema = fastavro.parse_schema(SCHEMA)
    for number, order in enumerate(_orders(count)):
        written = io.BytesIO(b"\0" + schema_id.to_bytes(4, "big"))
        written.seek(5)
        fastavro.schemaless_writer(written, schema, order)
        yield number, written.getvalue()


def _protobuf(count: int) -> Iterator[tuple[int, bytes]]:
    message = message_class(FILES, "shop.Order")
    for number, order in enumerate(_orders(count)):
        yield number, b"\0\0\0\0\1\0" + message(**order | {"amount": str(order["amount"])}).SerializeToString()
