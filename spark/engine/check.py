"""Evaluate a table's gate on all stored rows, and record in the table's position how many fail."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from spark.engine.attempt import attempting
from spark.engine.inputs.pin import Pins
from spark.engine.log.commit import until_committed
from spark.engine.log.stored_table import StoredTable

if TYPE_CHECKING:
    from spark.engine.gate import Gate
    from spark.engine.log.position import Gated
    from spark.engine.ports import Ports
    from spark.topology.topology import Table, Topology


@dataclass(frozen=True)
class Checked:
    """The result of a gate on all rows of a table at `version`; both are None if the table was never computed."""

    table: str
    version: int | None
    gated: Gated | None
    seconds: float


def check(ports: Ports, topology: Topology, target: Table, gate: Gate, run: str) -> Checked:
    """Evaluate the gate on all rows of a table. The rows do not change; a new result is committed in a position.

    Raises:
        NotCommitted: other runs committed first, several times.
    """
    began = time.monotonic()
    table = StoredTable.of(ports.lakehouse, topology.name, target.name)

    def once() -> Checked | None:
        state = table.state()
        if state is None or state.position.n == 0:
            return Checked(table.name, None, None, time.monotonic() - began)
        here = Pins(state.position.inputs, state.position.cut)
        with attempting(ports, topology, target, state, here, run, gate) as attempt:
            known, attempt = attempt.position.gated, attempt.evaluate_gate(always=True)
            result = attempt.position.gated
            assert result is not None, "a gate that evaluated has a result"
            unchanged = known is not None and replace(known, version=result.version) == result
            if not unchanged and attempt.commit_position() is None:
                return None
            return Checked(table.name, state.version, result, time.monotonic() - began)

    return until_committed(table.name, once, "run `tidetable check` again when it is quiet")
