"""Frames that are read several times: computed once, and cached until the session ends.

The engine caches a frame in its memory. A few rows are cached in this process instead, and sent with every query that
reads them: the engine then has no cache to make, to read and to drop.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

import numpy as np
from pyspark.errors import PySparkException
from pyspark.errors.exceptions.base import RetriesExceeded
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DateType,
    MapType,
    NumericType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType

FEW = 1_000  # rows that this process caches, at most
FEW_BYTES = 4 << 20  # and their bytes

SENT = (BinaryType, BooleanType, DateType, NumericType, StringType, TimestampNTZType, TimestampType)
"""Types whose values are the same after they were received and sent again; and structs, arrays and maps of these whose
values may be null: pyspark cannot send a null struct with a field that must not be null."""


@dataclass(frozen=True)
class FrameCache:
    """The frames that a session has cached, as views in the memory of the engine, or as rows in this process."""

    session: SparkSession
    frames: dict[str, DataFrame] = field(default_factory=dict)
    sent: list[DataFrame] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=count)

    def cache(self, frame: DataFrame, few: bool = False) -> DataFrame:
        """Compute a frame now, and return it cached, with the same columns. Spark then broadcasts it if it is small.

        `few`: it is likely to have at most `FEW` rows, and is computed once more if it has more.
        """
        if any(frame is cached for cached in (*self.frames.values(), *self.sent)):
            return frame
        if few and (received := self._received(frame)) is not None:
            self.sent.append(received)
            return received
        name = f"__cached{next(self.numbers)}"
        frame.createOrReplaceTempView(f"{name}_of")
        self.frames[name] = self.session.table(name)
        self.session.sql(f"CACHE TABLE {name} AS SELECT * FROM {name}_of")
        return self.frames[name]

    def replace(self, frame: DataFrame, since: int) -> DataFrame:
        """Cache a frame and return it; drop the other cached frames after the first `since`, which have no readers."""
        cached = self.cache(frame)
        for name in [name for name, one in self.frames.items() if one is not cached][since:]:
            self.session.sql(f"UNCACHE TABLE IF EXISTS {name}")
            del self.frames[name]
        return cached

    def _received(self, frame: DataFrame) -> DataFrame | None:
        """Return a frame of the rows that this process received; None if they are not few, or cannot be sent again."""
        limited = frame.limit(FEW + 1)  # its schema is asked for once
        if not all(_is_sent(field.dataType) for field in limited.schema):
            return None
        rows = limited.toArrow()
        if rows.num_rows > FEW or rows.get_total_buffer_size() > FEW_BYTES:
            return None
        # Spark sends no offsets where there are no arrays, maps or strings (SPARK-55056). Arrow has one even then, and
        # pyarrow reads it: `nbytes` and slices of nested arrays read beyond the buffer, and crash. A copy has it.
        return self.session.createDataFrame(rows.take(np.arange(rows.num_rows)), limited.schema)


def _is_sent(kind: DataType) -> bool:
    match kind:
        case StructType():
            return all(field.nullable and _is_sent(field.dataType) for field in kind)
        case ArrayType():
            return kind.containsNull and _is_sent(kind.elementType)
        case MapType():
            return kind.valueContainsNull and _is_sent(kind.keyType) and _is_sent(kind.valueType)
        case _:
            return isinstance(kind, SENT)


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
                session.sql(f"UNCACHE TABLE IF EXISTS {name}")
