"""Commands before the first tick: a new project, the lake's servers, and topics."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.markup import escape

from dagster_project import project
from dagster_project.cli.arguments import POSITIVE, json_option, topology_argument
from dagster_project.cli.names import find_topology
from dagster_project.cli.output import print_result, progress
from dagster_project.cli.servers import bootstrap_servers, engine_url
from dagster_project.settings import Settings
from resources.embedded_kafka import EmbeddedKafka

if TYPE_CHECKING:
    from dagster_project.render import Json


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@json_option
def init(folder: Path, as_json: bool) -> None:
    """Write a project into a folder that is new or empty.

    It has a topology with its test and its expectations, settings, a workspace for Dagster, a Makefile and CI.
    """
    files = project.write(folder)
    requirement = project.requirement()
    lines = [f"wrote   {folder / file}" for file in files]
    if project.is_local(requirement):
        lines.append(f"requirements.txt has {requirement}, which only this machine has: before CI runs, name another")
    lines.append(f"next    make -C {folder} test    tries the topology; make -C {folder} ui shows it in Dagster")
    written: list[Json] = [*files]
    print_result(as_json, {"folder": str(folder), "files": written}, *map(escape, lines))


@click.command()
@json_option
def up(as_json: bool) -> None:
    """Start the lake's engine and broker, unless they run."""
    tidetable = Settings.from_environment().tidetable()
    with progress.status("starting; a cold engine takes some 20 seconds"), ThreadPoolExecutor() as pool:
        starting_engine = pool.submit(lambda: tidetable.engine.start() and engine_url(tidetable))
        starting_broker = pool.submit(lambda: tidetable.ports().kafka.cluster_id())
        engine, cluster, broker = starting_engine.result(), starting_broker.result(), bootstrap_servers(tidetable)
    result: Json = {"engine": engine, "cluster": cluster, "broker": broker}
    print_result(as_json, result, f"engine  {engine}", f"broker  {broker}")


@click.command()
@json_option
def down(as_json: bool) -> None:
    """Stop the lake's engine and broker. Tables and topics stay."""
    tidetable = Settings.from_environment().tidetable()
    with progress.status("stopping"):
        tidetable.engine.stop()
        if isinstance(tidetable.kafka, EmbeddedKafka):
            tidetable.kafka.stop()
    print_result(as_json, {}, "stopped")


@click.group()
def topics() -> None:
    """The topics of a topology: those it reads, and those it publishes to."""


@topics.command()
@topology_argument
@click.option("--partitions", type=POSITIVE, default=1, show_default=True, help="Of each topic that is created.")
@json_option
def create(name: str, partitions: int, as_json: bool) -> None:
    """Create the topics that are not there; those that are stay as they are.

    What is read gets the cluster's own settings. A topic that a table is published to is compacted
    (cleanup.policy=compact), and one that a stream is published to is not.
    """
    topology = find_topology(name)
    kafka = Settings.from_environment().tidetable().cluster()
    configs: dict[str, dict[str, str]] = {source.topic: {} for source in topology.sources}
    for table in topology.tables:
        if table.topic is not None:
            configs[table.topic] = {} if table.plan.is_stream else {"cleanup.policy": "compact"}
    existing = kafka.partitions(configs)
    lines = [f"is there  {topic}, partitions: {count}" for topic, count in sorted(existing.items())]
    created: list[Json] = []
    with progress.status("creating"):
        for topic, config in configs.items():
            if topic not in existing:
                kafka.create_topic(topic, partitions, config)
                created.append(topic)
                lines.append(f"created   {topic}, partitions: {partitions}")
    print_result(as_json, {"created": created, "there": {**existing}}, *lines)
