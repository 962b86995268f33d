"""Durations as text: "500ms", "10s", "1m", "24h", "7d"."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark.topology.errors import Place

_MILLISECONDS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"(-?)(\d+)\s*(ms|s|m|h|d)")


def milliseconds(duration: object, place: Place, signed: bool = False) -> int:
    """A duration in milliseconds; negative only if `signed`.

    Raises:
        TopologyError: the text is not a number and one of the units ms, s, m, h, d.
    """
    found = _DURATION.fullmatch(duration) if isinstance(duration, str) else None
    if found is None or (found[1] and not signed):
        raise place.mistake(f"{duration!r} is not a duration", 'write a number and a unit: "500ms", "10s", "7d"')
    return int(found[1] + found[2]) * _MILLISECONDS[found[3]]


def format_duration(length: int) -> str:
    """A duration in milliseconds as text, in the largest unit that divides it."""
    if length == 0:
        return "0s"
    unit = next(unit for unit in reversed(_MILLISECONDS) if length % _MILLISECONDS[unit] == 0)
    return f"{length // _MILLISECONDS[unit]}{unit}"
