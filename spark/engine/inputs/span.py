"""The spans that the operators read: the changes from one position to a later one, pinned as snapshots are."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Self

from pyspark.sql import functions as F

from spark.engine.errors import InputChanged
from spark.engine.inputs.frame_cache import FEW, FEW_BYTES
from spark.engine.inputs.snapshot import EmptySnapshot, columns_of, inserted, placed, recorded
from spark.engine.log.delta_log import written_bytes
from spark.engine.log.merge import LITERALS
from spark.engine.log.position import Position
from spark.engine.log.stored_table import ChangedVersion
from spark.operators.algebra import PRESENT, cols
from spark.operators.order import with_reached
from spark.topology.nodes import LANDING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, Row

    from spark.engine.inputs.frame_cache import FrameCache
    from spark.engine.inputs.snapshot import DeltaSnapshot
    from spark.engine.log.stored_table import Commit, StoredTable
    from spark.engine.offsets import TopicOffsets
    from spark.topology.nodes import Node, Scan

# Changed rows that are broadcast to every task. Up to 50,000 always are, some 10 MB of wide rows. More than that are if
# they have at most 16 MB in files, some 100 MB in memory.
ALWAYS_BROADCAST = 50_000
BROADCAST_ROWS = 250_000
BROADCAST_BYTES = 16 << 20

ONE_TASK = 10_000  # changed rows that one task reads: it needs no shuffle, and takes a fraction of a second

LARGE = 16 << 20  # bytes of a table from which on finding its files by literals costs less than reading all of them


def can_be_broadcast(table: StoredTable, count: int, written: float = 0) -> bool:
    """Return whether so many rows of a table are so few that every task can have them.

    Some of them may be in `written` bytes of files. Of the others, such as deleted ones, the average size counts.
    """
    if count < ALWAYS_BROADCAST:
        return True
    return count < BROADCAST_ROWS and max(written, count * table.row_size()) < BROADCAST_BYTES


@dataclass(frozen=True)
class IncrementalSpan:
    """The span from one position to a later one. `own` are the table's own rows at the earlier one.

    Times are stream times in microseconds since 1970.
    """

    before: DeltaSnapshot
    after: DeltaSnapshot
    cache: FrameCache
    own: DataFrame
    time_before: int | None = None
    time_after: int | None = None
    seen: Mapping[str, int] = field(default_factory=dict)
    apart: tuple[str, ...] = ()
    receives: bool = False
    """Whether the frames of the span are likely to have as few rows as it: no operator reads open windows, or records
    that other records may join."""

    def at(self, time_before: int | None, time_after: int | None = None, seen: Mapping[str, int] | None = None) -> Self:
        """Return the span with its stream times, in microseconds since 1970."""
        return replace(self, time_before=time_before, time_after=time_after, seen=seen or {})

    @cached_property
    def is_small(self) -> bool:
        """Whether the changed rows of every input are so few that they can be broadcast."""
        return all(can_be_broadcast(self.after.table(name), *size) for name, size in self._sizes.items())

    @cached_property
    def is_few(self) -> bool:
        """Whether its frames are likely to have so few rows that these can be sent with each query that reads them."""
        if not self.receives:
            return False
        rows = {name: count for name, (count, _) in self._sizes.items() if count}
        return sum(rows.values()) <= FEW and all(
            count * self.after.table(name).row_size() <= FEW_BYTES for name, count in rows.items()
        )

    @cached_property
    def _sizes(self) -> dict[str, tuple[int, float]]:
        """By input, how many changed rows it has at most, and how many bytes the files that its commits added."""
        sizes = {
            name: (
                sum(BROADCAST_ROWS if commit.read_rows is None else commit.read_rows for commit in found),
                sum(0 if commit.replaces_keys else commit.written_bytes for commit in found),
            )
            for name, found in self._changed.items()
            if not name.startswith(LANDING)
        }
        return sizes | {name: (landed.records, landed.written_bytes) for name, landed in self._landed.items()}

    def keep(self, frame: DataFrame) -> DataFrame:
        """Return the same rows, cached if the span is small."""
        return self.cache.cache(frame, self.is_few) if self.is_small else frame

    def _in_one_task(self, frame: DataFrame, scan: Scan) -> DataFrame:
        """Return the changed rows of an input, read by one task if they are few."""
        return frame.coalesce(1) if self._sizes[scan.table][0] <= ONE_TASK else frame

    def is_empty(self, frame: DataFrame) -> bool:
        """Return whether a cached frame has no rows; False if the span is not small, so that it was not cached."""
        return self.is_small and frame.isEmpty()

    def few(self, keys: DataFrame, node: Node) -> Sequence[Row] | None:
        """Return the rows of `keys` if they are at most `LITERALS`, and an input of the node has `LARGE` bytes."""
        if not self.is_small or all(self.after.table(scan.table).size() < LARGE for scan in node.scans):
            return None
        found = keys.limit(LITERALS + 1).collect()
        return found if len(found) <= LITERALS else None

    def has_changes(self, scan: Scan) -> bool:
        """Return whether the input changed in the span."""
        if scan.table in self._landed:
            # A change by somebody else adds no offset. It counts as a change, so that `records` raises.
            return self._landed[scan.table].changed or any(c.position is None for c in self._changed[scan.table])
        return self.before.inputs[scan.table] != self.after.inputs[scan.table]

    def records(self, scan: Scan) -> DataFrame:
        """Return the new records of a stream, or the changes of a stored table as records: `PLACED`.

        They are selected by batch, and in a landing by offset too, so that statistics skip older files.

        Raises:
            InputChanged: somebody else changed the input, or it was computed again or replaced.
        """
        if not scan.appended:
            return with_reached(self._table_records(scan), scan.by_time)
        batches = []
        for commit in self._changed[scan.table]:
            if commit.position is None:
                raise InputChanged(
                    f"{self.after.topology}/{scan.table} was changed in version {commit.version} by somebody else: "
                    f"the log does not say which keys changed. Run `tidetable rebuild` for every table that reads it"
                )
            if commit.position.n == 1:
                raise InputChanged(
                    f"{self.after.topology}/{scan.table} was computed again in version {commit.version}, by another "
                    f"definition: its records are all others. Run `tidetable rebuild "
                    f"{self.after.topology}.{scan.table} --downstream`"
                )
            batches.append(commit.position.n)
        if scan.table in self._landed:
            found = self.after.appended(scan, self.before.offsets(scan.table))
            oldest = self._landed[scan.table].oldest
            if oldest is None:
                return placed(scan, found)
            return placed(scan, self._in_one_task(found.where(F.col("_batch") >= oldest), scan))
        found = self.after.appended(scan)
        # Without batches no commit changed data, for example a rebuild that found no difference.
        added = found.where(F.col("_batch") >= min(batches)) if batches else found.where("false")
        return placed(scan, self._in_one_task(added, scan))

    def overlapping_records(self, scan: Scan) -> DataFrame | None:
        """Return earlier records that may be newer than some records of the span; None if there are none.

        These landed in the same batch as records of the span, or after records that the span decoded again.
        """
        landed = self._landed.get(scan.table)
        if landed is None or (landed.begun is None and not landed.redecoded):
            return None
        earlier = self.before.records(scan)
        return earlier if landed.redecoded else earlier.where(F.col("_batch") >= F.lit(landed.begun))

    def _table_records(self, scan: Scan) -> DataFrame:
        if self._replaced(scan):
            raise InputChanged(
                f"{self.after.topology}/{scan.table} was replaced, with other columns: its changes end there. "
                f"Run `tidetable rebuild` for every table that reads them"
            )
        replaces_keys = any(commit.replaces_keys for commit in self._changed[scan.table])
        return recorded(scan, self._feed(scan), replaces_keys)

    def changes(self, scan: Scan) -> DataFrame:
        """Return one row for every key that changed: its newest row, or `_present` false.

        Columns: the scan's, `OURS`, `_present`.
        """
        if self._replaced(scan):
            return self._everything(scan)
        only_inserts = all(commit.only_inserts for commit in self._changed[scan.table])
        # To find deleted rows, Delta reads the whole of each file that had some.
        kinds = "= 'insert'" if only_inserts else "<> 'update_preimage'"
        feed = self._feed(scan).where(f"_change_type {kinds}").withColumn(PRESENT, inserted())
        if only_inserts or not any(commit.replaces_keys for commit in self._changed[scan.table]):
            feed = self._in_one_task(feed, scan)
        columns = [*columns_of(scan), F.col(PRESENT)]
        if self._changed_once(scan) or (only_inserts and len(self._changed[scan.table]) == 1):
            return feed.select(*columns)
        newer = F.struct("_commit_version", PRESENT)  # of a delete and an insert in one commit the insert is newer
        newest = feed.groupBy(*cols(scan.key)).agg(F.max_by(F.struct(*columns), newer).alias("_row"))
        return newest.select("_row.*")

    def previous(self, scan: Scan) -> DataFrame:
        """Return the rows from before the span at the keys that changed: the scan's columns, and `OURS`."""
        if self._replaced(scan):
            return self.before.stored(scan)
        feed = self._feed(scan).where("_change_type <> 'update_postimage'").withColumn(PRESENT, inserted())
        if self._changed_once(scan):
            return feed.where(f"NOT {PRESENT}").select(*columns_of(scan))
        older = F.struct("_commit_version", PRESENT)  # of a delete and an insert in one commit the delete is older
        row = F.struct(*columns_of(scan), F.col(PRESENT))
        oldest = feed.groupBy(*cols(scan.key)).agg(F.min_by(row, older).alias("_row"))
        return oldest.select("_row.*").where(f"NOT {PRESENT}").drop(PRESENT)

    def _feed(self, scan: Scan) -> DataFrame:
        return self.after.feed(scan, since=self.before.inputs[scan.table].version + 1)

    def _replaced(self, scan: Scan) -> bool:
        """Return whether a commit of the span replaced the table, maybe with other columns."""
        return any(commit.replaced for commit in self._changed[scan.table])

    def _changed_once(self, scan: Scan) -> bool:
        """Return whether the change feed has every key at most once, but for updates: the span is one MERGE."""
        match self._changed[scan.table]:
            case [ChangedVersion(position=Position(whole=False), replaces_keys=False)]:
                return True
        return False

    def _everything(self, scan: Scan) -> DataFrame:
        """Return the change of every key before and after: Delta cannot read changes across a change of columns."""
        now = self.after.stored(scan).withColumn(PRESENT, F.lit(True))
        gone = self.before.keys(scan).join(now.select(*cols(scan.key)), list(scan.key), "left_anti")
        return now.unionByName(gone.withColumn(PRESENT, F.lit(False)), allowMissingColumns=True)

    @cached_property
    def _landed(self) -> dict[str, LandingRange]:
        """The part of each landing that lies in the span."""
        return {
            name: landing_range(
                self.before.offsets(name),
                self.after.offsets(name),
                (self.before.inputs[name].version, self.after.inputs[name].version),
                self.after.table(name).changing_commits(),
            )
            for name in self.after.inputs
            if name.startswith(LANDING)
        }

    @cached_property
    def _changed(self) -> dict[str, list[ChangedVersion]]:
        """By input, the commits in the span that changed data, newest first."""
        return {
            name: self.after.table(name).changed_versions(self.before.inputs[name].version, pinned.version)
            for name, pinned in self.after.inputs.items()
        }


