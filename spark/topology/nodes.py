"""The question as data: the nodes of a plan, frozen, without behaviour."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

How = Literal["inner", "left", "outer"]
Drive = Literal["both", "left"]
WindowKind = Literal["time", "sliding", "session"]

LANDING = "_landing/"
"""What the names of landings begin with."""


@dataclass(frozen=True)
class Column:
    """A column and its Spark type as DDL text in lower case; None where only Spark can know the type."""

    name: str
    type: str | None


@dataclass(frozen=True)
class Line:
    """Where in the user's code a node was written."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Scan:
    """The rows of a stored table, or, if it is `appended` to, a stream's records: a landing (`_landing/<topic>`).

    `by_time`: they are rows of windows, each of which came when time had closed its own.
    """

    table: str
    key: tuple[str, ...]
    columns: tuple[Column, ...]
    appended: bool = False
    by_time: bool = False

    @property
    def landing(self) -> bool:
        """Whether it is the records of a topic, as they landed."""
        return self.table.startswith(LANDING)


@dataclass(frozen=True)
class Records:
    """A stream: the records of a landing, or of a stored stream, each in its own right.

    One without a value is null in every value column. Those of a stored stream may be a table's changes (`of_changes`),
    in the order of its commits.
    """

    source: Scan
    of_changes: bool = False

    @property
    def key(self) -> tuple[str, ...]:
        """The names of the key columns."""
        return self.source.key

    @property
    def columns(self) -> tuple[Column, ...]:
        """The key's columns, then the value's."""
        return self.source.columns


@dataclass(frozen=True)
class Changes:
    """A stream: the changes of a stored table, as its commits tell them apart. A row that went has no value."""

    source: Node
    line: Line | None = field(default=None, compare=False, repr=False)

    @property
    def key(self) -> tuple[str, ...]:
        """The names of the key columns."""
        return self.source.key

    @property
    def columns(self) -> tuple[Column, ...]:
        """The key's columns, then the value's."""
        return self.source.columns


@dataclass(frozen=True)
class Union:
    """The records of two streams that have the same columns."""

    left: Node
    right: Node
    line: Line | None = field(default=None, compare=False, repr=False)

    @property
    def key(self) -> tuple[str, ...]:
        """The names of the key columns."""
        return self.left.key

    @property
    def columns(self) -> tuple[Column, ...]:
        """The key's columns, then the value's."""
        return self.left.columns


@dataclass(frozen=True)
class Latest:
    """The newest record of every key of a stream; one without a value is no row.

    Newest is by offset; where `history` (milliseconds) is given the table is versioned, and newest is by timestamp.
    """

    source: Node
    history: int | None = None
    line: Line | None = field(default=None, compare=False, repr=False)

    @property
    def key(self) -> tuple[str, ...]:
        """The names of the key columns."""
        return self.source.key

    @property
    def columns(self) -> tuple[Column, ...]:
        """The key's columns, then the value's."""
        return self.source.columns


@dataclass(frozen=True)
class Select:
    """The rows where a condition is true, with value columns computed from them; the key is passed through.

    `select` holds (column, expression) for every column of `columns`, key columns first. A stream may take another
    key: `rekeyed` names its columns.
    The line never compares: the same question asked twice is one question.
    """

    source: Node
    select: tuple[tuple[str, str], ...]
    columns: tuple[Column, ...]
    where: str | None = None
    rekeyed: tuple[str, ...] | None = None
    line: Line | None = field(default=None, compare=False, repr=False)

    @property
    def key(self) -> tuple[str, ...]:
        """The names of the key columns."""
        return self.source.key if self.rekeyed is None else self.rekeyed


