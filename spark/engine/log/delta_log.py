"""A Delta table and the commits of its log, without a JVM.

`deltalake` reads the state of a table. A commit is read from its own JSON file, whose name is its version: to read one
costs the same in a log of any length, and other commits at the same time change nothing.
"""

from __future__ import annotations

import json
import math
import re
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import chain, repeat
from threading import Lock
from typing import TYPE_CHECKING, Any

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import PyFileSystem  # type: ignore[import-untyped]  # has no types of its own

from spark.engine.errors import LogBroken

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

TABLES = 64
"""Tables that a process holds open, at most: the file list of each is in memory."""
AT_ONCE = 32
"""Commits of an object store that are read concurrently, at most."""


@dataclass(frozen=True)
class Entry:
    """A commit of a Delta log, by anybody. `metadata` is its `userMetadata`, `at` is in milliseconds since 1970."""

    version: int
    operation: str
    metadata: str | None
    metrics: dict[str, int]
    overwrites: bool
    """The commit replaced all rows, maybe with other columns."""
    at: int
    replaces_keys: bool = False
    """The commit replaced the rows that meet a condition, or have some keys: its change feed has no updates."""

    @property
    def changed_rows(self) -> int | None:
        """How many rows the commit inserted, updated or deleted; None if its operation and metrics do not say.

        A row that was replaced counts twice: as deleted and as inserted.
        """
        match self.operation:
            case "WRITE" if self.replaces_keys:
                # Delta counts the rows that stay in a file as copied and as output. It omits counts of nothing.
                output, copied, deleted = (
                    self.metrics.get(f"num{name}Rows") for name in ("Output", "Copied", "Deleted")
                )
                return None if output is None else output - (copied or 0) + (deleted or 0)
            case "WRITE" if "numOutputRows" in self.metrics and not self.overwrites:
                return self.metrics["numOutputRows"]
            case "MERGE":
                counts = [self.metrics.get(f"numTargetRows{verb}") for verb in ("Inserted", "Updated", "Deleted")]
                known = [count for count in counts if count is not None]
                return sum(known) if len(known) == len(counts) else None
            case (
                "OPTIMIZE"
                | "VACUUM START"
                | "VACUUM END"
                | "SET TBLPROPERTIES"
                | "UNSET TBLPROPERTIES"
                | "ADD COLUMNS"
                | "CREATE TABLE"
            ):
                return 0
            case _:
                return None


@dataclass(eq=False)
class _Reader:
    """A table that is held open: a newer version costs the files of its new commits, not those of the whole log."""

    path: str
    delta: DeltaTable | None = None
    newest: str | None = None
    """The text of the commit of the loaded version. A table that was created again has another one there."""
    lock: Lock = field(default_factory=Lock)

    def loaded(self) -> DeltaTable:
        """Return the table at its newest version."""
        delta = self.delta
        self.delta = None  # if anything below fails, the next call opens the table
        if delta is None or self.newest is None or _commit_info(self.path, delta.version()) != self.newest:
            delta = opened(self.path)
        elif _commit_info(self.path, delta.version() + 1) is None:
            self.delta = delta
            return delta
        else:
            try:
                delta.update_incremental()
            except (DeltaError, OSError):  # commits that it lacks were cleaned up, or the log cannot be read
                delta = opened(self.path)
        self.newest = _commit_info(self.path, delta.version())
        self.delta = delta
        return delta


_readers: OrderedDict[str, _Reader] = OrderedDict()
_readers_lock = Lock()


@contextmanager
def reading(path: str) -> Iterator[DeltaTable]:
    """Yield a table at its newest version. No other thread has it until the block ends.

    Raises:
        TableNotFoundError: there is no table.
        LogBroken: its log cannot be read.
    """
    with _readers_lock:
        reader = _readers.setdefault(path, _Reader(path))
        _readers.move_to_end(path)
        if len(_readers) > TABLES:
            _readers.popitem(last=False)
    with reader.lock:
        yield reader.loaded()


def written_bytes(metrics: Mapping[str, int]) -> float:
    """Return how many bytes the files have that a commit added; infinity if its metrics do not say."""
    return metrics.get("numOutputBytes", metrics.get("numTargetBytesAdded", math.inf))


def entry(path: str, version: int) -> Entry | None:
    """Return the commit of a version; None if the log does not have it, because it was cleaned up or is to come."""
    info = _commit_info(path, version)
    return None if info is None else entry_of(version, json.loads(info))


