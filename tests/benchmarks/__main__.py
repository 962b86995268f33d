"""`make bench`: every case on real parts, a table to read and JSON to keep."""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from tests.benchmarks import (
    driver,
    formats,
    growing,
    guarantee,
    idle,
    joining,
    landing,
    peers,
    queries,
    recovering,
    streaming,
    suites,
)
from tests.benchmarks.measure import Bench, Row, machine

CASES = {
    "landing": landing.run,
    "joining": joining.run,
    "idle": idle.run,
    "growing": growing.run,
    "streaming": streaming.run,
    "recovering": recovering.run,
    "guarantee": guarantee.run,
    "driver": driver.run,
    "peers": peers.run,
    "suites": suites.run,
    "queries": queries.run,
    "formats": formats.run,
}
OUT = Path("benchmarks-out")


@click.command()
@click.option("--only", type=click.Choice(list(CASES)), multiple=True, help="One case or several; all by default.")
@click.option("--repeat", default=5, show_default=True, help="Turns of each case; the median is reported.")
@click.option("--scale", default=1.0, show_default=True, help="Size of the data, against that of the targets.")
@click.option(
    "--sizes",
    type=int,
    multiple=True,
    default=growing.SIZES,
    show_default=True,
    help="Rows of the left tables in `growing`, one option each, smallest first; the targets want 10000000 as well.",
)
def main(only: tuple[str, ...], repeat: int, scale: float, sizes: tuple[int, ...]) -> None:
    """Measure landing, steps, idle ticks, growth, recovery, guarantee, driver, peers, suites, queries and formats."""
    console = Console()
    with tempfile.TemporaryDirectory(prefix="tidetable-bench-") as lake:
        bench = Bench(Path(lake), repeat, scale, sizes, console)
        rows: list[Row] = []
        before = machine()
        try:
            for case in only or CASES:
                rows += CASES[case](bench)
            rows += bench.memory()
        finally:  # the figures of the cases before one that failed are kept, too
            bench.engine.stop()
            bench.broker.stop()
            if rows:
                _keep(rows, before, scale, console)


def _keep(rows: list[Row], before: dict[str, str | int], scale: float, console: Console) -> None:
    """Write the rows to a file, and print them."""
    OUT.mkdir(exist_ok=True)
    file = OUT / f"{datetime.now(UTC):%Y%m%dT%H%M%S}.json"
    file.write_text(json.dumps({"machine": before, "scale": scale, "rows": [asdict(row) for row in rows]}, indent=1))
    console.print(printed(rows, before))
    console.print(f"kept as {file}")


def printed(rows: list[Row], on: dict[str, str | int]) -> Table:
    """The rows as a table."""
    table = Table(title=", ".join(f"{name} {value}" for name, value in on.items()))
    for name in ("what", "median", "least", "greatest", "unit", "turns", "target"):
        table.add_column(name, justify="left" if name in ("what", "unit") else "right")
    for row in rows:
        colour = {True: "green", False: "red", None: ""}[row.holds]
        figures = [
            f"{value:,.0f}" if value >= 100 else f"{value:.2f}" for value in (row.median, row.least, row.greatest)
        ]
        table.add_row(row.what, *figures, row.unit, str(row.turns), row.limit, style=colour)
    return table


if __name__ == "__main__":
    main()
