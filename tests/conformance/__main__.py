"""Ask Kafka Streams itself: compare random worlds live, or record the golden ones."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from resources.engine import Engine
from tests.conformance import golden
from tests.conformance.cases import KINDS, topology, worlds
from tests.conformance.compare import compared, told
from tests.conformance.divergences import divergences
from tests.conformance.divergences import kinds as divergent
from tests.conformance.oracle import Oracle
from tests.conformance.replay import chained
from tests.conformance.shrink import shrunk

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.conformance.cases import Kind, World
    from tests.conformance.compare import Compared

GOLDEN_SEED, GOLDEN_WORLDS = 1, 16


@click.command()
@click.option("--record", is_flag=True, help="Write down what Kafka answers to the golden cases.")
@click.option("--cases", default=500, show_default=True, help="Random worlds of each kind.")
@click.option("--seed", default=0, help="Of the random worlds; a new one by the clock unless given.")
@click.option("--kind", "names", multiple=True, type=click.Choice(list(KINDS)), help="Only these kinds.")
def main(record: bool, cases: int, seed: int, names: tuple[str, ...]) -> None:
    """Compare tables with those of Kafka Streams, record by record."""
    with Oracle() as oracle:
        if record:
            _record(oracle)
        elif not _compare(oracle, [KINDS[name] for name in names or KINDS], cases, seed or int(time.time())):
            sys.exit(1)


def _record(oracle: Oracle) -> None:
    asked = topology(KINDS.values())
    drawn = worlds(asked, GOLDEN_SEED, GOLDEN_WORLDS)
    golden.save("kinds", asked, drawn, oracle.ask(asked, drawn))
    asked, cases = topology(divergent()), [divergence.case for divergence in divergences()]
    golden.save("divergences", asked, cases, oracle.ask(asked, cases))


def _compare(oracle: Oracle, kinds: list[Kind], cases: int, seed: int) -> bool:
    console = Console()
    console.print(f"{cases} worlds of each kind, seed {seed}")
    with tempfile.TemporaryDirectory() as lake:
        engine = Engine(Path(lake), memory="2g", cores="2")
        engine.start()
        try:
            session = engine.session()
            columns = (TextColumn("{task.description:26}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            with Progress(*columns, TextColumn("{task.fields[found]}"), console=console) as progress:
                for kind in kinds:
                    task = progress.add_task(kind.name, total=None, found="asking Kafka")
                    drawn = worlds(topology([kind]), seed, cases)
                    answer = oracle.ask(topology([kind]), drawn)
                    plays = chained(drawn)
                    progress.update(task, total=max(map(len, drawn)), found="")
                    found = compared(
                        session, [kind], drawn, answer, plays, lambda task=task: progress.advance(task)
                    )
                    progress.update(task, found=_summary(found))
                    if found.differences:
                        progress.stop()
                        _explain(console, session, oracle, kind, drawn, found)
                        return False
        finally:
            engine.stop()
    return True


def _summary(found: Compared) -> str:
    known = ", ".join(f"{name} {count}" for name, count in sorted(found.known.items()))
    return f"{found.rows} rows, {len(found.differences)} differences" + (f" ({known})" if known else "")


def _explain(
    console: Console, session: SparkSession, oracle: Oracle, kind: Kind, drawn: list[World], found: Compared
) -> None:
    first = min(found.differences, key=lambda difference: difference.after)
    console.print(f"making world {first.world} small ...")
    world, difference = shrunk(session, oracle, kind, drawn[first.world][: first.after])
    for line in told(world, difference):
        style = {"-": "red", "+": "green"}.get(line[0])
        console.print(line, style=style, highlight=False, markup=False)


main()
