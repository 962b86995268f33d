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
    sound: Sequence[Topology],
    tidetable: Tidetable,
    suites: Mapping[str, Suite],
    broken: Sequence[BrokenTopology] = (),
    executor: dg.ExecutorDefinition | None = dg.in_process_executor,
    cadence: str = CADENCE,
) -> dg.Definitions:
    """Dagster's definitions of topologies. Nothing is started or opened before a run needs it.

    A broken topology does not affect the others: in its place is a sensor that always fails with its error. `cadence`
    is the cron expression of the schedules of ticks.
    """
    maintenance = maintenance_job(sound)
    return dg.Definitions(
        assets=assets(sound, tidetable.lakehouse, suites),
        jobs=[
            *(tick_job(topology, sound, tidetable.engine.width) for topology in sound),
            *(job for topology in sound for job in operations(topology, suites)),
            maintenance,
        ],
        sensors=[
            *map(lag_sensor, sound),
            *(broken_sensor(name, message) for name, message in _by_name(broken).items()),
        ],
        schedules=[*(tick_schedule(topology, cadence) for topology in sound), maintenance_schedule(maintenance)],
        resources={"tidetable": tidetable},
        executor=executor,
    )


def _by_name(broken: Sequence[BrokenTopology]) -> dict[str, str]:
    """The errors of the topologies that are left out, by their name in Dagster, which several may share."""
    messages: dict[str, str] = {}
    for error in broken:
        name = word(error.name)
        messages[name] = f"{messages[name]}\n{error}" if name in messages else str(error)
    return messages


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
    lost. A tick runs as many landings, or steps, at once as the engine has cores, in threads of the run's process.
    Assets that are launched from the UI without a job run with the executor of your code location.

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
    arguments: dict[str, object] = {}
    objects: list[Topology] = []
    if expectations is not None:
        arguments["expectations"] = str(expectations)
    if topologies is not None:
        given = [topologies] if isinstance(topologies, Topology | Path | str) else topologies
        objects = [place for place in given if isinstance(place, Topology)]
        arguments["topologies"] = tuple(str(place) for place in given if not isinstance(place, Topology))
    changed = settings.model_copy(update=arguments).with_origin("build_definitions", *arguments)
    return definitions_of(changed, objects)


def definitions_of(
    settings: Settings, objects: Sequence[Topology] = (), executor: dg.ExecutorDefinition | None = None
) -> dg.Definitions:
    """Dagster's definitions of the topologies of `settings`, and of those in `objects`.

    Raises:
        SettingsError: a setting is not valid, or a folder or a module does not exist.
    """
    _check_cadence(settings)
    broken: list[BrokenTopology] = []
    loaded = (*objects, *topologies(broken.append, settings))
    not_loaded, sound = tuple(broken), []
    suites: dict[str, Suite] = {}
    for topology in loaded:
        try:
            suites |= suites_of(topology, loaded, not_loaded, settings)
            sound.append(topology)
        except BrokenSuite as error:
            broken.append(BrokenTopology(topology.name, str(error)))
    while clashing := conflicts(sound, settings.tidetable().lakehouse):
        broken += [BrokenTopology(name, message) for name, message in clashing.items()]
        sound = [topology for topology in sound if topology.name not in clashing]
    for broken_topology in broken:
        dg.get_dagster_logger().error("left out: %s", broken_topology)
    return definitions(sound, settings.tidetable(), suites, broken, executor, settings.cadence)


def _check_cadence(settings: Settings) -> None:
    """Raise if the cadence is not a cron expression that Dagster accepts."""
    try:
        dg.ScheduleDefinition(name="cadence", job_name="cadence", cron_schedule=settings.cadence)
    except dg.DagsterInvalidDefinitionError:
        raise SettingsError(
            f"{settings.origin('cadence')}={settings.cadence} is not a cron expression of five fields: "
            f"write minute, hour, day of month, month and day of week, as in {CADENCE} for every five minutes"
        ) from None
