"""`suppress` of sessions: those that no record can reach any more."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from spark.topology.columns import Column
from spark.topology.durations import written
from spark.topology.nodes.node import Costs, Unary


@dataclass(frozen=True)
class ClosedSessions(Unary):
    """The stored sessions that end more than `wait` milliseconds before stream time."""

    wait: int

    @property
    def columns(self) -> tuple[Column, ...]:
        """Those of the sessions."""
        return self.source.columns

    @property
    def closes_windows(self) -> bool:
        """It does."""
        return True

    @property
    def title(self) -> str:
        """The method, and the sessions."""
        return f"suppress of {self.source.title}"

    @property
    def kafka_name(self) -> str:
        """As Kafka Streams prints it."""
        return "KTABLE-SUPPRESS"

    def explain(self, global_tables: Set[str]) -> str:  # noqa: ARG002  # a computed table is none
        """When a session is closed."""
        return f"those whose end is more than {written(self.wait)} behind stream time, which are closed"

    @property
    def costs(self) -> Costs:
        """The sessions that have closed since."""
        return tuple((scan, "the sessions that stream time has closed") for scan, _ in self.source.costs)
