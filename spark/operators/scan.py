"""A stored table: its change feed holds the touched keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark.operators.algebra import Snapshot, Span, at_keys, previous, rows, touched
from spark.topology.nodes import Scan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@touched.register(Scan)
def _(scan: Scan, span: Span) -> DataFrame | None:
    return span.changes(scan) if span.has_changes(scan) else None


@rows.register(Scan)
def _(scan: Scan, keys: DataFrame | None, now: Snapshot) -> DataFrame:
    return at_keys(now.stored(scan), keys, scan.key)


@previous.register(Scan)
def _(scan: Scan, keys: DataFrame, span: Span) -> DataFrame:  # noqa: ARG001  # the feed holds just these keys
    return span.previous(scan)
