"""The engine: one resident Spark Connect server per lake, and sessions of it."""

from __future__ import annotations

import shutil
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import grpc
import pyspark
from pyspark.errors import PySparkException
from pyspark.errors.exceptions.base import RetriesExceeded
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession
from pyspark.sql.connect.client import DefaultChannelBuilder
from pyspark.sql.connect.client.reattach import ExecutePlanResponseReattachableIterator
from pyspark.sql.connect.client.retries import DefaultPolicy
from pyspark.sql.connect.session import SparkSession as ConnectSession

from resources.jars import jars
from resources.java import java, java_home
from resources.lakehouse import Lakehouse
from resources.process import Launch, Running, Server, ServerFailed, free_port

SCRATCH = "scratch"
DEFAULT_PORT = 15002  # of Spark Connect
CONNECTS = 10  # seconds for a remote engine's machine to take a connection

PROVEN: set[tuple[str, Lakehouse]] = set()
"""Remote engines and lakes that are known to be the same on both sides."""

MAIN = Path(__file__).with_name("Engine.java")
COMPILER = "org.codehaus.janino.SimpleCompiler"  # of Spark's own jars; it runs what it compiled
SPARK_HOME = Path(pyspark.__file__).parent

# What every session needs to be right, on a cluster of the user's too.
SESSION = {
    "spark.sql.session.timeZone": "UTC",  # a timestamp must not depend on where a step runs
    "spark.databricks.delta.write.txnVersion.autoReset.enabled": "true",  # a fence is for one commit
    # Two commits a night on a table that nothing else changes would age its own ones out of the log.
    "spark.databricks.delta.vacuum.logging.enabled": "false",
    # A version may be read while its files are there, however long ago it was committed.
    "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration": "false",
    # Passwords and keys of Kafka are options of a read, and a read's text is shown on Spark's pages and in its event
    # log: from the option's name to the brace that closes it.
    "spark.sql.redaction.string.regex": r"""(?s)key: \\*"kafka\.(sasl|ssl)\..*?\n\s*\}""",
}

# What makes small steps quick on a small machine, measured on two cores.
QUICK = {
    "spark.sql.artifact.isolation.enabled": "false",  # compiled queries serve all sessions; see Engine.java
    "spark.sql.artifact.isolation.alwaysApplyClassloader": "false",
    "spark.sql.adaptive.enabled": "false",  # re-planning each stage costs a tiny MERGE more than it saves
    "spark.sql.shuffle.partitions": "2",  # 200 by default: tasks with nothing to do
    "spark.databricks.delta.snapshotPartitions": "1",  # 50 by default: a table's log is one small frame
    "spark.sql.codegen.cache.maxEntries": "1000",  # 100 by default: fewer than the plans of one topology
    "spark.sql.parquet.pushdown.inFilterThreshold": "10000",  # 10 by default: keys of a step prune row groups
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # other readers take INT96 for 1677 to 2262 alone
    "spark.sql.parquet.compression.codec": "zstd",  # smaller than snappy, as quick to read
    "spark.python.sql.dataFrameDebugging.enabled": "false",  # 0.1 ms for each expression
    "spark.ui.enabled": "false",  # memory for every job of a server that lives for weeks
    "spark.sql.ui.retainedExecutions": "10",  # 1,000 by default, each with the text of its plans, also without a UI
    "spark.ui.showConsoleProgress": "false",  # the log is a file
    "spark.log.level": "WARN",  # INFO is some hundred lines for each step
}

DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}

# A dead server on this machine stays dead: give up after 4 seconds. pyspark's own policy is made for networks
# and lets a step hang for more than 10 minutes.
SOON = DefaultPolicy(max_retries=4)


# pyspark writes every error of a query to standard error, with Spark's stack, before it raises it. We say what it was.
PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True


def _keep_releasing(cls: type[ExecutePlanResponseReattachableIterator]) -> None:
    """What pyspark does, when any session closes, with the threads that release results for all sessions: nothing.

    It would end them and wait. Another thread's query then fails to hand its release over; and a session that the
    garbage collector closes inside gRPC waits for threads that wait for the lock held there: nothing ever goes on.
    """


ExecutePlanResponseReattachableIterator.shutdown = classmethod(_keep_releasing)  # type: ignore[assignment]  # see there


