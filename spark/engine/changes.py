"""What the operators read: snapshots by version, and spans by change feed. Both are pinned: a replay reads the same."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Self

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyspark.sql import functions as F

from spark.engine import position as positions
from spark.engine.errors import ChangesExpired, InputChanged
from spark.engine.offsets import TopicOffsets
from spark.engine.pin import before
from spark.engine.position import Position
from spark.operators.algebra import OURS, PRESENT, col, cols
from spark.operators.order import micros, with_ordinals, with_reached
from spark.topology.nodes import LANDING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyspark.sql import Column, DataFrame, SparkSession

    from spark.engine.doors import Lakehouse
    from spark.engine.kept import Kept
    from spark.engine.position import Commit, Cut, Input
    from spark.topology.nodes import Node, Scan

FEW = 50_000  # changed rows that are broadcast to every task at most: some 10 MB of wide rows
START = TopicOffsets("", {})
"""The offsets before the first record of every partition."""
REDECODED = "_redecoded"
"""The column of a landing with `TopicOffsets.redecoded` as of when the record was decoded again; null: never."""
NOTHING = "false"
"""A SQL condition that no record meets."""


@dataclass(frozen=True)
class Pinned:
    """The snapshot of the operators: every input at one position."""

    session: SparkSession
    lakehouse: Lakehouse
    topology: str
    inputs: dict[str, Input]
    cut: Cut
    begun: Mapping[str, int] = field(default_factory=dict)
    """By stored input whose changes are read, the version whose rows replace all changes up to it."""
    known: dict[tuple[str, int], int] = field(default_factory=dict, compare=False, repr=False)
    """By input and pinned version, the newest version with the same rows, which is read instead."""
    columns: dict[tuple[str, int], set[str]] = field(default_factory=dict, compare=False, repr=False)
    """By input and version, its columns: a cache, because a feed and two snapshots need them."""

    def path(self, scan: Scan) -> str:
        """Return the path of an input."""
        return self.lakehouse.table(self.topology, scan.table)

    def stored(self, scan: Scan) -> DataFrame:
        """Return all rows of a stored table: the scan's columns and `OURS`; null in columns it gained later.

        A stored stream has all its stored columns.
        """
        return self._stored(scan, self._there(scan))

    def _stored(self, scan: Scan, there: set[str]) -> DataFrame:
        """Return all rows; `there` are the columns that the table has at this version."""
        frame = _with_later(self._frame(scan), scan, there)
        return frame if scan.appended else frame.select(*_columns(scan))

    def records(self, scan: Scan) -> DataFrame:
        """Return all records of a stream, or all changes of a stored table as records, with `_reached` null.

        Changes from before the table was last replaced are not included.
        """
        found = self.appended(scan) if scan.appended else self.changelog(scan)
        return found.withColumn("_reached", F.lit(None).cast("bigint"))

    def appended(self, scan: Scan, since: TopicOffsets = START) -> DataFrame:
        """Return all rows of a stored stream, or the decoded records of a landing from `since` up to the cut.

        Columns: those stored; of a landing without `_redecoded`, and with `_ordinal` 0.
        """
        there = self._there(scan)
        frame = self._stored(scan, there)
        if not scan.landing:
            return frame
        taken = frame.where("_error IS NULL")
        if REDECODED in there:
            taken = taken.where(landed_between(since, self.offsets(scan.table))).drop(REDECODED)
        else:
            taken = taken.where(within(since.offsets, self.offsets(scan.table).offsets))
        return taken.withColumn("_ordinal", F.lit(0).cast("bigint"))

    def offsets(self, landing: str) -> TopicOffsets:
        """Return the offsets up to which a landing is read; it may hold records beyond them."""
        name = landing.removeprefix(LANDING)
        return next(at for topic, at in self.cut.items() if topic.partition("/")[2] == name)

    def changelog(self, scan: Scan) -> DataFrame:
        """Return all changes of a stored table as records: the scan's columns, and `STREAMED`.

        Its rows at a version replace the earlier changes, if those have expired, or a commit replaced the table since.

        Raises:
            ChangesExpired: the log no longer has the commits that changed the table.
        """
        version, begun = self.inputs[scan.table].version, self.begun.get(scan.table)
        commits = positions.changed(self.path(scan), f"{self.topology}/{scan.table}", since=begun or 0, until=version)
        since = next((commit.version for commit in commits if commit.replaced), begun)
        if since is None:
            return recorded(scan, self.feed(scan, since=0))
        # Delta cannot read changes across a change of columns, so they begin with the commit that replaced the table.
        then = replace(self, inputs=self.inputs | {scan.table: replace(self.inputs[scan.table], version=since)})
        rows = then.stored(scan).withColumns({"_batch": F.lit(since).cast("bigint"), "_deleted": F.lit(False)})
        first = with_ordinals(rows, scan.key)
        return first if since == version else first.unionByName(recorded(scan, self.feed(scan, since + 1)))

    def feed(self, scan: Scan, since: int) -> DataFrame:
        """Return the change feed of a stored table from version `since` up to the pin, with Delta's columns."""
        read = self.session.read.option("readChangeFeed", "true").option("startingVersion", since)
        feed = read.option("endingVersion", self.inputs[scan.table].version).format("delta").load(self.path(scan))
        return _with_later(feed, scan, self._there(scan))

    def keys(self, scan: Scan) -> DataFrame:
        """Return the key columns of all rows of a stored table; its other columns may differ from the scan's."""
        return self._frame(scan).select(*cols(scan.key))

    def time(self, scan: Scan) -> int | None:
        """Return the stream time of a stored table, in microseconds since 1970; None for a landing.

        It may exceed the timestamp of its newest record.
        """
        if scan.landing:
            return None
        name, version = f"{self.topology}/{scan.table}", self.inputs[scan.table].version
        return positions.at(self.path(scan), name, version, self.cut).time

    def _frame(self, scan: Scan) -> DataFrame:
        if scan.landing:  # it is read by offsets: the files of old versions may be vacuumed
            return self.session.read.format("delta").load(self.path(scan))
        return version_of(self.session, self.path(scan), self._version(scan))

    def _version(self, scan: Scan) -> int:
        at = (scan.table, self.inputs[scan.table].version)
        if at not in self.known:
            self.known[at] = positions.standing(self.path(scan), f"{self.topology}/{scan.table}", at[1])
        return self.known[at]

    def _there(self, scan: Scan) -> set[str]:
        """Return the columns that an input has at its pin."""
        version = None if scan.landing else self._version(scan)
        if version is not None and (scan.table, version) in self.columns:
            return self.columns[scan.table, version]
        try:
            there = {field.name for field in DeltaTable(self.path(scan), version).schema().fields}
        except DeltaError as error:
            raise ChangesExpired(f"{self.topology}/{scan.table} has no version {version} any more: {error}") from error
        if version is not None:  # a landing may gain columns at any moment
            self.columns[scan.table, version] = there
        return there


