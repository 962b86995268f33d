"""A Kafka broker of the lake's own, for users without a cluster: one process, no Docker."""

from __future__ import annotations

import base64
import subprocess
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from resources.cluster import QUIET
from resources.jars import jars
from resources.java import java
from resources.process import START, Launch, Running, Server, ServerFailed, free_port, replace

ANSWER = 5.0  # seconds for metadata, from a broker that has just started to accept connections
ADVERTISED = "advertised.listeners=PLAINTEXT://"

PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
log.dirs=data

# Nothing expires by itself: retention goes by the records' own time, which in a demo or a test is long past.
log.retention.ms=-1
log.retention.bytes=-1
# A mistyped topic is an error, not a new topic.
auto.create.topics.enable=false

# One node: one replica of everything, and few enough internal partitions to start quickly.
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
group.initial.rebalance.delay.ms=0
"""


@dataclass(frozen=True)
class EmbeddedKafka:
    """One broker per lake, in `<lake>/_kafka`. Its ports are chosen once, so its address never changes."""

    lake: Path

    @property
    def bootstrap_servers(self) -> str:
        """The broker's `host:port`, whether it runs or not.

        Raises:
            ServerFailed: the broker was never started.
        """
        for line in self._properties.read_text().splitlines() if self._properties.exists() else ():
            if line.startswith(ADVERTISED):
                return line.removeprefix(ADVERTISED)
        raise ServerFailed(f"the lake {self.lake} has no broker; start one: tidetable up")

    def start(self) -> str:
        """Start the broker unless it runs, wait until it serves metadata, and return the bootstrap servers.

        Raises:
            ServerFailed: the broker does not start, or does not serve metadata within `START` seconds.
        """
        deadline = time.monotonic() + START
        while True:  # a broker that dies after it was found alive is started again
            address = self._server.start(self._launch).address
            try:
                AdminClient({"bootstrap.servers": address, **QUIET}).list_topics(timeout=ANSWER)
            except KafkaException as error:
                if time.monotonic() > deadline:
                    raise ServerFailed(
                        f"the broker at {address} accepts connections, but does not answer: {error}. Read its log"
                    ) from error
            else:
                return address

    def stop(self) -> None:
        """Stop the broker; its topics remain."""
        self._server.stop()

    def running(self) -> Running | None:
        """The broker's process and address; None if the process is not alive."""
        return self._server.running()

    @property
    def _server(self) -> Server:
        return Server("broker", self.lake / "_kafka")

    @property
    def _properties(self) -> Path:
        return self._server.home / "server.properties"

    def _launch(self) -> Launch:
        """Return the start command. The first call writes the settings and formats the data folder."""
        classes = ["-cp", ":".join(map(str, jars("broker")))]
        if not self._properties.exists():
            replace(self._properties, PROPERTIES.format(port=free_port(), controller=free_port()))
        if not (self._server.home / "data" / "meta.properties").exists():
            self._format([str(java()), *classes])
        # Measured: 360 MB resident. The serial collector suits two cores that the engine shares.
        memory = ["-Xms256m", "-Xmx512m", "-XX:+UseSerialGC"]
        command = [
            str(java()),
            *memory,
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            self._server.mark,
            *classes,
            "kafka.Kafka",
            self._properties.name,
        ]
        return Launch(self.bootstrap_servers, command)

    def _format(self, java_with_classes: list[str]) -> None:
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        tool = [
            "kafka.tools.StorageTool",
            "format",
            f"--cluster-id={cluster_id}",
            "-c",
            self._properties.name,
        ]
        formatted = subprocess.run(
            [*java_with_classes, *tool], cwd=self._server.home, capture_output=True, text=True, check=False
        )
        if formatted.returncode != 0:
            output = formatted.stdout + formatted.stderr
            raise ServerFailed(f"the broker's folder {self._server.home} could not be formatted:\n{output}")
