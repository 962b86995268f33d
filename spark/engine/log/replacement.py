"""When a small step may replace the rows at its keys (`replaceWhere`) instead of merging: if all of them differ.

Delta plans a MERGE as three reads of the target, and a replacement as one. A replacement writes every row it is given,
and no files of changes: its change feed has deletions and insertions. So a step replaces if it knows without reading
the target that every row differs, and if nobody needs the rows from before a change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark.engine.log import merge
from spark.operators.algebra import PRESENT, cols

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, Row

    from spark.engine.log.position import Cut

COORDINATES = ("_topic", "_partition", "_offset")
"""The columns that name the record that made a row."""


def touched(source: DataFrame, key: Sequence[str], limit: int) -> list[Row] | None:
    """Return the keys and coordinates of `source`, and `_present`; None if it has more than `limit` rows."""
    rows = source.select(*cols(key), *cols(COORDINATES), PRESENT).limit(limit + 1).collect()
    return rows if len(rows) <= limit else None


def differ(touched: Sequence[Row], key: Sequence[str], cut: Cut) -> bool:
    """Return whether every touched row differs for certain from the stored one, which was computed up to the cut.

    A row that a record beyond the cut made differs from every stored row: they have the coordinates of earlier records.
    """
    offsets = {topic.partition("/")[2]: at.offsets for topic, at in cut.items()}

    def is_beyond(row: Row) -> bool:
        topic, offset = row["_topic"], row["_offset"]
        return topic in offsets and offset is not None and offset >= offsets[topic].get(row["_partition"], 0)

    return merge.has_literals(touched, key) and all(is_beyond(row) for row in touched if row[PRESENT])
