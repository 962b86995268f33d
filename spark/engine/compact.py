"""Rewrite the small files of a table into large ones (OPTIMIZE), and remove unused files after a week (VACUUM).

A table is sorted by its key while it is rewritten, so that statistics lead to the file and the row group of a key. This
rewrites all of it, so a large table is not sorted, nor one whose steps commit before the sorted files do.

The rows stay the same, and the change feed has no changes. Steps may run at the same time: if both rewrite a file, one
of them tries again. Versions that were replaced longer than `delta.deletedFileRetentionDuration` (a week) ago lose
their files. Then they can no longer be audited or restored, and their change feed can no longer be read. Landings are
read by offsets, never at an older version.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

import pyarrow as pa  # type: ignore[import-untyped]  # has no types of its own
from pyspark.sql.types import StructType

from spark.engine.log import delta_log
from spark.engine.log.commit import races, until_committed
from spark.engine.log.replacement import FILE_ROWS
from spark.engine.log.stored_table import StoredTable
from spark.engine.log.table import COMPARED
from spark.engine.ports import opened
from spark.topology.nodes import LANDING
from spark.topology.sql.ddl import quoted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Row, SparkSession

    from spark.engine.ports import Engine, Lakehouse
    from spark.topology.topology import Topology

LARGEST = 64 << 20  # bytes of a file; Delta's default is 1 GB, and a MERGE reads whole files to change a row
ROWS = FILE_ROWS // 2  # of a file, about: where Delta sorts, it may have up to twice as many
SORTED = 256 << 20  # bytes of a table that is sorted: some 15 million rows, and an estimated minute and a half
ROW_GROUP = 2 << 20  # bytes, not compressed, that a query reads to find a row: some 30,000 rows
SORTS = 2  # tries of a compaction that sort


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
    tries = count(1)
    with opened(engine) as session:
        session.conf.set("spark.sql.files.maxRecordsPerFile", "0")  # the rest of a file would be rewritten every time
        # VACUUM lists files in this many tasks: 10,000 by default, which take most of a minute on a small machine.
        session.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", "2")

        def once() -> Compacted | None:
            with races():
                largest = round(min(LARGEST, ROWS * table.row_size()))
                session.conf.set("spark.databricks.delta.optimize.maxFileSize", str(largest))
                # The bytes of a file that is not rewritten with others.
                session.conf.set("spark.databricks.delta.optimize.minFileSize", str(largest * 3 // 4))
                by = _order(table, topology, name, largest) if next(tries) <= SORTS else ()
                metrics = _optimize(session, table.path, by)
                _vacuum(session, table.path)
                removed, added = metrics["numFilesRemoved"], metrics["numFilesAdded"]
                return Compacted(table.name, removed, added, time.monotonic() - began)
            return None  # a step rewrote the same files first

        return until_committed(table.name, once, "try again when it is quiet")


def _order(table: StoredTable, topology: Topology, name: str, largest: int) -> tuple[str, ...]:
    """Return the columns to sort a table by: those of its key. None if it is a stream, large, or compact already."""
    if name.startswith(LANDING) or topology.table(name).plan.is_stream:
        return ()
    with delta_log.reading(table.path) as delta:
        sizes = sorted(pa.table(delta.get_add_actions())["size_bytes"].to_pylist())
        schema = StructType.fromJson(json.loads(delta.schema().to_json()))
    # Delta sorts a table that is compact again and again. Two files that fit into one are what it would compact.
    if len(sizes) < 2 or sizes[0] + sizes[1] > largest or sum(sizes) > SORTED:
        return ()
    comparable = {field.name for field in schema if isinstance(field.dataType, COMPARED)}
    return tuple(column for column in topology.table(name).plan.key if column in comparable)


def _optimize(session: SparkSession, path: str, by: Sequence[str]) -> Row:
    order = ""
    if by:
        order = f" ZORDER BY ({', '.join(map(quoted, by))})"
        session.conf.set("spark.databricks.io.skipping.mdc.sortWithinFiles", "true")
        # An old table may have statistics of other columns only.
        session.conf.set("spark.databricks.delta.optimize.zorder.checkStatsCollection.enabled", "false")
        session.conf.set("parquet.block.size", str(ROW_GROUP))
    [result] = session.sql(f"OPTIMIZE delta.{quoted(path)}{order}").collect()
    metrics: Row = result["metrics"]
    return metrics


def _vacuum(session: SparkSession, path: str) -> None:
    session.sql(f"VACUUM delta.{quoted(path)}").collect()
