"""Whatever fails and whoever is late, everything is there once; and what would break that is found, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.protocol.bugs import BUGS
from tests.protocol.schedules import KINDS, failures, kind_of, settled
from tests.protocol.world import Simulation

if TYPE_CHECKING:
    from collections.abc import Iterator

SEEDS = range(2500)  # `make protocol` plays 100,000


@pytest.fixture(scope="module")
def simulation() -> Iterator[Simulation]:
    """The engine's code on ports in memory."""
    with Simulation().installed() as installed:
        yield installed


def test_every_schedule_ends_with_everything_there_once(simulation: Simulation) -> None:
    played = {seed: failures(simulation, seed)[:2] for seed in SEEDS}
    wrong = [f"--seed {seed} ({kind}): {found[0]}" for seed, (kind, found) in played.items() if found]
    assert not wrong, "\n".join([*wrong, "python -m tests.protocol --seed N plays one again"])


def test_a_seed_plays_the_same_again(simulation: Simulation) -> None:
    for seed in range(2 * len(KINDS)):
        told = [failures(simulation, seed, tell=True)[2] for _ in range(2)]
        one, other = ([line for line in again if not line.startswith(" ")] for again in told)  # epochs are random
        assert one == other
        assert one


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(simulation: Simulation, name: str) -> None:
    bug = BUGS[name]
    settled.cache_clear()
    try:
        with bug.planted(simulation):
            seeds = (seed for seed in SEEDS if bug.kind in (None, kind_of(seed)))
            found = (wrong for seed in seeds for wrong in failures(simulation, seed)[1])
            assert any(wrong.startswith(f"{bug.called}: ") for wrong in found)
    finally:
        settled.cache_clear()
