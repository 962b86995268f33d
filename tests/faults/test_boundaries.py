"""The registry is complete: an errand's effects are those listed, and nothing changes a table or a topic elsewhere."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.connect.client.core import SparkConnectClient

from resources import publisher
from spark.engine import step
from tests.faults.boundaries import BOUNDARIES, LASTING, READS, Crossed, watched
from tests.faults.matrix import ERRANDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql.connect.proto import ExecutePlanRequest

    from tests.faults.play import Playground
    from tests.faults.world import World

CHANGING = ("CREATE", "ALTER", "MERGE", "OPTIMIZE", "VACUUM")
"""Statements that change more than the session they run in."""


@pytest.fixture
def changing(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[list[str], Crossed]]:
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
                kind = word if word in CHANGING else None
            if kind in (*CHANGING, "write_operation", "write_operation_v2"):
                by = [name for name in command.write_operation.options if name.startswith("replace")]
                sent.append(f"{' by '.join([kind, *by])} while {' > '.join(crossed.inside) or 'outside'}")
            return execute(client, request, *arguments, **options)  # type: ignore[arg-type]  # passed on as they came

        monkeypatch.setattr(SparkConnectClient, "_execute_and_fetch_as_iterator", executing)
        yield sent, crossed


@pytest.mark.parametrize("name", ERRANDS)
def test_the_effects_listed_are_all_that_an_errand_has(
    playground: Playground, worlds: Callable[[int, int], World], changing: tuple[list[str], Crossed], name: str
) -> None:
    sent, crossed = changing
    client = playground.client(name, worlds(1, 0))
    sent.clear()
    crossed.names.clear()
    client.work()
    assert tuple(crossed.names) == ERRANDS[name].effects
    assert tuple(sent) == ERRANDS[name].statements


PLACES = {
    "table.create": ("table created",),
    "table._has_versions": (),  # it looks
    "table.set_properties": ("properties set",),
    "commit._save": ("appended", "replaced", "rows replaced", "epoch closed"),
    "commit.merge": ("merged",),
    "compact._optimize": ("files compacted",),
    "compact._vacuum": ("files removed",),
    "table.add_columns": ("columns added",),
    "table.add": ("columns added",),  # one attempt of it
    "frame_cache.cache": (),  # it caches for the session alone
    "frame_cache.replace": (),  # and drops what it cached before
    "frame_cache.frame_cache": (),  # it drops all of that
}
"""Where the engine runs a statement or writes, and the effects it belongs to."""

WRITING = {"sql", "save", "saveAsTable", "insertInto", "writeTo", "mergeInto"}

SENDING = {
    "__init__": ("publisher opened",),
    "send": ("record sent",),
    "commit": ("transaction told",),
    "__exit__": (),  # undoes what is not committed, as the broker does by itself
    "_begin": (),  # the client's own mark: the broker hears of a transaction by its first record
    "_between": (),  # reads
    "_refused": (),  # hears what became of records
    "_reason": (),  # asks a dead producer to undo, to hear why it is dead
}
"""Where the publisher uses its producer or its consumer, and the effects it belongs to."""


def _functions(module: Path) -> Iterator[tuple[str, set[str]]]:
    """Every function of a module, with the methods that it calls, each as `of.method` of an attribute, or `method`."""
    for function in ast.walk(ast.parse(module.read_text())):
        if isinstance(function, ast.FunctionDef):
            called = [node.func for node in ast.walk(function) if isinstance(node, ast.Call)]
            methods = [method for method in called if isinstance(method, ast.Attribute)]
            names = {method.attr for method in methods}
            its = {method.value.attr for method in methods if isinstance(method.value, ast.Attribute)}
            yield function.name, names | {f"its {name}" for name in its}


def test_the_engine_changes_tables_in_no_other_place() -> None:
    found = {
        f"{module.stem}.{function}"
        for module in Path(step.__file__).parent.rglob("*.py")
        for function, called in _functions(module)
        if called & WRITING
    }
    assert found == PLACES.keys()


def test_the_publisher_changes_topics_in_no_other_place() -> None:
    found = {
        function
        for function, called in _functions(Path(publisher.__file__))
        if called & {"its _producer", "its _consumer"}
    }
    assert found == SENDING.keys()


def test_every_effect_is_named_and_every_name_is_an_effect() -> None:
    named = {name for places in (PLACES, SENDING) for names in places.values() for name in names}
    assert named == set(LASTING)
    assert {*LASTING, *READS, "session opened", "session closed"} == BOUNDARIES.keys()
