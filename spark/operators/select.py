"""`filter` and `map_values`: a row that stops matching is an absence, the key stays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from spark.operators.algebra import OURS, PRESENT, Snapshot, Span, cols, present, rows, touched
from spark.topology.ddl import quoted
from spark.topology.nodes import Select

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@touched.register(Select)
def _(select: Select, span: Span) -> DataFrame | None:
    source = touched(select.source, span)
    return None if source is None else selected(select, source)


@rows.register(Select)
def _(select: Select, keys: DataFrame | None, now: Snapshot) -> DataFrame:
    return present(selected(select, rows(select.source, keys, now).withColumn(PRESENT, F.lit(True))))


def selected(select: Select, source: DataFrame) -> DataFrame:
    """One row per source row. Nothing is computed for an absent row: under ANSI rules it could fail."""
    kept = (
        PRESENT if select.where is None else f"CASE WHEN {PRESENT} THEN coalesce({select.where}, false) ELSE false END"
    )
    computed = [
        F.expr(quoted(name) if name in select.key else f"CASE WHEN {PRESENT} THEN {text} END").alias(name)
        for name, text in select.select
    ]
    return source.withColumn(PRESENT, F.expr(kept)).select(*computed, *cols(OURS), PRESENT)
