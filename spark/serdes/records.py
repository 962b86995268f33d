"""Records to columns: the parts of a record, each decoded by the serde of its format, and compared with each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from spark.serdes import avro, debezium, debezium_avro
from spark.serdes.schemas import NONE
from spark.serdes.serde import decoder
from spark.topology.envelope import CAPTURED
from spark.topology.sql.ddl import quoted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame

    from spark.serdes.part import Part
    from spark.serdes.schemas import Schemas
    from spark.topology.columns import Column
    from spark.topology.consumed import Consumed

DIFFERS = "the value differs from the key"


def decode(
    records: DataFrame, consumed: Consumed, schemas: Mapping[Part, Schemas] = NONE, *, key_from_value: bool = False
) -> DataFrame:
    """Decode records.

    Args:
        records: binary `_key` and `_value`, and other columns whose names begin with an underscore, so that they never
            collide with a user's column; `_headers` among them if the declaration asks for headers.
        consumed: the declared columns and their formats.
        schemas: by part, the schemas of a registry that the records name.
        key_from_value: whether a column that is missing in the key is read from the value, if declared there too.

    Returns:
        The columns of `records`; the columns of the key and of the value, in their declared types; `_deleted`
        (boolean), true if there is no value; `_error` (string), what does not decode, or null. If `_error` is set,
        every declared column is null, since the fields of a broken record may have any value. One row for every record.
        Of a Debezium topic also `_at` (timestamp), the time of the change in the database, and `CAPTURED`.
    """
    if consumed.envelope is not None:
        parsed = debezium.decode(records, consumed, consumed.envelope, schemas)
    else:
        with_key = decoder(consumed, "key").decode(records, "key", consumed.key, schemas["key"])
        parsed = decoder(consumed, "value").decode(with_key, "value", consumed.value + consumed.again, schemas["value"])
    again = {column.name.lower(): _field("value", column) for column in consumed.again}
    key = {column.name.lower(): _field("key", column) for column in consumed.key}
    differs = F.greatest(F.lit(False), F.lit(False), *(again[name] != key[name] for name in again))  # skips nulls
    names = ", ".join(f"{column.name} {column.type}" for column in consumed.again)
    difference = F.when(differs, F.lit(f"{DIFFERS} ({names})"))
    with_error = parsed.withColumn("_error", F.coalesce("_key_error", "_value_error", difference))
    decoded = F.col("_error").isNull()
    columns = [
        (F.coalesce(key[name], again[name]) if key_from_value and name in again else key[name], column.name)
        for name, column in zip(key, consumed.key, strict=True)
    ]
    columns += [(_field("value", column), column.name) for column in consumed.value]
    columns += [] if consumed.headers is None else [(F.col("_headers"), consumed.headers)]
    return with_error.select(
        *records.columns,
        *(F.when(decoded, field).alias(name) for field, name in columns),
        (F.col("_value_row").isNull() & F.col("_value_error").isNull()).alias("_deleted"),
        "_error",
        *(("_at", *CAPTURED) if consumed.envelope is not None else ()),
    )


def decode_key(records: DataFrame, consumed: Consumed, schemas: Schemas) -> DataFrame:
    """Decode the keys of records: adds `_key_row` and `_key_error`, as a serde does, and maybe columns of its own."""
    if consumed.envelope is not None:
        return debezium.decode_key(records, consumed, consumed.envelope, schemas)
    return decoder(consumed, "key").decode(records, "key", consumed.key, schemas)


def check(part: Part, consumed: Consumed, schemas: Schemas, *, newest_only: bool) -> None:
    """Compare the declared columns of a part with the schemas of a registry: see `avro.check`.

    Raises:
        Mismatch: it cannot be read as declared, or no schema has a declared column.
    """
    columns = consumed.key if part == "key" else consumed.value + consumed.again
    if consumed.envelope is not None:
        debezium_avro.check(part, columns, schemas, consumed.envelope, newest_only=newest_only)
    else:
        avro.check(part, columns, schemas, newest_only=newest_only)


def _field(part: Part, column: Column) -> Expression:
    return F.col(f"_{part}_row.{quoted(column.name)}")
