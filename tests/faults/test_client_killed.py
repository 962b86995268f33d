"""A client killed with SIGKILL before any of its effects, or while its MERGE runs: the next run ends right."""

from __future__ import annotations

import ast
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.connect.client.core import SparkConnectClient

from spark.engine import commit
from spark.engine.land import capture, land
from spark.engine.step import step
from tests import lake
from tests.faults.boundaries import Crossed, watched
from tests.faults.client import Verb, killed_before, killed_while_merging, started
from tests.faults.world import topology

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql.connect.proto import ExecutePlanRequest

    from resources.kafka import Kafka
    from spark.engine.doors import Doors
    from spark.topology import Topology
    from tests.faults.world import World


@dataclass(frozen=True)
class Case:
    """A landing or a step at a stage of the world, and the effects it has, in order."""

    verb: Verb
    stage: str
    effects: tuple[str, ...]
    commits: int
    outcome: str
    waves: int = 2
    wider: bool = False
    """The declaration gained a column."""
    only: tuple[str, ...] = ()
    """The effects to be killed before, where the others are those of another case."""


ASKED = ("offsets asked", "position read", "first offsets asked", "session opened")
PINNED = ("position read", "inputs pinned", "session opened")
APPENDED = ("appended", "read back", "session closed")

CASES = {
    "the first landing": Case("land", "empty", (*ASKED, "table created", *APPENDED), 1, "landed"),
    "a landing": Case("land", "first", (*ASKED, *APPENDED), 2, "landed"),
    "a landing that gained a column": Case(
        "land", "first", (*ASKED, "properties set", *APPENDED), 2, "landed", wider=True, only=("properties set",)
    ),
    "the first step": Case("step", "landed", (*PINNED, "table created", *APPENDED), 1, "stepped", waves=1),
    "a step": Case("step", "second", (*PINNED, "merged", "read back", "session closed"), 2, "stepped"),
    "a step of its position alone": Case(
        "step", "moved", (*PINNED, *APPENDED), 3, "positioned", only=("appended", "read back")
    ),
}


def case(world: World, name: str, tmp_path: Path) -> tuple[Case, Doors, Topology, str]:
    """The case, its own lake, its topology, and what it lands or steps."""
    found = CASES[name]
    orders, customers = (source.topic for source in world.topology.sources)
    made = topology(orders, customers, ", note string" if found.wider else "")
    return found, world.copy(found.stage, tmp_path), made, world.orders if found.verb == "land" else "joined"


def run(doors: Doors, kafka: Kafka, made: Topology, verb: Verb, name: str) -> str:
    """Land or step here."""
    if verb == "land":
        return land(doors, made, made.source(name), capture(kafka, made), "next").outcome
    return step(doors, made, made.table(name), "next").outcome


def check(world: World, doors: Doors, found: Case, target: str) -> None:
    """Everything is there, once, by one commit more."""
    landing = world.topology.source(target).landing if found.verb == "land" else target
    assert lake.state(doors, world.topology, landing).position.n == found.commits
    if found.verb == "land":
        world.check_landing(doors, found.waves)
    else:
        world.check_join(doors, found.waves)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        pytest.param(name, number, id=f"{name} before {effect}")
        for name, found in CASES.items()
        for number, effect in enumerate(found.effects)
        if found.only == () or effect in found.only
    ],
)
def test_a_client_killed_before_an_effect_is_made_good_by_the_next_run(
    world: World, kafka: Kafka, tmp_path: Path, name: str, number: int
) -> None:
    found, doors, made, target = case(world, name, tmp_path)
    process = started(killed_before, world.client(doors, found.verb, target, made), number)
    process.join(120)
    assert process.exitcode == -signal.SIGKILL
    outcome = run(doors, kafka, made, found.verb, target)
    committed = "read back" in found.effects[: number + 1]
    assert outcome == ("idle" if committed else found.outcome)
    check(world, doors, found, target)


LASTING = ("CREATE", "ALTER", "MERGE")
"""Statements that change more than the session they run in."""


