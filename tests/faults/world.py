"""Orders that look up customers; the oracle is the last record of every key, then the join, in dicts."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from resources.lakehouse import Lakehouse
from spark.engine.repair import audit
from spark.topology import Consumed, StreamsBuilder, Topology
from tests import lake
from tests.faults.client import Client, Verb
from tests.lake import Key, Record, Row, send

if TYPE_CHECKING:
    from collections.abc import Callable

    from resources.kafka import Kafka
    from spark.engine.doors import Doors

Change = tuple[int, dict[str, lake.Value] | None]

ORDERS: list[list[Change]] = [
    [
        (1, {"customer_id": 1, "amount": 10}),
        (2, {"customer_id": 2, "amount": 20}),
        (3, {"customer_id": 9, "amount": 3}),
    ],
    [(1, {"customer_id": 2, "amount": 11}), (2, None), (4, {"customer_id": 1, "amount": 40})],
]
CUSTOMERS: list[list[Change]] = [
    [(1, {"name": "ada"}), (2, {"name": "bob"})],
    [(1, {"name": "ada l."}), (9, {"name": "zoe"})],
]


@dataclass(frozen=True)
class World:
    """The topics with both waves, and a lake for each stage.

    `empty`; `landed`: the first wave landed and the topics' tables stepped; `first`: the join stepped as well;
    `second`: the second wave landed and the topics' tables stepped; `moved`: the join stepped, and one more record
    landed, which has no key, and its table stepped.
    """

    doors: Doors
    bootstrap_servers: str
    topology: Topology
    stages: dict[str, Doors]

    @property
    def orders(self) -> str:
        """The topic of orders."""
        return self.topology.sources[0].topic

    def copy(self, stage: str, to: Path) -> Doors:
        """A lake at a stage, for one test alone."""
        there = lake.path(self.stages[stage], self.topology, "")
        if Path(there).exists():
            shutil.copytree(there, to / self.topology.name)
        return replace(self.doors, lakehouse=Lakehouse(str(to)))

    def client(self, doors: Doors, verb: Verb, name: str, topology: Topology | None = None) -> Client:
        """What works on a lake in a process of its own."""
        lakehouse, engine = doors.lakehouse, doors.engine
        assert isinstance(lakehouse, Lakehouse)
        url = engine.start()  # type: ignore[attr-defined]  # a real one, not only what the library needs of it
        return Client(url, self.bootstrap_servers, lakehouse.root, topology or self.topology, verb, name)

    def joined(self, waves: int) -> dict[Key, Row]:
        """What the join must hold after some waves."""
        orders, customers = (newest(changes[:waves]) for changes in (ORDERS, CUSTOMERS))
        return {
            key: {"amount": row["amount"], "name": customers[row["customer_id"]]["name"]}
            for key, row in orders.items()
            if row["customer_id"] in customers
        }

    def check_landing(self, doors: Doors, waves: int) -> None:
        """Every record of the topic is there once."""
        found = [
            (row["_offset"], row["order_id"], row["amount"]) for row in lake.records(doors, self.topology, self.orders)
        ]
        sent = [change for wave in ORDERS[:waves] for change in wave]
        assert found == [(n, key, None if row is None else row["amount"]) for n, (key, row) in enumerate(sent)]

    def check_join(self, doors: Doors, waves: int) -> None:
        """The rows are the oracle's, and the newest version is its query."""
        assert lake.rows(doors, self.topology, "joined") == self.joined(waves)
        found = audit(doors, self.topology, self.topology.table("joined"))
        assert found.holds, found.sample


def newest(waves: list[list[Change]]) -> dict[Key, Row]:
    """The newest row of every key that has one."""
    found: dict[Key, Row] = {}
    for key, row in (change for wave in waves for change in wave):
        found.pop(key, None)
        if row is not None:
            found[key] = row
    return found


def topology(orders: str, customers: str, more: str = "") -> Topology:
    """Orders that look up customers."""
    builder = StreamsBuilder(f"faults-{orders}")
    o = builder.table(orders, Consumed.json(key="order_id bigint", value=f"customer_id bigint, amount int{more}"))
    c = builder.table(customers, Consumed.json(key="customer_id bigint", value="name string"))
    o.join(c, on="customer_id", select=["left.amount", "right.name"]).materialize("joined")
    return builder.build()


def build(doors: Doors, kafka: Kafka, topic: Callable[..., str], stages: Path) -> World:
    """Send both waves, and keep the lake at every stage."""
    made = topology(topic("orders"), topic("customers"))
    o, c = (source.topic for source in made.sources)
    kept = {"empty": replace(doors, lakehouse=Lakehouse(str(stages / "empty")))}

    def wave(number: int) -> None:
        for name, changes in ((o, ORDERS), (c, CUSTOMERS)):
            send(kafka, name, *(Record(key, row) for key, row in changes[number]))

    wave(0)
    lake.land_all(doors, made)
    lake.step_all(doors, made, o, c)
    kept["landed"] = lake.copied(doors, made, stages / "landed")
    lake.step_all(doors, made, "joined")
    kept["first"] = lake.copied(doors, made, stages / "first")
    wave(1)
    lake.land_all(doors, made)
    lake.step_all(doors, made, o, c)
    kept["second"] = lake.copied(doors, made, stages / "second")
    lake.step_all(doors, made, "joined")
    send(kafka, c, Record(None, {"name": "nobody"}))
    lake.land_all(doors, made)
    lake.step_all(doors, made, c)
    kept["moved"] = lake.copied(doors, made, stages / "moved")
    return World(doors, kafka.address, made, kept)
