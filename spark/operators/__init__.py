"""The operators. Importing the package registers each with `touched` and `rows`, or with `emit`."""

from __future__ import annotations

from spark.operators import aggregate, join, latest, lookup, scan, select, stream, stream_join, window

__all__ = ["aggregate", "join", "latest", "lookup", "scan", "select", "stream", "stream_join", "window"]
