"""The whole question: sources, stored tables in topological order, and how they print, hash and travel."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Final, Literal

from spark.topology.consumed import Consumed as Consumed  # a source's part, and found beside it
from spark.topology.ddl import quoted
from spark.topology.describe import describe, describe_table, graph
from spark.topology.errors import Place, TopologyError, user_line
from spark.topology.gained import Gained, before
from spark.topology.nodes import (
    LANDING,
    Aggregate,
    Changes,
    Closed,
    Column,
    Explode,
    Fold,
    Join,
    Latest,
    Line,
    Node,
    Partial,
    Records,
    Scan,
    Select,
    StreamJoin,
    Union,
    Window,
    decoded,
    over,
    scans,
)
from spark.topology.plain import Plain, from_plain, to_plain
from spark.topology.used import used

SourceKind = Literal["table", "global_table", "stream"]
Guarantee = Literal["exactly_once_v2", "at_least_once"]
OnDataLoss = Literal["fail", "ledger"]


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
        return f"{LANDING}{self.topic}"


@dataclass(frozen=True)
class Table:
    """A stored table: its name, and the plan over other stored tables that its rows must equal.

    Whether it is a stream that is `followed` by others: then its records keep their place in the order of time.
    Its changes, or a stream's records, are published to a `topic` if it has one.
    """

    name: str
    plan: Node
    followed: bool = False
    topic: str | None = None
    line: Line | None = field(default=None, compare=False, repr=False)

    @property
    def inputs(self) -> tuple[Scan, ...]:
        """The stored tables (or the landing) that the plan reads, each once, left to right."""
        return scans(self.plan)


@dataclass(frozen=True)
class Settings:
    """What holds for every step of a topology."""

    max_task_idle_ms: int = 0
    max_records_per_tick: int | None = None
    processing_guarantee: Guarantee = "exactly_once_v2"
    ansi: bool = True
    message_timestamp_after_max_ms: int | None = 3_600_000
    on_data_loss: OnDataLoss = "fail"

    @property
    def exactly_once(self) -> bool:
        """Whether what a transaction wrote is landed once it has ended, and tables are published in transactions."""
        return self.processing_guarantee == "exactly_once_v2"


@dataclass(frozen=True)
class Topology:
    """Sources, and stored tables in topological order.

    `unread` are views that no stored table is computed from: shown by `describe`, no part of the question.
    """

    name: str
    sources: tuple[Source, ...]
    tables: tuple[Table, ...]
    settings: Settings = Settings()
    unread: tuple[Node, ...] = field(default=(), compare=False, repr=False)

    @property
    def stored(self) -> tuple[str, ...]:
        """The names of everything that is stored: landings, then tables."""
        return (*(source.landing for source in self.sources), *(table.name for table in self.tables))

    def source(self, topic: str) -> Source:
        """The source that reads a topic."""
        found = next((source for source in self.sources if source.topic == topic), None)
        if found is None:
            raise self._missing(f"topic {topic!r}", [source.topic for source in self.sources])
        return found

    def table(self, name: str) -> Table:
        """The stored table of a name."""
        found = next((table for table in self.tables if table.name == name), None)
        if found is None:
            raise self._missing(f"table {name!r}", [table.name for table in self.tables])
        return found

    def downstream(self, name: str) -> tuple[Table, ...]:
        """The tables that are computed from one, directly or not, in order."""
        found = {name: self.table(name)}
        for table in self.tables:
            if any(scan.table in found for scan in table.inputs):
                found[table.name] = table
        return tuple(found.values())[1:]

    def describe(self, table: str | None = None) -> str:
        """The topology as Kafka Streams would print it, then every table in words; or one table in words."""
        return describe(self) if table is None else describe_table(self, self.table(table))

    def graph(self) -> str:
        """Topics and stored tables as a Mermaid flowchart."""
        return graph(self)

    def to_dict(self) -> dict[str, Plain]:
        """The topology as plain data, without the user's lines."""
        data = to_plain(self)
        assert isinstance(data, dict)
        return data

    @staticmethod
    def from_dict(data: dict[str, Plain]) -> Topology:
        """The topology that `to_dict` made this data of."""
        topology = from_plain(data, _KINDS)
        if not isinstance(topology, Topology):
            raise TopologyError(f"Topology.from_dict: the data is a {data['is']}; give it what to_dict() returned")
        return topology

    def fingerprint(self, table: str | None = None) -> str:
        """A hash of the whole topology, or of what one table is computed by, down to the stored tables it reads.

        The columns that an input or a view has besides those the table depends on are their own business.
        """
        if table is None:
            return _hash(to_plain(self, defaults=False))
        return _hash(self.computed_by(table))

    def computed_by(self, table: str) -> Plain:
        """What the fingerprint of a table is a hash of, as plain data."""
        return self._asked(used(self.table(table).plan))

    def asks(self, table: str, fingerprint: str) -> bool:
        """Whether a stored fingerprint is the table's; those of earlier builds took in every column of every view."""
        return self._asks(self.table(table).plan, fingerprint)

    def gained(self, table: str, gained: Gained, fingerprint: str) -> tuple[Column, ...] | None:
        """The columns that a table has because its inputs gained some; None if it had another fingerprint without."""
        plan = self.table(table).plan
        was = before(plan, gained)
        if not self._asks(was, fingerprint):
            return None
        return tuple(column for column in plan.columns if column not in was.columns)

    def _asks(self, plan: Node, fingerprint: str) -> bool:
        return fingerprint in (_hash(self._asked(used(plan))), _hash(self._asked(plan)))

    def _asked(self, plan: Node) -> list[Plain]:
        # A topic's table holds what was decoded: no rule of expressions changes it.
        rules: list[Plain] = [] if self.settings.ansi or decoded(plan) else ["without ANSI rules"]
        return [to_plain(_names_alone(plan), defaults=False), to_plain(plan.columns), *rules]

    def _missing(self, what: str, existing: list[str]) -> TopologyError:
        place = Place(f"topology {self.name}", user_line())
        return place.mistake(f"there is no {what}", f"it has {', '.join(existing) or 'none'}")


_KINDS: Final = {
    kind.__name__.lower(): kind
    for kind in (
        *(
            Aggregate,
            Changes,
            Column,
            Consumed,
            Explode,
            Fold,
            Join,
            Latest,
            Partial,
            Records,
            Scan,
            Select,
            StreamJoin,
        ),
        *(Union, Window, Closed, Settings, Source, Table, Topology),
    )
}


def _names_alone(node: Node) -> Node:
    """A plan without the columns that its inputs have, and that filters of them merely pass on."""
    match node:
        case Scan():
            return replace(node, columns=())
        case Records():
            return replace(node, source=replace(node.source, columns=()))
        case Select(where=str()) if all(text == quoted(name) for name, text in node.select):
            return replace(node, source=_names_alone(node.source), select=(), columns=())
        case _:
            return over(node, _names_alone)


def _hash(data: Plain) -> str:
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return sha256(text.encode()).hexdigest()
