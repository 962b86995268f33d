"""The parts of a topology: sources, stored tables and settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from spark.topology.columns import Line
from spark.topology.consumed import Consumed
from spark.topology.nodes import LANDING, Node, Scan, leader_parts
from spark.topology.produced import JSON, Produced

SourceKind = Literal["table", "global_table", "stream"]
LeaderKind = Literal["table", "global_table"]
Guarantee = Literal["exactly_once_v2", "at_least_once"]
OnDataLoss = Literal["fail", "ledger"]


@dataclass(frozen=True)
class Source:
    """A topic, its columns, and whether it is a table, a global table or a stream."""

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
    """A stored table: its name, and the plan over other stored tables whose result it stores.

    `followed` is true for a stream that another table reads: its records are stored with their place in merge order.
    `former_rows_read` is true if a reader of the table needs the rows from before a change: an aggregate, its changes
    as a stream (`to_stream`), or a topic that it is published to.
    `topic` is the topic to which its changes, or a stream's records, are published as `produced`; None if they are not.
    """

    name: str
    plan: Node
    followed: bool = False
    topic: str | None = None
    produced: Produced = JSON
    line: Line | None = field(default=None, compare=False, repr=False)
    former_rows_read: bool = False

    @property
    def inputs(self) -> tuple[Scan, ...]:
        """The stored tables and landings that the plan reads, each once, left to right."""
        return self.plan.scans


@dataclass(frozen=True)
class Leader:
    """A table of another topology, which that topology alone writes, and this one reads (KIP-813).

    `name` is the read-only table's name in this topology. `scan` has the leader's name, the key, and the columns that
    this topology reads. With `allow_missing` the tables that read it wait until it exists.
    """

    name: str
    scan: Scan
    kind: LeaderKind = "table"
    allow_missing: bool = False
    line: Line | None = field(default=None, compare=False, repr=False)

    @property
    def dotted_name(self) -> str:
        """The leader's name as commands take it: `<topology>.<table>`, after the lake if it is in another one."""
        parts = leader_parts(self.scan.table)
        assert parts is not None, "a leader is of another topology"
        lake, topology, table = parts
        return f"{topology}.{table}" + ("" if lake is None else f" in {lake}")


@dataclass(frozen=True)
class Settings:
    """The settings of a topology, which `StreamsBuilder` documents."""

    max_task_idle_ms: int = 0
    max_records_per_tick: int | None = None
    processing_guarantee: Guarantee = "exactly_once_v2"
    ansi: bool = True
    message_timestamp_after_max_ms: int | None = 3_600_000
    on_data_loss: OnDataLoss = "fail"

    @property
    def exactly_once(self) -> bool:
        """True if landings read only committed records, and tables are published in transactions."""
        return self.processing_guarantee == "exactly_once_v2"


DEFAULTS = Settings()
"""The default settings."""
