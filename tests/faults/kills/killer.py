"""Whoever kills with SIGKILL, at random moments: the client, the engine, the broker, or all of them at once."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from resources.embedded_kafka import EmbeddedKafka
from tests.support.lake import until

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerProcess

    from resources.engine import Engine
    from tests.faults.kills.ticking import Client, Ended

Victim = Literal["client", "engine", "broker", "all"]

BOUND = 600.0  # seconds for anything to happen at all, on a laden machine
HASTE = 0.25  # of the kills: not behind a tick that ended well, but while the kill before is being made good


@dataclass
class Killer:
    """Keeps one client alive but for the moments when it is to die."""

    client: Client
    rng: random.Random

    def kill(self, victims: list[Victim]) -> Counter[Victim]:
        """Kill them one after the other; behind the last one, a tick must end well again."""
        killed: Counter[Victim] = Counter()
        process = self.client.started(f"client-{0:03}")
        try:
            seconds = self._recovered(process)
            for number, victim in enumerate(victims, start=1):
                if self.rng.random() > HASTE:
                    seconds = self._recovered(process)
                time.sleep(self.rng.uniform(0, seconds))  # somewhere in a tick as long as the last one
                self.client.kills.note()
                self._end(victim, process)
                self.client.kills.note()
                killed[victim] += 1
                if not process.is_alive():
                    process = self.client.started(f"client-{number:03}")
            self._recovered(process)
        finally:
            process.kill()
            process.join()
        return killed

    def _recovered(self, process: ForkServerProcess) -> float:
        """Wait until a whole tick has ended since the last kill, and ended well; how many seconds it took."""
        ended: list[Ended] = []

        def whole() -> bool:
            assert process.is_alive(), f"a client ended by itself, with exit code {process.exitcode}"
            now = self.client.kills.noted()
            ended[:] = [one for one in self.client.ticks() if one.alone and one.before == now]
            return ended != []

        until(whole, BOUND)
        assert all(one.failed == {} for one in ended), ended
        return ended[-1].seconds

    def _end(self, victim: Victim, process: ForkServerProcess) -> None:
        servers: list[Engine | EmbeddedKafka] = []
        if victim in ("engine", "all"):
            servers.append(self.client.engine)
        if victim in ("broker", "all"):
            assert isinstance(self.client.kafka, EmbeddedKafka)
            servers.append(self.client.kafka)
        pids = []
        for server in servers:
            until(server.running, BOUND)  # a client is about to start it again, if it is not there
            running = server.running()
            pids += [] if running is None else [running.pid]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        if victim in ("client", "all"):
            process.kill()
            process.join()
        for server in servers:
            until(partial(down, server), BOUND)


def down(server: Engine | EmbeddedKafka) -> bool:
    """Whether it has ended."""
    return server.running() is None
