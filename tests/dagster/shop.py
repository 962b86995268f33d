"""Records for the project's own topology, `shop`."""

from __future__ import annotations

import json

from resources.kafka import Kafka

Value = dict[str, object] | bytes | None


def open_topics(kafka: Kafka) -> None:
    """The shop's topics."""
    for topic in ("orders", "customers", "products", "clicks"):
        kafka.create_topic(topic)


def put(kafka: Kafka, topic: str, key: object, value: Value) -> None:
    """One record: JSON, bytes as they are, or a tombstone."""
    producer = kafka.producer()
    data = value if value is None or isinstance(value, bytes) else json.dumps(value)
    producer.produce(topic, key=str(key), value=data)
    producer.flush()


def stock(kafka: Kafka) -> None:
    """A customer and a product."""
    put(kafka, "customers", 7, {"name": "Ada", "country": "de"})
    put(kafka, "products", "lamp", {"title": "Lamp", "price": "20.00"})


def order(kafka: Kafka, number: int, amount: str = "600.00") -> None:
    """An order of that customer for that product."""
    put(kafka, "orders", number, {"customer_id": 7, "sku": "lamp", "quantity": 1, "amount": amount})
