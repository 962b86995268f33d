"""A plan without some of its columns: as it was before its inputs gained those that it merely passes on."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TypeVar

from spark.topology.ddl import quoted
from spark.topology.nodes import Changes, Closed, Explode, Join, Latest, Node, Records, Scan, Select, StreamJoin, Union

Joining = TypeVar("Joining", Join, StreamJoin)
Selecting = TypeVar("Selecting", Select, Join, StreamJoin)

Taken = dict[Scan, set[str]]
"""By input, the columns that others are taken from."""


def without(plan: Node, names: Collection[str], taken: Taken) -> Node:
    """The plan without columns of these names, which are no longer taken of its inputs either.

    A column that is computed stays, and so does what an aggregate has.
    """
    match plan:
        case Scan():
            taken.setdefault(plan, set()).update(names)
            return replace(plan, columns=tuple(column for column in plan.columns if column.name not in names))
        case Records(source=source):
            found = without(source, names, taken)
            assert isinstance(found, Scan), "a scan without columns is one"
            return replace(plan, source=found)
        case Changes(source=source) | Latest(source=source) | Closed(source=source):
            return replace(plan, source=without(source, names, taken))
        case Explode(source=source):
            columns = tuple(column for column in plan.columns if column.name not in names)
            return replace(plan, columns=columns, source=without(source, names, taken))
        case Union(left=left, right=right):
            return replace(plan, left=without(left, names, taken), right=without(right, names, taken))
        case Select(source=source):
            passed = _passed(plan, "", source, names)
            return replace(_cut(plan, passed), source=without(source, passed.values(), taken))
        case Join():
            return _joined(plan, names, taken)
        case StreamJoin():
            return _joined(plan, names, taken)
        case _:
            return plan


def _joined(join: Joining, names: Collection[str], taken: Taken) -> Joining:
    ours, theirs = _passed(join, "left.", join.left, names), _passed(join, "right.", join.right, names)
    left, right = without(join.left, ours.values(), taken), without(join.right, theirs.values(), taken)
    return replace(_cut(join, ours | theirs), left=left, right=right)


def _passed(node: Select | Join | StreamJoin, side: str, source: Node, names: Collection[str]) -> dict[str, str]:
    """Those of some columns that are a source's, under whatever name: by their own, its name."""
    theirs = {f"{side}{quoted(column.name)}": column.name for column in source.columns}
    return {name: theirs[text] for name, text in node.select if name in names and text in theirs}


def _cut(node: Selecting, names: Collection[str]) -> Selecting:
    select = tuple((name, text) for name, text in node.select if name not in names)
    return replace(node, select=select, columns=tuple(column for column in node.columns if column.name not in names))
