"""Commands that bring tables and topics up to date: landing, stepping, ticking and publishing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from dagster_project import render
from dagster_project.cli.arguments import (
    Seconds,
    json_option,
    table_argument,
    topology_or_topic_argument,
)
from dagster_project.cli.names import find, find_table, find_topology, sources, topic_names
from dagster_project.cli.output import print_result, progress
from dagster_project.cli.runs import follow as follow_topics
from dagster_project.cli.runs import new_run_id, run_tick
from dagster_project.discover import gates_of
from dagster_project.settings import Settings
from spark.engine import land as landing
from spark.engine import publish as publishing
from spark.engine.rebuild import step_or_rebuild

if TYPE_CHECKING:
    from spark.engine.land import Landed


@click.command()
@topology_or_topic_argument
@json_option
def land(name: str, as_json: bool) -> None:
    """Land topics up to their end offsets. No table is stepped."""
    topology, topic = find(name, topic_names)
    ports = Settings.from_environment().ports()
    cut = landing.capture(ports.kafka, topology)
    with progress.status(f"landing {name}") as status:

        def say(so_far: Landed) -> None:
            status.update(render.result_line(so_far))

        landed = [landing.land(ports, topology, source, cut, new_run_id(), say) for source in sources(topology, topic)]
    print_result(as_json, render.to_json(landed), *map(render.result_line, landed))


@click.command()
@table_argument
@json_option
def step(name: str, as_json: bool) -> None:
    """Step one table to the newest cut that all its inputs have reached. Nothing is landed."""
    topology, table = find_table(name)
    with progress.status(f"stepping {name}"):
        gate = gates_of(topology).get(table.name)
        stepped = step_or_rebuild(Settings.from_environment().ports(), topology, table, new_run_id(), gate)
    print_result(as_json, render.to_json(stepped), render.result_line(stepped))


@click.command()
@click.argument("names", metavar="TOPOLOGY...", nargs=-1, required=True)
@click.option("--follow", is_flag=True, help="Tick whenever a topic has new records, until interrupted.")
@click.option(
    "--interval",
    type=Seconds(min=0.1, max=86_400),
    default=1.0,
    show_default=True,
    help="With --follow: seconds between two checks for new records.",
)
@json_option
def run(names: tuple[str, ...], follow: bool, interval: float, as_json: bool) -> None:
    """Run a tick: land every topic and step every table to one cut, then publish.

    Several topologies tick one after the other, in the order that they are named in: leaders first. With --json each
    tick is a line. --follow takes one topology.
    """
    topologies = [find_topology(name) for name in dict.fromkeys(names)]
    if follow and len(topologies) > 1:
        raise click.UsageError("--follow takes one topology: run a process for each")
    tidetable = Settings.from_environment().tidetable()
    if not follow:
        if not all([run_tick(tidetable, topology, as_json) for topology in topologies]):  # none is left out
            raise click.exceptions.Exit(1)
        return
    try:
        follow_topics(tidetable, topologies[0], interval, as_json)
    except KeyboardInterrupt:
        progress.print(f"stopped {topologies[0].name}; the next run continues from the last commits")


@click.command()
@table_argument
@click.option(
    "--skip-refused", is_flag=True, help="Skip the records that the topic refuses, and count them in its position."
)
@click.option(
    "--repeat",
    is_flag=True,
    help="If the topic may have lost its newest records, send those again that it may have lost.",
)
@json_option
def publish(name: str, skip_refused: bool, repeat: bool, as_json: bool) -> None:
    """Publish one table up to its newest version. Nothing is landed or stepped."""
    topology, table = find_table(name)
    if table.topic is None:
        raise click.UsageError(f'{name} is not published to a topic: append .to("TOPIC") to it, at {table.line}')
    with progress.status(f"publishing {name}") as status:
        published = publishing.publish(
            Settings.from_environment().ports(),
            topology,
            table,
            lambda sent, records: status.update(f"publishing {name}: {records} records, version {sent.version}"),
            skip_refused=skip_refused,
            repeat=repeat,
        )
    lines = [*map(render.skipped_line, published.skipped), render.result_line(published)]
    print_result(as_json, render.to_json(published), *lines)
