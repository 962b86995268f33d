"""The algebra. Importing the package registers every operator with `touched` and `rows`."""

from __future__ import annotations

from spark.operators import join, latest, scan, select

__all__ = ["join", "latest", "scan", "select"]
