"""JSON bytes to typed columns. What does not decode is said in `_error`; nothing is dropped.

A value must be a JSON object whose fields have the declared types; fields that are not declared are left out, declared
ones that are missing are null. A record without a value, or with the JSON literal null, is a tombstone. A key of one
column may be an object or a bare scalar: `{"id": 7}`, `7`, `"7"`; a key of several columns is an object.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from spark.operators.algebra import cols
from spark.topology.ddl import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame

    from spark.topology.consumed import Consumed
    from spark.topology.nodes import Column

CORRUPT = "_corrupt"
OPTIONS = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT, "allowSingleQuotes": "false"}


def decode(records: DataFrame, consumed: Consumed) -> DataFrame:
    """Records with binary `key` and `value`, plus: typed columns (key first), `_deleted`, `_error`."""
    names = {column.name for column in consumed.key}
    value = [column for column in consumed.value if column.name not in names]
    texts = records.select(
        "*",
        F.col("key").cast("string").alias("_k"),
        F.nullif(F.col("value").cast("string"), F.lit("null")).alias("_v"),
    )
    parsed = texts.select("*", _object("_k", consumed.key).alias("_ko"), _object("_v", value).alias("_vo"))
    key = [_key(column, bare=len(consumed.key) == 1).alias(column.name) for column in consumed.key]
    keyed = parsed.select("*", *key)
    deleted = F.col("_v").isNull()
    no_key = F.expr(" AND ".join(f"{quoted(column.name)} IS NULL" for column in consumed.key))
    bad_key = F.col("_k").isNotNull() & no_key & ~_is_null_object()
    error = F.when(bad_key | _broken("_k", "_ko", bare=len(consumed.key) == 1), _says("key", consumed.key)).when(
        ~deleted & _broken("_v", "_vo", bare=False), _says("value", value)
    )
    return keyed.select(
        *records.columns,
        *cols(column.name for column in consumed.key),
        *(F.col(f"_vo.{quoted(column.name)}").alias(column.name) for column in value),
        deleted.alias("_deleted"),
        error.alias("_error"),
    )


def _object(text: str, columns: list[Column] | tuple[Column, ...]) -> Expression:
    schema = ", ".join([*(f"{quoted(column.name)} {column.type}" for column in columns), f"{CORRUPT} string"])
    return F.from_json(text, schema, OPTIONS)


def _broken(text: str, parsed: str, bare: bool) -> Expression:
    """An object that did not decode. Spark takes blank text for an empty object and ignores what follows one."""
    whole = F.col(text).rlike(r"^\s*\{") & F.col(text).rlike(r"\}\s*$")
    corrupt = F.col(f"{parsed}.{CORRUPT}").isNotNull()
    return (whole & corrupt) if bare else F.col(text).isNotNull() & (~whole | corrupt)


def _key(column: Column, bare: bool) -> Expression:
    field = F.col(f"_ko.{quoted(column.name)}")
    if not bare:
        return field
    scalar = F.regexp_replace(F.col("_k"), r'^\s*"(.*)"\s*$', "$1")
    return F.when(F.col("_k").rlike(r"^\s*\{"), field).otherwise(scalar.try_cast(str(column.type)))


def _is_null_object() -> Expression:
    """The key says itself that it has no value, which is a record without a key and not a broken one."""
    return F.col("_k").rlike(r"^\s*\{.*\}\s*$") & F.col(f"_ko.{CORRUPT}").isNull() | (F.trim("_k") == "null")


def _says(part: str, columns: list[Column] | tuple[Column, ...]) -> Expression:
    declared = ", ".join(f"{column.name} {column.type}" for column in columns)
    return F.lit(f"the {part} is not JSON of ({declared})")
