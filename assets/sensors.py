"""The lag sensor: it requests a tick when a table lags its topics, or a published topic lags its table.

It is level-triggered: it compares end offsets with the tables' positions, and these with the published positions. So
neither a failed tick nor a tick of another runner can mislead it. It reads no record and starts no server.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import dagster as dg

from assets.specs import TOPOLOGY_TAG, tick_name, word
from resources.tidetable import Tidetable
from spark.engine.offsets import KafkaUnavailable, TopicMissing
from spark.engine.status import describe_in_transactions, fingerprint, observe

if TYPE_CHECKING:
    from spark.topology import Topology

INTERVAL = 5  # seconds: Dagster's daemon evaluates no sensor more often
AGAIN = 300  # seconds until a tick that failed, and so changed nothing, is requested again

IN_FLIGHT = [
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]


def broken_sensor(name: str, why: str) -> dg.SensorDefinition:
    """A sensor that always fails, with the error of a topology that is left out: nothing else would report it."""

    @dg.sensor(
        name=f"{word(name)}_broken",
        minimum_interval_seconds=AGAIN,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"{name} cannot be loaded, and is not ticked: {why}",
    )
    def broken() -> dg.SkipReason:
        raise dg.Failure(why)

    return broken


def lag_sensor(topology: Topology) -> dg.SensorDefinition:
    """The sensor that requests a tick while something lags.

    It is on from the start: a table that is not updated until somebody finds a switch would surprise more than a tick.
    Without a running broker, or without a topic, it only reports that.
    """

    @dg.sensor(
        name=f"{word(topology.name)}_lag",
        job_name=tick_name(topology),
        minimum_interval_seconds=INTERVAL,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Asks for a tick of {topology.name} while a landing, a table or a published topic lags.",
    )
    def lag(
        context: dg.SensorEvaluationContext, tidetable: dg.ResourceParam[Tidetable]
    ) -> dg.RunRequest | dg.SkipReason:
        in_flight = dg.RunsFilter(job_name=tick_name(topology), statuses=IN_FLIGHT)
        if context.instance.get_runs_count(in_flight) > 0:
            return dg.SkipReason("A tick is queued or running.")
        kafka = tidetable.listening()
        if kafka is None:
            return dg.SkipReason("The lake's own broker does not run; start it: tidetable up")
        try:
            ends, statuses = observe(tidetable.lakehouse, kafka, topology)
        except (KafkaUnavailable, TopicMissing) as error:
            return dg.SkipReason(str(error))
        lagging = [status.table for status in statuses if status.is_lagging]
        in_transactions = [reason for status in statuses for reason in describe_in_transactions(status.in_transactions)]
        if not lagging:
            return dg.SkipReason("; ".join(["Everything is at the end of its topics", *in_transactions]) + ".")
        # One tick per state: a changed state requests one at once, an unchanged state after `AGAIN` seconds. Dagster
        # starts no second run of a run key, so without the time a failed tick would be the last one.
        key = f"{fingerprint(ends, statuses)}-{int(time.time() // AGAIN)}"
        context.log.info("lagging: %s", "; ".join([", ".join(lagging), *in_transactions]))
        return dg.RunRequest(run_key=key, tags={TOPOLOGY_TAG: topology.name})

    return lag
