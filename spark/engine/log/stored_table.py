"""A stored table, and what its log says: its state, its commits, and the versions that changed data."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa  # type: ignore[import-untyped]  # has no types of its own
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from spark.engine.errors import ChangesExpired, FormatUnknown, InputChanged, LogBroken, PositionLost, ReadOnly
from spark.engine.log import delta_log
from spark.engine.log.position import ANCHOR, CLOSED, FORMAT, STORED_FORMAT, Position
from spark.topology.nodes import leader_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from spark.engine.log.delta_log import Entry
    from spark.engine.log.position import Cut
    from spark.engine.ports import Lakehouse

MILLISECOND = 1_000  # microseconds
TRANSACTIONS_EXPIRE = "delta.setTransactionRetentionDuration"  # Delta's default is null: transactions never expire


@dataclass(frozen=True)
class Commit:
    """A version of a table whose commit has a position of ours."""

    version: int
    data_version: int
    """The newest version before our next commit that changed data, whoever wrote it."""
    position: Position
    metrics: dict[str, int]
    """Delta's metrics of the commit."""
    at: int = 0
    """The time of the commit, in milliseconds since 1970."""


@dataclass(frozen=True)
class ChangedVersion:
    """A version that changed data: how many rows (None: unknown), and the position (None: not our commit)."""

    version: int
    rows: int | None
    position: Position | None
    replaced: bool = False
    """The commit replaced all rows, maybe with other columns."""
    replaces_keys: bool = False
    """The commit replaced rows at some keys: its change feed has deletions and insertions, and no updates."""
    written_bytes: float = field(default=math.inf, compare=False)
    """The bytes of the files that the commit added; infinity: unknown. If it replaced rows at some keys, Delta counts
    the whole files that had some of them too."""
    replaced_rows: int = field(default=0, compare=False)
    """How many rows at some keys the commit replaced or deleted; `rows` counts these too."""

    @property
    def read_rows(self) -> int | None:
        """How many rows of the change feed a reader of new rows reads; None: unknown."""
        return self.rows if self.rows is None or not self.only_inserts else self.rows - self.replaced_rows

    @property
    def only_inserts(self) -> bool:
        """Whether every changed key has an insertion in the change feed: its deletions are of replaced rows only."""
        return self.replaces_keys and self.position is not None and self.position.deleted == 0


@dataclass(frozen=True)
class State:
    """The state of a stored table, read from its log."""

    id: str
    version: int
    data_version: int
    position: Position
    properties: dict[str, str]
    metrics: dict[str, int]
    """Delta's metrics of the commit that carries the position."""
    at: int = 0
    """The time of that commit, in milliseconds since 1970."""
    own: int = 0
    """The version of that commit. Later versions were committed by others."""


