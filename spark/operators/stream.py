"""Streams: the records of a landing, the changes of a table, and `merge`.

What did not decode is no record of a stream. A table's changes are as many as its commits tell apart: what a step took
in at once is one change of a key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from spark.operators.algebra import STREAMED, cols, records
from spark.topology.nodes import Changes, Records, Scan, Union

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame


@records.register(Records)
def _(node: Records, read: Callable[[Scan], DataFrame]) -> DataFrame:
    names = [column.name for column in node.columns]
    decoded = read(node.source).where("_error IS NULL").withColumn("_ordinal", F.lit(0))
    return decoded.select(*cols(names), *cols(STREAMED))


@records.register(Changes)
def _(changes: Changes, read: Callable[[Scan], DataFrame]) -> DataFrame:
    assert isinstance(changes.source, Scan), "a topology has changes of stored tables alone"
    # What a commit put there is behind what it took away: under another key, both may be one key's.
    told = read(changes.source).withColumn("_ordinal", (~F.col("_deleted")).cast("int"))
    return told.select(*cols(column.name for column in changes.columns), *cols(STREAMED))


@records.register(Union)
def _(union: Union, read: Callable[[Scan], DataFrame]) -> DataFrame:
    left, right = (
        records(side, read).withColumn("_ordinal", F.col("_ordinal") * 2 + number)
        for number, side in enumerate((union.left, union.right))
    )
    return left.unionByName(right)
