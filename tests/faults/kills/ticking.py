"""The client: a process that ticks again and again, as `tidetable run --follow` does, and writes down each tick."""

from __future__ import annotations

import faulthandler
import json
import multiprocessing
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.errors.exceptions.connect import SparkConnectGrpcException

from assets.failures import TRANSIENT
from resources.tidetable import Tidetable
from spark.engine.errors import engine_died
from spark.engine.tick import tick

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext, ForkServerProcess

    from resources.embedded_kafka import EmbeddedKafka
    from resources.engine import Engine
    from resources.kafka import Kafka
    from resources.lakehouse import Lakehouse
    from spark.topology import Topology


@dataclass(frozen=True)
class Kills:
    """The file in which the killer notes one byte before each kill and one behind it."""

    path: Path

    def note(self) -> None:
        """A kill begins, or has been done."""
        with self.path.open("ab") as file:
            file.write(b".")

    def noted(self) -> int:
        """How often that was; an odd number while one is under way."""
        return self.path.stat().st_size


@dataclass(frozen=True)
class Ended:
    """A tick that ended: between which kills, what of it failed, and its seconds."""

    before: int
    after: int
    failed: dict[str, str]
    seconds: float

    @property
    def alone(self) -> bool:
        """Whether nothing was killed while it ran."""
        return self.before == self.after and self.before % 2 == 0


@dataclass(frozen=True)
class Client:
    """What a process needs to tick."""

    engine: Engine
    lakehouse: Lakehouse
    kafka: Kafka | EmbeddedKafka
    topology: Topology
    kills: Kills
    told: Path

    def tick_for_ever(self, name: str) -> None:
        """Until killed. What passes by itself is tried again, by the next tick; anything else ends the process."""
        faulthandler.enable()
        tidetable = Tidetable(self.engine, self.lakehouse, self.kafka)
        number = 0
        with (self.told / f"{name}.jsonl").open("w", buffering=1) as report:
            while True:
                number, before, began = number + 1, self.kills.noted(), time.monotonic()
                try:
                    done = tick(tidetable.ports(), self.topology, f"{name}-{number}")
                    failed = {table: f"{type(error).__name__}: {error}" for table, error in done.failed.items()}
                except SparkConnectGrpcException as error:
                    if not engine_died(error):
                        raise
                    failed = {"tick": f"{type(error).__name__}: {error}"}
                except TRANSIENT as error:
                    failed = {"tick": f"{type(error).__name__}: {error}"}
                report.write(f"{json.dumps([before, self.kills.noted(), failed, time.monotonic() - began])}\n")

    def ticks(self) -> list[Ended]:
        """What all processes wrote down; a killed one may have left half a line."""
        lines = [line for file in sorted(self.told.glob("*.jsonl")) for line in file.read_text().splitlines(True)]
        return [Ended(*json.loads(line)) for line in lines if line.endswith("\n")]

    def started(self, name: str) -> ForkServerProcess:
        """A process that ticks; it begins with everything imported, and without a thread or a connection of ours."""
        context: ForkServerContext = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        process = context.Process(target=self.tick_for_ever, args=(name,), daemon=True)
        process.start()
        return process

    def restarted(self, process: ForkServerProcess, name: str) -> ForkServerProcess:
        """Kill a process that ticks, and start another one."""
        assert process.is_alive(), "it ended by itself"
        self.kills.note()
        process.kill()
        process.join()
        self.kills.note()
        return self.started(name)
