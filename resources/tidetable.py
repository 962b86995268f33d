"""The Dagster resource: connects to engine, lake and Kafka at first use, and captures one cut per run."""

from __future__ import annotations

from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING

from resources.embedded_kafka import EmbeddedKafka
from resources.embedded_registry import EmbeddedRegistry
from resources.kafka import Kafka
from resources.registry import Registry
from spark.engine.land import capture
from spark.engine.ports import Ports

if TYPE_CHECKING:
    from resources.engine import Engine
    from resources.lakehouse import Lakehouse
    from resources.process import Running
    from spark.engine.log.position import Cut
    from spark.topology import Topology

RUNS = 16  # cuts in the cache: every op of a run asks for its cut, and few runs share a process


class Tidetable:
    """The engine, the lake, the Kafka cluster and the schema registry.

    If `kafka` is the lake's own broker, it starts at first use. The lake's own registry starts on request only.
    """

    def __init__(
        self,
        engine: Engine,
        lakehouse: Lakehouse,
        kafka: Kafka | EmbeddedKafka,
        registry: Registry | EmbeddedRegistry | None = None,
    ) -> None:
        self.engine = engine
        self.lakehouse = lakehouse
        self.kafka = kafka
        self.registry = registry
        self._captured = lru_cache(maxsize=RUNS)(self._capture)
        self._capturing = Lock()
        self._serving: Running | None = None
        """The lake's own broker, once this process has seen it serve."""
        self._cluster = lru_cache(maxsize=1)(lambda address: Kafka({"bootstrap.servers": address}))

    def cut(self, topology: Topology, run: str) -> Cut:
        """The cut of a topology in a run: captured at the first call, the same at every later one."""
        with self._capturing:  # ops run side by side, and the cache would capture a cut for each
            return self._captured(topology, run)

    def ports(self) -> Ports:
        """The connections. Starts the lake's own broker unless it runs, and waits until it serves."""
        return Ports(self.engine, self.lakehouse, self.cluster(), self.schema_registry())

    def schema_registry(self) -> Registry | None:
        """The schema registry; None if there is none: no setting names one, and the lake's own was never started."""
        if not isinstance(self.registry, EmbeddedRegistry):
            return self.registry
        return _own_registry(self.registry.url) if self.registry.exists else None

    def cluster(self) -> Kafka:
        """The Kafka cluster. Starts the lake's own broker unless it runs."""
        return self.kafka if isinstance(self.kafka, Kafka) else self._cluster(self._served_by(self.kafka))

    def listening(self) -> Kafka | None:
        """The Kafka cluster; None if it is the lake's own broker and does not run. Starts nothing."""
        if isinstance(self.kafka, Kafka):
            return self.kafka
        running = self.kafka.running()
        return None if running is None else self._cluster(running.address)

    def _served_by(self, broker: EmbeddedKafka) -> str:
        """The bootstrap servers of a serving broker: one that another process has just started may not serve yet."""
        running = broker.running()
        if running is not None and running == self._serving:
            return running.address
        address = broker.start()
        self._serving = broker.running()
        return address

    def _capture(self, topology: Topology, run: str) -> Cut:  # noqa: ARG002  # part of the cache's key
        return capture(self.ports().kafka, topology)


@lru_cache
def _own_registry(url: str) -> Registry:
    """The lake's own registry; one for each URL, because it holds the schemas that it has read."""
    return Registry({"url": url}, "the lake's own; start it: tidetable up --registry")