@dataclass(frozen=True)
class Join:
    """Every left row with the right row whose primary key its `on` expressions hold.

    `on` are expressions over left columns, in the order of the right key. `how` says what a missing row means: "outer",
    over equal keys, has a row where either side has. `drive` says whether changes of the right side are followed
    ("both") or only the left side's ("left").
    `select` holds (column, expression over `left.` and `right.`) for every column of `columns`, keys first.
    The left side may be a stream, whose records drive alone. Each sees the right table at the pin; or, where the table
    holds the newest records of a stream (`told`), as it was at the record's own place in the merge order. Of a
    versioned table, whose `history` (milliseconds) is given, it sees the row of its own event time; with `grace`
    (milliseconds) it looks that up when stream time reaches its own time and grace. A global table is `sent` whole to
    every task.
    """

    left: Node
    right: Node
    how: How
    on: tuple[str, ...]
    select: tuple[tuple[str, str], ...]
    columns: tuple[Column, ...]
    drive: Drive = "both"
    told: Node | None = None
    sent: bool = False
    history: int | None = None
    grace: int | None = None
    line: Line | None = field(default=None, compare=False, repr=False)

    @property
    def key(self) -> tuple[str, ...]:
        """The names of the key columns: a join keeps the left side's key."""
        return self.left.key


@dataclass(frozen=True)
class StreamJoin:
    """Every pair of records of two streams that have one key, and times that are near each other.

    A right record's event time is from `before` earlier to `after` later than the left one's. A record is open while
    its time, what its side may have to wait for, and `grace` are not behind stream time; all in milliseconds. A record
    of an outer side that stayed without a pair has a row of its own once it is closed.
    `select` is as in a join.
    """

    left: Node
    right: Node
    how: How
    before: int
    after: int
    grace: int
    select: tuple[tuple[str, str], ...]
    columns: tuple[Column, ...]
    line: Line | None = field(default=None, compare=False, repr=False)

    @property
    def key(self) -> tuple[str, ...]:
        """The names of the key columns: a join keeps the left side's key."""
        return self.left.key


@dataclass(frozen=True)
class Explode:
    """The records of a stream, one for each element of an array column, which holds the element then."""

    source: Node
    column: str
    columns: tuple[Column, ...]
    line: Line | None = field(default=None, compare=False, repr=False)

    @property
    def key(self) -> tuple[str, ...]:
        """The names of the key columns."""
        return self.source.key


@dataclass(frozen=True)
class Partial:
    """What a fold keeps of a group: a hidden column, the aggregate it is, and how two parts of a group make one."""

    name: str
    text: str
    how: Literal["sum", "min", "max"]


@dataclass(frozen=True)
class Fold:
    """How an aggregate is kept up to date without its other rows.

    `select` holds (column, expression over the partials) for every aggregated column. The first partial counts rows.
    """

    partials: tuple[Partial, ...]
    select: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Aggregate:
    """One row for every group of source rows. A row with a null among the group's columns is in no group.

    `select` holds (column, expression) for every column of `columns`: those grouped by, which are the key, then the
    aggregates. A stored aggregate has a `fold` where its aggregates allow one; a view has none.
    """

    source: Node
    by: tuple[str, ...]
    select: tuple[tuple[str, str], ...]
    columns: tuple[Column, ...]
    fold: Fold | None = None
    line: Line | None = field(default=None, compare=False, repr=False)

    @property
    def key(self) -> tuple[str, ...]:
        """The names of the key columns."""
        return self.by


WINDOW = (Column("_window_start", "timestamp"), Column("_window_end", "timestamp"))
"""Columns of ours that are part of a key: the bounds of a window."""


def published_name(column: str) -> str:
    """What a column is called on a topic, where none of ours may be: the bounds of a window lose their underscore."""
    return column.removeprefix("_")


@dataclass(frozen=True)
class Window:
    """One row for every group of a stream's records and window of time that holds some of them.

    All lengths are in milliseconds. "time": windows of `size`, one every `advance` since 1970, their end excluded.
    "sliding": the windows of length `size`, both ends included, that end at a record or begin right behind one; they
    have no `advance`, it is 0.
    "session": the time from a first to a last record, both included, with no more than `size` from one to the next;
    they merge where a record comes between, so they are folded. They have no `advance` either.
    A record counts in those of its windows that `grace` and stream time leave open where it comes; a `suppressed` row
    is there once its window is closed.
    `select` holds (column, expression) for every aggregate; `columns` are those grouped by, `WINDOW`, the aggregates.
    """

    source: Node
    by: tuple[str, ...]
    kind: WindowKind
    size: int
    advance: int
    grace: int
    select: tuple[tuple[str, str], ...]
    columns: tuple[Column, ...]
    suppressed: bool = False
    fold: Fold | None = None
    line: Line | None = field(default=None, compare=False, repr=False)

    @property
    def key(self) -> tuple[str, ...]:
        """The names of the key columns."""
        return (*self.by, *(column.name for column in WINDOW))


