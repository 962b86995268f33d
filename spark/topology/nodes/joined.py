"""What all joins have in common: two sides, and a select list over both."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from typing import Literal, Self

from spark.topology.columns import Column
from spark.topology.nodes import items
from spark.topology.nodes.node import AddedColumns, Binary, WiderColumns
from spark.topology.sql.ddl import quoted
from spark.topology.sql.widening import Wider, check_unread

How = Literal["inner", "left", "outer"]

METHODS: dict[How, str] = {"inner": "join", "left": "left_join", "outer": "outer_join"}
"""The methods of the handles, by the kind of join."""


@dataclass(frozen=True)
class Joined(Binary):
    """Pairs of a left and a right row.

    An "inner" join has a row for every pair; a "left" join also has a row, with nulls on the right, for every left row
    without a pair; an "outer" join has one for every row of either side. `select` holds (column, expression over
    `left.` and `right.`) for every column of `columns`, key columns first.
    """

    how: How
    select: tuple[tuple[str, str], ...]
    columns: tuple[Column, ...]

    @property
    def on_left(self) -> tuple[str, ...]:
        """Expressions over left columns that it reads beside the select list."""
        return ()

    @property
    def title(self) -> str:
        """The method and both sides."""
        return f"{METHODS[self.how]} of {self.left.title} with {self.right.title}"

    def pruned(self, read: Set[str]) -> Self:
        """The join without unread columns."""
        select, columns = items.selected(self.select, self.columns, read | set(self.key))
        left = items.columns_of_side("left", self.left.columns, select)
        left |= items.columns_in(self.left.columns, *self.on_left)
        right = items.columns_of_side("right", self.right.columns, select)
        return replace(
            self, left=self.left.pruned(left), right=self.right.pruned(right), select=select, columns=columns
        )

    def without(self, added: AddedColumns) -> Self:
        """The join without columns that only pass through a column that was added to a side."""
        left, right = self.left.without(added), self.right.without(added)
        added_texts = items.passed_through("left.", self.left.columns, left.columns)
        added_texts |= items.passed_through("right.", self.right.columns, right.columns)
        select, columns = items.without(self.select, self.columns, added_texts)
        return replace(self, left=left, right=right, select=select, columns=columns)

    def widened(self, inputs: WiderColumns) -> Mapping[str, Wider]:
        """The columns that pass widened ones through, if no expression reads one; equal keys stay equal."""
        sides = {"left": self.left.widened(inputs), "right": self.right.widened(inputs)}
        texts = {f"{side}.{quoted(name)}": its for side, wider in sides.items() for name, its in wider.items()}
        passed, others = items.passing_on(self.select, texts)
        for side, wider in sides.items():
            for text in others:
                check_unread(text, wider, side)
        for text in self.on_left:
            if text not in map(quoted, sides["left"]):
                check_unread(text, sides["left"])
        return passed
