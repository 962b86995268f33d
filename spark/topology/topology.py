"""The whole question: sources, stored tables in topological order, and how they print, hash and travel."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from spark.topology.nodes import Column, Line, Node, Scan, scans

SourceKind = Literal["table", "global_table", "stream"]
Guarantee = Literal["exactly_once_v2", "at_least_once"]


@dataclass(frozen=True)
class Consumed:
    """How a topic's bytes become columns. `timestamp` names the value column that is the record's event time."""

    format: Literal["json"]
    key: tuple[Column, ...]
    value: tuple[Column, ...]
    timestamp: str | None = None


@dataclass(frozen=True)
class Source:
    """A topic, how it is read, and what it means: a table, a global table or a stream."""

    topic: str
    kind: SourceKind
    consumed: Consumed
    line: Line | None = field(default=None, compare=False, repr=False)

    @property
    def landing(self) -> str:
        """The name of the landing in the topology's part of the lake."""
        return f"_landing/{self.topic}"


@dataclass(frozen=True)
class Table:
    """A stored table: its name, and the plan over other stored tables that its rows must equal."""

    name: str
    plan: Node
    line: Line | None = field(default=None, compare=False, repr=False)

    @property
    def inputs(self) -> tuple[Scan, ...]:
        return scans(self.plan)
