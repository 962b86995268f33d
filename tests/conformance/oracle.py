"""Kafka Streams, in a JVM beside us: topologies and records in, what its tables emitted out."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pyspark

from resources.jars import jars
from resources.java import java

if TYPE_CHECKING:
    from spark.topology.topology import Topology
    from tests.conformance.cases import World

HARNESS = Path(__file__).with_name("Harness.java")

Key = tuple[object, ...]
Row = tuple[tuple[object, ...], int]
"""Value cells, and event time in milliseconds."""
State = dict[Key, Row]


class NoCompiler(RuntimeError):
    """The Java of this machine cannot compile."""


@dataclass(frozen=True)
class Emitted:
    """What a table sent when the record of a step of a world came in; a row of None is a tombstone."""

    world: int
    step: int
    key: Key
    row: Row | None


Answer = dict[str, list[Emitted]]
"""What every table emitted, in order."""


class Oracle:
    """The harness, compiled once and asked often."""

    def __enter__(self) -> Self:
        self._log = tempfile.TemporaryFile("w+")  # it lives as long as the process
        self._state = tempfile.TemporaryDirectory()
        self._process = subprocess.Popen(
            _command(self._state.name),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"},  # Spark's utilities look the host name up without it
        )
        return self

    def __exit__(self, *raised: object) -> None:
        self._process.communicate()
        self._log.close()
        self._state.cleanup()

    def ask(self, topology: Topology, worlds: Sequence[World]) -> Answer:
        """What the topology's tables emit for these worlds, one after the other."""
        sent = [(world, step) for world, records in enumerate(worlds) for step in range(len(records))]
        case = {
            "topology": topology.to_dict(),
            "records": [
                {
                    "topic": worlds[world][step].topic,
                    "key": {"world": world, **worlds[world][step].key},
                    "value": worlds[world][step].value,
                    "timestamp": worlds[world][step].timestamp,
                }
                for world, step in sent
            ],
        }
        answer = json.loads(self._told(json.dumps(case)))
        emitted = {
            table: [
                Emitted(sent[at][0], sent[at][1], tuple(key), None if row is None else (tuple(row), time))
                for at, key, row, time in records
            ]
            for table, records in answer["emitted"].items()
        }
        for table, rows in answer["state"].items():
            stored = {tuple(key): (tuple(row), time) for key, row, time in rows}
            assert stored == folded(emitted[table]), f"the store of {table} is not the fold of what was emitted"
        return emitted

    def _told(self, case: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(case + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the log below says why
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            raise RuntimeError(f"the harness ended:\n{self._log.read()[-4000:]}")
        return line


def folded(emitted: Sequence[Emitted]) -> State:
    """The table that emitted records leave."""
    state: State = {}
    for record in emitted:
        state.pop(record.key, None)
        if record.row is not None:
            state[record.key] = record.row
    return state


def _command(state: str) -> list[str]:
    found = java()
    modules = subprocess.run([found, "--list-modules"], capture_output=True, text=True, check=True).stdout
    if "jdk.compiler" not in modules:
        raise NoCompiler(f"{found} is a runtime without a compiler; put a JDK 17 or 21 in JAVA_HOME or on PATH")
    spark = Path(pyspark.__file__).parent / "jars" / "*"  # first: its jackson serves both
    path = os.pathsep.join(map(str, (spark, *jars("streams"))))
    return [str(found), "-Duser.timezone=UTC", "-Xmx1g", f"-Dstate={state}", "-cp", path, str(HARNESS)]
