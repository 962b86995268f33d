"""Commands that verify and correct stored tables: audit, check, rebuild, restore and compact."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from assets.failures import PERMANENT
from dagster_project import render
from dagster_project.cli.arguments import VERSION, json_option, table_argument, topology_or_table_argument
from dagster_project.cli.names import find, find_table, table_names
from dagster_project.cli.output import out, print_result, progress
from dagster_project.cli.runs import new_run_id
from dagster_project.discover import gates_of
from dagster_project.settings import Settings
from spark.engine import audit as auditing
from spark.engine import check as checks
from spark.engine import compact as compaction
from spark.engine import rebuild as rebuilding
from spark.engine import restore as restoring
from spark.engine.errors import EngineError

if TYPE_CHECKING:
    from dagster_project.render import Json


@click.command()
@topology_or_table_argument
@click.option("--version", type=VERSION, help="The version of one table to audit; the newest by default.")
@click.option(
    "--all-versions",
    is_flag=True,
    help="Audit every version that can be computed again, newest first. The others are listed with the reason.",
)
@json_option
def audit(name: str, version: int | None, all_versions: bool, as_json: bool) -> None:
    """Compute tables again from the inputs that their commits name, and compare the rows."""
    topology, table = find(name, table_names)
    if version is not None and (table is None or all_versions):
        raise click.UsageError(
            "--version audits one version of one table: write TOPOLOGY.TABLE, and not --all-versions"
        )
    ports = Settings.from_environment().ports()
    results: list[Json] = []
    failed = False
    for target in topology.tables if table is None else (topology.table(table),):
        with progress.status(f"auditing {target.name}") as status:
            try:
                for audited in (
                    auditing.audits(ports, topology, target)
                    if all_versions
                    else [auditing.audit(ports, topology, target, version)]
                ):
                    results.append(render.audit_json(audited))
                    failed |= isinstance(audited, auditing.Audited) and not audited.holds
                    status.update(f"auditing {target.name}, versions before {audited.version}")
                    if not as_json:
                        out.print(render.audit_lines(audited))
            except EngineError as error:
                if table is not None:
                    raise
                failed = True  # the other tables are audited all the same
                results.append({"table": f"{topology.name}/{target.name}", "holds": None, "error": str(error)})
                if not as_json:
                    out.print(render.failure_line(error))
    if as_json:
        print_result(as_json, results)
    if failed:
        raise click.exceptions.Exit(1)


@click.command()
@topology_or_table_argument
@json_option
def check(name: str, as_json: bool) -> None:
    """Evaluate the expectation suites of tables on all of their rows, and show how many rows fail."""
    topology, table = find(name, table_names)
    gates = gates_of(topology)
    if table is not None and table not in gates:
        raise click.UsageError(f"{name} has no expectation suite: write {name}.json in the folder of expectations")
    ports, run, failed = Settings.from_environment().ports(), new_run_id(), False
    results: list[Json] = []
    for target in gates if table is None else [table]:
        gate = gates[target]
        try:
            with progress.status(f"checking {target}"):
                checked = checks.check(ports, topology, topology.table(target), gate, run)
        except PERMANENT as error:  # the other tables are checked all the same
            failed = True
            results.append(render.check_error_json(f"{topology.name}/{target}", error))
            lines = [render.failure_line(error)]
        else:
            failed = failed or (gate.stored is not None and gate.stored.worst == "critical")
            results.append(render.check_json(checked, gate.stored))
            lines = render.check_lines(checked, gate.stored)
        if not as_json:
            for line in lines:
                out.print(line)
    print_result(as_json, results, *([] if results else [f"no table of {name} has an expectation suite"]))
    if failed:
        raise click.exceptions.Exit(1)


@click.command()
@table_argument
@click.option("--downstream", is_flag=True, help="Then rebuild every table that is computed from it.")
@click.option(
    "--from-rows",
    is_flag=True,
    help="If an input no longer has the changes that the table was computed from, start from the input's current rows.",
)
@json_option
def rebuild(name: str, downstream: bool, from_rows: bool, as_json: bool) -> None:
    """Compute every row of a table again, for example after a changed definition, and write the differences."""
    topology, table = find_table(name)
    ports, run, gates = Settings.from_environment().ports(), new_run_id(), gates_of(topology)
    targets = (table, *topology.downstream(table.name)) if downstream else (table,)
    results: list[Json] = []
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=progress, transient=True) as bar:
        task = bar.add_task("", total=len(targets))
        for target in targets:
            bar.update(task, description=f"rebuilding {target.name}")
            rebuilt = rebuilding.rebuild(ports, topology, target, run, gates.get(target.name), from_rows=from_rows)
            results.append(render.to_json(rebuilt))
            bar.advance(task)
            if not as_json:
                out.print(render.result_line(rebuilt))
    if as_json:
        print_result(as_json, results if downstream else results[0])


@click.command()
@table_argument
@click.option("--version", type=VERSION, help="Restore this version.")
@click.option("--timestamp", type=click.DateTime(), help="Restore the version of this time, in UTC.")
@json_option
def restore(name: str, version: int | None, timestamp: datetime | None, as_json: bool) -> None:
    """Restore a table to an earlier version of itself. The next step continues from there."""
    if (version is None) == (timestamp is None):
        raise click.UsageError("write one of --version and --timestamp, to say what to restore")
    topology, table = find_table(name)
    milliseconds = None if timestamp is None else round(timestamp.replace(tzinfo=UTC).timestamp() * 1000)
    with progress.status(f"restoring {name}"):
        ports = Settings.from_environment().ports()
        restored = restoring.restore(ports, topology, table, new_run_id(), version=version, timestamp=milliseconds)
    print_result(as_json, render.to_json(restored), render.result_line(restored))


@click.command()
@topology_or_table_argument
@json_option
def compact(name: str, as_json: bool) -> None:
    """Rewrite the small files of tables and landings as few large ones, and remove unused files older than a week.

    Versions older than a week can then no longer be audited or restored.
    """
    topology, table = find(name, table_names)
    tidetable = Settings.from_environment().tidetable()
    results: list[Json] = []
    for target in topology.stored if table is None else [table]:
        with progress.status(f"compacting {target}"):
            compacted = compaction.compact(tidetable.engine, tidetable.lakehouse, topology, target)
        results.append(render.to_json(compacted))
        if not as_json:
            out.print(render.result_line(compacted))
    if as_json:
        print_result(as_json, results)
