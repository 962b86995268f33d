"""`docs/queries.md`, run on the README's first topology, with ticks in the background."""

from __future__ import annotations

from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from click.testing import CliRunner

from dagster_project import render
from dagster_project import topologies as package
from dagster_project.cli import main
from dagster_project.settings import Settings
from spark.engine.tick import tick
from tests.docs.pages import DOCS, blocks
from tests.docs.test_readme import DECLARE, PRODUCE, README
from tests.support.service import TOKEN, serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest

    from spark.topology import Topology


def test_the_page_of_queries_runs(own_lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "first.py").write_text(DECLARE)
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    for command in (["up"], ["topics", "create", "first"]):
        assert CliRunner().invoke(main, command, catch_exceptions=False).exit_code == 0
    exec(compile(PRODUCE, str(README), "exec"), {})
    declared: dict[str, Any] = {}
    exec(compile(DECLARE, str(README), "exec"), declared)
    assert tick(Settings.from_environment().ports(), declared["topology"], "first").failed == {}

    namespace: dict[str, Any] = {}
    monkeypatch.setenv("TIDETABLE_SERVE_TOKEN", TOKEN)
    with _ticking(declared["topology"]), serving(Settings.from_environment().tidetable().lakehouse) as client:
        for block in blocks(DOCS / "queries.md"):
            if block.is_run:
                code = block.code.replace(".lake", str(own_lake)).replace(":8321", f":{client.port}")
                exec(compile(code, str(block.page), "exec"), namespace)
    assert namespace["served"] == render.to_json(list(namespace["reader"].table("first.orders_enriched").all()))
    assert [row["name"] for row in namespace["rows"]] == ["Ada"]
    assert namespace["snapshot"]["first.orders"].get(1)["customer_id"] == 7


@contextmanager
def _ticking(topology: Topology) -> Iterator[None]:
    """Run ticks until the block ends."""
    done, ports = Event(), Settings.from_environment().ports()

    def ticks() -> None:
        while not done.wait(0.2):
            tick(ports, topology, "background")

    thread = Thread(target=ticks)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
