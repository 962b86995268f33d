"""The command `tidetable`: the functions that Dagster's jobs call, without Dagster."""

from __future__ import annotations

import click

from dagster_project.cli import dataflow, inspection, maintenance, quarantine, queries, schemas, service, setup
from dagster_project.cli.reporting import ErrorReporting


@click.group(cls=ErrorReporting, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.option("--debug", is_flag=True, help="Show the tracebacks of errors, Python's and Spark's.")
def main(debug: bool) -> None:
    """Land Kafka topics in Delta tables, and keep the tables that are computed from them correct.

    TOPOLOGY is the name of a topology's builder, such as shop. Its tables are TOPOLOGY.TABLE, such as shop.orders.

    Settings are environment variables (TIDETABLE_LAKE, TIDETABLE_KAFKA, SPARK_REMOTE, TIDETABLE_ENGINE_MEMORY,
    TIDETABLE_TOPOLOGIES, TIDETABLE_EXPECTATIONS, TIDETABLE_CADENCE, TIDETABLE_SCHEMA_REGISTRY_URL and others of the
    registry, TIDETABLE_SERVE_TOKEN and others of `serve`), or keys of tidetable.toml, or of [tool.tidetable] in
    pyproject.toml, in the working directory or a folder above it. `tidetable init DIR` writes a project that has them.
    """


for _command in (
    *(setup.init, setup.up, setup.down, setup.topics),
    *(inspection.status, inspection.describe, inspection.gaps, inspection.late),
    *(dataflow.land, dataflow.step, dataflow.run, dataflow.publish),
    *(maintenance.audit, maintenance.check, maintenance.rebuild, maintenance.restore, maintenance.compact),
    *(queries.get, queries.key_range, queries.prefix, queries.scan, queries.history, service.serve),
    quarantine.quarantine,
    schemas.schema,
):
    main.add_command(_command)
