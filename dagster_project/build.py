"""Dagster's definitions of topologies: assets, jobs, sensors and schedules, and the one resource they use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import dagster as dg

from assets.factory import assets, conflicts, tick_job
from assets.maintenance import maintenance_job, maintenance_schedule
from assets.operations import operations
from assets.schedules import tick_schedule
from assets.sensors import broken_sensor, lag_sensor
from assets.specs import word
from assets.suites import BrokenSuite, Suite
from dagster_project.discover import BrokenTopology, suites_of, topologies
from dagster_project.settings import CADENCE, Settings, SettingsError
from resources.tidetable import Tidetable
from spark.topology import Topology


def definitions(
    found: Sequence[Topology],
    tidetable: Tidetable,
    checked: Mapping[str, Suite],
    broken: Sequence[BrokenTopology] = (),
    executor: dg.ExecutorDefinition | None = dg.in_process_executor,
    cadence: str = CADENCE,
) -> dg.Definitions:
    """Dagster's definitions of topologies. Nothing is started or opened before a run needs it.

    A broken topology does not affect the others: in its place is a sensor that always fails with its error. `cadence`
    is the cron expression of the schedules of ticks.
    """
    maintenance = maintenance_job(found)
    return dg.Definitions(
        assets=assets(found, tidetable.lakehouse, checked),
        jobs=[
            *(tick_job(topology, found) for topology in found),
            *(job for topology in found for job in operations(topology, checked)),
            maintenance,
        ],
        sensors=[*map(lag_sensor, found), *(broken_sensor(name, why) for name, why in _by_name(broken).items())],
        schedules=[*(tick_schedule(topology, cadence) for topology in found), maintenance_schedule(maintenance)],
        resources={"tidetable": tidetable},
        executor=executor,
    )


def _by_name(broken: Sequence[BrokenTopology]) -> dict[str, str]:
    """The errors of the topologies that are left out, by their name in Dagster, which several may share."""
    found: dict[str, str] = {}
    for one in broken:
        name = word(one.name)
        found[name] = f"{found[name]}\n{one}" if name in found else str(one)
    return found


def build_definitions(
    topologies: Topology | Path | str | Sequence[Topology | Path | str] | None = None,
    *,
    expectations: Path | str | None = None,
    settings: Settings | None = None,
) -> dg.Definitions:
    """Dagster's definitions of topologies, for a project with everything in one code location.

    Merge them with yours: `dg.Definitions.merge(yours, build_definitions("topologies"))`. A broken file does not affect
    the others: in its place is a sensor that always fails with its error.

    Configure the instance as `tidetable init` does in `dagster.yaml`: pools with the limit 1 and the granularity `op`
    prevent two runs from stepping one table at once. Without pools, the slower run fails and is retried; no row is
    lost. The jobs run their ops in one process. Assets that are launched from the UI without a job run with the
    executor of your code location.

    Args:
        topologies: topologies, folders of Python files, or names of modules that have a `topology`, or of packages of
            such modules; one or several. By default, those of the settings.
        expectations: the folder of Great Expectations suites. By default, that of the settings, or the folder
            `expectations` next to each folder of topologies.
        settings: the settings of the lake, Kafka and the engine. By default, those of the environment and the settings
            file.

    Raises:
        SettingsError: a setting is not valid, or a folder or a module does not exist.
    """
    settings = settings or Settings.from_environment()
    changed: dict[str, object] = {}
    objects: list[Topology] = []
    if expectations is not None:
        changed["expectations"] = str(expectations)
    if topologies is not None:
        given = [topologies] if isinstance(topologies, Topology | Path | str) else topologies
        objects = [one for one in given if isinstance(one, Topology)]
        changed["topologies"] = tuple(str(place) for place in given if not isinstance(place, Topology))
    return built(settings.model_copy(update=changed).written("build_definitions", *changed), objects)


def built(
    settings: Settings, given: Sequence[Topology] = (), executor: dg.ExecutorDefinition | None = None
) -> dg.Definitions:
    """Dagster's definitions of the topologies of `settings`, and of those in `given`.

    Raises:
        SettingsError: a setting is not valid, or a folder or a module does not exist.
    """
    _check_cadence(settings)
    broken: list[BrokenTopology] = []
    found = (*given, *topologies(broken.append, settings))
    unread, sound = tuple(broken), []
    checked: dict[str, Suite] = {}
    for topology in found:
        try:
            checked |= suites_of(topology, found, unread, settings)
            sound.append(topology)
        except BrokenSuite as error:
            broken.append(BrokenTopology(topology.name, str(error)))
    while clashing := conflicts(sound, settings.tidetable().lakehouse):
        broken += [BrokenTopology(name, why) for name, why in clashing.items()]
        sound = [topology for topology in sound if topology.name not in clashing]
    for one in broken:
        dg.get_dagster_logger().error("left out: %s", one)
    return definitions(sound, settings.tidetable(), checked, broken, executor, settings.cadence)


def _check_cadence(settings: Settings) -> None:
    """Raise if the cadence is not a cron expression that Dagster accepts."""
    try:
        dg.ScheduleDefinition(name="cadence", job_name="cadence", cron_schedule=settings.cadence)
    except dg.DagsterInvalidDefinitionError:
        raise SettingsError(
            f"{settings.called('cadence')}={settings.cadence} is not a cron expression of five fields: "
            f"write minute, hour, day of month, month and day of week, as in {CADENCE} for every five minutes"
        ) from None
