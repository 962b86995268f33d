"""A stored table at one version: rows by key, by range, by window, and the history of a key."""

from __future__ import annotations

import datetime as dt
import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # has no types of its own
import pyarrow.compute as pc  # type: ignore[import-untyped]  # as above
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from spark.engine.errors import LogBroken
from spark.engine.log import delta_log
from spark.engine.log.position import CLOSED, Position
from spark.engine.log.stored_table import StoredTable
from spark.query.conditions import All, Among, Between, Everything, Except, StartsWith
from spark.query.errors import (
    LayoutUnknown,
    NameUnknown,
    NotCovered,
    NotWhole,
    QueryError,
    QueryUnsupported,
    VersionGone,
)
from spark.query.files import Files
from spark.query.history import History, history
from spark.query.keys import BOUNDS, COORDINATES, Key, key_of, plan_of
from spark.query.positions import by_topic, exceeds, missing, offsets_of
from spark.query.rows import Rows, ordered
from spark.topology.errors import did_you_mean
from spark.topology.nodes import Latest, Records

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from spark.engine.log.position import Cut
    from spark.engine.log.stored_table import State
    from spark.query.conditions import Condition
    from spark.query.files import FileCache
    from spark.query.positions import Offsets, Produced
    from spark.query.rows import Row
    from spark.topology.nodes import Node
    from spark.topology.topology import Topology

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
MAPPED = "delta.columnMapping.mode"
TIMEOUT = 30.0
"""Seconds that a query waits for `at_least` by default: a tick takes seconds."""
FIRST_PAUSE, LONGEST_PAUSE = 0.01, 0.25  # seconds between two looks at the log while a query waits
VERSIONS = 4  # older versions of a table that a reader keeps open: what pages of an answer and snapshots are read at
TRIES = 5  # reads of the newest version before it is opened by itself, if a writer commits between each two looks


@dataclass(frozen=True)
class Pinned:
    """A version of a table: its files, key and plan, and the cut that it was computed to."""

    id: str
    files: Files
    key: Key
    plan: Node
    cut: Cut
    version: int


@dataclass
class Resident:
    """What a `Reader` keeps of a table: the newest version that it read, and a few older ones. Threads share it."""

    newest: Pinned | None = None
    older: OrderedDict[int, Pinned] = field(default_factory=OrderedDict)
    lock: Lock = field(default_factory=Lock)

    def with_files_of(self, version: int) -> Pinned | None:
        """Return a version that was read from the files of a version; None if it is not kept."""
        with self.lock:
            if self.newest is not None and self.newest.files.version == version:
                return self.newest
            if version in self.older:
                self.older.move_to_end(version)
            return self.older.get(version)

    def keep(self, older: Pinned) -> None:
        """Keep an older version instead of the one that was asked for longest ago."""
        with self.lock:
            self._keep(older)

    def move(self, newest: Pinned) -> None:
        """Keep the newest version. The caller has the lock."""
        if self.newest is not None and self.newest.id != newest.id:  # the table was removed and created again
            self.older.clear()
        elif self.newest is not None:
            self._keep(self.newest)
        self.newest = newest

    def _keep(self, older: Pinned) -> None:
        if self.newest is not None and self.newest.id == older.id:
            self.older[older.files.version] = older
            while len(self.older) > VERSIONS:
                self.older.popitem(last=False)


