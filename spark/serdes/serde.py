"""The interface between a topic's bytes and a table's columns: one serde for every format, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from spark.serdes import avro, avro_writing, json, json_schema, kafka
from spark.serdes.protobuf import Messages

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame

    from spark.serdes.part import Part
    from spark.serdes.schemas import Schemas, Writing
    from spark.topology.columns import Column
    from spark.topology.consumed import Consumed


class Decoder(Protocol):
    """A format of keys and values that are read. A module implements it with its functions, or an object."""

    def decode(self, records: DataFrame, part: Part, columns: tuple[Column, ...], schemas: Schemas) -> DataFrame:
        """Decode one part of records.

        Args:
            records: a binary column `_key` or `_value`, by the part, and other columns whose names begin with an
                underscore.
            part: the part to decode.
            columns: the declared columns of the part.
            schemas: the schemas that the records name; formats without a registry do not need them.

        Returns:
            The columns of `records`; `_key_row` or `_value_row`, a struct of the declared columns in their types (it
            may have other fields), or null if the record has no such part; `_key_error` or `_value_error` (string),
            what does not decode, or null. If the error is set, the fields may have any value. One row for every record:
            a serde drops no record and raises no error, but for a schema id that must be looked up first (see
            `Schemas`).
        """


class Encoder(Protocol):
    """A format of keys and values that are written. A module implements it with its functions.

    `writing` is the schema of a registry by which they are written; formats without a registry do not need it.
    """

    def encode_key(self, rows: DataFrame, key: tuple[str, ...], writing: Writing | None = None) -> Expression:
        """The key of each row, as a string or binary column; null if every column of the key is null."""

    def encode_value(self, rows: DataFrame, columns: tuple[str, ...], writing: Writing | None = None) -> Expression:
        """The value of each row, with its columns by name, as a string or binary column; never null."""


class Serde(Decoder, Encoder, Protocol):
    """A format of keys and values that are read and written, also by tests without a registry."""

    def to_bytes(self, part: object, columns: tuple[Column, ...]) -> bytes:
        """A key or a value of these columns as bytes, from a Python value that a test pipes.

        Raises:
            TypeError: the format has no such value.
            ValueError: the same.
        """

    def from_bytes(self, part: bytes, columns: tuple[Column, ...]) -> object:
        """A key or a value of these columns as a Python value, for a test that reads a topic."""


SERDES: Final[Mapping[str, Serde]] = {"json": json, "kafka": kafka}
"""Formats that are read and written without a registry, by the name that `Consumed` and `Produced` hold."""

ENCODERS: Final[Mapping[str, Encoder]] = {**SERDES, "avro": avro_writing}
"""Formats that are written, by the name that `Produced` holds."""

DECODERS: Final[Mapping[str, Decoder]] = {**SERDES, "avro": avro, "json_schema": json_schema}
"""Formats that are read, by the name that `Consumed` holds. Protobuf has a decoder for each message."""


def decoder(consumed: Consumed, part: Part) -> Decoder:
    """The decoder of a part of the records of a topic.

    Raises:
        KeyError: no decoder has this name. `Consumed` accepts only names that exist.
    """
    message = consumed.key_message if part == "key" else consumed.message
    if message is not None:
        return Messages(message)
    return DECODERS[consumed.key_format if part == "key" else consumed.format]


def encoder(name: str) -> Encoder:
    """The encoder of a format.

    Raises:
        KeyError: no encoder has this name. `Produced` accepts only names that exist.
    """
    return ENCODERS[name]


def serde(name: str) -> Serde:
    """The serde of a format without a registry.

    Raises:
        KeyError: no serde has this name.
    """
    return SERDES[name]
