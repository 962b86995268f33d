"""What `make fuzz` tries beyond `make test`: seeds that nobody tried before."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

WORLDS = int(os.environ.get("TIDETABLE_FUZZ", "0"))
"""How many worlds of random plans, or 0: it is `make test`."""

GREAT_MANY = 2_000
"""Worlds for each kind of stream and window."""

fuzzing = pytest.mark.skipif(WORLDS == 0, reason="make fuzz tries these")


def hunt(rounds: int, check: Callable[[int], None]) -> None:
    """Check as many seeds, from one that the clock draws; the one that fails is told."""
    first = time.time_ns() // 1_000_000
    for done, seed in enumerate(range(first, first + rounds), 1):
        print(f"\r{done} of {rounds}, seed {seed}", end="", file=sys.__stderr__, flush=True)
        try:
            check(seed)
        except Exception as error:
            error.add_note(f"add seed {seed} to FAILED")
            raise