@pytest.fixture
def lasting(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[list[str], Crossed]]:
    """What was sent to the engine to change tables, each with the boundaries it was sent inside of."""
    sent: list[str] = []
    execute = SparkConnectClient._execute_and_fetch_as_iterator
    with watched(lambda *_: None) as crossed:

        def executing(
            client: SparkConnectClient, request: ExecutePlanRequest, *arguments: object, **options: object
        ) -> object:
            command = request.plan.command
            kind: str | None = command.WhichOneof("command_type")
            if kind == "sql_command":
                [word, *_] = command.sql_command.input.sql.query.split()
                kind = word if word in LASTING else None
            if kind in (*LASTING, "write_operation", "write_operation_v2"):
                sent.append(f"{kind} while {' > '.join(crossed.inside) or 'outside'}")
            return execute(client, request, *arguments, **options)  # type: ignore[arg-type]  # passed on as they came

        monkeypatch.setattr(SparkConnectClient, "_execute_and_fetch_as_iterator", executing)
        yield sent, crossed


CHANGES = {
    "the first landing": ["CREATE while table created", "write_operation while appended"],
    "a landing": ["write_operation while appended"],
    "a landing that gained a column": [
        "ALTER while outside",  # the column, seen by the next run; killed behind it, before the properties
        "ALTER while properties set",
        "write_operation while appended",
    ],
    "the first step": ["CREATE while table created", "write_operation while appended"],
    "a step": ["MERGE while merged"],
    "a step of its position alone": ["write_operation while appended"],
}


@pytest.mark.parametrize("name", CASES)
def test_the_effects_listed_are_all_that_a_run_has(
    world: World, kafka: Kafka, tmp_path: Path, lasting: tuple[list[str], Crossed], name: str
) -> None:
    found, doors, made, target = case(world, name, tmp_path)
    sent, crossed = lasting
    run(doors, kafka, made, found.verb, target)
    assert tuple(crossed.names) == found.effects
    assert sent == CHANGES[name]


PLACES = {
    "table.create": "table created",
    "table.set_properties": "properties set",
    "commit._save": "appended",
    "commit.run": "merged",
    "land._widen": "properties set",  # adds the column just before it
    "kept.keep": "nothing: it caches for the session alone",
    "kept.keeping": "nothing: it lets go of that",
}
"""Where the engine runs a statement or writes, and the effect it belongs to."""


WRITING = {"sql", "save", "saveAsTable", "insertInto", "writeTo", "mergeInto"}


def test_the_engine_changes_tables_in_no_other_place() -> None:
    found = set()
    for module in Path(commit.__file__).parent.glob("*.py"):
        for function in ast.walk(ast.parse(module.read_text())):
            if isinstance(function, ast.FunctionDef):
                called = (node.func for node in ast.walk(function) if isinstance(node, ast.Call))
                methods = {method.attr for method in called if isinstance(method, ast.Attribute)}
                found |= {f"{module.stem}.{function.name}"} if methods & WRITING else set()
    assert found == PLACES.keys()


def test_a_merge_whose_client_died_may_still_commit_and_counts_once(world: World, kafka: Kafka, tmp_path: Path) -> None:
    found, doors, made, target = case(world, "a step", tmp_path)
    process = started(killed_while_merging, world.client(doors, "step", target, made))
    process.join(120)
    assert process.exitcode == -signal.SIGKILL
    # At once, while the engine may be at it.
    assert run(doors, kafka, made, "step", target) in ("stepped", "idle")
    check(world, doors, found, target)


def test_an_engine_ends_the_merge_of_a_client_that_died(world: World, kafka: Kafka, tmp_path: Path) -> None:
    found, doors, made, target = case(world, "a step", tmp_path)
    process = started(killed_while_merging, world.client(doors, "step", target, made))
    process.join(120)
    assert process.exitcode == -signal.SIGKILL
    for _ in range(300):
        if lake.state(doors, made, target).position.run == "killed":
            break
        time.sleep(0.1)
    assert lake.state(doors, made, target).position.run == "killed"
    assert run(doors, kafka, made, "step", target) == "idle"
    check(world, doors, found, target)
