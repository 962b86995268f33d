"""The base of all handles: a node and the state of its builder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, NoReturn

from spark.topology.builder_state import BuilderState
from spark.topology.errors import Place, no_method, user_line
from spark.topology.handles.views import named_columns

if TYPE_CHECKING:
    from spark.topology.columns import Column, Line
    from spark.topology.nodes import Node

Kind = Literal["table", "global table", "stream", "groups"]


@dataclass(frozen=True, eq=False, repr=False)
class Handle:
    """A node of a topology, with the methods that derive further nodes from it."""

    state: BuilderState
    node: Node

    kind: ClassVar[Kind] = "groups"
    similar: ClassVar[list[type[Handle]]] = []
    """The handles that an error about a missing method names if they have it."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.node.title})"

    if not TYPE_CHECKING:  # mypy knows the methods

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_") or name in ("state", "node"):
                raise AttributeError(name)
            place = self.place(name, user_line())
            do = "declare its topic with table(), or write" if self.kind == "global table" else "write"
            raise no_method(type(self), name, place, self.similar, do)

    def _grouping(self, columns: tuple[object, ...], line: Line) -> tuple[Column, ...]:
        """The grouping columns, given as arguments or in one list."""
        given = columns[0] if len(columns) == 1 else columns
        return named_columns("group_by", given, self.place("group_by", line))

    def place(self, method: str, line: Line) -> Place:
        """The place of an error in a call of a method."""
        return Place(f"{method} of {self.node.title}", line, {"": self.node.columns})


@dataclass(frozen=True, eq=False, repr=False)
class Joinable(Handle):
    """A handle that can be a side of a join."""

    def right_join(self, other: object, **_options: object) -> NoReturn:
        """Not available: the error says what to write."""
        place = join_place("right_join", self, other, user_line())
        do = "swap the sides: right.left_join(left, ...)"
        kind = other.kind if isinstance(other, Handle) else None
        if self.kind == "stream" and kind != "stream":
            do = "write left_join(...): a row of the table that no record looks up produces no record"
        elif kind == "global table":
            do = "write left_join(...): a row of the global table that no row looks up produces no row"
        raise place.mistake("right_join is not available", do)


def join_place(method: str, left: Handle, other: object, line: Line) -> Place:
    """The place of an error in a join."""
    if isinstance(other, Joinable):
        columns = {"left": left.node.columns, "right": other.node.columns}
        return Place(f"{method} of {left.node.title} with {other.node.title}", line, columns)
    name = f"{method} of {left.node.title} with {type(other).__name__}"
    return Place(name, line, {"left": left.node.columns})


def check_same_builder(left: Handle, right: Handle, place: Place) -> None:
    """Refuse a handle of another builder."""
    if right.state is not left.state:
        what = f"{right.node.title} belongs to another builder ({right.state.name})"
        do = f"declare its topic with the builder of {left.node.title} ({left.state.name})"
        raise place.mistake(what, do)
