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
from dagster_project.cli.servers import bootstrap_servers, engine_url, registry_url
from dagster_project.settings import Settings
from spark.engine.dropped_records import dropped_records as find_late
from spark.engine.offsets import KafkaUnavailable, TopicMissing
from spark.engine.status import observe, statuses, with_arrival_time, with_counts
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
@click.option("--positions", is_flag=True, help="Also show what each table was computed from.")
@json_option
def status(names: tuple[str, ...], positions: bool, as_json: bool) -> None:
    """Show the state of every landing and table: version, lag, quarantine, and what it waits for. Starts no server.

    lag: records of its topics that it does not have yet. records: landed records. quarantine: landed records that did
    not decode; no table has them. dropped: records of a stream that the table left out, because they were late or had
    no key. gaps: offsets that the topic had deleted before they were landed.
    """
    tidetable = Settings.from_environment().tidetable()
    engine, broker, registry = engine_url(tidetable), bootstrap_servers(tidetable), registry_url(tidetable)
    lakehouse, kafka = tidetable.lakehouse, tidetable.listening()
    by_topology: dict[str, Json] = {}
    lines: list[str | Grid] = [f"engine  {engine or 'down'}", f"broker  {broker or 'down'}"]
    if registry is not None:
        lines.append(f"registry  {registry}")
    broken: list[BrokenTopology] = []
    for topology in [find_topology(name) for name in names] or load_topologies(broken):
        uncounted, no_lag = _observe(lakehouse, kafka, topology)
        counted = with_counts(lakehouse, topology, uncounted)
        by_topology[topology.name] = [render.status_json(table_status) for table_status in counted]
        lines += render.status_grid(topology.name, counted, positions)
        if no_lag is not None:
            lines.append(escape(no_lag))
    left_out: list[Json] = [str(error) for error in broken]
    result: Json = {
        "engine": engine,
        "broker": broker,
        "registry": registry,
        "topologies": by_topology,
        "left_out": left_out,
    }
    print_result(as_json, result, *lines)
    if broken:
        raise click.exceptions.Exit(1)


def _observe(lakehouse: Lakehouse, kafka: Kafka | None, topology: Topology) -> tuple[list[TableStatus], str | None]:
    """The status of every landing and table; without an answer of Kafka, with the reason why no lag is known."""
    no_lag = None
    if kafka is not None:
        try:
            return with_arrival_time(kafka, topology, observe(lakehouse, kafka, topology)[1]), None
        except (KafkaUnavailable, TopicMissing) as error:
            no_lag = str(error)
    return statuses(lakehouse, topology, None), no_lag


@click.command()
@topology_or_table_argument
@click.option("--graph", is_flag=True, help="Print a Mermaid flowchart of the topology.")
@json_option
def describe(name: str, graph: bool, as_json: bool) -> None:
    """Print a topology as Kafka Streams does, or explain one table."""
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
    """List what was deleted before it was read, where on_data_loss="ledger" continued without it. Starts no server."""
    topology, part = find(name, topic_and_table_names)
    every = statuses(Settings.from_environment().tidetable().lakehouse, topology, None)
    chosen = [status for status in every if part is None or status.table.removeprefix(LANDING) == part]
    has_gaps = any(status.gaps for status in chosen)
    grid = render.gaps_grid(topology.name, chosen) if has_gaps else f"{name} has no gaps"
    errors = [render.failure_line(status.log_error) for status in chosen if status.log_error is not None]
    first_offsets = render.first_offset_lines(topology.name, chosen)
    print_result(as_json, render.gaps_json(chosen), grid, *first_offsets, *errors)
    if errors:
        raise click.exceptions.Exit(1)


@click.command()
@table_argument
@click.option(
    "--limit", type=POSITIVE, default=20, show_default=True, help="Maximum number of records; the newest are listed."
)
@json_option
def late(name: str, limit: int, as_json: bool) -> None:
    """List the records of a stream that a table dropped: late ones, and those without a key, value or time it needs."""
    topology, table = find_table(name)
    with progress.status(f"replaying the commits of {name}"):
        dropped = find_late(Settings.from_environment().ports(), topology, table, limit)
    lines: list[str | Grid] = [*render.older_lines(dropped)]
    if dropped.records:
        lines.insert(0, render.late_grid(dropped.records))
    if not lines:
        lines.append(f"{name} dropped no records" if dropped.computed else f"{name} was never computed")
    print_result(as_json, render.to_json(dropped), *lines)
