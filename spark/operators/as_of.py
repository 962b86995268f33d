"""The changes of a table that its records make, for as-of lookups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from spark.operators.algebra import OURS, PLACED, PRESENT, cols
from spark.operators.select import selected
from spark.topology.nodes import Select

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from spark.topology.nodes import Node


def changed(right: Node, told: DataFrame) -> DataFrame:
    """One change of a table, or of a view, for every record with a key. Columns: `right`'s, `PLACED`, `_present`."""
    if isinstance(right, Select):
        return selected(right, changed(right.source, told), *(name for name in PLACED if name not in OURS))
    keyed = told.where(" AND ".join(f"`{name}` IS NOT NULL" for name in right.key))
    return keyed.withColumn(PRESENT, ~F.col("_deleted"))


def newer(right: Node, told: DataFrame, earlier: DataFrame | None) -> DataFrame:
    """The records without those of a lower offset than an earlier record, such as a record decoded again."""
    if earlier is None:
        return told
    while isinstance(right, Select):
        right = right.source
    place = [*right.key, "_topic", "_partition"]
    last = earlier.groupBy(*cols(place)).agg(F.max("_offset").alias("_last"))
    overtaken = [F.col(f"t.`{name}`") == F.col(f"l.`{name}`") for name in place]
    return told.alias("t").join(last.alias("l"), [*overtaken, F.col("t._offset") < F.col("l._last")], "left_anti")


def row(right: Node) -> Column:
    """The right side's columns that a select list may use, as a struct."""
    return F.struct(*cols(column.name for column in right.columns), *cols(OURS))
