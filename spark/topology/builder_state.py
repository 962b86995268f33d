"""The state of a builder: the declared sources, nodes and stored tables."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from spark.topology.columns import Line, published_name
from spark.topology.consumed import check_comparable
from spark.topology.errors import Place
from spark.topology.model import Leader, Settings, Source, Table
from spark.topology.nodes import Node
from spark.topology.produced import Produced, check_published

_LEGAL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_LEGAL_TOPIC = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]+")
_MAX_NAME = 249  # characters, Kafka's limit for a topic, and short enough for a folder everywhere


@dataclass
class BuilderState:
    """The state of a builder. Plans are over nodes; `build` replaces stored nodes by scans."""

    name: str
    settings: Settings
    sources: list[Source] = field(default_factory=list)
    leaders: list[Leader] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    stored: list[Table] = field(default_factory=list)


def legal_path_part(name: str, place: Place) -> str:
    """The name, checked: it can be a folder of the lake."""
    if not isinstance(name, str) or _LEGAL_NAME.fullmatch(name) is None or len(name) > _MAX_NAME:
        do = f"use letters, digits, '.', '_' and '-', a letter or digit first, at most {_MAX_NAME} characters"
        raise place.mistake(f"the name {name!r} cannot be a folder", do)
    return name


def legal_topic(topic: str, place: Place) -> str:
    """The topic, checked: Kafka accepts the name."""
    if not isinstance(topic, str) or _LEGAL_TOPIC.fullmatch(topic) is None or len(topic) > _MAX_NAME:
        do = f"use letters, digits, '.', '_' and '-', at most {_MAX_NAME} characters"
        raise place.mistake(f"{topic!r} is not a valid topic name", do)
    return topic


def store(state: BuilderState, name: str, plan: Node, line: Line) -> None:
    """Declare a stored table with the plan's rows."""
    place = Place(f"table {name} ({plan.title})", line, {"": plan.columns})
    legal_path_part(name, place)
    for leader in state.leaders:
        if leader.name.lower() == name.lower():
            what = f"{leader.name!r} is the read-only table of {leader.dotted_name} at {leader.line}"
            raise place.mistake(what, "choose another name: only the leader's own topology writes that table")
    for table in state.stored:
        # names that differ only in case are one folder on some file systems
        if table.name.lower() == name.lower():
            what = f"{table.name!r} is already stored: {table.plan.title} at {table.line}"
            raise place.mistake(what, "choose another name")
        if table.plan == plan:
            what = f"the same rows are already stored as {table.name!r} at {table.line}"
            raise place.mistake(what, f"read {table.name!r}")
    if not plan.is_stream:
        check_comparable(plan.columns, place)
    state.stored.append(Table(name, plan, line=line))


def publish(state: BuilderState, topic: str, produced: object, plan: Node, line: Line) -> None:
    """Declare that a plan's rows are published; rows that are not stored yet are stored under the topic's name."""
    place = Place(f"{plan.title} to topic {topic}", line, {"": plan.columns})
    legal_topic(topic, place)
    if not isinstance(produced, Produced):
        raise place.mistake(f"produced is {produced!r}", "write to(topic, Produced.json()), or to(topic)")
    for leader in state.leaders:
        if leader.name == topic:
            what = f"{leader.name!r} is the read-only table of {leader.dotted_name} at {leader.line}"
            raise place.mistake(what, "choose another topic: only the leader's own topology publishes that table")
    for source in state.sources:
        if source.topic == topic:
            what = f"the topology reads this topic, as {source.kind}() at {source.line}"
            raise place.mistake(what, "choose another topic: the topology would read its own output")
    for table in state.stored:
        if table.topic == topic:
            raise place.mistake(f"the table {table.name!r} is already published to this topic", "choose another topic")
    names = [published_name(column.name).lower() for column in plan.columns]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        what = f"the bounds of windows are published as {', '.join(twice)}, and a column has that name"
        raise place.mistake(what, "rename the column")
    check_published(produced, plan.key, plan.columns, place)
    if all(table.plan != plan for table in state.stored):
        store(state, topic, plan, line)
    index, stored = next((index, table) for index, table in enumerate(state.stored) if table.plan == plan)
    if stored.topic is not None:
        what = f"the table {stored.name!r} is already published to {stored.topic!r}, and a table has one topic"
        raise place.mistake(what, "read that topic, or materialize and publish a view of the table")
    state.stored[index] = replace(stored, topic=topic, produced=produced)
