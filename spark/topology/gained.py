"""A plan as it was before its inputs gained columns, which whatever merely passes them on gained with them."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace
from typing import TypeVar

from spark.topology.ddl import quoted
from spark.topology.nodes import Explode, Join, Node, Records, Scan, Select, StreamJoin, over

Gained = Mapping[str, Set[str]]
"""By input, the columns that it gained."""

Selecting = TypeVar("Selecting", Select, Join, StreamJoin)


def before(plan: Node, gained: Gained) -> Node:
    """The plan without these columns of its inputs, and without those that are one of them under whatever name.

    What is computed of one of them stays as it is: that is no plan there ever was.
    """
    was = over(plan, lambda source: before(source, gained))
    match plan, was:
        case Scan(table=table, columns=columns), _:
            return replace(plan, columns=tuple(one for one in columns if one.name not in gained.get(table, ())))
        case Records(source=source), _:  # bound to its landing
            found = before(source, gained)
            assert isinstance(found, Scan), "a scan with fewer columns is one"
            return replace(plan, source=found)
        case Explode(), Explode():
            gone = _gone(plan.source, was.source) - {plan.column}
            return replace(was, columns=tuple(one for one in plan.columns if one.name not in gone))
        case Select(), Select():
            return _cut(was, _passed("", plan.source, was.source))
        case Join(), Join():
            return _cut(was, _passed("left.", plan.left, was.left) | _passed("right.", plan.right, was.right))
        case StreamJoin(), StreamJoin():
            return _cut(was, _passed("left.", plan.left, was.left) | _passed("right.", plan.right, was.right))
    return was


def _cut(node: Selecting, passed: Set[str]) -> Selecting:
    """Without the columns that pass one of these on as it is."""
    kept = {name for name, text in node.select if text not in passed}
    select = tuple(item for item in node.select if item[0] in kept)
    return replace(node, select=select, columns=tuple(column for column in node.columns if column.name in kept))


def _passed(side: str, source: Node, was: Node) -> set[str]:
    """The expressions that pass on what a source did not have before."""
    return {f"{side}{quoted(name)}" for name in _gone(source, was)}


def _gone(node: Node, was: Node) -> set[str]:
    return {column.name for column in node.columns} - {column.name for column in was.columns}
