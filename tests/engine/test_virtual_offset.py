"""The three impediments for which KIP-314 gave up a global-table join that both sides drive, and why none is left.

Each wants a "virtual offset": which events of the global table the results have seen. Here it is the version of the
global table that the results' own commit names.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from resources.lakehouse import Lakehouse
from spark.engine.land import capture, land
from spark.engine.offsets import TopicOffsets
from spark.engine.step import step
from spark.topology import Consumed, StreamsBuilder, Topology
from tests.support import lake
from tests.support.lake import NoEngine, Record, Row, send

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame

    from resources.kafka import Kafka
    from spark.engine.ports import Ports

PRODUCTS = [
    Record("x", {"title": "Tea"}),
    Record("y", {"title": "Rye"}, partition=1),
    Record("x", {"title": "Chai"}),
    Record("z", {"title": "Salt"}, partition=1),
]
ORDERS = [Record(n, {"sku": sku}) for n, sku in enumerate("xxyz")]
TITLED = {0: "Chai", 1: "Chai", 2: "Rye", 3: "Salt"}


class Killed(Exception):
    """What ends a step before its commit."""


def killed(batch: DataFrame) -> None:  # noqa: ARG001  # a gate is called by this name
    """Be killed."""
    raise Killed


@pytest.fixture
def topology(kafka: Kafka, topic: Callable[..., str]) -> Topology:
    """Orders and the titles of what they are of; the global table has two partitions."""
    orders, products = topic("orders"), topic("products", partitions=2)
    send(kafka, orders, *ORDERS)
    send(kafka, products, *PRODUCTS)
    builder = StreamsBuilder(f"offset-{orders}")
    of = builder.table(orders, Consumed.json(key="order_id bigint", value="sku string"))
    titles = builder.global_table(products, Consumed.json(key="sku string", value="title string"))
    of.join(titles, on="sku", select="right.title").materialize("titled")
    return builder.build()


def titled(ports: Ports, topology: Topology) -> dict[object, object]:
    """The title of every order."""
    return {key: row["title"] for key, row in lake.rows(ports, topology, "titled", ["title"]).items()}


def changed(ports: Ports, topology: Topology, since: int) -> list[tuple[object, object]]:
    """What the table's change feed says behind a version: each order with its title, as often as it does."""
    table = DeltaTable(lake.path(ports, topology, "titled"))
    if table.version() == since:
        return []
    told: list[Row] = lake.plain(table.load_cdf(starting_version=since + 1))
    now = [row for row in told if row["_change_type"] in ("insert", "update_postimage")]
    return sorted((row["order_id"], row["title"]) for row in now)


def joined(ports: Ports, topology: Topology) -> int:
    """Join what there is; the version that the table has then."""
    lake.land_all(ports, topology)
    lake.step_all(ports, topology)
    return lake.versions(ports, topology, "titled")


def products(topology: Topology) -> str:
    """The topic of the global table."""
    return topology.sources[1].topic


def test_1_rebalance_a_change_whose_join_was_killed_is_joined_once_by_whoever_is_next(
    ports: Ports, kafka: Kafka, topology: Topology
) -> None:
    was = joined(ports, topology)
    send(kafka, products(topology), Record("x", {"title": "Mate"}))
    lake.land_all(ports, topology, "first")
    lake.step_all(ports, topology, *(source.topic for source in topology.sources), run="first")
    with pytest.raises(Killed):
        step(ports, topology, topology.table("titled"), "first", lake.Watching(killed))
    assert changed(ports, topology, was) == []
    for run in ("next", "and next"):
        lake.step_all(ports, topology, run=run)
        assert changed(ports, topology, was) == [(0, "Mate"), (1, "Mate")]


def test_2_restore_a_runner_that_has_nothing_goes_on_where_the_last_one_was_and_repeats_nothing(
    ports: Ports, kafka: Kafka, topology: Topology
) -> None:
    was = joined(ports, topology)
    nothing = replace(ports, engine=NoEngine())  # no state of a join is anywhere but in the tables
    lake.land_all(nothing, topology, "restored")
    assert {done.outcome for done in lake.step_all(nothing, topology, run="restored").values()} == {"idle"}
    assert lake.versions(ports, topology, "titled") == was
    send(kafka, products(topology), Record("y", {"title": "Bread"}, partition=1))
    lake.land_all(ports, topology, "restored")
    lake.step_all(ports, topology, run="restored")
    assert changed(ports, topology, was) == [(2, "Bread")]


def test_3_virtual_offset_runners_that_read_partitions_in_another_order_have_the_same_rows_and_cut(
    ports: Ports, topology: Topology, tmp_path: Path
) -> None:
    ends = capture(ports.kafka, topology)
    [name] = (name for name in ends if name.endswith(products(topology)))
    found = []
    for n, way in enumerate([[(2, 0), (2, 2)], [(0, 1), (0, 2), (2, 2)]]):
        runner = replace(ports, lakehouse=Lakehouse(str(tmp_path / str(n))))
        for offsets in way:
            cut = ends | {name: TopicOffsets(ends[name].topic_id, dict(enumerate(offsets)))}
            for source in topology.sources:
                land(runner, topology, source, cut, "test")
            lake.step_all(runner, topology)
        assert titled(runner, topology) == TITLED
        rows = sorted(lake.listed(lake.path(runner, topology, "titled")), key=lambda row: str(row["order_id"]))
        found.append((rows, lake.state(runner, topology, "titled").position.cut))
    assert found[0] == found[1]
    assert found[0][1] == ends
