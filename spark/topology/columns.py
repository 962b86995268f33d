"""Columns of a plan, and where in the user's code it was written."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Column:
    """A column and its Spark type as DDL text in lower case; None where only Spark can know the type."""

    name: str
    type: str | None


@dataclass(frozen=True)
class Line:
    """A line of the user's code."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


WINDOW_BOUNDS = (Column("_window_start", "timestamp"), Column("_window_end", "timestamp"))
"""The columns of Tidetable that are part of a key: the bounds of a window."""


def published_name(column: str) -> str:
    """The name that a column has in a topic, where none begins with an underscore: `window_start`, `window_end`."""
    return column.removeprefix("_")
