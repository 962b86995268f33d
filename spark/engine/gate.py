"""The gate of a table: it evaluates rows before they are committed, and its result is part of the position."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from spark.engine.log.position import Gated

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from spark.engine.log.stored_table import State


class Gate(Protocol):
    """Evaluates rows before they are committed, and raises if they must not be.

    It evaluates once the rows that the table had before the gate was added or changed.
    """

    @property
    def digest(self) -> str:
        """The digest of the gate's expectations: gates with other expectations have another one."""

    def __call__(self, batch: DataFrame, table: Callable[[], DataFrame], known: Gated) -> Gated:
        """Return the result for the table with the new rows, which is committed with them; raise if they must not be.

        `batch` has the new rows at touched keys; `table` returns a frame of all rows after the commit. Failures that
        are `known` from earlier versions refuse no step.
        """

    def look(self, rows: DataFrame) -> dict[str, int | None]:
        """Return how many rows fail, by expectation (None: it is not about single rows). It refuses none."""


def known_result(gate: Gate | None, state: State) -> Gated | None:
    """Return the gate's result for the table's rows so far; None without a gate, or if it has not evaluated them all.

    It has not evaluated rows that somebody else wrote.
    """
    if gate is None:
        return None
    if state.position.n == 0:
        return passed(gate, state.version)
    if state.data_version > state.own:
        return None
    known = state.position.gated
    return known if known is not None and known.gate == gate.digest else None


def passed(gate: Gate, version: int) -> Gated:
    """Return the result of a gate that every row passes."""
    return Gated(gate.digest, version, {})


def must_evaluate(gate: Gate | None, state: State | None) -> bool:
    """Return whether a table has rows that its gate has not evaluated."""
    return gate is not None and state is not None and state.position.n > 0 and known_result(gate, state) is None
