"""What Kafka Streams said once, kept: the worlds, and of every table what it emitted."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tests.conformance.cases import Record
from tests.conformance.oracle import Emitted

if TYPE_CHECKING:
    from spark.topology.topology import Topology
    from tests.conformance.cases import World
    from tests.conformance.oracle import Answer

HERE = Path(__file__).with_name("golden")


def save(name: str, asked: Topology, worlds: Sequence[World], answer: Answer) -> None:
    """Write a run down, one file for the worlds and one for each table."""
    folder = HERE / name
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.json"):
        old.unlink()
    _write(folder / "worlds.json", [[[r.topic, r.key, r.value, r.timestamp] for r in world] for world in worlds])
    for table, emitted in answer.items():
        lines = [[e.world, e.step, e.key, *(e.row or (None, None))] for e in emitted]
        _write(folder / f"{table}.json", [[asked.fingerprint(table)], *lines])


def load(name: str, asked: Topology) -> tuple[list[World], Answer]:
    """The worlds of a run and the answer to them; what was recorded for another plan is refused."""
    folder = HERE / name
    worlds = [
        tuple(Record(topic, key, value, timestamp) for topic, key, value, timestamp in world)
        for world in json.loads((folder / "worlds.json").read_text())
    ]
    answer = {}
    for table in asked.tables:
        (fingerprint,), *lines = json.loads((folder / f"{table.name}.json").read_text())
        if not asked.computes(table.name, fingerprint):
            raise ValueError(f"{name}/{table.name}.json was recorded for another plan: make record")
        answer[table.name] = [
            Emitted(world, step, tuple(key), None if row is None else (tuple(row), time))
            for world, step, key, row, time in lines
        ]
    return worlds, answer


def _write(path: Path, lines: Iterable[object]) -> None:
    """A line for each world or message, so that a change is read as one."""
    texts = (json.dumps(line, sort_keys=True, separators=(",", ":")) for line in lines)
    path.write_text("[" + ",\n".join(texts) + "]\n")
