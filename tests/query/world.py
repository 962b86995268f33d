"""People who move between cities at random: a table of a topic, an aggregate and a join of both, and an oracle."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from spark.query.reader import Reader
from spark.topology import Consumed, StreamsBuilder
from tests.support import lake
from tests.support.lake import Record, send

if TYPE_CHECKING:
    from collections.abc import Callable

    from resources.kafka import Kafka
    from spark.engine.ports import Ports
    from spark.topology import Topology

Row = dict[str, Any]
PEOPLE = 60
CITIES = ("Aachen", "Bonn", "Bochum", "Köln")


@dataclass
class World:
    """`people` are the rows by id after the newest wave, `by_version` those at each version that a wave committed."""

    ports: Ports
    kafka: Kafka
    topology: Topology
    topic: str
    rng: random.Random
    people: dict[int, Row] = field(default_factory=dict)
    by_version: dict[int, dict[int, Row]] = field(default_factory=dict)
    sent: int = 0

    @staticmethod
    def made(ports: Ports, kafka: Kafka, topic: Callable[..., str], seed: int) -> World:
        """A topology that no record has reached."""
        name = topic("people")
        builder = StreamsBuilder(f"query-{name}")
        people = builder.table(name, Consumed.json(key="id bigint", value="name string, city string"))
        cities = people.group_by("city").count().materialize("cities")
        people.join(cities, on="city", select=["left.*", "right.count"]).materialize("neighbours")
        return World(ports, kafka, builder.build(), name, random.Random(seed))

    @property
    def reader(self) -> Reader:
        """A new reader of the lake."""
        return Reader(self.ports.lakehouse.table("", "").rstrip("/"))

    @property
    def table(self) -> str:
        """The name of the table of people."""
        return f"{self.topology.name}.{self.topic}"

    def wave(self) -> None:
        """Send some random records, land and step them, and note what the table must have."""
        records = []
        for number in self.rng.sample(range(PEOPLE), 12):
            if self.rng.random() < 0.25:
                self.people.pop(number, None)
                records.append(Record(number))
                continue
            row = {"name": f"n{self.rng.randrange(1000)}", "city": self.rng.choice(CITIES)}
            self.people[number] = {"id": number, **row}
            records.append(Record(number, row))
        send(self.kafka, self.topic, *records)
        self.sent += len(records)
        lake.land_all(self.ports, self.topology)
        stepped = lake.step_all(self.ports, self.topology)[self.topic]
        assert stepped.after is not None
        self.by_version[stepped.after.version] = dict(self.people)

    def cities(self) -> dict[str, int]:
        """How many people each city has."""
        found: dict[str, int] = {}
        for row in self.people.values():
            found[row["city"]] = found.get(row["city"], 0) + 1
        return found

    def changes_of(self, number: int) -> list[tuple[int, Row | None]]:
        """The versions that changed the row of a person, with the row after each."""
        found: list[tuple[int, Row | None]] = []
        was = None
        for version, rows in self.by_version.items():
            if rows.get(number) != was:
                was = rows.get(number)
                found.append((version, was))
        return found
