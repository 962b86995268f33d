"""A plan without the columns that its views compute and nothing reads: what a table's rows depend on, and no more."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from spark.topology.errors import Place
from spark.topology.nodes import (
    Aggregate,
    Changes,
    Closed,
    Column,
    Explode,
    Join,
    Latest,
    Node,
    Records,
    Scan,
    Select,
    StreamJoin,
    Union,
    Window,
)
from spark.topology.tokens import Token, lex

_NOWHERE = Place("a plan", None)  # its texts were read before


def used(plan: Node) -> Node:
    """The plan whose views have their key's columns, and of the others those that some node above them reads.

    Every column of the plan itself is read: it is stored. So is every column behind `Changes`: a row that changed in
    any of them is a record.
    """
    return _cut(plan, _all(plan))


def _cut(node: Node, read: Set[str]) -> Node:
    """A node with its key, and with those of its other columns that are read."""
    kept = read | set(node.key)
    columns = tuple(column for column in node.columns if column.name in kept)
    match node:
        case Scan() | Records():
            return node
        case Changes(source=source):
            return replace(node, source=_cut(source, _all(source)))
        case Latest(source=source) | Closed(source=source):
            return replace(node, source=_cut(source, kept))
        case Union(left=left, right=right):
            return replace(node, left=_cut(left, kept), right=_cut(right, kept))
        case Explode(source=source, column=column):
            return replace(node, source=_cut(source, kept | {column}), columns=columns)
        case Select(source=source):
            select = _kept(node.select, kept)
            below = _named(source.columns, *(text for _, text in select), node.where or "")
            return replace(node, source=_cut(source, below), select=select, columns=columns)
        case Aggregate(source=source) | Window(source=source):
            if node.fold is not None:  # the partials that it keeps are of all its columns
                return replace(node, source=_cut(source, _grouped(node)))
            cut = replace(node, select=_kept(node.select, kept), columns=columns)
            return replace(cut, source=_cut(source, _grouped(cut)))
        case Join(left=left, right=right):
            select = _kept(node.select, kept)
            below = _sides("left", left.columns, select) | _named(left.columns, *node.on)
            seen = _sides("right", right.columns, select)
            told = None if node.told is None else _cut(node.told, seen)
            return replace(
                node, left=_cut(left, below), right=_cut(right, seen), told=told, select=select, columns=columns
            )
        case StreamJoin(left=left, right=right):
            select = _kept(node.select, kept)
            below, seen = _sides("left", left.columns, select), _sides("right", right.columns, select)
            return replace(node, left=_cut(left, below), right=_cut(right, seen), select=select, columns=columns)


def _kept(select: tuple[tuple[str, str], ...], names: Set[str]) -> tuple[tuple[str, str], ...]:
    return tuple(item for item in select if item[0] in names)


def _all(node: Node) -> set[str]:
    return {column.name for column in node.columns}


def _grouped(node: Aggregate | Window) -> set[str]:
    """The columns of its source that a grouping reads."""
    return {*node.by, *_named(node.source.columns, *(text for _, text in node.select))}


def _named(columns: tuple[Column, ...], *texts: str) -> set[str]:
    """The columns that have the name of anything in the texts: all that are read, maybe more."""
    names = {token.name.lower() for text in texts for token in _tokens(text) if token.is_name}
    return {column.name for column in columns if column.name.lower() in names}


def _sides(side: str, columns: tuple[Column, ...], select: tuple[tuple[str, str], ...]) -> set[str]:
    """The columns of a side that the expressions of a join read: it is written before each of them."""
    names = set()
    for _, text in select:
        tokens = _tokens(text)
        behind = zip(tokens, tokens[1:], tokens[2:], strict=False)
        names |= {name.name.lower() for at, dot, name in behind if at.is_(side) and dot.is_(".")}
    return {column.name for column in columns if column.name.lower() in names}


def _tokens(text: str) -> tuple[Token, ...]:
    return lex(text, _NOWHERE).tokens
