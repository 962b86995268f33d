"""What the executors of an engine are asked before a topic lands: once per engine and process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TASKS: Final = 16  # so that most executors have one

passed: Final[set[tuple[str, object]]] = set()
"""The checks that were passed: a name, and the engine."""


def tasks(session: SparkSession) -> DataFrame:
    """Return a frame with the column `id`, of one row for each task."""
    return session.range(0, TASKS, 1, TASKS)
