"""The schemas by which the records of a topic are written, registered before the first record that has them.

The id of the key's schema is a part of the bytes of every key: under another id a key would go to another partition,
and compaction would keep both. So a topic keeps the id that it began with: it is a part of the published position, and
in the headers of the records.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from spark.engine.errors import KeySchemaLost, PlanChanged, RegistryRefused
from spark.engine.publishing.feed import remedy
from spark.engine.schemas import registry_at
from spark.serdes.avro_types import Avro, Field, NotAvro, parse
from spark.serdes.schemas import Writing
from spark.topology.avro_schema import full_name, schema_of
from spark.topology.formats import WITH_REGISTRY

if TYPE_CHECKING:
    from spark.engine.ports import Ports, Registry
    from spark.serdes.part import Part
    from spark.serdes.schemas import Schema
    from spark.topology.columns import Column
    from spark.topology.topology import Table


@dataclass
class Written:
    """The schemas of one publication. `key_schema_id` is the id that the topic began with; None before that."""

    ports: Ports
    target: Table
    key_schema_id: int | None = None
    _known: dict[tuple[Part, tuple[Column, ...]], Writing] = field(default_factory=dict)

    def registered(self, part: Part, columns: tuple[Column, ...]) -> Writing | None:
        """Return the schema of a part with these columns, which the registry has; None for other formats.

        Raises:
            RegistryRefused: the registry refuses the schema.
            RegistryUnavailable: the registry does not answer, or there is none.
            KeySchemaLost: the registry does not have the key's schema under the id that the topic's keys have.
            PlanChanged: the key has another type than the topic's keys.
        """
        if self._format(part) not in WITH_REGISTRY:
            return None
        if (part, columns) not in self._known:
            text = self._text(part, columns)
            number = self._key_id(text) if part == "key" else self._id(part, text)
            self._known[part, columns] = Writing(number, text, columns)
        return self._known[part, columns]

    def compared(self, part: Part, columns: tuple[Column, ...]) -> Writing | None:
        """Return the schema of a part with these columns, for rows that are not sent: it is not registered."""
        if self._format(part) not in WITH_REGISTRY:
            return None
        number = self.key_schema_id or 0 if part == "key" else 0
        return self._known.get((part, columns)) or Writing(number, self._text(part, columns), columns)

    def _format(self, part: Part) -> str:
        return self.target.produced.key_format if part == "key" else self.target.produced.format

    def _text(self, part: Part, columns: tuple[Column, ...]) -> str:
        return schema_of(part, columns, self._name(part))

    def _name(self, part: Part) -> str:
        return full_name(str(self.target.topic), self.target.produced.name, part)

    @property
    def _registry(self) -> Registry:
        of = f"topic {self.target.topic} is published in Avro"
        return registry_at(self.ports, self.target.produced.registry, of)

    def _subject(self, part: Part) -> str:
        strategy = self.target.produced.subject_name_strategy
        if part == "key" or strategy == "topic":
            return f"{self.target.topic}-{part}"
        return self._name(part) if strategy == "record" else f"{self.target.topic}-{self._name(part)}"

    def _key_id(self, text: str) -> int:
        """Return the id of the key's schema, which is that of the topic's keys so far."""
        if self.key_schema_id is None:
            self.key_schema_id = self._id("key", text)
            return self.key_schema_id
        found = self._registry.schema(self.key_schema_id)
        if found is None or _shape(found) != _as_written(parse(text)):
            if found is not None and found.id in {known.id for known in self._registry.versions(self._subject("key"))}:
                raise PlanChanged(
                    f"the key of {self.target.name} in topic {self.target.topic} was written as {found.text} and is "
                    f"{text} now: the same keys would have other bytes. {remedy(self.target)}"
                )
            has = "does not have" if found is None else f"has for another schema: {found.text}"
            raise KeySchemaLost(
                f"topic {self.target.topic}: its keys have the schema id {self.key_schema_id}, which the registry "
                f"{self._registry.address} {has}. The keys are written as {text}. Under another id they would go to "
                "other partitions, and compaction would keep both. Restore the schema under this id (the registry's "
                f"mode IMPORT); or begin anew. {remedy(self.target)}"
            )
        return self.key_schema_id

    def _id(self, part: Part, text: str) -> int:
        """Return the id of the subject's newest schema that is the same, or else of a new version.

        For a key any schema is the same that gives the same bytes.
        """
        subject, wanted = self._subject(part), parse(text)
        for known in reversed(self._registry.versions(subject)):
            if _parsed(known) == wanted or (part == "key" and _shape(known) == _as_written(wanted)):
                return known.id
        try:
            return self._registry.register(subject, "AVRO", text)
        except RegistryRefused as error:
            nothing = f"topic {self.target.topic}: nothing of {self.target.name} was sent. {error}"
            if error.forbidden:
                raise RegistryRefused(nothing, forbidden=True) from error
            other = f" {remedy(self.target)}." if subject.startswith(f"{self.target.topic}-") else ""
            raise RegistryRefused(
                f"{nothing}. Change the columns at {self.target.line} as it allows, or set another compatibility of "
                f"{subject} in the registry.{other} The schema is {text}"
            ) from error


def _parsed(schema: Schema) -> Avro | None:
    """Return the type of a schema; None if it is not Avro."""
    try:
        return parse(schema.text, schema.references) if schema.kind == "AVRO" else None
    except NotAvro:
        return None


def _shape(schema: Schema) -> Avro | None:
    parsed = _parsed(schema)
    return None if parsed is None else _as_written(parsed)


def _as_written(avro: Avro) -> Avro:
    """Return the type with all that the bytes of a value depend on, and without what they do not."""
    fields = tuple(Field(one.name, _as_written(one.type)) for one in avro.fields)
    return replace(avro, name="", fields=fields, branches=tuple(map(_as_written, avro.branches)))
