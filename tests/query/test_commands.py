"""The commands print what a reader answers, and start no server."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from dagster_project.cli import main

if TYPE_CHECKING:
    from tests.query.world import World

pytestmark = pytest.mark.filterwarnings("ignore:module 'sre_:DeprecationWarning")  # Great Expectations' imports


@pytest.fixture(autouse=True)
def _lake(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDETABLE_LAKE", world.ports.lakehouse.table("", "").rstrip("/"))
    monkeypatch.setenv("SPARK_REMOTE", "sc://127.0.0.1:1")  # nothing listens there
    monkeypatch.setenv("TIDETABLE_KAFKA", "127.0.0.1:1")


def run(*args: str) -> str:
    result = CliRunner().invoke(main, args)
    assert result.exit_code == 0, result.output
    return result.stdout


def found(*args: str) -> Any:
    return json.loads(run(*args, "--json"))


def test_rows_are_printed_as_json_and_as_a_grid(world: World) -> None:
    rows = [world.people[number] for number in sorted(world.people)]
    first, cities = rows[0], world.cities()
    assert found("get", world.table, str(first["id"])) == first
    assert found("get", world.table, "-7") is None
    assert found("get", world.table, str(first["id"]), "--column", "city") == {"city": first["city"]}
    assert "_offset" in found("get", world.table, str(first["id"]), "--metadata")
    assert found("scan", world.table) == rows
    assert found("scan", world.table, "--limit", "2", "--reverse") == rows[::-1][:2]
    assert found("range", world.table, "--from", "10", "--to", "20") == [row for row in rows if 10 <= row["id"] <= 20]
    assert [row["city"] for row in found("prefix", f"{world.topology.name}.cities", "Bo")] == sorted(
        city for city in cities if city.startswith("Bo")
    )
    printed = run("get", world.table, str(first["id"]))
    assert first["name"] in printed
    assert "city" in printed
    assert run("get", world.table, "1000").strip() == "no row"
    assert run("range", world.table, "--from", "1000").strip() == "no rows"


def test_versions_and_histories_are_printed(world: World) -> None:
    number = next(iter(world.people))
    changes = world.changes_of(number)
    printed = found("history", world.table, str(number))
    assert printed["since"] == 0
    assert [(change["version"], change["row"]) for change in printed["changes"]] == changes
    version, rows = next(iter(world.by_version.items()))
    then = [rows[one] for one in sorted(rows)]
    assert found("scan", world.table, "--as-of-version", str(version)) == then
    at = next(change["at"] for change in found("history", world.table, str(min(rows)))["changes"])
    assert found("scan", world.table, "--as-of-timestamp", at) == then
    assert str(version) in run("history", world.table, str(min(rows)))
    assert run("history", world.table, "1000").strip() == "no commit changed a row of this key"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("get", "{table}", "x"), "'x' is no bigint"),
        (("get", "{table}", "1", "2"), "1 2 has 2 columns"),
        (("get", "nothing.here", "1"), "there is no table 'nothing.here'; the lake has"),
        (("scan", "{table}", "--at-least", "{topic}:0:100000", "--timeout", "0"), "does not cover {topic}/0 up to"),
        (("scan", "{table}", "--at-least", "{topic}"), "write TOPIC:PARTITION:OFFSET"),
        (("scan", "{table}", "--as-of-timestamp", "noon"), "write a time as in"),
        (("scan", "{table}", "--as-of-timestamp", "2026-01-01", "--as-of-version", "1"), "leave one out"),
        (("scan", "{table}", "--column", "height"), "it has id, name, city"),
    ],
)
def test_an_error_is_one_message_that_says_what_there_is(world: World, args: tuple[str, ...], message: str) -> None:
    result = CliRunner().invoke(main, [arg.format(table=world.table, topic=world.topic) for arg in args])
    assert result.exit_code != 0
    assert message.format(topic=world.topic) in " ".join(result.output.split())
