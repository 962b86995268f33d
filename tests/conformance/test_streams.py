"""Our streams emit what Kafka Streams emitted: what `make record` wrote, compared without it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance import golden
from tests.conformance.cases import topology
from tests.conformance.streams import KINDS, RECORDED, Sent, differing, kafkas, ours

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.conformance.cases import World
    from tests.conformance.oracle import Answer


Recorded = dict[str, tuple[list["World"], "Answer"]]


@pytest.fixture(scope="module")
def recorded() -> Recorded:
    return {run: golden.load(run, topology(kinds.values())) for run, kinds in RECORDED.items()}


@pytest.fixture(scope="module")
def emitted(session: SparkSession, recorded: Recorded) -> dict[str, dict[str, Sent]]:
    return {run: ours(session, list(RECORDED[run].values()), worlds) for run, (worlds, _) in recorded.items()}


@pytest.mark.parametrize(("run", "name"), [(run, name) for run, kinds in RECORDED.items() for name in kinds])
def test_a_stream_emits_what_kafkas_does(
    emitted: dict[str, dict[str, Sent]], recorded: Recorded, run: str, name: str
) -> None:
    worlds, answer = recorded[run]
    theirs = kafkas(answer, [RECORDED[run][name]])[name]
    lines = differing(emitted[run][name], theirs, worlds)
    if lines:
        pytest.fail("\n".join(lines))
    assert len(theirs) > len(worlds)


def test_a_planted_bug_is_found(session: SparkSession, recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of the batch seen by every record."""

    def at_the_end(_join: object, pairs: DataFrame, _changes: DataFrame) -> DataFrame:
        return pairs

    monkeypatch.setattr("spark.operators.lookup.as_of", at_the_end)
    worlds, answer = recorded["streams"]
    kind = KINDS["st_inner"]
    assert differing(ours(session, [kind], worlds)[kind.name], kafkas(answer, [kind])[kind.name], worlds)
