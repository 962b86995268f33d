"""A world as small as it can be: records are taken away while it still differs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.conformance.cases import topology
from tests.conformance.compare import compared
from tests.conformance.replay import chained

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.conformance.cases import Kind, World
    from tests.conformance.compare import Difference
    from tests.conformance.oracle import Oracle


def shrunk(
    session: SparkSession, oracle: Oracle, kind: Kind, world: World, difference: Difference
) -> tuple[World, Difference]:
    """A world without what does not matter to its difference. All ways to lose one record are tried together."""
    world = world[: difference.after]
    while True:
        tried = [world[:at] + world[at + 1 :] for at in range(len(world))]
        answer = oracle.ask(topology([kind]), tried)
        found = compared(session, [kind], tried, answer, chained(tried)).differences
        if not found:
            return world, difference
        difference = min(found, key=lambda each: each.after)
        world = tried[difference.world][: difference.after]
