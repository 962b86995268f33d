"""The history of a key: what each commit of the log made of its row."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # has no types of its own

from spark.engine.errors import ChangesExpired
from spark.engine.log import delta_log
from spark.query import deadline
from spark.query.deletion_vectors import deleted_rows
from spark.query.errors import VersionGone
from spark.query.positions import by_topic
from spark.query.rows import Rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from spark.engine.log.stored_table import StoredTable
    from spark.query.conditions import Condition
    from spark.query.deletion_vectors import Numbers
    from spark.query.files import Files
    from spark.query.rows import Row


@dataclass(frozen=True)
class Change:
    """A commit that changed the row of a key.

    `at` is the time of the commit, `cut` the next offset of each topic and partition of the state that it committed
    (None if the commit is not ours), and `row` the row after it (None: it was deleted).
    """

    version: int
    at: dt.datetime
    cut: dict[str, dict[int, int]] | None
    row: Row | None


@dataclass(frozen=True)
class History:
    """The changes of a key, oldest first. `since` is the oldest version whose change is known: 0 is all of them."""

    changes: tuple[Change, ...]
    since: int

    def __len__(self) -> int:
        return len(self.changes)

    def __iter__(self) -> Iterator[Change]:
        return iter(self.changes)

    def __getitem__(self, place: int) -> Change:
        return self.changes[place]


def history(table: StoredTable, files: Files, condition: Condition, columns: Sequence[str]) -> History:
    """Return the changes of the key that a condition names, up to the version of some files."""
    newest = files.version
    oldest = delta_log.oldest_version(table.path, newest)
    try:
        versions = table.changed_versions(since=oldest - 1, until=newest)
    except ChangesExpired:  # the log was cleaned up at this moment
        oldest = delta_log.oldest_version(table.path, newest)
        versions = table.changed_versions(since=oldest - 1, until=newest)
    commits, found, since = _Commits(files, condition, columns), [], oldest
    for one in versions:
        deadline.check(table.dotted_name)
        try:
            after = commits.row(one.version, "add")
            # A commit that replaced all rows may have changed the columns: the rows before it are not compared.
            before = None if one.replaced else commits.row(one.version, "remove")
        except (FileNotFoundError, VersionGone):
            since = one.version + 1
            break
        if before != after:
            entry = delta_log.entry(table.path, one.version)
            at = dt.datetime.fromtimestamp((entry.at if entry is not None else 0) / 1000, dt.UTC)
            cut = None if one.position is None else by_topic(one.position.cut)
            found.append(Change(one.version, at, cut, after))
        if one.replaced:
            since = one.version
            break
    return History(tuple(reversed(found)), since)


@dataclass
class _Commits:
    """Reads the row of a key in what a commit did, from the commit alone.

    A file whose deletion vector changes is removed with the old vector and added with the new one. So the row before a
    commit is in the files that it removed, and the row after it in those that it added. Files are searched once.
    """

    files: Files
    condition: Condition
    columns: Sequence[str]
    searched: dict[str, tuple[Numbers, pa.Table]] = field(default_factory=dict)

    def row(self, version: int, side: str) -> Row | None:
        """Return the row in the files that a commit removed ("remove") or added ("add").

        Raises:
            FileNotFoundError: the log no longer has the commit, or a deletion vector of it was removed.
            VersionGone: a data file of it was removed.
        """
        actions = delta_log.actions(self.files.root, version)
        if actions is None:
            raise FileNotFoundError(f"version {version}")
        rows = (self._in_file(action[side]) for action in actions if side in action)
        return next((row for row in rows if row is not None), None)

    def _in_file(self, action: Mapping[str, Any]) -> Row | None:
        name = action["path"]
        if name not in self.searched:
            self.searched[name] = self.files.places(name, self.condition, self.columns)
        numbers, rows = self.searched[name]
        if len(numbers) == 0:
            return None
        deleted = deleted_rows(action.get("deletionVector"), self.files.bytes_of)
        alive = np.flatnonzero(~np.isin(numbers, deleted))
        return Rows(rows.take(pa.array(alive)))[0] if len(alive) else None
