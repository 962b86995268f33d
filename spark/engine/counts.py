"""What became of every record that a landing read: a value, a tombstone, or in quarantine with its reason.

Counted in the landing itself, without a JVM, and compared with the offsets that its position says were read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa  # type: ignore[import-untyped]  # has no types of its own
from deltalake import DeltaTable, QueryBuilder

from spark.engine import position as positions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark.engine.doors import Lakehouse
    from spark.engine.position import Gap
    from spark.topology.topology import Source, Topology

REASONS = 10  # of the most frequent; a reason may name a value, and then every record has its own

COUNTS = """
    SELECT _partition, count(*) AS records, min(_offset) AS first, max(_offset) AS last,
           sum(CASE WHEN _error IS NULL AND NOT _deleted THEN 1 ELSE 0 END) AS rows,
           sum(CASE WHEN _error IS NULL AND _deleted THEN 1 ELSE 0 END) AS tombstones,
           count(_error) AS quarantined
    FROM landing GROUP BY _partition
"""
WHY = f"""
    SELECT _error, count(*) AS records FROM landing WHERE _error IS NOT NULL
    GROUP BY _error ORDER BY records DESC, _error LIMIT {REASONS}
"""


@dataclass(frozen=True)
class Counted:
    """What a landing holds: `records` in all, of them with a value, tombstones, and in quarantine.

    `offsets` is how many were read: from where the landing began to where it is, without its gaps. Where it is more
    than `records`, the difference are offsets without a record: ends of transactions, and what compaction removed.
    `reasons` has the most frequent reasons of quarantine, with how many records have each. `wrong` says in a sentence
    each what does not add up.
    """

    records: int
    rows: int
    tombstones: int
    quarantined: int
    offsets: int
    reasons: dict[str, int]
    wrong: tuple[str, ...] = ()


def counted(lakehouse: Lakehouse, topology: Topology, source: Source) -> Counted | None:
    """Count the records of a landing, at its newest version; None where nothing has landed.

    Raises:
        PositionLost: the landing exists and cannot say what it read.
        LogBroken: its log cannot be read.
    """
    path = lakehouse.table(topology.name, source.landing)
    state = positions.read(path, f"{topology.name}/{source.landing}")
    if state is None or state.position.n == 0:
        return None
    query = QueryBuilder().register("landing", DeltaTable(path, version=state.version))
    found = {row.pop("_partition"): row for row in pa.table(query.execute(COUNTS).read_all()).to_pylist()}
    reasons = {row["_error"]: row["records"] for row in pa.table(query.execute(WHY).read_all()).to_pylist()}
    [at] = state.position.cut.values()
    read = _read(at.offsets, state.position.floor, state.position.gaps)
    wrong = []
    for partition, row in sorted(found.items()):
        where = f"partition {partition}"
        known = row["rows"] + row["tombstones"] + row["quarantined"]
        if known != row["records"]:
            wrong.append(f"{where}: {row['records']} records, of which {known} are a value, a tombstone or quarantined")
        first, end = state.position.floor.get(partition, 0), at.offsets.get(partition, 0)
        if row["first"] < first or row["last"] >= end:
            wrong.append(f"{where}: has offsets {row['first']} to {row['last']}, and read {first} to {end - 1}")
        elif row["records"] > read[partition]:
            wrong.append(f"{where}: {row['records']} records of {read[partition]} offsets: some are there twice")
    rows, tombstones, quarantined, records = (
        sum(row[name] for row in found.values()) for name in ("rows", "tombstones", "quarantined", "records")
    )
    return Counted(records, rows, tombstones, quarantined, sum(read.values()), reasons, tuple(wrong))


def _read(end: Mapping[int, int], floor: Mapping[int, int], gaps: tuple[Gap, ...]) -> dict[int, int]:
    """How many offsets of each partition were read."""
    read = {partition: offset - floor.get(partition, 0) for partition, offset in end.items()}
    for gap in gaps:
        if gap.partition is not None:
            read[gap.partition] -= gap.width
    return read
