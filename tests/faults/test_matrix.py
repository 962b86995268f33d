"""The part of the kill matrix that kills no server: clients killed, zombies, the same run twice, and retries."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.faults.matrix import ERRANDS, cells, sample, subset

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.faults.matrix import Cell
    from tests.faults.play import Playground
    from tests.faults.world import World


@pytest.mark.parametrize("cell", subset(), ids=str)
def test_whatever_fails_everything_is_there_once(
    playground: Playground, worlds: Callable[[int, int], World], cell: Cell
) -> None:
    [result] = playground.play([cell], worlds)
    assert result.holds, result


def test_a_cell_is_there_once_and_every_errand_meets_every_fault() -> None:
    whole = cells()
    assert len(set(whole)) == len(whole)
    met = {(cell.errand, cell.fault) for cell in whole}
    assert len(met) == len(ERRANDS) * 7
    assert {(cell.errand, cell.fault) for cell in sample(whole, 1_000)} == met