class TableReader:
    """A stored table, pinned to a version.

    Every query reads that version, whatever is committed meanwhile, until `refresh` moves the reader on. A reader that
    `as_of_version` and its like return, and one of a snapshot, stays at its version. Threads may share a reader.
    A row is a dict of the key and the columns of the table; with `metadata=True` it also has `_timestamp`, `_topic`,
    `_partition` and `_offset`; `columns` names the columns to return, key columns included.
    """

    def __init__(
        self,
        table: StoredTable,
        cache: FileCache,
        topology: Topology | None,
        resident: Resident,
        pinned: Pinned,
        follows: bool = True,
    ) -> None:
        self._table, self._cache, self._topology = table, cache, topology
        self._resident, self._pinned, self._follows = resident, pinned, follows

    # What is read.

    @property
    def name(self) -> str:
        """The name, `topology.table`."""
        return self._table.dotted_name

    @property
    def version(self) -> int:
        """The version that queries read."""
        return self._pinned.version

    @property
    def cut(self) -> dict[str, dict[int, int]]:
        """By topic and partition, the next offset: the version was computed from all records before it."""
        return by_topic(self._pinned.cut)

    @property
    def key(self) -> tuple[str, ...]:
        """The names of the key columns."""
        return self._pinned.key.names

    @property
    def schema(self) -> pa.Schema:
        """The columns that a query returns by default, with their Arrow types: the key, then the others."""
        return self._schema(self._pinned, None, metadata=False)

    def __repr__(self) -> str:
        return f"<{self.name} at version {self.version}>"

    def refresh(
        self, at_least: Offsets | Produced | Iterable[Produced] | None = None, timeout: float = TIMEOUT
    ) -> bool:
        """Move on to the newest version; return whether it is another one.

        With `at_least`, wait until the table covers these offsets, or these produced records, for `timeout` seconds.

        Raises:
            NotCovered: it did not in time; the message names what is missing.
            QueryError: the reader stays at its version.
        """
        if not self._follows:
            raise QueryError(f"{self!r} was asked for as of this version; ask the Reader for the table to move on")
        was = self._pinned
        self._pinned = newest(self._table, self._cache, self._topology, self._resident, at_least, timeout)
        return (self._pinned.id, self._pinned.version) != (was.id, was.version)

    def as_of_version(self, version: int) -> TableReader:
        """Return a reader of a version of the table.

        Raises:
            VersionGone: there is no such version, or not any more.
            QueryError: it is no number.
        """
        if type(version) is not int:
            raise QueryError(f"{self.name}: {version!r} is no version; pass its number, such as {self.version}")
        return self._at(version)

    def as_of_timestamp(self, when: dt.datetime) -> TableReader:
        """Return a reader of the newest version that was committed up to a time.

        Raises:
            VersionGone: the log begins later.
            QueryError: it is no time, or has no time zone.
        """
        if not isinstance(when, dt.datetime):
            raise QueryError(f"{self.name}: {when!r} is no datetime; pass one with a time zone")
        if when.tzinfo is None:
            raise QueryError(f"{self.name}: {when} has no time zone; pass, for example, tzinfo=datetime.UTC")
        newest_version = self._table.version()
        oldest = delta_log.oldest_version(self._table.path, newest_version)
        milliseconds = (when - EPOCH) // dt.timedelta(milliseconds=1)
        at = bisect_right(range(oldest, newest_version + 1), milliseconds, key=self._committed_at)
        if at == 0:
            raise VersionGone(f"{self.name}: the log begins with version {oldest}, which is younger than {when}")
        return self._at(oldest + at - 1)

    def as_of_cut(self, cut: Offsets) -> TableReader:
        """Return a reader of the newest version without records beyond a cut: by topic and partition the next offset.

        Raises:
            VersionGone: every version that the log has was computed from later records.
            NotCovered: the table is not computed from a topic of the cut.
        """
        missing(self.name, self._pinned.cut, cut)  # raises for other topics
        beyond = self._table.oldest_commit(lambda position: exceeds(position.cut, cut))
        version = self._table.version() if beyond is None else beyond.version - 1
        try:
            while exceeds(position_at(self._table, version).cut, cut):  # a restore went back to an older cut in between
                version -= 1
        except (NotWhole, VersionGone) as error:
            if beyond is None:
                raise
            raise VersionGone(
                f"{self.name} has no version without records beyond the cut {dict(cut)}: version {beyond.version}, its "
                f"oldest, has the cut {by_topic(beyond.position.cut)}"
            ) from error
        return self._at(version)

    def parsed(self, texts: Sequence[str]) -> tuple[object, ...]:
        """Return the values of the first key columns that texts have, such as arguments of a command.

        Raises:
            KeyRefused: a text has no value of its column's type.
        """
        return self._pinned.key.parsed(tuple(texts))

    def key_of_json(self, value: object) -> tuple[object, ...]:
        """Return the values of the first key columns that a value of JSON has: one, a list, or an object by name.

        A column that JSON has no type for, such as a decimal or a time, is text.

        Raises:
            KeyRefused: a value has another type, or there are too many.
        """
        return self._pinned.key.of_json(value)

    def key_texts(self, row: Row) -> tuple[str, ...]:
        """Return the key of a row as the texts that `parsed` takes. The row has all key columns."""
        return self._pinned.key.texts(row)

    # Queries by key.

    def get(self, key: object, columns: Sequence[str] | None = None, metadata: bool = False) -> Row | None:
        """Return the row of a key; None if there is none. `key` is a tuple or a dict if it has several columns.

        Raises:
            KeyRefused: the key has another type.
            NameUnknown: the table has no such column.
        """
        pinned = self._pinned
        values = pinned.key.whole(key)
        found = self._rows(pinned, Between(pinned.key.names, values, values), columns, metadata)
        return found[0] if len(found) else None

    def get_many(
        self,
        keys: Iterable[object],
        columns: Sequence[str] | None = None,
        metadata: bool = False,
        *,
        limit: int | None = None,
        after: object = None,
    ) -> Rows:
        """Return the rows of some keys, in the order of the key; those without a row are left out.

        `limit` and `after` are those of `range`.

        Raises:
            KeyRefused: a key has another type.
            QueryError: the keys are not in a list.
        """
        if isinstance(keys, str | bytes) or not isinstance(keys, Iterable):
            raise QueryError(f"{self.name}: {keys!r} is one key; pass a list, or call get()")
        pinned = self._pinned
        values = [pinned.key.whole(key) for key in keys]
        lists = zip(*values, strict=True) if values else [() for _ in pinned.key.fields]
        arrays = [
            pa.array([value.as_py() for value in one], field.type)
            for one, field in zip(lists, pinned.key.fields, strict=True)
        ]
        asked = pa.table(arrays, names=list(pinned.key.names))
        return self._rows(pinned, Among(asked), columns, metadata, False, limit, after)

    def range(
        self,
        low: object = None,
        high: object = None,
        *,
        reverse: bool = False,
        limit: int | None = None,
        after: object = None,
        columns: Sequence[str] | None = None,
        metadata: bool = False,
    ) -> Rows:
        """Return the rows from one key to another, both inclusive, in the order of the key; None is no bound.

        A bound of a key of several columns may have the first ones only: it includes all keys that begin with them.
        `limit` is the greatest number of rows. `after` is a whole key: rows up to it, in the order of the answer, are
        left out, so that the last key of one answer begins the next one.

        Raises:
            KeyRefused: a bound has another type.
            QueryUnsupported: the key has no order, and there is `after`.
        """
        pinned = self._pinned
        bounds = [None if bound is None else pinned.key.leading(bound) for bound in (low, high)]
        condition = Between(pinned.key.names, *bounds)
        return self._rows(pinned, condition, columns, metadata, reverse, limit, after)

    def prefix(
        self,
        start: object,
        *,
        reverse: bool = False,
        limit: int | None = None,
        after: object = None,
        columns: Sequence[str] | None = None,
        metadata: bool = False,
    ) -> Rows:
        """Return the rows whose key begins with something: text in a key of text, else values of the first columns.

        `("DE",)` is the whole of the first column, `"DE"` the beginning of its text.
        """
        pinned = self._pinned
        first = pinned.key.fields[0]
        if isinstance(start, str) and pa.types.is_string(first.type):
            return self._rows(pinned, StartsWith(first.name, start), columns, metadata, reverse, limit, after)
        values = pinned.key.leading(start)
        return self._rows(pinned, Between(pinned.key.names, values, values), columns, metadata, reverse, limit, after)

    def all(
        self,
        *,
        reverse: bool = False,
        limit: int | None = None,
        after: object = None,
        columns: Sequence[str] | None = None,
        metadata: bool = False,
    ) -> Rows:
        """Return all rows, in the order of the key. `limit` and `after` are those of `range`."""
        return self._rows(self._pinned, Everything(), columns, metadata, reverse, limit, after)

    def count(self) -> int:
        """Return the number of rows, from the log alone."""
        return self._pinned.files.count()

    def history(self, key: object, columns: Sequence[str] | None = None, metadata: bool = False) -> History:
        """Return what each commit made of the row of a key, up to the version of this reader, oldest first.

        It reaches back as far as the table has its log and its files: `since` says to which version.
        """
        pinned = self._pinned
        values = pinned.key.whole(key)
        names = self._schema(pinned, columns, metadata).names
        return history(self._table, pinned.files, Between(pinned.key.names, values, values), names)

    # Windows, sessions, versions.

    def windows(
        self,
        key: object = None,
        since: dt.datetime | None = None,
        until: dt.datetime | None = None,
        *,
        limit: int | None = None,
        after: object = None,
        columns: Sequence[str] | None = None,
        metadata: bool = False,
    ) -> Rows:
        """Return the windows of a key, or of all keys, that start from one time to another, both inclusive.

        `key` has the grouping columns, without the bounds of the window. `limit` and `after` are those of `range`.

        Raises:
            KeyRefused: the key has another type.
            QueryUnsupported: the table has no windows.
        """
        pinned = self._pinned
        start, _ = self._bounds(pinned)
        return self._rows(
            pinned, self._windows(pinned, key, (start, since), (start, until)), columns, metadata, False, limit, after
        )

    def sessions(
        self,
        key: object = None,
        since: dt.datetime | None = None,
        until: dt.datetime | None = None,
        *,
        limit: int | None = None,
        after: object = None,
        columns: Sequence[str] | None = None,
        metadata: bool = False,
    ) -> Rows:
        """Return the sessions of a key, or of all keys, that end at or after `since` and start at or before `until`.

        `limit` and `after` are those of `range`.

        Raises:
            KeyRefused: the key has another type.
            QueryUnsupported: the table has no windows.
        """
        pinned = self._pinned
        start, end = self._bounds(pinned)
        return self._rows(
            pinned, self._windows(pinned, key, (end, since), (start, until)), columns, metadata, False, limit, after
        )

    def get_as_of(self, key: object, when: dt.datetime, metadata: bool = False) -> Row | None:
        """Return the row of a key of a versioned table as it was valid at an event time; None if there was none.

        It is made of the landed records up to the cut of this version, which are all there, also those older than the
        history that `Versioned` declares.

        Raises:
            KeyRefused: the key has another type.
            QueryUnsupported: the table is not a versioned table of a topic, or of a Debezium topic.
        """
        pinned = self._pinned
        plan = pinned.plan
        if not (isinstance(plan, Latest) and plan.history is not None and isinstance(plan.source, Records)):
            raise QueryUnsupported(
                f"{self.name} is not a versioned table of a topic, so it has no rows as of an event time; "
                f"as_of_timestamp() reads the version that was committed at a time"
            )
        if plan.source.captured:
            raise QueryUnsupported(
                f"{self.name} is of a Debezium topic, whose records leave values out that earlier ones have: join a "
                f"stream with the table, or read it as of a version with as_of_timestamp()"
            )
        values = pinned.key.whole(key)
        landing = self._landing(plan.source.source.table)
        found = landing.select(Between(pinned.key.names, values, values), landing.schema.names)
        return _valid(found, when, self.cut, self._schema(pinned, None, metadata))

    # Below.

    def _landing(self, name: str) -> Files:
        topology = self._table.name.partition("/")[0]
        path = f"{self._table.path.removesuffix(self._table.name.partition('/')[2])}{name}"
        with delta_log.reading(path) as delta:
            return Files.of(f"{topology}.{name}", path, delta, self._cache)

    def _bounds(self, pinned: Pinned) -> tuple[pa.Field, pa.Field]:
        fields = [field for field in pinned.key.fields if field.name in BOUNDS]
        if len(fields) != len(BOUNDS):
            raise QueryUnsupported(
                f"{self.name} has no windows: its key is ({', '.join(pinned.key.names)}). Use range() or prefix()"
            )
        start, end = fields
        return start, end

    def _windows(
        self,
        pinned: Pinned,
        key: object,
        since: tuple[pa.Field, dt.datetime | None],
        until: tuple[pa.Field, dt.datetime | None],
    ) -> Condition:
        parts: list[Condition] = []
        if key is not None:
            groups = Key(self.name, tuple(field for field in pinned.key.fields if field.name not in BOUNDS))
            values = groups.whole(key)
            parts.append(Between(groups.names, values, values))
        for (column, when), is_low in ((since, True), (until, False)):
            if when is not None:
                bound = (pinned.key.typed(column, when),)
                parts.append(Between((column.name,), *((bound, None) if is_low else (None, bound))))
        return All(parts)

    def _rows(
        self,
        pinned: Pinned,
        condition: Condition,
        columns: Sequence[str] | None,
        metadata: bool,
        reverse: bool = False,
        limit: int | None = None,
        after: object = None,
    ) -> Rows:
        if limit is not None and limit < 0:
            raise QueryError(f"{self.name}: limit={limit} is below 0")
        names, key = self._schema(pinned, columns, metadata).names, pinned.key.names
        is_ordered = not any(pa.types.is_nested(field.type) for field in pinned.key.fields)
        if after is not None:
            if not is_ordered:
                raise QueryUnsupported(
                    f"{self.name}: a column of its key ({', '.join(key)}) has no order: leave out after="
                )
            last = pinned.key.whole(after)
            beyond = Between(key, None, last) if reverse else Between(key, last, None)
            condition = All((condition, beyond, Except(key, last)))
        if limit and is_ordered:  # the other columns are read of the first rows alone
            keys = ordered(pinned.files.select(condition, key), key, reverse).slice(0, limit)
            bounds = [tuple(keys[name][place] for name in key) for place in (0, keys.num_rows - 1) if keys.num_rows]
            if bounds and all(
                pc.equal(one, one).as_py() for bound in bounds for one in bound
            ):  # not of null, or of NaN
                condition = All((condition, Between(key, *(bounds[::-1] if reverse else bounds))))
        found = pinned.files.select(condition, list(dict.fromkeys([*names, *key])))
        rows = ordered(found, key, reverse).select(names)
        return Rows(rows if limit is None else rows.slice(0, limit))

    def _schema(self, pinned: Pinned, columns: Sequence[str] | None, metadata: bool) -> pa.Schema:
        """Return the columns of a result.

        Raises:
            NameUnknown: the table does not have one of them.
        """
        there = pinned.files.schema
        if isinstance(columns, str):
            raise QueryError(f"{self.name}: columns={columns!r} is text; pass a list of names")
        if columns is None:
            others = [name for name in there.names if not name.startswith("_") and name not in pinned.key.names]
            columns = [*pinned.key.names, *others]
            if pinned.plan.is_stream:
                columns.append("_deleted")
        unknown = [name for name in columns if name not in there.names]
        if unknown:
            users = [name for name in there.names if not name.startswith("_") or name in pinned.key.names]
            meant = did_you_mean(unknown[0], users)
            raise NameUnknown(f"{self.name} has no column {', '.join(unknown)}{meant}; it has {', '.join(users)}")
        names = dict.fromkeys([*columns, *(COORDINATES if metadata else ())])
        return pa.schema([there.field(name) for name in names])

    def _committed_at(self, version: int) -> int:
        entry = delta_log.entry(self._table.path, version)
        return 0 if entry is None else entry.at

    def _at(self, version: int) -> TableReader:
        pinned = at_version(self._table, self._cache, self._topology, self._resident, version)
        return TableReader(self._table, self._cache, self._topology, self._resident, pinned, follows=False)


