"""One tick: capture the cut once, land every topic to it, step every table in topological order, then publish.

Steps read what has landed, or the part of it that `spark.engine.time_sync` releases. If a topic did not land, the
tables that are computed from it wait, because their other topics would run ahead of it. With `max_task_idle_ms=-1`
they step. No table waits for publishing: a topic that cannot be reached gets the missing records in a later tick.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from spark.engine.attempt import Stepped
from spark.engine.errors import UNREADABLE, EngineError, SparkFailed, cause, engine_died
from spark.engine.land import Landed, capture, land
from spark.engine.log.stored_table import StoredTable
from spark.engine.offsets import KafkaUnavailable, TopicMissing
from spark.engine.publish import Published, publish
from spark.engine.rebuild import step_or_rebuild
from spark.engine.time_sync import Waiting, release, waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from spark.engine.gate import Gate
    from spark.engine.ports import Ports
    from spark.topology.topology import Source, Table, Topology

Failed = EngineError | KafkaUnavailable | TopicMissing
TickEvent = Landed | Stepped | Published | Failed


@dataclass(frozen=True)
class Ticked:
    """The results of a tick, in order. `failed` has the error of each landing or step that failed, by its name.

    It has the error of a topic that could not be published by the name `kafka/<topic>`. `held` are the records that
    wait for an empty partition.
    """

    landed: list[Landed]
    stepped: list[Stepped]
    failed: dict[str, Failed]
    held: list[Waiting]
    published: list[Published] = field(default_factory=list)


def tick(
    ports: Ports,
    topology: Topology,
    run: str,
    gates: Mapping[str, Gate] | None = None,
    say: Callable[[TickEvent], None] | None = None,
) -> Ticked:
    """Land, step and publish everything once; calls `say` with the result of each landing, step and topic as it ends.

    It also calls `say` with what a landing has so far, after each of its commits.

    A table that fails does not stop the others: the tables that read it wait at its last version.
    """
    cut = capture(ports.kafka, topology)
    landed: list[Landed] = []
    stepped: list[Stepped] = []
    published: list[Published] = []
    failed: dict[str, Failed] = {}
    names, topics = [source.landing for source in topology.sources], topology.source_topics

    def report(done: TickEvent) -> None:
        if say is not None:
            say(done)

    def landing(source: Source) -> None:
        with _failing(source.landing):
            landed.append(land(ports, topology, source, cut, run, report))
            report(landed[-1])

    def stepping(table: Table) -> None:
        unlanded = tuple(name for name in names if name in failed and topics[name] & topics[table.name])
        with _failing(table.name):
            if unlanded and topology.settings.max_task_idle_ms >= 0:
                stored = StoredTable.of(ports.lakehouse, topology.name, table.name)
                state = stored.state()
                stepped.append(Stepped(stored.name, "waiting", state, state, unlanded))
                report(stepped[-1])
                return
            gate = gates.get(table.name) if gates is not None else None
            stepped.append(step_or_rebuild(ports, topology, table, run, gate))
            report(stepped[-1])

    def publishing(table: Table) -> None:
        with _failing(f"kafka/{table.topic}", KafkaUnavailable, TopicMissing):
            published.append(publish(ports, topology, table))
            report(published[-1])

    @contextmanager
    def _failing(name: str, *also: type[Failed]) -> Iterator[None]:
        try:
            yield
        except (EngineError, *also) as error:
            failed[name] = error
            report(error)
        except PySparkException as error:
            if engine_died(error):
                raise
            failed[name] = SparkFailed(f"{topology.name}/{name}: {cause(error)}")
            failed[name].__cause__ = error
            report(failed[name])

    with ThreadPoolExecutor(ports.engine.width) as pool:
        list(pool.map(landing, topology.sources))
        with _failing("time_sync"):
            release(ports, topology, run)
        for level in topology.levels:
            list(pool.map(stepping, level))
        list(pool.map(publishing, [table for table in topology.tables if table.topic is not None]))
    held: list[Waiting] = []
    with suppress(*UNREADABLE):  # of a landing that cannot be read, which has failed by its name or as `time_sync`
        held = waiting(ports.lakehouse, topology)
    return Ticked(landed, stepped, failed, held, published)
