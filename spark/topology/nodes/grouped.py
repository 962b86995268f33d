"""What aggregates of groups and of windows have in common: grouping columns, a select list, and a fold."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Self

from spark.topology.columns import Column
from spark.topology.errors import Place
from spark.topology.nodes import items
from spark.topology.nodes.node import Node, Unary, WiderColumns
from spark.topology.sql.fold import Fold, fold_of
from spark.topology.sql.widening import Wider, aggregated


@dataclass(frozen=True)
class Grouped(Unary):
    """Aggregates of groups of source rows.

    `by` are the grouping columns, `select` is the select list, and `fold` is set if the stored rows are folded.
    """

    by: tuple[str, ...]
    select: tuple[tuple[str, str], ...]
    columns: tuple[Column, ...]
    fold: Fold | None = field(default=None, kw_only=True)

    @property
    @abstractmethod
    def aggregate_items(self) -> items.Items:
        """(column, expression) for every aggregate."""

    @property
    def aggregates(self) -> bool:
        """True: its rows are aggregates."""
        return True

    @property
    def rereads(self) -> tuple[Node, ...]:
        """Its source, if that is a stream: it reads the earlier records of changed groups."""
        return self.sources if self.source.is_stream else ()

    @property
    def foldable(self) -> Fold | str:
        """The fold of its aggregates, or the reason why they do not fold."""
        place = Place(f"aggregate by {', '.join(self.by)}", self.line, {"": self.source.columns})
        return fold_of(self.aggregate_items, place, insert_only=self.source.is_stream)

    def folded(self) -> Self:
        """The node with its fold, if its aggregates fold."""
        fold = self.foldable
        return replace(self, fold=fold) if isinstance(fold, Fold) else self

    def pruned(self, read: Set[str]) -> Self:
        """The node without unread aggregates; with all of them if it folds, since its partials are of all."""
        node = self
        if self.fold is None:
            select, columns = items.selected(self.select, self.columns, read | set(self.key))
            node = replace(self, select=select, columns=columns)
        source_columns = items.columns_in(self.source.columns, *(text for _, text in node.select))
        return replace(node, source=self.source.pruned({*self.by, *source_columns}))

    def widened(self, inputs: WiderColumns) -> Mapping[str, Wider]:
        """The grouping columns that were widened, and the aggregates over widened columns whose types are wider."""
        wider = self.source.widened(inputs)
        found = {name: wider[name] for name in self.by if name in wider}
        for name, text in self.aggregate_items:
            if (types := aggregated(text, wider)) is not None:
                found[name] = types
        return found

    def narrowed(self, inputs: WiderColumns) -> Node:
        """The aggregates as they were before columns were widened, with the fold over the former types."""
        node = super().narrowed(inputs)
        assert isinstance(node, Grouped)
        return node if self.fold is None else replace(node, fold=None).folded()
