"""What every node of a plan has: its sources, its key and columns, its name, and what a change of an input costs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

from spark.topology.columns import Column, Line

if TYPE_CHECKING:
    from spark.topology.nodes.scan import Scan

Costs = tuple[tuple["Scan", str], ...]
"""What a change of each stored input makes a step read, in words."""

AddedColumns = Mapping[str, Set[str]]
"""By input, the columns that were added to it."""


@dataclass(frozen=True)
class Node(ABC):
    """An operator of a plan over its sources. Frozen: a plan prints, hashes and compares.

    `line` is where the user wrote it. It never compares: the same question asked twice is one question.
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
    def over(self, change: Callable[[Node], Node]) -> Node:
        """The same node over changed sources."""

    @property
    def scans(self) -> tuple[Scan, ...]:
        """The stored tables that the plan reads, each once, left to right."""
        return unique(scan for source in self.sources for scan in source.scans)

    @property
    def followed(self) -> tuple[Node, ...]:
        """The sources whose changes are followed; any other is only looked up."""
        return self.sources

    @property
    def drivers(self) -> tuple[Scan, ...]:
        """The stored inputs whose changes are followed."""
        return unique(scan for source in self.followed for scan in source.drivers)

    @property
    def changelogs(self) -> tuple[Scan, ...]:
        """The stored tables of which the plan reads every change, from the first on: those behind `to_stream`."""
        return unique(scan for source in self.sources for scan in source.changelogs)

    @property
    def versioned_lookups(self) -> tuple[Scan, ...]:
        """The landings of the versioned tables that a stream looks up."""
        return unique(scan for source in self.sources for scan in source.versioned_lookups)

    # Kind.

    @property
    def is_stream(self) -> bool:
        """Whether it is records in their own right, not rows by key."""
        return False

    @property
    def keeps_time(self) -> bool:
        """Whether its rows depend on stream time, which goes on from span to span."""
        return self.is_stream

    @property
    def in_span_form(self) -> bool:
        """Whether its rows depend on the spans in which they were computed."""
        return self.keeps_time

    @property
    def of_changes(self) -> bool:
        """Whether a stream is, or comes of, the changes of a table."""
        return False

    @property
    def is_decoded_topic(self) -> bool:
        """Whether it is a topic's records as they were decoded, with no expression in between."""
        return False

    @property
    def has_change_feed(self) -> bool:
        """Whether a change feed holds the rows that it had before a span, so that they are cheap to read."""
        return False

    @property
    def aggregates(self) -> bool:
        """Whether its rows are, or come of, aggregates: their floating-point sums depend on the order of additions."""
        return any(source.aggregates for source in self.sources)

    # What must be stored.

    @property
    def reads_again(self) -> tuple[Node, ...]:
        """The streams whose earlier records it reads again."""
        return ()

    @property
    def reads_in_order(self) -> tuple[Node, ...]:
        """The streams of which it needs each record's place in the order of time."""
        return ()

    @property
    def waits(self) -> bool:
        """Whether its records wait for stream time before they look a row up."""
        return False

    @property
    def emits_unpaired(self) -> bool:
        """Whether it emits records without a pair when time closes them, out of the order of the others."""
        return False

    @property
    def omits_records(self) -> bool:
        """Whether a stream may have no record where its source has one."""
        return True

    def drops_records(self, stream_topics: Set[str]) -> bool:
        """Whether a table without stream time may drop records of a stream: those without a key or value that it needs.

        `stream_topics` are the landings of the topics that were declared as streams. The table of a topic drops none:
        its landing has records without a key in quarantine.
        """
        return not self.keeps_time and any(source.drops_records(stream_topics) for source in self.sources)

    @property
    def own_columns(self) -> tuple[str, ...]:
        """The columns of ours that a stored stream of this kind has besides those of every stored stream."""
        return ()

    def origin(self, which: Callable[[Node], bool]) -> Node | None:
        """The first node of some kind that a stream is, or comes from; None where there is none."""
        if which(self):
            return self
        found = (source.origin(which) for source in self.followed if source.is_stream)
        return next((one for one in found if one is not None), None)

    def hides_time(self, stored: Set[Node]) -> Node | None:
        """A stored stream that a stream comes from, and whose time advances without a record; None: there is none."""
        if self in stored and self.origin(lambda node: node.omits_records) is not None:
            return self
        found = (source.hides_time(stored) for source in self.sources if source.is_stream)
        return next((one for one in found if one is not None), None)

    def unstored_lookup(self, stored: Set[Node]) -> Node | None:
        """A lookup that a stream comes from, and that no table stores; None where there is none."""
        if self in stored:
            return None
        found = (source.unstored_lookup(stored) for source in self.sources if source.is_stream)
        return next((one for one in found if one is not None), None)

    def stores_changes(self, stored: Set[Node]) -> bool:
        """Whether a stream, or one that it comes from, is stored."""
        return self in stored or any(source.stores_changes(stored) for source in self.sources)

    def mistakes(self, stored: Set[Node]) -> Iterable[tuple[str, str]]:  # noqa: ARG002  # a node's own rules
        """What is wrong with it whether it is stored or not, and what to do; `stored` are the plans of tables."""
        return ()

    def why_no_view(self, stored: Set[Node]) -> tuple[str, str] | None:  # noqa: ARG002  # as above
        """Why it cannot be computed when it is read, so that it must be stored, and what to do; None if it can."""
        return None

    def stored_form(self) -> Node:
        """The plan of the table that stores it."""
        return self

    @property
    def closes_windows(self) -> bool:
        """Whether its rows are those of windows which stream time has closed."""
        return False

    def bound(self, below: Callable[[Node], Node]) -> Node:
        """The plan over stored tables: `below` gives the scan, or the bound plan, of each source."""
        return self.over(below)

    # Words.

    @property
    @abstractmethod
    def title(self) -> str:
        """What it is called in messages."""

    @property
    @abstractmethod
    def kafka_name(self) -> str:
        """What Kafka Streams calls the processor."""

    @abstractmethod
    def explain(self, global_tables: Set[str]) -> str:
        """What it does, in words. `global_tables` are the names of those that were declared as such."""

    @property
    def explained_sources(self) -> tuple[tuple[str, Node], ...]:
        """The sources that `describe` shows below it, each with its label."""
        return tuple(("of", source) for source in self.sources)

    @property
    @abstractmethod
    def costs(self) -> Costs:
        """What a change of each stored input makes a step read, in words."""

    # Columns.

    def minimal(self) -> Node:
        """The plan without the columns that nothing reads: what its rows depend on. All of its own are stored."""
        return self.pruned(names(self.columns))

    @abstractmethod
    def pruned(self, read: Set[str]) -> Node:
        """The plan without the columns that nothing reads; of its own it keeps the key and those in `read`."""

    @abstractmethod
    def without(self, added: AddedColumns) -> Node:
        """The plan as it was before columns were added to its inputs, and passed on under whatever name.

        An expression over an added column stays as it is: such a plan never was.
        """

    def anonymous(self) -> Node:
        """The plan without the columns that its inputs have, and that filters of them merely pass on."""
        return self.over(lambda source: source.anonymous())


