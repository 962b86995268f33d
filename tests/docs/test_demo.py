"""`make demo`, as a user runs it, twice: the second run continues after the first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from resources.lakehouse import Lakehouse
from spark.engine.log.stored_table import StoredTable


def test_the_demo_ends_with_every_audit_holding_and_goes_on_when_run_again(own_lake: Path) -> None:
    lakehouse = Lakehouse(str(own_lake))
    first = demo()
    assert "1 in quarantine" in first
    assert first.count("with a value") == 4, "a line for every topic"
    assert first.count(": holds") == 7
    was = StoredTable("shop/orders", lakehouse.table("shop", "orders")).state()

    second = demo()
    assert "continuing after" in second
    assert second.count(": holds") == 7
    now = StoredTable("shop/orders", lakehouse.table("shop", "orders")).state()
    assert was is not None
    assert now is not None
    assert now.position.n > was.position.n
    assert now.id == was.id


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
