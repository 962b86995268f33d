"""A real Kafka node of the lake's own, for who has no cluster: one process, no Docker."""

from __future__ import annotations

import base64
import subprocess
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from resources.jars import jars
from resources.java import java
from resources.kafka import QUIET
from resources.process import START, Launch, Running, Server, ServerFailed, free_port, replace

ANSWER = 5.0  # seconds for metadata, from a broker that has just begun to accept
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
    """One broker per lake, in `<lake>/_kafka`; its ports are chosen once, so its address stays."""

    lake: Path

    @property
    def bootstrap_servers(self) -> str:
        """Where the broker answers when it runs."""
        for line in self._properties.read_text().splitlines() if self._properties.exists() else ():
            if line.startswith(ADVERTISED):
                return line.removeprefix(ADVERTISED)
        raise ServerFailed(f"{self.lake} has no broker yet; start it: tidetable up")

    def start(self) -> str:
        """The bootstrap servers; the broker is started unless it runs, and serves metadata when we return."""
        deadline = time.monotonic() + START
        while True:  # a broker that dies between our look and our question is started again
            address = self._server.start(self._launch).address
            try:
                AdminClient({"bootstrap.servers": address, **QUIET}).list_topics(timeout=ANSWER)
            except KafkaException as error:
                if time.monotonic() > deadline:
                    raise ServerFailed(f"the broker at {address} accepts and does not answer: {error}") from error
            else:
                return address

    def stop(self) -> None:
        """End the broker; its topics stay."""
        self._server.stop()

    def running(self) -> Running | None:
        """The broker, if its process is alive."""
        return self._server.running()

    @property
    def _server(self) -> Server:
        return Server("broker", self.lake / "_kafka")

    @property
    def _properties(self) -> Path:
        return self._server.home / "server.properties"

    def _launch(self) -> Launch:
        """Write the settings and format the data folder if this is the first start."""
        classes = ["-cp", ":".join(map(str, jars("broker")))]
        if not self._properties.exists():
            replace(self._properties, PROPERTIES.format(port=free_port(), controller=free_port()))
        if not (self._server.home / "data" / "meta.properties").exists():
            self._format([str(java()), *classes])
        # Measured: 360 MB resident, and the serial collector suits two cores shared with the engine.
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
        ran = subprocess.run(
            [*java_with_classes, *tool], cwd=self._server.home, capture_output=True, text=True, check=False
        )
        if ran.returncode != 0:
            raise ServerFailed(f"the broker's folder could not be formatted:\n{ran.stdout}{ran.stderr}")
