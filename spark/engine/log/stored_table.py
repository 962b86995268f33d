"""A stored table, and what its log says: its state, its commits, and the versions that changed data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from spark.engine.errors import ChangesExpired, FormatUnknown, InputChanged, LogBroken, PositionLost
from spark.engine.log.delta_log import history
from spark.engine.log.position import ANCHOR, CLOSED, FORMAT, STORED_FORMAT, Position

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from spark.engine.log.delta_log import Entry
    from spark.engine.log.position import Cut
    from spark.engine.ports import Lakehouse

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
    replaces: bool = False
    """The commit replaced rows at some keys: its change feed has deletions and insertions, and no updates."""

    @property
    def only_inserts(self) -> bool:
        """Whether every changed key has an insertion in the change feed: its deletions are of replaced rows only."""
        return self.replaces and self.position is not None and self.position.deleted == 0


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

    Every method reads the log again, without a JVM.
    """

    name: str
    path: str

    @staticmethod
    def of(lakehouse: Lakehouse, topology: str, table: str) -> StoredTable:
        """Return a table of a topology, or a landing by its name `_landing/<topic>`."""
        return StoredTable(f"{topology}/{table}", lakehouse.table(topology, table))

    @property
    def dotted_name(self) -> str:
        """The name as the command takes it: `<topology>.<table>`."""
        return self.name.replace("/", ".")

    def state(self) -> State | None:
        """Return the state of the table; None if it does not exist.

        Raises:
            PositionLost: the table exists, and its log does not say what it was computed from.
            LogBroken: its log cannot be read, or its transactions expire.
            FormatUnknown: a later version of Tidetable wrote it.
        """
        try:
            delta, entries = history(self.path)
        except TableNotFoundError:
            return None
        self._check_format(delta)
        anchor = self._anchor(delta)
        self._check_transactions(delta)
        own_commits = commits_of(entries, anchor)
        newest = next(own_commits)
        next(own_commits, None)  # raises for a RESTORE between the two newest commits, which the newest did not see
        position = newest.position
        fence = delta.transaction_version(anchor.app_id)
        if fence != position.n and not (fence is None and position.n == 0):
            raise PositionLost(
                f"{self.name}: the newest position in its log is number {position.n}, but {fence} was committed: "
                f"{_remedy(self.name)}"
            )
        state = _state(delta, newest.data_version, position, newest.metrics)
        return replace(state, at=newest.at, own=newest.version)

    def version(self) -> int:
        """Return the newest version of the table, whoever committed it."""
        return DeltaTable(self.path).version()

    def fence(self, position: Position) -> int | None:
        """Return the greatest number that was committed in the position's epoch; None if there is none."""
        return DeltaTable(self.path).transaction_version(position.app_id)

    def salvaged_state(self) -> State:
        """Return a state for a table whose position is lost: number 0 in its last known epoch, with its newest gaps."""
        delta, entries = history(self.path)
        epoch = self._anchor(delta).epoch
        own = (position for _, position in self._own(entries) if position is not None)
        gaps = next((position.gaps for position in own), ())
        lost = Position(self.name, epoch, n=0, run="", cut={}, inputs={}, data_version=delta.version(), gaps=gaps)
        return _state(delta, delta.version(), lost, {})

    def other_open_epochs(self) -> list[Position]:
        """Return a position of every epoch that is not closed, except the table's present one.

        A RESTORE to before an epoch leaves it open; of two concurrent rebuilds, each may have begun an epoch.
        """
        delta, entries = history(self.path)
        present = self._anchor(delta).app_id
        own = [position for _, position in self._own(entries) if position is not None]
        others = {position.app_id: position for position in own if position.app_id != present}
        return [position for position in others.values() if delta.transaction_version(position.app_id) != CLOSED]

    def commits(self, until: int | None = None) -> Iterator[Commit]:
        """Return the commits of the table's epoch (up to a version), newest first.

        Excludes the anchor, which no step computed, and commits that a restore undid.
        """
        return _not_undone(self.all_commits(), until)

    def all_commits(self) -> Iterator[Commit]:
        """Return the commits of the table's epoch, newest first, including those that a restore undid."""
        delta, entries = history(self.path)
        return (commit for commit in commits_of(entries, self._anchor(delta)) if commit.position.n > 0)

    def position_at(self, version: int, cut: Cut) -> Position:
        """Return the newest position whose rows are at most of `version`, and whose cut is part of `cut`.

        Includes closed epochs, and commits that a restore undid.

        Raises:
            ChangesExpired: the log was cleaned up, and no longer has the position.
        """
        for entry, position in self._own(history(self.path)[1]):
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
        return {entry.version: position for entry, position in self._own(history(self.path)[1])}

    def changed_versions(self, since: int, until: int) -> list[ChangedVersion]:
        """Return the versions after `since`, up to `until`, that changed data; newest first.

        Raises:
            ChangesExpired: the log was cleaned up, and no longer has some of them.
        """
        found = []
        oldest, unchanged = until + 1, None
        for entry, position in self._own(history(self.path)[1]):
            oldest = entry.version
            if entry.version <= since:
                break
            rows = entry.changed_rows
            unchanged = unchanged if position is None else position.data_version
            if entry.version <= until and rows != 0:
                found.append(ChangedVersion(entry.version, rows, position, entry.overwrites, entry.replaces))
        # The oldest of our commits in the log has the version before it that last changed data.
        if oldest > since + 1 and (unchanged is None or unchanged > since):
            raise ChangesExpired(
                f"the log of {self.name} was cleaned up and begins at version {oldest}: it does not say what changed "
                f"since version {since}"
            )
        return found

    def latest_equivalent_version(self, version: int) -> int:
        """Return the newest version with the same rows: a week after a compaction, `version` has no files any more."""
        newest = self.version()
        try:
            later = self.changed_versions(since=version, until=newest)
        except InputChanged:
            return version
        return min((changed.version for changed in later), default=newest + 1) - 1

    def _own(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, Position | None]]:
        """Yield every commit with its position; None if it is not a commit of ours to this table."""
        for entry in entries:
            position = Position.from_json(entry.metadata)
            yield entry, position if position is not None and position.table == self.name else None

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


def _state(delta: DeltaTable, data_version: int, position: Position, metrics: dict[str, int]) -> State:
    metadata = delta.metadata()
    return State(str(metadata.id), delta.version(), data_version, position, metadata.configuration, metrics)


def _remedy(table: str) -> str:
    if "/_landing/" in table:
        return f"move the folder {table} of the lake away to land its topic again, then rebuild the tables that read it"
    return f"run `tidetable rebuild {table.replace('/', '.')}`"
