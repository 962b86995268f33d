"""`to_stream`: the changes of a stored table as a stream."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace

from spark.topology.columns import Column
from spark.topology.nodes.node import Costs, Node, Unary, names
from spark.topology.nodes.scan import Scan


@dataclass(frozen=True)
class Changes(Unary):
    """A stream: one record for every change of a row in a commit of a stored table. A deleted row has no value."""

    @property
    def columns(self) -> tuple[Column, ...]:
        """The key's columns, then the value's."""
        return self.source.columns

    @property
    def is_stream(self) -> bool:
        """Changes are a stream."""
        return True

    @property
    def of_changes(self) -> bool:
        """It is one."""
        return True

    @property
    def changelogs(self) -> tuple[Scan, ...]:
        """The table whose changes it is."""
        return self.scans

    def hides_time(self, stored: Set[Node]) -> Node | None:  # noqa: ARG002  # stored or not
        """Its time advances by the records that the table was computed from."""
        return self

    def unstored_lookup(self, stored: Set[Node]) -> Node | None:  # noqa: ARG002  # stored or not
        """None: its table is stored."""
        return None

    def stores_changes(self, stored: Set[Node]) -> bool:
        """If it is stored itself: its table does not keep its changes for ever."""
        return self in stored

    def why_no_view(self, stored: Set[Node]) -> tuple[str, str] | None:
        """Only a stored table has a change feed."""
        if self.source in stored:
            return None
        return "a view has no changes of its own", "write .materialize(name) before .to_stream()"

    @property
    def title(self) -> str:
        """The method, and the table."""
        return f"to_stream of {self.source.title}"

    @property
    def kafka_name(self) -> str:
        """As Kafka Streams prints it."""
        return "KTABLE-TOSTREAM"

    def explain(self, global_tables: Set[str]) -> str:  # noqa: ARG002  # a stream is none
        """The table whose changes it is."""
        return f"the changes of {self.source.title}"

    @property
    def explained_sources(self) -> tuple[tuple[str, Node], ...]:
        """None: the name says it."""
        return ()

    @property
    def costs(self) -> Costs:
        """The changes themselves."""
        return tuple((scan, "the changes") for scan, _ in self.source.costs)

    def pruned(self, read: Set[str]) -> Changes:  # noqa: ARG002  # a row that changed in any column is a record
        """All columns are read."""
        return replace(self, source=self.source.pruned(names(self.source.columns)))
