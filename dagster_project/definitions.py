"""What Dagster loads: every topology's assets, jobs, sensor and schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import dagster as dg

from assets.factory import assets, tick_job
from assets.maintenance import maintenance_job, maintenance_schedule
from assets.operations import operations
from assets.schedules import tick_schedule
from assets.sensors import lag_sensor
from assets.suites import Suite, suites
from dagster_project.discover import topologies
from dagster_project.settings import Settings
from resources.tidetable import Tidetable
from spark.topology import Topology


def definitions(found: Sequence[Topology], tidetable: Tidetable, checked: Mapping[str, Suite]) -> dg.Definitions:
    """Topologies as Dagster sees them. Nothing is started or opened before a run needs it."""
    maintenance = maintenance_job(found)
    return dg.Definitions(
        assets=assets(found, tidetable.lakehouse, checked),
        jobs=[
            *(tick_job(topology, found) for topology in found),
            *(job for topology in found for job in operations(topology, checked)),
            maintenance,
        ],
        sensors=[*map(lag_sensor, found)],
        schedules=[*map(tick_schedule, found), maintenance_schedule(maintenance)],
        resources={"tidetable": tidetable},
        executor=dg.in_process_executor,  # also for what is launched from the UI without a job
    )


_topologies = topologies()
defs = definitions(_topologies, Settings.from_environment().tidetable(), suites(_topologies))
