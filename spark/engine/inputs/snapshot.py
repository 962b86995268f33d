"""The snapshots that the operators read: every input at one position. They are pinned: a replay reads the same."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from spark.engine.log.stored_table import StoredTable
from spark.engine.offsets import TopicOffsets
from spark.operators.algebra import OURS, col, cols
from spark.operators.order import micros, with_ordinals, with_reached
from spark.topology.nodes import LANDING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import Column, SparkSession

    from spark.engine.log.position import Cut, Input
    from spark.engine.ports import Lakehouse
    from spark.topology.nodes import Node, Scan

START = TopicOffsets("", {})
"""The offsets before the first record of every partition."""
REDECODED = "_redecoded"
"""The column of a landing with `TopicOffsets.redecoded` as of when the record was decoded again; null: never."""
CONDITIONS = 16  # partitions that have a condition each in `within`, at most
ACROSS_TYPES = "spark.databricks.delta.changeDataFeed.unsafeBatchReadOnIncompatibleSchemaChanges.enabled"
"""The setting by which Delta reads changes across a change of types. Ours only become wider, without other changes."""
NO_RECORD = "false"
"""A SQL condition that no record meets."""


@dataclass(frozen=True)
class DeltaSnapshot:
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

    def table(self, name: str) -> StoredTable:
        """Return a stored input."""
        return StoredTable.of(self.lakehouse, self.topology, name)

    def size(self) -> int:
        """Return how many bytes the files of all inputs have, at their newest versions."""
        return sum(self.table(name).size() for name in self.inputs)

    def stored(self, scan: Scan) -> DataFrame:
        """Return all rows of a stored table: the scan's columns and `OURS`; null in columns it gained later.

        A stored stream has all its stored columns.
        """
        return self._stored(scan, self._present(scan))

    def _stored(self, scan: Scan, present: set[str]) -> DataFrame:
        """Return all rows; `present` are the columns that the table has at this version."""
        frame = _with_later(self._frame(scan), scan, present)
        return frame if scan.appended else frame.select(*columns_of(scan))

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
        present = self._present(scan)
        frame = self._stored(scan, present)
        if not scan.landing:
            return frame
        records = frame.where("_error IS NULL")
        if REDECODED in present:
            records = records.where(landed_between(since, self.offsets(scan.table))).drop(REDECODED)
        else:
            records = records.where(within(since.offsets, self.offsets(scan.table).offsets))
        return records.withColumn("_ordinal", F.lit(0).cast("bigint"))

    def offsets(self, landing: str) -> TopicOffsets:
        """Return the offsets up to which a landing is read; it may hold records beyond them."""
        name = landing.removeprefix(LANDING)
        found = [topic for topic in self.cut if topic.partition("/")[2] == name]
        if len(found) > 1 and (state := self.table(landing).state()) is not None:  # a leader has one of another cluster
            found = [*state.position.cut]
        return self.cut[found[0]]

    def changelog(self, scan: Scan) -> DataFrame:
        """Return all changes of a stored table as records: the scan's columns, and `STREAMED`.

        Its rows at a version replace the earlier changes, if those have expired, or a commit replaced the table since.

        Raises:
            ChangesExpired: the log no longer has the commits that changed the table.
        """
        version, begun = self.inputs[scan.table].version, self.begun.get(scan.table)
        changed = self.table(scan.table).changed_versions(since=begun or 0, until=version)
        since = next((commit.version for commit in changed if commit.replaced), begun)
        replaces_keys = any(commit.replaces_keys for commit in changed)
        if since is None:
            return recorded(scan, self.feed(scan, since=0), replaces_keys)
        # Delta cannot read changes across a change of columns, so they begin with the commit that replaced the table.
        then = replace(self, inputs=self.inputs | {scan.table: replace(self.inputs[scan.table], version=since)})
        rows = then.stored(scan).withColumns({"_batch": F.lit(since).cast("bigint"), "_deleted": F.lit(False)})
        first = with_ordinals(rows, scan.key)
        return (
            first if since == version else first.unionByName(recorded(scan, self.feed(scan, since + 1), replaces_keys))
        )

    def feed(self, scan: Scan, since: int) -> DataFrame:
        """Return the change feed of a stored table from version `since` up to the pin, with Delta's columns.

        Commits that only widened columns are left out; the changes before them have the wider types too.
        """
        stored, until = self.table(scan.table), self.inputs[scan.table].version
        changes = feed(self.session, stored, since, until)
        return _with_later(changes, scan, self._present(scan))

    def keys(self, scan: Scan) -> DataFrame:
        """Return the key columns of all rows of a stored table; its other columns may differ from the scan's."""
        return self._frame(scan).select(*cols(scan.key))

    def time(self, scan: Scan) -> int | None:
        """Return the stream time of a stored table, in microseconds since 1970; None for a landing.

        It may exceed the timestamp of its newest record.
        """
        if scan.landing:
            return None
        return self.table(scan.table).position_at(self.inputs[scan.table].version, self.cut).time

    def _frame(self, scan: Scan) -> DataFrame:
        if scan.landing:  # it is read by offsets: the files of old versions may be vacuumed
            return self.session.read.format("delta").load(self.table(scan.table).path)
        return version_of(self.session, self.table(scan.table).path, self._version(scan))

    def _version(self, scan: Scan) -> int:
        at = (scan.table, self.inputs[scan.table].version)
        if at not in self.known:
            self.known[at] = self.table(scan.table).latest_equivalent_version(at[1])
        return self.known[at]

    def _present(self, scan: Scan) -> set[str]:
        """Return the columns that an input has at its pin."""
        if scan.landing:  # it may gain columns at any moment
            return self.table(scan.table).columns()
        version = self._version(scan)
        if (scan.table, version) not in self.columns:
            self.columns[scan.table, version] = self.table(scan.table).columns(version)
        return self.columns[scan.table, version]


