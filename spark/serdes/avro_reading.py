"""How a declared column is read from a schema: what Avro's reader reads, and how Spark turns that into the column.

The reader has the types of the writer, so that Avro converts nothing: it would read 123.45 of scale 2 as 12.345 of
scale 3. Spark casts what it read to the declared type, and the value is wrong if the cast is not exact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from pyspark.sql import Column as Expression
from pyspark.sql import functions as F

from spark.serdes.avro_types import BOOLEAN, VARIABLE, WIDEST, Avro, Field, as_number, declared, member
from spark.topology.columns import Column
from spark.topology.errors import Place
from spark.topology.sql.ddl import fields as struct_fields

Take = Callable[[Expression], Expression]

WIDTHS = {"tinyint": 1, "smallint": 2, "int": 4, "bigint": 8}
"""Bytes of the integers."""

LONG_DIGITS, LONG_BYTES = 18, 8
"""Spark reads a decimal of so many digits as a long, and drops the bytes beyond its eighth."""

LARGEST_SCALE = 16_383
"""Decimal places of PostgreSQL's widest numeric."""

INTEGER = r"^[+-]?[0-9]+$"
DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
TIME = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6}0*)?)?"
ZONE = r"(Z|[+-][0-9]{2}:[0-9]{2})?$"
DAY = 86_400_000_000  # microseconds


class Unreadable(ValueError):
    """A type of a schema cannot be read as the declared one.

    Declare the type that `tidetable schema declare TOPIC` prints.
    """


@dataclass(frozen=True)
class Reading:
    """A type of the reader, and what makes a value of the declared type of it.

    `value` is null if there is none. `wrong` is true if a value is not the one that was written; None if all are.
    `title` tells two readings apart that have the same type of the reader.
    """

    reader: Avro
    title: str
    value: Take
    wrong: Take | None = None


def _same(value: Expression) -> Expression:
    return value


def reading(avro: Avro, kind: str) -> Reading:
    """How a declared type, as normalised DDL text, is read from a type of a schema.

    Raises:
        Unreadable: it cannot be, whatever the value.
    """
    value = avro.value
    if value.kind == "null" or (value.kind == "union" and not value.branches):
        raise Unreadable  # a column that is always null: nobody knows what it will be
    if value.kind == "union" and (number := as_number(value)) is not None:
        found = replace(reading(number, kind), reader=value)
    elif value.kind == "union":
        found = _union(value, kind)
    elif value.kind == "array":
        found = _array(value, kind)
    elif value.kind == "map":
        found = _map(value, kind)
    elif value.name == VARIABLE and not kind.startswith("struct<"):
        found = _variable_decimal(value, kind)
    elif value.kind == "record":
        found = _record(value, kind)
    elif value.kind == "recursion":
        raise Unreadable
    else:
        found = _scalar(value, kind)
    if avro.is_nullable:
        inside = found.reader.branches if found.reader.kind == "union" else (found.reader,)
        found = replace(found, reader=Avro("union", branches=(Avro("null"), *inside)))
    return replace(found, title=f"{avro} as {kind} ({found.title})")


def _scalar(avro: Avro, kind: str) -> Reading:
    bare = Avro(avro.kind, avro.name, size=avro.size, symbols=avro.symbols)
    if avro.logical == "decimal":
        return _decimal(avro, kind)
    if avro.logical.startswith(("timestamp-", "local-timestamp-")) and kind in ("timestamp", "timestamp_ntz"):
        return _timestamp(avro, kind, bare)
    if avro.logical == "date" and kind == "date":
        return Reading(replace(bare, logical="date"), "", _same, _without_year)
    if avro.logical.startswith("time-") and kind == "string":
        return _time(avro, bare)
    if avro.logical == "uuid" and avro.kind == "fixed" and kind == "string":
        return Reading(bare, "uuid", _uuid)
    if avro.kind in ("int", "long"):
        # A date or a time is also read as the number that it is.
        return _integer(bare, kind, plain=not avro.logical)
    if avro.kind in ("string", "enum"):
        return _text(bare, kind, utc="Z?" if avro.logical.startswith("iso-") else "")
    if avro.kind == kind == "boolean":
        byte = F.lit(b"\1")
        return Reading(bare, "", lambda value: value == byte, lambda value: ~value.isin(F.lit(b"\0"), byte))
    same = {"float": "float", "double": "double", "bytes": "binary", "fixed": "binary"}
    if same.get(avro.kind) == kind:
        return Reading(bare, "", _same)
    if (avro.kind, kind) == ("float", "double"):
        return Reading(bare, "", lambda value: value.cast("double"))
    raise Unreadable


