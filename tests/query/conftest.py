"""The world outside, and a topology whose random records an oracle follows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from spark.engine.ports import Ports
from tests.query.world import Clicks, World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from resources.engine import Engine
    from resources.kafka import Kafka
    from resources.lakehouse import Lakehouse


@pytest.fixture(scope="session")
def ports(engine: Engine, lakehouse: Lakehouse, kafka: Kafka) -> Ports:
    """Everything outside."""
    return Ports(engine, lakehouse, kafka)


@pytest.fixture(scope="session")
def world(ports: Ports, kafka: Kafka, topic: Callable[..., str]) -> World:
    """A table after some random waves. Nobody changes it."""
    made = World.made(ports, kafka, topic, seed=1)
    for _ in range(4):
        made.wave()
    return made


@pytest.fixture(scope="session")
def clicks(ports: Ports, kafka: Kafka, topic: Callable[..., str]) -> Clicks:
    """Windows, sessions and composite keys. Nobody changes them."""
    return Clicks.made(ports, kafka, topic)


@pytest.fixture
def session(engine: Engine) -> Iterator[SparkSession]:
    session = engine.session()
    yield session
    session.stop()
