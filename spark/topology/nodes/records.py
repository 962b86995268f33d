"""`stream`: the records of a landing or of a stored stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, replace

from spark.topology.columns import Column
from spark.topology.envelope import may_be_unavailable
from spark.topology.nodes.node import AddedColumns, Costs, Node, WiderColumns
from spark.topology.nodes.scan import LANDING, Scan
from spark.topology.sql.widening import Wider


@dataclass(frozen=True)
class Records(Node):
    """The records of a landing or of a stored stream.

    In a record without a value, every value column is null. `of_changes` is true for a stored stream of a table's
    changes, which are in the order of the table's commits. `captured` is true for a landing of Debezium's events, whose
    records have the columns `CAPTURED` too; with `truncates`, some of them empty the table.
    """

    source: Scan
    of_changes: bool = False
    captured: bool = False
    truncates: bool = False

    @property
    def key(self) -> tuple[str, ...]:
        """The names of the key columns."""
        return self.source.key

    @property
    def columns(self) -> tuple[Column, ...]:
        """The key's columns, then the value's."""
        return self.source.columns

    @property
    def sources(self) -> tuple[Node, ...]:
        """The landing or the stored stream."""
        return (self.source,)

    def map_sources(self, change: Callable[[Node], Node]) -> Node:  # noqa: ARG002  # its scan is not replaced
        """Itself."""
        return self

    @property
    def carries(self) -> bool:
        """True if a record may leave values out, which are those of earlier records."""
        return self.captured and any(may_be_unavailable(one) for one in self.columns if one.name not in self.key)

    @property
    def is_stream(self) -> bool:
        """True."""
        return True

    @property
    def omits_records(self) -> bool:
        """False: it has every landed record."""
        return False

    @property
    def title(self) -> str:
        """The topic or the stored stream."""
        return self.source.table.removeprefix(LANDING)

    @property
    def kafka_name(self) -> str:
        """The processor's name in Kafka Streams."""
        return "KSTREAM-SOURCE"

    def explain(self, global_tables: Set[str]) -> str:  # noqa: ARG002  # a stream is none
        """The topic or the stored stream."""
        return f"the records of {'topic' if self.source.landing else 'stream'} {self.title}"

    @property
    def explained_sources(self) -> tuple[tuple[str, Node], ...]:
        """None: the explanation names the stream."""
        return ()

    @property
    def costs(self) -> Costs:
        """The new records."""
        return ((self.source, "the new records"),)

    def pruned(self, read: Set[str]) -> Node:  # noqa: ARG002  # a landing has all columns
        """Itself."""
        return self

    def without(self, added: AddedColumns) -> Node:
        """The records without the columns that were added to the landing."""
        return replace(self, source=self.source.without(added))

    def widened(self, inputs: WiderColumns) -> Mapping[str, Wider]:
        """The widened columns of the landing or of the stored stream."""
        return self.source.widened(inputs)

    def narrowed(self, inputs: WiderColumns) -> Node:
        """The records as they were before columns were widened."""
        source = self.source.narrowed(inputs)
        assert isinstance(source, Scan)
        return replace(self, source=source)

    def anonymous(self) -> Node:
        """The records of a landing without its columns."""
        return replace(self, source=self.source.anonymous())
