"""What a suite's check, the command and the jobs say of a table, from its position alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import click.testing
import dagster as dg
import pytest

from assets import checks, metadata
from assets.gates import Failure, SuiteGate, Verdict, about_rows_together, applicable
from assets.suites import Expectation, Suite
from dagster_project import render
from dagster_project.cli import main, maintenance
from spark.engine.attempt import Stepped
from spark.engine.check import Checked
from spark.engine.errors import InputChanged
from spark.engine.log.position import Gated, Position
from spark.engine.log.stored_table import State
from spark.engine.status import TableStatus
from spark.topology import Consumed, StreamsBuilder

NOT_NULL = "expect_column_values_to_not_be_null"
ASKED: tuple[Expectation, ...] = ({"type": NOT_NULL, "kwargs": {"column": "v"}},)
SUITE = Suite("s", Path("a.t.json"), "text", ASKED)
NONE: dict[str, int | None] = {}
HELD = Verdict("s", 1, ())
WARNED = Verdict("s", 1, (Failure("newest", "warning", 1, "[]"),))


def state(failing: dict[str, int | None], let_through: dict[str, int | None], gate: str = SUITE.digest) -> State:
    """A table of version 9, whose gate looked at version 7."""
    position = Position("a/t", "e", 9, "run", {}, {}, 9, gated=Gated(gate, 7, failing, let_through))
    return State("id", 9, 9, position, {}, {}, own=9)


def test_a_check_without_new_rows_says_what_the_position_says_whoever_committed_it() -> None:
    warned = checks.passed(SUITE, None, state(NONE, {"newest": 2}))
    assert (warned.passed, warned.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert "newest (2)" in (warned.description or "")
    held = checks.passed(SUITE, None, state(NONE, NONE))
    assert held.passed, "as when the rows were corrected, and `tidetable check` found nothing"
    other = checks.passed(SUITE, None, state(NONE, NONE, gate="a suite of the same name"))
    assert not other.passed
    assert "has not been evaluated" in (other.description or "")


@pytest.mark.parametrize(("verdict", "said"), [(HELD, "Every expectation succeeded."), (WARNED, "newest")])
def test_the_verdict_on_new_rows_is_shown_beside_rows_of_before_that_fail(verdict: Verdict, said: str) -> None:
    shown = checks.passed(SUITE, verdict, state({"stored": 2, "other": None}, verdict.failing))
    assert (shown.passed, shown.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert shown.description == (
        "Rows of version 7 fail: stored (2), other. They are committed; correct them at their source, then run "
        f"`tidetable check`. The rows of this step: {said}"
    )
    counts = shown.metadata["stored_rows_failing"]
    assert isinstance(counts, dg.TableMetadataValue)
    assert [record.data for record in counts.records] == [
        {"expectation": "stored", "rows": 2},
        {"expectation": "other", "rows": ""},
    ]
    assert shown.metadata["failed"] == dg.MetadataValue.int(len(verdict.failures))


def test_steps_and_status_tell_which_rows_fail() -> None:
    at = state({"stored[x]": 2, "whole": None}, {"newest": 1})
    lines = render.result_line(Stepped("a/t", "idle", at, at)).splitlines()
    assert [line.strip() for line in lines[1:]] == [
        "[yellow]version 7: 2 rows fail: stored\\[x][/]",
        "[yellow]version 7: the table fails: whole[/]",
        "[yellow]1 of the newest rows fail, and were committed with a warning: newest[/]",
    ]
    status = TableStatus("t", at, {})
    assert len([note for note in render.status_grid("a", [status]) if "fail" in str(note)]) == 3
    shown = metadata.of_status(status)
    assert shown["gate/rows_failing"] == dg.MetadataValue.json({"stored[x]": 2, "whole": None})
    assert shown["gate/let_through"] == dg.MetadataValue.json({"newest": 1})


def test_what_is_expected_of_rows_together_is_told_from_what_is_expected_of_each() -> None:
    each: list[Expectation] = [
        {"type": NOT_NULL, "kwargs": {"column": "v"}},
        {"type": "expect_column_value_lengths_to_be_between", "kwargs": {"column": "v", "min_value": 1}},
        {"type": "expect_table_columns_to_match_set", "kwargs": {"column_set": ["v"]}},
    ]
    all_: list[Expectation] = [
        {"type": "expect_column_values_to_be_unique", "kwargs": {"column": "v"}},
        {"type": "expect_compound_columns_to_be_unique", "kwargs": {"column_list": ["v", "w"]}},
        {"type": "expect_column_max_to_be_between", "kwargs": {"column": "v", "max_value": 1}},
        {"type": "expect_table_row_count_to_be_between", "kwargs": {"min_value": 1}},
        {"type": NOT_NULL, "kwargs": {"column": "v", "mostly": 0.9}},
        {"type": "expectation_of_a_later_release"},
    ]
    assert not any(map(about_rows_together, each))
    assert all(map(about_rows_together, all_))
    assert applicable(all_, empty=False) == all_
    assert [one["type"] for one in applicable(all_, empty=True)] == ["expect_table_row_count_to_be_between"]


def test_a_table_whose_suite_cannot_be_evaluated_keeps_no_other_from_its_check(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    builder = StreamsBuilder("a")
    for topic in ("t", "u"):
        builder.table(topic, Consumed.json(key="id bigint", value="v int"))
    topology = builder.build()
    gates = {name: SuiteGate(topology, topology.table(name), SUITE) for name in ("t", "u")}

    def check(*given: object) -> Checked:
        gate = given[3]
        assert isinstance(gate, SuiteGate)
        if gate is gates["t"]:
            raise InputChanged("a.t: cannot be evaluated")
        gate.stored = replace(HELD)
        return Checked("a/u", 3, Gated("g", 3, {}), 0.1)

    monkeypatch.setattr("spark.engine.check.check", check)
    monkeypatch.setattr(maintenance, "gates_of", lambda _: gates)
    monkeypatch.setattr("dagster_project.cli.names.topologies", lambda *_: (topology,))
    # A broker that nobody asks: without one, the command would start its own.
    runner = click.testing.CliRunner(env={"TIDETABLE_LAKE": str(tmp_path), "TIDETABLE_KAFKA": "127.0.0.1:9"})
    ran = runner.invoke(main, ["check", "a", "--json"], catch_exceptions=False)
    assert ran.exit_code == 1
    first, second = json.loads(ran.stdout)
    assert (first["table"], first["error"]) == ("a/t", "a.t: cannot be evaluated")
    assert (second["table"], second["failures"]) == ("a/u", [])
    shown = runner.invoke(main, ["check", "a"], catch_exceptions=False)
    assert "cannot be evaluated" in shown.stdout
    assert "a.u" in shown.stdout
