"""`make demo`, as a user runs it; a second run continues after the first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from resources.lakehouse import Lakehouse
from spark.engine.log.stored_table import State, StoredTable


def test_the_demo_ends_with_every_audit_holding(own_lake: Path) -> None:
    first = demo()
    assert "1 in quarantine" in first
    assert first.count("with a value") == 4, "a line for every topic"
    assert first.count(": holds") == 7
    assert orders(own_lake).position.n > 0


@pytest.mark.thorough
def test_the_demo_goes_on_when_run_again(own_lake: Path) -> None:
    demo()
    was = orders(own_lake)
    second = demo()
    assert "continuing after" in second
    assert second.count(": holds") == 7
    now = orders(own_lake)
    assert now.position.n > was.position.n
    assert now.id == was.id


def orders(where: Path) -> State:
    state = StoredTable("shop/orders", Lakehouse(str(where)).table("shop", "orders")).state()
    assert state is not None
    return state


def demo() -> str:
    ran = subprocess.run(
        [sys.executable, "-m", "dagster_project.demo"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout
