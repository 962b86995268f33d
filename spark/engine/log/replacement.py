"""When a step may replace the rows at its keys instead of merging: if all of them differ for certain.

Delta plans a MERGE as three reads of the target, and a replacement as one (`replaceWhere` for keys as literals,
`replaceOn` for the keys of a frame). A replacement writes every row it is given, and no files of changes: its change
feed has deletions and insertions. So a step replaces if it knows without reading the target that every row differs, and
if nobody needs the rows from before a change.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from spark.engine.log.merge import literal
from spark.operators.algebra import PRESENT, at_keys, cols

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame, Row

    from spark.engine.log.position import Cut

DIFFERS = "_differs"

BITMAP = 52_000
"""Bytes of a bitmap that a change feed can have: Delta writes it as text, and Java limits that to 65,535 bytes."""
BLOCK = 1 << 16  # rows of a file that one part of a bitmap is about
BLOCK_BYTES = 8_192  # that a part has at most, besides 8 for its number and its place
FILE_ROWS = 6 * BLOCK  # rows of a file, any number of which a bitmap can be about


@dataclass(frozen=True)
class Counts:
    """How many keys a step touches; of these, how many have no row now, and how many rows may equal the stored ones.

    `written` is the key of one of the rows, if there are any.
    """

    touched: int
    absent: int
    uncertain: int
    written: Row | None


def differs(cut: Cut, newest_time: int | None) -> Column:
    """Return a condition: a new row differs for certain from the stored one of its key, which has the cut.

    A record beyond the cut made the row: all stored rows have coordinates of earlier ones. Or no stored row has reached
    its time, `newest_time` in microseconds since 1970: that is how a join's row differs if its right side has changed.
    """
    ends: dict[str, dict[int, int]] = {}
    for topic, at in cut.items():  # clusters may have topics of one name, and a row does not say of which it is
        of_name = ends.setdefault(topic.partition("/")[2], {})
        of_name |= {partition: max(offset, of_name.get(partition, 0)) for partition, offset in at.offsets.items()}
    beyond = [
        f"_topic = {literal(name)} AND _offset >= coalesce(get({_array(offsets)}, _partition), 0)"
        for name, offsets in ends.items()
    ]
    later = [] if newest_time is None else [f"unix_micros(_timestamp) >= {newest_time}"]
    return F.expr(f"coalesce({' OR '.join(f'({one})' for one in (*beyond, *later)) or 'false'}, false)")


def _array(offsets: dict[int, int]) -> str:
    ends = ", ".join(f"{offsets.get(partition, 0)}L" for partition in range(max(offsets, default=0) + 1))
    return f"array({ends})"


def touched(source: DataFrame, key: Sequence[str], differs: Column, limit: int) -> list[Row] | None:
    """Return the keys of `source`, `_present`, and `_differs`; None if it has more than `limit` rows."""
    rows = source.select(*cols(key), PRESENT, differs.alias(DIFFERS)).limit(limit + 1).collect()
    return rows if len(rows) <= limit else None


def differ(touched: Sequence[Row]) -> bool:
    """Return whether every touched row differs for certain from the stored one."""
    return all(row[DIFFERS] for row in touched if row[PRESENT])


def counts(source: DataFrame, key: Sequence[str], differs: Column) -> Counts:
    """Count the rows of `source`, which have `_present`."""
    absent, uncertain = F.count_if(~F.col(PRESENT)), F.count_if(F.col(PRESENT) & ~differs)
    written = F.any_value(F.when(F.col(PRESENT), F.struct(*cols(key))), F.lit(True))
    [row] = source.agg(F.count(F.lit(1)), absent, uncertain, written).collect()
    return Counts(*row)


def can_be_read(rows: float, replaced: int) -> bool:
    """Return whether readers can read the change feed of a replacement, in files of at most so many rows.

    To read what a commit deleted from a file that had a deletion vector before, Delta makes the difference of the two a
    bitmap in the plan, and fails if it is large. Always readable are some 25,000 rows, and files of `FILE_ROWS`.
    """
    if math.isinf(rows):
        return False
    blocks = math.ceil(rows / BLOCK)
    return 32 + blocks * 8 + min(replaced * 2, blocks * BLOCK_BYTES) <= BITMAP


def gone(stored: DataFrame, source: DataFrame, key: Sequence[str], limit: int) -> list[Row] | None:
    """Return the keys of `stored` at which `source` has no row; None if they are more than `limit`."""
    absent = source.where(~F.col(PRESENT)).select(*cols(key))
    rows = at_keys(stored.select(*cols(key)), absent, key).limit(limit + 1).collect()
    return rows if len(rows) <= limit else None