def feed(session: SparkSession, table: StoredTable, since: int, until: int) -> DataFrame:
    """Return the change feed of a stored table from version `since` up to `until`, with Delta's columns.

    Commits that only widened columns are left out; the changes before them have the wider types too.

    Raises:
        ChangesExpired: the log no longer has some of the versions.
    """
    widened = table.widened_versions(since - 1, table.version())
    if widened:  # Delta refuses to read changes across other types, although Parquet's reader gives the wider ones
        session.conf.set(ACROSS_TYPES, "true")

    def between(first: int, last: int) -> DataFrame:
        read = session.read.option("readChangeFeed", "true").option("startingVersion", first)
        return read.option("endingVersion", last).format("delta").load(table.path)

    left_out = sorted(version for version in widened if version <= until)
    begins = [since, *(version + 1 for version in left_out)]
    ends = [*(version - 1 for version in left_out), until]
    parts = [between(first, last) for first, last in zip(begins, ends, strict=True) if first <= last]
    return reduce(DataFrame.unionByName, parts) if parts else between(until, until).where("false")


@dataclass(frozen=True)
class EmptySnapshot:
    """The snapshot of empty inputs, at which the first span of a table begins."""

    after: DeltaSnapshot

    def stored(self, scan: Scan) -> DataFrame:
        """Return no rows."""
        return self.after.stored(scan).where("false")

    def records(self, scan: Scan) -> DataFrame:
        """Return no records."""
        return self.after.records(scan).where("false")

    def time(self, scan: Scan) -> None:
        """Return None: there is no record."""


def within(since: Mapping[int, int], until: Mapping[int, int]) -> str:
    """Return a SQL condition: a record of a landing lies between two offsets of its partition."""
    ranges = {p: (since.get(p, 0), end) for p, end in until.items() if since.get(p, 0) < end}
    if len(ranges) > CONDITIONS:  # arrays by partition: every row would be compared with every partition
        starts, ends = zip(*(ranges.get(p, (0, 0)) for p in range(max(ranges) + 1)), strict=True)
        least, most = min(start for start, _ in ranges.values()), max(ends)
        between = f"_offset >= {_at_partition(starts)} AND _offset < {_at_partition(ends)}"
        return f"_offset >= {least} AND _offset < {most} AND {between}"  # files are skipped by the numbers alone
    each = [f"(_partition = {p} AND _offset >= {start} AND _offset < {end})" for p, (start, end) in ranges.items()]
    return " OR ".join(each) or NO_RECORD


def _at_partition(numbers: Iterable[int]) -> str:
    return f"get(array({', '.join(f'{number}L' for number in numbers)}), _partition)"


def landed_between(since: TopicOffsets, until: TopicOffsets) -> str:
    """Return a SQL condition: a landing has the record at the cut `until`, and had not at `since`.

    Includes older records that were decoded again in between.
    """
    again = f"{REDECODED} > {since.redecoded} AND ({within({}, since.offsets)})"
    new = within(since.offsets, until.offsets)
    return f"coalesce({REDECODED}, 0) <= {until.redecoded} AND (({new}) OR ({again}))"


def _with_later(frame: DataFrame, node: Node, present: Iterable[str]) -> DataFrame:
    """Return the rows with all columns of a node: null in those not `present`, which their table gained later."""
    known = {name.lower() for name in present}
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


def recorded(scan: Scan, feed: DataFrame, replaces_keys: bool) -> DataFrame:
    """Return a change feed as records: the scan's columns, and `STREAMED`.

    A deleted row is a record without a value, with the last coordinates of the row. A row that a commit replaced, by a
    deletion and an insertion, is one record; `replaces_keys`: the feed has such rows.
    """
    deleted = F.col("_change_type") == "delete"
    values = [col(c.name) if c.name in scan.key else F.when(~deleted, col(c.name)).alias(c.name) for c in scan.columns]
    changes = feed.where("_change_type <> 'update_preimage'")
    if replaces_keys:
        is_replaced = F.max(inserted()).over(Window.partitionBy("_commit_version", *cols(scan.key)))
        changes = changes.withColumn("_replaced", is_replaced).where(~deleted | ~F.col("_replaced"))
    batch = F.col("_commit_version").alias("_batch")
    return with_ordinals(changes.select(*values, *cols(OURS), batch, deleted.alias("_deleted")), scan.key)


def inserted() -> Column:
    """Return a condition: the change of a feed has the row after the change, not the one before."""
    return F.col("_change_type").isin("insert", "update_postimage")


def columns_of(scan: Scan) -> list[Column]:
    """Return the scan's columns, and `OURS`."""
    return cols([column.name for column in scan.columns] + list(OURS))
