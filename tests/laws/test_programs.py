"""Every operator over every operator, and random plans over them: the laws hold, and the rows are the reference's.

`make fuzz` holds all nestings and a great many random plans to them; here it is some of each, and every seed that
once failed.
"""

from __future__ import annotations

import os
import random
import sys
from typing import TYPE_CHECKING

import pytest

from tests.laws.laws import check
from tests.laws.programs import MEANING, nestings, program
from tests.quick import quick_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from resources.engine import Engine

WORLDS = 150  # in one frame
FUZZ = int(os.environ.get("TIDETABLE_FUZZ", "0"))  # worlds to try in all
FAILED: tuple[int, ...] = ()
"""Seeds of random plans that once broke a law."""

NESTINGS = nestings()
SOME = sorted(NESTINGS)[:: 1 if FUZZ else 16]


@pytest.fixture(scope="module")
def session(engine: Engine) -> Iterator[SparkSession]:
    """One session for all plans."""
    session = quick_session(engine)
    yield session
    session.stop()


@pytest.mark.parametrize("name", SOME)
def test_an_operator_over_an_operator_keeps_the_laws(session: SparkSession, name: str) -> None:
    check(session, NESTINGS[name], seed=len(name), count=WORLDS, meaning=MEANING)


@pytest.mark.parametrize("seed", [*range(8), *FAILED])
def test_a_random_plan_keeps_the_laws(session: SparkSession, seed: int) -> None:
    check(session, program(random.Random(seed)), seed, WORLDS, MEANING)


@pytest.mark.skipif(FUZZ == 0, reason="make fuzz tries these")
def test_a_great_many_random_plans_keep_the_laws(session: SparkSession) -> None:
    plans = max(0, FUZZ // WORLDS - len(NESTINGS))
    for seed in range(1_000, 1_000 + plans):
        print(f"\rplan {seed - 999} of {plans} over {WORLDS} worlds each", end="", file=sys.__stderr__, flush=True)
        try:
            check(session, program(random.Random(seed)), seed, WORLDS, MEANING)
        except Exception as error:
            error.add_note(f"add {seed} to FAILED")
            raise
