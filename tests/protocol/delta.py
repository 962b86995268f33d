"""Delta logs in memory, with Delta's rules for writers: what is skipped, what conflicts, what RESTORE leaves alone.

The rules are those of Delta 4.4's `ConflictChecker` and `hasBeenExecuted`; `test_likeness.py` holds them against a real
engine. Where Delta goes by files, which are not here, a conflict may be or not: chance decides.
"""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from deltalake.exceptions import TableNotFoundError
from pyspark.errors import PySparkException
from pyspark.errors.exceptions.connect import SparkConnectGrpcException

from spark.engine.log.merge import NEW

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from tests.protocol.turns import Turns

Row = tuple[Any, Any]
"""A key and what stands there: of a landing the partition and offset, and the record's key and value."""


NUMBER_IN = re.compile(r"-?\d+")
"""The integers of a condition."""
GONE_IN = re.compile(r"IN \(([^)]*)\)")
"""The keys that a replacement deletes besides those of the new rows."""


@dataclass(frozen=True)
class Version:
    """A version of a table: the commit that made it, and the table as it is from there on."""

    operation: str
    rows: tuple[Row, ...] = ()
    changed: frozenset[Any] = frozenset()
    """The keys that its change feed names."""
    metadata: str | None = None
    metrics: Mapping[str, int] = field(default_factory=dict)
    overwrites: bool = False
    replaces_keys: str | None = None
    """The condition of the rows that it replaced."""
    properties: Mapping[str, str] = field(default_factory=dict)
    fences: Mapping[str, int] = field(default_factory=dict)
    """The greatest number of every application, up to here."""
    app: str | None = None
    """The application whose number it carries."""
    sets_properties: bool = False
    table_id: str = ""

    @cached_property
    def info(self) -> str:
        """The commit information, as the log has it."""
        info = {
            "operation": self.operation,
            "userMetadata": self.metadata,
            "operationMetrics": self.metrics,
            "operationParameters": self._parameters(),
        }
        return json.dumps({"commitInfo": info})

    def _parameters(self) -> dict[str, str]:
        if self.replaces_keys is not None:
            by = "replaceOnCond" if f"= {NEW}." in self.replaces_keys else "predicate"
            return {"mode": "Overwrite", by: self.replaces_keys}
        return {"mode": "Overwrite"} if self.overwrites else {}


@dataclass(frozen=True)
class Write:
    """What a statement wants of a table that it read at some version."""

    operation: str
    gone: frozenset[Any] = frozenset()
    """Keys whose rows go."""
    new: tuple[Row, ...] = ()
    metrics: Mapping[str, int] = field(default_factory=dict)
    reads: bool = False
    """What it writes depends on the rows it read."""
    overwrites: bool = False
    replaces_keys: str | None = None
    properties: Mapping[str, str] | None = None

    @property
    def changed(self) -> frozenset[Any]:
        """The keys whose rows it changes."""
        return self.gone | {key for key, _ in self.new}


@dataclass(eq=False)
class Log:
    """A table's log; `begun` is one without a commit, which somebody is just making, or was when the engine died."""

    versions: list[Version] = field(default_factory=list)
    begun: bool = False

    def copy(self) -> Log:
        """Versions never change, so they are shared."""
        return Log(list(self.versions), self.begun)


EngineGone = SparkConnectGrpcException
"""No answer came: the engine is gone, or the connection."""


def refused(condition: str) -> PySparkException:
    """An error of Delta's."""
    return PySparkException(message=condition, errorClass=condition)


