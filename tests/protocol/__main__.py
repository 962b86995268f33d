"""Play many schedules, and print the seeds of those that end wrong; or one again, effect by effect."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tests.protocol.schedules import failures
from tests.protocol.world import Simulation


def main() -> int:
    """The number of seeds that failed, as far as an exit code tells it."""
    parser = argparse.ArgumentParser(prog="python -m tests.protocol", description=__doc__)
    parser.add_argument("--schedules", type=int, default=100_000, help="how many (100,000)")
    parser.add_argument("--first", type=int, default=0, help="the seed to begin with (0)")
    parser.add_argument("--seed", type=int, help="play this one alone, and tell all that happens")
    asked = parser.parse_args()
    with Simulation().installed() as simulation:
        if asked.seed is not None:
            kind, wrong, told = failures(simulation, asked.seed, tell=True)
            print(*told, f"{kind}: {'holds' if not wrong else ''}", *wrong, sep="\n")
            return min(1, len(wrong))
        began, failed, kinds = time.process_time(), 0, Counter[str]()
        for number in range(1, asked.schedules + 1):
            seed = asked.first + number - 1
            kind, wrong, _ = failures(simulation, seed)
            kinds[kind] += 1
            if wrong:
                failed += 1
                print(f"--seed {seed} ({kind}): {wrong[0]}", flush=True)
            if number % 10_000 == 0 or number == asked.schedules:
                spent = time.process_time() - began
                print(f"{number:,} schedules, {failed} wrong, {spent:.0f} CPU seconds", flush=True)
        print(", ".join(f"{kind} {count:,}" for kind, count in kinds.most_common()))
    return min(1, failed)


if __name__ == "__main__":
    sys.exit(main())
