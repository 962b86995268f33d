"""What a topology is made of: topics that are read, tables that are stored, and settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from spark.topology.columns import Line
from spark.topology.consumed import Consumed
from spark.topology.nodes import LANDING, Node, Scan
from spark.topology.produced import JSON, Produced

SourceKind = Literal["table", "global_table", "stream"]
Guarantee = Literal["exactly_once_v2", "at_least_once"]
OnDataLoss = Literal["fail", "ledger"]


@dataclass(frozen=True)
class Source:
    """A topic, how its bytes become columns, and what it means: a table, a global table or a stream."""

    topic: str
    kind: SourceKind
    consumed: Consumed
    line: Line | None = field(default=None, compare=False, repr=False)

    @property
    def landing(self) -> str:
        """The name of the landing in the topology's folder of the lake."""
        return f"{LANDING}{self.topic}"


@dataclass(frozen=True)
class Table:
    """A stored table: its name, and the plan over other stored tables that its rows must equal.

    `followed`: it is a stream that another table reads, so its records keep their place in the order of time.
    `topic`: where its changes, or a stream's records, are published, as `produced`; None if they are not.
    """

    name: str
    plan: Node
    followed: bool = False
    topic: str | None = None
    produced: Produced = JSON
    line: Line | None = field(default=None, compare=False, repr=False)

    @property
    def inputs(self) -> tuple[Scan, ...]:
        """The stored tables (or the landing) that the plan reads, each once, left to right."""
        return self.plan.scans


@dataclass(frozen=True)
class Settings:
    """The settings of a topology; `StreamsBuilder` explains them."""

    max_task_idle_ms: int = 0
    max_records_per_tick: int | None = None
    processing_guarantee: Guarantee = "exactly_once_v2"
    ansi: bool = True
    message_timestamp_after_max_ms: int | None = 3_600_000
    on_data_loss: OnDataLoss = "fail"

    @property
    def exactly_once(self) -> bool:
        """Whether records of a transaction are landed once it has ended, and tables are published in transactions."""
        return self.processing_guarantee == "exactly_once_v2"


DEFAULTS = Settings()
"""The settings of a topology that sets none."""
