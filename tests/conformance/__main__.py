"""Ask Kafka Streams itself: compare random worlds live, or record the golden ones."""

from __future__ import annotations

import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from resources.engine import Engine
from tests.conformance import golden, streams
from tests.conformance.cases import DIVERGENT, KINDS, LIVE, topology, worlds
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

EVERY = KINDS | LIVE | DIVERGENT | streams.EVERY
GOLDEN_SEED, GOLDEN_WORLDS = 1, 16


@click.command()
@click.option("--record", is_flag=True, help="Write down what Kafka answers to the golden cases.")
@click.option("--cases", default=500, show_default=True, help="Random worlds of each kind.")
@click.option("--seed", type=int, help="Of the random worlds; by the clock if not given.")
@click.option("--kind", "names", multiple=True, type=click.Choice(list(EVERY)), help="Only these kinds.")
def main(record: bool, cases: int, seed: int | None, names: tuple[str, ...]) -> None:
    """Compare tables with those of Kafka Streams, record by record."""
    with Oracle() as oracle:
        if record:
            _record(oracle)
            return
        with tempfile.TemporaryDirectory() as lake:
            engine = Engine(Path(lake), memory="2g", cores="2")
            engine.start()
            try:
                live = Live(oracle, engine.session(), cases, int(time.time()) if seed is None else seed)
                asked = names or (*KINDS, *LIVE, *streams.EVERY)
                equal = all([live.emits(EVERY[n]) if n in streams.EVERY else live.equal(EVERY[n]) for n in asked])
            finally:
                engine.stop()
    sys.exit(0 if equal else 1)


def _record(oracle: Oracle) -> None:
    asked = topology(KINDS.values())
    drawn = worlds(asked, GOLDEN_SEED, GOLDEN_WORLDS)
    golden.save("kinds", asked, drawn, oracle.ask(asked, drawn))
    for run, kinds in streams.RECORDED.items():
        asked = topology(kinds.values())
        drawn = streams.histories(asked, GOLDEN_SEED, GOLDEN_WORLDS)
        golden.save(run, asked, drawn, oracle.ask(asked, drawn))
    asked, cases = topology(divergent()), [divergence.case for divergence in divergences()]
    golden.save("divergences", asked, cases, oracle.ask(asked, cases))


class Live:
    """Random worlds of one kind after the other, played here and in Kafka."""

    def __init__(self, oracle: Oracle, session: SparkSession, cases: int, seed: int) -> None:
        self._oracle, self._session, self._cases, self._seed = oracle, session, cases, seed
        self._console = Console(soft_wrap=True)
        self._console.print(f"{cases} cases of each kind, seed {seed}")

    def equal(self, kind: Kind) -> bool:
        """Whether a kind's tables are Kafka's after every record; if not, the smallest case is shown."""
        began = time.monotonic()
        drawn = worlds(topology([kind]), self._seed, self._cases)
        bar = TextColumn("{task.description:26}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        with Progress(*bar, console=self._console, transient=True, disable=not self._console.is_terminal) as progress:
            task = progress.add_task(kind.name, total=max(map(len, drawn)))
            answer = self._oracle.ask(topology([kind]), drawn)
            advanced = partial(progress.advance, task)
            found = compared(self._session, [kind], drawn, answer, chained(drawn), advanced)
        known = "".join(f"; {count} x {name}" for name, count in sorted(found.known.items()))
        self._console.print(
            f"{kind.name:26}{self._cases} cases, {sum(map(len, drawn))} records, {found.rows} rows compared in "
            f"{time.monotonic() - began:.0f} s, {len(found.differences)} unexplained differences{known}"
        )
        if found.differences:
            self._explain(kind, drawn, found)
        return not found.differences

    def emits(self, kind: Kind) -> bool:
        """Whether a kind's stream emits what Kafka's does; if not, the first history that differs is shown."""
        began = time.monotonic()
        asked = topology([kind])
        drawn = streams.histories(asked, self._seed, self._cases)
        theirs = streams.kafkas(self._oracle.ask(asked, drawn), [kind])[kind.name]
        mine = streams.ours(self._session, [kind], drawn)[kind.name]
        lines = streams.differing(mine, theirs, drawn)
        self._console.print(
            f"{kind.name:26}{self._cases} cases, {sum(map(len, drawn))} records, {theirs.total()} emitted by Kafka in "
            f"{time.monotonic() - began:.0f} s, {'equal' if not lines else 'not equal'}"
        )
        for line in lines:
            self._console.print(line, highlight=False, markup=False)
        return not lines

    def _explain(self, kind: Kind, drawn: list[World], found: Compared) -> None:
        first = min(found.differences, key=lambda difference: difference.after)
        self._console.print(f"case {first.world} differs; the least that does:")
        for line in told(*shrunk(self._session, self._oracle, kind, drawn[first.world], first)):
            style = {"-": "red", "+": "green"}.get(line[0])
            self._console.print(line, style=style, highlight=False, markup=False)


main()
