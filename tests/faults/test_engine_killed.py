"""An engine killed before, while and after it commits: the client is told, or was served; the next run ends right."""

from __future__ import annotations

import os
import signal
from threading import Timer
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException
from pyspark.errors.exceptions.base import RetriesExceeded

from resources.engine import Engine
from spark.engine import commit
from spark.engine import position as positions
from spark.engine.doors import Doors
from spark.engine.land import capture, land
from spark.engine.repair import audit
from spark.engine.step import step
from tests import lake
from tests.faults.client import MOMENT
from tests.faults.world import newest, topology
from tests.lake import Record, send

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from resources.kafka import Kafka
    from resources.lakehouse import Lakehouse
    from spark.topology import Topology
    from tests.faults.world import Change

pytestmark = pytest.mark.filterwarnings(
    # pyspark's own code calls it when a session cannot be released, which here is how it should be.
    "ignore:The 'warn' method is deprecated:DeprecationWarning"
)


class Shop:
    """Orders and customers on an engine that may be killed."""

    def __init__(self, doors: Doors, engine: Engine, kafka: Kafka, made: Topology) -> None:
        self.doors, self.engine, self.kafka, self.topology = doors, engine, kafka, made
        self.orders, self.customers = (source.topic for source in made.sources)
        self.sent: list[Change] = []

    def wave(self) -> None:
        """Change orders 1 and 2, and add one."""
        n = len(self.sent)
        changes: list[Change] = [(key, {"customer_id": 1 + n % 2, "amount": n}) for key in (1, 2, 10 + n)]
        send(self.kafka, self.orders, *(Record(key, row) for key, row in changes))
        self.sent += changes

    def land(self) -> str:
        """Land the orders."""
        source = self.topology.source(self.orders)
        return land(self.doors, self.topology, source, capture(self.kafka, self.topology), "test").outcome

    def step(self, name: str) -> str:
        """Step a table."""
        return step(self.doors, self.topology, self.topology.table(name), "test").outcome

    def kill_engine(self) -> None:
        """End the engine as the kernel ends what uses too much memory."""
        running = self.engine.running()
        assert running is not None
        os.kill(running.pid, signal.SIGKILL)

    def check_landing(self) -> None:
        """Every record landed once."""
        records = lake.records(self.doors, self.topology, self.orders)
        found = [(row["_offset"], row["order_id"]) for row in records]
        assert found == [(n, key) for n, (key, _) in enumerate(self.sent)]

    def check_join(self) -> None:
        """The rows are the oracle's."""
        names = {1: "ada", 2: "bob"}
        assert lake.rows(self.doors, self.topology, "joined") == {
            key: {"amount": row["amount"], "name": names[int(str(row["customer_id"]))]}
            for key, row in newest([self.sent]).items()
        }


@pytest.fixture(scope="module")
def shop(
    kafka: Kafka, lakehouse: Lakehouse, topic: Callable[..., str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shop]:
    """A shop on an engine of its own, with a first wave stepped."""
    engine = Engine(tmp_path_factory.mktemp("engine"), memory="1g", cores="2")
    shop = Shop(Doors(engine, lakehouse, kafka), engine, kafka, topology(topic("orders"), topic("customers")))
    send(kafka, shop.customers, Record(1, {"name": "ada"}), Record(2, {"name": "bob"}))
    shop.wave()
    try:
        lake.land_all(shop.doors, shop.topology)
        lake.step_all(shop.doors, shop.topology)
        yield shop
    finally:
        engine.stop()


MOMENTS = ("before", "while", "after")


def killing(shop: Shop, moment: str, commits: Callable[..., object]) -> Callable[..., object]:
    """A commit around which the engine dies."""

    def committing(*arguments: object) -> object:
        if moment == "before":
            shop.kill_engine()
        if moment == "while":
            Timer(MOMENT, shop.kill_engine).start()
        done = commits(*arguments)
        if moment == "after":
            shop.kill_engine()
        return done

    return committing


def outcome(work: Callable[[], str]) -> str:
    """What came of it: an error of the connection is an outcome here."""
    try:
        return work()
    except (PySparkException, RetriesExceeded):
        return "an error"


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_landing_whose_engine_died_is_made_good_by_the_next_one(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    shop.wave()
    with monkeypatch.context() as patched:
        patched.setattr(commit, "_save", killing(shop, moment, commit._save))
        told = outcome(shop.land)
    assert told == "an error" if moment == "before" else told in ("an error", "landed")
    assert shop.land() in ("landed", "idle")
    shop.check_landing()


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_step_whose_engine_died_is_made_good_by_the_next_one(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    shop.wave()
    shop.land()
    shop.step(shop.orders)
    with monkeypatch.context() as patched:
        patched.setattr(commit, "run", killing(shop, moment, commit.run))
        told = outcome(lambda: shop.step("joined"))
    assert told == "an error" if moment == "before" else told in ("an error", "stepped")
    assert shop.step("joined") in ("stepped", "idle")
    shop.check_landing()
    shop.check_join()


def test_every_version_that_came_of_it_is_its_query(shop: Shop) -> None:
    target = shop.topology.table("joined")
    where = lake.path(shop.doors, shop.topology, "joined")
    for made in positions.commits(where, f"{shop.topology.name}/joined"):
        assert audit(shop.doors, shop.topology, target, made.version).holds
