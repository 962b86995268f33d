"""The benchmarks' shop: orders that look up customers, as a topology and as topics of a given size."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

from spark.topology import Consumed, StreamsBuilder

if TYPE_CHECKING:
    from collections.abc import Iterable

    from resources.kafka import Kafka
    from spark.topology import Topology

ORDER = "customer_id bigint, amount decimal(12,2), quantity int, status string, placed_at timestamp, note string"
PARTITIONER = "murmur2_random"  # that of Kafka's own producer; Kafka Streams joins partition by partition
NOTE = "abcdefghijklmnopqrstuvwxyz" * 2  # fills a record up to some 140 bytes, the size in design section 10


def shop(name: str, orders: str = "orders", customers: str = "customers") -> Topology:
    """Orders enriched with their customer, by foreign key, driven by both sides."""
    builder = StreamsBuilder(name)
    left = builder.table(orders, Consumed.json(key="order_id bigint", value=ORDER))
    right = builder.table(customers, Consumed.json(key="customer_id bigint", value="name string, country string"))
    left.join(right, on="customer_id", select=["left.*", "right.name", "right.country"]).materialize("enriched")
    return builder.build()


def order(rng: random.Random, customers: int) -> bytes:
    """An order's value: some 140 bytes of JSON."""
    return (
        f'{{"customer_id":{rng.randrange(customers)},"amount":"{rng.randrange(100_000) / 100:.2f}",'
        f'"quantity":{rng.randrange(1, 10)},"status":"paid","placed_at":"2026-11-20T10:{rng.randrange(60):02d}:00Z",'
        f'"note":"{NOTE[: rng.randrange(10, 22)]}"}}'
    ).encode()


def customer(rng: random.Random, number: int) -> bytes:
    """A customer's value."""
    return json.dumps({"name": f"customer {number} {rng.randrange(1000)}", "country": rng.choice("ABCDEFGH")}).encode()


def produce(kafka: Kafka, topic: str, records: Iterable[tuple[int | str | bytes, bytes | None]]) -> None:
    """Send records, whose keys are numbers, JSON or bytes, and wait until the broker has them. None is a tombstone."""
    settings: dict[str, int | str] = {
        "linger.ms": 50,
        "compression.type": "lz4",
        "partitioner": PARTITIONER,
        "queue.buffering.max.messages": 2_000_000,
    }
    producer = kafka.producer(**settings)
    for number, (key, value) in enumerate(records):
        producer.produce(topic, key=key if isinstance(key, bytes) else str(key), value=value)
        if number % 10_000 == 0:
            producer.poll(0)
    producer.flush()
