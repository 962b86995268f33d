"""What the operators read: snapshots by version, spans by change feed. Pinned, so that a replay reads the same."""

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
from spark.operators.order import micros, reached, told_apart
from spark.topology.nodes import LANDING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyspark.sql import Column, DataFrame, SparkSession

    from spark.engine.doors import Lakehouse
    from spark.engine.kept import Kept
    from spark.engine.position import Commit, Cut, Input
    from spark.topology.nodes import Node, Scan

FEW = 50_000  # changed rows that are still sent to every task: some 10 MB of wide rows
START = TopicOffsets("", {})
"""Before the first record of every partition."""
REDECODED = "_redecoded"
"""The column of a landing that says by which count of `TopicOffsets` a record was decoded again; null: never."""
NOTHING = "false"
"""The SQL of a condition that no record meets."""


@dataclass(frozen=True)
class Pinned:
    """Every input at one position: the operators' snapshot."""

    session: SparkSession
    lakehouse: Lakehouse
    topology: str
    inputs: dict[str, Input]
    cut: Cut
    begun: Mapping[str, int] = field(default_factory=dict)
    """By a stored input whose changes are read: the version whose rows stand for all changes until then."""
    known: dict[tuple[str, int], int] = field(default_factory=dict, compare=False, repr=False)
    """By an input and a version of it, the one that is read in its place."""
    columns: dict[tuple[str, int], set[str]] = field(default_factory=dict, compare=False, repr=False)
    """By an input and a version that is read of it, its columns: a feed and two snapshots ask for them."""

    def path(self, scan: Scan) -> str:
        """Where an input is."""
        return self.lakehouse.table(self.topology, scan.table)

    def stored(self, scan: Scan) -> DataFrame:
        """All rows of a stored table; null in columns it gained after this version."""
        return self._stored(scan, self._there(scan))

    def _stored(self, scan: Scan, there: set[str]) -> DataFrame:
        """All rows; `there` are the columns that the table has at this version."""
        frame = _with_later(self._frame(scan), scan, there)
        return frame if scan.appended else frame.select(*_columns(scan))

    def records(self, scan: Scan) -> DataFrame:
        """All records of a stream, or all changes of a stored table since it was created, or last replaced."""
        found = self.appended(scan) if scan.appended else self.changelog(scan)
        return found.withColumn("_reached", F.lit(None).cast("bigint"))

    def appended(self, scan: Scan, since: TopicOffsets = START) -> DataFrame:
        """What was appended. Of a landing, what was decoded, up to the cut, and since an earlier one."""
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
        """How far a landing is read: it may hold more."""
        name = landing.removeprefix(LANDING)
        return next(at for topic, at in self.cut.items() if topic.partition("/")[2] == name)

    def changelog(self, scan: Scan) -> DataFrame:
        """All changes of a stored table; its rows at a version stand for those that were gone, or led nowhere."""
        version, begun = self.inputs[scan.table].version, self.begun.get(scan.table)
        commits = positions.changed(self.path(scan), f"{self.topology}/{scan.table}", since=begun or 0, until=version)
        since = next((commit.version for commit in commits if commit.replaced), begun)
        if since is None:
            return recorded(scan, self.feed(scan, since=0))
        # Delta reads no changes across a change of columns: what replaced the table is where they begin.
        then = replace(self, inputs=self.inputs | {scan.table: replace(self.inputs[scan.table], version=since)})
        rows = then.stored(scan).withColumns({"_batch": F.lit(since).cast("bigint"), "_deleted": F.lit(False)})
        first = told_apart(rows, scan.key)
        return first if since == version else first.unionByName(recorded(scan, self.feed(scan, since + 1)))

    def feed(self, scan: Scan, since: int) -> DataFrame:
        """The change feed of a stored table, from a version on."""
        read = self.session.read.option("readChangeFeed", "true").option("startingVersion", since)
        feed = read.option("endingVersion", self.inputs[scan.table].version).format("delta").load(self.path(scan))
        return _with_later(feed, scan, self._there(scan))

    def keys(self, scan: Scan) -> DataFrame:
        """The keys of a stored table, whatever its other columns were."""
        return self._frame(scan).select(*cols(scan.key))

    def time(self, scan: Scan) -> int | None:
        """The stream time that what is stored had here, which may be ahead of its newest record's."""
        if scan.landing:
            return None
        name, version = f"{self.topology}/{scan.table}", self.inputs[scan.table].version
        return positions.at(self.path(scan), name, version, self.cut).time

    def _frame(self, scan: Scan) -> DataFrame:
        if scan.landing:  # offsets say what was there: old versions of it may be vacuumed
            return self.session.read.format("delta").load(self.path(scan))
        return version_of(self.session, self.path(scan), self._version(scan))

    def _version(self, scan: Scan) -> int:
        at = (scan.table, self.inputs[scan.table].version)
        if at not in self.known:
            self.known[at] = positions.standing(self.path(scan), f"{self.topology}/{scan.table}", at[1])
        return self.known[at]

    def _there(self, scan: Scan) -> set[str]:
        """The columns that an input has there."""
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
    """From one position to a later one: the operators' span. `own` are the table's own rows at the earlier one."""

    before: Pinned
    after: Pinned
    keeps: Kept
    own: DataFrame
    time_before: int | None = None
    time_after: int | None = None
    seen: Mapping[str, int] = field(default_factory=dict)
    apart: tuple[str, ...] = ()

    def at(self, time_before: int | None, time_after: int | None = None, seen: Mapping[str, int] | None = None) -> Self:
        """The same span between two stream times."""
        return replace(self, time_before=time_before, time_after=time_after, seen=seen or {})

    @cached_property
    def is_small(self) -> bool:
        """Whether what changed is little enough to be sent to every task."""
        counts = [
            sum(FEW if commit.rows is None else commit.rows for commit in found)
            for name, found in self._changed.items()
            if not name.startswith(LANDING)
        ]
        return max([*counts, *(taken.records for taken in self._taken.values())], default=0) < FEW

    def keep(self, frame: DataFrame) -> DataFrame:
        """The same rows, computed once if they are few."""
        return self.keeps.keep(frame) if self.is_small else frame

    def is_empty(self, frame: DataFrame) -> bool:
        """Whether a frame that was kept has no rows; false where that would have to be computed."""
        return self.is_small and frame.isEmpty()

    def has_changes(self, scan: Scan) -> bool:
        """Whether the input changed at all across the span."""
        if scan.table in self._taken:
            # What somebody else changed there is no new offset; reading it says so.
            return self._taken[scan.table].moved or any(c.position is None for c in self._changed[scan.table])
        return self.before.inputs[scan.table] != self.after.inputs[scan.table]

    def records(self, scan: Scan) -> DataFrame:
        """The records that a stream gained, or the changes of a stored table, each with the time reached there.

        A stream's are found by their batch, and a landing's by offset: statistics skip the files of older ones.
        """
        if not scan.appended:
            return reached(self._table_records(scan), scan.by_time)
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
        # A rebuild that found nothing wrong is a commit that changed nothing.
        gained = found.where(F.col("_batch") >= min(batches)) if batches else found.where("false")
        return placed(scan, gained)

    def overlapping_records(self, scan: Scan) -> DataFrame | None:
        """The records from before the span that may be newer than some of it; None where there are none.

        They landed together with it, or behind what was decoded again.
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
        """One row for every key that changed: its newest row, or `_present` false."""
        if self._replaced(scan):
            return self._everything(scan)
        feed = self._feed(scan).where("_change_type <> 'update_preimage'").withColumn(PRESENT, inserted())
        columns = [*_columns(scan), F.col(PRESENT)]
        if self._changed_once(scan):
            return feed.select(*columns)
        newer = F.struct("_commit_version", PRESENT)  # a delete and an insert of one commit: the insert stays
        newest = feed.groupBy(*cols(scan.key)).agg(F.max_by(F.struct(*columns), newer).alias("_row"))
        return newest.select("_row.*")

    def previous(self, scan: Scan) -> DataFrame:
        """The rows that were there before, at the keys that changed: the first that the feed says of each."""
        if self._replaced(scan):
            return self.before.stored(scan)
        feed = self._feed(scan).where("_change_type <> 'update_postimage'").withColumn(PRESENT, inserted())
        if self._changed_once(scan):
            return feed.where(f"NOT {PRESENT}").select(*_columns(scan))
        older = F.struct("_commit_version", PRESENT)  # what a commit took away was there before what it put there
        row = F.struct(*_columns(scan), F.col(PRESENT))
        oldest = feed.groupBy(*cols(scan.key)).agg(F.min_by(row, older).alias("_row"))
        return oldest.select("_row.*").where(f"NOT {PRESENT}").drop(PRESENT)

    def _feed(self, scan: Scan) -> DataFrame:
        return self.after.feed(scan, since=self.before.inputs[scan.table].version + 1)

    def _replaced(self, scan: Scan) -> bool:
        """Whether a commit of the span replaced the table, maybe with other columns."""
        return any(commit.replaced for commit in self._changed[scan.table])

    def _changed_once(self, scan: Scan) -> bool:
        """Whether no key changed twice: the span is one MERGE."""
        match self._changed[scan.table]:
            case [positions.Changed(position=Position(whole=False))]:
                return True
        return False

    def _everything(self, scan: Scan) -> DataFrame:
        """Every key before and after. Delta reads no changes across a change of columns."""
        now = self.after.stored(scan).withColumn(PRESENT, F.lit(True))
        gone = self.before.keys(scan).join(now.select(*cols(scan.key)), list(scan.key), "left_anti")
        return now.unionByName(gone.withColumn(PRESENT, F.lit(False)), allowMissingColumns=True)

    @cached_property
    def _taken(self) -> dict[str, Taken]:
        """By landing, what the span takes of it."""
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
    """What a span takes of a landing: at most so many records, and whether any at all.

    `begun` is the batch of which an earlier span took a part, if there is one; `redecoded` says whether older records
    that did not decode are among those taken.
    """

    records: int
    moved: bool
    begun: int | None
    redecoded: bool = False


def taken(since: TopicOffsets, until: TopicOffsets, versions: tuple[int, int], commits: Iterator[Commit]) -> Taken:
    """What lies between two offsets of a landing, by its commits, newest first."""
    records = sum(max(0, end - since.offsets.get(partition, 0)) for partition, end in until.offsets.items())
    redecoded = since.redecoded < until.redecoded
    if records == 0 and not redecoded:
        return Taken(0, moved=False, begun=None)
    moved, begun = versions[0] != versions[1], None
    for commit in commits:
        [landed] = commit.position.cut.values()
        if not before(since, landed):
            if not before(landed, since):
                begun = None  # a batch was taken whole, and the next one not at all
            break
        begun = commit.position.n
        moved = moved or commit.version == versions[1]
        records += commit.metrics.get("numTargetRowsUpdated", 0)
    return Taken(records, moved, begun, redecoded)


def within(since: Mapping[int, int], until: Mapping[int, int]) -> str:
    """Whether a record of a landing lies between two offsets of its partition, as SQL."""
    ranges = {p: (since.get(p, 0), end) for p, end in until.items() if since.get(p, 0) < end}
    each = [f"(_partition = {p} AND _offset >= {start} AND _offset < {end})" for p, (start, end) in ranges.items()]
    return " OR ".join(each) or NOTHING


def landed_between(since: TopicOffsets, until: TopicOffsets) -> str:
    """Whether a record is of a landing behind a later cut and not behind an earlier one, as SQL: also redecoded."""
    again = f"{REDECODED} > {since.redecoded} AND ({within({}, since.offsets)})"
    new = within(since.offsets, until.offsets)
    return f"coalesce({REDECODED}, 0) <= {until.redecoded} AND (({new}) OR ({again}))"


@dataclass(frozen=True)
class Nothing:
    """Every input as if it held nothing yet: where a stored stream's first span begins."""

    after: Pinned

    def stored(self, scan: Scan) -> DataFrame:
        """No rows."""
        return self.after.stored(scan).where("false")

    def records(self, scan: Scan) -> DataFrame:
        """No records."""
        return self.after.records(scan).where("false")

    def time(self, scan: Scan) -> None:
        """Nobody has seen a record."""


