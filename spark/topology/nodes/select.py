"""`filter`, `map_values`, and `select_key` on streams."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace

from spark.topology.columns import Column
from spark.topology.nodes import items
from spark.topology.nodes.node import AddedColumns, Node, Unary, WiderColumns
from spark.topology.sql.ddl import quoted
from spark.topology.sql.widening import Wider, check_condition

_KAFKA = {"select_key": "KEY-SELECT", "map_values": "MAPVALUES", "filter": "FILTER"}


@dataclass(frozen=True)
class Select(Unary):
    """The rows for which the condition `where` is true, with computed value columns; the key is passed through.

    `select` holds (column, expression) for every column of `columns`, key columns first. `rekeyed` holds the columns of
    a stream's new key.
    """

    select: tuple[tuple[str, str], ...]
    columns: tuple[Column, ...]
    where: str | None = None
    rekeyed: tuple[str, ...] | None = None

    @property
    def key(self) -> tuple[str, ...]:
        """The names of the key columns."""
        return self.source.key if self.rekeyed is None else self.rekeyed

    @property
    def is_stream(self) -> bool:
        """True if its source is."""
        return self.source.is_stream

    @property
    def is_row_by_row(self) -> bool:
        """True if it has the key of its source."""
        return self.rekeyed is None

    @property
    def of_changes(self) -> bool:
        """True if its source is."""
        return self.source.of_changes

    @property
    def has_change_feed(self) -> bool:
        """True if its source has one: the rows before a span are computed from the rows of the source."""
        return self.source.has_change_feed

    @property
    def omits_records(self) -> bool:
        """True if it has a condition."""
        return self.where is not None

    @property
    def closes_windows(self) -> bool:
        """True if its source does."""
        return self.source.closes_windows

    @property
    def method(self) -> str:
        """The method that created it."""
        if self.rekeyed is not None:
            return "select_key"
        return "map_values" if self.where is None else "filter"

    @property
    def title(self) -> str:
        """The method and the source."""
        return f"{self.method} of {self.source.title}"

    @property
    def kafka_name(self) -> str:
        """The processor's name in Kafka Streams."""
        return f"{'KSTREAM' if self.is_stream else 'KTABLE'}-{_KAFKA[self.method]}"

    def explain(self, global_tables: Set[str]) -> str:  # noqa: ARG002  # a view is none
        """The condition, the new key, or the computed columns."""
        computed = ", ".join(items.text_of(name, text) for name, text in self.select[len(self.key) :])
        arguments = self.where if self.where is not None else ", ".join(self.rekeyed) if self.rekeyed else computed
        return f"{self.method} {arguments}"

    def pruned(self, read: Set[str]) -> Select:
        """The node without unread columns, and its source without the columns that are then unread."""
        select, columns = items.selected(self.select, self.columns, read | set(self.key))
        source_columns = items.columns_in(self.source.columns, *(text for _, text in select), self.where or "")
        return replace(self, source=self.source.pruned(source_columns), select=select, columns=columns)

    def without(self, added: AddedColumns) -> Select:
        """The node without columns that only pass through a column that was added to its source."""
        source = self.source.without(added)
        added_texts = items.passed_through("", self.source.columns, source.columns)
        select, columns = items.without(self.select, self.columns, added_texts)
        return replace(self, source=source, select=select, columns=columns)

    def widened(self, inputs: WiderColumns) -> Mapping[str, Wider]:
        """The columns that pass widened ones through, if its expressions over widened columns only compare."""
        wider = self.source.widened(inputs)
        passed, others = items.passing_on(self.select, {quoted(name): types for name, types in wider.items()})
        for text in (*others, *([] if self.where is None else [self.where])):
            check_condition(text, wider, self.source.columns)
        return passed

    def anonymous(self) -> Node:
        """The node; a filter that passes all columns through is its condition alone."""
        source = self.source.anonymous()
        if self.where is not None and all(text == quoted(name) for name, text in self.select):
            return replace(self, source=source, select=(), columns=())
        return replace(self, source=source)
