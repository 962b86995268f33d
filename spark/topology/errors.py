"""A mistake in a topology, told by node, columns, remedy and the user's own line."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from spark.topology.columns import Column, Line

_HERE = Path(__file__).parent
_OURS = (
    str(_HERE / "_").removesuffix("_"),
    str(_HERE.with_name("testing") / "_").removesuffix("_"),
)  # this folder, and the driver


class TopologyError(Exception):
    """A mistake in a topology, found before anything runs.

    The message names the node, the columns it has, what to write instead, and your line. Correct that line.
    """


class NoSuchMethod(TopologyError, AttributeError):
    """A method that is not there. An AttributeError too, so that `hasattr` and `copy` may ask.

    Write one of the methods that the message lists. `docs/reference/operators.md` has all of them.
    """


class NoSuchBranch(TopologyError, KeyError):
    """A branch that is not there. A KeyError too, as of any dict.

    Write one of the names that `split` was given.
    """

    def __str__(self) -> str:
        return Exception.__str__(self)  # a KeyError shows the repr


def user_line() -> Line:
    """The line that called into this package, or the driver."""
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    path = Path(frame.f_code.co_filename)
    below = path.is_relative_to(Path.cwd())
    return Line(str(path.relative_to(Path.cwd()) if below else path), frame.f_lineno)


@dataclass(frozen=True)
class Place:
    """What a mistake is told with: the node it is in, the columns at hand and the user's line.

    `columns` are by the word that qualifies them: "left" and "right" in a join, "" where there is one source.
    """

    node: str
    line: Line | None
    columns: Mapping[str, tuple[Column, ...]] = field(default_factory=dict)

    def mistake(self, what: str, do: str) -> TopologyError:
        """The error that says what is wrong here, and what to do about it."""
        has = [f"  {side or 'it'} has: {shown(columns)}" for side, columns in self.columns.items()]
        return TopologyError("\n".join([f"{self.node}: {what}", *has, f"  {do}", f"  at {self.line}"]))


def methods(kind: type) -> list[str]:
    """The names of what can be called, but for what only says what to write instead."""
    named = {name: getattr(kind, name) for name in dir(kind) if not name.startswith("_")}
    told = {name: getattr(method, "__annotations__", {}).get("return") for name, method in named.items()}
    return [name for name, returned in told.items() if returned != "NoReturn"]


def no_method(kind: type, name: str, place: Place, others: Sequence[type] = (), do: str = "write") -> NoSuchMethod:
    """The error about a name that is no method, told with those there are."""
    there = [other.__name__ for other in others if name in methods(other)]
    known = methods(kind)
    what = f"a {kind.__name__} has no {name}()" + (f", but a {' and a '.join(there)} has" if there else "")
    return NoSuchMethod(place.mistake(what, f"{do} one of {', '.join(known)}{did_you_mean(name, known)}"))


def shown(columns: tuple[Column, ...]) -> str:
    """Columns as text; a type that only Spark can know is left out."""
    return ", ".join(c.name if c.type is None else f"{c.name} {c.type}" for c in columns)


def did_you_mean(name: str, names: list[str]) -> str:
    """The nearest name, as the end of a sentence; empty if none is near."""
    by_lower = {known.lower(): known for known in names}
    near = get_close_matches(name.lower(), by_lower, n=1)
    return f"; did you mean {by_lower[near[0]]}?" if near else ""
