"""Commands on records that did not decode."""

from __future__ import annotations

from getpass import getuser
from typing import TYPE_CHECKING

import click

from dagster_project import render
from dagster_project.cli.arguments import POSITIVE, json_option, topic_argument, topology_or_topic_argument
from dagster_project.cli.names import find, find_source, sources, topic_names
from dagster_project.cli.output import print_result, progress
from dagster_project.cli.runs import new_run_id
from dagster_project.settings import Settings
from spark.engine.counts import counted
from spark.engine.quarantine import drop as drop_records
from spark.engine.quarantine import raw_record, redecode, undecodable

if TYPE_CHECKING:
    from spark.engine.quarantine import Undecodable

OFFSET = click.IntRange(min=0)


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
    """List the number of records by reason, and the newest records with their raw bytes."""
    topology, topic = find(name, topic_names)
    ports = Settings.from_environment().ports()
    reasons: list[tuple[str, int, str]] = []
    records: list[Undecodable] = []
    with progress.status(f"reading the quarantine of {name}"):
        for source in sources(topology, topic):
            found = counted(ports.lakehouse, topology, source)
            if found is not None and found.reasons:
                reasons += [(source.topic, count, reason) for reason, count in found.reasons.items()]
                records += undecodable(ports, topology, source, limit)
    told: render.Json = {
        "reasons": [{"topic": one, "records": count, "reason": reason} for one, count, reason in reasons],
        "records": render.to_json(records),
    }
    grids = [render.reasons_grid(reasons), "", render.quarantine_grid(records)]
    print_result(as_json, told, *(grids if records else [f"{name} has no records in quarantine"]))


@quarantine.command()
@topic_argument
@click.option("--partition", type=OFFSET, required=True, help="The partition of the record.")
@click.option("--offset", type=OFFSET, required=True, help="The offset of the record.")
@click.option(
    "--bytes",
    "limit",
    type=POSITIVE,
    default=4096,
    show_default=True,
    help="Maximum number of bytes of the key and of the value.",
)
@json_option
def show(name: str, partition: int, offset: int, limit: int, as_json: bool) -> None:
    """Show one record: the reason, and its key and value in hexadecimal digits and as text."""
    topology, source = find_source(name)
    record = raw_record(Settings.from_environment().ports(), topology, source, partition, offset)
    print_result(as_json, render.to_json(record), *render.raw_record_lines(record, limit))


@quarantine.command()
@topic_argument
@click.option("--partition", type=OFFSET, help="The partition of the records.")
@click.option("--offset", "offsets", type=OFFSET, multiple=True, help="The offset of a record; may be repeated.")
@click.option("--error", help="All records that are in quarantine for this reason, as `list` prints it.")
@click.option("--reason", required=True, help="Why you drop them: the commit holds it, with your user name.")
@json_option
def drop(
    name: str, partition: int | None, offsets: tuple[int, ...], error: str | None, reason: str, as_json: bool
) -> None:
    """Drop records from quarantine for good. They stay counted, by the reason that you give."""
    chosen: dict[int, tuple[int, ...]] | str
    if error is not None and partition is None and not offsets:
        chosen = error
    elif error is None and partition is not None and offsets:
        chosen = {partition: offsets}
    else:
        raise click.UsageError("choose the records by --partition and --offset, or by --error")
    topology, source = find_source(name)
    ports = Settings.from_environment().ports()
    with progress.status(f"dropping records from the quarantine of {name}"):
        done = drop_records(ports, topology, source, chosen, reason, getuser(), new_run_id())
    print_result(as_json, render.to_json(done), render.result_line(done))


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
