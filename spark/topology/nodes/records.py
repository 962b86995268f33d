"""`stream`: the records of a landing or of a stored stream."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass, replace

from spark.topology.columns import Column
from spark.topology.nodes.node import AddedColumns, Costs, Node
from spark.topology.nodes.scan import LANDING, Scan


@dataclass(frozen=True)
class Records(Node):
    """A stream: the records of a landing, or of a stored stream, each in its own right.

    A record without a value is null in every value column. The records of a stored stream may be the changes of a table
    (`of_changes`), in the order of its commits.
    """

    source: Scan
    of_changes: bool = False

    @property
    def key(self) -> tuple[str, ...]:
        """The names of the key columns."""
        return self.source.key

    @property
    def columns(self) -> tuple[Column, ...]:
        """The key's columns, then the value's."""
        return self.source.columns

    @property
    def sources(self) -> tuple[Node, ...]:
        """The landing, or the stored stream."""
        return (self.source,)

    def over(self, change: Callable[[Node], Node]) -> Node:  # noqa: ARG002  # they are bound to where they are stored
        """Itself."""
        return self

    @property
    def is_stream(self) -> bool:
        """Records are a stream."""
        return True

    @property
    def omits_records(self) -> bool:
        """All that landed are there."""
        return False

    @property
    def title(self) -> str:
        """The topic, or the stored stream."""
        return self.source.table.removeprefix(LANDING)

    @property
    def kafka_name(self) -> str:
        """As Kafka Streams prints it."""
        return "KSTREAM-SOURCE"

    def explain(self, global_tables: Set[str]) -> str:  # noqa: ARG002  # a stream is none
        """The topic, or the stored stream."""
        return f"the records of {'topic' if self.source.landing else 'stream'} {self.title}"

    @property
    def explained_sources(self) -> tuple[tuple[str, Node], ...]:
        """None: the name says it."""
        return ()

    @property
    def costs(self) -> Costs:
        """The records themselves."""
        return ((self.source, "the new records"),)

    def pruned(self, read: Set[str]) -> Node:  # noqa: ARG002  # what has landed is the landing's business
        """Itself."""
        return self

    def without(self, added: AddedColumns) -> Node:
        """The records without the columns that were added to the landing."""
        return replace(self, source=self.source.without(added))

    def anonymous(self) -> Node:
        """The records of a landing by its name alone."""
        return replace(self, source=self.source.anonymous())
