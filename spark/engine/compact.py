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

from spark.engine.log.commit import races, until_committed
from spark.engine.log.stored_table import StoredTable
from spark.engine.ports import opened
from spark.topology.sql.ddl import quoted

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

    from spark.engine.ports import Engine, Lakehouse
    from spark.topology.topology import Topology

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
        NotCommitted: steps committed first, several times.
    """
    began = time.monotonic()
    table = StoredTable.of(lakehouse, topology.name, name)
    table.check_writable()
    if table.state() is None:
        return Compacted(table.name, 0, 0, 0.0)
    with opened(engine) as session:
        session.conf.set("spark.databricks.delta.optimize.maxFileSize", str(LARGEST))
        session.conf.set("spark.databricks.delta.optimize.minFileSize", str(LARGEST * 3 // 4))
        # VACUUM lists files in this many tasks: 10,000 by default, which take most of a minute on a small machine.
        session.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", "2")

        def once() -> Compacted | None:
            with races():
                metrics = _optimize(session, table.path)
                _vacuum(session, table.path)
                removed, added = metrics["numFilesRemoved"], metrics["numFilesAdded"]
                return Compacted(table.name, removed, added, time.monotonic() - began)
            return None  # a step rewrote the same files first

        return until_committed(table.name, once, "try again when it is quiet")


def _optimize(session: SparkSession, path: str) -> Row:
    [result] = session.sql(f"OPTIMIZE delta.{quoted(path)}").collect()
    metrics: Row = result["metrics"]
    return metrics


def _vacuum(session: SparkSession, path: str) -> None:
    session.sql(f"VACUUM delta.{quoted(path)}").collect()
