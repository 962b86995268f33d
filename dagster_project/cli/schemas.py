"""Commands on the schemas of a topic. They need the registry, and neither the engine nor Kafka."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click
from rich.markup import escape

from dagster_project.cli.arguments import json_option
from dagster_project.cli.output import print_result
from dagster_project.settings import Settings
from spark.engine.errors import RegistryUnavailable
from spark.serdes.avro import Mismatch, columns_of
from spark.serdes.debezium_avro import row_of
from spark.topology.errors import Place, TopologyError
from spark.topology.sql.ddl import legal_name, quoted

if TYPE_CHECKING:
    from collections.abc import Callable

    from dagster_project.render import Json
    from resources.registry import Registry
    from spark.serdes.part import Part
    from spark.serdes.schemas import Schema

PARTS: tuple[Part, ...] = ("key", "value")


@click.group()
def schema() -> None:
    """The schemas of a topic, in the schema registry of the settings."""


def _subject_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options for subjects that are not named by their topic."""
    for part in reversed(PARTS):
        option = click.option(
            f"--{part}-subject", metavar="SUBJECT", help=f"The subject of the {part}; by default TOPIC-{part}."
        )
        command = option(command)
    return command


@schema.command()
@click.argument("topic", metavar="TOPIC")
@_subject_options
@json_option
def show(topic: str, key_subject: str | None, value_subject: str | None, as_json: bool) -> None:
    """Show the subjects of TOPIC: versions, schema ids, compatibility, and the schemas."""
    registry = _registry()
    found = _subjects(registry, topic, key_subject, value_subject)
    lines: list[str] = []
    result: list[Json] = []
    for part, subject in found.items():
        compatibility = registry.compatibility(subject.name) if subject.versions else ""
        known = f"compatibility {compatibility}" if subject.versions else "not in the registry"
        lines.append(f"{part}  {subject.name}, {known}")
        versions: list[Json] = []
        for version in subject.versions:
            lines.append(f"  schema {version.id}, {version.kind}: {version.text}")
            versions.append({"id": version.id, "kind": version.kind, "schema": version.text})
        result.append({"part": part, "subject": subject.name, "compatibility": compatibility, "schemas": versions})
    print_result(as_json, {"registry": registry.address, "subjects": result}, *map(escape, lines))


@schema.command()
@click.argument("topic", metavar="TOPIC")
@_subject_options
@json_option
def declare(topic: str, key_subject: str | None, value_subject: str | None, as_json: bool) -> None:
    """Print the declaration of TOPIC for a topology file, by the newest schemas of its subjects."""
    found = _subjects(_registry(), topic, key_subject, value_subject)
    texts: dict[str, str] = {}
    comments: list[str] = []
    is_envelope, in_key = False, set[str]()
    for part, subject in found.items():
        if not subject.versions:
            comments.append(f"# {subject.name} is not in the registry: write the column of the {part}, and its format")
            texts[part] = f"{part} string"
            continue
        newest = subject.versions[-1]
        try:
            columns = columns_of(newest, "id" if part == "key" else "value")
            if part == "value" and (row := row_of(newest)) is not None:
                is_envelope, columns = True, [column for column in row if column[0] not in in_key]
        except Mismatch as error:
            raise click.ClickException(f"{subject.name}: {error}") from error
        in_key = {name for name, _ in columns}
        texts[part], left_out = _ddl(columns)
        comments += [f"# left out of the {part}: {why}" for why in left_out]
    key_format = "" if found["key"].versions else ', key_format="kafka"'
    if is_envelope:
        call = f'Consumed.debezium(key="{texts["key"]}", value="{texts["value"]}", format="avro")'
    else:
        call = f'Consumed.avro(key="{texts["key"]}", value="{texts["value"]}"{key_format})'
    variable = re.sub(r"\W", "_", topic)
    line = f'{variable} = builder.table("{topic}", {call})'
    result: Json = {"topic": topic, **texts, "declaration": call, "comments": [*comments]}
    print_result(as_json, result, *map(escape, (*comments, line)))


@dataclass(frozen=True)
class _Subject:
    name: str
    versions: tuple[Schema, ...]


def _registry() -> Registry:
    registry = Settings.from_environment().tidetable().schema_registry()
    if registry is None:
        raise RegistryUnavailable(
            "no schema registry is set: set TIDETABLE_SCHEMA_REGISTRY_URL, or start one of the lake's own: "
            "tidetable up --registry"
        )
    return registry


def _subjects(registry: Registry, topic: str, key: str | None, value: str | None) -> dict[Part, _Subject]:
    names: dict[Part, str] = {"key": key or f"{topic}-key", "value": value or f"{topic}-value"}
    found = {part: _Subject(name, registry.versions(name)) for part, name in names.items()}
    if not any(subject.versions for subject in found.values()):
        raise click.ClickException(
            f"the registry {registry.address} has neither of the subjects {names['key']} and {names['value']}: correct "
            "the name of the topic, or name its subjects by --key-subject and --value-subject"
        )
    return found


def _ddl(columns: list[tuple[str, str | None]]) -> tuple[str, list[str]]:
    """Columns as DDL text, and why each other one is left out."""
    texts, left_out = [], []
    for name, kind in columns:
        try:
            legal_name(name, Place("schema", None))
        except TopologyError:
            left_out.append(f"{name}, which is no name of a column")
            continue
        if kind is None:
            left_out.append(f"{name}, which no type can hold")
        else:
            texts.append(f"{quoted(name)} {kind}")
    return ", ".join(texts), left_out
