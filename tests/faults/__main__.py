"""`make faults`: play the kill matrix on servers of its own, print the scoreboard, and keep it as a page."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from tests.faults.judge import Verdict
from tests.faults.matrix import ERRANDS, FAULTS, Cell, cells, sample
from tests.faults.play import Result, own_servers
from tests.faults.scoreboard import Score, page, told

BATCH = 72  # cells that share the death of a server, and its cold start
PUBLISHERS = 8  # of them, at most, that publish what one seed drew: each needs a world of its own
PAGE = Path("docs/reliability.md")
RESULTS = Path("benchmarks-out/faults.jsonl")
JUDGED = ("assets", "resources", "spark", "tests/faults")  # whose change makes results those of another program
SEEDS = 3  # the worlds of the whole matrix

SECONDS = 3.0  # of a cell, measured on two quiet cores
COLD = {"engine": 150.0, "broker": 30.0, "all": 120.0}  # seconds that a batch pays for a server's start and its warm-up


def batches(chosen: Sequence[Cell]) -> list[list[Cell]]:
    """Cells to be played together: of one fault, and not too many that publish."""
    found: list[list[Cell]] = []
    for fault in FAULTS:
        open_: list[list[Cell]] = []
        for cell in (cell for cell in chosen if cell.fault == fault):
            batch = next((batch for batch in open_ if len(batch) < BATCH and _together(cell, batch)), None)
            if batch is None:
                open_.append(batch := [])
            batch.append(cell)
        found += open_
    return found


def _together(cell: Cell, batch: Sequence[Cell]) -> bool:
    return not cell.publishes or sum(other.publishes and other.seed == cell.seed for other in batch) < PUBLISHERS


@click.command()
@click.option(
    "--only", type=click.Choice(sorted({one.verb for one in ERRANDS.values()})), multiple=True, help="A verb."
)
@click.option("--fault", type=click.Choice(list(FAULTS)), multiple=True, help="A fault.")
@click.option("--seeds", default=SEEDS, show_default=True, help="How many worlds.")
@click.option("--sample", "every", default=1, show_default=True, help="Every so many cells of each verb and fault.")
@click.option("--write", is_flag=True, help=f"Write {PAGE} also of a part.")
@click.option("--resume", is_flag=True, help="Add to what an earlier run played of the same program, and go on.")
def main(only: tuple[str, ...], fault: tuple[str, ...], seeds: int, every: int, write: bool, resume: bool) -> None:
    """Kill client, engine and broker at every boundary, wake zombies, run twice, retry; and judge what is left."""
    console = Console()
    whole = cells(range(1, max(seeds, SEEDS) + 1))
    picked = [one for one in whole if one.seed <= seeds and (not only or ERRANDS[one.errand].verb in only)]
    chosen = sample([cell for cell in picked if not fault or cell.fault in fault], every)
    program = _program()
    results = [*_kept(program)] if resume else []
    has = {one.cell for one in results}
    left = [cell for cell in chosen if cell not in has]
    found = batches(left)
    estimate = SECONDS * len(left) + sum(COLD.get(batch[0].fault, 0.0) for batch in found)
    told_of = f"{len(left):,} cells of {len(whole):,}" + (f", beside {len(has):,} that were played" if has else "")
    console.print(f"{told_of}: some {estimate / 60:.0f} minutes on two quiet cores")
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("a" if has else "w") as kept:
        for result in _played(found, console):
            kept.write(json.dumps({"program": program, **asdict(result)}) + "\n")
            kept.flush()
            results.append(result)
    score = Score(results, whole, " ".join(["make faults", *_arguments()]))
    console.print(told(score))
    for result in score.red:
        console.print(f"[red]{result.cell}[/red]: {result.verdict} {result.wrong}\n  {'; '.join(result.said)}")
    if write or len(results) == len(whole):
        PAGE.write_text(page(score))
        console.print(f"written to {PAGE}")
    sys.exit(1 if score.red else 0)


def _program() -> str:
    """What is judged, and by whom, as a hash: results of another one tell nothing of this one."""
    files = sorted(file for folder in JUDGED for file in Path(folder).rglob("*.py"))
    return sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def _kept(program: str) -> Iterator[Result]:
    """What earlier runs played of a program."""
    for line in RESULTS.read_text().splitlines() if RESULTS.exists() else ():
        told = json.loads(line)
        if told.pop("program") == program:
            cell, verdict, said = Cell(**told.pop("cell")), Verdict(**told.pop("verdict")), tuple(told.pop("said"))
            yield Result(cell, verdict, said=said, **told)


def _played(found: Sequence[Sequence[Cell]], console: Console) -> Iterator[Result]:
    folder = Path(tempfile.mkdtemp(prefix="tidetable-faults-"))
    shown = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    try:
        with (
            own_servers(folder, memory="4g") as (playground, worlds),
            Progress(*shown, TimeElapsedColumn(), TimeRemainingColumn(), console=console) as progress,
        ):
            task = progress.add_task("", total=sum(map(len, found)))
            for batch in found:
                progress.update(task, description=batch[0].fault)
                for result in playground.play(batch, worlds):
                    yield result
                    progress.advance(task)
                    if not result.holds:
                        progress.console.print(f"[red]{result.cell}[/red]: {result.verdict} {result.wrong}")
    except KeyboardInterrupt:
        console.print("interrupted: what was played so far")


def _arguments() -> list[str]:
    return [f'ARGS="{" ".join(sys.argv[1:])}"'] if sys.argv[1:] else []


if __name__ == "__main__":
    main()
