"""Columns and types declared as DDL text: `order_id bigint, tags array<string>`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from spark.topology.columns import Column
from spark.topology.errors import Place, TopologyError, did_you_mean
from spark.topology.sql.tokens import Sql, lex

_ALIASES = {
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "real": "float",
    "dec": "decimal",
    "numeric": "decimal",
    "timestamp_ltz": "timestamp",
}
_ATOMIC = (
    *("tinyint", "smallint", "int", "bigint", "float", "double", "decimal", "string", "binary"),
    *("boolean", "date", "timestamp", "timestamp_ntz", "variant"),
)
_PARTS = {"array": 1, "map": 2}  # the number of types between < and >
_NAMES = [*_ATOMIC, *_ALIASES, *_PARTS, "struct"]

_REFUSED = re.compile(r"[ ,;{}()\n\t=]")  # by Delta
# A name with a dot or a backquote would be parsed as several names, or as a quoted one.
_FORBIDDEN = re.compile(r"[ ,;{}()\n\t=.`]")
_RENAME = "choose a name without blanks and without any of . , ; { } ( ) = `"
# Other words of SQL can be column names without quotes.
_PLAIN = re.compile(r"(?!(?:null|true|false)$)[^\W\d]\w*", re.ASCII | re.IGNORECASE)

_MAX_PRECISION = 38  # digits, Spark's widest decimal


def parse_columns(text: str, place: Place, ours: Collection[str] = ()) -> tuple[Column, ...]:
    """The columns that DDL text declares, with normalised types. `ours` are columns of Tidetable that it may name.

    Raises:
        TopologyError: a name is illegal or declared twice, or a type is missing or unknown.
    """
    sql = lex(text, place)
    columns: list[Column] = []
    at = 0
    while True:
        if not sql.at(at).is_name:
            raise _wrong(sql, at, "a column name is missing")
        name = sql.at(at).name
        name = name if name in ours else legal_name(name, place)
        if name.lower() in (column.name.lower() for column in columns):
            raise _wrong(sql, at, f"the column {name!r} is declared twice")
        type_, after = parse_type(sql, at + 1)
        for index in range(at + 1, after):
            if sql.at(index).kind == "quoted" and _REFUSED.search(sql.at(index).name):
                raise sql.wrong(index, f"the field name {sql.at(index).name!r} cannot be stored", _RENAME)
        columns.append(Column(name, type_))
        if sql.at(after).kind == "end":
            return tuple(columns)
        at = _after(",", sql, after)


def parse_type(sql: Sql, at: int) -> tuple[str, int]:
    """The normalised type that begins at a token, and the index of the token after it.

    Raises:
        TopologyError: no known type begins there.
    """
    word = _ALIASES.get(sql.at(at).lower, sql.at(at).lower)
    if word == "decimal":
        return _parse_decimal(sql, at + 1)
    if word == "struct":
        return _parse_struct(sql, at + 1)
    if word in _PARTS:
        return _parse_nested(word, sql, at + 1)
    if word in _ATOMIC:
        return word, at + 1
    if word == "":
        raise _wrong(sql, at, "a type is missing")
    raise _wrong(sql, at, f"there is no type {word!r}{did_you_mean(word, _NAMES)}")


def fields(struct: str, place: Place) -> tuple[Column, ...]:
    """The fields of a struct, given its normalised type."""
    return _parse_fields(lex(struct, place), 1)[0]


def parts_of(kind: str) -> tuple[str, ...]:
    """The types inside an array or a map, given its normalised type; none of other types."""
    word = kind.partition("<")[0]
    return _parse_parts(word, lex(kind, Place("a type", None)), 1)[0] if word in _PARTS else ()


def struct_of(columns: Iterable[Column]) -> str:
    """The type of a struct with these fields."""
    return f"struct<{','.join(f'{quoted(column.name)}:{column.type}' for column in columns)}>"


def legal_name(name: str, place: Place) -> str:
    """The given column name, checked: Delta can store it, and it is not reserved.

    Raises:
        TopologyError: the name is no string, begins with an underscore, or has a forbidden character.
    """
    if not isinstance(name, str):
        raise place.mistake(f"the column name {name!r} is not a string", "write a name")
    if name.startswith("_"):
        do = "rename it: names that begin with an underscore are reserved for Tidetable's own columns"
        raise place.mistake(f"the column name {name!r} begins with an underscore", do)
    if _FORBIDDEN.search(name):
        raise place.mistake(f"the column name {name!r} cannot be stored", _RENAME)
    return name


def quoted(name: str) -> str:
    """A name as SQL text, in backquotes if it needs them."""
    return name if _PLAIN.fullmatch(name) else "`" + name.replace("`", "``") + "`"


def _parse_decimal(sql: Sql, at: int) -> tuple[str, int]:
    if not sql.at(at).is_("("):
        return "decimal(10,0)", at
    two = sql.at(at + 2).is_(",")
    close = _after(")", sql, at + 4 if two else at + 2)
    precision, scale = sql.at(at + 1).text, sql.at(at + 3).text if two else "0"
    if not (precision.isdecimal() and scale.isdecimal()):
        raise _wrong(sql, at, "a decimal is written decimal(precision, scale)")
    if not (1 <= int(precision) <= _MAX_PRECISION and int(scale) <= int(precision)):
        raise _wrong(sql, at, f"a decimal has 1 to {_MAX_PRECISION} digits, and its scale is at most its precision")
    return f"decimal({int(precision)},{int(scale)})", close


def _parse_nested(word: str, sql: Sql, at: int) -> tuple[str, int]:
    parts, after = _parse_parts(word, sql, at)
    return f"{word}<{','.join(parts)}>", after


def _parse_parts(word: str, sql: Sql, at: int) -> tuple[tuple[str, ...], int]:
    parts: list[str] = []
    after = _after("<", sql, at)
    for index in range(_PARTS[word]):
        part, after = parse_type(sql, after if index == 0 else _after(",", sql, after))
        parts.append(part)
    return tuple(parts), _after(">", sql, after)


def _parse_struct(sql: Sql, at: int) -> tuple[str, int]:
    """A struct type; its fields keep their case, since JSON names are case-sensitive."""
    columns, after = _parse_fields(sql, at)
    return struct_of(columns), after


def _parse_fields(sql: Sql, at: int) -> tuple[tuple[Column, ...], int]:
    columns: list[Column] = []
    after = _after("<", sql, at)
    while not columns or sql.at(after - 1).is_(","):
        if not sql.at(after).is_name:
            raise _wrong(sql, after, "a field name is missing")
        name = sql.at(after).name
        if name.lower() in (column.name.lower() for column in columns):
            raise _wrong(sql, after, f"the field {name!r} is declared twice")
        type_, after = parse_type(sql, after + 2 if sql.at(after + 1).is_(":") else after + 1)
        columns.append(Column(name, type_))
        after = _after("," if sql.at(after).is_(",") else ">", sql, after)
    return tuple(columns), after


def _after(operator: str, sql: Sql, at: int) -> int:
    if not sql.at(at).is_(operator):
        raise _wrong(sql, at, f"{operator!r} is missing")
    return at + 1


def _wrong(sql: Sql, at: int, what: str) -> TopologyError:
    return sql.wrong(at, what, "write types as in 'id bigint, price decimal(12,2), tags array<string>'")
