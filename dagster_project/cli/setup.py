"""Commands before the first tick: a new project, the lake's servers, and topics."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.markup import escape

from dagster_project import project
from dagster_project.cli.arguments import POSITIVE, json_option
from dagster_project.cli.names import find_topology, load_topologies
from dagster_project.cli.output import print_result, progress
from dagster_project.cli.servers import bootstrap_servers, engine_url, registry_url
from dagster_project.settings import Settings
from resources.embedded_kafka import EmbeddedKafka
from resources.embedded_registry import EmbeddedRegistry

if TYPE_CHECKING:
    from dagster_project.render import Json


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@json_option
def init(folder: Path, as_json: bool) -> None:
    """Write a new project into a folder; files that are there are not changed.

    The project has a topology with a test and expectations, settings, Dagster's workspace, a Makefile and a CI file.
    """
    files = project.write(folder)
    requirement = project.requirement()
    lines = [f"wrote   {folder / file}" for file in files]
    if project.is_local(requirement):
        lines.append(f"requirements.txt names {requirement}, which only this machine has: change it before CI runs")
    lines.append(f"next    make -C {folder} test    runs the test; make -C {folder} ui shows the topology in Dagster")
    written: list[Json] = [*files]
    print_result(as_json, {"folder": str(folder), "files": written}, *map(escape, lines))


@click.command()
@click.option("--registry", "with_registry", is_flag=True, help="Start a schema registry of the lake's own, too.")
@json_option
def up(with_registry: bool, as_json: bool) -> None:
    """Start the lake's engine and broker if they do not run, and its schema registry if it was ever asked for.

    The first --registry fetches the registry: 142 MB.
    """
    tidetable = Settings.from_environment().tidetable()
    own = tidetable.registry
    if with_registry and not isinstance(own, EmbeddedRegistry):
        raise click.UsageError(
            "--registry starts a registry of the lake's own, and the settings name another one, or no local lake"
        )
    with (
        progress.status("starting engine and broker; the first start takes about 20 seconds"),
        ThreadPoolExecutor() as pool,
    ):
        starting_engine = pool.submit(lambda: tidetable.engine.start() and engine_url(tidetable))
        starting_broker = pool.submit(lambda: tidetable.ports().kafka.cluster_id())
        if isinstance(own, EmbeddedRegistry) and (with_registry or own.exists):
            pool.submit(own.start).result()
        engine, cluster, broker = starting_engine.result(), starting_broker.result(), bootstrap_servers(tidetable)
    registry = registry_url(tidetable)
    result: Json = {"engine": engine, "cluster": cluster, "broker": broker, "registry": registry}
    lines = [f"engine  {engine}", f"broker  {broker}"] + ([f"registry  {registry}"] if registry else [])
    print_result(as_json, result, *lines)


@click.command()
@json_option
def down(as_json: bool) -> None:
    """Stop the lake's engine, broker and schema registry. Tables, topics and schemas remain."""
    tidetable = Settings.from_environment().tidetable()
    with progress.status("stopping the servers"):
        tidetable.engine.stop()
        if isinstance(tidetable.kafka, EmbeddedKafka):
            tidetable.kafka.stop()
        if isinstance(tidetable.registry, EmbeddedRegistry) and tidetable.registry.exists:
            tidetable.registry.stop()
    print_result(as_json, {}, "stopped the servers of the lake")


@click.group()
def topics() -> None:
    """The topics that a topology reads, and those that it publishes to."""


@topics.command()
@click.argument("name", metavar="[TOPOLOGY]", required=False)
@click.option(
    "--partitions", type=POSITIVE, default=1, show_default=True, help="Number of partitions of each new topic."
)
@json_option
def create(name: str | None, partitions: int, as_json: bool) -> None:
    """Create the topics of a topology that do not exist; without TOPOLOGY, those of all. Others are not changed.

    Topics that are read get the cluster's default settings. The topic of a published table is compacted
    (cleanup.policy=compact); the topic of a published stream is not.
    """
    configs: dict[str, dict[str, str]] = {}
    for topology in load_topologies() if name is None else (find_topology(name),):
        configs |= {source.topic: {} for source in topology.sources if source.topic not in configs}
        for table in topology.tables:
            if table.topic is not None:
                configs[table.topic] = {} if table.plan.is_stream else {"cleanup.policy": "compact"}
    kafka = Settings.from_environment().tidetable().cluster()
    existing = kafka.partitions(configs)
    lines = [f"exists   {topic}, partitions: {count}" for topic, count in sorted(existing.items())]
    created: list[Json] = []
    with progress.status("creating topics"):
        for topic, config in configs.items():
            if topic not in existing:
                kafka.create_topic(topic, partitions, config)
                created.append(topic)
                lines.append(f"created  {topic}, partitions: {partitions}")
    print_result(as_json, {"created": created, "there": {**existing}}, *lines)