def entries(path: str, newest: int) -> Iterator[Entry]:
    """Yield the commits from a version down to the oldest that the log has."""
    pages = chain((1, 2, 4, 8, 16), repeat(AT_ONCE)) if "://" in path else repeat(1)
    while newest >= 0:
        page = range(newest, max(-1, newest - next(pages)), -1)
        for found in _page(path, page):
            if found is None:
                return
            yield found
        newest = page[-1] - 1


def oldest_version(path: str, newest: int) -> int:
    """Return the oldest version whose commit the log has; `newest` + 1 if it has none up to `newest`."""
    missing, there = -1, newest + 1
    while there - missing > 1:
        middle = (missing + there) // 2
        if _commit_info(path, middle) is None:
            missing = middle
        else:
            there = middle
    return there


def _page(path: str, versions: Sequence[int]) -> list[Entry | None]:
    if len(versions) == 1:
        return [entry(path, versions[0])]
    with ThreadPoolExecutor(len(versions)) as pool:
        return list(pool.map(partial(entry, path), versions))


def actions(path: str, version: int) -> list[dict[str, Any]] | None:
    """Return all actions of a commit, as the Delta protocol has them; None if the log does not have the commit."""
    try:
        with readable(path), _commit(path, version) as lines:
            return [json.loads(line) for line in lines]
    except FileNotFoundError:
        return None


def _commit_info(path: str, version: int) -> str | None:
    """Return the commit information of a version as JSON, "{}" if the commit has none; None if there is no file."""
    try:
        with readable(path), _commit(path, version) as lines:
            return _info(lines)
    except FileNotFoundError:
        return None


@contextmanager
def _commit(path: str, version: int) -> Iterator[Iterable[str]]:
    """Yield the actions of a commit, one a line."""
    name = f"_delta_log/{version:020}.json"
    if "://" in path:
        yield store(path).open_input_stream(name).read().decode().splitlines()
        return
    with open(f"{path}/{name}", encoding="utf-8") as lines:
        yield lines


def _info(actions: Iterable[str]) -> str:
    """Return the commit information among the actions of a commit. It is the first one; Delta does not require that."""
    return next((text for text in actions if text.startswith('{"commitInfo"')), "{}")


@lru_cache(TABLES)
def store(path: str) -> PyFileSystem:
    """Return an object store's folder of a table, as deltalake reads it: with the same credentials and endpoint."""
    return PyFileSystem(DeltaStorageHandler(path))


def opened(path: str, version: int | None = None) -> DeltaTable:
    """Open a table at a version, or at the newest one, anew.

    Raises:
        TableNotFoundError: there is no table.
        LogBroken: its log cannot be read, or no longer has the version.
    """
    with readable(path):
        return DeltaTable(path, version)


@contextmanager
def readable(path: str) -> Iterator[None]:
    """Raise what a library says about a log, or about the store that it is in, as `LogBroken`."""
    try:
        yield
    except (TableNotFoundError, FileNotFoundError):
        raise
    except OSError as error:  # of an object store: credentials, endpoint, bucket
        raise LogBroken(
            f"{path} cannot be read: {_first_line(error)}. Where the lake is an object store, this process takes "
            f"credentials and endpoint from the environment (AWS_ACCESS_KEY_ID and so on), the engine from its own "
            f"settings"
        ) from error
    except DeltaError as error:
        raise LogBroken(
            f"the log of {path} cannot be read: {_first_line(error)}. If a checkpoint is missing or broken, and the "
            f"log still has its JSON files from version 0 on, remove _last_checkpoint and *.checkpoint.parquet from "
            f"{path}/_delta_log: Delta makes them again. Else put the folder back from a copy"
        ) from error


def _first_line(error: Exception) -> str:
    """Return the first line of a library's message, without escape sequences and the stack that follows."""
    return re.sub(r"\x1b\[[0-9;]*m", "", str(error).partition("\n")[0])


def entry_of(version: int, actions: dict[str, Any]) -> Entry:
    """Return a commit with its commit information."""
    found = actions.get("commitInfo") or {}
    counted = found.get("operationMetrics") or {}
    metrics = {name: int(count) for name, count in counted.items() if str(count).isdigit()}
    parameters = found.get("operationParameters") or {}
    operation, metadata = found.get("operation", ""), found.get("userMetadata")
    overwrites = parameters.get("mode") == "Overwrite"
    replaces_keys = overwrites and ("predicate" in parameters or "replaceOnCond" in parameters)
    at = found.get("timestamp", 0)
    return Entry(version, operation, metadata, metrics, overwrites and not replaces_keys, at, replaces_keys)
