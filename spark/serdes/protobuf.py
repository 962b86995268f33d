"""Protobuf bytes to typed columns, by the descriptors of the declaration. `_error` says what does not decode.

A record is a message, with or without the framing of a registry: a byte 0, a schema id of four bytes, and message
indexes. The schema of the id is not read: a Protobuf message is read by the schema of its reader. Fields that are not
declared, and fields that the descriptors do not have, are skipped. Python workers of the engine decode, by
`protobuf_worker`, since Spark's own functions for Protobuf are in a package that is not published everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.cloudpickle import register_pickle_by_value
from pyspark.sql import functions as F

from spark.serdes import protobuf_worker
from spark.topology.errors import Place
from spark.topology.sql.ddl import fields, parts_of, struct_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from spark.serdes.part import Part
    from spark.serdes.protobuf_worker import Kind
    from spark.serdes.schemas import Schemas
    from spark.topology.columns import Column
    from spark.topology.protobuf import Message

register_pickle_by_value(protobuf_worker)  # type: ignore[no-untyped-call]  # it has no types


@dataclass(frozen=True)
class Messages:
    """The decoder of a message: a `Decoder`."""

    message: Message

    def decode(
        self,
        records: DataFrame,
        part: Part,
        columns: tuple[Column, ...],
        schemas: Schemas,  # noqa: ARG002  # of formats that read them
    ) -> DataFrame:
        """Decode a part of records: see `Decoder.decode`."""
        row, error = F.lit(None).cast(struct_of(columns)), F.lit(None).cast("string")
        schema = records.select("*", row.alias(f"_{part}_row"), error.alias(f"_{part}_error")).schema
        kinds = tuple((column.name, kind(str(column.type))) for column in columns)
        message = self.message
        read = protobuf_worker.reader(part, message.name, message.files, message.index, kinds)
        return records.mapInArrow(read, schema)


def kind(text: str) -> Kind:
    """A type as the worker reads it, of its normalised DDL text."""
    if text.startswith("struct<"):
        found = fields(text, Place(text, None))
        return "struct", tuple((column.name, kind(str(column.type))) for column in found)
    parts = parts_of(text)
    return (text.partition("<")[0], *map(kind, parts))
