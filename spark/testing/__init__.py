"""Test a topology: records in, rows out, with the operators that steps use, but without a broker and without Delta."""

from __future__ import annotations

from spark.testing.driver import TopologyTestDriver
from spark.testing.worlds import computed

__all__ = ["TopologyTestDriver", "computed"]
