"""Values of PostgreSQL, from the text that it writes of them."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

ELEMENT = re.compile(r'"((?:[^"\\]|\\.)*)"|([^",{}]+)')
"""An element of an array: quoted, or bare."""
ENTRY = re.compile(r'"((?:[^"\\]|\\.)*)"=>(?:"((?:[^"\\]|\\.)*)"|NULL)')
"""An entry of an hstore."""


def value(text: str | None, kind: str) -> Any:
    """The value of a text that PostgreSQL wrote for a type of its own: what a table of ours must hold."""
    if text is None:
        return None
    if kind.endswith("[]"):
        found = [(_unescaped(quoted) if quoted else bare) for quoted, bare in ELEMENT.findall(text[1:-1])]
        return [None if one == "NULL" else value(one, kind[:-2]) for one in found]
    if kind in ("smallint", "integer", "bigint"):
        return int(text)
    if kind.startswith("numeric"):
        return Decimal(text)
    if kind == "bytea":
        return bytes.fromhex(text.removeprefix(r"\x"))
    if kind == "timestamp with time zone":
        return datetime.fromisoformat(text).astimezone(UTC)
    if kind == "hstore":
        return {_unescaped(key): _unescaped(of) if of else None for key, of in ENTRY.findall(text)}
    return text


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)
