"""Counts of the records of a landing: with a value, tombstones, in quarantine by reason, and dropped from quarantine.

The law: a landing holds exactly the records that its commits wrote, each of one kind, but for those that were dropped
from quarantine on request, and of each partition no more than the offsets that were read. It may hold fewer: a
transaction marker is an offset without a record, and so is a record that compaction removed.

Positions add up what the commits wrote. Delta's metrics have the number of records of each commit, so the total is
exact. The number of each kind is known only after the write. So a commit of the landing carries the counts of the
commits before it, and those of the last commit are counted in its rows. While nobody else changes a landing, these are
its counts, and no other rows are read. Once somebody else changed it, all rows are counted, and compared.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa  # type: ignore[import-untyped]  # has no types of its own
from deltalake import QueryBuilder
from deltalake.exceptions import DeltaError

from spark.engine.errors import ChangesExpired, LogBroken
from spark.engine.log import delta_log
from spark.engine.log.position import Counts
from spark.engine.log.stored_table import StoredTable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark.engine.log.position import Gap, Position
    from spark.engine.log.stored_table import State
    from spark.engine.ports import Lakehouse
    from spark.topology.topology import Source, Table, Topology

REASONS = 10  # the most frequent ones; a reason may contain a value, and then differs in every record
OTHERS = "other reasons"

KINDS = """count(*) AS records,
           sum(CASE WHEN _error IS NULL AND NOT _deleted THEN 1 ELSE 0 END) AS values,
           sum(CASE WHEN _error IS NULL AND _deleted THEN 1 ELSE 0 END) AS tombstones,
           count(_error) AS errors"""
COUNTS = f"SELECT _partition, min(_offset) AS first, max(_offset) AS last, {KINDS} FROM it GROUP BY _partition"
WHY = f"""
    SELECT _error, count(*) AS records FROM it WHERE _error IS NOT NULL
    GROUP BY _error ORDER BY records DESC, _error LIMIT {REASONS}
