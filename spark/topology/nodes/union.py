"""`merge`: the records of two streams."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass

from spark.topology.columns import Column
from spark.topology.nodes.node import AddedColumns, Binary, Costs, WiderColumns
from spark.topology.sql.widening import Wider


@dataclass(frozen=True)
class Union(Binary):
    """The records of two streams that have the same columns."""

    @property
    def columns(self) -> tuple[Column, ...]:
        """The key's columns, then the value's."""
        return self.left.columns

    @property
    def is_stream(self) -> bool:
        """True."""
        return True

    @property
    def omits_records(self) -> bool:
        """False: it has every record of both sides."""
        return False

    @property
    def title(self) -> str:
        """The method and both sides."""
        return f"merge of {self.left.title} and {self.right.title}"

    @property
    def kafka_name(self) -> str:
        """The processor's name in Kafka Streams."""
        return "KSTREAM-MERGE"

    def explain(self, global_tables: Set[str]) -> str:  # noqa: ARG002  # a stream is none
        """What it does; `describe` shows the streams below it."""
        return "the records of both streams"

    @property
    def costs(self) -> Costs:
        """The costs of both sides."""
        return self.left.costs + self.right.costs

    def pruned(self, read: Set[str]) -> Union:
        """The node without unread columns."""
        return self.map_sources(lambda source: source.pruned(read | set(self.key)))

    def without(self, added: AddedColumns) -> Union:
        """The node without the columns that were added to its sides."""
        return self.map_sources(lambda source: source.without(added))

    def widened(self, inputs: WiderColumns) -> Mapping[str, Wider]:
        """The widened columns of both sides; a column of one side alone has the wider type already."""
        left, right = self.left.widened(inputs), self.right.widened(inputs)
        return {name: types for name, types in left.items() if name in right}