@dataclass(frozen=True)
class Engine:
    """Spark for one lake: all its commits go through one server, because two could overwrite each other's.

    With `remote` (`sc://host:port`) the server is somebody else's: it is used, never started or stopped.
    """

    lake: Path | None
    remote: str | None = field(default=None, repr=False)  # its parameters may hold a token
    memory: str = "4g"
    cores: str = "*"
    lakehouse: Lakehouse | None = None
    """What a remote engine must see as this process does; the proof is made once in a process."""

    def start(self) -> str:
        """The engine's URL; the server is started unless it runs."""
        return self.remote or f"sc://{self._server.start(self._launch).address}"

    @property
    def address(self) -> str | None:
        """The remote engine's URL without its parameters, of which the token is a secret."""
        return None if self.remote is None else self.remote.partition("/;")[0]

    def session(self) -> SparkSession:
        """A new session, of an engine that answers; the caller stops it.

        Raises:
            ServerFailed: no engine answers.
            LakesDiffer: the engine is remote, and its lake is not the one that this process sees.
        """
        if self.remote is None:
            try:
                return self._connect()
            except RetriesExceeded:  # the engine died between our look and our call: now we see it
                return self._connect()
        self._answers()
        session = self._connect()
        if self.lakehouse is not None and (self.remote, self.lakehouse) not in PROVEN:
            try:
                self.lakehouse.prove(session)
            except BaseException:
                session.stop()
                raise
            PROVEN.add((self.remote, self.lakehouse))
        return session

    def _answers(self) -> None:
        """Look whether a Spark Connect server answers at a remote address: Spark's own client would try for minutes.

        What listens there may be no engine, or one whose certificate nobody trusts: then no channel gets ready.
        """
        host, _, port = (self.address or "").removeprefix("sc://").rstrip("/").partition(":")
        try:
            socket.create_connection((host, int(port or DEFAULT_PORT)), CONNECTS).close()
        except OSError as error:
            raise ServerFailed(f"no engine answers at {self.address} (SPARK_REMOTE): {error}") from error
        try:
            channel = DefaultChannelBuilder(self.remote or "").toChannel()
        except PySparkException:  # its text holds the URL, and that may hold a token
            raise ServerFailed(
                f"SPARK_REMOTE={self.address} has parameters that Spark Connect does not take: write "
                "sc://host:port/;name=value;name=value, with any other character of a value as %XX"
            ) from None
        try:
            grpc.channel_ready_future(channel).result(CONNECTS)
        except grpc.FutureTimeoutError:
            raise ServerFailed(
                f"what listens at {self.address} (SPARK_REMOTE) does not answer as Spark Connect within {CONNECTS} "
                "seconds: is it another server, or one that asks for TLS (use_ssl=true), or whose certificate is not "
                "trusted here?"
            ) from None
        finally:
            channel.close()

    def stop(self) -> None:
        """End the server, if it is ours."""
        if self.remote is None:
            self._server.stop()

    def running(self) -> Running | None:
        """The server, if it is ours and its process is alive."""
        return self._server.running() if self.remote is None else None

    def _connect(self) -> SparkSession:
        session: SparkSession = SparkSession.builder.remote(self.start()).config(map=dict(SESSION)).create()
        if self.remote is None:
            cast(ConnectSession, session).client.set_retry_policies([SOON])
        return session

    @property
    def _server(self) -> Server:
        if self.lake is None:
            raise ValueError("an engine needs a lake on this machine, or SPARK_REMOTE=sc://host:port")
        return Server("engine", self.lake / "_engine")

    def _launch(self) -> Launch:
        server = self._server
        host, port = "127.0.0.1", free_port()
        shutil.rmtree(server.home / SCRATCH, ignore_errors=True)  # what a killed server could not clean up
        (server.home / SCRATCH).mkdir()
        settings = {
            **DELTA,
            **QUICK,
            **SESSION,
            "spark.connect.grpc.binding.address": host,
            "spark.connect.grpc.binding.port": str(port),
            "spark.driver.host": host,
            "spark.jars": ",".join(map(str, jars("engine"))),
            "spark.local.dir": SCRATCH,
            "spark.sql.warehouse.dir": "warehouse",
            # The parallel collector: measured, and what matters is throughput, not pauses.
            "spark.driver.extraJavaOptions": f"-XX:+UseParallelGC -Djava.io.tmpdir={SCRATCH} {server.mark}",
        }
        command = [str(SPARK_HOME / "bin" / "spark-submit"), f"--master=local[{self.cores}]"]
        command += [f"--driver-memory={self.memory}"]
        command += [f"--class={COMPILER}"]
        command += [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
        environment = {"SPARK_HOME": str(SPARK_HOME), "JAVA_HOME": str(java_home(java()))}
        return Launch(f"{host}:{port}", [*command, "spark-internal", str(MAIN), "Engine"], environment)
