"""Everything outside as one resource: doors that open when first needed, and one cut for all of a run."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from resources.embedded_kafka import EmbeddedKafka
from resources.kafka import Kafka
from spark.engine.doors import Doors
from spark.engine.land import capture

if TYPE_CHECKING:
    from resources.engine import Engine
    from resources.lakehouse import Lakehouse
    from resources.process import Running
    from spark.engine.position import Cut
    from spark.topology import Topology

RUNS = 16  # cuts remembered: a run asks for its own again and again, and few runs share a process


class Tidetable:
    """The engine, the lake and the cluster; `kafka` may be the lake's own broker, started at first use."""

    def __init__(self, engine: Engine, lakehouse: Lakehouse, kafka: Kafka | EmbeddedKafka) -> None:
        self.engine = engine
        self.lakehouse = lakehouse
        self.kafka = kafka
        self.cut = lru_cache(maxsize=RUNS)(self._capture)
        """The cut of a topology in a run: captured when first asked for, the same ever after."""
        self._serving: Running | None = None
        """The lake's own broker that was last seen to serve."""
        self._cluster = lru_cache(maxsize=1)(lambda address: Kafka({"bootstrap.servers": address}))

    def doors(self) -> Doors:
        """Open doors; the lake's own broker is started unless it runs, and serves when we return."""
        return Doors(self.engine, self.lakehouse, self.cluster())

    def cluster(self) -> Kafka:
        """The cluster, or the lake's own broker, which is started unless it runs."""
        return self.kafka if isinstance(self.kafka, Kafka) else self._cluster(self._served_by(self.kafka))

    def listening(self) -> Kafka | None:
        """The cluster; None if it is the lake's own broker and that does not run. Starts nothing."""
        if isinstance(self.kafka, Kafka):
            return self.kafka
        running = self.kafka.running()
        return None if running is None else self._cluster(running.address)

    def _served_by(self, broker: EmbeddedKafka) -> str:
        """Its bootstrap servers. A process that another client has just started runs, and does not serve yet."""
        running = broker.running()
        if running is not None and running == self._serving:
            return running.address
        address = broker.start()
        self._serving = broker.running()
        return address

    def _capture(self, topology: Topology, run: str) -> Cut:  # noqa: ARG002  # what the cut is kept by
        return capture(self.doors().kafka, topology)
