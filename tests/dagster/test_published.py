"""A topic that one topology publishes to and another one reads: lineage, metadata, the sensor; and what comes back."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from types import SimpleNamespace

import dagster as dg
import pytest
from rich.table import Table

from assets.factory import NameClash, assets
from dagster_project.cli import runs
from dagster_project.definitions import definitions
from dagster_project.render import status_grid, status_json
from resources.engine import Engine
from resources.kafka import Kafka
from resources.lakehouse import Lakehouse
from resources.tidetable import Tidetable
from spark.engine.land import capture
from spark.engine.ports import Ports
from spark.engine.publishing import position
from spark.engine.publishing.position import published_positions
from spark.engine.status import statuses
from spark.topology import Consumed, StreamsBuilder, Topology
from tests.support import lake
from tests.support.lake import Record, send

TYPES = "d decimal(20,10), t timestamp, s struct<a: int, b: array<string>>, text string"
VALUES: list[dict[str, object]] = [
    {"d": 1.5, "t": "2024-02-29T23:59:59.123456Z", "s": {"a": 1, "b": ["x", None]}, "text": 'größe "☃"'},
    {"d": None, "t": None, "s": None, "text": None},
    {"d": 0, "t": "1969-12-31T23:59:59.999999Z", "s": {"a": None, "b": []}, "text": ""},
]


class Stopped(Exception):
    """Ends what goes on for ever."""


def stop(_: float) -> None:
    """Instead of a pause."""
    raise Stopped


def pair(items: str, copies: str) -> tuple[Topology, Topology]:
    """A topology that publishes a table, and one that reads it back."""
    writes, reads = StreamsBuilder(f"writes-{items}"), StreamsBuilder(f"reads-{items}")
    writes.table(items, Consumed.json(key="id string, n int", value=TYPES)).filter("true").materialize("kept").to(
        copies
    )
    reads.table(copies, Consumed.json(key="id string, n int", value=TYPES))
    return writes.build(), reads.build()


def test_a_topic_between_two_topologies_is_one_asset_behind_its_table() -> None:
    writes, reads = pair("items", "copies")
    defs = definitions([writes, reads], Tidetable(Engine(None, "sc://none"), Lakehouse("lake"), Kafka({})), {})
    graph = defs.resolve_asset_graph()
    sink = graph.get(dg.AssetKey(["kafka", "copies"]))
    assert sink.parent_keys == {dg.AssetKey(["writes-items", "kept"])}
    assert sink.child_keys == {dg.AssetKey(["reads-items", "landing", "copies"])}
    selected = {
        name: {
            key.to_user_string() for key in defs.resolve_job_def(f"{name}_items_tick").asset_layer.selected_asset_keys
        }
        for name in ("writes", "reads")
    }
    assert {"kafka/items", "kafka/copies"} <= selected["writes"]
    assert selected["reads"] == {"reads-items/landing/copies", "reads-items/copies"}


def test_a_topic_has_one_table_that_publishes_to_it() -> None:
    writes, _ = pair("items", "copies")
    others, _ = pair("others", "copies")
    with pytest.raises(NameClash, match=r"topic copies, to which .* is published"):
        assets([writes, others], Lakehouse("lake"), {})


def test_a_table_goes_to_a_topic_and_comes_back_as_it_was(
    engine: Engine,
    kafka: Kafka,
    lakehouse: Lakehouse,
    topic: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    instance: dg.DagsterInstance,
) -> None:
    items, copies = topic("items"), topic("copies", 2)
    writes, reads = pair(items, copies)
    tidetable, ports = Tidetable(engine, lakehouse, kafka), Ports(engine, lakehouse, kafka)
    defs = definitions([writes, reads], tidetable, {})

    def tick(topology: Topology) -> dg.ExecuteInProcessResult:
        name = topology.name.replace("-", "_")
        ran = defs.resolve_job_def(f"{name}_tick").execute_in_process(instance=instance)
        assert ran.success
        return ran

    def rows(topology: Topology, name: str) -> list[object]:
        session = engine.session()
        try:
            stored = session.read.format("delta").load(lake.path(ports, topology, name))
            return sorted(stored.drop("_topic", "_partition", "_offset").collect(), key=str)
        finally:
            session.stop()

    send(kafka, items, *(Record({"id": f"k{n}", "n": n}, value) for n, value in enumerate(VALUES)))
    (made,) = tick(writes).asset_materializations_for_node(f"kafka__{copies.replace('-', '_')}")
    assert {name: made.metadata[name].value for name in made.metadata if name != "batch/duration_s"} == {
        "batch/outcome": "published",
        "batch/records_out": 3,
        "batch/tombstones": 0,
        "batch/left_out": 0,
        "batch/skipped": 0,
        "batch/transactions": 1,
        "delta/version": 1,
        "delta/versions_behind": 0,
        "published/skipped": 0,
    }
    tick(reads)
    assert rows(reads, copies) == rows(writes, "kept") != []

    send(kafka, items, Record({"id": "k1", "n": 1}, None), Record({"id": "k2", "n": 2}, VALUES[0]))
    lake.land_all(ports, writes)
    lake.step_all(ports, writes)
    status = statuses(lakehouse, writes, capture(kafka, writes), published_positions(kafka, writes))[-1]
    assert (status.unpublished, status.is_lagging, set((status.lag or {}).values())) == (1, True, {0})
    assert json.loads(json.dumps(status_json(status)))["versions_behind"] == 1
    [grid] = status_grid(writes.name, [status])
    assert isinstance(grid, Table)
    assert "1, 1 behind" in str(list(grid.columns[-1].cells))
    sensor = next(one for one in defs.sensors or () if one.name == f"writes_{items.replace('-', '_')}_lag")
    assert isinstance(sensor, dg.SensorDefinition)
    context = dg.build_sensor_context(instance=instance, resources={"tidetable": tidetable})
    assert isinstance(sensor(context), dg.RunRequest)
    tick(writes)
    assert isinstance(sensor(context), dg.SkipReason)
    tick(reads)
    assert rows(reads, copies) == rows(writes, "kept") != []

    def followed() -> list[str]:
        """What `tidetable run --follow` does at its first look."""
        done: list[str] = []
        with monkeypatch.context() as patched:
            patched.setattr(runs, "run_tick", lambda *_: done.append("ticked"))
            patched.setattr(runs, "time", SimpleNamespace(monotonic=time.monotonic, sleep=stop))
            with pytest.raises(Stopped):
                runs.follow(tidetable, writes, 0.1, False)
        return done

    # Nothing is new, but the broker would forget in a few days how far the topic is.
    assert followed() == []
    monkeypatch.setattr(position, "RECOMMIT_MS", 0)
    assert isinstance(sensor(context), dg.RunRequest)
    assert followed() == ["ticked"]
    (made,) = tick(writes).asset_materializations_for_node(f"kafka__{copies.replace('-', '_')}")
    assert (made.metadata["batch/outcome"].value, made.metadata["batch/transactions"].value) == ("idle", 1)
    monkeypatch.undo()
    assert isinstance(sensor(context), dg.SkipReason)
