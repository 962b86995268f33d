"""Plans over many worlds at once: every key begins with the number of a world, so that no row meets another world's.

A world is one batch of records with all tables before and after it. The operators do not know: to them, it is a plan
whose keys have one more column. Records are identified by their coordinates, so `_topic` begins with the number too.
"""

from __future__ import annotations

from dataclasses import replace
from functools import singledispatch
from typing import TYPE_CHECKING, Final

from spark.topology.columns import Column
from spark.topology.nodes import (
    Aggregate,
    Changes,
    ClosedSessions,
    Explode,
    Join,
    Latest,
    Lookup,
    Records,
    Scan,
    Select,
    StreamJoin,
    Union,
    Window,
)
from spark.topology.sql.tokens import tokens_of

if TYPE_CHECKING:
    from spark.topology.nodes import Node
    from spark.topology.sql.fold import Fold

WORLD: Final = "_world"
"""The column with the number of a world, from 0."""

DIGITS: Final = 6
"""The digits of a world's number in `_topic`, where `#` and the topic's name follow."""

_COLUMN = Column(WORLD, "int")
_ITEM = (WORLD, WORLD)
_LEFT = (WORLD, f"left.{WORLD}")


@singledispatch
def apart(node: Node) -> Node:
    """The plan over many worlds at once: the key begins with `_world`. Inputs have that column too."""
    raise TypeError(f"{type(node).__name__} is not registered")


@apart.register(Changes)
@apart.register(ClosedSessions)
@apart.register(Latest)
@apart.register(Union)
def _(node: Changes | ClosedSessions | Latest | Union) -> Node:
    return node.map_sources(apart)


@apart.register(Scan)
def _scan(node: Scan) -> Scan:
    return replace(node, key=(WORLD, *node.key), columns=(_COLUMN, *node.columns))


@apart.register(Records)
def _(node: Records) -> Node:
    return replace(node, source=_scan(node.source))


@apart.register(Explode)
def _(node: Explode) -> Node:
    return replace(node.map_sources(apart), columns=(_COLUMN, *node.columns))


@apart.register(Select)
def _(node: Select) -> Node:
    return replace(
        node.map_sources(apart),
        select=(_ITEM, *_own(node.select)),
        columns=(_COLUMN, *node.columns),
        where=None if node.where is None else own_topic(node.where),
        rekeyed=None if node.rekeyed is None else (WORLD, *node.rekeyed),
    )


@apart.register(Join)
@apart.register(Lookup)
def _(node: Join | Lookup) -> Node:
    return replace(
        node.map_sources(apart),
        select=(_LEFT, *_own(node.select)),
        columns=(_COLUMN, *node.columns),
        on=(WORLD, *map(own_topic, node.on)),
    )


@apart.register(StreamJoin)
def _(node: StreamJoin) -> Node:
    return replace(node.map_sources(apart), select=(_LEFT, *_own(node.select)), columns=(_COLUMN, *node.columns))


@apart.register(Aggregate)
def _(node: Aggregate) -> Node:
    return replace(
        node.map_sources(apart),
        by=(WORLD, *node.by),
        select=(_ITEM, *_own(node.select)),
        columns=(_COLUMN, *node.columns),
        fold=_fold(node.fold),
    )


@apart.register(Window)
def _(node: Window) -> Node:
    return replace(
        node.map_sources(apart),
        by=(WORLD, *node.by),
        select=_own(node.select),
        columns=(_COLUMN, *node.columns),
        fold=_fold(node.fold),
    )


def own_topic(text: str) -> str:
    """An expression that reads `_topic`, wherever it does, without the number of the world."""
    tokens, parts, behind = tokens_of(text), [], 0
    for index, token in enumerate(tokens):
        if token.is_name and token.name.lower() == "_topic":
            first = index
            while first > 1 and tokens[first - 1].is_(".") and tokens[first - 2].is_name:
                first -= 2
            end = token.at + len(token.text)
            parts += [text[behind : tokens[first].at], f"substring({text[tokens[first].at : end]}, {DIGITS + 2})"]
            behind = end
    return "".join(parts) + text[behind:]


def _own(select: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    return tuple((name, own_topic(text)) for name, text in select)


def _fold(fold: Fold | None) -> Fold | None:
    if fold is None:
        return None
    return replace(fold, partials=tuple(replace(one, text=own_topic(one.text)) for one in fold.partials))
