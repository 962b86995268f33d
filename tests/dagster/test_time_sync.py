"""What waits for an empty partition is never silent: a check, the status and the metadata say so."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import dagster as dg
from rich.console import Console

from assets.checks import TIME_SYNC
from dagster_project.definitions import definitions
from dagster_project.render import status_grid, status_json
from resources.tidetable import Tidetable
from spark.engine.land import capture
from spark.engine.status import fingerprint, statuses
from spark.topology import Consumed, StreamsBuilder, Topology
from tests.support.lake import Record, send

if TYPE_CHECKING:
    from collections.abc import Callable

    from resources.engine import Engine
    from resources.kafka import Kafka
    from resources.lakehouse import Lakehouse


def synchronised(left: str, right: str, idle: int) -> Topology:
    """Two streams that a table reads together."""
    builder = StreamsBuilder("synchronised", max_task_idle_ms=idle)
    item = Consumed.json(key="id bigint", value="v int")
    builder.stream(left, item).merge(builder.stream(right, item)).filter("v > 0").materialize("both")
    return builder.build()


def test_a_table_that_waits_says_for_which_partition_and_until_when(
    engine: Engine, kafka: Kafka, lakehouse: Lakehouse, topic: Callable[..., str]
) -> None:
    left, right = topic("left"), topic("right")
    tidetable = Tidetable(engine, lakehouse, kafka)

    def ticked(made: Topology) -> tuple[dict[str, dg.MetadataValue], dg.AssetCheckEvaluation]:
        with dg.DagsterInstance.ephemeral() as instance:
            job = definitions([made], tidetable, {}).resolve_job_def("synchronised_tick")
            ran = job.execute_in_process(instance=instance)
        events = [event.materialization for event in ran.get_asset_materialization_events()]
        (both,) = (event for event in events if event.asset_key.path[-1] == "both")
        (check,) = (one for one in ran.get_asset_check_evaluations() if one.check_name == TIME_SYNC)
        return dict(both.metadata), check

    patient, hasty = synchronised(left, right, 3_600_000), synchronised(left, right, 1)
    send(kafka, left, Record(1, {"v": 1}), Record(2, None))
    told, check = ticked(patient)
    assert (check.check_name, check.passed, check.severity) == ("time_sync", False, dg.AssetCheckSeverity.WARN)
    table = check.metadata["held"]
    assert isinstance(table, dg.TableMetadataValue)
    (held,) = (record.data for record in table.records)
    assert (held["partition"], held["records"], held["waits for"]) == (f"{left}-0", 2, f"{right}-0")
    assert f"2 records of {left}-0 wait for {right}-0 since {held['since']}, until {held['until']}" in (
        check.description or ""
    )
    assert told["enforced-processing-total"].value == 0

    ends = capture(kafka, patient)
    stands = statuses(lakehouse, patient, ends)
    landed, other, both = (json.loads(json.dumps(status_json(status))) for status in stands)
    assert landed["held"] == both["held"] != []
    assert other["held"] == []
    assert both["held"][0]["until"] == both["held"][0]["since"] + 3_600_000
    assert both["behind"]
    console = Console(width=400)
    with console.capture() as shown:
        console.print(*status_grid("synchronised", stands), sep="\n")
    assert f"2 records of {left}-0 wait for {right}-0 since {held['since']}, until {held['until']}" in shown.get()
    passed = statuses(lakehouse, hasty, ends)
    assert fingerprint(ends, passed) != fingerprint(ends, stands), "a deadline that passes asks for a tick"

    told, check = ticked(hasty)
    assert check.passed
    assert told["enforced-processing-total"].value == 1
    rate = told["enforced-processing-rate"].value
    assert isinstance(rate, float)
    assert rate > 0
    assert {told[f"record-lateness-{name}"].value for name in ("avg", "max")} == {0.0}
    metrics = json.loads(json.dumps(status_json(statuses(lakehouse, hasty, ends)[2])))["metrics"]
    assert metrics["enforced-processing-total"] == 1
    assert metrics["dropped-records-total"] == told["dropped-records-total"].value
