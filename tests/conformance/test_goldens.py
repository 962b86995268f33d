"""Our tables are those that Kafka Streams had after every record: what `make record` wrote, compared without it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance import golden
from tests.conformance.cases import EMPTIED, KINDS, STEPS, topology
from tests.conformance.compare import compared, told
from tests.conformance.divergences import divergences
from tests.conformance.replay import cut

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from tests.conformance.cases import World
    from tests.conformance.compare import Compared
    from tests.conformance.oracle import Answer

# What a join of two tables emits at each of the 23 steps: left-right@time, _ is a missing side, X a tombstone.
# Facts of Apache Kafka's AbstractJoinIntegrationTest and its table-table results; numbers stand for its letters.
EMITTED = {
    "pk_inner": "4:1-1@4 5:2-1@5 6:2-2@6 7:X 10:3-3@10 11:X 15:4-4@7 16:X 19:5-5@15 20:X 23:6-6@4",
    "pk_left": "3:1-_@3 4:1-1@4 5:2-1@5 6:2-2@6 7:X 9:3-_@9 10:3-3@10 11:3-_@11 12:X 15:4-4@7 16:X 19:5-5@15 20:X "
    "22:6-_@4 23:6-6@4",
    "pk_outer": "3:1-_@3 4:1-1@4 5:2-1@5 6:2-2@6 7:_-2@7 8:X 9:3-_@9 10:3-3@10 11:3-_@11 12:X 14:_-4@7 15:4-4@7 "
    "16:_-4@7 17:X 18:_-5@14 19:5-5@15 20:_-5@14 21:X 22:6-_@4 23:6-6@4",
}


@pytest.fixture(scope="module")
def recorded() -> tuple[list[World], Answer]:
    return golden.load("kinds", topology(KINDS.values()))


@pytest.fixture(scope="module")
def found(session: SparkSession, recorded: tuple[list[World], Answer]) -> Compared:
    """Everything at once: the kinds share their topics, and a step costs the same for one world and for all."""
    worlds, answer = recorded
    return compared(session, list(KINDS.values()), worlds, answer, cut(worlds))


@pytest.mark.parametrize("table", [table.name for table in topology(KINDS.values()).tables])
def test_a_table_is_kafkas_after_every_record_and_every_cut(
    found: Compared, recorded: tuple[list[World], Answer], table: str
) -> None:
    differences = [difference for difference in found.differences if difference.table == table]
    if differences:
        first = min(differences, key=lambda difference: difference.after)
        pytest.fail("\n".join(told(recorded[0][first.world], first)))
    assert recorded[1][table]


def test_every_known_difference_is_met_and_documented(found: Compared) -> None:
    known = {name for kind in KINDS.values() for names in kind.times.values() for name in names} | {EMPTIED}
    assert set(found.known) == known
    assert known <= {divergence.name for divergence in divergences()}


@pytest.mark.parametrize("table", EMITTED)
def test_the_23_steps_emit_what_kafkas_own_tests_expect(recorded: tuple[list[World], Answer], table: str) -> None:
    worlds, answer = recorded
    assert worlds[0] == STEPS
    told, there = [], False
    for record in (record for record in answer[table] if record.world == 0):
        if record.row is not None:
            sides = "-".join("_" if cell is None else str(cell) for cell in record.row[0])
            told.append(f"{record.step + 1}:{sides}@{record.row[1]}")
        elif there:
            told.append(f"{record.step + 1}:X")
        there = record.row is not None
    assert " ".join(told) == EMITTED[table]


@pytest.mark.parametrize(
    ("kind", "function", "planted"),
    [
        ("fk_left", "spark.operators.join.looking_up", lambda _join, left, _right, _few: left.where("false")),
        ("aggregate", "spark.operators.aggregate.in_a_group", lambda _aggregate: "true"),
    ],
    ids=["changes of the right side are not followed", "rows without a group are in one"],
)
def test_a_planted_bug_is_found(
    session: SparkSession,
    recorded: tuple[list[World], Answer],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    function: str,
    planted: Callable[..., DataFrame | str],
) -> None:
    worlds, answer = recorded
    monkeypatch.setattr(function, planted)
    found = compared(session, [KINDS[kind]], worlds, answer, cut(worlds[:4]))
    assert {difference.table for difference in found.differences} == {kind}
