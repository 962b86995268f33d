"""A group is asked about while its coordinator is only coming up: the answer waits for it, and nobody dies of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from resources.embedded_kafka import EmbeddedKafka

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

GROUPS = 20  # one of them meets it at the wrong moment
ASKS = f"""
import sys
from concurrent.futures import ThreadPoolExecutor
from resources.kafka import Kafka

kafka = Kafka({{"bootstrap.servers": sys.argv[1]}})
with ThreadPoolExecutor({GROUPS}) as pool:
    print(set(pool.map(lambda number: kafka.published(f"group-{{number}}", "any"), range({GROUPS}))))
"""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedKafka]:
    """One that nobody has asked yet."""
    broker = EmbeddedKafka(tmp_path)
    yield broker
    broker.stop()


def test_groups_are_asked_about_before_their_coordinator_is_there(broker: EmbeddedKafka) -> None:
    for _ in range(2):  # a cluster's first groups, and groups of a broker that was killed
        command = [sys.executable, "-c", ASKS, broker.start()]
        asked = subprocess.run(command, capture_output=True, text=True, check=False)
        # It is a process of its own because librdkafka's admin client ends it: SIGSEGV at an answer NOT_COORDINATOR.
        assert (asked.returncode, asked.stdout) == (0, "{None}\n"), asked.stderr
        running = broker.running()
        assert running is not None
        os.kill(running.pid, signal.SIGKILL)
