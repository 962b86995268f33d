"""A schema registry of the lake's own, for users without one: Apicurio, by the API of Confluent's registry."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.error import URLError
from urllib.request import urlopen

from resources.jars import unpacked
from resources.java import java
from resources.process import POLL, START, Launch, Running, Server, ServerFailed, free_port, replace

if TYPE_CHECKING:
    from pathlib import Path

API = "/apis/ccompat/v7"
"""The path of Confluent's API."""

ANSWER = 5.0  # seconds for an answer, from a registry that has just started to accept connections


@dataclass(frozen=True)
class EmbeddedRegistry:
    """One registry per lake, in `<lake>/_registry`. Its port is chosen once, so its URL never changes.

    Schemas are in a file of the H2 database in that folder, so they are there after a restart.
    """

    lake: Path

    @property
    def url(self) -> str:
        """The registry's URL, whether it runs or not.

        Raises:
            ServerFailed: the registry was never started.
        """
        return f"http://{self._address}{API}"

    @property
    def exists(self) -> bool:
        """Whether the registry was ever started."""
        return self._port.exists()

    def start(self) -> str:
        """Start the registry unless it runs, wait until it answers, and return its URL.

        Raises:
            ServerFailed: the registry does not start, or does not answer within `START` seconds.
            JarsUnavailable: the registry is not in the cache, and cannot be fetched.
        """
        deadline = time.monotonic() + START
        while True:  # a registry that dies after it was found alive is started again
            self._server.start(self._launch)
            try:
                with urlopen(f"{self.url}/config", timeout=ANSWER):
                    return self.url
            except (URLError, OSError) as error:
                if time.monotonic() > deadline:
                    raise ServerFailed(
                        f"the registry at {self.url} accepts connections, but does not answer: {error}. Read its log"
                    ) from error
                time.sleep(POLL)

    def stop(self) -> None:
        """Stop the registry; its schemas remain."""
        self._server.stop()

    def running(self) -> Running | None:
        """The registry's process and address; None if the process is not alive."""
        return self._server.running()

    @property
    def _server(self) -> Server:
        return Server("registry", self.lake / "_registry")

    @property
    def _port(self) -> Path:
        return self._server.home / "port"

    @property
    def _address(self) -> str:
        if not self.exists:
            raise ServerFailed(f"the lake {self.lake} has no registry; start one: tidetable up --registry")
        return f"127.0.0.1:{self._port.read_text()}"

    def _launch(self) -> Launch:
        [runner] = unpacked("registry").glob("*-runner.jar")
        if not self.exists:
            replace(self._port, str(free_port()))
        host, port = self._address.split(":")
        settings = {
            "quarkus.http.host": host,
            "quarkus.http.port": port,
            "quarkus.datasource.jdbc.url": "jdbc:h2:file:./schemas",
            # 20 connections to a file of the same process would only take memory.
            "quarkus.datasource.jdbc.initial-size": "1",
            "quarkus.datasource.jdbc.min-size": "1",
            "quarkus.datasource.jdbc.max-size": "8",
            "quarkus.log.level": "WARN",
            "quarkus.log.console.json": "false",
        }
        memory = ["-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        options = [f"-D{name}={value}" for name, value in settings.items()]
        return Launch(f"{host}:{port}", [str(java()), *memory, self._server.mark, *options, "-jar", str(runner)])