@dataclass(frozen=True)
class StoredTable:
    """A stored table, or a landing: its name `<topology>/<table>`, and the path of its Delta table.

    `follower` is the topology that opened a table of another topology, and only reads it; None for its own tables.
    Every method reads what is new in the log, without a JVM.
    """

    name: str
    path: str
    follower: str | None = None

    @staticmethod
    def of(lakehouse: Lakehouse, topology: str, table: str) -> StoredTable:
        """Return a table by its name in the plans of a topology: one of its own, a landing, or a leader."""
        if (leader := leader_parts(table)) is None:
            return StoredTable(f"{topology}/{table}", lakehouse.table(topology, table))
        lake, of, name = leader
        path = lakehouse.table(of, name) if lake is None else f"{lake}/{of}/{name}"
        return StoredTable(f"{of}/{name}", path, follower=topology)

    @property
    def dotted_name(self) -> str:
        """The name as the command takes it: `<topology>.<table>`."""
        return self.name.replace("/", ".")

    def check_writable(self) -> None:
        """Check that the topology that opened the table may write it. Every commit checks this first.

        Raises:
            ReadOnly: it is a table of another topology.
        """
        if self.follower is not None:
            raise ReadOnly(
                f"{self.name} is read by {self.follower}, and only its own topology writes it. Nothing was changed"
            )

    def state(self) -> State | None:
        """Return the state of the table; None if it does not exist.

        Raises:
            PositionLost: the table exists, and its log does not say what it was computed from.
            LogBroken: its log cannot be read, or its transactions expire.
            FormatUnknown: a later version of Tidetable wrote it.
        """
        try:
            with delta_log.reading(self.path) as delta:
                self._check_format(delta)
                anchor = self._anchor(delta)
                self._check_transactions(delta)
                version, metadata = delta.version(), delta.metadata()
                fence = delta.transaction_version(anchor.app_id)
        except TableNotFoundError:
            return None
        own_commits = commits_of(delta_log.entries(self.path, version), anchor)
        newest = next(own_commits)
        next(own_commits, None)  # raises for a RESTORE between the two newest commits, which the newest did not see
        position = newest.position
        if fence != position.n and not (fence is None and position.n == 0):
            raise PositionLost(
                f"{self.name}: the newest position in its log is number {position.n}, but {fence} was committed: "
                f"{_remedy(self.name)}"
            )
        return State(
            str(metadata.id),
            version,
            newest.data_version,
            position,
            metadata.configuration,
            newest.metrics,
            newest.at,
            newest.version,
        )

    def version(self) -> int:
        """Return the newest version of the table, whoever committed it."""
        with delta_log.reading(self.path) as delta:
            return delta.version()

    def fence(self, position: Position) -> int | None:
        """Return the greatest number that was committed in the position's epoch; None if there is none."""
        with delta_log.reading(self.path) as delta:
            return delta.transaction_version(position.app_id)

    def columns(self, version: int | None = None) -> set[str]:
        """Return the names of the columns at a version, or at the newest one.

        Raises:
            ChangesExpired: the table no longer has the version.
        """
        with delta_log.reading(self.path) as delta:
            if version in (None, delta.version()):
                return {column.name for column in delta.schema().fields}
        try:
            return {column.name for column in DeltaTable(self.path, version).schema().fields}
        except DeltaError as error:
            raise ChangesExpired(f"{self.name} has no version {version} any more: {error}") from error

    def size(self) -> int:
        """Return how many bytes the files of the newest version have; 0 if there is no table."""
        try:
            return sum(self._files()["size_bytes"].to_pylist())
        except TableNotFoundError:
            return 0

    def row_size(self) -> float:
        """Return how many bytes a row of the newest version has in its files, on average; infinity if it is unknown."""
        files = self._files()
        rows = files["num_records"].to_pylist()
        return sum(files["size_bytes"].to_pylist()) / sum(rows) if any(rows) and None not in rows else math.inf

    def largest_file(self) -> float:
        """Return how many rows the largest file of the newest version has; infinity if it is unknown."""
        rows = self._files()["num_records"].to_pylist()
        return math.inf if None in rows else max(rows, default=0)

    def newest_time(self) -> int | None:
        """Return a time that no row's `_timestamp` has reached, in microseconds since 1970; None if it is unknown.

        Delta keeps the greatest value of a column for every file, without microseconds.
        """
        files = self._files(flatten=True)
        rows = files["num_records"].to_pylist()
        if "max._timestamp" not in files.column_names or None in rows:
            return None
        greatest = files["max._timestamp"].cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_pylist()
        known = [time for time, count in zip(greatest, rows, strict=True) if count]
        return None if None in known else max(known, default=0) + MILLISECOND

    def _files(self, flatten: bool = False) -> pa.Table:
        """Return the files of the newest version, with `size_bytes` and `num_records`; `flatten`: and statistics."""
        with delta_log.reading(self.path) as delta:
            return pa.table(delta.get_add_actions(flatten))

    def properties(self) -> dict[str, str]:
        """Return the table's properties at the newest version."""
        with delta_log.reading(self.path) as delta:
            found: dict[str, str] = delta.metadata().configuration
            return found

    def schema(self) -> str:
        """Return the columns of the newest version as JSON, as Delta and Spark write a schema."""
        with delta_log.reading(self.path) as delta:
            return delta.schema().to_json()

    def salvaged_state(self) -> State:
        """Return a state for a table whose position is lost: number 0 in its last known epoch, with its newest gaps."""
        with delta_log.reading(self.path) as delta:
            version, metadata, epoch = delta.version(), delta.metadata(), self._anchor(delta).epoch
        own = (position for _, position in self._own(version) if position is not None)
        gaps = next((position.gaps for position in own), ())
        lost = Position(self.name, epoch, n=0, run="", cut={}, inputs={}, data_version=version, gaps=gaps)
        return State(str(metadata.id), version, version, lost, metadata.configuration, {})

    def other_open_epochs(self) -> list[Position]:
        """Return a position of every epoch that is not closed, except the table's present one.

        A RESTORE to before an epoch leaves it open; of two concurrent rebuilds, each may have begun an epoch.
        """
        with delta_log.reading(self.path) as delta:
            version, present = delta.version(), self._anchor(delta).app_id
        others = {
            position.app_id: position
            for _, position in self._own(version)
            if position is not None and position.app_id != present
        }
        return [position for position in others.values() if self.fence(position) != CLOSED]

    def commits(self, until: int | None = None) -> Iterator[Commit]:
        """Return the commits of the table's epoch (up to a version), newest first.

        Excludes the anchor, which no step computed, and commits that a restore undid.
        """
        return _not_undone(self.all_commits(), until)

    def all_commits(self) -> Iterator[Commit]:
        """Return the commits of the table's epoch, newest first, including those that a restore undid."""
        with delta_log.reading(self.path) as delta:
            version, anchor = delta.version(), self._anchor(delta)
        entries = delta_log.entries(self.path, version)
        return (commit for commit in commits_of(entries, anchor) if commit.position.n > 0)

    def position_at(self, version: int, cut: Cut) -> Position:
        """Return the newest position whose rows are at most of `version`, and whose cut is part of `cut`.

        Includes closed epochs, and commits that a restore undid.

        Raises:
            ChangesExpired: the log was cleaned up, and no longer has the position.
        """
        for entry, position in self._own(self.version()):
            if position is None or position.n in (0, CLOSED):
                continue
            data_version = position.data_version if entry.changed_rows == 0 else entry.version
            if data_version <= version and position.cut.items() <= cut.items():
                return position
        raise ChangesExpired(
            f"the log of {self.name} was cleaned up, and no longer has what it was computed from at version {version}"
        )

    def positions_by_version(self) -> dict[int, Position | None]:
        """Return, by version that the log has, the position of any epoch in it; None if the commit is not ours."""
        return {entry.version: position for entry, position in self._own(self.version())}

    def changed_versions(self, since: int, until: int) -> list[ChangedVersion]:
        """Return the versions after `since`, up to `until`, that changed data; newest first.

        A commit that only widened columns changed none.

        Raises:
            ChangesExpired: the log was cleaned up, and no longer has some of them.
        """
        return [
            ChangedVersion(
                found.version,
                found.rows,
                found.position,
                found.overwrites,
                found.replaces_keys,
                found.written_bytes,
                found.replaced_rows,
            )
            for found in self._after(since, until)
            if found.rows != 0 and not found.widened
        ]

    def widened_versions(self, since: int, until: int) -> list[int]:
        """Return the versions after `since`, up to `until`, that only widened columns; newest first.

        Raises:
            ChangesExpired: the log was cleaned up, and no longer has some of them.
        """
        return [found.version for found in self._after(since, until) if found.widened]

    def _after(self, since: int, until: int) -> Iterator[_Seen]:
        """Yield the commits after `since`, up to `until`, that may have written rows; newest first."""
        if since >= until:
            return
        first = self._seen(since)
        if first is None and self._seen(since + 1) is None:
            first = self._before_cleanup(since)
        yield from self._not_quiet(first or _Seen(since), until)

    def changing_commits(self) -> Iterator[Commit]:
        """Return those of `all_commits` that may have changed rows; `data_version` is the commit's own version."""
        with delta_log.reading(self.path) as delta:
            version, anchor = delta.version(), self._anchor(delta)
        first = self._seen(0) or _Seen(delta_log.oldest_version(self.path, version) - 1)
        for found in self._not_quiet(first, version):
            entry, position = found.entry, found.position
            if entry is None or position is None or found.rows == 0 or found.widened:
                continue
            if found.is_of(anchor):
                yield Commit(found.version, found.version, position, entry.metrics, entry.at)

    def oldest_commit(self, holds: Callable[[Position], bool]) -> Commit | None:
        """Return the oldest commit of the table's epoch whose position `holds`; None if there is none.

        What holds for a commit must hold for all later ones. It is found by binary search.
        """
        with delta_log.reading(self.path) as delta:
            newest, anchor = delta.version(), self._anchor(delta)

        def holding(version: int) -> _Seen | None:
            """Return our newest commit up to a version, if it holds."""
            for found in map(self._seen, range(version, -1, -1)):
                if found is None or (found.position is not None and found.position.app_id != anchor.app_id):
                    return None
                if found.is_of(anchor):
                    return found if found.position is not None and holds(found.position) else None
            return None

        found, step = holding(newest), 1
        if found is None:
            return None
        while (earlier := holding(found.version - step)) is not None:
            found, step = earlier, 2 * step
        lacks = max(-1, found.version - step)
        while found.version - lacks > 1:
            middle = (lacks + found.version) // 2
            earlier = holding(middle)
            found, lacks = (found, middle) if earlier is None else (earlier, lacks)
        later = next((v for v in range(found.version + 1, newest + 1) if self._is_of(anchor, v)), newest + 1)
        return next(commits_of(delta_log.entries(self.path, later - 1), anchor))

    def commit(self, n: int) -> Commit | None:
        """Return the commit of a number in the table's epoch; None if the log does not have it."""
        found = self.oldest_commit(lambda position: position.n >= n)
        return found if found is not None and found.position.n == n else None

    def _not_quiet(self, first: _Seen, until: int) -> Iterator[_Seen]:
        """Yield the commits after `first`, up to `until`, newest first, without those known to have changed no data.

        The position of a commit has the last version before it that changed data. That covers our own commits; somebody
        else may have committed while it was computed. So commits are skipped only if all of them are ours, which their
        number says. Else the range is halved: a few commits by others between many of ours cost a few reads each.

        Raises:
            ChangesExpired: the log lacks one of them.
        """
        if until <= first.version:
            return
        newest = self._needed(until)
        todo: list[_Seen | tuple[_Seen, _Seen]] = [(first, newest), newest]
        while todo:
            one = todo.pop()
            if isinstance(one, _Seen):
                yield one
                continue
            older, newer = one
            if newer.version - older.version < 2 or newer.is_quiet_since(older):
                continue
            middle = older.version if newer.position is None else newer.position.data_version
            if not older.version < middle < newer.version:
                middle = (older.version + newer.version) // 2
            between = self._needed(middle)
            todo += [(older, between), between, (between, newer)]

    def _seen(self, version: int) -> _Seen | None:
        """Return the commit of a version; None if the log does not have it."""
        entry = delta_log.entry(self.path, version)
        return None if entry is None else _Seen(version, entry, self._position(entry))

    def _is_of(self, anchor: Position, version: int) -> bool:
        found = self._seen(version)
        return found is not None and found.is_of(anchor)

    def _needed(self, version: int) -> _Seen:
        found = self._seen(version)
        if found is None:
            raise ChangesExpired(f"the log of {self.name} was cleaned up, and no longer has version {version}")
        return found

    def _before_cleanup(self, since: int) -> _Seen:
        """Return a place before the oldest commit of the log, which lacks `since` and the version after it.

        Raises:
            ChangesExpired: some version between the two may have changed data.
        """
        newest = self.version()
        oldest = delta_log.oldest_version(self.path, newest)
        # The oldest of our commits in the log has the version before it that last changed data.
        seen = (self._seen(version) for version in range(oldest, newest + 1))
        unchanged = next((one.position.data_version for one in seen if one is not None and one.position), None)
        if unchanged is None or unchanged > since:
            raise ChangesExpired(
                f"the log of {self.name} was cleaned up and begins at version {oldest}: it does not say what changed "
                f"since version {since}"
            )
        return _Seen(oldest - 1)

    def latest_equivalent_version(self, version: int) -> int:
        """Return the newest version with the same rows: a week after a compaction, `version` has no files any more."""
        newest = self.version()
        try:
            later = self.changed_versions(since=version, until=newest)
        except InputChanged:
            return version
        return min((changed.version for changed in later), default=newest + 1) - 1

    def _own(self, newest: int) -> Iterator[tuple[Entry, Position | None]]:
        """Yield every commit from a version down, with its position; None if it is not a commit of ours."""
        return ((entry, self._position(entry)) for entry in delta_log.entries(self.path, newest))

    def _position(self, entry: Entry) -> Position | None:
        """Return the position of a commit; None if it is not a commit of ours to this table."""
        position = Position.from_json(entry.metadata)
        return position if position is not None and position.table == self.name else None

    def _anchor(self, delta: DeltaTable) -> Position:
        anchor = Position.from_json(delta.metadata().configuration.get(ANCHOR))
        if anchor is None or anchor.table != self.name:
            raise PositionLost(
                f"{self.path} is a Delta table that Tidetable did not make for {self.name}; move it away or rename "
                f"{self.name}"
            )
        return anchor

    def _check_format(self, delta: DeltaTable) -> None:
        """Refuse a table that a later version of Tidetable wrote: its positions may have another meaning."""
        stored = int(delta.metadata().configuration.get(STORED_FORMAT, 0))
        if stored > FORMAT:
            raise FormatUnknown(
                f"{self.name} is stored in format {stored}, and this version of Tidetable reads formats up to "
                f"{FORMAT}: a later version wrote it. Install that version, or a later one; nothing was changed"
            )

    def _check_transactions(self, delta: DeltaTable) -> None:
        """Refuse a table whose transactions expire: a run suspended for longer than that would commit a second time."""
        expires = delta.metadata().configuration.get(TRANSACTIONS_EXPIRE)
        if expires is not None:
            raise LogBroken(
                f"{self.name}: {TRANSACTIONS_EXPIRE} is '{expires}', so Delta forgets what was committed longer ago, "
                f"and a run that was suspended for longer would commit it again. No table of Tidetable may have that: "
                f"ALTER TABLE delta.`{self.path}` UNSET TBLPROPERTIES ('{TRANSACTIONS_EXPIRE}')"
            )


