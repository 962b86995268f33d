"""Avro bytes whose schema is in a registry, to typed columns. `_error` says what does not decode.

A record has a byte 0, the id of a schema in four bytes, and then what was written by that schema (the wire format of
Confluent's serializers). A schema is a record with the declared columns among its fields; or, for one declared column,
any other type, as the serializers of keys write `"long"`. Fields that are not declared are skipped. A declared column
that a schema does not have is read from the field that has it as an alias in another schema; else it has the default of
the newest schema that has one; else it is null. A record whose value is the null of a union is a tombstone.

Avro has no mark of where a record ends. Eight bytes are appended, and the writer's schema gets a field `double` after
the record: it has their value only if the record was read to its end, and no further. This tells errors from nulls, and
finds bytes after the record.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro

from spark.serdes.avro_reading import Reading, Unreadable, advice, field_named, reading
from spark.serdes.avro_types import Avro, Field, NotAvro, as_json, declared, merged, parse
from spark.serdes.framing import content_of, header_for, header_of, is_framed
from spark.serdes.schemas import UNKNOWN
from spark.topology.sql.ddl import struct_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame

    from spark.serdes.avro_reading import Take
    from spark.serdes.part import Part
    from spark.serdes.schemas import Schema, Schemas
    from spark.topology.columns import Column

END: Final = b"Tidetabl"
"""The bytes that are appended. As a double they are a number, not NaN, which Spark would not compare."""
END_VALUE: Final[float] = struct.unpack("<d", END)[0]

FRAMED, VALUE, AFTER = "tidetable_framed", "value", "after"
"""The record around a schema, and its fields: encoded, it is the value and nothing else."""

GUID_HEADER: Final = 17  # bytes of the newer framing: 1, and a GUID

OPTIONS: Final = {"mode": "PERMISSIVE", "enableStableIdentifiersForUnionType": "true"}


@dataclass(frozen=True)
class Opened:
    """Where the row is in a record that has more than the row.

    `row` is the type of the row, and `field` the field that has it; None if the record is the row. `beside` are columns
    that are read of the record itself: the column, the field, and how it is read; null without a reading. `has_row`
    says of a record that was read whether its row counts.
    """

    row: Avro
    field: str | None
    beside: tuple[tuple[Column, str, Reading | None], ...]
    has_row: Take


@dataclass(frozen=True)
class Opener:
    """Finds the row in the record of a schema, for the declared columns. It raises `Mismatch` if there is none.

    `beside` are the columns that `Opened.beside` has for every schema.
    """

    open: Callable[[Schema, Avro, tuple[Column, ...]], Opened]
    beside: tuple[Column, ...]


@dataclass(frozen=True)
class _Plan:
    """How the declared columns are read from one schema; `columns` has no reading for one that is null."""

    writer: str
    reader: str
    columns: tuple[tuple[Column, str, Reading | None], ...]
    """The columns, the field of the reader, and how it is read. The field is empty for a schema that is no record."""
    opened: Opened | None = None

    @property
    def title(self) -> tuple[object, ...]:
        """Schemas with the same title are read in the same way."""
        beside = () if self.opened is None else (self.opened.field, *_titles(self.opened.beside))
        return (self.reader, *_titles(self.columns), beside)


def _titles(columns: tuple[tuple[Column, str, Reading | None], ...]) -> tuple[tuple[str, str | None], ...]:
    return tuple((name, None if one is None else one.title) for _, name, one in columns)


class Mismatch(ValueError):
    """A schema cannot be read as declared; the message says why.

    Declare the columns as the message says.
    """


def decode(
    records: DataFrame, part: Part, columns: tuple[Column, ...], schemas: Schemas, opener: Opener | None = None
) -> DataFrame:
    """Decode a part of records: see `Serde.decode`.

    With an opener also `_key_beside` or `_value_beside`, a struct of what it reads beside the row; null if the record
    has no such part, or does not decode. The row is null if `has_row` is not true.
    """
    raw, prefix, body = f"_{part}", f"_{part}_prefix", f"_{part}_body"
    groups: dict[tuple[object, ...], list[tuple[bytes, _Plan]]] = {}
    broken: list[tuple[bytes, str]] = []
    for schema in schemas.known.values():
        try:
            plan = _plan(schema, columns, schemas, opener)
            groups.setdefault(plan.title, []).append((header_for(schema.id), plan))
        except Mismatch as mismatch:
            broken.append((header_for(schema.id), str(mismatch)))
    framed = records.select(
        "*",
        header_of(F.col(raw)).alias(prefix),
        F.concat(content_of(F.col(raw)), F.lit(END)).alias(body),
    )
    names = {title: f"_{part}_read_{number}" for number, title in enumerate(groups)}
    read = framed.select("*", *(_read(prefix, body, groups[title]).alias(name) for title, name in names.items()))
    row, beside, error = F.lit(None), F.lit(None), _without_frame(part, raw)
    for number, (title, plans) in enumerate(groups.items()):
        mine = F.col(prefix).isin(*(F.lit(header) for header, _ in plans))
        values, others, wrong = _values(part, names[title], prefix, plans[0][1])
        row, beside = ((old if number else F).when(mine, new) for old, new in ((row, values), (beside, others)))
        error = error.when(mine, wrong)
    for header, why in broken:
        error = error.when(F.col(prefix) == F.lit(header), F.lit(f"the {part} cannot be read: {why}"))
    around = () if opener is None else (beside.cast(struct_of(opener.beside)).alias(f"_{part}_beside"),)
    return read.select(
        *records.columns,
        row.cast(struct_of(columns)).alias(f"_{part}_row"),
        error.otherwise(_unknown(part, prefix, schemas)).alias(f"_{part}_error"),
        *around,
    )


def check(
    part: Part, columns: tuple[Column, ...], schemas: Schemas, opener: Opener | None = None, *, newest_only: bool
) -> None:
    """Compare the declared columns of a part with its schemas.

    Args:
        part: the part.
        columns: its declared columns.
        schemas: the schemas, the newest last.
        opener: as of `decode`.
        newest_only: whether the newest must be readable; else any of them.

    Raises:
        Mismatch: it cannot be read as declared, or no schema has a declared column.
    """
    known = tuple(schemas.known.values())
    mismatch: Mismatch | None = None
    for schema in reversed(known):
        try:
            _plan(schema, columns, schemas, opener)
            break
        except Mismatch as error:
            mismatch = mismatch or error
            if newest_only:
                break
    else:
        if mismatch is not None:
            raise mismatch
    if newest_only and mismatch is not None:
        raise mismatch
    parsed = [avro for avro in (_row(schema, columns, opener) for schema in known) if avro is not None]
    records = [avro for avro in parsed if avro.kind == "record"]
    others = records if opener is None else []
    for column in columns:
        if records and not any(_found(column, avro, others) for avro in records):
            names = ", ".join(field.name for field in records[-1].fields) or "none"
            raise Mismatch(
                f"no schema of the {part} has the column {column.name} ({column.type}); the fields of the schema "
                f"{known[-1].id} are {names}: correct the name, or leave {column.name} out"
            )


def _read(prefix: str, body: str, plans: Sequence[tuple[bytes, _Plan]]) -> Expression:
    """What Avro's reader reads by each of the schemas, which all have the same reader."""
    result: Expression | None = None
    for header, plan in plans:
        value = from_avro(F.col(body), plan.writer, {**OPTIONS, "avroSchema": plan.reader})
        is_mine = F.col(prefix) == F.lit(header)
        result = F.when(is_mine, value) if result is None else result.when(is_mine, value)
    assert result is not None
    return result


