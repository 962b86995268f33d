"""A client in a process of its own: it lands, steps or publishes, and dies where it is told to."""

from __future__ import annotations

import multiprocessing
import signal
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Literal
from unittest.mock import patch

from pyspark.sql.connect.session import SparkSession as ConnectSession

from resources.engine import Engine
from resources.kafka import Kafka
from resources.lakehouse import Lakehouse
from resources.publisher import Publisher
from spark.engine import publish as publishing
from spark.engine.doors import Doors
from spark.engine.land import capture, land
from spark.engine.publish import publish
from spark.engine.step import step
from tests.faults.boundaries import die, watched

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext, ForkServerProcess

    from pyspark.sql import DataFrame

    from spark.topology import Topology

Verb = Literal["land", "step", "publish"]

MOMENT = 0.2  # seconds: a statement that was sent has reached the engine, and is not done yet


@dataclass(frozen=True)
class Client:
    """What a process needs to land a topic, or to step or publish a table."""

    engine: str
    bootstrap_servers: str
    lake: str
    topology: Topology
    verb: Verb
    name: str
    run: str = "killed"

    def work(self) -> str:
        """Land, step or publish once; what came of it."""
        kafka = Kafka({"bootstrap.servers": self.bootstrap_servers})
        doors = Doors(Engine(None, remote=self.engine), Lakehouse(self.lake), kafka)
        if self.verb == "land":
            source = self.topology.source(self.name)
            return land(doors, self.topology, source, capture(kafka, self.topology), self.run).outcome
        if self.verb == "publish":
            return publish(doors, self.topology, self.topology.table(self.name)).outcome
        return step(doors, self.topology, self.topology.table(self.name), self.run).outcome


def killed_before(client: Client, number: int) -> None:
    """Work until a boundary of that number is about to be crossed."""
    with watched(lambda _, crossed: die() if crossed == number else None):
        client.work()


def killed_publishing(client: Client, number: int) -> None:
    """Send one record in each transaction, and be killed before a commit of that number; the broker has its record."""
    send = Publisher.send

    def sending(publisher: Publisher, *record: object) -> None:
        send(publisher, *record)  # type: ignore[arg-type]  # passed on as they came
        publisher._producer.flush()

    commits = count()

    def before(name: str, _: int) -> None:
        if name == "published" and next(commits) == number:
            die()

    with patch.object(publishing, "BATCH", 1), patch.object(Publisher, "send", sending), watched(before):
        client.work()
    die()  # the last commit is made, and nobody heard of it


def stopped_before(client: Client, boundary: str, result: str) -> None:
    """Stop before a boundary, and when woken go on to the end and write what came of it."""
    stops = iter([signal.SIGSTOP])

    def before(name: str, _: int) -> None:
        for stop in stops if name == boundary else ():
            die(stop)
            break

    with watched(before):
        outcome = client.work()
    Path(result).write_text(outcome)


def killed_while_merging(client: Client) -> None:
    """Send the MERGE, and be killed before its answer comes."""
    sql = ConnectSession.sql

    def sending(session: ConnectSession, query: str) -> DataFrame:
        if "MERGE INTO" in query:
            Timer(MOMENT, die).start()
        return sql(session, query)

    with patch.object(ConnectSession, "sql", sending):
        client.work()
    die()


def processes() -> ForkServerContext:
    """Processes that begin with everything imported, and without a thread or a connection of ours."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


def started(work: object, *arguments: object) -> ForkServerProcess:
    """A process that has begun to work."""
    process = processes().Process(target=work, args=arguments)  # type: ignore[arg-type]  # one of the above
    process.start()
    return process
