"""What Dagster loads: every topology's assets, jobs, sensor and schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import dagster as dg

from assets.factory import assets, tick_job
from assets.maintenance import maintenance_job, maintenance_schedule
from assets.operations import operations
from assets.schedules import tick_schedule
from assets.sensors import broken_sensor, lag_sensor
from assets.suites import BrokenSuite, Suite
from dagster_project.discover import BrokenTopology, suites_of, topologies
from dagster_project.settings import Settings
from resources.tidetable import Tidetable
from spark.topology import Topology


def definitions(
    found: Sequence[Topology],
    tidetable: Tidetable,
    checked: Mapping[str, Suite],
    broken: Sequence[BrokenTopology] = (),
) -> dg.Definitions:
    """Topologies as Dagster sees them. Nothing is started or opened before a run needs it.

    A broken one takes no other down: in its place is a sensor whose every tick fails with what is wrong.
    """
    maintenance = maintenance_job(found)
    return dg.Definitions(
        assets=assets(found, tidetable.lakehouse, checked),
        jobs=[
            *(tick_job(topology, found) for topology in found),
            *(job for topology in found for job in operations(topology, checked)),
            maintenance,
        ],
        sensors=[*map(lag_sensor, found), *(broken_sensor(one.name, str(one)) for one in broken)],
        schedules=[*map(tick_schedule, found), maintenance_schedule(maintenance)],
        resources={"tidetable": tidetable},
        executor=dg.in_process_executor,  # also for what is launched from the UI without a job
    )


def loaded() -> dg.Definitions:
    """What the code location holds: every topology that can be meant, and what is wrong with the others."""
    broken: list[BrokenTopology] = []
    found = topologies(broken.append)
    unread, sound = tuple(broken), []
    checked: dict[str, Suite] = {}
    for topology in found:
        try:
            checked |= suites_of(topology, found, unread)
            sound.append(topology)
        except BrokenSuite as error:
            broken.append(BrokenTopology(topology.name, str(error)))
    for one in broken:
        dg.get_dagster_logger().error("left out: %s", one)
    return definitions(sound, Settings.from_environment().tidetable(), checked, broken)


defs = loaded()
