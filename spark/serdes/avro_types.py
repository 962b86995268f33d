"""Avro schemas as trees: parsed with the schemas that they refer to, written as text for Avro's reader and writer.

Rules of the Avro specification 1.12: names, references, unions, logical types.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from spark.topology.columns import Column
from spark.topology.sql.ddl import struct_of

Json = str | int | float | bool | None | list["Json"] | dict[str, "Json"]

PRIMITIVE: Final = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
WIDEST: Final = 38
"""Digits of Spark's widest decimal."""

CONNECT: Final = {
    "io.debezium.time.Date": "date",
    "io.debezium.time.Time": "time-millis",
    "io.debezium.time.MicroTime": "time-micros",
    "io.debezium.time.NanoTime": "time-nanos",
    "io.debezium.time.Timestamp": "local-timestamp-millis",
    "io.debezium.time.MicroTimestamp": "local-timestamp-micros",
    "io.debezium.time.NanoTimestamp": "local-timestamp-nanos",
    "io.debezium.time.ZonedTimestamp": "zoned-timestamp",
    "io.debezium.time.IsoDate": "iso-date",
    "io.debezium.time.IsoTimestamp": "iso-timestamp",
}
"""Names of Kafka Connect's types (`connect.name`) that have the meaning of a logical type, which they are without.

The last three are texts (ISO 8601), for which Avro has no logical type.
"""

VARIABLE: Final = "io.debezium.data.VariableScaleDecimal"
"""A record of Debezium's for a decimal with a scale of its own: `scale` and the unscaled `value`."""


class NotAvro(ValueError):
    """A text is no Avro schema.

    Register a valid schema, or declare the topic in its format.
    """


@dataclass(frozen=True)
class Field:
    """A field of a record."""

    name: str
    type: Avro
    aliases: tuple[str, ...] = ()
    default: tuple[Json, ...] = ()
    """The default value, if there is one."""


@dataclass(frozen=True)
class Avro:
    """A type of a schema.

    `kind` is a primitive type, `record`, `enum`, `fixed`, `array`, `map`, `union`, or `recursion`, which names a record
    inside that record.
    """

    kind: str
    name: str = ""
    """The full name of a record, an enum, a fixed or a recursion."""
    logical: str = ""
    precision: int = 0
    scale: int = 0
    size: int = 0
    symbols: tuple[str, ...] = ()
    fields: tuple[Field, ...] = ()
    branches: tuple[Avro, ...] = ()
    """The types of a union; the one type inside an array or a map."""

    @property
    def is_nullable(self) -> bool:
        """Whether null is a value."""
        return self.kind == "null" or (self.kind == "union" and any(branch.kind == "null" for branch in self.branches))

    @property
    def value(self) -> Avro:
        """The type without null: of a union with one other type that type, of another union the union of the rest."""
        if self.kind != "union":
            return self
        rest = tuple(branch for branch in self.branches if branch.kind != "null")
        return rest[0] if len(rest) == 1 else replace(self, branches=rest)

    def __str__(self) -> str:
        """The type as messages name it: `decimal(12,2)`, `array of string`, `record Address`."""
        if self.logical == "decimal":
            return f"{self.kind} decimal({self.precision},{self.scale})"
        if self.logical:
            return f"{self.kind} {self.logical}"
        if self.kind in ("array", "map"):
            return f"{self.kind} of {self.branches[0]}"
        if self.kind == "union":
            return f"union of {', '.join(map(str, self.branches)) or 'nothing'}"
        return f"{self.kind} {self.name}".strip()


def parse(text: str, references: tuple[str, ...] = ()) -> Avro:
    """The type of a schema's text; `references` are the texts that it refers to, each before those that use it.

    Raises:
        NotAvro: the text is no schema, or names a type that is not known.
    """
    known: dict[str, Avro] = {}
    try:
        for other in references:
            _parse(_loaded(other), "", known)
        return _parse(_loaded(text), "", known)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise NotAvro(f"{type(error).__name__}: {error}") from error


def _loaded(text: str) -> Json:
    try:
        loaded: Json = json.loads(text)
    except ValueError:
        return text  # a registry may give the schema "string" without its quotes
    return loaded


