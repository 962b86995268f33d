"""Every column of ours that somebody sees in a stored table says what it is for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltalake import DeltaTable

from spark.engine.rebuild import rebuild
from spark.topology import Consumed, JoinWindows, StreamsBuilder, Topology
from tests.support import lake
from tests.support.lake import Record, send

if TYPE_CHECKING:
    from collections.abc import Callable

    from resources.kafka import Kafka
    from spark.engine.ports import Ports


def topology(topic: str, mean: str) -> Topology:
    """Everything that has columns of ours: a landing, tables, an aggregate, stored streams."""
    builder = StreamsBuilder(f"comments-{topic}")
    shape = Consumed.json(key="id bigint", value="name string, v int")
    items = builder.stream(topic, shape)
    items.to_table().group_by("name").aggregate(**{mean: "avg(v)", "n": "count(*)"}).materialize("by_name")
    other = builder.stream(f"{topic}-too", shape)
    pairs = items.join(other, within=JoinWindows.of("1m", grace="1m"), select=["left.*", "right.v as w"])
    pairs.materialize("pairs")
    return builder.build()


def unexplained(ports: Ports, made: Topology) -> dict[str, list[str]]:
    """Columns without a comment whose names begin as ours do, by table."""
    tables = {name: DeltaTable(lake.path(ports, made, name)).schema().fields for name in made.stored}
    found = {
        name: [one.name for one in fields if one.name.startswith("_") and not one.metadata.get("comment")]
        for name, fields in tables.items()
    }
    return {name: columns for name, columns in found.items() if columns}


def test_columns_of_ours_say_what_they_are_for(ports: Ports, kafka: Kafka, topic: Callable[..., str]) -> None:
    name = topic("items")
    kafka.create_topic(f"{name}-too", 1, {"retention.ms": "-1"})
    send(kafka, name, Record(1, {"name": "a", "v": 1}))
    made = topology(name, "mean")
    lake.land_all(ports, made)
    lake.step_all(ports, made)
    assert {"_rows", "_partial1"} <= {one.name for one in DeltaTable(lake.path(ports, made, "by_name")).schema().fields}
    assert unexplained(ports, made) == {}

    other = topology(name, "average")
    rebuild(ports, other, other.table("by_name"), "rebuild")
    assert unexplained(ports, other) == {}
