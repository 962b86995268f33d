"""The framing of records whose schema is in a registry: a byte 0, the id of the schema in four bytes, and the content.

It is the wire format of Confluent's serializers, for every kind of schema.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression

HEADER: Final = 5  # bytes before the content: 0, and the id
REST: Final = 2**31 - 1  # bytes: more than an array has


def is_framed(raw: Expression, length: int = HEADER) -> Expression:
    """True if bytes begin with a header and are at least this long; null for null."""
    return (F.substring(raw, F.lit(1), F.lit(1)) == F.lit(b"\0")) & (F.octet_length(raw) >= length)


def header_for(schema_id: int) -> bytes:
    """The header of a schema."""
    return b"\0" + schema_id.to_bytes(HEADER - 1, "big")


def schema_id(framed: bytes) -> int:
    """The id of the schema that framed bytes name."""
    return int.from_bytes(framed[1:HEADER], "big")


def header_of(raw: Expression) -> Expression:
    """The header of framed bytes."""
    return F.substring(raw, F.lit(1), F.lit(HEADER))


def content_of(raw: Expression) -> Expression:
    """The content of framed bytes."""
    return F.substring(raw, F.lit(HEADER + 1), F.lit(REST))
