"""The nightly job: it compacts small files, and deletes Dagster's old runs.

A run is deleted after some days, because Dagster stores some 0.3 MB for a tick of ten tables. The tables' commits are
the record of the data; Dagster's runs only show it.
"""

# No `from __future__ import annotations`: Dagster reads the annotations of an op as objects.
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg

from assets.specs import TOPOLOGY_TAG
from resources.tidetable import Tidetable
from spark.engine.compact import compact
from spark.engine.errors import EngineError
from spark.topology import Topology

NIGHTLY = "17 3 * * *"  # once a day, at a minute when little else starts
PAGE = 500  # runs that are read and deleted in one round
# The number of days after which runs are deleted.
RETENTION = {
    "succeeded_days": dg.Field(float, default_value=7.0),
    "failed_days": dg.Field(float, default_value=30.0),
}


def maintenance_job(topologies: Sequence[Topology]) -> dg.JobDefinition:
    """The job that compacts these topologies' tables, and deletes old runs of their jobs. Other runs stay."""
    names = [topology.name for topology in topologies]

    @dg.op(config_schema=RETENTION, description="Deletes old runs, and the files of them that Dagster does not delete.")
    def delete_old_runs(context: dg.OpExecutionContext) -> None:
        now = datetime.now(UTC)
        succeeded, failed = dg.DagsterRunStatus.SUCCESS, [dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]
        count = delete_runs(
            context.instance, names, [succeeded], now - timedelta(days=context.op_config["succeeded_days"])
        )
        count += delete_runs(context.instance, names, failed, now - timedelta(days=context.op_config["failed_days"]))
        context.log.info("%d runs deleted", count)

    @dg.op(description="Compacts the small files of tables and landings. Needs the engine.")
    def compact_tables(context: dg.OpExecutionContext, tidetable: dg.ResourceParam[Tidetable]) -> None:
        if tidetable.engine.remote is None and tidetable.engine.running() is None:
            context.log.info("the lake's engine does not run: nothing is compacted")
            return
        failed = []
        for topology in topologies:
            for name in topology.stored:
                try:
                    done = compact(tidetable.engine, tidetable.lakehouse, topology, name)
                except EngineError as error:  # the other tables are compacted all the same
                    failed.append(str(error))
                else:
                    context.log.info("%s: %s files compacted to %s", done.table, done.removed, done.added)
        if failed:
            raise dg.Failure("\n".join(failed), allow_retries=False)

    @dg.job(
        name="maintenance",
        description="Compact tables; delete successful runs after a week, and failed runs after a month.",
        executor_def=dg.in_process_executor,
    )
    def maintenance() -> None:
        delete_old_runs()
        compact_tables()

    return maintenance


def maintenance_schedule(job: dg.JobDefinition) -> dg.ScheduleDefinition:
    """The nightly schedule. It is on from the start: otherwise the runs of the sensor would accumulate."""
    return dg.ScheduleDefinition(
        name="maintenance_schedule",
        job=job,
        cron_schedule=NIGHTLY,
        default_status=dg.DefaultScheduleStatus.RUNNING,
    )


def delete_runs(
    instance: dg.DagsterInstance, topologies: Sequence[str], statuses: Sequence[dg.DagsterRunStatus], until: datetime
) -> int:
    """Delete the runs of topologies that were created before `until`. Returns their number."""
    old = dg.RunsFilter(tags={TOPOLOGY_TAG: list(topologies)}, statuses=statuses, created_before=until)
    count = 0
    while records := instance.get_run_records(old, limit=PAGE):
        for record in records:
            instance.delete_run(record.dagster_run.run_id)
            _unlink(instance, record.dagster_run.run_id)
        count += len(records)
    return count


def _unlink(instance: dg.DagsterInstance, run_id: str) -> None:
    """Delete the database file of a run: Dagster's sqlite storage has one per run, and does not delete it with the run.

    The shared databases need no VACUUM: sqlite uses their freed pages again, so they stop growing.
    """
    history = Path(instance.root_directory, "history", "runs")
    for file in history.glob(f"{run_id}.db*"):
        file.unlink()
