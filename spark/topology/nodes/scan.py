"""A stored table, read at a version."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass, replace

from spark.topology.columns import Column
from spark.topology.nodes.node import AddedColumns, Costs, Node

LANDING = "_landing/"
"""The prefix of the names of landings."""


@dataclass(frozen=True)
class Scan(Node):
    """The rows of a stored table; with `appended`, the records of a stored stream or of a landing (`_landing/<topic>`).

    `by_time` is true for rows of windows that were written when stream time closed their window.
    """

    table: str
    key: tuple[str, ...]
    columns: tuple[Column, ...]
    appended: bool = False
    by_time: bool = False

    @property
    def landing(self) -> bool:
        """True if the table is a landing."""
        return self.table.startswith(LANDING)

    @property
    def sources(self) -> tuple[Node, ...]:
        """None: a stored table is a leaf of the plan."""
        return ()

    def map_sources(self, change: Callable[[Node], Node]) -> Node:  # noqa: ARG002  # it has no source
        """Itself."""
        return self

    @property
    def scans(self) -> tuple[Scan, ...]:
        """Itself."""
        return (self,)

    @property
    def drivers(self) -> tuple[Scan, ...]:
        """Itself."""
        return (self,)

    @property
    def has_change_feed(self) -> bool:
        """True."""
        return True

    @property
    def title(self) -> str:
        """The table's name."""
        return self.table

    @property
    def kafka_name(self) -> str:
        """The processor's name in Kafka Streams."""
        return "KTABLE-SOURCE"

    def explain(self, global_tables: Set[str]) -> str:
        """The table's name."""
        return f"{self.table}{' (global table)' if self.table in global_tables else ''}"

    @property
    def costs(self) -> Costs:
        """The changed keys."""
        return ((self, "the changed keys"),)

    def pruned(self, read: Set[str]) -> Node:  # noqa: ARG002  # a stored table has all columns
        """Itself."""
        return self

    def without(self, added: AddedColumns) -> Scan:
        """The table without the columns that were added to it."""
        return replace(self, columns=tuple(one for one in self.columns if one.name not in added.get(self.table, ())))

    def anonymous(self) -> Scan:
        """The table without its columns."""
        return replace(self, columns=())
