"""`merge`: the records of two streams."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace

from spark.topology.columns import Column
from spark.topology.nodes.node import AddedColumns, Binary, Costs


@dataclass(frozen=True)
class Union(Binary):
    """The records of two streams that have the same columns."""

    @property
    def columns(self) -> tuple[Column, ...]:
        """The key's columns, then the value's."""
        return self.left.columns

    @property
    def is_stream(self) -> bool:
        """It is one."""
        return True

    @property
    def omits_records(self) -> bool:
        """All of both sides are there."""
        return False

    @property
    def title(self) -> str:
        """The method, and both sides."""
        return f"merge of {self.left.title} and {self.right.title}"

    @property
    def kafka_name(self) -> str:
        """As Kafka Streams prints it."""
        return "KSTREAM-MERGE"

    def explain(self, global_tables: Set[str]) -> str:  # noqa: ARG002  # a stream is none
        """The sides are shown below it."""
        return "the records of both"

    @property
    def costs(self) -> Costs:
        """Those of both sides."""
        return self.left.costs + self.right.costs

    def pruned(self, read: Set[str]) -> Union:
        """Both sides without the columns that nothing reads."""
        kept = read | set(self.key)
        return replace(self, left=self.left.pruned(kept), right=self.right.pruned(kept))

    def without(self, added: AddedColumns) -> Union:
        """Both sides as they were."""
        return self.over(lambda source: source.without(added))