def looks(timeout: float) -> Iterator[None]:
    """Yield before every look at the log, with a pause between two; the last one is when the time is over."""
    deadline, pause = time.monotonic() + timeout, FIRST_PAUSE
    while (left := deadline - time.monotonic()) > 0:
        yield
        time.sleep(min(pause, left))
        pause = min(2 * pause, LONGEST_PAUSE)
    yield


def newest(
    table: StoredTable,
    cache: FileCache,
    topology: Topology | None,
    resident: Resident,
    at_least: Offsets | Produced | Iterable[Produced] | None = None,
    timeout: float = TIMEOUT,
) -> Pinned:
    """Return the newest version of a table; with `at_least` once it covers these offsets.

    It is read once for all threads, and with what is known of the version before it.

    Raises:
        NameUnknown: there is no such table.
        NotWhole: no step has computed it by its present definition.
        NotCovered: it does not cover the offsets in time.
    """
    wanted = {} if at_least is None else offsets_of(at_least)
    for _ in range(TRIES):
        state = _covering(table, wanted, timeout)
        with resident.lock:
            before = resident.newest
            if before is not None and (before.id, before.version) == (state.id, state.version):
                return before
            with delta_log.reading(table.path) as delta:
                if delta.version() == state.version and str(delta.metadata().id) == state.id:
                    files = None if before is None else before.files
                    found = pinned_at(table, cache, topology, delta, state.position.cut, files)
                    resident.move(found)
                    return found
    return pinned_at(table, cache, topology, opened(table, state.version), state.position.cut)


