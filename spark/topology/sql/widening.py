"""Wider types: every value of a type is also a value of the wider one. And what is certain to stay the same over them.

The pairs of types are those of Delta's type widening, where all values stay exact. A wider type may change what an
expression yields: the text of a double is not that of a float, and a quotient of decimals has another scale.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from spark.topology.errors import Place
from spark.topology.sql.ddl import fields, parts_of
from spark.topology.sql.tokens import tokens_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from spark.topology.columns import Column

WIDENINGS = (
    "tinyint to smallint to int to bigint; float to double; tinyint, smallint or int to double; a decimal to one with "
    "at least as many digits on both sides of the point; an integer to a decimal that holds all its values; date to "
    "timestamp_ntz; and the same inside arrays, structs and the values of maps"
)
"""What can be widened, in words."""

_INTEGERS = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 19}
"""By integer type, the digits that hold all its values."""
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_MAX_PRECISION = 38
_SUM_DIGITS = 10  # a sum of decimal(p,s) is decimal(p + 10,s)
_EXACT = 18  # digits of a decimal that is compared: a comparison with a bigint or a literal has less than 38
_NULL_WORDS = ("is", "not", "null", "and", "or", "(", ")")
_WORDS = (*_NULL_WORDS, "in", "between", "true", "false", ",")
_COMPARES = ("=", "==", "!=", "<>", "<", "<=", ">", ">=", "<=>")
_NUMBER = re.compile(r"\d{1,18}(\.\d{1,6})?")
_AGGREGATE = re.compile(r"\s*(count|min|max|sum|avg|mean)\s*\(\s*(`[^`]+`|\w+)\s*\)\s*", re.IGNORECASE)


class Wider(NamedTuple):
    """The former type of a column, and the wider one that it has now."""

    before: str
    now: str


class ValuesMayDiffer(Exception):
    """An expression may have other values now that a column has a wider type; the message says which.

    A step raises it as PlanChanged: run `tidetable rebuild` for the table.
    """


def is_wider(now: str, before: str) -> bool:
    """Whether every value of a type is exactly a value of another, wider one. Both are as `parse_type` returns them."""
    if before in _INTEGERS:
        digits = _INTEGERS[before]
        if now in _INTEGERS:
            return _INTEGERS[now] > digits
        decimal = _digits(now)
        return (now == "double" and before != "bigint") or (decimal is not None and decimal[0] - decimal[1] >= digits)
    if (old := _digits(before)) is not None:
        new = _digits(now)
        return new is not None and new != old and new[1] >= old[1] and new[0] - new[1] >= old[0] - old[1]
    if before.startswith("struct<") and now.startswith("struct<"):
        new_fields, old_fields = (fields(kind, Place("a type", None)) for kind in (now, before))
        return _are_wider([(one.name, one.type) for one in new_fields], [(one.name, one.type) for one in old_fields])
    for kind, names in (("array<", ("element",)), ("map<", ("key", "value"))):
        if before.startswith(kind) and now.startswith(kind):
            return _are_wider(*(list(zip(names, parts_of(one), strict=True)) for one in (now, before)))
    return (before, now) in (("float", "double"), ("date", "timestamp_ntz"))


def is_wider_key(now: str, before: str) -> bool:
    """Whether a key column may be widened: all its values keep the text that they have in keys of topics."""
    if before in _INTEGERS:
        return now in _INTEGERS and is_wider(now, before)
    old, new = _digits(before), _digits(now)
    return old is not None and new is not None and old[1] == new[1] and is_wider(now, before)


def _are_wider(now: Sequence[tuple[str, str | None]], before: Sequence[tuple[str, str | None]]) -> bool:
    """Whether all parts of a type are equal or wider, and have the same names."""
    return [name for name, _ in now] == [name for name, _ in before] and all(
        new == old or (name != "key" and new is not None and old is not None and is_wider(new, old))
        for (name, new), (_, old) in zip(now, before, strict=True)
    )


def _digits(kind: str) -> tuple[int, int] | None:
    """The precision and the scale of a decimal; None of another type."""
    found = _DECIMAL.fullmatch(kind)
    return None if found is None else (int(found[1]), int(found[2]))


def check_condition(text: str, wider: Mapping[str, Wider], columns: Collection[Column]) -> None:
    """Check that an expression which reads widened columns has the same value as before.

    That is certain if it only compares numbers which are exact, or asks whether columns are null.

    Args:
        text: the expression, over one source.
        wider: the widened columns, by name.
        columns: all columns of the source.

    Raises:
        ValuesMayDiffer: that is not certain.
    """
    read = mentioned(text, wider)
    if not read:
        return
    types = {column.name.lower(): column.type or "" for column in columns}
    tokens = tokens_of(text)
    names = [token.name.lower() for token in tokens if token.is_name and not token.is_(*_WORDS)]
    others = [token for token in tokens if not token.is_name or token.is_(*_WORDS)]
    if any(name not in types for name in names):
        raise _differ(text, wider, read)
    if all(token.is_(*_NULL_WORDS) for token in others):
        return
    exact = all(_is_exact(types[name]) for name in names) and all(
        _is_exact(one) for name in read for one in wider[name]
    )
    if not exact or not all(
        token.is_(*_WORDS, *_COMPARES) or (token.kind == "number" and _NUMBER.fullmatch(token.text)) for token in others
    ):
        raise _differ(text, wider, read)


def _is_exact(kind: str) -> bool:
    """Whether numbers of the type are compared exactly with those of the same kind."""
    digits = _digits(kind)
    return kind in _INTEGERS or (digits is not None and digits[0] <= _EXACT)


def check_unread(text: str, wider: Mapping[str, Wider], side: str = "") -> None:
    """Check that an expression reads no widened column; `side` qualifies its columns in a join.

    Raises:
        ValuesMayDiffer: it does.
    """
    if read := mentioned(text, wider, side):
        raise _differ(text, wider, read)


def aggregated(text: str, wider: Mapping[str, Wider]) -> Wider | None:
    """The type of an aggregate over a widened column, before and now; None if it is the same.

    Raises:
        ValuesMayDiffer: the aggregate may have another value.
    """
    read = mentioned(text, wider)
    if not read:
        return None
    call = _AGGREGATE.fullmatch(text)
    if call is None:
        raise _differ(text, wider, read)
    argument = call[2].strip("`").lower()
    name = next((name for name in read if name.lower() == argument), None)
    if name is None:  # the function has the name of a widened column
        return None
    before, now = wider[name]
    old, new = _digits(before), _digits(now)
    match call[1].lower():
        case "count":
            return None
        case "min" | "max":
            return wider[name]
        case _ if before in _INTEGERS and now in _INTEGERS:
            return None  # a sum of integers is a bigint, and an average is a double
        case "sum" if old and new and old[1] == new[1] and new[0] + _SUM_DIGITS <= _MAX_PRECISION:
            return Wider(*(f"decimal({digits[0] + _SUM_DIGITS},{digits[1]})" for digits in (old, new)))
    raise _differ(text, wider, read)


def mentioned(text: str, wider: Mapping[str, Wider], side: str = "") -> list[str]:
    """The widened columns whose names occur in an expression, after the name of the side if there is one."""
    tokens = tokens_of(text)
    named = {token.name.lower() for token in tokens if token.is_name}
    if side:
        parts = zip(tokens, tokens[1:], tokens[2:], strict=False)
        named = {
            name.name.lower() for one, dot, name in parts if one.is_name and one.name.lower() == side and dot.is_(".")
        }
    return [name for name in wider if name.lower() in named]


def _differ(text: str, wider: Mapping[str, Wider], read: Collection[str]) -> ValuesMayDiffer:
    columns = ", ".join(f"{name} was {wider[name].before} and is {wider[name].now}" for name in read)
    return ValuesMayDiffer(f"{columns}, and {text!r} may have other values")
