"""Where a topology's tables are, and the proof that client and engine see the same place there.

A client reads the lake by itself, the engine writes it. Where the engine is on other machines, a folder that is not
mounted on one side, or another endpoint of an object store, gives the same name to two places.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from spark.engine.commit import METADATA, races
from spark.engine.errors import LakesDiffer
from spark.engine.table import APPEARS, CREATED_BESIDE, NO_TABLE, PAUSE
from spark.topology.sql.ddl import quoted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MARKER = "_lake"
"""The folder of a table without rows, whose log holds the marks of clients."""

LAKE_ID = "tidetable.lake"
"""Its property that every mark changes, so that each is a commit."""

MARKS = 100  # commits that may come between writing a mark and reading it


@dataclass(frozen=True)
class Lakehouse:
    """A folder, or an object store's URL, with a folder per topology."""

    root: str

    def __post_init__(self) -> None:
        """A path is made absolute: the engine has another working directory."""
        root = self.root if "://" in self.root else str(Path(self.root).expanduser().resolve())
        object.__setattr__(self, "root", root.rstrip("/"))

    def table(self, topology: str, name: str) -> str:
        """The path of a stored table."""
        return f"{self.root}/{topology}/{name}"

    def prove(self, session: SparkSession) -> None:
        """Let the engine write a mark of this very moment into the lake, and read that here.

        A name that the lake has for ever would be in its copies too: in a replica, or a backup that was put back.

        Raises:
            LakesDiffer: this process does not see what the engine sees.
        """
        path, mark = f"{self.root}/{MARKER}", uuid.uuid4().hex
        for _ in range(APPEARS):
            with races(*CREATED_BESIDE, *NO_TABLE):  # another client writes at this moment
                _mark(session, path, mark)
                break
            time.sleep(PAUSE)
        try:
            marks = [entry.get("userMetadata") for entry in DeltaTable(path).history(MARKS)]
            seen = "" if mark in marks else "no such mark is here"
        except (DeltaError, OSError) as error:
            seen = f"here is no lake ({str(error).partition(chr(10))[0]})"
        if seen:
            raise LakesDiffer(
                f"the engine and this process see different places under {self.root}: the engine wrote the mark {mark} "
                f"to {path}, and {seen}. Mount the same folder on both, or give both the same endpoint and credentials "
                f"of the object store. Nothing was changed in any table"
            )


def _mark(session: SparkSession, path: str, mark: str) -> None:
    """Let the engine commit a mark to a table without rows, which it makes if it is not there."""
    table = f"delta.{quoted(path)}"
    session.sql(f"CREATE TABLE IF NOT EXISTS {table} (nothing INT) USING delta").collect()
    session.conf.set(METADATA, mark)
    try:
        session.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('{LAKE_ID}' = '{mark}')").collect()
    finally:
        session.conf.unset(METADATA)
