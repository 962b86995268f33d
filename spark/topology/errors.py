"""Errors in a topology: the node, its columns, what to do, and the user's line."""

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
    """An error in a topology, found before anything runs.

    The message names the node, its columns, what to write instead, and your line. Correct that line.
    """


class NoSuchMethod(TopologyError, AttributeError):
    """A handle or builder does not have this method. It is an AttributeError too, which `hasattr` and `copy` expect.

    Write one of the methods that the message lists. `docs/reference/operators.md` has all of them.
    """


class NoSuchBranch(TopologyError, KeyError):
    """A stream was not split into a branch of this name. It is a KeyError too, as for any dict.

    Use one of the names that you gave to `split`.
    """

    def __str__(self) -> str:
        return Exception.__str__(self)  # a KeyError shows the repr


def user_line() -> Line:
    """The user's line that called this package or the test driver."""
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    path = Path(frame.f_code.co_filename)
    below = path.is_relative_to(Path.cwd())
    return Line(str(path.relative_to(Path.cwd()) if below else path), frame.f_lineno)


@dataclass(frozen=True)
class Place:
    """Where an error is: the node, its columns, and the user's line.

    `columns` are by their qualifier: "left" and "right" in a join, "" if there is one source.
    """

    node: str
    line: Line | None
    columns: Mapping[str, tuple[Column, ...]] = field(default_factory=dict)

    def mistake(self, what: str, do: str) -> TopologyError:
        """The error that says what is wrong here, and what to do."""
        has = [f"  {side or 'it'} has: {shown(columns)}" for side, columns in self.columns.items()]
        return TopologyError("\n".join([f"{self.node}: {what}", *has, f"  {do}", f"  at {self.line}"]))


def methods(kind: type) -> list[str]:
    """The names of the public methods, without those that only raise an error."""
    public = {name: getattr(kind, name) for name in dir(kind) if not name.startswith("_")}
    returns = {name: getattr(method, "__annotations__", {}).get("return") for name, method in public.items()}
    return [name for name, returned in returns.items() if returned != "NoReturn"]


def no_method(kind: type, name: str, place: Place, others: Sequence[type] = (), do: str = "write") -> NoSuchMethod:
    """The error about a method that does not exist, with the methods that do."""
    having = [other.__name__ for other in others if name in methods(other)]
    known = methods(kind)
    what = f"a {kind.__name__} has no {name}()" + (f", but a {' and a '.join(having)} has" if having else "")
    return NoSuchMethod(place.mistake(what, f"{do} one of {', '.join(known)}{did_you_mean(name, known)}"))


def shown(columns: tuple[Column, ...]) -> str:
    """Columns as text, without types that only Spark can determine."""
    return ", ".join(c.name if c.type is None else f"{c.name} {c.type}" for c in columns)


def did_you_mean(name: str, names: list[str]) -> str:
    """The most similar name, as the end of a sentence; empty if none is similar."""
    by_lower = {known.lower(): known for known in names}
    near = get_close_matches(name.lower(), by_lower, n=1)
    return f"; did you mean {by_lower[near[0]]}?" if near else ""
