"""Windows of time, from the lengths that a user wrote to milliseconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from spark.topology.columns import WINDOW_BOUNDS
from spark.topology.durations import milliseconds
from spark.topology.errors import Place
from spark.topology.handles.windows import JoinWindows, SessionWindows, SlidingWindows, TimeWindows

if TYPE_CHECKING:
    from spark.topology.columns import Column
    from spark.topology.nodes import WindowKind


class Lengths(NamedTuple):
    """What windows are: their kind, and their size, advance and grace in milliseconds."""

    kind: WindowKind
    size: int
    advance: int
    grace: int


def lengths(windows: object, by: tuple[Column, ...], place: Place) -> Lengths:
    """The lengths of windows over records that are grouped by some columns."""
    match windows:
        case TimeWindows(size=size):
            kind: WindowKind = "time"
        case SlidingWindows(difference=size):
            kind = "sliding"
        case SessionWindows(gap=size):
            kind = "session"
        case _:
            do = 'write windowed_by(TimeWindows.of("1m", grace="10s")), or sliding windows, or sessions'
            raise place.mistake(f"the windows are {windows!r}", do)
    here = Place(f"{type(windows).__name__} of {place.node}", place.line, place.columns)
    length, grace = milliseconds(size, here), window_grace(windows.grace, here)
    if length == 0 and kind != "sliding":
        raise here.mistake("the windows are empty", 'write a length from "1ms"')
    advance = 0
    if isinstance(windows, TimeWindows):
        advance = length if windows.advance is None else milliseconds(windows.advance, here)
        if not 0 < advance <= length:
            what = f"the windows advance by {windows.advance}, and are {windows.size} long"
            raise here.mistake(what, "advance by more than nothing, and by no more than their size")
    taken = {column.name for column in by} & {column.name for column in WINDOW_BOUNDS}
    if taken:
        do = "write map_values with another name before: '_window_start AS began'"
        raise place.mistake(f"{', '.join(sorted(taken))} is a column of these windows, and grouped by", do)
    return Lengths(kind, length, advance, grace)


def join_lengths(within: object, place: Place) -> tuple[int, int, int]:
    """How much earlier, and later, a right record may be than a left one, and the grace, in milliseconds."""
    if not isinstance(within, JoinWindows):
        do = 'write within=JoinWindows.of("10s", grace="1m")'
        raise place.mistake("two streams are joined within a window of time, and none is given", do)
    here = Place(f"JoinWindows of {place.node}", place.line)
    before, after = (milliseconds(length, here, signed=True) for length in (within.before, within.after))
    if before + after < 0:
        raise here.mistake(f"no time is from {before} ms before to {after} ms after", "make the window wider")
    return before, after, window_grace(within.grace, here)


def window_grace(grace: str | None, place: Place) -> int:
    """How long windows stay open for late records, in milliseconds."""
    if grace is None:
        do = 'write how long to wait for late records, as in grace="10s"; grace="0s" is not at all'
        raise place.mistake("grace is missing: without it no window would ever close", do)
    return milliseconds(grace, place)
