"""Columns, and lines of the user's code."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Column:
    """A column and its Spark type as DDL text in lower case; None if only Spark can determine the type."""

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
"""The bounds of a window: the only columns of Tidetable that are part of a key."""


def published_name(column: str) -> str:
    """The column's name in a topic, without the underscore: `window_start`, `window_end`."""
    return column.removeprefix("_")