@dataclass(frozen=True)
class LandingRange:
    """The part of a landing that lies in a span: the number of `records` at most, and whether it changed (`changed`).

    `written_bytes` are those of the files that its commits added.
    `begun` is the batch that an earlier span read in part, if there is one. `redecoded`: the span has older records
    that were decoded again. `oldest` is the first batch that has records of the span; None if that is not known.
    """

    records: int
    changed: bool
    begun: int | None
    redecoded: bool = False
    oldest: int | None = None
    written_bytes: float = 0


def landing_range(
    since: TopicOffsets, until: TopicOffsets, versions: tuple[int, int], commits: Iterator[Commit]
) -> LandingRange:
    """Return the part of a landing between two offsets; `commits` are those that changed it, newest first."""
    records = sum(max(0, end - since.offsets.get(partition, 0)) for partition, end in until.offsets.items())
    redecoded = since.redecoded < until.redecoded
    if records == 0 and not redecoded:
        return LandingRange(0, changed=False, begun=None)
    changed, begun, oldest, written = versions[0] != versions[1], None, None, 0.0
    for commit in commits:
        [landed] = commit.position.cut.values()
        if not since.is_before(landed):
            oldest = begun
            if not landed.is_before(since):
                begun = None  # the earlier span ended with this batch, between two batches
            break
        begun = commit.position.n
        changed = changed or commit.version == versions[1]
        records += commit.metrics.get("numTargetRowsUpdated", 0)
        written += written_bytes(commit.metrics)
    # Records that were decoded again have the batch that they were landed in.
    return LandingRange(records, changed, begun, redecoded, None if redecoded else oldest, written)


