"""The commits of a Delta log, as `deltalake` lists them: without a JVM, newest first."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from spark.engine.errors import LogBroken

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = 20  # commits; the newest own commit is nearly always among them


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
    transaction: str = ""
    """Delta's id of the commit, which is unique."""
    replaces: bool = False
    """The commit replaced the rows that meet a condition: its change feed has no updates."""

    @property
    def changed_rows(self) -> int | None:
        """How many rows the commit inserted, updated or deleted; None if its operation and metrics do not say.

        A row that was replaced counts twice: as deleted and as inserted.
        """
        match self.operation:
            case "WRITE" if self.replaces:
                # Delta counts the rows that stay in a file as copied and as output, also if it copied none.
                counts = [self.metrics.get(f"num{name}Rows") for name in ("Output", "Copied", "Deleted")]
                output, copied, deleted = (count if count is not None else -1 for count in counts)
                return output - copied + deleted if min(output, copied, deleted) >= 0 else None
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


def history(path: str) -> tuple[DeltaTable, Iterator[Entry]]:
    """Return a table and its commits, newest first; reads the whole log only if the newest page does not suffice."""
    delta, page = listed(path, PAGE)

    def entries() -> Iterator[Entry]:
        yield from page
        if len(page) == PAGE:
            yield from _older(path, page[-1])

    return delta, entries()


def listed(path: str, limit: int | None = None) -> tuple[DeltaTable, list[Entry]]:
    """Return a table and its newest commits, which agree on the version of each.

    deltalake lists the files of the log, and numbers them down from the version that it loaded: a commit in between
    would shift all numbers. If there was one, this reads again: a page takes less time than a commit.
    """
    while True:
        delta = _opened(path)
        entries = [entry_of(found) for found in delta.history(limit)]
        if DeltaTable(path).version() == delta.version():
            return delta, entries


def _older(path: str, last: Entry) -> Iterator[Entry]:
    """Yield the commits before `last`, newest first.

    A whole log takes long to read, and on a busy table there are commits meanwhile, which shift the numbers. So the
    commits are numbered down from `last`, whose version is known.
    """
    version = None
    for entry in map(entry_of, _opened(path).history()):
        if version is not None:
            version -= 1
            yield replace(entry, version=version)
        elif replace(entry, version=last.version) == last:
            version = last.version


def _opened(path: str) -> DeltaTable:
    try:
        return DeltaTable(path)
    except TableNotFoundError:
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


def entry_of(found: dict[str, Any]) -> Entry:
    """Return a commit of `DeltaTable.history` as an entry."""
    counted = found.get("operationMetrics") or {}
    metrics = {name: int(count) for name, count in counted.items() if str(count).isdigit()}
    parameters = found.get("operationParameters") or {}
    overwrites, replaces = parameters.get("mode") == "Overwrite", "predicate" in parameters
    operation, metadata = found.get("operation", ""), found.get("userMetadata")
    transaction = found.get("txnId", "")
    at = found.get("timestamp", 0)
    return Entry(found["version"], operation, metadata, metrics, overwrites and not replaces, at, transaction, replaces)
