"""Schemas of a registry, for the formats whose records name one by its id."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from spark.serdes.part import Part

if TYPE_CHECKING:
    from spark.topology.columns import Column

SchemaKind = Literal["AVRO", "JSON", "PROTOBUF"]
"""The names that registries give to the formats of schemas."""


@dataclass(frozen=True)
class Schema:
    """A registered schema: its text, and the texts of the schemas that it refers to, each before those that use it."""

    id: int
    kind: SchemaKind
    text: str
    references: tuple[str, ...] = ()


@dataclass(frozen=True)
class Writing:
    """The schema by which a key or a value is written: its id in the registry, its text, and the columns that it has.

    The id is 0, which is none of a registry, of what is only compared with other values, and never sent.
    """

    id: int
    text: str
    columns: tuple[Column, ...]


@dataclass(frozen=True)
class Schemas:
    """The schemas by which one part of the records of a topic decodes.

    `known` has them by id, in the order in which they were registered. `missing` are the ids that the registry does not
    have. If `is_complete`, these two are all ids that the records name. Otherwise a record that names another id raises
    an error when it decodes (see `UNKNOWN`), so that the id can be looked up.
    """

    known: Mapping[int, Schema] = field(default_factory=lambda: MappingProxyType({}))
    missing: frozenset[int] = frozenset()
    is_complete: bool = True


NO_SCHEMAS = Schemas()
"""For a format without a registry."""

NONE: Mapping[Part, Schemas] = MappingProxyType({"key": NO_SCHEMAS, "value": NO_SCHEMAS})

UNKNOWN = "tidetable-unknown-schema-id"
"""The text with which the error of a record begins whose schema id is not known."""
