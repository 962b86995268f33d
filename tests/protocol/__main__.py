"""Play many schedules, and print the seeds of those that end wrong; or one again, effect by effect."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.protocol.schedules import failures
from tests.protocol.world import Simulation

PART = 1_000  # schedules that a process takes at once


def main() -> int:
    """The number of seeds that failed, as far as an exit code tells it."""
    parser = argparse.ArgumentParser(prog="python -m tests.protocol", description=__doc__)
    parser.add_argument("--schedules", type=int, default=100_000, help="how many (100,000)")
    parser.add_argument("--first", type=int, default=0, help="the seed to begin with (0)")
    parser.add_argument("--seed", type=int, help="play this one alone, and tell all that happens")
    asked = parser.parse_args()
    if asked.seed is not None:
        with Simulation().installed() as simulation:
            kind, wrong, told = failures(simulation, asked.seed, tell=True)
        print(*told, f"{kind}: {'holds' if not wrong else ''}", *wrong, sep="\n")
        return min(1, len(wrong))
    seeds = range(asked.first, asked.first + asked.schedules)
    parts = [seeds[begin : begin + PART] for begin in range(0, len(seeds), PART)]
    began, kinds, failed = time.monotonic(), Counter[str](), 0
    shown = (TextColumn("schedules"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with ProcessPoolExecutor() as pool, Progress(*shown) as progress:
        task = progress.add_task("", total=len(seeds))
        for part, (found, wrong) in zip(parts, pool.map(played, parts), strict=True):
            kinds, failed = kinds + found, failed + len(wrong)
            for line in wrong:
                progress.console.print(line, soft_wrap=True, markup=False, highlight=False)
            progress.advance(task, len(part))
    print(f"{len(seeds):,} schedules, {failed} wrong, {time.monotonic() - began:.0f} seconds")
    print(", ".join(f"{kind} {count:,}" for kind, count in kinds.most_common()))
    return min(1, failed)


def played(seeds: Sequence[int]) -> tuple[Counter[str], list[str]]:
    """How many schedules of each kind these seeds are, and a line for each that ended wrong."""
    kinds, lines = Counter[str](), list[str]()
    with Simulation().installed() as simulation:
        for seed in seeds:
            kind, wrong, _ = failures(simulation, seed)
            kinds[kind] += 1
            lines += [f"--seed {seed} ({kind}): {wrong[0]}"] if wrong else []
    return kinds, lines


if __name__ == "__main__":
    sys.exit(main())