@dataclass(frozen=True)
class _Seen:
    """A commit in the log, with its position if it is ours; without an entry a version that the log lacks."""

    version: int
    entry: Entry | None = None
    position: Position | None = None

    @property
    def rows(self) -> int | None:
        """How many rows the commit changed; None: unknown."""
        return None if self.entry is None else self.entry.changed_rows

    @property
    def written_bytes(self) -> float:
        """The bytes of the files that the commit added; infinity: unknown."""
        return math.inf if self.entry is None else delta_log.written_bytes(self.entry.metrics)

    @property
    def widened(self) -> bool:
        """Whether the commit only widened columns."""
        return self.position is not None and self.position.widened

    @property
    def overwrites(self) -> bool:
        """Whether the commit replaced all rows."""
        return self.entry is not None and self.entry.overwrites

    @property
    def replaces_keys(self) -> bool:
        """Whether the commit replaced rows at some keys."""
        return self.entry is not None and self.entry.replaces_keys

    @property
    def replaced_rows(self) -> int:
        """How many rows at some keys the commit replaced or deleted."""
        return 0 if self.entry is None or not self.replaces_keys else self.entry.metrics.get("numDeletedRows", 0)

    def is_of(self, anchor: Position) -> bool:
        """Return whether a step of the anchor's epoch made the commit."""
        return (
            self.position is not None and self.position.app_id == anchor.app_id and self.position.n not in (0, CLOSED)
        )

    def is_quiet_since(self, older: _Seen) -> bool:
        """Return whether no commit between an older one and this one changed data; False if that is not known."""
        was, now = older.position, self.position
        if was is None or now is None or was.app_id != now.app_id or CLOSED in (was.n, now.n):
            return False
        all_ours = now.n - was.n == self.version - older.version
        return all_ours and now.data_version <= older.version


