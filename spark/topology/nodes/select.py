"""`filter`, `map_values`, and `select_key` on streams."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace

from spark.topology.columns import Column
from spark.topology.nodes import items
from spark.topology.nodes.node import AddedColumns, Node, Unary
from spark.topology.sql.ddl import quoted

_KAFKA = {"select_key": "KEY-SELECT", "map_values": "MAPVALUES", "filter": "FILTER"}


@dataclass(frozen=True)
class Select(Unary):
    """The rows where a condition is true, with value columns computed from them; the key is passed through.

    `select` holds (column, expression) for every column of `columns`, key columns first. A stream may take another
    key: `rekeyed` names its columns.
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
        """As its source."""
        return self.source.is_stream

    @property
    def of_changes(self) -> bool:
        """As its source."""
        return self.source.of_changes

    @property
    def has_change_feed(self) -> bool:
        """As its source: the rows before a span are computed from those of the source."""
        return self.source.has_change_feed

    @property
    def omits_records(self) -> bool:
        """A filter does."""
        return self.where is not None

    @property
    def closes_windows(self) -> bool:
        """As its source."""
        return self.source.closes_windows

    @property
    def method(self) -> str:
        """The method that wrote it."""
        if self.rekeyed is not None:
            return "select_key"
        return "map_values" if self.where is None else "filter"

    @property
    def title(self) -> str:
        """The method, and the source."""
        return f"{self.method} of {self.source.title}"

    @property
    def kafka_name(self) -> str:
        """As Kafka Streams prints it."""
        return f"{'KSTREAM' if self.is_stream else 'KTABLE'}-{_KAFKA[self.method]}"

    def explain(self, global_tables: Set[str]) -> str:  # noqa: ARG002  # a view is none
        """The condition, the new key, or the computed columns."""
        computed = ", ".join(items.text_of(name, text) for name, text in self.select[len(self.key) :])
        what = self.where if self.where is not None else ", ".join(self.rekeyed) if self.rekeyed else computed
        return f"{self.method} {what}"

    def pruned(self, read: Set[str]) -> Select:
        """Without the columns that nothing reads, and its source without those that then nothing reads."""
        select, columns = items.kept(self.select, self.columns, read | set(self.key))
        below = items.columns_in(self.source.columns, *(text for _, text in select), self.where or "")
        return replace(self, source=self.source.pruned(below), select=select, columns=columns)

    def without(self, added: AddedColumns) -> Select:
        """Without the columns that pass on one that its source was given since."""
        was = self.source.without(added)
        passed = items.passed_on("", self.source.columns, was.columns)
        select, columns = items.without(self.select, self.columns, passed)
        return replace(self, source=was, select=select, columns=columns)

    def anonymous(self) -> Node:
        """A filter that passes all columns on, by its condition alone."""
        source = self.source.anonymous()
        if self.where is not None and all(text == quoted(name) for name, text in self.select):
            return replace(self, source=source, select=(), columns=())
        return replace(self, source=source)
