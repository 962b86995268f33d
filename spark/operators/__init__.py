"""The algebra. Importing the package registers every operator with `touched` and `rows`."""

from __future__ import annotations

from spark.operators import aggregate, join, latest, scan, select, stream

__all__ = ["aggregate", "join", "latest", "scan", "select", "stream"]
