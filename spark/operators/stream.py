"""Streams: the records of a landing, and `merge`. What did not decode is no record of a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark.operators.algebra import STREAMED, cols, records
from spark.topology.nodes import Records, Union

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from spark.topology.nodes import Scan


@records.register(Records)
def _(node: Records, read: Callable[[Scan], DataFrame]) -> DataFrame:
    names = [column.name for column in node.columns]
    return read(node.source).where("_error IS NULL").select(*cols(names), *cols(STREAMED))


@records.register(Union)
def _(union: Union, read: Callable[[Scan], DataFrame]) -> DataFrame:
    return records(union.left, read).unionByName(records(union.right, read))
