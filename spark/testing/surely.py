"""Which input decodes without doubt. Any other is decoded when it is piped, so that an error is raised there."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark.topology.columns import Column
    from spark.topology.topology import Source

_INTEGERS = {"tinyint": 7, "smallint": 15, "int": 31, "bigint": 63}
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(?:\.(\d+))?")


def surely_decodes(source: Source, key: object, value: object, timestamp: int, ahead: int | None) -> bool:
    """True if a record certainly has its declared types, a whole key, and a time that is not ahead of the clock.

    Args:
        source: the record's topic.
        key: what was piped.
        value: what was piped.
        timestamp: milliseconds since 1970.
        ahead: how many milliseconds a record may be ahead of the clock; None for no limit.
    """
    consumed = source.consumed
    if (
        (consumed.format, consumed.key_format, consumed.envelope) != ("json", "json", None)
        or consumed.timestamp is not None
        or (ahead is not None and timestamp > time.time_ns() // 1_000_000 + ahead)
    ):
        return False
    named = key if isinstance(key, dict) else {consumed.key[0].name: key} if len(consumed.key) == 1 else {}
    if any(named.get(column.name) is None for column in consumed.key) or not _holds(named, consumed.key):
        return False
    if value is None:
        return True
    return isinstance(value, dict) and not consumed.again and _holds(value, consumed.value)


def _holds(given: dict[str, Any], columns: tuple[Column, ...]) -> bool:
    """True if an object certainly has the types of columns; a name in another case may be the same field."""
    declared = {column.name.lower(): column.name for column in columns}
    if any(declared.get(name.lower(), name) != name for name in given):
        return False
    return all(_is(column.type or "", given.get(column.name)) for column in columns)


def _is(kind: str, part: Any) -> bool:
    if part is None:
        return True
    if kind in _INTEGERS:
        return type(part) is int and -(2 ** _INTEGERS[kind]) < part < 2 ** _INTEGERS[kind]
    if kind == "boolean":
        return type(part) is bool
    if kind == "double":
        return type(part) in (int, float) and abs(part) < 2**53
    if kind == "string":
        return type(part) is str and part.isprintable()
    if decimal := _DECIMAL.fullmatch(kind):
        written = _NUMBER.fullmatch(part if type(part) is str else str(part) if type(part) is int else "")
        digits, places = map(int, decimal.groups())
        return written is not None and len(written[1]) <= digits - places and len(written[2] or "") <= places
    return False
