"""Try a topology in a test, without broker and lake; this imports Spark."""

from __future__ import annotations

from spark.testing import TopologyTestDriver

__all__ = ["TopologyTestDriver"]