def _cast(kind: str) -> tuple[Take, Take]:
    """A cast, and whether it has no result for a value."""
    return (
        lambda value: value.try_cast(kind),
        lambda value: value.isNotNull() & value.try_cast(kind).isNull(),
    )


def _integer(bare: Avro, kind: str, *, plain: bool) -> Reading:
    width = 4 if bare.kind == "int" else 8
    if WIDTHS.get(kind, 0) >= width:
        return Reading(bare, "", _same if WIDTHS[kind] == width else lambda value: value.cast(kind))
    if kind in WIDTHS or (plain and kind.startswith("decimal")):
        return Reading(bare, "", *_cast(kind))
    if plain and kind in ("float", "double"):

        def inexact(value: Expression) -> Expression:
            back = value.cast(kind).try_cast("decimal(38,0)") == value.cast("decimal(38,0)")
            return value.isNotNull() & ~F.coalesce(back, F.lit(False))

        return Reading(bare, "", lambda value: value.cast(kind), inexact)
    if plain and kind == "string":
        return Reading(bare, "", lambda value: value.cast("string"))
    raise Unreadable


def _decimal(avro: Avro, kind: str) -> Reading:
    if avro.scale > WIDEST or not kind.startswith("decimal"):
        raise Unreadable
    longs = avro.kind == "fixed" and avro.size <= LONG_BYTES  # any value of it is a long
    precision = avro.precision if longs else min(max(avro.precision, LONG_DIGITS + 1), WIDEST)
    read = replace(avro, precision=precision)
    take, lost = _cast(kind)
    return Reading(read, "", take, lambda value: lost(value) | (take(value) != value))


def _variable_decimal(avro: Avro, kind: str) -> Reading:
    """Debezium's decimal with a scale of its own, as a decimal or as text. Its unscaled value is read with scale 0."""
    if kind != "string" and not kind.startswith("decimal"):
        raise Unreadable
    value = replace(Avro("bytes"), logical="decimal", precision=WIDEST)
    reader = replace(avro, fields=(Field("scale", Avro("int")), Field("value", value)))
    inside = _text(Avro("string"), kind)

    def text(value: Expression) -> Expression:
        scale = F.when(value["scale"].between(-WIDEST, LARGEST_SCALE), value["scale"])
        written = value["value"].cast("string")
        zeros = F.repeat(F.lit("0"), F.greatest(-scale, F.lit(0)))
        digits = F.concat(F.ltrim(written, F.lit("-")), zeros)
        after = F.greatest(scale, F.lit(0))
        filled = F.lpad(digits, F.greatest(F.length(digits), after + 1), F.lit("0"))
        whole = F.substring(filled, F.lit(1), F.length(filled) - after)
        fraction = F.substring(filled, F.length(filled) - after + 1, after)
        sign = F.when(F.startswith(written, F.lit("-")), F.lit("-")).otherwise(F.lit(""))
        point = F.when(after > 0, F.concat(F.lit("."), fraction)).otherwise(F.lit(""))
        return F.when(scale.isNotNull(), F.concat(sign, whole, point))

    def wrong(value: Expression) -> Expression:
        fits = F.lit(False) if inside.wrong is None else F.coalesce(inside.wrong(text(value)), F.lit(False))
        return value.isNotNull() & (text(value).isNull() | fits)

    return Reading(reader, VARIABLE, lambda value: inside.value(text(value)), wrong)