@dataclass(frozen=True)
class Closed:
    """The sessions that no record can reach any more: they end more than `wait` milliseconds before stream time."""

    source: Node
    wait: int
    line: Line | None = field(default=None, compare=False, repr=False)

    @property
    def key(self) -> tuple[str, ...]:
        """The names of the key columns."""
        return self.source.key

    @property
    def columns(self) -> tuple[Column, ...]:
        """Those of the sessions."""
        return self.source.columns


Node = Scan | Records | Changes | Union | Explode | Latest | Select | Join | StreamJoin | Aggregate | Window | Closed


def inputs(node: Node) -> tuple[Node, ...]:
    """The nodes a node reads, left to right. A stream of records is bound to its landing."""
    match node:
        case Scan():
            return ()
        case Records(source=source) | Changes(source=source) | Latest(source=source) | Explode(source=source):
            return (source,)
        case Select(source=source) | Aggregate(source=source) | Window(source=source) | Closed(source=source):
            return (source,)
        case Union(left=left, right=right) | Join(left=left, right=right) | StreamJoin(left=left, right=right):
            return (left, right)


def over(node: Node, change: Callable[[Node], Node]) -> Node:
    """The same node over changed inputs. Records are bound to their landing and stay as they are."""
    match node:
        case Changes(source=source) | Latest(source=source) | Explode(source=source):
            return replace(node, source=change(source))
        case Select(source=source) | Aggregate(source=source) | Window(source=source) | Closed(source=source):
            return replace(node, source=change(source))
        case Join(left=left, right=right, told=told):
            return replace(node, left=change(left), right=change(right), told=None if told is None else change(told))
        case Union(left=left, right=right) | StreamJoin(left=left, right=right):
            return replace(node, left=change(left), right=change(right))
        case _:
            return node


def is_stream(node: Node) -> bool:
    """Whether a node is records in their own right, not rows by key."""
    match node:
        case Records() | Changes() | Union() | Explode() | StreamJoin():
            return True
        case Select(source=source) | Join(left=source):
            return is_stream(source)
        case _:
            return False


def changelogs(node: Node) -> tuple[Scan, ...]:
    """The stored tables whose changes, from their first on, a plan reads: behind `to_stream`."""
    if isinstance(node, Changes):
        return scans(node)
    return tuple(dict.fromkeys(scan for source in inputs(node) for scan in changelogs(source)))


def keeps_time(node: Node) -> bool:
    """Whether what a node holds depends on stream time, which goes from span to span."""
    return is_stream(node) or isinstance(node, Window)


def decoded(node: Node) -> bool:
    """Whether a table holds a topic's records as they were decoded, with no expression in between."""
    return isinstance(node, Latest) and isinstance(node.source, Records)


def fed(node: Node) -> bool:
    """Whether a change feed holds the rows that a node had: then its changes are cheap to read twice."""
    return isinstance(node, Scan) or (isinstance(node, Select) and fed(node.source))


def of_changes(stream: Node) -> bool:
    """Whether a stream is, or comes of, the changes of a table."""
    match stream:
        case Changes() | Records(of_changes=True):
            return True
        case Select(source=source) | Explode(source=source):
            return of_changes(source)
        case Join(left=left):
            return is_stream(left) and of_changes(left)
        case _:
            return False


def scans(node: Node) -> tuple[Scan, ...]:
    """The stored tables a node reads, each once, left to right."""
    if isinstance(node, Scan):
        return (node,)
    told = (node.told,) if isinstance(node, Join) and node.told is not None else ()
    return tuple(dict.fromkeys(scan for source in (*inputs(node), *told) for scan in scans(source)))
