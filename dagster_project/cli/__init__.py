"""The command `tidetable`: the functions that Dagster's jobs call, without Dagster."""

from __future__ import annotations

import click

from dagster_project.cli import dataflow, inspection, maintenance, quarantine, setup
from dagster_project.cli.reporting import ErrorReporting


@click.group(cls=ErrorReporting, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.option("--debug", is_flag=True, help="Show where an error was: its traceback, and Spark's own.")
def main(debug: bool) -> None:
    """Kafka topics to always correct Delta tables.

    A TOPOLOGY is one of those in the folders that the settings name, by the name of its builder. Its tables are named
    TOPOLOGY.TABLE, as in shop.orders.

    Settings are environment variables (TIDETABLE_LAKE, TIDETABLE_KAFKA, SPARK_REMOTE, TIDETABLE_ENGINE_MEMORY,
    TIDETABLE_TOPOLOGIES, TIDETABLE_EXPECTATIONS), or keys of tidetable.toml, or of [tool.tidetable] in pyproject.toml,
    in the working directory or above it. `tidetable init DIR` writes a project with all of it.
    """


for _command in (
    *(setup.init, setup.up, setup.down, setup.topics),
    *(inspection.status, inspection.describe, inspection.gaps, inspection.late),
    *(dataflow.land, dataflow.step, dataflow.run, dataflow.publish),
    *(maintenance.audit, maintenance.check, maintenance.rebuild, maintenance.restore, maintenance.compact),
    quarantine.quarantine,
):
    main.add_command(_command)
