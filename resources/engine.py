"""The engine: one long-running Spark Connect server per lake, and its sessions."""

from __future__ import annotations

import os
import shutil
import socket
import sys
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
from spark.engine.log.replacement import FILE_ROWS
from spark.engine.schemas import java_options

SCRATCH = "scratch"
DEFAULT_PORT = 15002  # of Spark Connect
REMOTE_WIDTH = 4  # landings or steps that run concurrently on a remote engine, whose cores are not known
CONNECTS = 10  # seconds for a remote engine to accept a connection, and then to answer

PROVEN: set[tuple[str, Lakehouse]] = set()
"""Remote engines with the lakes for which this process has proven that both see the same place."""

MAIN = Path(__file__).with_name("Engine.java")
COMPILER = "org.codehaus.janino.SimpleCompiler"  # in Spark's own jars; compiles `MAIN` and runs it
SPARK_HOME = Path(pyspark.__file__).parent

# Settings that every session needs for correct results, on a remote engine too.
SESSION = {
    "spark.sql.session.timeZone": "UTC",  # a timestamp must not depend on where a step runs
    "spark.databricks.delta.write.txnVersion.autoReset.enabled": "true",  # a fence applies to one commit only
    # VACUUM would log two commits a night, and an idle table's own commits would expire from the log.
    "spark.databricks.delta.vacuum.logging.enabled": "false",
    # A version is readable as long as its files exist, however old its commit is.
    "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration": "false",
    # Batches for Python workers: 10,000 records by default, which may have any size.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(16 * 2**20),
    # Dates before 1582 are written as they are, also where a cluster is set to shift them for old versions of Spark.
    "spark.sql.avro.datetimeRebaseModeInWrite": "CORRECTED",
    # Kafka's passwords and keys are options of a read, and Spark shows the read's text on its pages and in its event
    # log. The pattern matches from the option's name to the closing brace.
    "spark.sql.redaction.string.regex": r"""(?s)key: \\*"kafka\.(sasl|ssl)\..*?\n\s*\}""",
}

# Settings that make small steps fast on a small machine; measured on two cores.
QUICK = {
    "spark.sql.artifact.isolation.enabled": "false",  # sessions share compiled queries; see Engine.java
    "spark.sql.artifact.isolation.alwaysApplyClassloader": "false",
    "spark.sql.adaptive.enabled": "false",  # re-planning each stage costs a tiny MERGE more than it saves
    "spark.sql.shuffle.partitions": "2",  # 200 by default: most tasks would be empty
    "spark.databricks.delta.snapshotPartitions": "1",  # 50 by default: a table's log is small
    "spark.sql.codegen.cache.maxEntries": "1000",  # 100 by default: fewer than the plans of one topology
    "spark.sql.parquet.pushdown.inFilterThreshold": "10000",  # 10 by default: a step's keys prune row groups
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # other readers limit INT96 to the years 1677 to 2262
    "spark.sql.parquet.compression.codec": "zstd",  # smaller than snappy, as fast to read
    # Unlimited by default. In larger files, not all rows that a step replaces could be read from the change feed.
    "spark.sql.files.maxRecordsPerFile": str(FILE_ROWS),
    # 128 MB by default; full pages count compressed, and the open ones not. Who reads one row decodes its row group:
    # some 230,000 orders, or 4,400 rows of 60 numbers.
    "spark.hadoop.parquet.block.size": str(2 << 20),
    "spark.hadoop.parquet.page.verify-checksum.enabled": "true",  # off by default; see `writeOneFile` in Engine.java
    "spark.python.sql.dataFrameDebugging.enabled": "false",  # it costs 0.1 ms per expression
    # Hadoop's class for commits and their checksum files starts 24 processes (readlink, chmod) for each commit. These
    # start a few. All commits go through this JVM, and Delta lets one at a time write to a table's log.
    "spark.delta.logStore.file.impl": "io.delta.storage.LocalLogStore",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.ui.explainMode": "simple",  # nobody reads the text of plans, which every query writes
    "spark.ui.enabled": "false",  # it stores data of every job, and the server runs for weeks
    "spark.sql.ui.retainedExecutions": "10",  # 1,000 by default, each with its plans' text, even without a UI
    "spark.ui.showConsoleProgress": "false",  # standard error goes to a file
    "spark.log.level": "WARN",  # INFO writes some hundred lines per step
}

# When the JVM's optimizing compiler takes a method: 12 times as late as by default, on each count. Planning runs much
# code, a little in every step: compiling it early took a fifth of the CPU of a tick, still after 40 ticks. A loop over
# many rows reaches these counts in milliseconds.
LATE = (
    "-XX:Tier4InvocationThreshold=60000",
    "-XX:Tier4MinInvocationThreshold=7200",
    "-XX:Tier4CompileThreshold=180000",
    "-XX:Tier4BackEdgeThreshold=480000",
)

LARGE = 256 << 20  # bytes that a query reads, from which on it is planned while it runs
PARTITION = 16 << 20  # bytes of files for each partition of its shuffles, which is some 64 MB in memory
PARTITIONS = 16  # for each core, at least: Spark makes fewer of them where they turn out small

# Settings for queries that read much. With the two partitions of `QUICK`, one core sorts half of a large table.
ADAPTIVE = {
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",  # else it makes as many files as partitions
}

DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}

# A dead server on this machine does not come back by itself: give up after 4 seconds. pyspark's default policy is made
# for networks, and a step would hang for more than 10 minutes.
SOON = DefaultPolicy(max_retries=4)


# pyspark logs every query error to standard error, with Spark's stack, before it raises it. Our messages report it.
PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True


