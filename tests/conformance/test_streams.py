"""Our streams emit what Kafka Streams emitted: what `make record` wrote, compared without it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance import golden
from tests.conformance.cases import topology
from tests.conformance.streams import KINDS, Sent, differing, kafkas, ours

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.conformance.cases import World
    from tests.conformance.oracle import Answer


@pytest.fixture(scope="module")
def recorded() -> tuple[list[World], Answer]:
    return golden.load("streams", topology(KINDS.values()))


@pytest.fixture(scope="module")
def emitted(session: SparkSession, recorded: tuple[list[World], Answer]) -> dict[str, Sent]:
    return ours(session, list(KINDS.values()), recorded[0])


@pytest.mark.parametrize("name", KINDS)
def test_a_stream_emits_what_kafkas_does(
    emitted: dict[str, Sent], recorded: tuple[list[World], Answer], name: str
) -> None:
    worlds, answer = recorded
    theirs = kafkas(answer, [KINDS[name]])[name]
    lines = differing(emitted[name], theirs, worlds)
    if lines:
        pytest.fail("\n".join(lines))
    assert len(theirs) > len(worlds)


def test_a_planted_bug_is_found(
    session: SparkSession, recorded: tuple[list[World], Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of the batch seen by every record."""

    def at_the_end(_join: object, pairs: DataFrame, _changes: DataFrame) -> DataFrame:
        return pairs

    monkeypatch.setattr("spark.operators.lookup.as_of", at_the_end)
    worlds, answer = recorded
    kind = KINDS["st_inner"]
    assert differing(ours(session, [kind], worlds)[kind.name], kafkas(answer, [kind])[kind.name], worlds)
