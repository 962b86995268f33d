"""A schedule of ticks at fixed times, for users who do not want the sensor's."""

from __future__ import annotations

import dagster as dg

from assets.specs import tick_name
from spark.topology import Topology


def tick_schedule(topology: Topology, cadence: str) -> dg.ScheduleDefinition:
    """A schedule of ticks at the times of a cron expression in UTC, with or without new records.

    It is off by default: the sensor suffices.

    Raises:
        DagsterInvalidDefinitionError: `cadence` is not a cron expression.
    """
    return dg.ScheduleDefinition(
        name=f"{tick_name(topology)}_schedule",
        job_name=tick_name(topology),
        cron_schedule=cadence,
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.STOPPED,
        description=f"Tick {topology.name} at {cadence} (cron, UTC), also when nothing is new.",
    )
