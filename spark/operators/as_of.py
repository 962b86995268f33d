"""The changes that records make to a table, for as-of lookups."""

from __future__ import annotations

from functools import singledispatch
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from spark.operators.algebra import OURS, PLACED, PRESENT, cols
from spark.operators.select import selected
from spark.topology.nodes import Select

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from spark.topology.nodes import Node


@singledispatch
def as_changes(right: Node, records: DataFrame) -> DataFrame:
    """One change of a table, or of a view, for every record with a key. Columns: `right`'s, `PLACED`, `_present`.

    Every kind of node that is a view row by row registers its own.
    """
    if right.is_row_by_row:
        raise TypeError(f"no changes are registered for {type(right).__name__}")
    keyed = records.where(" AND ".join(f"`{name}` IS NOT NULL" for name in right.key))
    return keyed.withColumn(PRESENT, ~F.col("_deleted"))


@as_changes.register(Select)
def _(right: Select, records: DataFrame) -> DataFrame:
    return selected(right, as_changes(right.source, records), *(name for name in PLACED if name not in OURS))


def without_superseded(right: Node, records: DataFrame, earlier: DataFrame | None) -> DataFrame:
    """The records without those of a lower offset than an earlier record of their key and partition.

    Such a record is a record that was decoded again.
    """
    if earlier is None:
        return records
    while right.is_row_by_row:
        [right] = right.sources
    by = [*right.key, "_topic", "_partition"]
    last = earlier.groupBy(*cols(by)).agg(F.max("_offset").alias("_last"))
    same = [F.col(f"r.`{name}`") == F.col(f"l.`{name}`") for name in by]
    return records.alias("r").join(last.alias("l"), [*same, F.col("r._offset") < F.col("l._last")], "left_anti")


def row(right: Node) -> Column:
    """The right side's columns that a select list may use, as a struct."""
    return F.struct(*cols(column.name for column in right.columns), *cols(OURS))