def _parse(schema: Json, namespace: str, known: dict[str, Avro]) -> Avro:
    if isinstance(schema, str):
        return Avro(schema) if schema in PRIMITIVE else _named(schema, namespace, known)
    if isinstance(schema, list):
        return Avro("union", branches=tuple(_parse(branch, namespace, known) for branch in schema))
    if not isinstance(schema, dict):
        raise NotAvro(f"{schema!r} is no type")
    kind = schema["type"]
    if not isinstance(kind, str):
        return _parse(kind, namespace, known)
    if kind in ("array", "map"):
        return Avro(kind, branches=(_parse(schema["items" if kind == "array" else "values"], namespace, known),))
    if kind in ("record", "error", "enum", "fixed"):
        return _parse_named(schema, kind, namespace, known)
    if kind in PRIMITIVE:
        return _logical(Avro(kind), schema)
    return _named(kind, namespace, known)


def _parse_named(schema: dict[str, Json], kind: str, namespace: str, known: dict[str, Avro]) -> Avro:
    name = str(schema["name"])
    if "." not in name and (own := schema.get("namespace", namespace)):
        name = f"{own}.{name}"
    inner = name.rpartition(".")[0]
    if kind == "enum":
        known[name] = Avro("enum", name, symbols=tuple(map(str, _items(schema["symbols"]))))
    elif kind == "fixed":
        known[name] = _logical(Avro("fixed", name, size=int(str(schema["size"]))), schema)
    else:
        known[name] = Avro("recursion", name)
        fields = tuple(_field(field, inner, known) for field in _items(schema["fields"]))
        known[name] = Avro("record", name, fields=fields)
    return known[name]


def _field(field: Json, namespace: str, known: dict[str, Avro]) -> Field:
    if not isinstance(field, dict):
        raise NotAvro(f"{field!r} is no field")
    default = (field["default"],) if "default" in field else ()
    aliases = tuple(map(str, _items(field.get("aliases", []))))
    return Field(str(field["name"]), _parse(field["type"], namespace, known), aliases, default)


def _items(value: Json) -> list[Json]:
    if not isinstance(value, list):
        raise NotAvro(f"{value!r} is no list")
    return value


def _named(name: str, namespace: str, known: Mapping[str, Avro]) -> Avro:
    full = name if "." in name or not namespace else f"{namespace}.{name}"
    if full not in known and name not in known:
        raise NotAvro(f"the type {name} is not known")
    return known[full if full in known else name]


def _logical(avro: Avro, schema: Mapping[str, Json]) -> Avro:
    """The type with its logical type; one that is not valid is ignored, as Avro asks for."""
    logical = str(schema.get("logicalType") or CONNECT.get(str(schema.get("connect.name")), ""))
    if logical == "decimal":
        precision, scale = int(str(schema["precision"])), int(str(schema.get("scale", 0)))
        digits = len(str(2 ** (8 * avro.size - 1))) - 1 if avro.kind == "fixed" else precision
        valid = avro.kind in ("bytes", "fixed") and 0 <= scale <= precision <= digits
        return replace(avro, logical=logical, precision=precision, scale=scale) if valid else avro
    kinds = {
        "date": ("int",),
        "time-millis": ("int",),
        "uuid": ("string", "fixed"),
        "duration": ("fixed",),
        **dict.fromkeys(("zoned-timestamp", "iso-date", "iso-timestamp"), ("string",)),
        **dict.fromkeys(("time-micros", "time-nanos"), ("long",)),
        **dict.fromkeys((f"timestamp-{unit}" for unit in ("millis", "micros", "nanos")), ("long",)),
        **dict.fromkeys((f"local-timestamp-{unit}" for unit in ("millis", "micros", "nanos")), ("long",)),
    }
    return replace(avro, logical=logical) if avro.kind in kinds.get(logical, ()) else avro


BOOLEAN: Final = Avro("fixed", "tidetable_boolean", size=1)
"""How a boolean is read: the byte that is one. Avro's reader takes any byte but 1 for false, and 0 and 1 are valid."""


def merged(avro: Avro) -> Avro:
    """The type, in which a record that is used in several places has the fields that any of them has.

    Raises:
        NotAvro: two places have a field in two types.
    """
    records: dict[str, dict[str, Field]] = {}
    _collect(avro, records)
    return _with_fields(avro, records)


def _collect(avro: Avro, records: dict[str, dict[str, Field]]) -> None:
    for branch in avro.branches:
        _collect(branch, records)
    for field in avro.fields:
        known = records.setdefault(avro.name, {}).setdefault(field.name, field)
        if _bare(known.type) != _bare(field.type):
            raise NotAvro(f"the field {field.name} of {avro.name} is declared in two ways: declare it in one")
        _collect(field.type, records)


