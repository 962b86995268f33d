"""The key of a table: its columns with their types, and values of it, checked."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

import pyarrow as pa  # type: ignore[import-untyped]  # has no types of its own

from spark.engine.log.position import DEFINITION
from spark.query.errors import KeyRefused, LayoutUnknown, QueryError
from spark.topology.columns import WINDOW_BOUNDS
from spark.topology.errors import TopologyError
from spark.topology.topology import Topology

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark.topology.nodes import Node

BOUNDS = tuple(column.name for column in WINDOW_BOUNDS)
COORDINATES = ("_timestamp", "_topic", "_partition", "_offset")
"""Our columns that a result has on request."""
IDENTITY = ("_topic", "_partition", "_offset", "_ordinal")
"""The columns that identify a record of a stream."""


@dataclass(frozen=True)
class Key:
    """The key columns of a table, in order."""

    table: str
    fields: tuple[pa.Field, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the key columns."""
        return tuple(field.name for field in self.fields)

    def whole(self, value: object) -> tuple[pa.Scalar, ...]:
        """Return a key, with one typed value for each column.

        Raises:
            KeyRefused: the value has another type, or another number of columns.
        """
        values = self.leading(value)
        if len(values) != len(self.fields):
            raise self._refused(f"the key {value!r} has {len(values)} of {len(self.fields)} columns")
        return values

    def leading(self, value: object) -> tuple[pa.Scalar, ...]:
        """Return typed values of the first columns of a key.

        `value` is a tuple, a dict by name, or the value of the first column alone.

        Raises:
            KeyRefused: a value has another type, or there are too many.
        """
        if isinstance(value, dict):
            names = self.names[: len(value)]
            if set(value) != set(names):
                raise self._refused(f"the key {value!r} has other columns")
            values = tuple(value[name] for name in names)
        else:
            values = value if isinstance(value, tuple) else (value,)
        if len(values) > len(self.fields) or not values:
            raise self._refused(f"the key {value!r} has {len(values)} columns")
        return tuple(self.typed(field, one) for field, one in zip(self.fields, values, strict=False))

    def typed(self, field: pa.Field, value: object) -> pa.Scalar:
        """Return a value of a key column in its type.

        Raises:
            KeyRefused: the value has another type.
        """
        if value is None or not _fits(value, field.type):
            raise self._refused(f"{value!r} is {type(value).__name__}, and {field.name} is {named(field.type)}")
        try:
            return pa.scalar(value, field.type)
        except (pa.ArrowException, OverflowError, ValueError) as error:
            raise self._refused(f"{value!r} is no {named(field.type)} ({error})") from error

    def parsed(self, texts: tuple[str, ...]) -> tuple[object, ...]:
        """Return the values that texts have in the types of the first key columns.

        Raises:
            KeyRefused: a text has no value of its column's type, or there are too many.
        """
        if len(texts) > len(self.fields):
            raise self._refused(f"{' '.join(texts)} has {len(texts)} columns")
        return tuple(self._parsed(field, text) for field, text in zip(self.fields, texts, strict=False))

    def of_json(self, value: object) -> tuple[object, ...]:
        """Return the values of the first key columns that a value of JSON has: one, a list, or an object by name.

        A column that JSON has no type for, such as a decimal or a time, is text as `parsed` takes it.

        Raises:
            KeyRefused: a text has no value of its column's type, or there are too many or other columns.
        """
        if isinstance(value, dict):
            if set(value) != set(self.names):
                raise self._refused(f"the key {value!r} has other columns")
            value = [value[name] for name in self.names]
        values = value if isinstance(value, list) else [value]
        if len(values) > len(self.fields):
            raise self._refused(f"the key {value!r} has {len(values)} columns")
        return tuple(
            self._parsed(field, one) if isinstance(one, str) else one
            for field, one in zip(self.fields, values, strict=False)
        )

    def texts(self, row: Mapping[str, object]) -> tuple[str, ...]:
        """Return the key of a row as the texts that `parsed` takes."""
        return tuple(_text(row[field.name]) for field in self.fields)

    def _parsed(self, field: pa.Field, text: str) -> object:
        kind = field.type
        try:
            if pa.types.is_string(kind):
                return text
            if pa.types.is_integer(kind):
                return int(text)
            if pa.types.is_decimal(kind):
                return Decimal(text)
            if pa.types.is_floating(kind):
                return float(text)
            if pa.types.is_timestamp(kind):
                return moment(text, naive=kind.tz is None)
            if pa.types.is_date(kind):
                return dt.date.fromisoformat(text)
            if pa.types.is_binary(kind):
                return bytes.fromhex(text)
            return json.loads(text)
        except (ValueError, ArithmeticError) as error:
            raise self._refused(f"{text!r} is no {named(kind)}") from error

    def _refused(self, why: str) -> KeyRefused:
        columns = ", ".join(f"{field.name} {named(field.type)}" for field in self.fields)
        return KeyRefused(f"{self.table}: {why}. Its key is ({columns})")


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dt.date):  # a datetime is one
        return value.isoformat()
    return value if isinstance(value, str) else str(value) if isinstance(value, Decimal) else json.dumps(value)


