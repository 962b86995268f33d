"""Paths of stored tables, and the proof that this process and the engine see the same lake.

This process reads the lake directly, and the engine writes it. If the engine is on another machine, one name may mean
two places: a folder that is not mounted on one side, or another endpoint of an object store.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from spark.engine.errors import LakesDiffer
from spark.engine.log.commit import METADATA, races
from spark.engine.log.table import APPEARS, CREATED_BY_ANOTHER, NO_TABLE, PAUSE
from spark.topology.sql.ddl import quoted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MARKER = "_lake"
"""The folder of an empty table. Its log contains the marks of clients."""

LAKE_ID = "tidetable.lake"
"""The table property that every mark changes, so that every mark is a commit."""

MARKS = 100  # commits of other clients that may follow a mark before it is read


@dataclass(frozen=True)
class Lakehouse:
    """The root of a lake: a folder, or an object store's URL, with one folder per topology."""

    root: str

    def __post_init__(self) -> None:
        """Make a path absolute: the engine has another working directory."""
        root = self.root if "://" in self.root else str(Path(self.root).expanduser().resolve())
        object.__setattr__(self, "root", root.rstrip("/"))

    def table(self, topology: str, name: str) -> str:
        """The path or URL of a stored table."""
        return f"{self.root}/{topology}/{name}"

    def prove(self, session: SparkSession) -> None:
        """Let the engine commit a new mark to the lake, and check that this process reads it.

        Every mark is new, because replicas and restored backups of the lake would contain a constant one too.

        Raises:
            LakesDiffer: this process does not see the lake that the engine sees.
        """
        path, mark = f"{self.root}/{MARKER}", uuid.uuid4().hex
        for _ in range(APPEARS):
            with races(*CREATED_BY_ANOTHER, *NO_TABLE):  # another client commits at the same time
                _mark(session, path, mark)
                break
            time.sleep(PAUSE)
        try:
            marks = [entry.get("userMetadata") for entry in DeltaTable(path).history(MARKS)]
            problem = "" if mark in marks else "this process does not find it there"
        except (DeltaError, OSError) as error:
            problem = f"this process cannot read a table there ({str(error).partition(chr(10))[0]})"
        if problem:
            raise LakesDiffer(
                f"the engine and this process see different places under {self.root}: the engine wrote the mark {mark} "
                f"to {path}, and {problem}. Mount the same folder on both, or give both the same endpoint and "
                f"credentials of the object store. Nothing was changed in any table"
            )


def _mark(session: SparkSession, path: str, mark: str) -> None:
    """Let the engine commit a mark to the empty table; create the table if it does not exist."""
    table = f"delta.{quoted(path)}"
    session.sql(f"CREATE TABLE IF NOT EXISTS {table} (nothing INT) USING delta").collect()
    session.conf.set(METADATA, mark)
    try:
        session.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('{LAKE_ID}' = '{mark}')").collect()
    finally:
        session.conf.unset(METADATA)
