"""The question as data: the nodes of a plan, frozen, without behaviour."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

How = Literal["inner", "left"]
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


# A node never compares by the line it was written on: the same question asked twice is one question.
def _line() -> Line | None:
    return field(default=None, compare=False, repr=False)


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
        return self.source.key

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.source.columns


@dataclass(frozen=True)
class Select:
    """The rows where a condition is true, with value columns computed from them; the key is passed through.

    `select` holds (column, expression) for every column of `columns`, key columns first.
    """

    source: Node
    select: tuple[tuple[str, str], ...]
    columns: tuple[Column, ...]
    where: str | None = None
    line: Line | None = _line()

    @property
    def key(self) -> tuple[str, ...]:
        return self.source.key


@dataclass(frozen=True)
class Join:
    """Every left row with the right row whose primary key its `on` expressions hold.

    `on` are expressions over left columns, in the order of the right key. `how` says what a missing right row means,
    `drive` whether a change of the right side is looked for ("both") or only the left side's changes are ("left").
    `select` holds (column, expression over `left.` and `right.`) for every column of `columns`, key columns first.
    """

    left: Node
    right: Node
    how: How
    on: tuple[str, ...]
    select: tuple[tuple[str, str], ...]
    columns: tuple[Column, ...]
    drive: Drive = "both"
    line: Line | None = _line()

    @property
    def key(self) -> tuple[str, ...]:
        return self.left.key


Node = Scan | Latest | Select | Join


def inputs(node: Node) -> tuple[Node, ...]:
    """The nodes a node reads, left to right."""
    match node:
        case Scan():
            return ()
        case Latest(source=source) | Select(source=source):
            return (source,)
        case Join(left=left, right=right):
            return (left, right)


def scans(node: Node) -> tuple[Scan, ...]:
    """The stored tables a node reads, each once, left to right."""
    if isinstance(node, Scan):
        return (node,)
    return tuple(dict.fromkeys(scan for source in inputs(node) for scan in scans(source)))
