"""A topology: sources and stored tables, with their description, fingerprints and serialization."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

from spark.topology.columns import Column
from spark.topology.consumed import Consumed as Consumed  # a part of a source: importable from here too
from spark.topology.describe import describe, describe_table, graph
from spark.topology.envelope import Envelope
from spark.topology.errors import Place, TopologyError, user_line
from spark.topology.model import DEFAULTS
from spark.topology.model import Leader as Leader
from spark.topology.model import Settings as Settings
from spark.topology.model import Source as Source
from spark.topology.model import Table as Table
from spark.topology.nodes import KINDS, AddedColumns, Node, WiderColumns
from spark.topology.produced import Produced
from spark.topology.protobuf import Message
from spark.topology.serialization import Plain, from_plain, to_plain
from spark.topology.sql.fold import Fold, Partial


@dataclass(frozen=True)
class Topology:
    """Sources, and stored tables in topological order; `leaders` are the tables of other topologies that they read.

    `unread` are views that no stored table reads: `describe` shows them, and comparisons ignore them.
    """

    name: str
    sources: tuple[Source, ...]
    tables: tuple[Table, ...]
    settings: Settings = DEFAULTS
    leaders: tuple[Leader, ...] = ()
    unread: tuple[Node, ...] = field(default=(), compare=False, repr=False)

    @property
    def stored(self) -> tuple[str, ...]:
        """The names of the landings, then of the tables."""
        return (*(source.landing for source in self.sources), *(table.name for table in self.tables))

    def source(self, topic: str) -> Source:
        """The source of a topic.

        Raises:
            TopologyError: the topology does not read the topic.
        """
        found = next((source for source in self.sources if source.topic == topic), None)
        if found is None:
            raise self._missing(f"topic {topic!r}", [source.topic for source in self.sources])
        return found

    def table(self, name: str) -> Table:
        """The stored table with this name.

        Raises:
            TopologyError: there is none.
        """
        found = next((table for table in self.tables if table.name == name), None)
        if found is None:
            raise self._missing(f"table {name!r}", [table.name for table in self.tables])
        return found

    def leader(self, table: str) -> Leader | None:
        """The leader with this name in plans (`<topology>/<table>`); None for a table of this topology."""
        return next((leader for leader in self.leaders if leader.scan.table == table), None)

    @property
    def source_topics(self) -> dict[str, set[str]]:
        """The topics of this topology that every landing and every table is computed from, by its name."""
        topics = {source.landing: {source.topic} for source in self.sources}
        topics |= {leader.scan.table: set() for leader in self.leaders}
        for table in self.tables:
            topics[table.name] = set().union(*(topics[scan.table] for scan in table.inputs))
        return topics

    @property
    def levels(self) -> tuple[tuple[Table, ...], ...]:
        """The tables in groups: the tables of a group read only landings, and tables of earlier groups."""
        found, waiting = [], list(self.tables)
        while waiting:
            names = {table.name for table in waiting}
            level = tuple(table for table in waiting if not names & {scan.table for scan in table.inputs})
            found.append(level)
            waiting = [table for table in waiting if table not in level]
        return tuple(found)

    def drops_records(self, table: Table) -> bool:
        """Whether a table without stream time may drop records of a stream."""
        return table.plan.drops_records({source.landing for source in self.sources if source.kind == "stream"})

    def downstream(self, name: str) -> tuple[Table, ...]:
        """The tables that are computed from a table, directly or indirectly, in topological order."""
        found = {name: self.table(name)}
        for table in self.tables:
            if any(scan.table in found for scan in table.inputs):
                found[table.name] = table
        return tuple(found.values())[1:]

    def describe(self, table: str | None = None) -> str:
        """The topology in the format of Kafka Streams, then every table in words; or one table in words."""
        if table is not None:
            return describe_table(self.table(table), self.sources, self.settings, self.leaders)
        return describe(self.sources, self.tables, self.settings, self.unread, self.leaders)

    def graph(self) -> str:
        """Topics and stored tables as a Mermaid flowchart."""
        return graph(self.sources, self.tables, self.leaders)

    def to_dict(self) -> dict[str, Plain]:
        """The topology as JSON-compatible data, without the user's lines."""
        data = to_plain(self)
        assert isinstance(data, dict)
        return data

    @staticmethod
    def from_dict(data: dict[str, Plain]) -> Topology:
        """The topology that `to_dict` converted to this data.

        Raises:
            TopologyError: the data is not that of a topology.
        """
        topology = from_plain(data, _KINDS)
        if not isinstance(topology, Topology):
            raise TopologyError(
                f"Topology.from_dict: the data is a {data['is']}; pass what Topology.to_dict() returned"
            )
        return topology

    def fingerprint(self, table: str | None = None) -> str:
        """A hash of the topology, or of the plan of one table down to the stored tables that it reads.

        A column of an input or a view that the table does not read does not change its fingerprint.
        """
        if table is None:
            return _hash(to_plain(self, defaults=False))
        return _hash(self.computed_by(table))

    def computed_by(self, table: str) -> Plain:
        """The data that the fingerprint of a table is a hash of."""
        return self._computation(self.table(table).plan)

    @staticmethod
    def stored_plan(computed_by: Plain) -> Node:
        """The plan in what `computed_by` returned: its key and its kinds of nodes are those of the table.

        Raises:
            TopologyError: another version of Tidetable wrote it, with other kinds of nodes.
        """
        try:
            plan = from_plain(computed_by, _KINDS)
            assert isinstance(plan, tuple)
            found = plan[0]
            assert isinstance(found, Node)
        except (KeyError, TypeError, IndexError, AssertionError) as error:
            raise TopologyError(f"the plan has another form than this version of Tidetable writes: {error}") from error
        return found

    def computes(self, table: str, fingerprint: str) -> bool:
        """True if a stored fingerprint is the fingerprint of the table."""
        return fingerprint == self.fingerprint(table)

    def added_columns(
        self, table: str, added: AddedColumns, wider: WiderColumns, fingerprint: str
    ) -> tuple[Column, ...] | None:
        """The columns that a table passes through because they were added to its inputs.

        None if the table without them, and before columns of its inputs were widened, does not have this fingerprint.

        Raises:
            ValuesMayDiffer: the table computes something of a widened column that may have other values.
        """
        plan = self.table(table).plan
        former = plan.narrowed(wider) if any(wider.values()) else plan
        before = former.without(added)
        if fingerprint != _hash(self._computation(before)):
            return None
        return tuple(column for column in plan.columns if column.name not in {one.name for one in before.columns})

    def _computation(self, plan: Node) -> list[Plain]:
        # The table of a topic has no expressions, so `ansi` does not change it.
        rules: list[Plain] = [] if self.settings.ansi or plan.is_decoded_topic else ["without ANSI rules"]
        return [to_plain(plan.minimal().anonymous(), defaults=False), to_plain(plan.columns), *rules]

    def _missing(self, what: str, existing: list[str]) -> TopologyError:
        place = Place(f"topology {self.name}", user_line())
        return place.mistake(f"there is no {what}", f"it has {', '.join(existing) or 'none'}")


_KINDS: Final = {
    kind.__name__.lower(): kind
    for kind in (
        *KINDS,
        Column,
        Consumed,
        Envelope,
        Fold,
        Leader,
        Message,
        Partial,
        Produced,
        Settings,
        Source,
        Table,
        Topology,
    )
}


def _hash(data: Plain) -> str:
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return sha256(text.encode()).hexdigest()
