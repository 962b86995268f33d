"""One engine and one broker for the whole run of tests, started when first asked for."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import TYPE_CHECKING

import pytest

from resources.embedded_kafka import EmbeddedKafka
from resources.engine import Engine
from resources.kafka import Kafka
from resources.lakehouse import Lakehouse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def lake_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The lake of this run; each test makes topologies of its own in it."""
    return tmp_path_factory.mktemp("lake")


@pytest.fixture(scope="session")
def _servers(request: pytest.FixtureRequest, lake_root: Path) -> Iterator[tuple[Engine, EmbeddedKafka]]:
    """Those of the two servers that this run needs, started side by side: a cold JVM is what takes time."""
    engine, broker = Engine(lake_root, memory="2g", cores="2"), EmbeddedKafka(lake_root)
    wanted = {name for item in request.session.items for name in getattr(item, "fixturenames", ())}
    starts = [start for name, start in (("engine", engine.start), ("kafka", broker.start)) if name in wanted]
    try:
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda start: start(), starts))
        yield engine, broker
    finally:
        engine.stop()
        broker.stop()


@pytest.fixture(scope="session")
def engine(_servers: tuple[Engine, EmbeddedKafka]) -> Engine:
    """The resident engine; a test that kills one starts its own."""
    return _servers[0]


@pytest.fixture(scope="session")
def kafka(_servers: tuple[Engine, EmbeddedKafka]) -> Kafka:
    """A real broker."""
    return Kafka({"bootstrap.servers": _servers[1].bootstrap_servers})


@pytest.fixture(scope="session")
def topic(kafka: Kafka) -> Callable[..., str]:
    """Make a topic of a name that no other test has: `topic("orders", partitions=2)` gives `orders-7`."""
    numbers = count(1)

    def create(name: str = "topic", partitions: int = 1, config: dict[str, str] | None = None) -> str:
        unique = f"{name}-{next(numbers)}"
        kafka.create_topic(unique, partitions, config)
        return unique

    return create


@pytest.fixture(scope="session")
def lakehouse(lake_root: Path) -> Lakehouse:
    """Where this run's tables are."""
    return Lakehouse(str(lake_root))
