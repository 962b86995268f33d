"""One tick: capture the cut once, land every topic to it, then step every table in topological order.

Steps take what has landed, or as much of it as `spark.engine.sync` lets go.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark.engine.errors import EngineError
from spark.engine.land import Landed, capture, land
from spark.engine.step import Gate, Stepped, step
from spark.engine.sync import release

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from spark.engine.doors import Doors
    from spark.topology.topology import Source, Table, Topology

AT_ONCE = 2  # independent landings or steps that run together: two cores gained a third from it, measured


@dataclass(frozen=True)
class Ticked:
    """What a tick did, in order; a landing or step that failed is in `failed`, and what reads it waited."""

    landed: list[Landed]
    stepped: list[Stepped]
    failed: dict[str, EngineError]


def tick(
    doors: Doors,
    topology: Topology,
    run: str,
    gates: Mapping[str, Gate] | None = None,
    say: Callable[[Landed | Stepped | EngineError], None] | None = None,
) -> Ticked:
    """Land and step everything once; `say` hears of each landing and step as it ends.

    A table that fails does not stop the others: what needs it waits at its last version, the rest goes on.
    """
    cut = capture(doors.kafka, topology)
    landed: list[Landed] = []
    stepped: list[Stepped] = []
    failed: dict[str, EngineError] = {}

    def tell(done: Landed | Stepped | EngineError) -> None:
        if say is not None:
            say(done)

    def landing(source: Source) -> None:
        with _failing(source.landing):
            landed.append(land(doors, topology, source, cut, run))
            tell(landed[-1])

    def stepping(table: Table) -> None:
        with _failing(table.name):
            gate = gates.get(table.name) if gates is not None else None
            stepped.append(step(doors, topology, table, run, gate))
            tell(stepped[-1])

    @contextmanager
    def _failing(name: str) -> Iterator[None]:
        try:
            yield
        except EngineError as error:
            failed[name] = error
            tell(error)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(landing, topology.sources))
        with _failing(topology.sources[0].landing):
            release(doors, topology, run)
        for level in levels(topology):
            list(pool.map(stepping, level))
    return Ticked(landed, stepped, failed)


def levels(topology: Topology) -> Iterator[list[Table]]:
    """The tables in groups: each reads landings and tables of earlier groups alone."""
    waiting = list(topology.tables)
    while waiting:
        names = {table.name for table in waiting}
        level = [table for table in waiting if not names & {scan.table for scan in table.inputs}]
        yield level
        waiting = [table for table in waiting if table not in level]
