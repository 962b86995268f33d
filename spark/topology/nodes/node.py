"""The base of every node of a plan: sources, key, columns, title, and the cost of a change of an input."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Self

from spark.topology.columns import Column, Line
from spark.topology.sql.widening import Wider

if TYPE_CHECKING:
    from spark.topology.nodes.scan import Scan

Costs = tuple[tuple["Scan", str], ...]
"""For each stored input, what a step reads after a change of it, in words."""

AddedColumns = Mapping[str, Set[str]]
"""By input, the columns that were added to it."""

WiderColumns = Mapping[str, Mapping[str, Wider]]
"""By input, the columns whose types were widened: the former type and the present one."""


@dataclass(frozen=True)
class Node(ABC):
    """An operator of a plan over its sources. It is immutable, and can be printed, hashed and compared.

    `line` is where the user wrote it. Comparisons ignore it: the same plan written on two lines is one plan.
    """

    line: Line | None = field(default=None, compare=False, repr=False, kw_only=True)

    if TYPE_CHECKING:  # at run time, a dataclass would take these for the defaults of fields of these names

        @property
        def key(self) -> tuple[str, ...]:
            """The names of the key columns."""

        @property
        def columns(self) -> tuple[Column, ...]:
            """The key's columns, then the value's."""

    # Structure.

    @property
    @abstractmethod
    def sources(self) -> tuple[Node, ...]:
        """The nodes that it reads, left to right."""

    @abstractmethod
    def map_sources(self, change: Callable[[Node], Node]) -> Node:
        """The node with each source replaced by `change(source)`."""

    @property
    def scans(self) -> tuple[Scan, ...]:
        """The stored tables that the plan reads, each once, left to right."""
        return unique(scan for source in self.sources for scan in source.scans)

    @property
    def driving_sources(self) -> tuple[Node, ...]:
        """The sources whose changes a step processes; any other source is only looked up."""
        return self.sources

    @property
    def drivers(self) -> tuple[Scan, ...]:
        """The stored inputs whose changes a step processes."""
        return unique(scan for source in self.driving_sources for scan in source.drivers)

    @property
    def changelogs(self) -> tuple[Scan, ...]:
        """The stored tables whose changes the plan reads as a stream (`to_stream`), from the first one on."""
        return unique(scan for source in self.sources for scan in source.changelogs)

    @property
    def versioned_lookups(self) -> tuple[Scan, ...]:
        """The landings of the versioned tables in which a stream looks rows up."""
        return unique(scan for source in self.sources for scan in source.versioned_lookups)

    # Kind.

    @property
    def is_stream(self) -> bool:
        """True if it is a stream of records; false if it is a table, with one row per key."""
        return False

    @property
    def uses_stream_time(self) -> bool:
        """True if its rows depend on stream time, which each commit stores."""
        return self.is_stream

    @property
    def depends_on_spans(self) -> bool:
        """True if its rows depend on the spans in which they were computed."""
        return self.uses_stream_time

    @property
    def is_row_by_row(self) -> bool:
        """Whether each row derives from the row of the one source that has its key, and from nothing else."""
        return False

    @property
    def of_changes(self) -> bool:
        """True if a stream consists of, or derives from, the changes of a table."""
        return False

    @property
    def is_decoded_topic(self) -> bool:
        """True if its rows are decoded records of a topic, without any expression of the user."""
        return False

    @property
    def has_change_feed(self) -> bool:
        """True if a change feed has its rows from before a span, which makes them cheap to read."""
        return False

    @property
    def aggregates(self) -> bool:
        """True if its rows derive from aggregates, whose floating-point sums depend on the order of additions."""
        return any(source.aggregates for source in self.sources)

    # What must be stored.

    @property
    def rereads(self) -> tuple[Node, ...]:
        """The streams whose earlier records it reads again."""
        return ()

    @property
    def reads_in_order(self) -> tuple[Node, ...]:
        """The streams whose records it processes in the merge order."""
        return ()

    @property
    def waits(self) -> bool:
        """True if its records wait for stream time before they look a row up."""
        return False

    @property
    def emits_unpaired(self) -> bool:
        """True if it emits a record without a partner once stream time closes it, out of the merge order."""
        return False

    @property
    def omits_records(self) -> bool:
        """True if a record of the source may produce no record."""
        return True

    def drops_records(self, stream_topics: Set[str]) -> bool:
        """Whether a table without stream time may drop records of a stream: those without a key or value that it needs.

        `stream_topics` are the landings of the topics that were declared as streams. The table of a topic drops none:
        its landing has records without a key in quarantine.
        """
        return not self.uses_stream_time and any(source.drops_records(stream_topics) for source in self.sources)

    @property
    def own_columns(self) -> tuple[str, ...]:
        """The columns of ours that a stored stream of this kind has besides those of every stored stream."""
        return ()

    def origin(self, which: Callable[[Node], bool]) -> Node | None:
        """The first node, from this stream upwards, for which `which` is true; None if there is none."""
        if which(self):
            return self
        origins = (source.origin(which) for source in self.driving_sources if source.is_stream)
        return next((node for node in origins if node is not None), None)

    def time_hiding_stream(self, stored: Set[Node]) -> Node | None:
        """A stored stream, from this stream upwards, that does not store every advance of stream time; None if none."""
        if self in stored and self.origin(lambda node: node.omits_records) is not None:
            return self
        streams = (source.time_hiding_stream(stored) for source in self.sources if source.is_stream)
        return next((node for node in streams if node is not None), None)

    def unstored_lookup(self, stored: Set[Node]) -> Node | None:
        """A lookup, from this stream upwards, that is not stored; None if there is none."""
        if self in stored:
            return None
        lookups = (source.unstored_lookup(stored) for source in self.sources if source.is_stream)
        return next((node for node in lookups if node is not None), None)

    def stores_changes(self, stored: Set[Node]) -> bool:
        """True if this stream, or one that it derives from, is stored."""
        return self in stored or any(source.stores_changes(stored) for source in self.sources)

    def mistakes(self, stored: Set[Node]) -> Iterable[tuple[str, str]]:  # noqa: ARG002  # for overrides
        """Errors of the node, stored or not: what is wrong, and what to do. `stored` are the plans of stored tables."""
        return ()

    def why_no_view(self, stored: Set[Node]) -> tuple[str, str] | None:  # noqa: ARG002  # as above
        """Why it must be stored instead of being computed when it is read, and what to do; None if it can be a view."""
        return None

    def stored_form(self) -> Node:
        """The plan of the table that stores it."""
        return self

    @property
    def closes_windows(self) -> bool:
        """True if its rows are windows that stream time has closed."""
        return False

    def bound(self, below: Callable[[Node], Node]) -> Node:
        """The plan over stored tables: `below` returns the scan, or the bound plan, of a source."""
        return self.map_sources(below)

    # Words.

    @property
    @abstractmethod
    def title(self) -> str:
        """Its name in messages."""

    @property
    @abstractmethod
    def kafka_name(self) -> str:
        """The processor's name in Kafka Streams."""

    @abstractmethod
    def explain(self, global_tables: Set[str]) -> str:
        """What it does, in words. `global_tables` are the names of the global tables."""

    @property
    def explained_sources(self) -> tuple[tuple[str, Node], ...]:
        """The sources that `describe` shows below the node, each with its label."""
        return tuple(("of", source) for source in self.sources)

    @property
    @abstractmethod
    def costs(self) -> Costs:
        """For each stored input, what a step reads after a change of it, in words."""

    # Columns.

    def minimal(self) -> Node:
        """The plan without unread columns below the root: exactly what its rows depend on."""
        return self.pruned(names(self.columns))

    @abstractmethod
    def pruned(self, read: Set[str]) -> Node:
        """The plan without unread columns; the root has the key and the columns in `read`."""

    @abstractmethod
    def without(self, added: AddedColumns) -> Node:
        """The plan as it was before columns were added to its inputs, without the columns that pass them through.

        An expression over an added column stays, so that the result equals no former plan.
        """

    @abstractmethod
    def widened(self, inputs: WiderColumns) -> Mapping[str, Wider]:
        """The columns whose types are wider now that columns of its inputs are; all values are the same.

        Raises:
            ValuesMayDiffer: an expression over a widened column may have other values.
        """

    def narrowed(self, inputs: WiderColumns) -> Node:
        """The plan as it was before columns of its inputs were widened.

        Raises:
            ValuesMayDiffer: its rows may have other values than before.
        """
        wider = self.widened(inputs)
        node = self.map_sources(lambda source: source.narrowed(inputs))
        if not any(one.name == "columns" for one in fields(self)):
            return node
        former = tuple(
            replace(column, type=wider[column.name].before) if column.name in wider and column.type else column
            for column in self.columns
        )
        changes: dict[str, Any] = {"columns": former}
        return replace(node, **changes)

    def anonymous(self) -> Node:
        """The plan without the columns of its inputs, and of filters that pass all of them through."""
        return self.map_sources(lambda source: source.anonymous())


