"""Orders that look up customers; the oracle is the last record of every key, then the join, in dicts.

A seed draws the keys, the values, and records that a later one of their wave replaces. What kind of changes a wave
makes is always the same, so that every seed's runs have the same effects.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from resources.lakehouse import Lakehouse
from spark.engine.log.merge import LITERALS
from spark.topology import Consumed, StreamsBuilder, Topology
from spark.topology.sql.ddl import quoted
from tests.support import lake
from tests.support.lake import Key, Record, Row, send

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from resources.kafka import Kafka
    from spark.engine.ports import Ports

Change = tuple[int | None, dict[str, lake.Value] | None]
Waves = tuple[tuple[Change, ...], ...]

MANY = LITERALS + 100
"""More keys than a condition has, in the wave that brings many orders."""

NOTE = ", note string"
"""A column that the declaration of orders gains."""


@dataclass(frozen=True)
class Story:
    """What is sent to both topics, wave by wave: the join is made, changed, and not touched."""

    orders: Waves
    customers: Waves

    @staticmethod
    def drawn(seed: int) -> Story:
        """The story of a seed."""
        random = Random(seed)
        a, b, c, d, e = random.sample(range(1, 1_000), 5)
        ada, bob, zoe = random.sample(range(1, 1_000), 3)

        def order(key: int, customer: int) -> list[Change]:
            """An order, and before it maybe others of its key, which nobody will see."""
            versions = random.choice((1, 1, 2, 3))
            return [(key, {"customer_id": customer, "amount": random.randrange(10_000)}) for _ in range(versions)]

        def customer(key: int, name: str) -> Change:
            return key, {"name": f"{name} {random.randrange(10_000)}"}

        orders: Waves = (
            (*order(a, ada), *order(b, bob), *order(c, zoe)),
            (*order(a, bob), (b, None), *order(d, ada)),
            (),
            (*order(a, ada), (d, None), *order(e, bob)),
            (*order(a, bob), *(change for n in range(MANY) for change in order(1_000 + n, ada if n % 2 else bob))),
        )
        customers: Waves = (
            (customer(ada, "ada"), customer(bob, "bob")),
            (customer(ada, "ada"), customer(zoe, "zoe")),
            ((None, {"name": "nobody"}),),
            (),
            (),
        )
        return Story(orders, customers)

    def joined(self, waves: int) -> dict[Key, Row]:
        """What the join must hold after some waves."""
        orders, customers = newest(self.orders[:waves]), newest(self.customers[:waves])
        return {
            key: {"amount": row["amount"], "name": customers[row["customer_id"]]["name"]}
            for key, row in sorted(orders.items())
            if row["customer_id"] in customers
        }

    def told(self) -> list[tuple[Key, Row | None]]:
        """What a reader of the published join has: the table of the first wave, then what the second one changed."""
        first, second = self.joined(1), self.joined(2)
        keys = (key for key in range(1_000) if key in first or key in second)
        return [*first.items(), *((key, second.get(key)) for key in keys if first.get(key) != second.get(key))]


@dataclass(frozen=True)
class World:
    """The topics with all waves, and a lake for each stage.

    `empty`; `landed`: the first wave landed and the topics' tables stepped; `first`: the join stepped as well;
    `second`: the second wave landed and the topics' tables stepped; `moved`: the join stepped, and the third wave
    landed, which is one record without a key, and its table stepped; `spoiled`: then somebody's hand was in the join.
    `gained`: as `second`, but orders have a column more, and their table has it. `ordered`: as `moved` with the join
    stepped, and the fourth wave landed, which changes orders alone, and the topics' tables stepped. `many`: the same
    with the fifth wave, which has more orders than a condition has keys.
    `followed`: as `moved`, and another topology has the join as it was at `first`.
    """

    ports: Ports
    topology: Topology
    story: Story
    stages: dict[str, Ports]

    @property
    def orders(self) -> str:
        """The topic of orders."""
        return self.topology.sources[0].topic

    def copy(self, stage: str, to: Path) -> Ports:
        """A lake at a stage, for one cell alone."""
        there = lake.path(self.stages[stage], self.topology, "")
        if Path(there).exists():
            shutil.copytree(there, to / self.topology.name)
        if stage == "followed":
            follower = self.follower.name
            shutil.copytree(Path(there).with_name(follower), to / follower)
        return replace(self.ports, lakehouse=Lakehouse(str(to)))

    @property
    def follower(self) -> Topology:
        """A topology that has the join of this one."""
        return following(self.topology)

    def sent(self, topic: str, waves: int) -> tuple[Change, ...]:
        """The records of a topic after some waves, in order."""
        told = self.story.orders if topic == self.orders else self.story.customers
        return tuple(change for wave in told[:waves] for change in wave)

    def declared(
        self, more: str = "", passed: tuple[str, ...] = (), amount: str = "left.amount", sink: str | None = None
    ) -> Topology:
        """The topology, with a column more, which the join passes on, or the amount otherwise, or published."""
        orders, customers = (source.topic for source in self.topology.sources)
        made = topology(orders, customers, more, passed, amount)
        tables = tuple(replace(table, topic=sink if table.name == "joined" else None) for table in made.tables)
        return replace(made, tables=tables)


def newest(waves: Sequence[Sequence[Change]]) -> dict[Key, Row]:
    """The newest row of every key that has one."""
    found: dict[Key, Row] = {}
    for key, row in (change for wave in waves for change in wave):
        if key is not None:
            found.pop(key, None)
        if key is not None and row is not None:
            found[key] = row
    return found


def topology(
    orders: str, customers: str, more: str = "", passed: tuple[str, ...] = (), amount: str = "left.amount"
) -> Topology:
    """Orders that look up customers."""
    builder = StreamsBuilder(f"faults-{orders}")
    o = builder.table(orders, Consumed.json(key="order_id bigint", value=f"customer_id bigint, amount int{more}"))
    c = builder.table(customers, Consumed.json(key="customer_id bigint", value="name string"))
    o.join(c, on="customer_id", select=[amount, "right.name", *passed]).materialize("joined")
    return builder.build()


def following(leader: Topology) -> Topology:
    """A copy of the join, under its name, in another topology."""
    builder = StreamsBuilder(f"follows-{leader.name}")
    read = builder.read_only_table(
        "leader", from_=f"{leader.name}.joined", key="order_id bigint", value="amount int, name string"
    )
    read.materialize("joined")
    return builder.build()


def build(
    ports: Ports, kafka: Kafka, topic: Callable[[str], str], stages: Path, seed: int, until: str = "spoiled"
) -> World:
    """Send all waves, and keep the lake at every stage; or until one of them, for errands that begin there."""
    story, made = Story.drawn(seed), topology(topic("orders"), topic("customers"))
    o, c = (source.topic for source in made.sources)
    kept = {"empty": replace(ports, lakehouse=Lakehouse(str(stages / "empty")))}

    def wave(number: int, at: Ports = ports) -> None:
        for name, changes in ((o, story.orders), (c, story.customers)):
            send(kafka, name, *(Record(key, row) for key, row in changes[number]))
        lake.land_all(at, made)
        lake.step_all(at, made, o, c)

    def keep(stage: str) -> None:
        kept[stage] = lake.copied(ports, made, stages / stage)

    wave(0)
    keep("landed")
    lake.step_all(ports, made, "joined")
    keep("first")
    follower = following(made)
    lake.step_all(kept["first"], follower)
    wave(1)
    keep("second")
    lake.step_all(ports, made, "joined")
    wave(2)
    keep("moved")
    keep("followed")
    shutil.move(lake.path(kept["first"], follower, ""), lake.path(kept["followed"], follower, ""))
    if until == "moved":
        return World(ports, made, story, kept)
    kept["gained"] = lake.copied(kept["second"], made, stages / "gained")
    lake.step_all(kept["gained"], topology(o, c, more=NOTE), o)
    session = ports.engine.session()
    try:
        session.sql(f"UPDATE delta.{quoted(lake.path(ports, made, 'joined'))} SET amount = amount + 1").collect()
    finally:
        session.stop()
    keep("spoiled")
    kept["ordered"] = lake.copied(kept["moved"], made, stages / "ordered")
    lake.step_all(kept["ordered"], made, "joined")
    wave(3, kept["ordered"])
    kept["many"] = lake.copied(kept["ordered"], made, stages / "many")
    lake.step_all(kept["many"], made, "joined")
    wave(4, kept["many"])
    return World(ports, made, story, kept)
