"""One engine and one broker for the whole run of tests, started when first asked for, by whichever worker asks."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]  # it has no types

from resources.embedded_kafka import EmbeddedKafka
from resources.embedded_registry import EmbeddedRegistry
from resources.engine import Engine
from resources.kafka import Kafka
from resources.lakehouse import Lakehouse
from resources.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable

LAKE = "TIDETABLE_TESTS_LAKE"
SERVERS = "TIDETABLE_TESTS_SERVERS"
"""Names a folder whose engine and broker are used, and left running for the next run of tests."""

TOGETHER = (
    ("tests/dagster",),  # they share the topology that is shipped
    ("tests/faults/test_boundaries", "tests/faults/test_matrix"),  # and these a world
    ("tests/engine/test_rebuild", "tests/engine/test_step", "tests/engine/test_tick"),  # and these the shop's story
)
"""Beginnings of files that one worker takes, one after the other."""

WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")


def pytest_configure() -> None:
    """Make the lake of this run, which its workers find in their environment."""
    if not WORKER:
        os.environ[LAKE] = tempfile.mkdtemp(prefix="tidetable-tests-")


def pytest_sessionfinish(exitstatus: int) -> None:
    """Stop the servers when the last test is over; the lake of a run that failed stays to be looked at."""
    if WORKER:
        return
    lake = Path(os.environ[LAKE])
    if SERVERS not in os.environ:
        for server in servers(lake):
            server.stop()
        if (registry := own_registry(lake)).exists:
            registry.stop()
    if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        shutil.rmtree(lake, ignore_errors=True)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Files go to workers whole; those that share what is dear to make, to one."""

    class ByFile(LoadFileScheduling):  # type: ignore[misc]  # xdist is not typed
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            return next((files[0] for files in TOGETHER if file.startswith(files)), file)

    return ByFile(config, log)


def servers(lake: Path) -> tuple[Engine, EmbeddedKafka]:
    """The two servers of a lake, running or not."""
    home = Path(os.environ.get(SERVERS, lake))
    return Engine(home, memory="4g", cores="2"), EmbeddedKafka(home)


def own_registry(lake: Path) -> EmbeddedRegistry:
    """The schema registry of a lake, running or not; only the tests that ask for it start it."""
    return EmbeddedRegistry(Path(os.environ.get(SERVERS, lake)))


@pytest.fixture(scope="session")
def lake_root() -> Path:
    """The lake of this run; each test makes topologies of its own in it."""
    return Path(os.environ[LAKE])


@pytest.fixture(scope="session")
def _servers(request: pytest.FixtureRequest, lake_root: Path) -> tuple[Engine, EmbeddedKafka]:
    """Those of the two servers that this run needs, started side by side: a cold JVM is what takes time."""
    engine, broker = servers(lake_root)
    wanted = {name for item in request.session.items for name in getattr(item, "fixturenames", ())}
    starts = [start for name, start in (("engine", engine.start), ("kafka", broker.start)) if name in wanted]
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda start: start(), starts))
    return engine, broker


@pytest.fixture(scope="session")
def engine(_servers: tuple[Engine, EmbeddedKafka]) -> Engine:
    """The resident engine; a test that kills one starts its own."""
    return _servers[0]


@pytest.fixture(scope="session")
def kafka(_servers: tuple[Engine, EmbeddedKafka]) -> Kafka:
    """A real broker."""
    return Kafka({"bootstrap.servers": _servers[1].bootstrap_servers})


@pytest.fixture(scope="session")
def registry(lake_root: Path) -> Registry:
    """A real schema registry, one for the whole run."""
    return Registry({"url": own_registry(lake_root).start()})


@pytest.fixture(scope="session")
def topic(kafka: Kafka) -> Callable[..., str]:
    """Make a topic of a name that no other test has: `topic("orders", partitions=2)` gives `orders-7`."""
    numbers = count(1)
    run = f"{uuid.uuid4().hex[:6]}-" if SERVERS in os.environ else ""  # the broker has the topics of earlier runs

    def create(name: str = "topic", partitions: int = 1, config: dict[str, str] | None = None) -> str:
        unique = f"{name}-{run}{WORKER}{next(numbers)}"
        kafka.create_topic(unique, partitions, config)
        return unique

    return create


@pytest.fixture(scope="session")
def lakehouse(lake_root: Path) -> Lakehouse:
    """Where this run's tables are."""
    return Lakehouse(str(lake_root))
