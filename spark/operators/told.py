"""What the records of a table's stream tell those who look its rows up."""

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
    """The changes that records make to a table, or to a view of it, one for every one with a key; with `PLACED`."""
    if isinstance(right, Select):
        return selected(right, changed(right.source, told), *(name for name in PLACED if name not in OURS))
    keyed = told.where(" AND ".join(f"`{name}` IS NOT NULL" for name in right.key))
    return keyed.withColumn(PRESENT, ~F.col("_deleted"))


def row(right: Node) -> Column:
    """What a select list may take of the right side."""
    return F.struct(*cols(column.name for column in right.columns), *cols(OURS))
