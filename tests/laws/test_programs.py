"""Every operator over every operator, and random plans over them: the laws hold, and the rows are the reference's.

`make fuzz` holds all nestings and a great many random plans to them; here it is some of each, and every seed that
once failed.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from tests.laws import fuzz
from tests.laws.fuzz import fuzzing, hunt
from tests.laws.laws import check
from tests.laws.programs import MEANING, nestings, program
from tests.support.quick import quick_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from resources.engine import Engine

WORLDS = 150  # in one frame
FAILED: tuple[int, ...] = ()
"""Seeds of random plans that once broke a law."""

NESTINGS = nestings()
SOME = sorted(NESTINGS)[:: 1 if fuzz.WORLDS else 16]


@pytest.fixture(scope="module")
def session(engine: Engine) -> Iterator[SparkSession]:
    """One session for all plans."""
    session = quick_session(engine)
    yield session
    session.stop()


@pytest.mark.thorough
@pytest.mark.parametrize("name", SOME)
def test_an_operator_over_an_operator_keeps_the_laws(session: SparkSession, name: str) -> None:
    check(session, NESTINGS[name], seed=len(name), count=WORLDS, meaning=MEANING)


@pytest.mark.parametrize("seed", [*range(8), *FAILED])
def test_a_random_plan_keeps_the_laws(session: SparkSession, seed: int) -> None:
    check(session, program(random.Random(seed)), seed, WORLDS, MEANING)


@fuzzing
def test_a_great_many_random_plans_keep_the_laws(session: SparkSession) -> None:
    plans = max(0, fuzz.WORLDS // WORLDS - len(NESTINGS))
    hunt(plans, lambda seed: check(session, program(random.Random(seed)), seed, WORLDS, MEANING))