@dataclass(frozen=True)
class Between:
    """The span from one position to a later one. `own` are the table's own rows at the earlier one.

    Times are stream times in microseconds since 1970.
    """

    before: Pinned
    after: Pinned
    keeps: Kept
    own: DataFrame
    time_before: int | None = None
    time_after: int | None = None
    seen: Mapping[str, int] = field(default_factory=dict)
    apart: tuple[str, ...] = ()

    def at(self, time_before: int | None, time_after: int | None = None, seen: Mapping[str, int] | None = None) -> Self:
        """Return the span with its stream times, in microseconds since 1970."""
        return replace(self, time_before=time_before, time_after=time_after, seen=seen or {})

    @cached_property
    def is_small(self) -> bool:
        """Whether every input has less than `FEW` changed rows, so that they can be broadcast."""
        counts = [
            sum(FEW if commit.rows is None else commit.rows for commit in found)
            for name, found in self._changed.items()
            if not name.startswith(LANDING)
        ]
        return max([*counts, *(taken.records for taken in self._taken.values())], default=0) < FEW

    def keep(self, frame: DataFrame) -> DataFrame:
        """Return the same rows, cached if the span is small."""
        return self.keeps.keep(frame) if self.is_small else frame

    def is_empty(self, frame: DataFrame) -> bool:
        """Return whether a cached frame has no rows; False if the span is not small, so that it was not cached."""
        return self.is_small and frame.isEmpty()

    def has_changes(self, scan: Scan) -> bool:
        """Return whether the input changed in the span."""
        if scan.table in self._taken:
            # A change by somebody else adds no offset. It counts as a change, so that `records` raises.
            return self._taken[scan.table].moved or any(c.position is None for c in self._changed[scan.table])
        return self.before.inputs[scan.table] != self.after.inputs[scan.table]

    def records(self, scan: Scan) -> DataFrame:
        """Return the new records of a stream, or the changes of a stored table as records: `PLACED`.

        They are selected by batch in a stream, and by offset in a landing, so that statistics skip older files.

        Raises:
            InputChanged: somebody else changed the input, or it was computed anew or replaced.
        """
        if not scan.appended:
            return with_reached(self._table_records(scan), scan.by_time)
        batches = []
        for commit in self._changed[scan.table]:
            if commit.position is None:
                raise InputChanged(
                    f"{self.after.topology}/{scan.table} was changed in version {commit.version} by somebody else: "
                    f"which keys that concerns cannot be told. Run `tidetable rebuild` for every table that reads it"
                )
            if commit.position.n == 1:
                raise InputChanged(
                    f"{self.after.topology}/{scan.table} was computed anew in version {commit.version}, by another "
                    f"definition: its records are all others. Run `tidetable rebuild "
                    f"{self.after.topology}.{scan.table} --downstream`"
                )
            batches.append(commit.position.n)
        if scan.table in self._taken:
            return placed(scan, self.after.appended(scan, self.before.offsets(scan.table)))
        found = self.after.appended(scan)
        # Without batches no commit changed data, for example a rebuild that found no difference.
        gained = found.where(F.col("_batch") >= min(batches)) if batches else found.where("false")
        return placed(scan, gained)

    def overlapping_records(self, scan: Scan) -> DataFrame | None:
        """Return earlier records that may be newer than some records of the span; None if there are none.

        These landed in the same batch as records of the span, or after records that the span decoded again.
        """
        taken = self._taken.get(scan.table)
        if taken is None or (taken.begun is None and not taken.redecoded):
            return None
        earlier = self.before.records(scan)
        return earlier if taken.redecoded else earlier.where(F.col("_batch") >= F.lit(taken.begun))

    def _table_records(self, scan: Scan) -> DataFrame:
        if self._replaced(scan):
            raise InputChanged(
                f"{self.after.topology}/{scan.table} was replaced, with other columns: its changes end there. "
                f"Run `tidetable rebuild` for every table that reads them"
            )
        return recorded(scan, self._feed(scan))

    def changes(self, scan: Scan) -> DataFrame:
        """Return one row for every key that changed: its newest row, or `_present` false.

        Columns: the scan's, `OURS`, `_present`.
        """
        if self._replaced(scan):
            return self._everything(scan)
        feed = self._feed(scan).where("_change_type <> 'update_preimage'").withColumn(PRESENT, inserted())
        columns = [*_columns(scan), F.col(PRESENT)]
        if self._changed_once(scan):
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
            return feed.where(f"NOT {PRESENT}").select(*_columns(scan))
        older = F.struct("_commit_version", PRESENT)  # of a delete and an insert in one commit the delete is older
        row = F.struct(*_columns(scan), F.col(PRESENT))
        oldest = feed.groupBy(*cols(scan.key)).agg(F.min_by(row, older).alias("_row"))
        return oldest.select("_row.*").where(f"NOT {PRESENT}").drop(PRESENT)

    def _feed(self, scan: Scan) -> DataFrame:
        return self.after.feed(scan, since=self.before.inputs[scan.table].version + 1)

    def _replaced(self, scan: Scan) -> bool:
        """Return whether a commit of the span replaced the table, maybe with other columns."""
        return any(commit.replaced for commit in self._changed[scan.table])

    def _changed_once(self, scan: Scan) -> bool:
        """Return whether no key changed twice, because the span is one MERGE."""
        match self._changed[scan.table]:
            case [positions.Changed(position=Position(whole=False))]:
                return True
        return False

    def _everything(self, scan: Scan) -> DataFrame:
        """Return the change of every key before and after: Delta cannot read changes across a change of columns."""
        now = self.after.stored(scan).withColumn(PRESENT, F.lit(True))
        gone = self.before.keys(scan).join(now.select(*cols(scan.key)), list(scan.key), "left_anti")
        return now.unionByName(gone.withColumn(PRESENT, F.lit(False)), allowMissingColumns=True)

    @cached_property
    def _taken(self) -> dict[str, Taken]:
        """The part of each landing that lies in the span."""
        return {
            name: taken(
                self.before.offsets(name),
                self.after.offsets(name),
                (self.before.inputs[name].version, self.after.inputs[name].version),
                positions.commits(
                    self.after.lakehouse.table(self.after.topology, name), f"{self.after.topology}/{name}"
                ),
            )
            for name in self.after.inputs
            if name.startswith(LANDING)
        }

    @cached_property
    def _changed(self) -> dict[str, list[positions.Changed]]:
        """By input, the commits in the span that changed data, newest first."""
        return {
            name: positions.changed(
                self.after.lakehouse.table(self.after.topology, name),
                f"{self.after.topology}/{name}",
                since=self.before.inputs[name].version,
                until=pinned.version,
            )
            for name, pinned in self.after.inputs.items()
        }


