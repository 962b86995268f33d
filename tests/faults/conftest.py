"""The playground of the kill matrix on the servers of this run, and its world."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import pytest

from spark.engine.ports import Ports
from tests.conftest import servers
from tests.faults.play import Playground
from tests.faults.world import World, build

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from resources.engine import Engine
    from resources.kafka import Kafka
    from resources.lakehouse import Lakehouse


@pytest.fixture(scope="session")
def worlds(
    engine: Engine,
    lakehouse: Lakehouse,
    kafka: Kafka,
    topic: Callable[..., str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[int, int], World]:
    """The world of a seed and a number. Nobody changes its lakes: cells take copies."""
    ports = Ports(engine, lakehouse, kafka)
    return cache(lambda seed, _: build(ports, kafka, topic, tmp_path_factory.mktemp("stages"), seed))


@pytest.fixture(scope="session")
def playground(
    engine: Engine, topic: Callable[..., str], lake_root: Path, tmp_path_factory: pytest.TempPathFactory
) -> Playground:
    """Where cells are played that kill no server: others use those too."""
    return Playground(engine, servers(lake_root)[1], tmp_path_factory.mktemp("cells"), topic)
