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

from spark.engine.commit import races
from spark.engine.errors import LakesDiffer
from spark.engine.table import APPEARS, CREATED_BESIDE, NO_TABLE, PAUSE
from spark.topology.sql.ddl import quoted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MARKER = "_lake"
"""The folder of a table without rows, whose property names the lake."""

LAKE_ID = "tidetable.lake"


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
        """Let the engine write the lake's name, unless it has one, and read that here.

        Raises:
            LakesDiffer: this process does not see what the engine sees.
        """
        path, written = f"{self.root}/{MARKER}", ""
        for _ in range(APPEARS):
            with races(*CREATED_BESIDE, *NO_TABLE):  # another client writes it at this moment
                written = _named(session, path)
                break
            time.sleep(PAUSE)
        try:
            read = DeltaTable(path).metadata().configuration.get(LAKE_ID, "no name")
        except (DeltaError, OSError) as error:
            read = f"no lake ({str(error).partition(chr(10))[0]})"
        if read != written:
            raise LakesDiffer(
                f"the engine and this process see different places under {self.root}: the engine wrote the lake's name "
                f"{written} to {path}, and here is {read}. Mount the same folder on both, or give both the same "
                f"endpoint and credentials of the object store. Nothing was changed in any table"
            )


def _named(session: SparkSession, path: str) -> str:
    """The lake's name, as the engine reads it; written if there is none."""
    table = f"delta.{quoted(path)}"
    made = f"TBLPROPERTIES ('{LAKE_ID}' = '{uuid.uuid4().hex}')"
    session.sql(f"CREATE TABLE IF NOT EXISTS {table} (nothing INT) USING delta {made}").collect()
    [(_, name)] = session.sql(f"SHOW TBLPROPERTIES {table} ('{LAKE_ID}')").collect()
    return str(name)
