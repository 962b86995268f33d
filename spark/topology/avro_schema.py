"""The Avro schemas of columns that are published: one schema for the same columns, as the same text.

Every field is a union with null, and null is its default: a reader by the schema before a column was added, or by the
one after it was dropped, reads on. A key of one column is that column alone, as `"long"`; a value, and a key of several
columns, are records. Nothing is converted on the way: a type that Avro does not have exactly is refused.
"""

from __future__ import annotations

import json
import re
from typing import Final

from spark.topology.columns import Column, published_name
from spark.topology.errors import Place
from spark.topology.sql.ddl import fields

Json = str | int | None | list["Json"] | dict[str, "Json"]

TYPES: Final[dict[str, Json]] = {
    "boolean": "boolean",
    "tinyint": "int",
    "smallint": "int",
    "int": "int",
    "bigint": "long",
    "float": "float",
    "double": "double",
    "string": "string",
    "binary": "bytes",
    "date": {"type": "int", "logicalType": "date"},
    "timestamp": {"type": "long", "logicalType": "timestamp-micros"},
    "timestamp_ntz": {"type": "long", "logicalType": "local-timestamp-micros"},
}
"""Avro's types by the types of columns; decimals, arrays, maps and structs are made of their parts."""

NAME: Final = r"[A-Za-z_][A-Za-z0-9_]*"
"""What Avro accepts as a name."""
_NAME, _FULL_NAME = re.compile(NAME), re.compile(rf"{NAME}(\.{NAME})*")
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_MAP = "map<string,"


class NoSuchType(ValueError):
    """Avro has no type for a type of a column, or for a part of it.

    Publish the column as another type, such as string.
    """


def is_full_name(name: str) -> bool:
    """Whether a text is a name of Avro, with or without a namespace."""
    return _FULL_NAME.fullmatch(name) is not None


def full_name(topic: str, name: str | None, part: str) -> str:
    """The name of the record of a key or a value: by the user's name of the value, or by the topic.

    The topic is the namespace, as Debezium has it; what Avro does not accept in a name becomes an underscore.
    """
    if name is not None:
        return name if part == "value" else f"{name}Key"
    words = [re.sub(r"[^A-Za-z0-9_]", "_", word) for word in topic.split(".")]
    namespace = ".".join(word if _NAME.fullmatch(word) else f"_{word}" for word in words)
    return f"{namespace}.{part.capitalize()}"


def schema_of(part: str, columns: tuple[Column, ...], name: str) -> str:
    """The schema of a key or a value, as text; `name` is the full name of its record.

    Raises:
        NoSuchType: Avro has no type for a column.
    """
    if part == "key" and len(columns) == 1:
        return _text(_type(str(columns[0].type), name.rpartition(".")[2]))
    return _text(_record(columns, name))


def check_avro(part: str, columns: tuple[Column, ...], place: Place) -> None:
    """Check that Avro has the names and the types of a key's or a value's columns.

    Raises:
        TopologyError: it does not.
    """
    records: dict[str, str] = {}
    for column in columns:
        name = published_name(column.name)
        if part != "key" or len(columns) > 1:
            _check_name(name, name, place)
        if column.type is not None:
            _check(name, column.type, place, records)


def _check(path: str, kind: str, place: Place, records: dict[str, str]) -> None:
    """Check a type to which a path leads; `records` has the paths of records by their names."""
    inside = _inside(kind)
    if inside is not None:
        _check(path, inside, place, records)
    elif kind.startswith("struct<"):
        name = path.replace(".", "_")
        if records.setdefault(name, path) != path:
            what = f"the structs {records[name]} and {path} would be records of Avro with one name, ..._{name}"
            raise place.mistake(what, "rename one of them")
        for field in fields(kind, place):
            _check_name(field.name, f"{path}.{field.name}", place)
            _check(f"{path}.{field.name}", str(field.type), place, records)
    elif kind not in TYPES and _DECIMAL.fullmatch(kind) is None:
        is_map = kind.startswith("map<")
        why = "the keys of a map of Avro are strings" if is_map else "Avro has no such type"
        do = f"make it map<string,...>, or publish {path} as string" if is_map else f"publish {path} as string"
        raise place.mistake(f"{path!r} is {kind}, and {why}", do)


def _check_name(name: str, path: str, place: Place) -> None:
    if _NAME.fullmatch(name) is None:
        do = 'rename it, as in map_values(["`order-id` AS order_id"]): ASCII letters, digits and _, no digit first'
        raise place.mistake(f"the name {path!r} cannot be that of a field of Avro", do)


def _inside(kind: str) -> str | None:
    """The type inside an array, or of the values of a map with keys of strings; None of another type."""
    begins = next((one for one in ("array<", _MAP) if kind.startswith(one)), None)
    return None if begins is None else kind[len(begins) : -1]


def _text(schema: Json) -> str:
    return json.dumps(schema, separators=(",", ":"))


def _record(columns: tuple[Column, ...], name: str) -> Json:
    namespace, _, own = name.rpartition(".")
    result: dict[str, Json] = {"type": "record", "name": own}
    if namespace:
        result["namespace"] = namespace
    result["fields"] = [_field(published_name(column.name), str(column.type), own) for column in columns]
    return result


def _field(name: str, kind: str, around: str) -> Json:
    return {"name": name, "type": ["null", _type(kind, f"{around}_{name}")], "default": None}


def _type(kind: str, name: str) -> Json:
    """The type for a type of a column; a record in it has this name."""
    if (decimal := _DECIMAL.fullmatch(kind)) is not None:
        return {"type": "bytes", "logicalType": "decimal", "precision": int(decimal[1]), "scale": int(decimal[2])}
    inside = _inside(kind)
    if inside is not None:
        of: Json = ["null", _type(inside, name)]
        return {"type": "map", "values": of} if kind.startswith(_MAP) else {"type": "array", "items": of}
    if kind.startswith("struct<"):
        return {
            "type": "record",
            "name": name,
            "fields": [_field(field.name, str(field.type), name) for field in fields(kind, Place(name, None))],
        }
    if kind not in TYPES:
        raise NoSuchType(kind)
    return TYPES[kind]
