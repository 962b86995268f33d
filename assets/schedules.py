"""A schedule of ticks at a fixed interval, for users who do not want the sensor's."""

from __future__ import annotations

import dagster as dg

from assets.specs import tick_name
from spark.topology import Topology

CADENCE = "*/5 * * * *"  # every five minutes


def tick_schedule(topology: Topology) -> dg.ScheduleDefinition:
    """A schedule of ticks every five minutes, with or without new records. Off by default: the sensor suffices."""
    return dg.ScheduleDefinition(
        name=f"{tick_name(topology)}_schedule",
        job_name=tick_name(topology),
        cron_schedule=CADENCE,
        default_status=dg.DefaultScheduleStatus.STOPPED,
        description=f"Tick {topology.name} every five minutes, also when nothing is new.",
    )