def _values(part: Part, read: str, prefix: str, plan: _Plan) -> tuple[Expression, Expression, Expression]:
    """The row of a record that was read, what is beside the row, and the error."""
    whole = F.coalesce(F.col(f"{read}.{AFTER}") == F.lit(END_VALUE), F.lit(False))
    outer = F.col(f"{read}.{VALUE}")
    opened = plan.opened
    value = outer if opened is None or opened.field is None else outer.getField(opened.field)
    fields, errors = [], []
    for column, name, one in plan.columns:
        if one is None:
            fields.append(F.lit(None).cast(str(column.type)).alias(column.name))
            continue
        field = value.getField(name) if name else value
        fields.append(one.value(field).alias(column.name))
        if one.wrong is not None:
            why = F.lit(f"the {part}'s {column.name} does not fit {column.type}: {one.title}, schema id ")
            errors.append(F.when(F.coalesce(one.wrong(field), F.lit(False)), F.concat(why, _id(prefix))))
    undecoded = F.concat(F.lit(f"the {part} does not decode as Avro by the schema id "), _id(prefix))
    wrong = F.coalesce(*errors) if errors else F.lit(None).cast("string")
    has_row, beside = value.isNotNull(), F.lit(None)
    if opened is not None:
        has_row &= opened.has_row(outer)
        others = [
            (F.lit(None) if one is None else one.value(outer.getField(name))).cast(str(column.type)).alias(column.name)
            for column, name, one in opened.beside
        ]
        beside = F.when(whole & outer.isNotNull(), F.struct(*others))
        wrong = F.when(has_row, wrong)
    return F.when(whole & has_row, F.struct(*fields)), beside, F.when(~whole, undecoded).otherwise(wrong)