def moment(text: str, naive: bool = False) -> dt.datetime:
    """Return a time from ISO 8601 text; without an offset it is UTC.

    Raises:
        ValueError: the text is no time.
    """
    found = dt.datetime.fromisoformat(text)
    if naive:
        return found.replace(tzinfo=None)
    return found if found.tzinfo else found.replace(tzinfo=dt.UTC)


def time_of(text: str) -> dt.datetime:
    """Return a time with a zone from ISO 8601 text; without an offset it is UTC.

    Raises:
        QueryError: the text is no time.
    """
    try:
        return moment(text)
    except ValueError as error:
        raise QueryError(f"{text!r} is no time: write a time as in 2026-11-24T10:00") from error


def plan_of(table: str, properties: Mapping[str, str], topology: Topology | None) -> Node:
    """Return the plan by which a table was computed: that of the given topology, or the stored one.

    Raises:
        LayoutUnknown: the definition is not stored in a form that this version reads, and no topology is given.
    """
    name = table.partition(".")[2]
    if topology is not None and table == f"{topology.name}.{name}" and name in topology.stored:
        return topology.table(name).plan
    try:
        return Topology.stored_plan(json.loads(properties[DEFINITION])["plan"])
    except (KeyError, ValueError, TopologyError) as error:
        raise LayoutUnknown(
            f"{table}: the stored definition does not say which columns are the key: an earlier version of Tidetable "
            f"wrote it. Pass the topology, as in Reader(lake, topology), or run `tidetable rebuild {table}`"
        ) from error


def key_of(table: str, plan: Node, schema: pa.Schema) -> Key:
    """Return the columns that identify a row: the key of a table, or the coordinates of a stream's records."""
    return Key(table, tuple(schema.field(name) for name in (IDENTITY if plan.is_stream else plan.key)))


def named(kind: pa.DataType) -> str:
    """Return the name of a type as a topology declares it."""
    names = {"int8": "tinyint", "int16": "smallint", "int32": "int", "int64": "bigint", "date32[day]": "date"}
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return names.get(str(kind), {"bool": "boolean"}.get(str(kind), str(kind)))


def _fits(value: object, kind: pa.DataType) -> bool:
    if pa.types.is_integer(kind):
        return type(value) is int
    if pa.types.is_string(kind):
        return isinstance(value, str)
    if pa.types.is_boolean(kind):
        return isinstance(value, bool)
    if pa.types.is_floating(kind):
        return type(value) in (int, float)
    if pa.types.is_decimal(kind):
        return isinstance(value, Decimal) or type(value) is int
    if pa.types.is_timestamp(kind):
        return isinstance(value, dt.datetime) and (value.tzinfo is not None) == (kind.tz is not None)
    if pa.types.is_date(kind):
        return isinstance(value, dt.date) and not isinstance(value, dt.datetime)
    if pa.types.is_binary(kind):
        return isinstance(value, bytes)
    return True