@dataclass(frozen=True)
class Taken:
    """The part of a landing that lies in a span: the number of `records` at most, and whether it changed (`moved`).

    `begun` is the batch that an earlier span read in part, if there is one. `redecoded`: the span has older records
    that were decoded again.
    """

    records: int
    moved: bool
    begun: int | None
    redecoded: bool = False


def taken(since: TopicOffsets, until: TopicOffsets, versions: tuple[int, int], commits: Iterator[Commit]) -> Taken:
    """Return the part of a landing between two offsets; `commits` are those of the landing, newest first."""
    records = sum(max(0, end - since.offsets.get(partition, 0)) for partition, end in until.offsets.items())
    redecoded = since.redecoded < until.redecoded
    if records == 0 and not redecoded:
        return Taken(0, moved=False, begun=None)
    moved, begun = versions[0] != versions[1], None
    for commit in commits:
        [landed] = commit.position.cut.values()
        if not before(since, landed):
            if not before(landed, since):
                begun = None  # the earlier span ended with this batch, between two batches
            break
        begun = commit.position.n
        moved = moved or commit.version == versions[1]
        records += commit.metrics.get("numTargetRowsUpdated", 0)
    return Taken(records, moved, begun, redecoded)


def within(since: Mapping[int, int], until: Mapping[int, int]) -> str:
    """Return a SQL condition: a record of a landing lies between two offsets of its partition."""
    ranges = {p: (since.get(p, 0), end) for p, end in until.items() if since.get(p, 0) < end}
    each = [f"(_partition = {p} AND _offset >= {start} AND _offset < {end})" for p, (start, end) in ranges.items()]
    return " OR ".join(each) or NOTHING


