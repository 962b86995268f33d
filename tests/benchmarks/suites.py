"""Shapes that peers use: Nexmark, incremental views over TPC-H, many levels and many tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.benchmarks import levels, nexmark, tpch

if TYPE_CHECKING:
    from tests.benchmarks.measure import Bench, Row


def run(bench: Bench) -> list[Row]:
    """Every suite."""
    return [*nexmark.run(bench), *tpch.run(bench), *levels.run(bench)]
