"""The lag sensor: a tick is asked for exactly when something is behind its topics, or a topic behind its table.

Level-triggered: it compares end offsets with the positions in the tables, and those with what is published, so a tick
that failed, or one that somebody else made, leaves the truth where it was. It reads no record and starts no server.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import dagster as dg

from assets.lag import fingerprint, looked, undecided
from assets.specs import TOPOLOGY_TAG, tick_name, word
from resources.tidetable import Tidetable
from spark.engine.offsets import KafkaUnavailable, TopicMissing

if TYPE_CHECKING:
    from spark.topology import Topology

INTERVAL = 5  # seconds: Dagster's daemon looks at no sensor more often
AGAIN = 300  # seconds until a tick that changed nothing, because it failed, is asked for once more

IN_FLIGHT = [
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]


def broken_sensor(name: str, why: str) -> dg.SensorDefinition:
    """Fail, at every tick, with what is wrong with a topology that is left out: nobody else would tell."""

    @dg.sensor(
        name=f"{word(name)}_broken",
        minimum_interval_seconds=AGAIN,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"{name} is left out, and nothing of it is ticked: {why}",
    )
    def broken() -> dg.SkipReason:
        raise dg.Failure(why)

    return broken


def lag_sensor(topology: Topology) -> dg.SensorDefinition:
    """Ask for a tick while something is behind.

    It runs from the start: a table that stands still until somebody finds a switch would surprise more than a tick
    does, and where no broker runs or no topic is, it does nothing but say so.
    """

    @dg.sensor(
        name=f"{word(topology.name)}_lag",
        job_name=tick_name(topology),
        minimum_interval_seconds=INTERVAL,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Asks for a tick of {topology.name} while a landing, a table or what is published is behind.",
    )
    def lag(
        context: dg.SensorEvaluationContext, tidetable: dg.ResourceParam[Tidetable]
    ) -> dg.RunRequest | dg.SkipReason:
        in_flight = dg.RunsFilter(job_name=tick_name(topology), statuses=IN_FLIGHT)
        if context.instance.get_runs_count(in_flight) > 0:
            return dg.SkipReason("A tick is on its way.")
        kafka = tidetable.listening()
        if kafka is None:
            return dg.SkipReason("The lake's own broker does not run; start it: tidetable up")
        try:
            ends, found = looked(tidetable.lakehouse, kafka, topology)
        except (KafkaUnavailable, TopicMissing) as error:
            return dg.SkipReason(str(error))
        behind = [standing.table for standing in found if standing.behind]
        kept = [reason for standing in found for reason in undecided(standing.in_transactions)]
        if not behind:
            return dg.SkipReason("; ".join(["Everything is at the end of its topics", *kept]) + ".")
        # One tick for one state of things: a new one at once when it moves, and after a while if it does not. Dagster
        # starts no second run of a key that it has seen, so a failed tick would otherwise be the last one.
        key = f"{fingerprint(ends, found)}-{int(time.time() // AGAIN)}"
        context.log.info("behind: %s", "; ".join([", ".join(behind), *kept]))
        return dg.RunRequest(run_key=key, tags={TOPOLOGY_TAG: topology.name})

    return lag