def _covering(table: StoredTable, wanted: Offsets, timeout: float) -> State:
    """Return the newest state of a table once it covers some offsets."""
    problem: QueryError
    for _ in looks(timeout):
        state = table.state()
        if state is None:
            problem = NameUnknown(f"there is no table {table.dotted_name}")
        elif state.position.n == 0:
            problem = not_whole(table)
        elif lacking := missing(table.dotted_name, state.position.cut, wanted):
            problem = NotCovered(
                f"{table.dotted_name} at version {state.version} does not cover {lacking} after {timeout:g} s: run "
                f"`tidetable run {table.name.partition('/')[0]}`, or wait longer"
            )
        else:
            return state
        if not wanted:
            break
    raise problem


def at_version(
    table: StoredTable,
    cache: FileCache,
    topology: Topology | None,
    resident: Resident,
    version: int,
    cut: Cut | None = None,
) -> Pinned:
    """Return a version of a table. If a newer one has the same rows, its files are read: VACUUM keeps these longer.

    Raises:
        VersionGone: there is no such version, or not any more.
        NotWhole: it is from before the first step of its definition.
    """
    last = table.version()
    if not 0 <= version <= last:
        raise VersionGone(f"{table.dotted_name} has no version {version}: the newest is {last}")
    known = cut if cut is not None else position_at(table, version).cut
    same = table.latest_equivalent_version(version)
    if (kept := resident.with_files_of(same)) is not None:
        return replace(kept, cut=known, version=version)
    delta = opened(table, same)
    files = None if resident.newest is None else resident.newest.files
    found = pinned_at(table, cache, topology, delta, known, files, version)
    resident.keep(found)
    return found


