"""`make demo`, as a user runs it, twice: the second goes on from where the first was."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from spark.engine import position as positions

if TYPE_CHECKING:
    from resources.engine import Engine
    from resources.kafka import Kafka
    from resources.lakehouse import Lakehouse


def test_the_demo_ends_with_every_audit_holding_and_goes_on_when_run_again(
    engine: Engine, kafka: Kafka, lake_root: Path, lakehouse: Lakehouse
) -> None:
    engine.start()
    assert kafka.address
    first = demo(lake_root)
    assert "1 did not decode" in first
    assert first.count(": holds") == 7
    was = positions.read(lakehouse.table("shop", "orders"), "shop/orders")

    second = demo(lake_root)
    assert "going on after" in second
    assert second.count(": holds") == 7
    now = positions.read(lakehouse.table("shop", "orders"), "shop/orders")
    assert was is not None
    assert now is not None
    assert now.position.n > was.position.n
    assert now.id == was.id


def demo(lake: Path) -> str:
    ran = subprocess.run(
        [sys.executable, "-m", "dagster_project.demo"],
        env={**os.environ, "TIDETABLE_LAKE": str(lake)},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout
