"""The time that the queries of a thread have: what reads files looks at it before each row group and each commit."""

from __future__ import annotations

import time
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from spark.query.errors import QueryTimeout

if TYPE_CHECKING:
    from collections.abc import Iterator

_given: ContextVar[tuple[float, float] | None] = ContextVar("deadline of queries", default=None)
"""Until when, by the monotonic clock, and how many seconds that were."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Give the queries of a block some seconds; those that take longer raise `QueryTimeout`."""
    token = _given.set((time.monotonic() + seconds, seconds))
    try:
        yield
    finally:
        _given.reset(token)


def check(table: str) -> None:
    """Check that the query of a table has time left.

    Raises:
        QueryTimeout: it has none.
    """
    given = _given.get()
    if given is not None and time.monotonic() > given[0]:
        raise QueryTimeout(
            f"{table}: the query took more than {given[1]:g} s. Ask for fewer rows, or run `tidetable compact {table}`"
        )