def _keep_releasing(cls: type[ExecutePlanResponseReattachableIterator]) -> None:
    """Do nothing, instead of ending the threads that release results for all sessions.

    pyspark ends these threads, and waits for them, when any session closes. Another thread's query then fails to submit
    its release. And a session that the garbage collector closes inside gRPC waits for threads that wait for gRPC's
    lock: a deadlock.
    """


ExecutePlanResponseReattachableIterator.shutdown = classmethod(_keep_releasing)  # type: ignore[assignment]  # see there


@dataclass(frozen=True)
class Engine:
    """Spark for one lake. All commits go through one server, because two could overwrite each other's commits.

    With `remote` (`sc://host:port`) the server belongs to the user: it is used, never started or stopped.
    """

    lake: Path | None
    remote: str | None = field(default=None, repr=False)  # its parameters may hold a token
    memory: str = "2g"
    cores: str = "*"
    lakehouse: Lakehouse | None = None
    """The lake that a remote engine must see as this process does; this is proven once per process."""

    def start(self) -> str:
        """Start the engine unless it runs, and return its URL. A remote engine is never started.

        Raises:
            ServerFailed: the server does not start.
        """
        return self.remote or f"sc://{self._server.start(self._launch).address}"

    @property
    def address(self) -> str | None:
        """The remote engine's URL without its parameters, which may contain a token; None for the lake's own engine."""
        return None if self.remote is None else self.remote.partition("/;")[0]

    @property
    def width(self) -> int:
        """How many independent landings or steps run concurrently: one for each core.

        Two on two cores make a tick a third faster than one, measured.
        """
        if self.remote is not None:
            return REMOTE_WIDTH
        return (os.cpu_count() or 1) if self.cores == "*" else int(self.cores)

    @property
    def has_replace_on(self) -> bool:
        """Whether its Delta is known to have the option `replaceOn`: a remote engine may have another Delta."""
        return self.remote is None

    def session(self) -> SparkSession:
        """Open a session on an engine that answers. The caller must stop it.

        Raises:
            ServerFailed: no engine answers.
            LakesDiffer: the engine is remote, and sees another lake than this process.
        """
        if self.remote is None:
            try:
                return self._connect()
            except RetriesExceeded:  # the engine died after it was found alive: start it again
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

    def plan_for(self, session: SparkSession, size: int) -> None:
        """Let a session plan queries that read so many bytes of files. A remote engine has settings of its own."""
        if self.remote is None and size >= LARGE:
            partitions = max(PARTITIONS * self.width, size // PARTITION)
            for name, value in ADAPTIVE.items():
                session.conf.set(name, value)
            session.conf.set("spark.sql.adaptive.coalescePartitions.initialPartitionNum", str(partitions))

    def _answers(self) -> None:
        """Raise ServerFailed unless a Spark Connect server answers at the remote address.

        Spark's own client would retry for minutes. An open port does not suffice: if another server listens there, or
        its certificate is not trusted, the channel never becomes ready.
        """
        host, _, port = (self.address or "").removeprefix("sc://").rstrip("/").partition(":")
        try:
            socket.create_connection((host, int(port or DEFAULT_PORT)), CONNECTS).close()
        except OSError as error:
            raise ServerFailed(
                f"no engine answers at {self.address} (SPARK_REMOTE): {error}. Start it there"
            ) from error
        try:
            channel = DefaultChannelBuilder(self.remote or "").toChannel()
        except PySparkException:  # its text contains the URL, which may contain a token
            raise ServerFailed(
                f"SPARK_REMOTE={self.address} has parameters that Spark Connect cannot parse: write "
                "sc://host:port/;name=value;name=value, and encode special characters of a value as %XX"
            ) from None
        try:
            grpc.channel_ready_future(channel).result(CONNECTS)
        except grpc.FutureTimeoutError:
            raise ServerFailed(
                f"the server at {self.address} (SPARK_REMOTE) does not answer as Spark Connect within {CONNECTS} "
                "seconds. Check that it is a Spark Connect server, whether it requires TLS (use_ssl=true), and whether "
                "its certificate is trusted on this machine"
            ) from None
        finally:
            channel.close()

    def stop(self) -> None:
        """Stop the lake's own engine. A remote engine is never stopped."""
        if self.remote is None:
            self._server.stop()

    def running(self) -> Running | None:
        """The lake's own engine if its process is alive; None otherwise, and for a remote engine."""
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
        shutil.rmtree(server.home / SCRATCH, ignore_errors=True)  # files that a killed server left
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
            # The parallel collector, by measurement: throughput matters, pauses do not. Methods of any size are
            # compiled: by default the JVM interprets one of more than 8,000 bytes, and Spark makes one of a stage that
            # decodes Avro.
            "spark.driver.extraJavaOptions": (
                f"-XX:+UseParallelGC -XX:-DontCompileHugeMethods {' '.join(LATE)} -Djava.io.tmpdir={SCRATCH} "
                f"{' '.join(java_options())} {server.mark}"
            ),
        }
        command = [str(SPARK_HOME / "bin" / "spark-submit"), f"--master=local[{self.cores}]"]
        command += [f"--driver-memory={self.memory}"]
        command += [f"--class={COMPILER}"]
        command += [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
        # Protobuf is decoded by Python workers: they are of this interpreter, which has all that they import.
        environment = {
            "SPARK_HOME": str(SPARK_HOME),
            "JAVA_HOME": str(java_home(java())),
            "PYSPARK_PYTHON": sys.executable,
        }
        return Launch(f"{host}:{port}", [*command, "spark-internal", str(MAIN), "Engine"], environment)
