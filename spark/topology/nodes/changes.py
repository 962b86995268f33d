"""`to_stream`: the changes of a stored table as a stream."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace

from spark.topology.columns import Column
from spark.topology.nodes.node import Costs, Node, Unary, names
from spark.topology.nodes.scan import Scan


@dataclass(frozen=True)
class Changes(Unary):
    """A stream: one record for every changed row of every commit of a stored table. A deleted row has no value."""

    @property
    def columns(self) -> tuple[Column, ...]:
        """The key's columns, then the value's."""
        return self.source.columns

    @property
    def is_stream(self) -> bool:
        """True."""
        return True

    @property
    def of_changes(self) -> bool:
        """True."""
        return True

    @property
    def changelogs(self) -> tuple[Scan, ...]:
        """The table."""
        return self.scans

    def time_hiding_stream(self, stored: Set[Node]) -> Node | None:  # noqa: ARG002  # stored or not
        """Itself: records that change no row advance its stream time."""
        return self

    def unstored_lookup(self, stored: Set[Node]) -> Node | None:  # noqa: ARG002  # stored or not
        """None: its table is stored."""
        return None

    def stores_changes(self, stored: Set[Node]) -> bool:
        """True if it is stored: the change feed of its table is not retained forever."""
        return self in stored

    def why_no_view(self, stored: Set[Node]) -> tuple[str, str] | None:
        """Refuse a view: only a stored table has a change feed."""
        if self.source in stored or (isinstance(self.source, Scan) and self.source.read_only):
            return None
        return "a view has no change feed", "call .materialize(name) before .to_stream()"

    @property
    def title(self) -> str:
        """The method and the table."""
        return f"to_stream of {self.source.title}"

    @property
    def kafka_name(self) -> str:
        """The processor's name in Kafka Streams."""
        return "KTABLE-TOSTREAM"

    def explain(self, global_tables: Set[str]) -> str:  # noqa: ARG002  # a stream is none
        """The table that has changed."""
        return f"the changes of {self.source.title}"

    @property
    def explained_sources(self) -> tuple[tuple[str, Node], ...]:
        """None: the explanation names the table."""
        return ()

    @property
    def costs(self) -> Costs:
        """The changes."""
        return tuple((scan, "the changes") for scan, _ in self.source.costs)

    def pruned(self, read: Set[str]) -> Changes:  # noqa: ARG002  # a change of any column is a record
        """The changes over all columns of the table."""
        return replace(self, source=self.source.pruned(names(self.source.columns)))
