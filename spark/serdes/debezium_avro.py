"""Events of a Debezium connector in Avro: the schema says where the row is, and what its values mean.

Of an envelope `after`, `op` and `source` are read, and of `after` the declared columns. Avro's reader skips the rest,
`before` among it. A declared column that an event's schema does not have is null.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from spark.serdes import avro
from spark.serdes.avro import Mismatch, Opened, Opener
from spark.serdes.avro_reading import Reading, Unreadable, field_named, reading
from spark.serdes.avro_types import Avro, Field, declared, parse
from spark.topology.columns import Column

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame

    from spark.serdes.part import Part
    from spark.serdes.schemas import Schema, Schemas
    from spark.topology.envelope import Envelope

BESIDE: Final = (Column("op", "string"), Column("millis", "bigint"), Column("change", "bigint"))
"""Beside the row: what changed it, the time of the change in milliseconds since 1970, and a number of the change."""
FLAT: Final = (Column("deleted", "string"), Column("op", "string"), Column("millis", "bigint"))
"""Beside a flattened row, each only if the record has it: two ways to say that it is deleted, and the time of the
change in milliseconds since 1970."""

CONSTANT: Final = ("version", "connector", "name", "snapshot", "db", "schema", "table")
"""Fields of `source` that tell no change of a table from another one."""
HASHED: Final = ("boolean", "int", "long", "float", "double", "string", "enum", "bytes", "fixed")
"""Types of the fields of `source` that tell a change."""


def decode(
    records: DataFrame, part: Part, columns: tuple[Column, ...], schemas: Schemas, envelope: Envelope
) -> DataFrame:
    """Decode a part of records, as `Serde.decode`: of a value also `_value_beside`, a struct of `BESIDE` or `FLAT`."""
    return avro.decode(records, part, columns, schemas, opener(part, envelope))


def check(part: Part, columns: tuple[Column, ...], schemas: Schemas, envelope: Envelope, *, newest_only: bool) -> None:
    """Compare the declared columns of a part with its schemas: see `avro.check`."""
    avro.check(part, columns, schemas, opener(part, envelope), newest_only=newest_only)


def opener(part: Part, envelope: Envelope) -> Opener:
    """What finds the row in a key or in a value."""
    if part == "key":
        return Opener(_key, ())
    return Opener(_flattened, FLAT) if envelope.flattened else Opener(_envelope, BESIDE)


def row_of(schema: Schema) -> list[tuple[str, str | None]] | None:
    """The columns of the row in a schema: their names and the types to declare; None if it is no envelope."""
    found = parse(schema.text, schema.references).value
    row = _row(found)
    return None if row is None else [(field.name, declared(field.type)) for field in row.fields]


def _row(value: Avro) -> Avro | None:
    """The type of `after` in an envelope; None if the type is no envelope."""
    fields = {field.name: field.type.value for field in value.fields}
    is_envelope = "op" in fields and fields.get("source", value).kind == "record" and "after" in fields
    return fields["after"] if is_envelope and fields["after"].kind == "record" else None


def _key(schema: Schema, value: Avro, columns: tuple[Column, ...]) -> Opened:
    if value.kind != "record":
        raise Mismatch(f"the schema {schema.id} is {value}, and the key of a Debezium topic is a record")
    return Opened(_with_times(value, columns), None, (), lambda _: F.lit(True))


def _envelope(schema: Schema, value: Avro, columns: tuple[Column, ...]) -> Opened:
    row = _row(value)
    if row is None:
        raise Mismatch(
            f"the schema {schema.id} is {value}, which is no envelope of Debezium: it has no op, source and after. "
            "Declare the topic of the table alone; write flattened=True if the transformation ExtractNewRecordState "
            "has removed the envelope"
        )
    fields = {field.name: field.type for field in value.fields}
    source = fields["source"]
    hashed = tuple(
        Field(field.name, _plain(field.type))
        for field in source.value.fields
        if field.type.value.kind in HASHED and field.name not in CONSTANT
    )
    reader = replace(source.value, fields=hashed)
    millis = next((one.type.value.kind for one in hashed if one.name == "ts_ms"), "")
    beside = (
        (BESIDE[0], "op", _read(schema, "op", fields["op"], "string")),
        (BESIDE[1], "source", Reading(reader, "ts_ms", _millis) if millis in ("int", "long") else None),
        (BESIDE[2], "source", Reading(reader, str(hashed), F.xxhash64) if hashed else None),
    )
    return Opened(_with_times(row, columns), "after", beside, lambda record: ~record["op"].isin("d", "t"))


def _millis(source: Expression) -> Expression:
    return source["ts_ms"]


def _flattened(schema: Schema, value: Avro, columns: tuple[Column, ...]) -> Opened:
    if _row(value) is not None:
        raise Mismatch(f"the schema {schema.id} is an envelope of Debezium: leave out flattened=True")
    if value.kind != "record":
        raise Mismatch(f"the schema {schema.id} is {value}, and a row is a record")
    fields = {field.name: field.type for field in value.fields}
    beside = tuple(
        (column, name, _read(schema, name, fields[name], str(column.type)) if name in fields else None)
        for column, name in zip(FLAT, ("__deleted", "__op", "__source_ts_ms"), strict=True)
    )

    def has_row(record: Expression) -> Expression:
        deletes = F.lit(False)
        if "__deleted" in fields:
            deletes |= F.coalesce(F.lower(record["__deleted"]) == "true", F.lit(False))
        if "__op" in fields:
            deletes |= F.coalesce(record["__op"] == "d", F.lit(False))
        return ~deletes

    return Opened(_with_times(value, columns), None, beside, has_row)


def _read(schema: Schema, name: str, avro_: Avro, kind: str) -> Reading:
    try:
        return replace(reading(avro_, kind), wrong=None)
    except Unreadable:
        what = f"the schema {schema.id} has {name} as {avro_.value}, which Debezium writes as another type"
        raise Mismatch(f"{what}: declare the topic with Consumed.avro") from None


def _with_times(row: Avro, columns: tuple[Column, ...]) -> Avro:
    """The row, in which the number of a time is in UTC or local as it is declared: Debezium writes the same number."""
    fields = list(row.fields)
    for column in columns:
        field = field_named(column.name, row.fields)
        if field is None or column.type not in ("timestamp", "timestamp_ntz"):
            continue
        its = field.type.value
        if its.logical.removeprefix("local-").startswith("timestamp-"):
            local = "local-" if column.type == "timestamp_ntz" else ""
            logical = replace(its, logical=local + its.logical.removeprefix("local-"))
            nullable = Avro("union", branches=(Avro("null"), logical)) if field.type.is_nullable else logical
            fields[fields.index(field)] = replace(field, type=nullable)
    return replace(row, fields=tuple(fields))


def _plain(avro_: Avro) -> Avro:
    """The type without logical types, and without defaults of its own."""
    return replace(avro_, logical="", branches=tuple(map(_plain, avro_.branches)))
