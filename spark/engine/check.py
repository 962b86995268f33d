"""Evaluate a table's gate on all stored rows, and record in the table's position how many fail."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from spark.engine import position as positions
from spark.engine.errors import NotCommitted
from spark.engine.pin import Pins
from spark.engine.step import Gate, looked, named, positioned, working

if TYPE_CHECKING:
    from spark.engine.doors import Doors
    from spark.engine.position import Gated
    from spark.topology.topology import Table, Topology

TRIES = 5  # lost races before a check gives up


@dataclass(frozen=True)
class Checked:
    """The result of a gate on all rows of a table at `version`; both are None if the table was never computed."""

    table: str
    version: int | None
    gated: Gated | None
    seconds: float


def check(doors: Doors, topology: Topology, target: Table, gate: Gate, run: str) -> Checked:
    """Evaluate the gate on all rows of a table. The rows do not change; a new result is committed in a position.

    Raises:
        NotCommitted: other runs committed first, `TRIES` times.
    """
    began = time.monotonic()
    name, path = f"{topology.name}/{target.name}", doors.lakehouse.table(topology.name, target.name)
    for _ in range(TRIES):
        state = positions.read(path, name)
        if state is None or state.position.n == 0:
            return Checked(name, None, None, time.monotonic() - began)
        here = Pins(state.position.inputs, state.position.cut)
        with named(topology, target), working(doors, topology, target, state, here, run, gate) as work:
            known, work = work.position.gated, looked(work, again=True)
            gated = work.position.gated
            assert gated is not None, "a gate that looked has said something"
            if (known is not None and replace(known, version=gated.version) == gated) or positioned(work) is not None:
                return Checked(name, state.version, gated, time.monotonic() - began)
    raise NotCommitted(
        f"{name}: {TRIES} times another run committed first; run `tidetable check` again when it is quiet"
    )