def landed_between(since: TopicOffsets, until: TopicOffsets) -> str:
    """Return a SQL condition: a landing has the record at the cut `until`, and had not at `since`.

    Includes older records that were decoded again in between.
    """
    again = f"{REDECODED} > {since.redecoded} AND ({within({}, since.offsets)})"
    new = within(since.offsets, until.offsets)
    return f"coalesce({REDECODED}, 0) <= {until.redecoded} AND (({new}) OR ({again}))"


@dataclass(frozen=True)
class Nothing:
    """The snapshot of empty inputs, at which the first span of a stored stream begins."""

    after: Pinned

    def stored(self, scan: Scan) -> DataFrame:
        """Return no rows."""
        return self.after.stored(scan).where("false")

    def records(self, scan: Scan) -> DataFrame:
        """Return no records."""
        return self.after.records(scan).where("false")

    def time(self, scan: Scan) -> None:
        """Return None: there is no record."""


@dataclass(frozen=True)
class Beginning:
    """The span from empty inputs to a position: that of a table's first step."""

    after: Pinned
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
    def before(self) -> Nothing:
        """The snapshot of empty inputs."""
        return Nothing(self.after)

    def keep(self, frame: DataFrame) -> DataFrame:
        """Return the frame without caching it: it may be large."""
        return frame

    def is_empty(self, frame: DataFrame) -> bool:  # noqa: ARG002  # the protocol's
        """Return False: no frame is cached."""
        return False

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


def _with_later(frame: DataFrame, node: Node, there: Iterable[str]) -> DataFrame:
    """Return the rows with all columns of a node: null in those not `there`, which their table gained later."""
    known = {name.lower() for name in there}
    later = {column.name: column.type for column in node.columns if column.name.lower() not in known}
    nulls = {name: F.lit(None).cast(kind) if kind else F.lit(None) for name, kind in later.items()}
    return frame.withColumns(nulls) if nulls else frame


def version_of(session: SparkSession, path: str, version: int, plan: Node | None = None) -> DataFrame:
    """Return the rows of a stored table at a version: all its columns, and null in those of `plan` that it lacks."""
    frame = session.read.format("delta").option("versionAsOf", version).load(path)
    return frame if plan is None else _with_later(frame, plan, frame.columns)


def placed(scan: Scan, records: DataFrame) -> DataFrame:
    """Return a stream's records of one span with `_reached`, the time reached, in microseconds since 1970.

    A stored stream has it in its rows since another table first read the stream.
    """
    if scan.landing:
        return with_reached(records)
    return records.withColumn("_reached", F.coalesce(F.col("_reached"), micros()))


def recorded(scan: Scan, feed: DataFrame) -> DataFrame:
    """Return a change feed as records: the scan's columns, and `STREAMED`.

    A deleted row is a record without a value, with the last coordinates of the row.
    """
    deleted = F.col("_change_type") == "delete"
    values = [col(c.name) if c.name in scan.key else F.when(~deleted, col(c.name)).alias(c.name) for c in scan.columns]
    told = feed.where("_change_type <> 'update_preimage'")
    batch = F.col("_commit_version").alias("_batch")
    return with_ordinals(told.select(*values, *cols(OURS), batch, deleted.alias("_deleted")), scan.key)


def inserted() -> Column:
    """Return a condition: the change of a feed has the row after the change, not the one before."""
    return F.col("_change_type").isin("insert", "update_postimage")


def _columns(scan: Scan) -> list[Column]:
    return cols([column.name for column in scan.columns] + list(OURS))
