"""Commands on records that did not decode."""

from __future__ import annotations

import click

from dagster_project import render
from dagster_project.cli.arguments import POSITIVE, json_option, topology_or_topic_argument
from dagster_project.cli.names import find, sources, topic_names
from dagster_project.cli.output import print_result, progress
from dagster_project.cli.runs import new_run_id
from dagster_project.settings import Settings
from spark.engine.quarantine import redecode, undecodable


@click.group()
def quarantine() -> None:
    """Records that did not decode. They stay in their landing; no table has them."""


@quarantine.command("list")
@topology_or_topic_argument
@click.option(
    "--limit",
    type=POSITIVE,
    default=20,
    show_default=True,
    help="Maximum number of records of each topic; the newest are listed.",
)
@json_option
def list_(name: str, limit: int, as_json: bool) -> None:
    """List the records with the reason and their raw bytes."""
    topology, topic = find(name, topic_names)
    ports = Settings.from_environment().ports()
    with progress.status(f"reading the quarantine of {name}"):
        records = [
            record for source in sources(topology, topic) for record in undecodable(ports, topology, source, limit)
        ]
    shown = render.quarantine_grid(records) if records else f"{name} has no records in quarantine"
    print_result(as_json, render.to_json(records), shown)


@quarantine.command()
@topology_or_topic_argument
@json_option
def replay(name: str, as_json: bool) -> None:
    """Decode the records again by the current declaration of their topic. The next tick adds those that decode."""
    topology, topic = find(name, topic_names)
    ports = Settings.from_environment().ports()
    with progress.status(f"decoding the quarantine of {name}"):
        redecoded = [redecode(ports, topology, source, new_run_id()) for source in sources(topology, topic)]
    print_result(as_json, render.to_json(redecoded), *map(render.result_line, redecoded))
