"""The world outside, and a shop whose five waves many tests look at."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from spark.engine.ports import Ports
from tests.engine import shop

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
def story(
    ports: Ports, kafka: Kafka, topic: Callable[..., str], tmp_path_factory: pytest.TempPathFactory
) -> shop.Story:
    """The shop after all its waves. Nobody changes it: tests that do take a copy."""
    return shop.tell(ports, kafka, topic, tmp_path_factory.mktemp("waves"))


@pytest.fixture
def session(engine: Engine) -> Iterator[SparkSession]:
    session = engine.session()
    yield session
    session.stop()
