"""`flat_map`: one record for every element of an array."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace

from spark.topology.columns import Column
from spark.topology.nodes.node import AddedColumns, Unary, names


@dataclass(frozen=True)
class Explode(Unary):
    """The records of a stream, one for each element of an array column, which holds the element then."""

    column: str
    columns: tuple[Column, ...]

    @property
    def is_stream(self) -> bool:
        """It is one."""
        return True

    @property
    def of_changes(self) -> bool:
        """As its source."""
        return self.source.of_changes

    @property
    def title(self) -> str:
        """The method, its column, and the source."""
        return f"flat_map({self.column}) of {self.source.title}"

    @property
    def kafka_name(self) -> str:
        """As Kafka Streams prints it."""
        return "KSTREAM-FLATMAP"

    def explain(self, global_tables: Set[str]) -> str:  # noqa: ARG002  # a stream is none
        """The column whose elements become records."""
        return f"flat_map of every element of {self.column}"

    def pruned(self, read: Set[str]) -> Explode:
        """Its source without the columns that nothing reads; the array is always read."""
        kept = read | set(self.key)
        columns = tuple(column for column in self.columns if column.name in kept)
        return replace(self, source=self.source.pruned(kept | {self.column}), columns=columns)

    def without(self, added: AddedColumns) -> Explode:
        """Without the columns that its source was given since."""
        was = self.source.without(added)
        gone = names(self.source.columns) - names(was.columns) - {self.column}
        return replace(self, source=was, columns=tuple(one for one in self.columns if one.name not in gone))
