"""Another checkout of a leader, in a process of its own: one tick by its own definition, and what failed."""

from __future__ import annotations

import sys
from pathlib import Path

from resources.embedded_kafka import EmbeddedKafka
from resources.engine import Engine
from resources.kafka import Kafka
from resources.lakehouse import Lakehouse
from spark.engine.ports import Ports
from spark.engine.tick import tick
from tests.engine.test_leaders import leading


def main(servers: str, folder: str, customers: str, value: str, where: str) -> None:
    """Tick the leader of `customers` in the lake that has its folder."""
    home = Path(servers)
    kafka = Kafka({"bootstrap.servers": EmbeddedKafka(home).bootstrap_servers})
    ports = Ports(Engine(home, memory="4g", cores="2"), Lakehouse(str(Path(folder).parent)), kafka)
    failed = tick(ports, leading(customers, where, value), "second").failed
    for name, error in sorted(failed.items()):
        print(name, type(error).__name__, error)


if __name__ == "__main__":
    main(*sys.argv[1:])
