"""Streams: the records of a landing or a stored stream, the changes of a table, `merge`, and `flat_map`.

A record that did not decode is not in a stream. A table has one change per key and commit: all that a step did to a key
is one change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from spark.operators.algebra import PLACED, cols, records
from spark.operators.order import from_zero, pair_number
from spark.topology.envelope import CAPTURED
from spark.topology.nodes import Changes, Explode, Records, Union
from spark.topology.sql.ddl import quoted

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from spark.topology.nodes import Node


@records.register(Records)
@records.register(Changes)
def _(node: Records | Changes, read: Callable[[Node], DataFrame]) -> DataFrame:
    captured = CAPTURED if isinstance(node, Records) and node.captured else ()
    return read(node.source).select(*cols(column.name for column in node.columns), *cols((*PLACED, *captured)))


@records.register(Union)
def _(union: Union, read: Callable[[Node], DataFrame]) -> DataFrame:
    left, right = (
        records(side, read).withColumn("_ordinal", F.col("_ordinal") * 2 + number)
        for number, side in enumerate((union.left, union.right))
    )
    return left.unionByName(right)


@records.register(Explode)
def _(node: Explode, read: Callable[[Node], DataFrame]) -> DataFrame:
    source = records(node.source, read)
    others = [column.name for column in node.columns if column.name != node.column]
    elements = source.select(
        *cols(others), *cols(PLACED), F.expr(f"posexplode({quoted(node.column)}) AS (_element, {quoted(node.column)})")
    )
    ordinal = pair_number(
        from_zero(F.col("_ordinal")), F.col("_element")
    )  # the source may be exploded or merged already
    return elements.withColumn("_ordinal", ordinal).select(*cols(column.name for column in node.columns), *cols(PLACED))
