"""The question as data: the nodes of a plan, frozen, without behaviour."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

How = Literal["inner", "left", "outer"]
Drive = Literal["both", "left"]


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
    """The rows of a stored table, or the records of a landing (`_landing/<topic>`)."""

    table: str
    key: tuple[str, ...]
    columns: tuple[Column, ...]


@dataclass(frozen=True)
class Latest:
    """The newest record of every key of a landing; a tombstone is no row."""

    source: Scan

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

    `select` holds (column, expression) for every column of `columns`, key columns first.
    The line never compares: the same question asked twice is one question.
    """

    source: Node
    select: tuple[tuple[str, str], ...]
    columns: tuple[Column, ...]
    where: str | None = None
    line: Line | None = field(default=None, compare=False, repr=False)

    @property
    def key(self) -> tuple[str, ...]:
        """The names of the key columns."""
        return self.source.key


@dataclass(frozen=True)
class Join:
    """Every left row with the right row whose primary key its `on` expressions hold.

    `on` are expressions over left columns, in the order of the right key. `how` says what a missing row means: "outer",
    over equal keys, has a row where either side has. `drive` says whether changes of the right side are followed
    ("both") or only the left side's ("left").
    `select` holds (column, expression over `left.` and `right.`) for every column of `columns`, keys first.
    """

    left: Node
    right: Node
    how: How
    on: tuple[str, ...]
    select: tuple[tuple[str, str], ...]
    columns: tuple[Column, ...]
    drive: Drive = "both"
    line: Line | None = field(default=None, compare=False, repr=False)

    @property
    def key(self) -> tuple[str, ...]:
        """The names of the key columns: a join keeps the left side's key."""
        return self.left.key


@dataclass(frozen=True)
class Aggregate:
    """One row for every group of source rows. A row with a null among the group's columns is in no group.

    `select` holds (column, expression) for every column of `columns`: those grouped by, which are the key, then the
    aggregates.
    """

    source: Node
    by: tuple[str, ...]
    select: tuple[tuple[str, str], ...]
    columns: tuple[Column, ...]
    line: Line | None = field(default=None, compare=False, repr=False)

    @property
    def key(self) -> tuple[str, ...]:
        """The names of the key columns."""
        return self.by


Node = Scan | Latest | Select | Join | Aggregate


def inputs(node: Node) -> tuple[Node, ...]:
    """The nodes a node reads, left to right."""
    match node:
        case Scan():
            return ()
        case Latest(source=source) | Select(source=source) | Aggregate(source=source):
            return (source,)
        case Join(left=left, right=right):
            return (left, right)


def over(node: Node, change: Callable[[Node], Node]) -> Node:
    """The same node over changed inputs. A `Latest` is bound to its landing and stays as it is."""
    match node:
        case Select(source=source) | Aggregate(source=source):
            return replace(node, source=change(source))
        case Join(left=left, right=right):
            return replace(node, left=change(left), right=change(right))
        case _:
            return node


def scans(node: Node) -> tuple[Scan, ...]:
    """The stored tables a node reads, each once, left to right."""
    if isinstance(node, Scan):
        return (node,)
    return tuple(dict.fromkeys(scan for source in inputs(node) for scan in scans(source)))
