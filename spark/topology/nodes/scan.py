"""A stored table, read at a version."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, replace

from spark.topology.columns import Column
from spark.topology.nodes.node import AddedColumns, Costs, Node, WiderColumns
from spark.topology.sql.widening import Wider

LANDING = "_landing/"
"""The prefix of the names of landings."""


def leader_name(topology: str, table: str, lake: str | None = None) -> str:
    """The name, in plans of other topologies, of a table: `topology/table`; in another lake `lake/topology/table`."""
    return f"{'' if lake is None else lake + '/'}{topology}/{table}"


def leader_parts(name: str) -> tuple[str | None, str, str] | None:
    """The lake, topology and table of the name of another topology's table; None for a name of the plan's own topology.

    The lake is None for the lake of the plan's own topology.
    """
    if name.startswith(LANDING) or "/" not in name:
        return None
    place, _, table = name.rpartition("/")
    lake, _, topology = place.rpartition("/")
    return lake or None, topology, table


@dataclass(frozen=True)
class Scan(Node):
    """The rows of a stored table; with `appended`, the records of a stored stream or of a landing (`_landing/<topic>`).

    `table` is its name in the plan's own topology, or the `leader_name` of another topology's table. `by_time` is true
    for rows of windows that were written when stream time closed their window.
    """

    table: str
    key: tuple[str, ...]
    columns: tuple[Column, ...]
    appended: bool = False
    by_time: bool = False

    @property
    def landing(self) -> bool:
        """True if the table is a landing."""
        return self.table.startswith(LANDING)

    @property
    def read_only(self) -> bool:
        """True if the table is of another topology, which alone writes it."""
        return leader_parts(self.table) is not None

    @property
    def sources(self) -> tuple[Node, ...]:
        """None: a stored table is a leaf of the plan."""
        return ()

    def map_sources(self, change: Callable[[Node], Node]) -> Node:  # noqa: ARG002  # it has no source
        """Itself."""
        return self

    @property
    def scans(self) -> tuple[Scan, ...]:
        """Itself."""
        return (self,)

    @property
    def drivers(self) -> tuple[Scan, ...]:
        """Itself."""
        return (self,)

    @property
    def has_change_feed(self) -> bool:
        """True."""
        return True

    @property
    def title(self) -> str:
        """The table's name."""
        return self.table

    @property
    def kafka_name(self) -> str:
        """The processor's name in Kafka Streams."""
        return "KTABLE-SOURCE"

    def explain(self, global_tables: Set[str]) -> str:
        """The table's name."""
        kinds = ["read-only"] if self.read_only else []
        kinds += ["global table"] if self.table in global_tables else []
        return self.table + (f" ({', '.join(kinds)})" if kinds else "")

    @property
    def costs(self) -> Costs:
        """The changed keys."""
        return ((self, "the changed keys"),)

    def pruned(self, read: Set[str]) -> Node:  # noqa: ARG002  # a stored table has all columns
        """Itself."""
        return self

    def without(self, added: AddedColumns) -> Scan:
        """The table without the columns that were added to it."""
        return replace(self, columns=tuple(one for one in self.columns if one.name not in added.get(self.table, ())))

    def widened(self, inputs: WiderColumns) -> Mapping[str, Wider]:
        """The widened columns of the table."""
        return inputs.get(self.table, {})

    def anonymous(self) -> Scan:
        """The table without its columns."""
        return replace(self, columns=())
