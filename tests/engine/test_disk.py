"""A lake that takes no more, or nothing: the step fails, what is there stays readable, and the next tick goes on."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from resources.lakehouse import Lakehouse
from spark.engine.audit import audit
from spark.engine.errors import SparkFailed
from spark.engine.tick import tick
from spark.topology import Consumed, StreamsBuilder
from tests.support import lake
from tests.support.lake import Record, send

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from resources.kafka import Kafka
    from spark.engine.ports import Ports


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of eight megabytes."""
    where = tmp_path / "disk"
    where.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", where], capture_output=True, text=True, check=False
    )
    if made.returncode != 0:
        pytest.skip(f"no disk can be mounted here: {made.stderr.strip()}")
    yield where
    subprocess.run(["umount", "--lazy", where], check=True)


@pytest.mark.parametrize(("trouble", "landed"), [("full", False), ("full", True), ("read-only", False)])
def test_a_disk_that_takes_nothing_stops_a_tick_and_the_next_one_goes_on(
    ports: Ports, kafka: Kafka, topic: Callable[..., str], disk: Path, trouble: str, landed: bool
) -> None:
    name = topic()
    builder = StreamsBuilder(f"disk-{name}")
    builder.table(name, Consumed.json(key="id bigint", value="text string"))
    made = builder.build()
    here = replace(ports, lakehouse=Lakehouse(str(disk)))
    send(kafka, name, *(Record(n, {"text": f"{n}"}) for n in range(10)))
    assert tick(here, made, "before").failed == {}
    before = lake.rows(here, made, name)
    send(kafka, name, *(Record(n, {"text": "changed"}) for n in range(5, 15)))
    if landed:
        lake.land_all(here, made)

    filler = disk / "filler"
    if trouble == "full":
        filler.write_bytes(bytes(shutil.disk_usage(disk).free))
    else:
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    failure = tick(here, made, "without a disk").failed[name if landed else made.sources[0].landing]
    assert isinstance(failure, SparkFailed)
    assert re.search(r"No space left|Read-only", str(failure))
    assert "\n" not in str(failure)
    assert lake.rows(here, made, name) == before

    if trouble == "full":
        filler.unlink()
    else:
        subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
    assert tick(here, made, "after").failed == {}
    assert lake.rows(here, made, name) == {n: {"text": f"{n}" if n < 5 else "changed"} for n in range(15)}
    assert [row["_offset"] for row in lake.records(here, made, name)] == [*range(20)]
    assert audit(here, made, made.table(name)).holds
