"""`flat_map`: one record for every element of an array."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace

from spark.topology.columns import Column
from spark.topology.nodes.node import AddedColumns, Unary, WiderColumns, names
from spark.topology.sql.widening import Wider


@dataclass(frozen=True)
class Explode(Unary):
    """One record for every element of an array column of a stream. The column holds the element."""

    column: str
    columns: tuple[Column, ...]

    @property
    def is_stream(self) -> bool:
        """True."""
        return True

    @property
    def of_changes(self) -> bool:
        """True if its source is."""
        return self.source.of_changes

    @property
    def title(self) -> str:
        """The method, the column and the source."""
        return f"flat_map({self.column}) of {self.source.title}"

    @property
    def kafka_name(self) -> str:
        """The processor's name in Kafka Streams."""
        return "KSTREAM-FLATMAP"

    def explain(self, global_tables: Set[str]) -> str:  # noqa: ARG002  # a stream is none
        """The column whose elements become records."""
        return f"flat_map: one record for every element of {self.column}"

    def pruned(self, read: Set[str]) -> Explode:
        """The node without unread columns; the array is always read."""
        read = read | set(self.key)
        columns = tuple(column for column in self.columns if column.name in read)
        return replace(self, source=self.source.pruned(read | {self.column}), columns=columns)

    def without(self, added: AddedColumns) -> Explode:
        """The node without the columns that were added to its source."""
        source = self.source.without(added)
        removed = names(self.source.columns) - names(source.columns) - {self.column}
        columns = tuple(column for column in self.columns if column.name not in removed)
        return replace(self, source=source, columns=columns)

    def widened(self, inputs: WiderColumns) -> Mapping[str, Wider]:
        """The widened columns of the source; of a widened array, the element."""
        found = dict(self.source.widened(inputs))
        if self.column in found:
            found[self.column] = Wider(*(kind.removeprefix("array<")[:-1] for kind in found[self.column]))
        return found
