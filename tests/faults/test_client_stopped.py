"""A client that sleeps before its commit while another run makes it: the late commit is none."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import psutil
import pytest

from tests import lake
from tests.faults.client import started, stopped_before
from tests.faults.test_client_killed import case, check, run

if TYPE_CHECKING:
    from pathlib import Path

    from resources.kafka import Kafka
    from tests.faults.world import World


@pytest.mark.parametrize(
    ("name", "boundary"),
    [
        ("the first landing", "appended"),
        ("a landing", "appended"),
        ("the first step", "appended"),
        ("a step", "merged"),
    ],
)
def test_a_client_that_wakes_up_behind_another_run_commits_nothing(
    world: World, kafka: Kafka, tmp_path: Path, name: str, boundary: str
) -> None:
    found, doors, made, target = case(world, name, tmp_path)
    result = tmp_path / "result"
    process = started(stopped_before, world.client(doors, found.verb, target, made), boundary, str(result))
    assert process.pid is not None
    for _ in range(1200):
        if psutil.Process(process.pid).status() == psutil.STATUS_STOPPED:
            break
        time.sleep(0.1)
    assert run(doors, kafka, made, found.verb, target) in ("landed", "stepped")
    landing = made.source(target).landing if found.verb == "land" else target
    version = lake.versions(doors, made, landing)

    os.kill(process.pid, signal.SIGCONT)
    process.join(120)
    assert process.exitcode == 0
    assert result.read_text() == "idle"
    assert lake.versions(doors, made, landing) == version
    check(world, doors, found, target)