@dataclass(frozen=True)
class Beginning:
    """From nothing to a position: the span of a stored stream's first step."""

    after: Pinned
    own: DataFrame
    time_after: int | None = None
    time_before: int | None = None
    is_small: bool = False
    seen: Mapping[str, int] = field(default_factory=dict)
    apart: tuple[str, ...] = ()

    def at(self, time_before: int | None, time_after: int | None = None, seen: Mapping[str, int] | None = None) -> Self:
        """The same span between two stream times."""
        return replace(self, time_before=time_before, time_after=time_after, seen=seen or {})

    @property
    def before(self) -> Nothing:
        """Nothing."""
        return Nothing(self.after)

    def keep(self, frame: DataFrame) -> DataFrame:
        """Computed as often as it is read: it may be much."""
        return frame

    def is_empty(self, frame: DataFrame) -> bool:  # noqa: ARG002  # the protocol's
        """Nobody has counted."""
        return False

    def has_changes(self, scan: Scan) -> bool:  # noqa: ARG002  # the protocol's
        """Everything has."""
        return True

    def changes(self, scan: Scan) -> DataFrame:
        """Every row."""
        return self.after.stored(scan).withColumn(PRESENT, F.lit(True))

    def previous(self, scan: Scan) -> DataFrame:
        """No rows."""
        return self.after.stored(scan).where("false")

    def overlapping_records(self, scan: Scan) -> DataFrame | None:  # noqa: ARG002  # the protocol's
        """Nothing was there before."""
        return None

    def records(self, scan: Scan) -> DataFrame:
        """All records, or all changes, each with the time reached there."""
        if scan.appended:
            return placed(scan, self.after.appended(scan))
        return reached(self.after.changelog(scan), scan.by_time)


def _with_later(frame: DataFrame, node: Node, there: Iterable[str]) -> DataFrame:
    """The rows, null in a node's columns that their table gained after a version that had those that are `there`."""
    known = {name.lower() for name in there}
    later = {column.name: column.type for column in node.columns if column.name.lower() not in known}
    nulls = {name: F.lit(None).cast(kind) if kind else F.lit(None) for name, kind in later.items()}
    return frame.withColumns(nulls) if nulls else frame


def version_of(session: SparkSession, path: str, version: int, plan: Node | None = None) -> DataFrame:
    """A stored table as it was in a version; null in those of a plan's columns that it gained later."""
    frame = session.read.format("delta").option("versionAsOf", version).load(path)
    return frame if plan is None else _with_later(frame, plan, frame.columns)


def placed(scan: Scan, records: DataFrame) -> DataFrame:
    """A stream's records of one span with the time reached there: a stored stream keeps it, once it is followed."""
    if scan.landing:
        return reached(records)
    return records.withColumn("_reached", F.coalesce(F.col("_reached"), micros()))


def recorded(scan: Scan, feed: DataFrame) -> DataFrame:
    """A change feed as a stream's records, with `STREAMED`: a row that went has no value, and its last coordinates."""
    deleted = F.col("_change_type") == "delete"
    values = [col(c.name) if c.name in scan.key else F.when(~deleted, col(c.name)).alias(c.name) for c in scan.columns]
    told = feed.where("_change_type <> 'update_preimage'")
    batch = F.col("_commit_version").alias("_batch")
    return told_apart(told.select(*values, *cols(OURS), batch, deleted.alias("_deleted")), scan.key)


def inserted() -> Column:
    """Whether a change of a feed is a row that is there behind it."""
    return F.col("_change_type").isin("insert", "update_postimage")


def _columns(scan: Scan) -> list[Column]:
    return cols([column.name for column in scan.columns] + list(OURS))
