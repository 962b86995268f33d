"""A publisher killed with SIGKILL inside a transaction, or between two: readers have every change of the table once."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from spark.engine.publish import publish
from tests.faults.client import killed_publishing, started
from tests.lake import received

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from resources.kafka import Kafka
    from tests.faults.world import World


def told(world: World) -> list[tuple[object, object]]:
    """The table of the first wave, then what the second one changed, by key."""
    first, second = world.joined(1), world.joined(2)
    keys = [key for key in range(1, 5) if first.get(key) != second.get(key)]
    return [*((key, first[key]) for key in (1, 2)), *((key, second.get(key)) for key in keys)]


@pytest.mark.parametrize("number", [0, 1, 3, 4], ids=["first", "second", "last", "behind the last"])
def test_what_a_killed_publisher_left_is_undone_and_sent_again(
    world: World, kafka: Kafka, topic: Callable[..., str], tmp_path: Path, number: int
) -> None:
    sink = topic("sink")
    tables = tuple(replace(one, topic=sink if one.name == "joined" else None) for one in world.topology.tables)
    made = replace(world.topology, tables=tables)
    publish(world.stages["first"], made, made.table("joined"))
    doors = world.copy("moved", tmp_path)
    process = started(killed_publishing, world.client(doors, "publish", "joined", made), number)
    process.join(120)
    assert process.exitcode == -signal.SIGKILL
    done = publish(doors, made, made.table("joined"))
    assert (done.outcome, done.records) == ("idle" if number == 4 else "published", 4 - number)
    assert [one.change for one in received(kafka, sink)] == told(world)
    lost = 1 if number < 4 else 0
    assert len(received(kafka, sink, committed=False)) == len(told(world)) + lost