def position_at(table: StoredTable, version: int) -> Position:
    """Return the position of a version.

    Raises:
        VersionGone: the log no longer has it.
        NotWhole: the version is from before the first step of its definition.
    """
    for entry in delta_log.entries(table.path, version):
        position = Position.from_json(entry.metadata)
        if position is not None and position.table == table.name and position.n != CLOSED:
            if position.n == 0:
                raise _before_first_step(table, version)
            return position
    raise VersionGone(f"the log of {table.dotted_name} was cleaned up, and no longer has version {version}")


def opened(table: StoredTable, version: int) -> DeltaTable:
    """Open a version by itself.

    Raises:
        VersionGone: the log no longer has it.
    """
    try:
        return delta_log.opened(table.path, version)
    except LogBroken as error:
        if isinstance(error.__cause__, DeltaError):
            raise VersionGone(f"{table.dotted_name} has no version {version} any more: {error.__cause__}") from error
        raise


def pinned_at(
    table: StoredTable,
    cache: FileCache,
    topology: Topology | None,
    delta: DeltaTable,
    cut: Cut,
    before: Files | None = None,
    version: int | None = None,
) -> Pinned:
    """Return a loaded version; `version` is the one it was asked for as.

    Raises:
        LayoutUnknown: the key is not stored, or the columns have other names in the files.
    """
    name, metadata = table.dotted_name, delta.metadata()
    if metadata.configuration.get(MAPPED, "none") != "none":
        raise LayoutUnknown(f"{name}: {MAPPED} is set, so its files have other names of columns; read it with Spark")
    plan = plan_of(name, metadata.configuration, topology)
    files = Files.of(name, table.path, delta, cache, before)
    key = key_of(name, plan, files.schema)
    return Pinned(str(metadata.id), files, key, plan, cut, files.version if version is None else version)