"""


@dataclass(frozen=True)
class Counted:
    """The counts of a landing: all `records` that it read, `rows` with a value, `tombstones`, and `quarantined`.

    `dropped` has the number of records that were dropped from quarantine, by the reason that was given and by whom.
    `offsets` is how many offsets were read, from the first one of the landing to its cut, without its gaps. Offsets
    without a record are transaction markers, and records that compaction removed. `reasons` has the number of records
    by reason of quarantine: of the most frequent reasons, and of all others. `wrong` has a sentence for each
    violation of the law.
    """

    records: int
    rows: int
    tombstones: int
    quarantined: int
    offsets: int
    reasons: dict[str, int]
    wrong: tuple[str, ...] = ()
    dropped: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class TableCounts:
    """The counts of a topic's table: the records of its landing with a value, the tombstones, and its own `rows`.

    Every other record was superseded by a newer one of its key, or is a tombstone, or was deleted by one.
    """

    values: int
    tombstones: int
    rows: int

    @property
    def superseded(self) -> int:
        """The number of records that are not rows."""
        return self.values + self.tombstones - self.rows

    @property
    def wrong(self) -> str:
        """The violation of the law, in a sentence; empty if there is none."""
        if self.rows <= self.values:
            return ""
        return f"{self.rows} rows, of {self.values} records with a value that it took: somebody added some"


def table_counts(lakehouse: Lakehouse, topology: Topology, table: Table) -> TableCounts | None:
    """Return the counts of a topic's table; None for another table, and if the table lags its landing.

    Raises:
        PositionLost: the log of the table, or of its landing, does not say what it read.
        LogBroken: the log of the table, or of its landing, cannot be read.
    """
    source = next((one for one in topology.sources if one.topic == table.name and one.kind != "stream"), None)
    if source is None:
        return None
    stored, landing = (StoredTable.of(lakehouse, topology.name, name) for name in (table.name, source.landing))
    state, landed = stored.state(), landing.state()
    if state is None or landed is None or state.position.n == 0 or state.position.cut != landed.position.cut:
        return None
    given = so_far(landing, landed)
    [row] = query(stored.path, state.version, "SELECT count(*) AS rows FROM it")
    return TableCounts(given.values, given.tombstones, row["rows"])


def counted(lakehouse: Lakehouse, topology: Topology, source: Source) -> Counted | None:
    """Return the counts of a landing at its newest version; None if nothing has landed.

    Raises:
        PositionLost: the log of the landing does not say what it read.
        LogBroken: the log of the landing cannot be read.
    """
    landing = StoredTable.of(lakehouse, topology.name, source.landing)
    state = landing.state()
    if state is None or state.position.n == 0:
        return None
    written = so_far(landing, state)
    [at] = state.position.cut.values()
    read = _read(at.offsets, state.position.floor, state.position.gaps)
    held, wrong = _held(landing.path, state.version, state.position, read) if written.others else (written, [])
    wrong += _missing(written, held)
    if not wrong and held.records > sum(read.values()):
        wrong.append(f"{held.records} records of {sum(read.values())} offsets: some are there twice")
    reasons = {row["_error"]: row["records"] for row in query(landing.path, state.version, WHY)} if held.errors else {}
    if held.errors > (known := sum(reasons.values())):
        reasons[OTHERS] = held.errors - known
    dropped = state.position.dropped
    records, offsets = held.records + sum(dropped.values()), sum(read.values())
    return Counted(records, held.values, held.tombstones, held.errors, offsets, reasons, tuple(wrong), dropped)


def so_far(landing: StoredTable, state: State) -> Counts:
    """Return what the commits of a landing wrote. If the log no longer has that, counting begins with its rows now."""
    was = state.position
    known = was.counts if was.n > 0 else Counts(0, state.version)
    if known is None:
        return _begun(landing, state)
    try:
        later = landing.changed_versions(known.version, state.version)
    except ChangesExpired:  # the log was cleaned up
        return _begun(landing, state)
    own = [one for one in later if one.position is not None and one.position.n > known.through]
    others = any(one.position is None for one in later)
    now = replace(known, through=was.n, version=state.version, others=known.others or others)
    if not own:
        return now
    batches = [one.position.n for one in own if one.position is not None]
    try:  # if somebody else changed the rows since, count them as they were written
        found = kinds(landing.path, own[0].version if others else state.version, *batches)
    except (LogBroken, DeltaError, OSError):  # that version is gone, or its files are
        found = kinds(landing.path, state.version, *batches)
    return _plus(now, found | {"records": sum(one.rows or 0 for one in own)})


def after_redecoding(counts: Counts, decoded: int, deleted: int) -> Counts:
    """Return the counts after the next commit, which decodes records in quarantine, `deleted` tombstones among them."""
    return replace(
        counts,
        through=counts.through + 1,
        values=counts.values + decoded - deleted,
        tombstones=counts.tombstones + deleted,
        errors=counts.errors - decoded,
    )


def after_dropping(counts: Counts, dropped: int) -> Counts:
    """Return the counts after the next commit, which drops records from quarantine."""
    return replace(counts, through=counts.through + 1, records=counts.records - dropped, errors=counts.errors - dropped)


def kinds(path: str, version: int, *batches: int) -> dict[str, int]:
    """Return the number of records of each kind, in the rows of some commits of a landing, or of all."""
    where = f" WHERE _batch IN ({', '.join(map(str, batches))})" if batches else ""
    [row] = query(path, version, f"SELECT {KINDS} FROM it{where}")
    return {name: count or 0 for name, count in row.items()}


def _begun(landing: StoredTable, state: State) -> Counts:
    return _plus(Counts(state.position.n, state.version), kinds(landing.path, state.version))


def _plus(counts: Counts, found: Mapping[str, int]) -> Counts:
    return replace(counts, **{name: getattr(counts, name) + count for name, count in found.items()})


def _held(path: str, version: int, at: Position, read: Mapping[int, int]) -> tuple[Counts, list[str]]:
    """Return the counts of all rows of a landing, and the violations of the offsets that were read."""
    held, wrong = Counts(at.n, version), []
    [cut] = at.cut.values()
    for row in sorted(query(path, version, COUNTS), key=lambda row: row["_partition"]):
        partition, first, last = (row.pop(name) for name in ("_partition", "first", "last"))
        held = _plus(held, row)
        since, until = at.floor.get(partition, 0), cut.offsets.get(partition, 0)
        if first < since or last >= until:
            wrong.append(f"partition {partition}: has offsets {first} to {last}, and read {since} to {until - 1}")
        elif row["records"] > read[partition]:
            twice = f"{row['records']} records of {read[partition]} offsets: some are there twice"
            wrong.append(f"partition {partition}: {twice}")
    return held, wrong


def _missing(written: Counts, held: Counts) -> list[str]:
    """Return a violation if a landing lacks records that were written, or has them as another kind; empty if none."""
    if held.records < written.records:
        gone = written.records - held.records
        return [f"{written.records} records were landed, and {held.records} are there: somebody deleted {gone}"]
    parts, there = ((one.values, one.tombstones, one.errors) for one in (written, held))
    if written.records != sum(parts):
        return [f"{written.records} records, of which {sum(parts)} are a value, a tombstone or quarantined"]
    if parts != there and held.records == written.records:
        return [f"{_in_words(parts)} were landed, and {_in_words(there)} are there: somebody changed them"]
    return []


def _in_words(parts: tuple[int, int, int]) -> str:
    return f"{parts[0]} with a value, {parts[1]} tombstones, {parts[2]} in quarantine"


def query(path: str, version: int, sql: str) -> list[dict[str, Any]]:
    """Return what a query on a version of a table, which it calls `it`, finds, without Spark.

    Raises:
        LogBroken: its log cannot be read, or no longer has the version.
    """
    builder = QueryBuilder().register("it", delta_log.opened(path, version))
    rows: list[dict[str, Any]] = pa.table(builder.execute(sql).read_all()).to_pylist()
    return rows


def _read(end: Mapping[int, int], floor: Mapping[int, int], gaps: tuple[Gap, ...]) -> dict[int, int]:
    """Return how many offsets of each partition were read: from `floor` to `end`, without gaps."""
    read = {partition: offset - floor.get(partition, 0) for partition, offset in end.items()}
    for gap in gaps:
        if gap.partition is not None:
            read[gap.partition] -= gap.width
    return read