class Lake:
    """Logs by path."""

    def __init__(self, turns: Turns, logs: Mapping[str, Log] | None = None) -> None:
        self.turns = turns
        self.logs = {path: log.copy() for path, log in (logs or {}).items()}
        self.ids = 0
        self.life = 0
        """How often the engine that writes here died."""

    def table(self, topology: str, name: str) -> str:
        """The path of a table."""
        return f"{topology}/{name}"

    def log(self, path: str) -> Log:
        """A table's log, which may have no commit."""
        return self.logs.setdefault(path, Log())

    def at(self, path: str, version: int) -> Version:
        """A version of a table."""
        versions = self.log(path).versions
        if not 0 <= version < len(versions):
            raise refused("DELTA_VERSION_NOT_FOUND")
        return versions[version]

    def fed(self, path: str, since: int, until: int) -> set[Any]:
        """The keys that the change feed names, between two versions, both of which it has."""
        return {key for version in self.log(path).versions[since : until + 1] for key in version.changed}

    def write(
        self,
        path: str,
        plan: Callable[[Version], Write],
        app: str | None = None,
        number: int = 0,
        metadata: str | None = None,
    ) -> Version | None:
        """Read the table, write files, commit. None: the fence skipped it, which is no error."""
        log = self.log(path)
        if not log.versions:
            raise refused("DELTA_TABLE_NOT_FOUND")
        read = len(log.versions) - 1
        if app is not None and log.versions[read].fences.get(app, -1) >= number:
            self.turns.say(f"skipped {app} {number}")
            return None
        write = plan(log.versions[read])
        self._work()
        for winner in log.versions[read + 1 :]:
            self._check(winner, write, app)
        if write.properties is None:
            self.turns.say(f"version {len(log.versions)} of {path} is {write.operation} {app} {number}")
        return self.commit(path, write, app, number, metadata)

    def _check(self, winner: Version, write: Write, app: str | None) -> None:
        """Whether a commit that was not there when the statement began is in its way."""
        if winner.sets_properties:
            raise refused("DELTA_METADATA_CHANGED")
        if app is not None and winner.app == app:
            raise refused("DELTA_CONCURRENT_TRANSACTION")
        if write.reads and winner.changed and self.turns.random.random() < 0.5:
            raise refused("DELTA_CONCURRENT_DELETE_READ")

    def commit(
        self, path: str, write: Write, app: str | None = None, number: int = 0, metadata: str | None = None
    ) -> Version:
        """Add a version."""
        log = self.log(path)
        if log.versions:
            last = log.versions[-1]
        else:
            self.ids += 1
            last = Version("", table_id=f"{path}#{self.ids}")
        kept = () if write.overwrites else tuple(row for row in last.rows if row[0] not in write.gone)
        changed = write.changed | {key for key, _ in last.rows} if write.overwrites else write.changed
        made = Version(
            write.operation,
            kept + write.new,
            frozenset(changed),
            metadata,
            write.metrics,
            write.overwrites,
            write.replaces_keys,
            last.properties if write.properties is None else write.properties,
            last.fences if app is None else {**last.fences, app: number},
            app,
            write.properties is not None and write.properties != last.properties,
            last.table_id,
        )
        log.versions.append(made)
        return made

    def _work(self) -> None:
        """Time passes in a statement; it ends with the engine that is at it."""
        life = self.life
        self.turns.cross("in the engine", engine=True)
        if life != self.life:
            raise EngineGone(message="engine killed")

    def create(self, path: str, properties: Mapping[str, str], metadata: str | None) -> None:
        """CREATE TABLE IF NOT EXISTS."""
        log = self.log(path)
        if log.versions:
            return
        if log.begun:
            raise refused("DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION")
        log.begun = True
        self._work()
        if log.versions:
            raise refused("DELTA_PROTOCOL_CHANGED")
        self.commit(path, Write("CREATE TABLE", properties=properties), metadata=metadata)

    def replace(self, path: str, properties: Mapping[str, str], metadata: str | None) -> None:
        """CREATE OR REPLACE TABLE AS SELECT of nothing."""
        log = self.log(path)
        read = len(log.versions)
        self._work()
        if len(log.versions) > read:
            raise refused("DELTA_METADATA_CHANGED")
        made = Write("CREATE OR REPLACE TABLE AS SELECT", properties=properties, overwrites=True, metrics=_rows(0))
        self.commit(path, made, metadata=metadata)

    def set_properties(self, path: str, properties: Mapping[str, str], metadata: str | None) -> None:
        """ALTER TABLE SET TBLPROPERTIES: no statement that began before it survives it, and it has no fence."""

        def plan(last: Version) -> Write:
            return Write("SET TBLPROPERTIES", properties={**last.properties, **properties})

        self.write(path, plan, metadata=metadata)

    def restore(self, path: str, to: int) -> None:
        """RESTORE, by hand: rows and properties go back, numbers do not."""
        log = self.log(path)
        last, then = log.versions[-1], log.versions[to]
        moved = {key for key, _ in set(last.rows) ^ set(then.rows)}
        log.versions.append(
            Version(
                "RESTORE",
                then.rows,
                frozenset(moved),
                properties=then.properties,
                fences=last.fences,
                sets_properties=then.properties != last.properties,
                table_id=last.table_id,
            )
        )

    def append(self, path: str, new: Iterable[Row], **fence: Any) -> Version | None:
        """Append rows."""

        def plan(_: Version) -> Write:
            rows = tuple(new)
            return Write("WRITE", new=rows, metrics=_rows(len(rows)))

        return self.write(path, plan, **fence)

    def overwrite(self, path: str, new: Iterable[Row], **fence: Any) -> Version | None:
        """Replace all rows."""

        def plan(_: Version) -> Write:
            rows = tuple(new)
            return Write("WRITE", new=rows, metrics=_rows(len(rows)), reads=True, overwrites=True)

        return self.write(path, plan, **fence)

    def replace_where(self, path: str, new: Iterable[Row], where: str, **fence: Any) -> Version | None:
        """Replace the rows at the keys in a condition."""
        keys = {int(key) for key in NUMBER_IN.findall(where)}

        def plan(last: Version) -> Write:
            rows = tuple(new)
            assert {key for key, _ in rows} <= keys, "DELTA_REPLACE_WHERE_MISMATCH"
            return _replacement(last, rows, keys, where)

        return self.write(path, plan, **fence)

    def replace_on(self, path: str, new: Iterable[Row], on: str, **fence: Any) -> Version | None:
        """Replace the rows at the keys of the new ones, if there are any, and at those that a condition adds."""
        more = {int(key) for among in GONE_IN.findall(on) for key in NUMBER_IN.findall(among)}

        def plan(last: Version) -> Write:
            rows = tuple(new)
            return _replacement(last, rows, {key for key, _ in rows} | (more if rows else set()), on)

        return self.write(path, plan, **fence)

    def merge(self, path: str, source: Iterable[Row], **fence: Any) -> Version | None:
        """MERGE one row per key; None in the place of a row deletes."""

        def plan(last: Version) -> Write:
            there: dict[Any, list[Any]] = {}
            for key, row in last.rows:
                there.setdefault(key, []).append(row)
            rows = list(source)
            deleted = [(key, len(there[key])) for key, row in rows if row is None and key in there]
            updated = [(key, row) for key, row in rows if row is not None and any(r != row for r in there.get(key, []))]
            inserted = [(key, row) for key, row in rows if row is not None and key not in there]
            counts = {
                "numTargetRowsInserted": len(inserted),
                "numTargetRowsUpdated": len(updated),
                "numTargetRowsDeleted": sum(count for _, count in deleted),
                "numSourceRows": len(rows),
            }
            gone = frozenset(key for key, _ in deleted) | {key for key, _ in updated}
            rewritten = tuple((key, row) for key, row in updated for _ in there[key])
            return Write("MERGE", gone, rewritten + tuple(inserted), counts, reads=True)

        return self.write(path, plan, **fence)


