"""Plans over many worlds at once: every key begins with the number of a world, so that no row meets another world's.

A world is one batch of records with all tables before and after it. The operators do not know: to them, it is a plan
whose keys have one more column. Records are identified by their coordinates, so `_topic` begins with the number too.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Final

from spark.topology.columns import Column
from spark.topology.nodes import Records, Scan
from spark.topology.nodes.node import Binary
from spark.topology.sql.tokens import tokens_of

if TYPE_CHECKING:
    from spark.topology.nodes import Node
    from spark.topology.sql.fold import Fold

WORLD: Final = "_world"
"""The column with the number of a world, from 0."""

DIGITS: Final = 6
"""The digits of a world's number in `_topic`, where `#` and the topic's name follow."""


def apart(node: Node) -> Node:
    """The plan over many worlds at once: the key begins with `_world`. Inputs have that column too.

    A kind of node needs nothing of its own here if its fields have the names that those of other kinds have.
    """
    if isinstance(node, Records):
        return replace(node, source=_input(node.source))
    if isinstance(node, Scan):
        return _input(node)
    given = {field.name: getattr(node, field.name) for field in fields(node)}
    changed: dict[str, Any] = {}
    for name, value in given.items():
        match name:
            case "columns":
                changed[name] = (Column(WORLD, "int"), *value)
            case "by" | "rekeyed" if value is not None:
                changed[name] = (WORLD, *value)
            case "on":
                changed[name] = (WORLD, *map(own_topic, value))
            case "where" if value is not None:
                changed[name] = own_topic(value)
            case "select":
                items = tuple((column, own_topic(text)) for column, text in value)
                # Windows have items for their aggregates alone, all others one for every column.
                world = f"left.{WORLD}" if isinstance(node, Binary) else WORLD
                changed[name] = ((WORLD, world), *items) if len(items) == len(given["columns"]) else items
            case "fold" if value is not None:
                changed[name] = _fold(value)
    return replace(node.map_sources(apart), **changed)


def _input(scan: Scan) -> Scan:
    return replace(scan, key=(WORLD, *scan.key), columns=(Column(WORLD, "int"), *scan.columns))


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


def _fold(fold: Fold) -> Fold:
    return replace(fold, partials=tuple(replace(one, text=own_topic(one.text)) for one in fold.partials))