def _timestamp(avro: Avro, kind: str, bare: Avro) -> Reading:
    local, unit = avro.logical.startswith("local"), avro.logical.rpartition("-")[2]
    if local != (kind == "timestamp_ntz"):
        raise Unreadable
    if unit != "nanos":
        return Reading(replace(bare, logical=avro.logical), "", _same, _without_year)

    def micros(value: Expression) -> Expression:
        return _div(value, 1000)

    def whole(value: Expression) -> Expression:
        return F.timestamp_micros(micros(value)).cast(kind)

    return Reading(bare, avro.logical, whole, lambda value: F.pmod(value, F.lit(1000)) != 0)


def _time(avro: Avro, bare: Avro) -> Reading:
    """A time of the day as text: 12:34:56, with six decimal places if it is finer than seconds."""
    unit = avro.logical.rpartition("-")[2]
    factor, divisor = {"millis": (1000, 1), "micros": (1, 1), "nanos": (1, 1000)}[unit]

    def micros(value: Expression) -> Expression:
        return _div(value.cast("bigint") * factor, divisor)

    def text(value: Expression) -> Expression:
        at = F.timestamp_micros(F.when(micros(value).between(0, DAY - 1), micros(value)))
        form = F.when(F.pmod(micros(value), F.lit(1_000_000)) == 0, F.date_format(at, "HH:mm:ss"))
        return form.otherwise(F.date_format(at, "HH:mm:ss.SSSSSS"))

    def wrong(value: Expression) -> Expression:
        finer = F.pmod(value.cast("bigint"), F.lit(divisor).cast("bigint")) != 0
        return ~micros(value).between(0, DAY - 1) | finer

    return Reading(bare, avro.logical, text, wrong)


def _div(value: Expression, by: int) -> Expression:
    """A bigint divided by a number, without the remainder. Spark's operator / would go by way of a double."""
    return F.call_function("div", value, F.lit(by).cast("bigint"))


def _uuid(value: Expression) -> Expression:
    digits = F.lower(F.hex(value))
    parts = ((1, 8), (9, 4), (13, 4), (17, 4), (21, 12))
    return F.concat_ws("-", *(F.substring(digits, start, length) for start, length in parts))


def _text(bare: Avro, kind: str, utc: str = "") -> Reading:
    """A text. `utc` is the pattern of the zone that it may have though its type has none."""
    if kind == "string":
        return Reading(bare, "", _same, None if bare.kind == "enum" else lambda value: ~F.is_valid_utf8(value))
    if bare.kind == "enum":
        raise Unreadable
    if kind in WIDTHS:
        pattern = INTEGER
    elif kind.startswith("decimal"):
        scale = kind.rstrip(")").rpartition(",")[2]
        pattern = rf"^[+-]?[0-9]+(\.[0-9]{{0,{scale}}}0*)?$" if scale != "0" else r"^[+-]?[0-9]+(\.0*)?$"
    elif kind == "date":
        pattern = DATE.replace("$", f"{utc}$")
    elif kind in ("timestamp", "timestamp_ntz"):
        pattern = TIME + (ZONE if kind == "timestamp" else f"{utc}$")
    else:
        raise Unreadable
    take, lost = _cast(kind)

    def local(value: Expression) -> Expression:
        return F.rtrim(value, F.lit("Z")) if utc and kind != "timestamp" else value

    return Reading(bare, "", lambda value: take(local(value)), lambda value: ~value.rlike(pattern) | lost(local(value)))


def _without_year(value: Expression) -> Expression:
    return ~F.year(value).between(1, 9999)


def _array(avro: Avro, kind: str) -> Reading:
    inside = reading(avro.branches[0], _inside(kind, "array<"))
    wrong = inside.wrong
    return Reading(
        replace(avro, branches=(inside.reader,)),
        inside.title,
        lambda value: value if inside.value is _same else F.transform(value, inside.value),
        wrong and (lambda value: F.exists(value, lambda one: F.coalesce(wrong(one), F.lit(False)))),
    )