def _replacement(last: Version, rows: tuple[Row, ...], keys: set[int], condition: str) -> Write:
    """Rows in the place of those at some keys."""
    gone = [row for row in last.rows if row[0] in keys]
    counts = {"numOutputRows": len(rows), "numCopiedRows": 0, "numDeletedRows": len(gone)}
    return Write("WRITE", frozenset(key for key, _ in gone), rows, counts, reads=True, replaces_keys=condition)


def _rows(count: int) -> dict[str, int]:
    return {"numOutputRows": count}


@dataclass(frozen=True)
class _Metadata:
    id: str
    configuration: Mapping[str, str]


class Reader:
    """What `deltalake.DeltaTable` tells of a table: the version it loaded, while others may commit."""

    def __init__(self, lake: Lake, path: str) -> None:
        log = lake.logs.get(path)
        if log is None or not log.versions:
            raise TableNotFoundError(path)
        self.lake, self.log = lake, log
        self.loaded = len(log.versions) - 1

    def version(self) -> int:
        """The version that was loaded."""
        return self.loaded

    def metadata(self) -> _Metadata:
        """Id and properties."""
        at = self.log.versions[self.loaded]
        return _Metadata(at.table_id, at.properties)

    def schema(self) -> Reader:
        """Its columns, of which nobody needs any."""
        return self

    def to_json(self) -> str:
        """The columns as JSON."""
        kinds = {"k": "long", "v": "string"}
        fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in kinds.items()]
        return json.dumps({"type": "struct", "fields": fields})

    def get_add_actions(self, _: bool = False) -> dict[str, list[int]]:
        """No files: its rows are in memory."""
        return {"size_bytes": [], "num_records": []}

    def transaction_version(self, app: str) -> int | None:
        """The greatest number of an application."""
        return self.log.versions[self.loaded].fences.get(app)


@contextmanager
def reading(lake: Lake, path: str) -> Iterator[Reader]:
    """A table as of now."""
    yield Reader(lake, path)


def commit_info(lake: Lake, path: str, version: int) -> str | None:
    """The commit information of a version."""
    log = lake.logs.get(path)
    return log.versions[version].info if log is not None and version < len(log.versions) else None
