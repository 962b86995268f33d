"""What a builder has declared so far: sources, nodes, and tables to store."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from spark.topology.columns import Line, published_name
from spark.topology.consumed import check_comparable
from spark.topology.errors import Place
from spark.topology.model import Settings, Source, Table
from spark.topology.nodes import Node
from spark.topology.produced import Produced

_LEGAL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_LEGAL_TOPIC = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]+")
_MAX_NAME = 249  # characters, Kafka's limit for a topic, and short enough for a folder everywhere


@dataclass
class BuilderState:
    """The state of a builder. The plans of its tables are over nodes: nothing is a scan of a stored table yet."""

    name: str
    settings: Settings
    sources: list[Source] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    stored: list[Table] = field(default_factory=list)


def legal_path_part(name: str, place: Place) -> str:
    """A name that can be a folder of the lake."""
    if not isinstance(name, str) or _LEGAL_NAME.fullmatch(name) is None or len(name) > _MAX_NAME:
        do = f"use letters, digits, '.', '_' and '-', a letter or digit first, at most {_MAX_NAME} characters"
        raise place.mistake(f"the name {name!r} cannot be a folder", do)
    return name


def legal_topic(topic: str, place: Place) -> str:
    """A name that Kafka accepts for a topic."""
    if not isinstance(topic, str) or _LEGAL_TOPIC.fullmatch(topic) is None or len(topic) > _MAX_NAME:
        do = f"use letters, digits, '.', '_' and '-', at most {_MAX_NAME} characters"
        raise place.mistake(f"{topic!r} cannot be a topic", do)
    return topic


def store(state: BuilderState, name: str, plan: Node, line: Line) -> None:
    """Ask for a table of this name that holds the plan's rows."""
    place = Place(f"table {name} ({plan.title})", line, {"": plan.columns})
    legal_path_part(name, place)
    for table in state.stored:
        # names that differ in case alone are one folder on some file systems
        if table.name.lower() == name.lower():
            what = f"{table.name!r} is stored already, {table.plan.title} at {table.line}"
            raise place.mistake(what, "choose another name")
        if table.plan == plan:
            what = f"the same rows are stored already, as {table.name!r} at {table.line}"
            raise place.mistake(what, f"read {table.name!r}")
    if not plan.is_stream:
        check_comparable(plan.columns, place)
    state.stored.append(Table(name, plan, line=line))


def publish(state: BuilderState, topic: str, produced: object, plan: Node, line: Line) -> None:
    """Ask for a plan's rows to be published; what is not stored yet is, under the topic's name."""
    place = Place(f"{plan.title} to topic {topic}", line, {"": plan.columns})
    legal_topic(topic, place)
    if not isinstance(produced, Produced):
        raise place.mistake(f"it is produced as {produced!r}", "write to(topic, Produced.json()), or to(topic)")
    for source in state.sources:
        if source.topic == topic:
            what = f"the topology reads this topic, as {source.kind}() at {source.line}"
            raise place.mistake(what, "choose another topic: it would read its own answers")
    for table in state.stored:
        if table.topic == topic:
            raise place.mistake(f"{table.name!r} is published to this topic already", "choose another topic")
    names = [published_name(column.name).lower() for column in plan.columns]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        what = f"a window's bound is called {', '.join(twice)} on a topic, as a column is already"
        raise place.mistake(what, "give that column another name")
    if all(table.plan != plan for table in state.stored):
        store(state, topic, plan, line)
    at, stored = next((at, table) for at, table in enumerate(state.stored) if table.plan == plan)
    if stored.topic is not None:
        what = f"{stored.name!r} is published already, to {stored.topic!r}"
        raise place.mistake(what, "a table is published to one topic: read that one, or materialize and publish a view")
    state.stored[at] = replace(stored, topic=topic, produced=produced)
