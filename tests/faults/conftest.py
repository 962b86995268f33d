"""A small join, its topics with two waves of records, and lakes at three stages of it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from spark.engine.doors import Doors
from tests.faults.world import World, build

if TYPE_CHECKING:
    from collections.abc import Callable

    from resources.engine import Engine
    from resources.kafka import Kafka
    from resources.lakehouse import Lakehouse


# An engine that is killed costs a cold start each time: `make faults` runs these, `make test` does not.
collect_ignore = [] if os.environ.get("TIDETABLE_FAULTS") else ["test_engine_killed.py"]


@pytest.fixture(scope="session")
def world(
    engine: Engine,
    lakehouse: Lakehouse,
    kafka: Kafka,
    topic: Callable[..., str],
    tmp_path_factory: pytest.TempPathFactory,
) -> World:
    """Nobody changes its lakes: tests take copies."""
    return build(Doors(engine, lakehouse, kafka), kafka, topic, tmp_path_factory.mktemp("stages"))