@dataclass(frozen=True)
class Unary(Node):
    """A node over one source, whose key it has."""

    source: Node

    @property
    def key(self) -> tuple[str, ...]:
        """The names of the key columns."""
        return self.source.key

    @property
    def sources(self) -> tuple[Node, ...]:
        """The one source."""
        return (self.source,)

    def over(self, change: Callable[[Node], Node]) -> Self:
        """The same node over a changed source."""
        return replace(self, source=change(self.source))

    @property
    def costs(self) -> Costs:
        """Those of the source."""
        return self.source.costs

    def pruned(self, read: Set[str]) -> Self:
        """The plan without the columns that nothing reads."""
        return replace(self, source=self.source.pruned(read | set(self.key)))

    def without(self, added: AddedColumns) -> Self:
        """The plan as it was before columns were added to its inputs."""
        return self.over(lambda source: source.without(added))


@dataclass(frozen=True)
class Binary(Node):
    """A node over two sources, which has the key of the left one."""

    left: Node
    right: Node

    @property
    def key(self) -> tuple[str, ...]:
        """The names of the key columns: those of the left side."""
        return self.left.key

    @property
    def sources(self) -> tuple[Node, ...]:
        """The left and the right one."""
        return (self.left, self.right)

    def over(self, change: Callable[[Node], Node]) -> Self:
        """The same node over changed sources."""
        return replace(self, left=change(self.left), right=change(self.right))

    @property
    def explained_sources(self) -> tuple[tuple[str, Node], ...]:
        """Both sides."""
        return (("left", self.left), ("right", self.right))


def unique(scans: Iterable[Scan]) -> tuple[Scan, ...]:
    """Each scan once, in the order of their first."""
    return tuple(dict.fromkeys(scans))


def names(columns: Iterable[Column]) -> set[str]:
    """The names of columns."""
    return {column.name for column in columns}


def kept_changes_mistake(node: Node, stored: Set[Node], reads: str) -> Iterable[tuple[str, str]]:
    """What is wrong where a node reads a table's changes again, which are not kept for ever."""
    if any(stream.of_changes and not stream.stores_changes(stored) for stream in node.sources):
        what = f"a table's changes are not kept for ever, and {reads} them again"
        yield what, "write .materialize(name) behind .to_stream()"
