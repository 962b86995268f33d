"""Handles: the objects whose methods declare a topology."""

from __future__ import annotations

from spark.topology.handles.handles import Branches, GlobalKTable, KGroupedStream, KGroupedTable, KStream, KTable
from spark.topology.handles.windows import JoinWindows, SessionWindows, SlidingWindows, Suppressed, TimeWindows

__all__ = [
    "Branches",
    "GlobalKTable",
    "JoinWindows",
    "KGroupedStream",
    "KGroupedTable",
    "KStream",
    "KTable",
    "SessionWindows",
    "SlidingWindows",
    "Suppressed",
    "TimeWindows",
]