@dataclass(frozen=True)
class InitialSpan:
    """The span from empty inputs to a position: that of a table's first step."""

    after: DeltaSnapshot
    own: DataFrame
    time_after: int | None = None
    time_before: int | None = None
    is_small: bool = False
    seen: Mapping[str, int] = field(default_factory=dict)
    apart: tuple[str, ...] = ()

    def at(self, time_before: int | None, time_after: int | None = None, seen: Mapping[str, int] | None = None) -> Self:
        """Return the span with its stream times, in microseconds since 1970."""
        return replace(self, time_before=time_before, time_after=time_after, seen=seen or {})

    @property
    def before(self) -> EmptySnapshot:
        """The snapshot of empty inputs."""
        return EmptySnapshot(self.after)

    def keep(self, frame: DataFrame) -> DataFrame:
        """Return the frame without caching it: it may be large."""
        return frame

    def is_empty(self, frame: DataFrame) -> bool:  # noqa: ARG002  # the protocol's
        """Return False: no frame is cached."""
        return False

    def few(self, keys: DataFrame, node: Node) -> None:  # the protocol's
        """Return None: every record is looked up."""

    def has_changes(self, scan: Scan) -> bool:  # noqa: ARG002  # the protocol's
        """Return True."""
        return True

    def changes(self, scan: Scan) -> DataFrame:
        """Return every row: the scan's columns, `OURS`, `_present`."""
        return self.after.stored(scan).withColumn(PRESENT, F.lit(True))

    def previous(self, scan: Scan) -> DataFrame:
        """Return no rows."""
        return self.after.stored(scan).where("false")

    def overlapping_records(self, scan: Scan) -> DataFrame | None:  # noqa: ARG002  # the protocol's
        """Return None: there are no earlier records."""
        return None

    def records(self, scan: Scan) -> DataFrame:
        """Return all records of a stream, or all changes of a stored table as records: `PLACED`."""
        if scan.appended:
            return placed(scan, self.after.appended(scan))
        return with_reached(self.after.changelog(scan), scan.by_time)
