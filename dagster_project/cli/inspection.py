"""Commands that show state and change nothing: status, definitions, gaps and dropped records."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from rich.markup import escape

from dagster_project import render
from dagster_project.cli.arguments import (
    POSITIVE,
    any_argument,
    json_option,
    table_argument,
    topology_or_table_argument,
)
from dagster_project.cli.names import (
    find,
    find_table,
    find_topology,
    load_topologies,
    table_names,
    topic_and_table_names,
)
from dagster_project.cli.output import print_result, progress
from dagster_project.cli.servers import bootstrap_servers, engine_url
from dagster_project.settings import Settings
from spark.engine.dropped_records import dropped_records as find_late
from spark.engine.offsets import KafkaUnavailable, TopicMissing
from spark.engine.status import observe, statuses, with_counts
from spark.topology.nodes import LANDING

if TYPE_CHECKING:
    from rich.table import Table as Grid

    from dagster_project.discover import BrokenTopology
    from dagster_project.render import Json
    from resources.kafka import Kafka
    from resources.lakehouse import Lakehouse
    from spark.engine.status import TableStatus
    from spark.topology import Topology


@click.command()
@click.argument("names", metavar="[TOPOLOGY]...", nargs=-1)
@click.option("--positions", is_flag=True, help="And what each table was computed from.")
@json_option
def status(names: tuple[str, ...], positions: bool, as_json: bool) -> None:
    """Show where every table stands: version, lag, records in quarantine, what it waits for. Starts nothing.

    lag: records of its topics that it does not have. records: all that have landed; those in quarantine are no rows of
    any table. dropped: records of a stream that had no part in it, late or without a key. gaps: offsets that were gone
    before they were landed.
    """
    tidetable = Settings.from_environment().tidetable()
    engine, broker = engine_url(tidetable), bootstrap_servers(tidetable)
    lakehouse, kafka = tidetable.lakehouse, tidetable.listening()
    by_topology: dict[str, Json] = {}
    lines: list[str | Grid] = [f"engine  {engine or 'down'}", f"broker  {broker or 'down'}"]
    broken: list[BrokenTopology] = []
    for topology in [find_topology(name) for name in names] or load_topologies(broken):
        uncounted, no_lag = _observe(lakehouse, kafka, topology)
        counted = with_counts(lakehouse, topology, uncounted)
        by_topology[topology.name] = [render.status_json(table_status) for table_status in counted]
        lines += render.status_grid(topology.name, counted, positions)
        if no_lag is not None:
            lines.append(escape(no_lag))
    left_out: list[Json] = [str(error) for error in broken]
    result: Json = {"engine": engine, "broker": broker, "topologies": by_topology, "left_out": left_out}
    print_result(as_json, result, *lines)
    if broken:
        raise click.exceptions.Exit(1)


def _observe(lakehouse: Lakehouse, kafka: Kafka | None, topology: Topology) -> tuple[list[TableStatus], str | None]:
    """The status of every landing and table; without an answer of Kafka, with the reason why no lag is known."""
    no_lag = None
    if kafka is not None:
        try:
            return observe(lakehouse, kafka, topology)[1], None
        except (KafkaUnavailable, TopicMissing) as error:
            no_lag = str(error)
    return statuses(lakehouse, topology, None), no_lag


@click.command()
@topology_or_table_argument
@click.option("--graph", is_flag=True, help="As a Mermaid flowchart.")
@json_option
def describe(name: str, graph: bool, as_json: bool) -> None:
    """Print a topology as Kafka Streams would, or one table in words."""
    topology, table = find(name, table_names)
    if graph and table is not None:
        raise click.UsageError(f"--graph draws a whole topology: write `tidetable describe {topology.name} --graph`")
    text = topology.graph() if graph else topology.describe(table)
    is_whole = not graph and table is None
    print_result(as_json, render.to_json(topology.to_dict()) if is_whole else {"text": text}, escape(text.rstrip()))


@click.command()
@any_argument
@json_option
def gaps(name: str, as_json: bool) -> None:
    """List what was gone before it was read, where on_data_loss="ledger" went on without it. Starts nothing."""
    topology, part = find(name, topic_and_table_names)
    every = statuses(Settings.from_environment().tidetable().lakehouse, topology, None)
    chosen = [status for status in every if part is None or status.table.removeprefix(LANDING) == part]
    has_gaps = any(status.gaps for status in chosen)
    grid = render.gaps_grid(topology.name, chosen) if has_gaps else "no gaps in what has landed"
    errors = [render.failure_line(status.log_error) for status in chosen if status.log_error is not None]
    first_offsets = render.first_offset_lines(topology.name, chosen)
    print_result(as_json, render.gaps_json(chosen), grid, *first_offsets, *errors)
    if errors:
        raise click.exceptions.Exit(1)


@click.command()
@table_argument
@click.option("--limit", type=POSITIVE, default=20, show_default=True, help="The newest so many.")
@json_option
def late(name: str, limit: int, as_json: bool) -> None:
    """List records of a stream that a table left out: late, or without the key, value or timestamp it needs."""
    topology, table = find_table(name)
    with progress.status("replaying"):
        dropped = find_late(Settings.from_environment().ports(), topology, table, limit)
    lines: list[str | Grid] = [*render.older_lines(dropped)]
    if dropped.records:
        lines.insert(0, render.late_grid(dropped.records))
    if not lines:
        lines.append("no record was dropped" if dropped.computed else f"{name} was never computed")
    print_result(as_json, render.to_json(dropped), *lines)
