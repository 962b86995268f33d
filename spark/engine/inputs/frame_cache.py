"""Frames that are read several times: computed once, and cached in the engine until the session ends."""

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
class FrameCache:
    """The frames that a session has cached, as views in the memory of the engine."""

    session: SparkSession
    frames: dict[str, DataFrame] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=count)

    def cache(self, frame: DataFrame) -> DataFrame:
        """Compute a frame now, and return it cached, with the same columns. Spark then broadcasts it if it is small."""
        if any(frame is cached for cached in self.frames.values()):
            return frame
        name = f"__cached{next(self.numbers)}"
        frame.createOrReplaceTempView(f"{name}_of")
        self.frames[name] = self.session.table(name)
        self.session.sql(f"CACHE TABLE {name} AS SELECT * FROM {name}_of").collect()
        return self.frames[name]

    def replace(self, frame: DataFrame, since: int) -> DataFrame:
        """Cache a frame and return it; drop the other cached frames after the first `since`, which have no readers."""
        cached = self.cache(frame)
        for name in [name for name, one in self.frames.items() if one is not cached][since:]:
            self.session.sql(f"UNCACHE TABLE IF EXISTS {name}").collect()
            del self.frames[name]
        return cached


@contextmanager
def frame_cache(session: SparkSession) -> Iterator[FrameCache]:
    """Yield a cache that is dropped when the block ends: stopping the session alone would leave it in the engine."""
    cache = FrameCache(session)
    try:
        yield cache
    finally:
        for name in reversed(cache.frames):
            # An engine that died has lost its cache too, and an error here would hide the one that ended the block.
            with suppress(PySparkException, RetriesExceeded):
                session.sql(f"UNCACHE TABLE IF EXISTS {name}").collect()