def _without_frame(part: Part, raw: str) -> Expression:
    """The error of bytes without the wire format; null without bytes. A chain of `when` that goes on."""
    first = F.substring(F.col(raw), F.lit(1), F.lit(1))
    guid = (first == F.lit(b"\1")) & (F.octet_length(F.col(raw)) >= GUID_HEADER)
    by_guid = f"the {part} names its schema by a GUID (a first byte 1), and is read by ids (a first byte 0) only"
    bare = (
        f"the {part} has no Avro framing: it must begin with a byte 0 and a schema id of four bytes. A GUID in the "
        "headers is not read"
    )
    return (
        F.when(F.col(raw).isNull(), F.lit(None).cast("string"))
        .when(guid, F.lit(by_guid))
        .when(~is_framed(F.col(raw)), F.lit(bare))
    )


def _unknown(part: Part, prefix: str, schemas: Schemas) -> Expression:
    """The error of a record with another schema id; if the id was not looked up, the query fails."""
    number = _id(prefix)
    absent = F.concat(F.lit(f"the {part} was written by a schema that the registry does not have, id "), number)
    if schemas.is_complete:
        return absent
    ask = F.raise_error(F.concat(F.lit(f"{UNKNOWN} {part} "), number)).cast("string")
    missing = [F.lit(header_for(one)) for one in sorted(schemas.missing)]
    return F.when(F.col(prefix).isin(*missing), absent).otherwise(ask) if missing else ask


def _id(prefix: str) -> Expression:
    return F.conv(F.substring(F.hex(F.col(prefix)), 3, 8), 16, 10)


def id_of(raw: str) -> Expression:
    """The schema id of the bytes in a column, as text; null if they have no framing by an id."""
    return F.when(is_framed(F.col(raw)), _id(raw))


def _plan(schema: Schema, columns: tuple[Column, ...], schemas: Schemas, opener: Opener | None) -> _Plan:
    """How declared columns are read from a schema. With an opener, nothing is taken from other schemas.

    Raises:
        Mismatch: they cannot be.
    """
    if schema.kind != "AVRO":
        raise Mismatch(f"the schema {schema.id} is {schema.kind}, not AVRO: declare the topic in its format")
    try:
        avro = parse(schema.text, schema.references)
    except NotAvro as error:
        raise Mismatch(f"the schema {schema.id} is not valid Avro ({error})") from error
    if avro.value.kind != "record" and opener is None:
        return _whole(schema, avro, columns)
    opened = None if opener is None else opener.open(schema, avro.value, columns)
    row = avro.value if opened is None else opened.row
    parsed = [] if opener is not None else [_parsed(one) for one in schemas.known.values()]
    others = [other for other in parsed if other is not None and other.kind == "record"]
    taken: list[tuple[Column, str, Reading | None]] = []
    read: dict[str, Field] = {}
    for column in columns:
        found = _found(column, row, others)
        if found is None:
            found = _with_default(column, others)
            if found is None:
                taken.append((column, "", None))
                continue
        one = _reading(schema, column, found.type)
        taken.append((column, found.name, one))
        read[found.name] = Field(found.name, one.reader, default=found.default)
    reader = replace(avro.value, fields=tuple((read if opened is None else _with_beside(opened, read)).values()))
    if avro.is_nullable:
        reader = replace(avro, kind="union", branches=(Avro("null"), reader))
    try:
        reader = merged(reader)
    except NotAvro as error:
        raise Mismatch(str(error)) from error
    return _Plan(_framed(avro), _framed(reader, logical=True), tuple(taken), opened)


