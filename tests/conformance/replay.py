"""Our side: the same records through `TopologyTestDriver`, many worlds in one frame.

A world is played in one of two ways. In a chain, record i of every world is batch i. Cut, a world of n records becomes
2n worlds of two batches: what came before record i, then record i alone, or then all the rest. A step starts from
nothing but the tables at its position, so these are all steps of batch size one, and all cuts in two, in two steps.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from spark.testing import TopologyTestDriver

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark.topology.topology import Topology
    from tests.conformance.cases import Record, World
    from tests.conformance.oracle import State


@dataclass(frozen=True)
class Play:
    """A world of ours: whose records it has, in batches, and after which of its steps each batch ends."""

    world: int
    batches: tuple[Sequence[Record], ...]
    ends: tuple[int, ...]
    """How many records of the world are through after each batch."""


@dataclass(frozen=True)
class Seen:
    """Every table of one play, before its first batch and after each."""

    play: Play
    tables: dict[str, list[State]]


def chained(worlds: Sequence[World]) -> list[Play]:
    """Each world as it is, a record a batch."""
    return [
        Play(world, tuple((record,) for record in records), tuple(range(1, len(records) + 1)))
        for world, records in enumerate(worlds)
    ]


def cut(worlds: Sequence[World]) -> list[Play]:
    """Each world cut before each of its records, to go on with that record, and with all the rest."""
    return [
        Play(world, (records[:at], records[at:end]), (at, end))
        for world, records in enumerate(worlds)
        for at in range(len(records))
        for end in (at + 1, len(records))
    ]


def replayed(
    session: SparkSession, topology: Topology, plays: Sequence[Play], advanced: Callable[[], None] = lambda: None
) -> list[Seen]:
    """What the tables were after each batch. Records of topics that the topology does not have are passed over.

    `advanced` is called after each batch.
    """
    driver = TopologyTestDriver(topology, "all", session)
    names = [table.name for table in topology.tables]
    seen = [Seen(play, {name: [{}] for name in names}) for play in plays]
    for batch in range(max((len(play.batches) for play in plays), default=0)):
        _pipe(driver, topology, plays, batch)
        for name in names:
            for one, state in zip(seen, _states(driver, topology, name, plays), strict=True):
                if batch < len(one.play.batches):
                    one.tables[name].append(state)
        advanced()
    return seen


def _pipe(driver: TopologyTestDriver, topology: Topology, plays: Sequence[Play], batch: int) -> None:
    topics = {source.topic for source in topology.sources}
    for number, play in enumerate(plays):
        for record in play.batches[batch] if batch < len(play.batches) else ():
            if record.topic in topics:
                # As bytes: a record without a key has a part of one here, the world's, and may be piped all the same.
                key = json.dumps({"world": number, **record.key}).encode()
                driver.pipe(record.topic, key=key, value=record.value, timestamp=record.timestamp)
    driver.advance()


def _states(driver: TopologyTestDriver, topology: Topology, name: str, plays: Sequence[Play]) -> list[State]:
    """A table, as every play has it."""
    plan = topology.table(name).plan
    values = [column.name for column in plan.columns[len(plan.key) :]]
    states: list[State] = [{} for _ in plays]
    for (number, *key), row in driver._tables[name].rows.items():  # table() leaves out event times
        assert isinstance(number, int)
        time = row["_timestamp"]
        assert isinstance(time, datetime)
        cells = tuple(row[value] for value in values)
        states[number][plays[number].world, *key] = cells, round(time.timestamp() * 1000)
    return states
