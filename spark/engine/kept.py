"""Rows that several readers need, computed once and kept in the engine while a session uses them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.errors.exceptions.base import RetriesExceeded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class Kept:
    """What a session keeps: views of its own, whose rows lie in the engine's memory."""

    session: SparkSession
    frames: dict[str, DataFrame] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=count)

    def keep(self, frame: DataFrame) -> DataFrame:
        """The same rows, computed now; Spark knows their size from here on, and broadcasts them if they are few."""
        if any(frame is kept for kept in self.frames.values()):
            return frame
        name = f"__kept{next(self.numbers)}"
        frame.createOrReplaceTempView(f"{name}_of")
        self.frames[name] = self.session.table(name)
        self.session.sql(f"CACHE TABLE {name} AS SELECT * FROM {name}_of").collect()
        return self.frames[name]

    def keep_instead(self, frame: DataFrame, since: int) -> DataFrame:
        """The same rows, kept in place of all but the first `since` frames, which nobody reads any more."""
        kept = self.keep(frame)
        for name in [name for name, one in self.frames.items() if one is not kept][since:]:
            self.session.sql(f"UNCACHE TABLE IF EXISTS {name}").collect()
            del self.frames[name]
        return kept


@contextmanager
def keeping(session: SparkSession) -> Iterator[Kept]:
    """Keeps until the block ends; a session that only stops would leave its rows in the engine."""
    keeps = Kept(session)
    try:
        yield keeps
    finally:
        for name in reversed(keeps.frames):
            # Where the engine is gone its memory is too, and what ended the block matters more.
            with suppress(PySparkException, RetriesExceeded):
                session.sql(f"UNCACHE TABLE IF EXISTS {name}").collect()