@dataclass(frozen=True)
class Unary(Node):
    """A node over one source, with the key of that source."""

    source: Node

    @property
    def key(self) -> tuple[str, ...]:
        """The names of the key columns."""
        return self.source.key

    @property
    def sources(self) -> tuple[Node, ...]:
        """The source."""
        return (self.source,)

    def map_sources(self, change: Callable[[Node], Node]) -> Self:
        """The node with its source replaced by `change(source)`."""
        return replace(self, source=change(self.source))

    @property
    def costs(self) -> Costs:
        """The costs of the source."""
        return self.source.costs

    def pruned(self, read: Set[str]) -> Self:
        """The plan without unread columns."""
        return replace(self, source=self.source.pruned(read | set(self.key)))

    def without(self, added: AddedColumns) -> Self:
        """The plan as it was before columns were added to its inputs."""
        return self.map_sources(lambda source: source.without(added))

    def widened(self, inputs: WiderColumns) -> Mapping[str, Wider]:
        """The widened columns of the source."""
        return self.source.widened(inputs)


@dataclass(frozen=True)
class Binary(Node):
    """A node over two sources, with the key of the left one."""

    left: Node
    right: Node

    @property
    def key(self) -> tuple[str, ...]:
        """The names of the key columns: those of the left side."""
        return self.left.key

    @property
    def sources(self) -> tuple[Node, ...]:
        """The left and the right source."""
        return (self.left, self.right)

    def map_sources(self, change: Callable[[Node], Node]) -> Self:
        """The node with each source replaced by `change(source)`."""
        return replace(self, left=change(self.left), right=change(self.right))

    @property
    def explained_sources(self) -> tuple[tuple[str, Node], ...]:
        """Both sides."""
        return (("left", self.left), ("right", self.right))


def unique(scans: Iterable[Scan]) -> tuple[Scan, ...]:
    """Each scan once, in the order of first occurrence."""
    return tuple(dict.fromkeys(scans))


def names(columns: Iterable[Column]) -> set[str]:
    """The names of columns."""
    return {column.name for column in columns}


def unretained_changes(node: Node, stored: Set[Node], reads: str) -> Iterable[tuple[str, str]]:
    """Refuse a node that reads a table's changes again if no table stores them as a stream."""
    if any(stream.of_changes and not stream.stores_changes(stored) for stream in node.sources):
        what = f"the changes of a table are not retained, and {reads} them again"
        yield what, "call .materialize(name) after .to_stream()"
