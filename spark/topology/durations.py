"""Lengths of time as people write them: "500ms", "10s", "1m", "24h", "7d"."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark.topology.errors import Place

_MILLISECONDS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"(-?)(\d+)\s*(ms|s|m|h|d)")


def milliseconds(duration: object, place: Place, signed: bool = False) -> int:
    """A length of time in milliseconds; below zero only if it is `signed`.

    Raises:
        TopologyError: it is not written as a number and one of ms, s, m, h, d.
    """
    found = _DURATION.fullmatch(duration) if isinstance(duration, str) else None
    if found is None or (found[1] and not signed):
        raise place.mistake(f"{duration!r} is no length of time", 'write a number and a unit: "500ms", "10s", "7d"')
    return int(found[1] + found[2]) * _MILLISECONDS[found[3]]


def written(length: int) -> str:
    """A length of time in milliseconds, in the largest unit that divides it."""
    if length == 0:
        return "0s"
    unit = next(unit for unit in reversed(_MILLISECONDS) if length % _MILLISECONDS[unit] == 0)
    return f"{length // _MILLISECONDS[unit]}{unit}"
