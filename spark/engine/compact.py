"""Rewrite the small files of a table into large ones (OPTIMIZE), and remove unused files after a week (VACUUM).

The rows stay the same, and the change feed has no changes. Steps may run at the same time: if both rewrite a file, one
of them tries again. Versions that were replaced longer than `delta.deletedFileRetentionDuration` (a week) ago lose
their files. Then they can no longer be audited or restored, and their change feed can no longer be read. Landings are
read by offsets, never at an older version.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark.engine import commit
from spark.engine import position as positions
from spark.engine.errors import NotCommitted
from spark.topology.sql.ddl import quoted

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

    from spark.engine.doors import Engine, Lakehouse
    from spark.topology.topology import Topology

TRIES = 5  # lost races before a compaction gives up; each one means that a step rewrote the same files
LARGEST = 64 << 20  # bytes of a file; Delta's default is 1 GB, and a MERGE reads whole files to change a row


@dataclass(frozen=True)
class Compacted:
    """How many files a compaction removed, and how many it added instead."""

    table: str
    removed: int
    added: int
    seconds: float


def compact(engine: Engine, lakehouse: Lakehouse, topology: Topology, name: str) -> Compacted:
    """Compact a stored table, or a landing by its name `_landing/<topic>`. Without small files it writes nothing.

    Raises:
        NotCommitted: steps committed first, `TRIES` times.
    """
    began = time.monotonic()
    table, path = f"{topology.name}/{name}", lakehouse.table(topology.name, name)
    if positions.read(path, table) is None:
        return Compacted(table, 0, 0, 0.0)
    session = engine.session()
    try:
        session.conf.set("spark.databricks.delta.optimize.maxFileSize", str(LARGEST))
        session.conf.set("spark.databricks.delta.optimize.minFileSize", str(LARGEST * 3 // 4))
        # VACUUM lists files in this many tasks: 10,000 by default, which take most of a minute on a small machine.
        session.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", "2")
        for _ in range(TRIES):
            with commit.races():
                done = _optimized(session, path)
                _vacuum(session, path)
                return Compacted(table, done["numFilesRemoved"], done["numFilesAdded"], time.monotonic() - began)
    finally:
        session.stop()
    raise NotCommitted(f"{table}: {TRIES} times a step rewrote the same files first; try again when it is quiet")


def _optimized(session: SparkSession, path: str) -> Row:
    [told] = session.sql(f"OPTIMIZE delta.{quoted(path)}").collect()
    metrics: Row = told["metrics"]
    return metrics


def _vacuum(session: SparkSession, path: str) -> None:
    session.sql(f"VACUUM delta.{quoted(path)}").collect()
