"""Landing a million records of the same columns in each format, turn by turn in one run: records per CPU-second.

Protobuf has no decimals: its amount is a text.
"""

from __future__ import annotations

import io
import json
import random
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

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
    from collections.abc import Callable, Iterator

    from spark.topology import Topology
    from tests.benchmarks.measure import Bench

JSON, AVRO, DEBEZIUM, PROTOBUF = "orders_json", "orders_avro", "orders_debezium", "orders_protobuf"
KEY = "order_id bigint"
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
DECLARED = {
    JSON: Consumed.json(key=KEY, value=ORDER),
    AVRO: Consumed.avro(key=KEY, value=ORDER, key_format="json"),
    DEBEZIUM: Consumed.debezium(key=KEY, value=ORDER, format="avro"),
    PROTOBUF: Consumed.protobuf(
        key=KEY,
        value=ORDER.replace("decimal(12,2)", "string"),
        message="shop.Order",
        descriptors=FILES,
        key_format="json",
    ),
}
SCHEMA: dict[str, Any] = {
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
KEY_SCHEMA = {"type": "record", "name": "Key", "fields": [{"name": "order_id", "type": "long"}]}
ZONED = {"type": "string", "connect.name": "io.debezium.time.ZonedTimestamp"}
ENVELOPE: dict[str, Any] = {
    "type": "record",
    "name": "Envelope",
    "fields": [
        {
            "name": "before",
            "type": [
                "null",
                {
                    "type": "record",
                    "name": "Value",
                    "fields": [
                        {"name": "order_id", "type": "long"},
                        *(
                            one if one["name"] != "placed_at" else {"name": "placed_at", "type": ZONED}
                            for one in SCHEMA["fields"]
                        ),
                    ],
                },
            ],
        },
        {"name": "after", "type": ["null", "Value"]},
        {
            "name": "source",
            "type": {
                "type": "record",
                "name": "Source",
                "fields": [
                    *({"name": name, "type": "string"} for name in ("version", "connector", "name", "db", "schema")),
                    {"name": "table", "type": "string"},
                    *({"name": name, "type": "long"} for name in ("ts_ms", "ts_us", "ts_ns", "txId", "lsn")),
                ],
            },
        },
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": "long"},
    ],
}
"""As the connector for PostgreSQL writes it."""


def run(bench: Bench) -> list[Row]:
    """Records per CPU-second of the engine, and how many times as many as JSON."""
    count, own = bench.scaled(1_000_000), EmbeddedRegistry(bench.lake)
    registry = Registry({"url": own.start()})
    try:
        number = registry.register(f"{AVRO}-value", "AVRO", json.dumps(SCHEMA))
        key, value = (
            registry.register(f"{DEBEZIUM}-{part}", "AVRO", json.dumps(schema))
            for part, schema in (("key", KEY_SCHEMA), ("value", ENVELOPE))
        )
        written = {
            JSON: _json(count),
            AVRO: _avro(count, number),
            DEBEZIUM: _debezium(count, key, value),
            PROTOBUF: _protobuf(count),
        }
        for topic, records in written.items():
            bench.kafka.create_topic(topic, 4)
            produce(bench.kafka, topic, records)
        bench.engine_warm_up()
        ports = Ports(bench.engine, bench.lakehouse, bench.kafka, registry)
        found: dict[str, list[float]] = {topic: [] for topic in written}
        for turn in bench.turns("formats", warm_up=1):
            for topic, rates in found.items():
                rate = count / _landed(ports, _topology(topic, turn), count)
                if turn > 0:
                    rates.append(rate)
    finally:
        own.stop()
    times = {
        topic: [rate / json_ for json_, rate in zip(found[JSON], found[topic], strict=True)]
        for topic in (AVRO, DEBEZIUM)
    }
    return [
        row("land 1 M records of JSON", found[JSON], "records/CPU-s"),
        row("land 1 M records of Avro", found[AVRO], "records/CPU-s"),
        row("Avro / JSON", times[AVRO], "x records/CPU-s", at_least=2),
        row("land 1 M events of Debezium in Avro", found[DEBEZIUM], "records/CPU-s"),
        row("Debezium in Avro / JSON", times[DEBEZIUM], "x records/CPU-s", at_least=1),
        row("land 1 M records of Protobuf", found[PROTOBUF], "records/CPU-s"),
    ]


def _topology(topic: str, turn: int) -> Topology:
    builder = StreamsBuilder(f"formats{turn}")
    builder.table(topic, DECLARED[topic])
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


def _json(count: int) -> Iterator[tuple[int | bytes, bytes]]:
    for number, order in enumerate(_orders(count)):
        text = {**order, "amount": str(order["amount"]), "placed_at": f"{order['placed_at']:%Y-%m-%dT%H:%M:%SZ}"}
        yield number, json.dumps(text, separators=(",", ":")).encode()


def _avro(count: int, schema_id: int) -> Iterator[tuple[int | bytes, bytes]]:
    write = _writer(SCHEMA, schema_id)
    for number, order in enumerate(_orders(count)):
        yield number, write(order)


def _debezium(count: int, key_id: int, value_id: int) -> Iterator[tuple[int | bytes, bytes]]:
    key, value = _writer(KEY_SCHEMA, key_id), _writer(ENVELOPE, value_id)
    source = {"version": "3.2.0.Final", "connector": "postgresql", "name": "shop", "db": "shop", "schema": "public"}
    at = 1_700_000_000_000
    for number, order in enumerate(_orders(count)):
        its = {"order_id": number}
        after = {**its, **order, "placed_at": f"{order['placed_at']:%Y-%m-%dT%H:%M:%S.000000Z}"}
        times = {"ts_ms": at, "ts_us": at * 1000, "ts_ns": at * 1_000_000, "txId": number, "lsn": number * 100}
        told = {
            "before": None,
            "after": after,
            "source": {**source, "table": "orders", **times},
            "op": "c",
            "ts_ms": at,
        }
        yield key(its), value(told)


def _protobuf(count: int) -> Iterator[tuple[int | bytes, bytes]]:
    message = message_class(FILES, "shop.Order")
    for number, order in enumerate(_orders(count)):
        yield number, b"\0\0\0\0\1\0" + message(**order | {"amount": str(order["amount"])}).SerializeToString()


def _writer(schema: dict[str, Any], schema_id: int) -> Callable[[object], bytes]:
    """Write values behind the id of their schema."""
    parsed, before = fastavro.parse_schema(schema), b"\0" + schema_id.to_bytes(4, "big")

    def write(value: object) -> bytes:
        written = io.BytesIO()
        fastavro.schemaless_writer(written, parsed, value)
        return before + written.getvalue()

    return write
