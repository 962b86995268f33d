"""Typed columns to Avro bytes whose schema is in a registry: a byte 0, the schema's id in four bytes, and the value.

Columns are cast to the types of the schema's columns, which are the same or wider, so that nothing is lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.avro.functions import to_avro

from spark.serdes.framing import header_for
from spark.topology.columns import published_name
from spark.topology.sql.ddl import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame

    from spark.serdes.schemas import Writing


def encode_key(rows: DataFrame, key: tuple[str, ...], writing: Writing | None = None) -> Expression:  # noqa: ARG001  # as every serde
    """The key of each row; null if every column of it is null. A key of one column is written without a record."""
    assert writing is not None, "Avro is written by a schema"
    columns = [F.col(quoted(name)) for name in key]
    value = columns[0].cast(str(writing.columns[0].type)) if len(key) == 1 else _record(key, writing)
    has_key = F.greatest(*(column.isNotNull() for column in columns), F.lit(False))
    return F.when(has_key, F.concat(F.lit(header_for(writing.id)), to_avro(value, writing.text)))


def encode_value(rows: DataFrame, columns: tuple[str, ...], writing: Writing | None = None) -> Expression:  # noqa: ARG001  # as every serde
    """The value of each row, a record."""
    assert writing is not None, "Avro is written by a schema"
    header = F.lit(header_for(writing.id))
    return F.concat(header, to_avro(_record(columns, writing), writing.text)) if columns else header


def _record(names: tuple[str, ...], writing: Writing) -> Expression:
    fields = zip(names, writing.columns, strict=True)
    return F.struct(*(F.col(quoted(name)).cast(str(one.type)).alias(published_name(name)) for name, one in fields))
