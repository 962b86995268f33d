"""What every benchmark has: the servers, turns, and rows with a median, a spread and a limit."""

from __future__ import annotations

import platform
import statistics
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import psutil
from pyspark.sql import functions as F
from rich.console import Console
from rich.progress import track

from resources.embedded_kafka import EmbeddedKafka
from resources.engine import Engine
from resources.kafka import Kafka
from resources.lakehouse import Lakehouse
from spark.engine.ports import Ports
from tests.support.lake import NoEngine

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Item = TypeVar("Item")


@dataclass(frozen=True)
class Row:
    """One figure: the median of its turns, their least and greatest, and the limit it is measured against."""

    what: str
    unit: str
    median: float
    least: float
    greatest: float
    turns: int
    limit: str
    holds: bool | None


def row(
    what: str, values: Sequence[float], unit: str, at_least: float | None = None, at_most: float | None = None
) -> Row:
    """A row of the turns' values."""
    median = statistics.median(values)
    limit, holds = "", None
    if at_least is not None:
        limit, holds = f">= {at_least:,g}", median >= at_least
    if at_most is not None:
        limit, holds = f"<= {at_most:,g}", median <= at_most
    return Row(what, unit, median, min(values), max(values), len(values), limit, holds)


@dataclass(frozen=True)
class Bench:
    """The servers of one run, in a lake of their own. `sizes` are those of the case `growing`, before scaling."""

    lake: Path
    repeat: int
    scale: float
    sizes: tuple[int, ...]
    console: Console

    @cached_property
    def engine(self) -> Engine:
        """The engine as users get it."""
        return Engine(self.lake, cores="2")

    @cached_property
    def broker(self) -> EmbeddedKafka:
        """The broker, on the same cores."""
        return EmbeddedKafka(self.lake)

    @cached_property
    def kafka(self) -> Kafka:
        """A connection to the broker."""
        return Kafka({"bootstrap.servers": self.broker.start()})

    @cached_property
    def lakehouse(self) -> Lakehouse:
        """Where the tables are."""
        return Lakehouse(str(self.lake))

    @cached_property
    def ports(self) -> Ports:
        """Everything outside."""
        return Ports(self.engine, self.lakehouse, self.kafka)

    @cached_property
    def idle_doors(self) -> Ports:
        """Everything outside but the engine."""
        return Ports(NoEngine(), self.lakehouse, self.kafka)

    def scaled(self, count: int) -> int:
        """A number of records, smaller where only the benchmark itself is tried."""
        return int(count * self.scale)

    def turns(self, what: str, warm_up: int = 0) -> Iterable[int]:
        """The turns of a case, and some before it that are not counted."""
        return track(range(self.repeat + warm_up), what, console=self.console)

    def progress(self, items: Sequence[Item], what: str) -> Iterable[Item]:
        """Long preparation, seen."""
        return track(items, what, console=self.console)

    def say(self, text: str) -> None:
        """A line beside the progress."""
        self.console.print(f"  [dim]{text}")

    def engine_warm_up(self) -> None:
        """Start the engine and let it run a job: a cold JVM is not what is measured."""
        session = self.engine.session()
        session.range(1_000_000).selectExpr("sum(id)").collect()
        session.stop()

    def same(self, one: str, other: str) -> None:
        """Two tables must hold the same rows, or the comparison was of two different things."""
        session = self.engine.session()
        a, b = (session.read.format("delta").load(path) for path in (one, other))
        # Sums over the rows' hashes, not a difference of the rows: that would shuffle ten million of them, twice.
        sums = [F.count("*")] + [
            F.sum(F.xxhash64(F.struct(*a.columns), F.lit(n)).cast("decimal(38,0)")) for n in (0, 1)
        ]
        [found], [wanted] = (frame.select(*sums).collect() for frame in (a, b))
        session.stop()
        assert found == wanted, f"{one} and {other} differ: {found}, {wanted}"

    def memory(self) -> list[Row]:
        """Peak resident memory of engine, broker and this client, as the kernel kept it."""
        pids = {"engine": self.engine.running(), "broker": self.broker.running()}
        peaks = {name: peak(running.pid) for name, running in pids.items() if running is not None}
        peaks["client"] = peak(psutil.Process().pid)
        return [row(f"peak memory, {name}", [mib], "MiB") for name, mib in peaks.items()]


def peak(pid: int) -> float:
    """The peak resident memory of a process, in MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise LookupError(f"/proc/{pid}/status names no peak; this benchmark needs Linux")


def cpu(pid: int) -> float:
    """The CPU seconds of a process so far, and of its children that have ended."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)


def machine() -> dict[str, str | int]:
    """What it ran on."""
    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        "",
    )
    return {
        "cpu": model,
        "cores": psutil.cpu_count() or 0,
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load_1m": str(round(psutil.getloadavg()[0], 1)),
    }
