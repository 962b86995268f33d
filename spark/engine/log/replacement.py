"""When a step may replace the rows at its keys instead of merging: if all of them differ for certain.

Delta plans a MERGE as three reads of the target, and a replacement as one (`replaceWhere` for keys as literals,
`replaceUsing` for the keys of a frame). A replacement writes every row it is given, and no files of changes: its change
feed has deletions and insertions. So a step replaces if it knows without reading the target that every row differs, and
if nobody needs the rows from before a change.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from spark.engine.log.merge import literal
from spark.operators.algebra import PRESENT, cols

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame, Row

    from spark.engine.log.position import Cut

DIFFERS = "_differs"
PLAIN = re.compile(r"[a-z]\w*", re.ASCII | re.IGNORECASE)
"""A name that the option `replaceUsing` takes: Delta parses it as an identifier, and as one without quotes only."""


@dataclass(frozen=True)
class Counts:
    """How many keys a step touches; of these, how many have no row now, and how many rows may equal the stored ones."""

    touched: int
    absent: int
    uncertain: int

    @property
    def all_differ(self) -> bool:
        """Whether every touched key has a row now, which differs for certain from the stored one."""
        return self.absent == 0 and self.uncertain == 0


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


def counts(source: DataFrame, differs: Column) -> Counts:
    """Count the rows of `source`, which have `_present`."""
    absent, uncertain = F.count_if(~F.col(PRESENT)), F.count_if(F.col(PRESENT) & ~differs)
    [row] = source.agg(F.count(F.lit(1)), absent, uncertain).collect()
    return Counts(*row)


def are_plain(key: Sequence[str]) -> bool:
    """Return whether the option `replaceUsing` can name the columns of a key."""
    return all(PLAIN.fullmatch(name) for name in key)
