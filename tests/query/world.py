"""People who move between cities at random: a table of a topic, an aggregate and a join of both, and an oracle."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from spark.query.reader import Reader
from spark.topology import Consumed, SessionWindows, StreamsBuilder, TimeWindows
from tests.support import lake
from tests.support.lake import Record, send

if TYPE_CHECKING:
    from collections.abc import Callable

    from resources.kafka import Kafka
    from spark.engine.ports import Ports
    from spark.topology import Topology

Row = dict[str, Any]
PEOPLE = 60
BASE = 1_700_000_000_000  # milliseconds
MINUTE = 60_000
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


@dataclass(frozen=True)
class Clicks:
    """Clicks on pages: tables by window, by session and in all, and the stream itself, after one wave.

    `minutes` are the minutes after `BASE` of the clicks, by page and user, and `count` is how many there are.
    """

    topology: Topology
    topic: str
    minutes: dict[tuple[str, str], list[int]]
    count: int

    @staticmethod
    def made(ports: Ports, kafka: Kafka, topic: Callable[..., str]) -> Clicks:
        """Land and step them."""
        name = topic("clicks")
        builder = StreamsBuilder(f"kinds-{name}")
        clicks = builder.stream(name, Consumed.json(key="id bigint", value="page string, user string"))
        groups = clicks.group_by("page", "user")
        groups.windowed_by(TimeWindows.of("10m", grace="0s")).count().materialize("tumbling")
        groups.windowed_by(SessionWindows.of("5m", grace="0s")).count().materialize("sittings")
        groups.count().materialize("totals")
        clicks.materialize("kept")
        topology = builder.build()
        at = {("a", "x"): [0, 1, 12, 13, 30], ("a", "y"): [2, 31], ("b", "x"): [3]}
        events = sorted((minute, *key) for key, minutes in at.items() for minute in minutes)
        records = [
            Record(number, {"page": page, "user": user}, timestamp=BASE + minute * MINUTE)
            for number, (minute, page, user) in enumerate(events)
        ]
        send(kafka, name, *records)
        lake.land_all(ports, topology)
        lake.step_all(ports, topology)
        return Clicks(topology, name, at, len(records))