def not_whole(table: StoredTable) -> NotWhole:
    """Return the error of a table that no step has computed by its present definition."""
    return NotWhole(
        f"{table.dotted_name} is not whole: it was created, or its rebuild began, and no step has committed yet. "
        f"Run `tidetable run {table.name.partition('/')[0]}`, or wait until the step that runs has committed"
    )


def _before_first_step(table: StoredTable, version: int) -> NotWhole:
    """Return the error of a version that was committed before the first step of its definition."""
    later = (commit.version for commit in table.commits() if commit.position.n > 0 and commit.version > version)
    first = min(later, default=None)
    if first is None:
        return not_whole(table)
    return NotWhole(
        f"{table.dotted_name} is not whole at version {version}: the table was created, or its rebuild began, and its "
        f"first step committed version {first}. Read version {first}, or a later one"
    )


def _valid(records: pa.Table, when: dt.datetime, cut: Offsets, schema: pa.Schema) -> Row | None:
    """Return the row of the newest record up to an event time, among those before a cut; None if it has no value."""
    newest_place: tuple[Any, ...] | None = None
    found = None
    own = ["_timestamp", "_topic", "_partition", "_offset"]
    for number, record in enumerate(records.select([*own, "_deleted", "_error"]).to_pylist()):
        before = cut.get(record["_topic"], {}).get(record["_partition"], 0)
        if record["_error"] is not None or record["_timestamp"] is None or record["_offset"] >= before:
            continue
        place = tuple(record[name] for name in own)
        if record["_timestamp"] <= when and (newest_place is None or place > newest_place):
            newest_place, found = place, number if not record["_deleted"] else None
    if found is None:
        return None
    return Rows(records.select(schema.names).take(pa.array(np.array([found]))))[0]
