"""Tests a topology without broker and lake. This module imports Spark."""

from __future__ import annotations

from spark.testing import TopologyTestDriver

__all__ = ["TopologyTestDriver"]
