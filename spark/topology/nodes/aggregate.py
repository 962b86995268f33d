"""`group_by` with `count`, `aggregate` or `reduce`, and `select_key` on tables: one row for every group."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass

from spark.topology.nodes import items
from spark.topology.nodes.grouped import Grouped
from spark.topology.nodes.node import Costs, Node


@dataclass(frozen=True)
class Aggregate(Grouped):
    """One row for every group of source rows. A row with a null in a grouping column is in no group.

    `select` holds (column, expression) for every column of `columns`: the grouping columns, which are the key, then
    the aggregates. A stored aggregate has a `fold` if its aggregates fold; a view has none.
    """

    @property
    def key(self) -> tuple[str, ...]:
        """The grouping columns."""
        return self.by

    @property
    def aggregate_items(self) -> items.Items:
        """(column, expression) for every aggregate."""
        return self.select[len(self.by) :]

    def drops_records(self, stream_topics: Set[str]) -> bool:
        """Whether it groups a stream, whose records may have no value, or a null in what they are grouped by."""
        return self.source.is_stream or super().drops_records(stream_topics)

    def stored_form(self) -> Node:
        """The aggregate with its fold: its stored rows can be folded."""
        return self.folded()

    def mistakes(self, stored: Set[Node]) -> Iterable[tuple[str, str]]:  # noqa: ARG002  # stored or not
        """Refuse aggregates of a table's changes that do not fold: the changes are not retained."""
        if self.source.of_changes and isinstance(why := self.foldable, str):
            do = "write an aggregate that folds, or aggregate the table itself"
            yield f"the changes of a table are not retained, and {why}", do

    def why_no_view(self, stored: Set[Node]) -> tuple[str, str] | None:  # noqa: ARG002  # stored or not
        """Refuse a view of a stream: every read would compute its groups from all records."""
        if not self.source.is_stream:
            return None
        return "an aggregate of a stream cannot be a view", "call .materialize(name) on the aggregate"

    @property
    def title(self) -> str:
        """The source and the grouping columns."""
        return f"aggregate of {self.source.title} by {', '.join(self.by)}"

    @property
    def kafka_name(self) -> str:
        """The processor's name in Kafka Streams."""
        return f"{'KSTREAM' if self.source.is_stream else 'KTABLE'}-AGGREGATE"

    def explain(self, global_tables: Set[str]) -> str:  # noqa: ARG002  # a computed table is none
        """The aggregates, and whether they fold."""
        computed = ", ".join(items.text_of(name, text) for name, text in self.aggregate_items)
        if self.fold is not None:
            strategy = "folded: the new value is computed from the old value and the change"
        else:
            why = self.foldable
            strategy = f"each group computed again from its rows: {why if isinstance(why, str) else 'it is not stored'}"
        return f"{computed} by {', '.join(self.by)}, {strategy}"

    @property
    def costs(self) -> Costs:
        """The changed rows; if groups are computed again, also a scan of the source for their rows."""
        return tuple((scan, words + self._group_costs) for scan, words in self.source.costs)

    @property
    def _group_costs(self) -> str:
        source = self.source
        if self.fold is None:
            groups = "" if source.is_stream else ", old and new"
            return f", and a scan of {source.title} for the rows of their groups{groups}"
        if source.is_stream:
            return ", each folded into its group"
        extremes = any(partial.how != "sum" for partial in self.fold.partials)
        which = "newest, least or greatest" if extremes else "newest"
        lookup = "" if source.has_change_feed else f", after a lookup of its old row in {source.title}"
        scan = f"if a group loses its {which} row, a scan of {source.title} for its rows"
        return f", each folded into its group{lookup}; {scan}"
