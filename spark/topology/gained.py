"""A plan as it was before its inputs gained columns, which whatever merely passes them on gained with them."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace
from typing import TypeVar

from spark.topology.ddl import quoted
from spark.topology.nodes import (
    Aggregate,
    Changes,
    Closed,
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

Gained = Mapping[str, Set[str]]
"""By input, the columns that it gained."""

Joining = TypeVar("Joining", Join, StreamJoin)


def before(plan: Node, gained: Gained) -> Node:
    """The plan without these columns of its inputs, and without those that are one of them under whatever name.

    What is computed of one of them stays as it is: that is no plan there ever was.
    """
    match plan:
        case Scan(table=table):
            names = gained.get(table, frozenset())
            return replace(plan, columns=tuple(column for column in plan.columns if column.name not in names))
        case Records(source=source):
            found = before(source, gained)
            assert isinstance(found, Scan), "a scan with fewer columns is one"
            return replace(plan, source=found)
        case Changes(source=source) | Latest(source=source) | Closed(source=source):
            return replace(plan, source=before(source, gained))
        case Aggregate(source=source) | Window(source=source):
            return replace(plan, source=before(source, gained))
        case Explode(source=source, column=column):
            was = before(source, gained)
            gone = _gone(source, was) - {column}
            return replace(plan, source=was, columns=tuple(one for one in plan.columns if one.name not in gone))
        case Union(left=left, right=right):
            return replace(plan, left=before(left, gained), right=before(right, gained))
        case Select(source=source):
            was = before(source, gained)
            passed = {quoted(name) for name in _gone(source, was)}
            kept = {name for name, text in plan.select if text not in passed}
            select = tuple(item for item in plan.select if item[0] in kept)
            return replace(plan, source=was, select=select, columns=tuple(c for c in plan.columns if c.name in kept))
        case StreamJoin():
            return _joined(plan, gained)
        case Join(told=told):
            return replace(_joined(plan, gained), told=None if told is None else before(told, gained))


def _joined(join: Joining, gained: Gained) -> Joining:
    left, right = before(join.left, gained), before(join.right, gained)
    passed = {f"left.{quoted(name)}" for name in _gone(join.left, left)}
    passed |= {f"right.{quoted(name)}" for name in _gone(join.right, right)}
    kept = {name for name, text in join.select if text not in passed}
    select = tuple(item for item in join.select if item[0] in kept)
    columns = tuple(column for column in join.columns if column.name in kept)
    return replace(join, left=left, right=right, select=select, columns=columns)


def _gone(node: Node, was: Node) -> set[str]:
    return {column.name for column in node.columns} - {column.name for column in was.columns}
