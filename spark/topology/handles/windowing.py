"""The lengths of windows, from the user's text to milliseconds."""

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
    """The kind of windows, and their size, advance and grace in milliseconds."""

    kind: WindowKind
    size: int
    advance: int
    grace: int


def lengths(windows: object, by: tuple[Column, ...], place: Place) -> Lengths:
    """The lengths of windows over records that are grouped by columns."""
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
    window_place = Place(f"{type(windows).__name__} of {place.node}", place.line, place.columns)
    length, grace = milliseconds(size, window_place), window_grace(windows.grace, window_place)
    if length == 0 and kind != "sliding":
        raise window_place.mistake("the size of the windows is 0", 'write "1ms" or more')
    advance = 0
    if isinstance(windows, TimeWindows):
        advance = length if windows.advance is None else milliseconds(windows.advance, window_place)
        if not 0 < advance <= length:
            what = f"the windows advance by {windows.advance}, and their size is {windows.size}"
            raise window_place.mistake(what, "write an advance above 0 and up to the size")
    bounds = {column.name for column in by} & {column.name for column in WINDOW_BOUNDS}
    if bounds:
        do = "rename it with map_values first: '_window_start AS began'"
        what = f"{', '.join(sorted(bounds))} is a grouping column, and the new windows have a column of that name"
        raise place.mistake(what, do)
    return Lengths(kind, length, advance, grace)


def join_lengths(within: object, place: Place) -> tuple[int, int, int]:
    """How much earlier and later than the left record the right one may be, and the grace, in milliseconds."""
    if not isinstance(within, JoinWindows):
        do = 'write within=JoinWindows.of("10s", grace="1m")'
        raise place.mistake("two streams are joined within a window, and within= is missing", do)
    window_place = Place(f"JoinWindows of {place.node}", place.line)
    before, after = (milliseconds(length, window_place, signed=True) for length in (within.before, within.after))
    if before + after < 0:
        what = f"the window from {before} ms before to {after} ms after is empty"
        raise window_place.mistake(what, "make the window wider")
    return before, after, window_grace(within.grace, window_place)


def window_grace(grace: str | None, place: Place) -> int:
    """How long windows stay open for late records, in milliseconds."""
    if grace is None:
        do = 'write how long windows wait for late records, such as grace="10s", or grace="0s"'
        raise place.mistake("grace is missing: without it no window would ever close", do)
    return milliseconds(grace, place)
