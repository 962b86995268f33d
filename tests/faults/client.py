"""A client in a process of its own: it runs a verb once, and stops, or is told of a failure, where it shall."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import dagster as dg

from assets import factory, maintenance, operations, retries
from assets.specs import table_key, topic_key, word
from dagster_project.definitions import definitions
from resources.embedded_kafka import EmbeddedKafka
from resources.engine import Engine
from resources.lakehouse import Lakehouse
from resources.publisher import Publisher
from resources.tidetable import Tidetable
from spark.engine import publish as publishing
from spark.engine.compact import compact
from spark.engine.land import capture, land
from spark.engine.offsets import KafkaUnavailable
from spark.engine.publish import publish
from spark.engine.rebuild import rebuild
from spark.engine.restore import restore
from spark.engine.step import step
from tests.faults.boundaries import Door, watched

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.context import ForkServerContext, ForkServerProcess

    from spark.engine.ports import Ports
    from spark.topology import Topology

BATCH = 2  # records of a transaction: the change of the small world takes two

VERBS: dict[str, Callable[[Ports, Topology, str, str], str]] = {
    "land": lambda ports, made, name, run: (
        land(ports, made, made.source(name), capture(ports.kafka, made), run).outcome
    ),
    "step": lambda ports, made, name, run: step(ports, made, made.table(name), run).outcome,
    "attach": lambda ports, made, name, run: step(ports, made, made.table(name), run).outcome,
    "follow": lambda ports, made, name, run: step(ports, made, made.table(name), run).outcome,
    "publish": lambda ports, made, name, _: publish(ports, made, made.table(name)).outcome,
    "rebuild": lambda ports, made, name, run: rebuild(ports, made, made.table(name), run).outcome,
    "restore": lambda ports, made, name, run: restore(ports, made, made.table(name), run, version=1).outcome,
    "compact": lambda ports, made, name, _: f"{compact(ports.engine, ports.lakehouse, made, name).removed} files",
}
"""Each on a topic, or a table, in a run; what came of it."""


Job = tuple[dg.JobDefinition, dict[str, Any]]


def _asset(key: dg.AssetKey, found: dg.Definitions) -> Job:
    return found.resolve_implicit_global_asset_job_def(), {"asset_selection": [key]}


def _operation(client: Client, found: dg.Definitions, **config: object) -> Job:
    job = found.resolve_job_def(f"{word(client.topology.name)}_{client.verb}")
    [op] = job.nodes
    return job, {"run_config": {"ops": {op.name: {"config": {"table": client.name, **config}}}}}


OPS: dict[str, tuple[Door, Callable[[Client, dg.Definitions], Job]]] = {
    "land": (
        (factory, "land"),
        lambda its, found: _asset(table_key(its.topology, its.topology.source(its.name).landing), found),
    ),
    **dict.fromkeys(
        ("step", "attach", "follow"),
        ((factory, "step_or_rebuild"), lambda its, found: _asset(table_key(its.topology, its.name), found)),
    ),
    "publish": (
        (factory, "publish"),
        lambda its, found: _asset(topic_key(str(its.topology.table(its.name).topic)), found),
    ),
    "rebuild": ((operations, "rebuild"), _operation),
    "restore": ((operations, "restore"), lambda its, found: _operation(its, found, version=1)),
    "compact": ((maintenance, "compact"), lambda _, found: (found.resolve_job_def("maintenance"), {})),
}
"""Dagster's op of each verb: the door by which it calls it, its job, and with what to execute that."""


@dataclass(frozen=True)
class Client:
    """What a process needs to run a verb once. The servers are found, or started, by where they live."""

    engine: Engine
    broker: EmbeddedKafka
    lake: str
    topology: Topology
    verb: str
    name: str
    run: str

    @property
    def tidetable(self) -> Tidetable:
        """Everything outside."""
        return Tidetable(self.engine, Lakehouse(self.lake), self.broker)

    def work(self) -> str:
        """Run the verb once; what came of it."""
        with _small_transactions():
            return VERBS[self.verb](self.tidetable.ports(), self.topology, self.name, self.run)


def working(client: Client, stop: int | None, result: str) -> None:
    """Run the verb, stop before a boundary of that number, and when woken go on and write what came of it.

    Beside that are files that say where it is of that boundary: none before, then one `inside`, then one `behind`.
    """
    _saying(result)

    def before(_: str, number: int) -> None:
        if number == stop:
            _stop()
            Path(result).with_suffix(".inside").touch()

    def behind(_: str, number: int) -> None:
        if number == stop:
            Path(result).with_suffix(".behind").touch()

    with watched(before, behind) as crossed:
        outcome = client.work()
    if stop is not None and stop >= len(crossed.names):
        _stop()
    Path(result).write_text(outcome)


def failing(client: Client, at: int, result: str) -> None:
    """Run the verb in Dagster, fail before a boundary of that number, and let Dagster try again, in the same run.

    Behind the last boundary the verb has done everything, and Dagster does not know.
    """
    _saying(result)
    left = [at]
    (place, attribute), named = OPS[client.verb]
    verb = getattr(place, attribute)

    def once(*arguments: object, **options: object) -> object:
        with _failing(left):
            return verb(*arguments, **options)

    with patch.object(place, attribute, once), patch.object(retries, "PAUSE", 0), _small_transactions():
        found = definitions([client.topology], client.tidetable, {})
        job, options = named(client, found)
        with dg.DagsterInstance.ephemeral() as instance:
            done = job.execute_in_process(instance=instance, run_id=client.run, **options)
    assert any(event.is_step_up_for_retry for event in done.all_events), "nothing was tried again"
    Path(result).write_text("tried again")


@contextmanager
def _failing(left: list[int]) -> Iterator[None]:
    """Fail before the boundary whose number is left, once; behind the last one if there are not as many."""

    def fail() -> None:
        left.clear()
        raise KafkaUnavailable("a failure that Dagster takes for passing")

    with watched(lambda _, number: fail() if left == [number] else None):
        yield
    if left:
        fail()


@contextmanager
def _small_transactions() -> Iterator[None]:
    """Publish by few records, each of which the broker has before the next one is sent."""
    send = Publisher.send

    def sending(publisher: Publisher, *record: object) -> None:
        send(publisher, *record)  # type: ignore[arg-type]  # passed on as they came
        publisher._producer.flush()

    with patch.object(publishing, "BATCH", BATCH), patch.object(Publisher, "send", sending):
        yield


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _saying(result: str) -> None:
    """Errors of a process that is meant to fail go beside its result."""
    sys.stderr = Path(result).with_suffix(".said").open("w", buffering=1)


def processes() -> ForkServerContext:
    """Processes that begin with everything imported, and without a thread or a connection of ours."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


def started(work: Callable[..., None], *arguments: object) -> ForkServerProcess:
    """A process that has begun to work."""
    process = processes().Process(target=work, args=arguments)
    process.start()
    return process
