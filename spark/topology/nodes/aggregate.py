"""`group_by` with `count`, `aggregate` or `reduce`, and `select_key` on tables: one row for every group."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass, replace

from spark.topology.columns import Column
from spark.topology.errors import Place
from spark.topology.nodes import items
from spark.topology.nodes.node import Costs, Node, Unary
from spark.topology.sql.fold import Fold, fold_of


@dataclass(frozen=True)
class Aggregate(Unary):
    """One row for every group of source rows. A row with a null among the group's columns is in no group.

    `select` holds (column, expression) for every column of `columns`: those grouped by, which are the key, then the
    aggregates. A stored aggregate has a `fold` where its aggregates allow one; a view has none.
    """

    by: tuple[str, ...]
    select: tuple[tuple[str, str], ...]
    columns: tuple[Column, ...]
    fold: Fold | None = None

    @property
    def key(self) -> tuple[str, ...]:
        """The names of the columns grouped by."""
        return self.by

    @property
    def aggregates(self) -> bool:
        """It does."""
        return True

    @property
    def reads_again(self) -> tuple[Node, ...]:
        """A stream, for the groups of its new records."""
        return self.sources if self.source.is_stream else ()

    def drops_records(self, stream_topics: Set[str]) -> bool:
        """Whether it groups a stream, whose records may have no value, or a null in what they are grouped by."""
        return self.source.is_stream or super().drops_records(stream_topics)

    @property
    def foldable(self) -> Fold | str:
        """How it folds, or why it does not."""
        place = Place(f"aggregate by {', '.join(self.by)}", self.line, {"": self.source.columns})
        return fold_of(self.select[len(self.by) :], place, insert_only=self.source.is_stream)

    def stored_form(self) -> Node:
        """With its fold: the rows that it folds into are stored."""
        fold = self.foldable
        return replace(self, fold=fold) if isinstance(fold, Fold) else self

    def mistakes(self, stored: Set[Node]) -> Iterable[tuple[str, str]]:  # noqa: ARG002  # stored or not
        """Groups of a table's changes cannot be computed again."""
        if self.source.of_changes and isinstance(why := self.foldable, str):
            do = "write an aggregate that folds, or aggregate the table itself"
            yield f"a table's changes are not kept for ever, and {why}", do

    def why_no_view(self, stored: Set[Node]) -> tuple[str, str] | None:  # noqa: ARG002  # stored or not
        """Groups of a stream would be computed from all of its records, at every reading."""
        if not self.source.is_stream:
            return None
        return "groups of a stream are no view", "write .materialize(name) behind the aggregate"

    @property
    def title(self) -> str:
        """The source, and what it is grouped by."""
        return f"aggregate of {self.source.title} by {', '.join(self.by)}"

    @property
    def kafka_name(self) -> str:
        """As Kafka Streams prints it."""
        return f"{'KSTREAM' if self.source.is_stream else 'KTABLE'}-AGGREGATE"

    def explain(self, global_tables: Set[str]) -> str:  # noqa: ARG002  # a computed table is none
        """The aggregates, and whether they fold."""
        computed = ", ".join(items.text_of(name, text) for name, text in self.select[len(self.by) :])
        if self.fold is not None:
            strategy = "folded: the old value and the change give the new one"
        else:
            why = self.foldable
            strategy = (
                f"each group computed again from its rows: {why if isinstance(why, str) else 'it is not stored itself'}"
            )
        return f"{computed} by {', '.join(self.by)}, {strategy}"

    @property
    def costs(self) -> Costs:
        """The changed rows; where groups are computed again, a scan of the source for their rows."""
        return tuple((scan, words + self._again) for scan, words in self.source.costs)

    @property
    def _again(self) -> str:
        source = self.source
        if self.fold is None:
            groups = "" if source.is_stream else ", old and new"
            return f", and a scan of {source.title} for the rows of their groups{groups}"
        if source.is_stream:
            return ", each folded into its group"
        extremes = any(partial.how != "sum" for partial in self.fold.partials)
        which = "newest, least or greatest" if extremes else "newest"
        before = "" if source.has_change_feed else f", after a look at what it was in {source.title}"
        again = f"where a group's {which} row left, a scan of {source.title} for its rows"
        return f", each folded into its group{before}; {again}"

    def pruned(self, read: Set[str]) -> Aggregate:
        """Without the aggregates that nothing reads, unless it folds: its partials are of all of them."""
        cut = self
        if self.fold is None:
            select, columns = items.kept(self.select, self.columns, read | set(self.key))
            cut = replace(self, select=select, columns=columns)
        below = items.columns_in(self.source.columns, *(text for _, text in cut.select))
        return replace(cut, source=self.source.pruned({*self.by, *below}))
