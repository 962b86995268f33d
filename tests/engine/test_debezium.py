"""Debezium topics on a real broker and in real tables: changes of keys across partitions, unknown values, replays."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from spark.engine.audit import audit
from spark.engine.counts import counted, table_counts
from spark.engine.errors import TopicUnordered, ValuesUnknown
from spark.engine.publish import publish
from spark.engine.quarantine import redecode
from spark.engine.status import statuses, with_counts
from spark.topology import Consumed, StreamsBuilder
from tests.support import lake

if TYPE_CHECKING:
    from collections.abc import Callable

    from resources.kafka import Kafka
    from spark.engine.ports import Ports
    from spark.topology import Topology

GONE = "__debezium_unavailable_value"
WIDE = Consumed.debezium(key="id int", value="name string, note string, city int")


def shop(customers: str, orders: str, out: str, consumed: Consumed = WIDE) -> Topology:
    """Orders with the note of their customer, published."""
    builder = StreamsBuilder(f"captured-{customers}")
    table = builder.table(customers, consumed)
    placed = builder.table(orders, Consumed.debezium(key="id int", value="customer int"))
    joined = placed.left_join(table, on="customer", select=["left.*", "right.note"])
    joined.materialize("noted").to(out)
    return builder.build()


class Connector:
    """Writes events of a table into a topic."""

    def __init__(self, kafka: Kafka, topic: str) -> None:
        self.producer = kafka.producer()
        self.topic = topic
        self.at = 1_700_000_000_000

    def event(self, op: str, key: int | None, after: object = None, partition: int = 0, **headers: int) -> None:
        """One event; `oldkey` and `newkey` are headers."""
        source = {"ts_ms": self.at, "lsn": self.at, "table": "t"}
        value = {"before": None, "after": after, "source": source, "op": op}
        self.send(key, json.dumps(value).encode(), partition, headers)

    def send(
        self, key: int | None, value: bytes | None, partition: int = 0, headers: dict[str, int] | None = None
    ) -> None:
        """One record."""
        named = {f"__debezium.{name}": json.dumps({"id": other}).encode() for name, other in (headers or {}).items()}
        raw = None if key is None else json.dumps({"id": key}).encode()
        self.producer.produce(self.topic, key=raw, value=value, partition=partition, headers=list(named.items()))
        assert self.producer.flush(30) == 0

    def put(self, key: int, op: str = "u", partition: int = 0, **row: object) -> None:
        """An insert or an update."""
        self.at += 1
        self.event(op, key, {"id": key, **row}, partition)


def tick(ports: Ports, topology: Topology) -> None:
    """Land and step everything."""
    lake.land_all(ports, topology)
    lake.step_all(ports, topology)


def test_a_value_that_lies_in_another_partition_is_unknown_until_it_has_landed(
    ports: Ports, kafka: Kafka, topic: Callable[..., str]
) -> None:
    customers, orders, out = topic("customers", 2), topic("orders"), topic("noted")
    topology = shop(customers, orders, out)
    people, placed = Connector(kafka, customers), Connector(kafka, orders)
    people.put(1, "r", name="Ada", note="long", city=1)
    people.put(1, name="Ada L.", note=GONE, city=2)
    people.put(2, "c", name="Ben", note=None, city=3)
    placed.put(7, "c", customer=1)
    tick(ports, topology)
    assert lake.rows(ports, topology, customers) == {
        1: {"name": "Ada L.", "note": "long", "city": 2},
        2: {"name": "Ben", "note": None, "city": 3},
    }
    publish(ports, topology, topology.table("noted"))

    people.at += 1
    people.event("c", 10, {"id": 10, "name": "Ada", "note": GONE, "city": 2}, partition=1, oldkey=1)
    placed.put(7, customer=10)
    tick(ports, topology)
    assert lake.rows(ports, topology, customers, ["note"])[10] == {"note": None}
    found = {
        one.table: one for one in with_counts(ports.lakehouse, topology, statuses(ports.lakehouse, topology, None))
    }
    assert (found[customers].unknown, found["noted"].unknown) == ({"note": 1}, None)
    with pytest.raises(ValuesUnknown, match=rf"noted is not published to {out}: .*{customers}.note \(1 rows\)"):
        publish(ports, topology, topology.table("noted"))

    people.event("d", 1, newkey=10)
    people.send(1, None, headers={"newkey": 10})
    tick(ports, topology)
    assert lake.rows(ports, topology, customers, ["note", "_unavailable"]) == {
        2: {"note": None, "_unavailable": None},
        10: {"note": "long", "_unavailable": None},
    }
    publish(ports, topology, topology.table("noted"))
    told = [record.change for record in lake.received(kafka, out)]
    assert told == [(7, {"customer": 1, "note": "long"}), (7, {"customer": 10, "note": "long"})]
    for name in (customers, "noted"):
        assert audit(ports, topology, topology.table(name)).holds, name
    counts = counted(ports.lakehouse, topology, topology.source(customers))
    assert counts is not None
    assert (counts.rows, counts.tombstones, counts.quarantined, counts.wrong) == (4, 2, 0, ())
    taken = table_counts(ports.lakehouse, topology, topology.table(customers))
    assert taken is not None
    assert (taken.rows, taken.superseded) == (2, 4)


@pytest.mark.thorough
def test_a_record_that_leaves_quarantine_completes_those_after_it(
    ports: Ports, kafka: Kafka, topic: Callable[..., str]
) -> None:
    customers, orders, out = topic("customers", 2), topic("orders"), topic("noted")
    strict, topology = (
        shop(customers, orders, out, Consumed.debezium(key="id int", value=f"name string, note string{more}"))
        for more in (", city int", "")
    )
    people = Connector(kafka, customers)
    people.put(1, "c", name="Ada", note="old", city=1)
    people.put(1, name="Ada", note="new", city="text")
    people.at += 1
    people.event("d", 1, newkey=10)
    people.send(1, None, headers={"newkey": 10})
    people.event("c", 10, {"id": 10, "name": "Ada", "note": GONE, "city": 1}, partition=1, oldkey=1)
    lake.land_all(ports, strict)
    tick(ports, topology)
    assert lake.rows(ports, topology, customers, ["note"]) == {10: {"note": "old"}}
    redecode(ports, topology, topology.source(customers), "test")
    tick(ports, topology)
    assert lake.rows(ports, topology, customers, ["note"]) == {10: {"note": "new"}}
    assert audit(ports, topology, topology.table(customers)).holds


def test_a_truncate_needs_one_partition_and_to_be_asked_for(
    ports: Ports, kafka: Kafka, topic: Callable[..., str]
) -> None:
    one, two = topic("one"), topic("two", 2)
    asked = Consumed.debezium(key="id int", value="name string", truncate=True)
    builder = StreamsBuilder(f"truncated-{one}")
    builder.table(one, asked)
    topology = builder.build()
    it = Connector(kafka, one)
    it.put(1, "c", name="Ada")
    tick(ports, topology)
    it.put(2, "c", name="Ben")
    it.event("t", None)
    it.put(3, "c", name="Cyd")
    tick(ports, topology)
    assert lake.rows(ports, topology, one) == {3: {"name": "Cyd"}}
    assert audit(ports, topology, topology.table(one)).holds
    several = StreamsBuilder(f"truncated-{two}")
    several.table(two, asked)
    with pytest.raises(
        TopicUnordered, match=r"has 2 partitions, and is declared with truncate=True at .*test_debezium"
    ):
        lake.land_all(ports, several.build())
