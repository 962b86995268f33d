"""How a topic's bytes become columns, declared as DDL text."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from spark.topology.calls import checks_calls
from spark.topology.columns import Column
from spark.topology.errors import Place, user_line
from spark.topology.sql.ddl import parse_columns
from spark.topology.sql.expressions import column_named

# Maps and variants have no equality in Spark, and floats that print alike may differ in the last bit.
_NO_KEY = ("array<", "map<", "struct<", "variant", "float", "double")
_NO_EQUALITY = re.compile(r"(?<![^:<,])(?:variant(?![^,>])|map<)")  # as types, not as parts of names
# A bigint holds milliseconds since 1970, as Kafka's own timestamps do.
_EVENT_TIMES = ("timestamp", "timestamp_ntz", "date", "bigint")


@checks_calls
@dataclass(frozen=True)
class Consumed:
    """A topic's columns. `timestamp` names the column that is the record's event time.

    `again` are columns of the key that the value has too: they are no columns more, and must say the same.
    """

    format: str
    key: tuple[Column, ...]
    value: tuple[Column, ...]
    timestamp: str | None = None
    again: tuple[Column, ...] = ()

    @property
    def columns(self) -> tuple[Column, ...]:
        """The key's columns, then the value's."""
        return self.key + self.value

    @staticmethod
    def json(*, key: str, value: str, timestamp: str | None = None) -> Consumed:
        """JSON in key and value.

        Args:
            key: the key's columns, such as "order_id bigint".
            value: the value's columns, such as "amount decimal(12,2)"; a column that the key has too is the key's, of
                the same type, and a record in which the two differ goes into quarantine.
            timestamp: the column that is the event time; without one, the time of Kafka's record is.
        """
        place = Place("Consumed.json", user_line())
        consumed = _declared("json", key, value, timestamp, place)
        _check_json_maps(consumed.value, replace(place, columns={"key": consumed.key, "value": consumed.value}))
        return consumed


@checks_calls
@dataclass(frozen=True)
class Versioned:
    """A table whose newest record is the one with the greatest timestamp (KIP-889): out of order is no update.

    `history`, such as "7d", is how far back a stream's record may look up an earlier version. It refuses no record.
    """

    history: str


def _declared(format_: str, key: str, value: str, timestamp: str | None, place: Place) -> Consumed:
    """Columns declared as DDL text, by the rules that hold for every format."""
    keys = parse_columns(key, replace(place, node=f"{place.node} key"))
    values = parse_columns(value, replace(place, node=f"{place.node} value"))
    kept = tuple(column for column in values if column_named(column.name, keys) is None)
    place = replace(place, columns={"key": keys, "value": values})
    check_key(keys, place)
    _check_same_types(keys, values, place)
    check_comparable(kept, place)
    time = None if timestamp is None else _event_time(timestamp, keys + kept, place)
    again = tuple(column for column in values if column not in kept)
    return Consumed(format_, keys, kept, time, again)


def check_key(key: tuple[Column, ...], place: Place) -> None:
    """Refuse key columns of types that have no equality to rely on."""
    for column in key:
        if column.type is not None and column.type.startswith(_NO_KEY):
            what = f"the key column {column.name!r} is {column.type}, and keys must be told apart without doubt"
            do = "make it an integer, decimal, string, boolean, binary, date or timestamp"
            raise place.mistake(what, do)


def check_comparable(columns: tuple[Column, ...], place: Place) -> None:
    """Refuse columns that a MERGE could not compare: it writes the rows that differ."""
    for column in columns:
        kind = column.type or ""
        inside = kind.removeprefix("map<") if kind.startswith("map<") else kind
        if _NO_EQUALITY.search(inside):
            what = f"the column {column.name!r} is {kind}, and Spark cannot compare a variant, or a map inside a value"
            raise place.mistake(what, f"make {column.name} a string, which keeps the JSON text, or a struct")


def _check_json_maps(columns: tuple[Column, ...], place: Place) -> None:
    """Refuse maps that JSON cannot be read as."""
    for column in columns:
        kind = column.type or ""
        if kind.startswith("map<") and not kind.startswith("map<string,"):
            what = f"the column {column.name!r} is {kind}, and the keys of a map are text in JSON"
            raise place.mistake(what, f"declare {column.name} as map<string,...>")


def _check_same_types(keys: tuple[Column, ...], values: tuple[Column, ...], place: Place) -> None:
    """Refuse a column of key and value that has two types: it is one column."""
    for column in values:
        same = column_named(column.name, keys)
        if same is not None and same.type != column.type:
            what = f"{same.name!r} is {same.type} in the key and {column.type} in the value, and is one column"
            raise place.mistake(what, "declare it with one type, or leave it out of the value")


def _event_time(timestamp: str, columns: tuple[Column, ...], place: Place) -> str:
    column = column_named(timestamp, columns) if isinstance(timestamp, str) else None
    if column is None or column.type not in _EVENT_TIMES:
        what = f"the timestamp {timestamp!r} is {'no column' if column is None else column.type}"
        do = "name a column that is a timestamp, timestamp_ntz, date, or bigint (milliseconds since 1970)"
        raise place.mistake(what, do)
    return column.name
