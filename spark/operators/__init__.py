"""The algebra. Importing the package registers every operator with `touched` and `rows`, or `emit`."""

from __future__ import annotations

from spark.operators import aggregate, join, latest, lookup, scan, select, stream, stream_join, window

__all__ = ["aggregate", "join", "latest", "lookup", "scan", "select", "stream", "stream_join", "window"]