def _bare(avro: Avro) -> Avro:
    """The type without the fields of records."""
    return replace(avro, fields=(), branches=tuple(map(_bare, avro.branches)))


def _with_fields(avro: Avro, records: Mapping[str, Mapping[str, Field]]) -> Avro:
    fields = tuple(
        replace(field, type=_with_fields(field.type, records)) for field in records.get(avro.name, {}).values()
    )
    branches = tuple(_with_fields(branch, records) for branch in avro.branches)
    return replace(avro, fields=fields if avro.kind == "record" else (), branches=branches)


def as_json(avro: Avro, defined: set[str] | None = None, *, logical: bool = False) -> Json:
    """The schema of a type. `defined` has the names that are defined already, and gets those that this defines.

    Args:
        avro: the type.
        defined: the names of the types before it in the same schema.
        logical: whether it has the logical types, as Spark needs them in the schema of the reader.
    """
    defined = set() if defined is None else defined
    if avro.kind == "boolean":
        avro = BOOLEAN
    if avro.kind == "union":
        return [as_json(branch, defined, logical=logical) for branch in avro.branches]
    if avro.kind in ("array", "map"):
        inside = as_json(avro.branches[0], defined, logical=logical)
        return {"type": avro.kind, "items" if avro.kind == "array" else "values": inside}
    if avro.kind == "recursion" or avro.name in defined:
        return avro.name
    result: dict[str, Json] = {"type": avro.kind}
    if avro.name:
        defined.add(avro.name)
        result["name"] = avro.name
    if avro.kind == "enum":
        result["symbols"] = list(avro.symbols)
    if avro.kind == "fixed":
        result["size"] = avro.size
    if avro.kind == "record":
        result["fields"] = [_field_json(field, defined, logical) for field in avro.fields]
    if logical and avro.logical:
        result["logicalType"] = avro.logical
        if avro.logical == "decimal":
            result |= {"precision": avro.precision, "scale": avro.scale}
    return result


def _field_json(field: Field, defined: set[str], logical: bool) -> Json:
    result: dict[str, Json] = {"name": field.name, "type": as_json(field.type, defined, logical=logical)}
    if logical and field.default:
        [default] = field.default
        result["default"] = chr(default) if isinstance(default, bool) else default
    return result


def declared(avro: Avro) -> str | None:
    """The type to declare for an Avro type, as DDL text; None if no type can hold it."""
    value = avro.value
    logical = {
        "decimal": f"decimal({min(value.precision, WIDEST)},{min(value.scale, WIDEST)})",
        "date": "date",
        "timestamp-millis": "timestamp",
        "timestamp-micros": "timestamp",
        "timestamp-nanos": "timestamp",
        "local-timestamp-millis": "timestamp_ntz",
        "local-timestamp-micros": "timestamp_ntz",
        "local-timestamp-nanos": "timestamp_ntz",
        "uuid": "string",
        "zoned-timestamp": "timestamp",
        "iso-date": "date",
        "iso-timestamp": "timestamp_ntz",
    }
    kinds = {"long": "bigint", "bytes": "binary", "fixed": "binary", "enum": "string"}
    if value.logical in logical:
        return logical[value.logical]
    if value.kind in ("boolean", "int", "float", "double", "string"):
        return value.kind
    if value.kind in kinds:
        return kinds[value.kind]
    if value.kind in ("array", "map"):
        inside = declared(value.branches[0])
        text = "string," if value.kind == "map" else ""
        return inside and f"{value.kind}<{text}{inside}>"
    if value.kind == "union":
        if (number := as_number(value)) is not None:
            return declared(number)
        return _struct([(f"member_{member(branch)}", branch) for branch in value.branches])
    if value.name == VARIABLE:
        return "string"
    if value.kind == "record":
        return _struct([(field.name, field.type) for field in value.fields])
    return None


def _struct(members: list[tuple[str, Avro]]) -> str | None:
    typed = [Column(name, declared(avro)) for name, avro in members]
    return None if not typed or any(one.type is None for one in typed) else struct_of(typed)


def as_number(union: Avro) -> Avro | None:
    """The type as which Spark reads a union of two numbers; None for any other union."""
    kinds = {branch.kind for branch in union.branches if not branch.logical}
    if len(union.branches) != 2:
        return None
    return Avro("long") if kinds == {"int", "long"} else Avro("double") if kinds == {"float", "double"} else None


def member(branch: Avro) -> str:
    """The name of a type of a union, by which Spark names the member of the struct: `string`, `address`."""
    return (branch.name.rpartition(".")[2] or branch.kind).lower()
