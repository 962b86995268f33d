"""The formats of keys and values, and the columns that each can hold."""

from __future__ import annotations

import re
from typing import Final

from spark.topology.avro_schema import check_avro
from spark.topology.columns import Column
from spark.topology.errors import Place, did_you_mean

SERIALIZERS: Final = {
    "smallint": "ShortSerializer",
    "int": "IntegerSerializer",
    "bigint": "LongSerializer",
    "float": "FloatSerializer",
    "double": "DoubleSerializer",
    "boolean": "BooleanSerializer",
    "string": "StringSerializer",
    "binary": "ByteArraySerializer",
}
"""Kafka's serializers (org.apache.kafka.common.serialization) by the type of the column."""

HEADERS: Final = "array<struct<key:string,value:binary>>"
"""The type of a column with the headers of records, as Spark's Kafka source has it."""

KEY_FORMATS: Final = ("avro", "json", "json_schema", "kafka")
"""What `key_format=` of `Consumed` may name."""

WRITTEN_KEY_FORMATS: Final = ("avro", "json", "kafka")
"""What `key_format=` of `Produced` may name."""

_URL = re.compile(r"https?://[^/:@\s]+(:\d{1,5})?(/[^@\s]*)?")

WITH_REGISTRY: Final = ("avro",)
"""Formats whose records are read by a schema of a registry."""

WRITTEN_BY_TYPE: Final = frozenset({"avro", "kafka"})
"""Formats whose bytes depend on the types of the columns."""

WITH_SCHEMAS: Final = (*WITH_REGISTRY, "json_schema", "protobuf")
"""Formats whose records are written by a schema, of a registry or of files."""


def check_key_format(name: object, place: Place, names: tuple[str, ...] = KEY_FORMATS) -> str:
    """The name of a key's format, which must be one of `names`.

    Raises:
        TopologyError: there is no such format.
    """
    if not isinstance(name, str) or name not in names:
        *others, last = (f'"{one}"' for one in names)
        known = f"{', '.join(others)} or {last}"
        near = did_you_mean(name, list(names)) if isinstance(name, str) else ""
        raise place.mistake(f"key_format is {name!r}", f"write {known}{near}")
    return name


def check_registry(url: object, place: Place) -> str | None:
    """The URL of a registry, or None.

    Raises:
        TopologyError: it is no URL, or has credentials.
    """
    if url is None:
        return None
    if not isinstance(url, str) or _URL.fullmatch(url) is None:
        do = "write https://host:port; credentials are settings, TIDETABLE_SCHEMA_REGISTRY_*"
        raise place.mistake("registry is no URL without credentials", do)  # not shown: it may have a password
    return url


def check_held(format_: str, part: str, columns: tuple[Column, ...], place: Place) -> None:
    """Check that a format can hold the columns of a key or a value.

    Raises:
        TopologyError: it cannot.
    """
    if format_ in ("avro", "json", "json_schema"):
        _check_string_keys(columns, "a map of Avro" if format_ == "avro" else "a JSON object", place)
    if format_ == "avro":
        _check_no_variant(columns, place)
    if format_ == "kafka":
        _check_one_column(part, columns, place)


def check_written(format_: str, part: str, columns: tuple[Column, ...], place: Place) -> None:
    """Check that the columns of a key or a value can be written in a format.

    Raises:
        TopologyError: they cannot.
    """
    if format_ == "avro":
        check_avro(part, columns, place)
    if format_ == "kafka":
        _check_one_column(part, columns, place)
        if columns[0].type in ("float", "double"):
            what = f"the column {columns[0].name!r} is {columns[0].type}, of which Spark cannot write the bytes"
            raise place.mistake(what, "publish it as JSON, or as a string")


def _check_no_variant(columns: tuple[Column, ...], place: Place) -> None:
    """Refuse variants, which Avro does not have."""
    for column in columns:
        if "variant" in (column.type or ""):
            what = f"the column {column.name!r} is {column.type}, and Avro has no such type"
            raise place.mistake(what, "declare it as its schema has it: `tidetable schema declare TOPIC`")


def _check_string_keys(columns: tuple[Column, ...], of: str, place: Place) -> None:
    """Refuse maps whose keys are not strings."""
    for column in columns:
        kind = column.type or ""
        if kind.startswith("map<") and not kind.startswith("map<string,"):
            what = f"the column {column.name!r} is {kind}, and the keys of {of} are strings"
            raise place.mistake(what, f"declare {column.name} as map<string,...>")


def _check_one_column(part: str, columns: tuple[Column, ...], place: Place) -> None:
    """Refuse anything but one column of a type that has a serializer of Kafka's."""
    if len(columns) != 1:
        what = f"the {part} has {len(columns)} columns, and what Kafka's own serializers write is one value"
        raise place.mistake(what, f"declare one column of the {part}")
    [column] = columns
    if column.type is not None and column.type not in SERIALIZERS:
        what = f"the column {column.name!r} is {column.type}, for which Kafka has no serializer"
        known = ", ".join(f"{kind} ({name})" for kind, name in SERIALIZERS.items())
        raise place.mistake(what, f"declare {column.name} as the type that was written: {known}")