def commits_of(entries: Iterable[Entry], anchor: Position) -> Iterator[Commit]:
    """Yield the commits of the anchor's epoch, newest first, and the anchor itself at the end.

    Raises:
        PositionLost: the log has a Delta RESTORE that is newer than the next commit to yield.
    """
    foreign = 0  # the newest version since our last commit in which somebody else changed data; 0: none
    for entry in entries:
        if entry.operation == "RESTORE":
            raise PositionLost(
                f"{anchor.table} was restored in version {entry.version}, so no position says what it holds: "
                f"{_remedy(anchor.table)}"
            )
        position = Position.from_json(entry.metadata)
        rows = entry.changed_rows
        if position is not None and position.app_id == anchor.app_id and position.n != CLOSED:
            data_version = position.data_version if rows == 0 else entry.version
            yield Commit(entry.version, max(data_version, foreign), position, entry.metrics, entry.at)
            if position.n == 0:
                return
            foreign = 0
        elif rows != 0:
            foreign = max(foreign, entry.version)
    yield Commit(0, max(anchor.data_version, foreign), anchor, {})


def _not_undone(commits: Iterator[Commit], until: int | None) -> Iterator[Commit]:
    """Yield commits (up to a version), newest first, except those that a restore undid."""
    for commit in commits:
        if until is None or commit.version <= until:
            yield commit
            until = commit.position.restored if commit.position.restored is not None else until


def _remedy(table: str) -> str:
    if "/_landing/" in table:
        return f"move the folder {table} of the lake away to land its topic again, then rebuild the tables that read it"
    return f"run `tidetable rebuild {table.replace('/', '.')}`"
