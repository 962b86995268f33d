"""A transaction that does not end is never silent: nobody reads what is behind it, and that is no lag."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import dagster as dg
from rich.console import Console

from dagster_project.definitions import definitions
from dagster_project.render import status_grid, status_json
from resources.tidetable import Tidetable
from spark.engine.land import capture, written
from spark.engine.status import statuses
from spark.topology import Consumed, StreamsBuilder
from tests.support import lake
from tests.support.lake import Record, send

if TYPE_CHECKING:
    from collections.abc import Callable

    from resources.engine import Engine
    from resources.kafka import Kafka
    from resources.lakehouse import Lakehouse
    from spark.engine.status import TableStatus


def test_what_waits_for_a_transaction_to_end_is_told_and_is_no_lag(
    engine: Engine, kafka: Kafka, lakehouse: Lakehouse, topic: Callable[..., str]
) -> None:
    name, tidetable = topic("payments", partitions=2), Tidetable(engine, lakehouse, kafka)
    builder = StreamsBuilder("paid")
    builder.table(name, Consumed.json(key="id bigint", value="name string"))
    topology = builder.build()
    defs = definitions([topology], tidetable, {})
    send(kafka, name, Record(1, {"name": "before"}))

    def landing() -> TableStatus:
        there = written(kafka, topology)
        return statuses(lakehouse, topology, capture(kafka, topology), None, there)[0]

    def tick(instance: dg.DagsterInstance) -> int:
        ran = defs.resolve_job_def("paid_tick").execute_in_process(instance=instance)
        events = [event.materialization for event in ran.get_asset_materialization_events()]
        (landing,) = (event for event in events if "kafka/lag_after" in event.metadata)
        assert landing.metadata["kafka/lag_after"].value == 0
        kept = landing.metadata["kafka/in_transactions"].value
        assert isinstance(kept, int)
        return kept

    def skipped(instance: dg.DagsterInstance) -> str:
        sensor = next(one for one in defs.sensors or () if one.name == "paid_lag")
        assert isinstance(sensor, dg.SensorDefinition)
        result = sensor(dg.build_sensor_context(instance=instance, resources={"tidetable": tidetable}))
        assert isinstance(result, dg.SkipReason)
        return result.skip_message or ""

    with dg.DagsterInstance.ephemeral() as instance:
        assert tick(instance) == 0
        assert skipped(instance) == "Everything is at the end of its topics."
        with lake.transaction(kafka, name, "open", "too") as producer:
            send(kafka, name, Record(1, {"name": "behind them"}), Record(1, {"name": "beside them"}, partition=1))
            [(partition, kept)] = landing().in_transactions.items()
            told = f"{kept} offsets of {partition} wait for a transaction to end"
            assert tick(instance) == kept
            assert skipped(instance) == f"Everything is at the end of its topics; {told}."
            console = Console(width=400)
            with console.capture() as shown:
                console.print(*status_grid("paid", [landing()]), sep="\n")
            assert told in shown.get()
            assert json.loads(json.dumps(status_json(landing())))["in_transactions"] == {partition: kept}
            producer.abort_transaction(30)
        lake.until(lambda: not landing().in_transactions)
        assert tick(instance) == 0
