"""Ticks by the clock, for who wants a fixed cadence instead of the sensor's."""

from __future__ import annotations

import dagster as dg

from assets.specs import tick_name
from spark.topology import Topology

CADENCE = "*/5 * * * *"  # every five minutes


def tick_schedule(topology: Topology) -> dg.ScheduleDefinition:
    """Tick every five minutes, news or not. Off until it is switched on: the sensor leaves it nothing to do."""
    return dg.ScheduleDefinition(
        name=f"{tick_name(topology)}_schedule",
        job_name=tick_name(topology),
        cron_schedule=CADENCE,
        default_status=dg.DefaultScheduleStatus.STOPPED,
        description=f"Tick {topology.name} every five minutes, also when nothing is new.",
    )
