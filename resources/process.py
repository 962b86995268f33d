"""A server of the lake: it outlives the process that starts it, and every later process finds it."""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from urllib.parse import quote

import psutil

from resources.locked import locked

START = 120.0  # seconds for a server to answer: a cold engine takes 15 to 22 on two idle cores
STOP = 20.0  # seconds between SIGTERM and SIGKILL: a broker flushes its logs in less
CLOSE = 5.0  # seconds until the port of a killed process is free
POLL = 0.1  # seconds between two checks of a server that starts or stops
PORTS = range(20_000, 32_000)  # below the ephemeral ranges of Linux and macOS: no client takes a server's port

# Starts the server and exits, so that init adopts the server: it is never our zombie, and no terminal's end stops it.
# SIGTERM gets its default action: Dagster copies the action of SIGINT to it, and a shell's `&` ignores SIGINT.
DETACH = """
import signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_DFL)
log, *command = sys.argv[1:]
with open(log, "wb") as output:
    print(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT).pid)
"""

logger = logging.getLogger(__name__)


class ServerFailed(RuntimeError):
    """A server of the lake did not start or does not run, or a remote engine does not answer.

    Read the end of the server's log in the message, and the log file that it names. Free a port that another process
    uses. Then run `tidetable up`, which starts the server again.
    """


@dataclass(frozen=True)
class Running:
    """A server whose process is alive: the process id, and the `host:port` where it answers."""

    pid: int
    address: str


@dataclass(frozen=True)
class Launch:
    """The command and environment that start a server at `address` (`host:port`)."""

    address: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Server:
    """A server with at most one process per folder `home`: its working directory, with its record and log."""

    name: str
    home: Path

    @property
    def mark(self) -> str:
        """The JVM option that identifies a process as this server.

        A process id with its start time does not suffice: ids are reused, and start times shift with the clock.
        """
        return f"-Dtidetable.{self.name}={quote(str(self.home.resolve()))}"

    @property
    def log(self) -> Path:
        """The log file, which begins at the last start of the server."""
        return self.home / "server.log"

    def running(self) -> Running | None:
        """The server's process and address; None if the process is not alive."""
        try:
            running = Running(**json.loads(self._record.read_text()))
        except FileNotFoundError:
            return None
        return running if self._is_ours(running.pid) else None

    def start(self, launch: Callable[[], Launch]) -> Running:
        """Start the server unless it is alive and answers; its command must contain `mark`.

        Raises:
            ServerFailed: another process uses the port, or the server dies or does not answer within `START` seconds.
        """
        running = self.running()
        if running is not None and answers(running.address):
            return running
        with locked(self.home / "server.lock"):
            running = self.running()  # another process may have started it, or died while starting it
            if running is None or not self._is_answering(running):
                self._end()
                running = self._spawn(launch())
            return running

    def stop(self) -> None:
        """Stop the server: SIGTERM, then SIGKILL after `STOP` seconds."""
        with locked(self.home / "server.lock"):
            self._end()

    @property
    def _record(self) -> Path:
        return self.home / "server.json"

    def _spawn(self, launch: Launch) -> Running:
        # A killed process loses its command line at once, and its socket a moment later.
        if not _until(lambda: not answers(launch.address), CLOSE):
            raise ServerFailed(
                f"another process listens at {launch.address}, the address of the {self.name}: end that process"
            )
        began = time.monotonic()
        command = [sys.executable, "-ISc", DETACH, str(self.log.resolve()), *launch.command]
        environment = {**os.environ, **launch.environment}
        pid = subprocess.check_output(command, cwd=self.home, env=environment, start_new_session=True)
        running = Running(int(pid), launch.address)
        replace(self._record, json.dumps(asdict(running)))
        if not self._is_answering(running):
            what = (
                f"did not answer within {START:.0f} seconds" if self._is_ours(running.pid) else "ended while starting"
            )
            self._end()
            end = "\n".join(_last_lines(self.log))
            raise ServerFailed(f"the {self.name} {what}; the end of {self.log}:\n{end}")
        logger.info("%s: at %s after %.1f s, pid %d", self.name, launch.address, time.monotonic() - began, running.pid)
        return running

    def _is_answering(self, running: Running) -> bool:
        """Wait until the server answers; False if it dies, or does not answer within `START` seconds."""
        _until(lambda: answers(running.address) or not self._is_ours(running.pid), START)
        return answers(running.address) and self._is_ours(running.pid)

    def _end(self) -> None:
        """End every process with our mark, including one whose record was deleted with the lake."""
        for how in (signal.SIGTERM, signal.SIGKILL):
            pids = [pid for pid in psutil.pids() if self._is_ours(pid)]
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, how)
            if self._have_ended(pids):
                break
        self._record.unlink(missing_ok=True)

    def _have_ended(self, pids: Sequence[int]) -> bool:
        """Wait until the processes have ended; False if one is alive after `STOP` seconds."""
        return _until(lambda: not any(map(self._is_ours, pids)), STOP)

    def _is_ours(self, pid: int) -> bool:
        """Whether the process has our mark on its command line; a zombie has no command line."""
        try:
            return self.mark in " ".join(_command_line(pid)).split()
        except psutil.Error:
            return False


def _command_line(pid: int) -> list[str]:
    """The words of a process's command line.

    It is empty for a moment while a process executes its next program, so it is read again: otherwise a start script
    counts as dead while it becomes Java.
    """
    process = psutil.Process(pid)
    for _ in range(10):
        words: list[str] = process.cmdline()
        if words != [] or process.exe() == "":  # kernel threads have neither
            return words
        time.sleep(POLL)
    return []


def answers(address: str) -> bool:
    """Whether `host:port` accepts TCP connections."""
    host, port = address.rsplit(":", 1)
    try:
        with socket.create_connection((host, int(port)), timeout=2):  # seconds: the servers are on this machine
            return True
    except OSError:
        return False


def free_port() -> int:
    """A port of this machine that nothing listens on.

    Raises:
        ServerFailed: a hundred random ports are all in use.
    """
    for port in random.sample(PORTS, 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise ServerFailed(f"no free port: a hundred ports between {PORTS.start} and {PORTS.stop} are in use")


def _last_lines(log: Path, lines: int = 20) -> list[str]:
    """The last `lines` lines of a Java log without stack frames, which would displace the messages."""
    return [line for line in log.read_text(errors="replace").splitlines() if not line.startswith("\t")][-lines:]


def _until(done: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL)
    return True


def replace(path: Path, text: str) -> None:
    """Write the file atomically: its content is the old text or the new text."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)
