"""`suppress` of sessions: those that no further record can reach."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from spark.topology.columns import Column
from spark.topology.durations import format_duration
from spark.topology.nodes.node import Costs, Unary


@dataclass(frozen=True)
class ClosedSessions(Unary):
    """The stored sessions whose end is more than `wait` milliseconds before stream time."""

    wait: int

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of the sessions."""
        return self.source.columns

    @property
    def closes_windows(self) -> bool:
        """True."""
        return True

    @property
    def title(self) -> str:
        """The method and the sessions."""
        return f"suppress of {self.source.title}"

    @property
    def kafka_name(self) -> str:
        """The processor's name in Kafka Streams."""
        return "KTABLE-SUPPRESS"

    def explain(self, global_tables: Set[str]) -> str:  # noqa: ARG002  # a computed table is none
        """When a session is closed."""
        return f"closed sessions: those whose end is more than {format_duration(self.wait)} before stream time"

    @property
    def costs(self) -> Costs:
        """The sessions that stream time has closed."""
        return tuple((scan, "the sessions that stream time closed") for scan, _ in self.source.costs)
