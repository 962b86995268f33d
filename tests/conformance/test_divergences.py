"""Every difference of divergences.yaml is there, and is as described."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance import golden
from tests.conformance.cases import topology
from tests.conformance.divergences import Divergence, divergences, kinds
from tests.conformance.oracle import folded
from tests.conformance.replay import Play, Seen, replayed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMES = [divergence.name for divergence in divergences()]
SAME = {"a table joined to a global table"}  # a join that Kafka lacks: held against another one, whose rows are equal


@pytest.fixture(scope="module")
def ours(session: SparkSession) -> list[Seen]:
    cases = [divergence.case for divergence in divergences()]
    plays = [Play(world, (case[:-1], case[-1:]), (len(case) - 1, len(case))) for world, case in enumerate(cases)]
    return replayed(session, topology(kinds()), plays)


@pytest.mark.parametrize("divergence", divergences(), ids=NAMES)
def test_our_rows_are_as_described(ours: list[Seen], divergence: Divergence) -> None:
    assert ours[NAMES.index(divergence.name)].tables[divergence.table][-1] == divergence.ours


@pytest.mark.parametrize("divergence", divergences(), ids=NAMES)
def test_kafkas_rows_are_as_described(divergence: Divergence) -> None:
    cases, answer = golden.load("divergences", topology(kinds()))
    world = NAMES.index(divergence.name)
    assert cases[world] == divergence.case
    assert folded([sent for sent in answer[divergence.table] if sent.world == world]) == divergence.theirs


@pytest.mark.parametrize("divergence", divergences(), ids=NAMES)
def test_the_rows_differ_where_they_are_said_to(divergence: Divergence) -> None:
    assert (divergence.ours == divergence.theirs) == (divergence.name in SAME)
