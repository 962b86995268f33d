"""What Kafka's own serializers write, one value without a name, to a column and back. ksqlDB calls the format KAFKA.

The type of the column says which serializer it was (`SERIALIZERS`): integers and floating-point numbers are big-endian
and have their fixed length, a boolean is one byte, a string is UTF-8, a binary is any bytes. A UUID is its text, as
UUIDSerializer writes it: declare it as string.

No bytes at all (null) are no key, or a tombstone. Zero bytes are a text or a binary of length 0, and no other value, as
for Kafka's deserializers. Two of these are more lenient: StringDeserializer replaces bytes that are not UTF-8, and here
they are an error, because two keys would become one.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from spark.topology.formats import SERIALIZERS
from spark.topology.sql.ddl import quoted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame

    from spark.serdes.part import Part
    from spark.serdes.schemas import Schemas, Writing
    from spark.topology.columns import Column

PACKED: Final = {
    "smallint": ">h",
    "int": ">i",
    "bigint": ">q",
    "float": ">f",
    "double": ">d",
    "boolean": ">?",
}
"""The layout of each type with a fixed length, as Python's `struct` names it."""

TAKEN: Final[Mapping[str, tuple[type, ...]]] = {
    "float": (float, int),
    "double": (float, int),
    "boolean": (bool,),
    "string": (str,),
}
"""The Python types that a test may pipe, if not int."""

FRACTION: Final = {"float": (23, 127), "double": (52, 1023)}
"""How many bits of a floating-point number are its fraction, and the bias of its exponent (IEEE 754)."""


def decode(
    records: DataFrame,
    part: Part,
    columns: tuple[Column, ...],
    schemas: Schemas,  # noqa: ARG001  # of formats with a registry
) -> DataFrame:
    """Decode a part of records: see `Serde.decode`."""
    [column] = columns
    kind, raw = str(column.type), F.col(f"_{part}")
    value, is_valid = _value(kind, raw)
    reason = f"the {part} is not what Kafka's {SERIALIZERS[kind]} writes ({column.name} {kind})"
    return records.select(
        "*",
        F.when(raw.isNotNull(), F.struct(value.alias(column.name))).alias(f"_{part}_row"),
        F.when(raw.isNotNull() & ~is_valid, F.lit(reason)).alias(f"_{part}_error"),
    )


def _value(kind: str, raw: Expression) -> tuple[Expression, Expression]:
    """Bytes as a value of a type, and whether they are one."""
    if kind == "binary":
        return raw, F.lit(True)
    if kind == "string":
        text = raw.cast("string")
        return text, F.is_valid_utf8(text)
    size = struct.calcsize(PACKED[kind])
    has_size = F.octet_length(raw) == size
    bits = _bits(raw, size)
    if kind == "boolean":
        return bits == 1, has_size & bits.isin(0, 1)
    if kind in FRACTION:
        return _floating(kind, bits, size), has_size
    return bits.try_cast(kind), has_size


def _bits(raw: Expression, size: int) -> Expression:
    """Big-endian bytes as a whole number with a sign; only the first `size` bytes are read."""
    parts = [F.conv(F.hex(raw.substr(at, min(4, size))), 16, 10).try_cast("bigint") for at in range(1, size + 1, 4)]
    number = parts[0] if size <= 4 else F.shiftleft(parts[0], 32).bitwiseOR(parts[1])
    spare = 64 - 8 * size
    return F.shiftright(F.shiftleft(number, spare), spare)  # the second keeps the sign


def _floating(kind: str, bits: Expression, size: int) -> Expression:
    """The bits of a floating-point number as that number (IEEE 754). Spark has no function for it."""
    length, bias = FRACTION[kind]
    greatest = 2 ** (8 * size - 1 - length) - 1
    exponent = F.shiftright(bits, length).bitwiseAND(F.lit(greatest))
    fraction = bits.bitwiseAND(F.lit(2**length - 1))
    significand = F.when(exponent == 0, fraction).otherwise(fraction + 2**length)
    scale = F.pow(F.lit(2.0), F.greatest(exponent, F.lit(1)) - bias - length)
    without_end = F.when(fraction == 0, F.lit(float("inf"))).otherwise(F.lit(float("nan")))
    size_of = F.when(exponent == greatest, without_end).otherwise(significand.cast("double") * scale)
    return (F.when(bits < 0, -1.0).otherwise(1.0) * size_of).cast(kind)


def encode_key(
    rows: DataFrame,
    key: tuple[str, ...],
    writing: Writing | None = None,  # noqa: ARG001  # of formats with a registry
) -> Expression:
    """The bytes of a row's key; null for null."""
    return _encoded(rows, key)


def encode_value(
    rows: DataFrame,
    columns: tuple[str, ...],
    writing: Writing | None = None,  # noqa: ARG001  # of formats with a registry
) -> Expression:
    """The bytes of a row's value; an error of the query for null, which would be a tombstone."""
    [name] = columns
    why = f"{name} is null, and without a value a record is a tombstone: leave such rows out with a filter"
    return F.when(F.col(quoted(name)).isNull(), F.raise_error(F.lit(why))).otherwise(_encoded(rows, columns))


def _encoded(rows: DataFrame, columns: tuple[str, ...]) -> Expression:
    [name] = columns
    kind, value = dict(rows.dtypes)[name], F.col(quoted(name))
    if kind in ("string", "binary"):
        return value.cast("binary")
    digits = 2 * struct.calcsize(PACKED[kind])
    return F.unhex(F.right(F.lpad(F.hex(value.cast("bigint")), 16, "0"), F.lit(digits)))


def to_bytes(part: object, columns: tuple[Column, ...]) -> bytes:
    """A Python value as Kafka's serializer for the type of the column writes it."""
    [column] = columns
    kind = str(column.type)
    if not isinstance(part, TAKEN.get(kind, (int,))) or (isinstance(part, bool) and kind != "boolean"):
        raise TypeError(f"{part!r} is no {kind}, as {column.name} is")
    if isinstance(part, str):
        return part.encode()
    try:
        return struct.pack(PACKED[kind], part)
    except (struct.error, OverflowError) as error:
        raise ValueError(f"{part!r} is beyond {kind}, as {column.name} is") from error


def from_bytes(part: bytes, columns: tuple[Column, ...]) -> object:
    """The value that Kafka's serializer for the type of the column wrote."""
    [column] = columns
    kind = str(column.type)
    if kind == "binary":
        return part
    if kind == "string":
        return part.decode()
    [value] = struct.unpack(PACKED[kind], part)
    return value