def _with_beside(opened: Opened, read: Mapping[str, Field]) -> dict[str, Field]:
    """The fields that are read of a record around a row; `read` are those of the row."""
    fields = dict(read)
    if opened.field is not None:
        row = replace(opened.row, fields=tuple(read.values()))
        fields = {opened.field: Field(opened.field, Avro("union", branches=(Avro("null"), row)))}
    for _, name, one in opened.beside:
        if one is not None:
            fields.setdefault(name, Field(name, one.reader))
    return fields


def _whole(schema: Schema, avro: Avro, columns: tuple[Column, ...]) -> _Plan:
    """How the one declared column is read from a schema that is no record."""
    if len(columns) != 1:
        names = ", ".join(column.name for column in columns)
        raise Mismatch(f"the schema {schema.id} is {avro}, one column, and {names} are declared: declare one")
    one = _reading(schema, columns[0], avro)
    return _Plan(_framed(avro), _framed(one.reader, logical=True), ((columns[0], "", one),))


def _reading(schema: Schema, column: Column, avro: Avro) -> Reading:
    try:
        return reading(avro, str(column.type))
    except Unreadable:
        raise Mismatch(
            f"the column {column.name} is declared {column.type}, and the schema {schema.id} has it as {avro.value}: "
            f"{advice(column.name, avro)}"
        ) from None


def _found(column: Column, avro: Avro, others: Sequence[Avro]) -> Field | None:
    """The field of a column in a record: by its name, else by an alias that it has in this or another schema."""
    if (own := field_named(column.name, avro.fields)) is not None:
        return replace(own, default=())
    for field in avro.fields:  # the declaration has the former name
        if column.name in field.aliases:
            return replace(field, default=())
    for other in reversed(others):
        same = field_named(column.name, other.fields)
        for alias in same.aliases if same is not None else ():
            if (former := field_named(alias, avro.fields)) is not None:
                return replace(former, default=())
    return None


def _with_default(column: Column, others: Sequence[Avro]) -> Field | None:
    """The field of a column in the newest schema that has a default for it."""
    for other in reversed(others):
        field = field_named(column.name, other.fields)
        if field is not None and field.default:
            return field
    return None


def _framed(avro: Avro, *, logical: bool = False) -> str:
    """The schema of the record around a type, as text."""
    outer = Avro("record", FRAMED, fields=(Field(VALUE, avro), Field(AFTER, Avro("double"))))
    return json.dumps(as_json(outer, logical=logical))


def _parsed(schema: Schema) -> Avro | None:
    try:
        return parse(schema.text, schema.references).value if schema.kind == "AVRO" else None
    except NotAvro:
        return None


def _row(schema: Schema, columns: tuple[Column, ...], opener: Opener | None) -> Avro | None:
    """The type of the row in a schema; None if it has none."""
    avro = _parsed(schema)
    if avro is None or opener is None:
        return avro
    try:
        return opener.open(schema, avro, columns).row
    except Mismatch:
        return None


def columns_of(schema: Schema, name: str) -> list[tuple[str, str | None]]:
    """The columns that a schema can be declared with: their names and types; the type is None if there is none.

    A schema that is no record is one column, of the given name.

    Raises:
        Mismatch: it is no Avro schema.
    """
    if schema.kind != "AVRO":
        raise Mismatch(f"the schema {schema.id} is {schema.kind}, not AVRO")
    try:
        avro = parse(schema.text, schema.references).value
    except NotAvro as error:
        raise Mismatch(f"the schema {schema.id} is not valid Avro ({error})") from error
    if avro.kind != "record":
        return [(name, declared(avro))]
    return [(field.name, declared(field.type)) for field in avro.fields]
