"""`filter` and `map_values`, and on streams `select_key`. A row that stops matching is absent; its key stays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from spark.operators.algebra import (
    OURS,
    PLACED,
    PRESENT,
    Snapshot,
    Span,
    cols,
    present,
    previous,
    records,
    rows,
    touched,
)
from spark.topology.nodes import Select
from spark.topology.sql.ddl import quoted

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column, DataFrame

    from spark.topology.nodes import Node


@touched.register(Select)
def _(select: Select, span: Span) -> DataFrame | None:
    source = touched(select.source, span)
    return None if source is None else selected(select, source)


@rows.register(Select)
def _(select: Select, keys: DataFrame | None, now: Snapshot) -> DataFrame:
    return selected_rows(select, rows(select.source, keys, now))


@previous.register(Select)
def _(select: Select, keys: DataFrame, span: Span) -> DataFrame:
    return selected_rows(select, previous(select.source, keys, span))


@records.register(Select)
def _(select: Select, read: Callable[[Node], DataFrame]) -> DataFrame:
    source = records(select.source, read)
    matching = source if select.where is None else source.where(F.expr(select.where))
    return matching.select(*computed(select, "NOT _deleted"), *cols(PLACED))


def selected_rows(select: Select, source: DataFrame) -> DataFrame:
    """The selected rows of a frame in which every row is present. Columns: the node's and `OURS`."""
    return present(selected(select, source.withColumn(PRESENT, F.lit(True))))


def selected(select: Select, source: DataFrame, *more: str) -> DataFrame:
    """One row per source row: the node's columns, `OURS`, `_present`, and the source's columns `more`."""
    is_present = PRESENT
    if select.where is not None:
        is_present = f"CASE WHEN {PRESENT} THEN coalesce({select.where}, false) ELSE false END"
    return source.withColumn(PRESENT, F.expr(is_present)).select(
        *computed(select, PRESENT), *cols((*OURS, PRESENT, *more))
    )


def computed(select: Select, is_present: str) -> list[Column]:
    """The selected columns; null for an absent row, whose values could fail to compute under ANSI rules."""
    return [
        F.expr(quoted(name) if name in select.key else f"CASE WHEN {is_present} THEN {text} END").alias(name)
        for name, text in select.select
    ]
