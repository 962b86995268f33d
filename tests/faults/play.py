"""Play cells: hold clients where they shall fail, let it happen, run again, and judge.

A server that is killed costs a cold start, so that a kill is shared: every client of a batch is stopped at its place in
a lake of its own, then the servers die, once for all, then the clients go on.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import psutil

from resources.embedded_kafka import EmbeddedKafka
from resources.engine import Engine
from resources.kafka import Kafka
from resources.lakehouse import Lakehouse
from spark.engine.ports import Ports
from spark.engine.publish import publish
from tests.faults import judge
from tests.faults.client import Client, failing, started, working
from tests.faults.judge import Verdict
from tests.faults.matrix import ERRANDS, Cell
from tests.faults.world import World, build

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerProcess

    from spark.topology import Topology

POLL = 0.01  # seconds between two looks at a client
PATIENCE = 600.0  # seconds for a client to come to its place or to its end, on a laden machine
AWAY = 3.0  # seconds from the death of a broker, its clients at work, until it is started again
AT_ONCE = 4  # clients that work at once, but for those that a kill wakes together

Hit = Literal["before", "inside", "behind"]

Worlds = Callable[[int, int], World]
"""By seed and number."""

MAY = (  # what a client may say whose server died, or whom another run overtook
    "RetriesExceeded",
    "SparkConnectGrpcException",
    "KafkaUnavailable",
    "NotCommitted",
    "ServerFailed",
)


@dataclass(frozen=True)
class Result:
    """What came of a cell: the verdict, and what the clients said."""

    cell: Cell
    verdict: Verdict
    said: tuple[str, ...]
    wrong: str = ""
    """What happened that must not, besides what the verdict tells."""
    hit: Hit | None = None
    """Where the client was of the effect that it should be at when the kill came."""
    seconds: float = 0.0
    """How long it took: an equal share of its batch."""

    @property
    def holds(self) -> bool:
        """Whether all is as it must be."""
        return self.verdict.holds and not self.wrong


@dataclass
class Process:
    """A client's process, and what came of it."""

    process: ForkServerProcess
    result: Path

    def stopped(self) -> bool:
        """Wait until it stopped at its place; False if it ended before."""
        return _until(lambda: _status(self.process.pid) in (psutil.STATUS_STOPPED, None)) and self.process.is_alive()

    def told(self, how: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        if self.process.is_alive():
            with suppress(ProcessLookupError):  # it ended just now
                os.kill(int(self.process.pid or 0), how)

    def hit(self) -> Hit:
        """Where it is of the effect at its place."""
        if self.result.with_suffix(".behind").exists():
            return "behind"
        return "inside" if self.result.with_suffix(".inside").exists() else "before"

    def reached(self) -> None:
        """Wait until it is inside the effect at its place, or past it."""
        _until(lambda: self.hit() != "before" or not self.process.is_alive())

    def ended(self) -> str:
        """Wait for its end; what came of the verb, or the error it failed by."""
        self.process.join(PATIENCE)
        if self.process.is_alive():
            self.process.kill()
            return "hangs"
        if self.process.exitcode == -signal.SIGKILL:
            return "killed"
        if self.process.exitcode == 0:
            return self.result.read_text()
        said = self.result.with_suffix(".said")
        _, _, raised = (said.read_text() if said.exists() else "").rpartition("Traceback (most recent call last):\n")
        lines = [line for line in raised.splitlines() if line[:1].strip()]
        return f"error {lines[0] if lines else f'exit code {self.process.exitcode}, without a word'}"


@dataclass
class Played:
    """A cell while it is played: its own lake, topology and sink, and its clients."""

    cell: Cell
    world: World
    ports: Ports
    made: Topology
    folder: Path
    since: int
    run: str = field(default_factory=lambda: str(uuid.uuid4()))
    numbers: Iterator[int] = field(default_factory=count)
    held: list[Process] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    wrong: str = ""
    hit: Hit | None = None


@dataclass(frozen=True)
class Playground:
    """The servers, and a folder for everything else."""

    engine: Engine
    broker: EmbeddedKafka
    folder: Path
    topic: Callable[[str], str]

    @property
    def kafka(self) -> Kafka:
        """The broker, started unless it runs."""
        return Kafka({"bootstrap.servers": self.broker.start()})

    def play(self, cells: Sequence[Cell], worlds: Worlds) -> list[Result]:
        """Play cells of one fault, as one batch, in worlds that are found by seed and number.

        Publishers of one world have one name, so a batch's are in worlds of other numbers.
        """
        began, publishers, places = time.monotonic(), Counter[int](), list[tuple[int, int]]()
        cells = sorted(cells, key=lambda cell: cell.publishes)  # held last: a transaction lives for a minute
        for cell in cells:
            places.append((cell.seed, publishers[cell.seed] if cell.publishes else 0))
            publishers[cell.seed] += cell.publishes
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(lambda place: worlds(*place), dict.fromkeys(places)))  # each made once, some beside others
            played = list(pool.map(self._prepared, cells, [worlds(*place) for place in places]))
            list(pool.map(self._held, played))
            self._struck(played)
            results = list(pool.map(self._judged, played))
        return [replace(result, seconds=(time.monotonic() - began) / len(results)) for result in results]

    def _prepared(self, cell: Cell, world: World) -> Played:
        errand, folder = ERRANDS[cell.errand], Path(tempfile.mkdtemp(dir=self.folder))
        ports = world.copy(errand.stage, folder)
        sink = self.topic("sink") if errand.verb == "publish" else None
        made = world.declared(errand.more, errand.passed, errand.amount, sink)
        made = world.follower if errand.follows else made
        if cell.errand == "publishing":
            publish(world.stages["first"], made, made.table("joined"))
        target = made.source(world.orders).landing if errand.verb == "land" else "joined"
        return Played(cell, world, ports, made, folder, judge.newest(ports, made, target))

    def client(self, errand: str, world: World) -> Client:
        """A client that is about to run an errand."""
        return self._client(self._prepared(Cell(errand, 0, "client"), world), "undisturbed")

    def _client(self, played: Played, run: str) -> Client:
        verb, lakehouse = ERRANDS[played.cell.errand].verb, played.ports.lakehouse
        assert isinstance(lakehouse, Lakehouse)
        name = played.world.orders if verb == "land" else "joined"
        return Client(self.engine, self.broker, lakehouse.root, played.made, verb, name, run)

    def _started(self, played: Played, run: str, work: Callable[..., None] = working, at: int | None = None) -> Process:
        result = played.folder / f"result-{next(played.numbers)}"
        return Process(started(work, self._client(played, run), at, str(result)), result)

    def _held(self, played: Played) -> None:
        """Bring the clients to their place; what needs no server's death happens at once."""
        cell = played.cell
        if cell.fault == "retry":
            self._heard(played, self._started(played, played.run, failing, cell.place))
            return
        for _ in range(2 if cell.fault == "twice" else 1):
            played.held.append(self._started(played, played.run, at=cell.place))
        came = [one.stopped() for one in played.held]
        if not any(came) or (cell.fault != "twice" and not all(came)):  # one of two finds done what the other one did
            played.wrong = "a client ended before its place"
        if cell.fault == "zombie":
            self._heard(played, self._started(played, "other"))
        if cell.fault in ("zombie", "twice"):
            self._woken(played)

    def _struck(self, played: Sequence[Played]) -> None:
        """Let die what shall, once for all."""
        held = [one for one in played if one.held]
        if not held:
            return
        fault = held[0].cell.fault
        working = [one for one in held if one.cell.moment == "while"]
        if fault == "client":
            self._killed_alone(held)
            return
        for process in (process for one in working for process in one.held):
            process.told(signal.SIGCONT)
        if working:
            working[0].held[0].reached()
            time.sleep(working[0].cell.delay)  # the moment of the kill
        if fault == "all":
            for process in (process for one in held for process in one.held):
                process.told(signal.SIGKILL)
        for server in (self.engine, self.broker):
            running = server.running()
            if running is not None and fault in ("all", "engine" if server is self.engine else "broker"):
                os.kill(running.pid, signal.SIGKILL)
                for one in working:
                    one.hit = one.hit or one.held[0].hit()
                _until(lambda gone=server: gone.running() is None)  # type: ignore[misc]  # bound now
        for one in held:
            for process in one.held:
                process.told(signal.SIGCONT)
        if fault == "broker":  # else what reads it waits for minutes
            time.sleep(AWAY)
            self.broker.start()
        for one in held:
            self._woken(one)

    def _killed_alone(self, held: Sequence[Played]) -> None:
        for one in held:
            [process] = one.held
            at_work = one.cell.moment == "while"
            if at_work:
                process.told(signal.SIGCONT)
                process.reached()
                time.sleep(one.cell.delay)
            process.told(signal.SIGKILL)
            one.hit = process.hit() if at_work else None
            self._heard(one, process)

    def _woken(self, played: Played) -> None:
        for process in played.held:
            process.told(signal.SIGCONT)
        for process in played.held:
            self._heard(played, process)
        played.held.clear()

    def _heard(self, played: Played, process: Process) -> None:
        said = process.ended()
        played.said.append(said)
        allowed = said == "killed" or not said.startswith(("error", "hangs")) or any(f"{may}:" in said for may in MAY)
        if not allowed:
            played.wrong = said

    def _judged(self, played: Played) -> Result:
        said = self._started(played, "again").ended()
        played.said.append(said)
        if said.startswith(("error", "hangs")):
            played.wrong = said
        verdict = self._verdict(played)
        result = Result(played.cell, verdict, tuple(played.said), played.wrong, played.hit)
        if result.holds:
            shutil.rmtree(played.folder)
        return result

    def _verdict(self, played: Played) -> Verdict:
        errand, world = ERRANDS[played.cell.errand], played.world
        ports = replace(played.ports, kafka=self.kafka)
        if errand.verb == "land":
            return judge.of_landing(world, ports, world.orders, errand.waves, played.since)
        if errand.verb == "publish":
            return judge.of_topic(world, ports, self.kafka, played.made, first=played.cell.errand != "publishing")
        once = (
            errand.verb in ("step", "attach", "follow") and not errand.passed
        )  # else what died may have committed a position alone
        return judge.of_table(world, ports, played.made, errand.waves, played.since, once)


@contextmanager
def own_servers(folder: Path, memory: str, cores: str = "*") -> Iterator[tuple[Playground, Worlds]]:
    """A playground on servers that nobody else uses, and its worlds, each made when it is first asked for."""
    engine, broker, numbers = Engine(folder, memory=memory, cores=cores), EmbeddedKafka(folder), count(1)

    def topic(name: str) -> str:
        made = f"{name}-{next(numbers)}"
        Kafka({"bootstrap.servers": broker.start()}).create_topic(made)
        return made

    playground = Playground(engine, broker, folder, topic)

    @cache
    def world(seed: int, number: int) -> World:
        kafka = playground.kafka
        ports = Ports(engine, Lakehouse(str(folder / f"lake-{seed}-{number}")), kafka)
        until = "spoiled" if number == 0 else "moved"  # all others are for publishers
        return build(ports, kafka, topic, folder / f"stages-{seed}-{number}", seed, until)

    try:
        yield playground, world
    finally:
        engine.stop()
        broker.stop()


def _status(pid: int | None) -> str | None:
    """What a process does; None if it ended."""
    try:
        status: str = psutil.Process(pid).status()
    except psutil.NoSuchProcess:
        return None
    return None if status in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD) else status


def _until(done: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL)
    return True