def _map(avro: Avro, kind: str) -> Reading:
    inside = reading(avro.branches[0], _inside(kind, "map<string,"))

    def wrong(value: Expression) -> Expression:
        found = F.exists(F.map_keys(value), lambda key: ~F.is_valid_utf8(key))
        if inside.wrong is not None:
            is_wrong = inside.wrong
            found |= F.exists(F.map_values(value), lambda one: F.coalesce(is_wrong(one), F.lit(False)))
        return found

    return Reading(
        replace(avro, branches=(inside.reader,)),
        inside.title,
        lambda value: value if inside.value is _same else F.transform_values(value, lambda _, one: inside.value(one)),
        wrong,
    )


def _inside(kind: str, begin: str) -> str:
    if not kind.startswith(begin):
        raise Unreadable
    return kind[len(begin) : -1]


def _union(avro: Avro, kind: str) -> Reading:
    """A union of several types, as Spark reads it: a struct of which one field has a value, `member_<type>`."""
    if not kind.startswith("struct<"):
        raise Unreadable
    named = {f"member_{member(branch)}": branch for branch in avro.branches}
    columns = _fields(kind)
    if {column.name for column in columns} - named.keys():
        raise Unreadable
    taken = {column.name: reading(named[column.name], str(column.type)) for column in columns}
    readers = tuple(taken[name].reader if name in taken else _plain(branch) for name, branch in named.items())
    members = {
        name: f"member_{member(BOOLEAN if one.reader.kind == 'boolean' else one.reader)}" for name, one in taken.items()
    }
    return _struct(
        replace(avro, branches=readers), {name: (members[name], one) for name, one in taken.items()}, columns
    )


def _record(avro: Avro, kind: str) -> Reading:
    if not kind.startswith("struct<"):
        raise Unreadable
    columns, taken, read = _fields(kind), {}, []
    for column in columns:
        field = field_named(column.name, avro.fields)
        if field is not None:
            taken[column.name] = (field.name, reading(field.type, str(column.type)))
            read.append(Field(field.name, taken[column.name][1].reader))
    if not taken:
        raise Unreadable
    return _struct(replace(avro, fields=tuple(read)), taken, columns)


def _struct(reader: Avro, taken: Mapping[str, tuple[str, Reading]], columns: tuple[Column, ...]) -> Reading:
    """A struct of the columns; one that is not in `taken`, which has the fields of the reader, is null."""

    def take(value: Expression) -> Expression:
        parts = []
        for column in columns:
            if column.name in taken:
                name, one = taken[column.name]
                parts.append(one.value(value.getField(name)).alias(column.name))
            else:
                parts.append(F.lit(None).cast(str(column.type)).alias(column.name))
        return F.when(value.isNotNull(), F.struct(*parts))

    def wrong(value: Expression) -> Expression:
        found = F.lit(False)
        for name, one in taken.values():
            if one.wrong is not None:
                found |= F.coalesce(one.wrong(value.getField(name)), F.lit(False))
        return found

    title = ", ".join(f"{name}: {one.title}" for name, one in taken.values())
    exact = all(one.wrong is None for _, one in taken.values())
    return Reading(reader, title, take, None if exact else wrong)


def _plain(avro: Avro) -> Avro:
    """A type of a union that no column names, so that Spark can read it: without logical types."""
    return replace(avro, logical="", fields=tuple(replace(f, type=_plain(f.type), default=()) for f in avro.fields))


def _fields(kind: str) -> tuple[Column, ...]:
    return struct_fields(kind, Place(kind, None))


def field_named(name: str, fields: tuple[Field, ...]) -> Field | None:
    """The field of a name; if none has it, the only one that has it in another case."""
    same = [field for field in fields if field.name == name]
    similar = [field for field in fields if field.name.lower() == name.lower()]
    return same[0] if same else similar[0] if len(similar) == 1 else None


def advice(name: str, avro: Avro) -> str:
    """What to declare for a field."""
    kind = declared(avro)
    return f"declare {name} {kind}" if kind is not None else f"leave {name} out: no type can hold it"
