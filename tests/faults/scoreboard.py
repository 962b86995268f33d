"""What came of a run of the matrix: a table of verbs and faults to look at, and a page to keep."""

from __future__ import annotations

import platform
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from rich.table import Table

from tests.faults.matrix import ERRANDS, FAULTS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.faults.matrix import Cell
    from tests.faults.play import Result

LAST_KILLS = Path("benchmarks-out/kills.txt")


@dataclass(frozen=True)
class Score:
    """The results of a run, of which matrix, and by which command."""

    results: Sequence[Result]
    matrix: Sequence[Cell]
    command: str

    @property
    def red(self) -> list[Result]:
        """What is not as it must be."""
        return [result for result in self.results if not result.holds]

    def count(self, errand: str, fault: str) -> tuple[int, int]:
        """How many cells of an errand and a fault passed, of how many played."""
        played = [one for one in self.results if one.cell.errand == errand and one.cell.fault == fault]
        return sum(one.holds for one in played), len(played)

    @property
    def seconds(self) -> float:
        """How long all cells took."""
        return sum(result.seconds for result in self.results)

    def total(self, of: Callable[[Result], int]) -> int:
        """A figure of all cells."""
        return sum(of(result) for result in self.results)

    @property
    def figures(self) -> dict[str, int]:
        """What must be nought."""
        return {
            "lost": self.total(lambda one: one.verdict.lost),
            "duplicated": self.total(lambda one: one.verdict.duplicated),
            "impossible versions": self.total(lambda one: one.verdict.impossible),
            "offsets that do not equal the data": self.total(lambda one: one.verdict.untrue),
        }


def told(score: Score) -> Table:
    """The scoreboard: cells passed, of those played."""
    figures = ", ".join(f"{name} {count}" for name, count in score.figures.items())
    table = Table(title=f"{len(score.results) - len(score.red)} of {len(score.results)} cells hold: {figures}")
    table.add_column("errand")
    for fault in FAULTS:
        table.add_column(fault, justify="right")
    for errand in ERRANDS:
        counts = [score.count(errand, fault) for fault in FAULTS]
        table.add_row(errand, *(_passed(*count, red=True) for count in counts))
    return table


def _passed(passed: int, played: int, red: bool = False) -> str:
    text = f"{passed}/{played}" if played else ""
    return f"[red]{text}[/red]" if red and passed < played else text


def page(score: Score) -> str:
    """The scoreboard as a page of the documentation."""
    seeds = sorted({one.cell.seed for one in score.results})
    hits = Counter(one.hit for one in score.results if one.hit is not None)
    rows = [
        f"| {name} | {' | '.join(_passed(*score.count(name, fault)) for fault in FAULTS)} |"
        for name in ERRANDS
        if any(one.cell.errand == name for one in score.results)
    ]
    figures = [f"| {name} | {count} |" for name, count in score.figures.items()]
    share = "all of them" if len(score.results) == len(score.matrix) else f"a sample of the {len(score.matrix):,}"
    red = [f"- {one.cell}: {one.verdict}, {one.wrong or 'as it must be otherwise'}" for one in score.red]
    return "\n".join(
        [
            "# Reliability",
            "",
            "Written by `make faults` from what it ran; do not edit it by hand.",
            "",
            f"On {datetime.now(UTC):%Y-%m-%d}, `{score.command}`: {len(score.results):,} cells, {share}, with "
            f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}, in {score.seconds / 60:.0f} "
            f"minutes. **{len(score.results) - len(score.red):,} of {len(score.results):,} hold.**",
            "",
            "| in all cells | |",
            "|---|---:|",
            *figures,
            *(["", "Not as it must be:", "", *red] if red else []),
            "",
            "## What a cell is",
            "",
            "A verb works on tables and topics of its own, on a real engine and a real broker. A process that runs it "
            "is stopped between two of its effects, or while one is under way; then the fault happens, the verb runs "
            "once more, which must be enough, and an oracle judges what is there: it computes in dicts what must be, "
            "reads tables with another reader than the engine and topics as a reader of committed records, audits "
            "every version that came of it, and compares the newest position with the data. The names of the effects, "
            "and the proof that there are no others, are in `tests/faults`.",
            "",
            f"Of {hits.total():,} kills that were to come while an effect was under way, {hits['inside']:,} came "
            f"inside it, {hits['before']:,} before it and {hits['behind']:,} behind it: some effects last "
            "milliseconds, and a server dies once for many cells.",
            "",
            "| fault | |",
            "|---|---|",
            *(f"| {name} | {text} |" for name, text in FAULTS.items()),
            "",
            "## Cells that hold, of those played",
            "",
            f"| | {' | '.join(FAULTS)} |",
            f"|---|{'---:|' * len(FAULTS)}",
            *rows,
            "",
            "An empty cell was not played. Where a fault's victim is not in play, there is nothing to kill: the engine "
            "is in play from when a verb opens its session, the broker while it is landed and published. Between two "
            "places with nothing but reads between them nothing differs but who has read it: those have one seed, "
            "all others three.",
            "",
            *_random_kills(),
            "## What one machine cannot show",
            "",
            "- A network between hosts that parts: engine and broker are processes of one machine.",
            "- The conditional put of an object store: the lake is a local disk, where one engine makes all commits.",
            "- The loss of a machine, a disk or a rack: one broker holds one replica, and what the kernel has taken "
            "survives a kill -9.",
            "",
            "## Run it again",
            "",
            '`make faults` plays the whole matrix with three seeds; `ARGS="--seeds 1 --sample 5"` plays every fifth '
            "cell of each verb and fault with one seed, `--only step --fault engine` some alone. A subset is part of "
            "`make test`.",
            "",
            "Ran on " + ", ".join(f"{name} {value}" for name, value in machine().items()) + ".",
            "",
        ]
    )


def _random_kills() -> list[str]:
    """What the last `make kills` here came to."""
    if not LAST_KILLS.exists():
        return []
    return [
        "## Random kills",
        "",
        "A matrix kills where somebody thought of it. `make kills` kills at random moments, while records are "
        "produced, landed, joined, published, and read back as committed.",
        "",
        f"{LAST_KILLS.read_text()}.",
        "",
    ]


def machine() -> dict[str, str]:
    """Where it ran, and on what."""
    memory = f"{psutil.virtual_memory().total / 2**30:.0f} GB"
    packages = {name: version(name) for name in ("pyspark", "delta-spark", "deltalake", "confluent-kafka", "dagster")}
    return {"Python": platform.python_version(), **packages, "cores": str(psutil.cpu_count()), "memory": memory}
