"""Leaders in Dagster and in the command: upstream across code locations, and read for columns that are not declared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg
import pytest
from click.testing import CliRunner

from dagster_project import cli, discover
from dagster_project.build import definitions_of
from dagster_project.discover import BrokenTopology
from dagster_project.settings import Settings
from spark.engine.log.definition import definition
from spark.engine.log.position import ANCHOR, DEFINITION
from spark.topology import Consumed, StreamsBuilder, Topology
from tests.engine import logs
from tests.engine.test_format import POSITION

if TYPE_CHECKING:
    from collections.abc import Sequence

FOLLOWER = """
from tidetable import StreamsBuilder

builder = StreamsBuilder("follower")
builder.read_only_table("orders", from_="shop.orders").materialize("copy")
topology = builder.build()
"""


def leader() -> Topology:
    builder = StreamsBuilder("leader")
    builder.table("customers", Consumed.json(key="id bigint", value="name string"))
    return builder.build()


def follower() -> Topology:
    builder = StreamsBuilder("follower")
    builder.read_only_table("c", from_="leader.customers", key="id bigint", value="name string").materialize("copy")
    return builder.build()


def graph(*topologies: Topology) -> dg.Definitions:
    return definitions_of(Settings(), topologies)


def test_a_leader_is_upstream_of_its_follower_in_its_own_code_location_or_another_one() -> None:
    key, copy = dg.AssetKey(["leader", "customers"]), dg.AssetKey(["follower", "copy"])
    for topologies in ((follower(),), (leader(), follower())):
        found = graph(*topologies).resolve_asset_graph()
        assert found.get(copy).parent_keys == {key}
        assert found.get(key).is_materializable == (len(topologies) == 2)
    alone = graph(follower()).resolve_asset_graph()
    assert "The table leader.customers, which follower reads and never writes" in str(alone.get(key).description)


def test_a_tick_of_a_follower_steps_its_tables_alone() -> None:
    made = definitions_of(Settings(), [follower()])
    job = made.resolve_job_def("follower_tick")
    assert job.asset_layer.selected_asset_keys == {dg.AssetKey(["follower", "copy"])}


def stored(lake: Path, fields: Sequence[tuple[str, str]], definition: str) -> None:
    """A table `shop/orders` in a lake: its columns and its definition as its log has them, without rows."""
    properties = {ANCHOR: POSITION.to_json(), DEFINITION: definition}
    path = logs.write(str(lake / "shop" / "orders"), logs.Entry("CREATE TABLE"), properties=properties)
    file = Path(path) / "_delta_log" / f"{0:020}.json"
    schema = {"type": "struct", "fields": [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in fields]}
    actions = [json.loads(line) for line in file.read_text().splitlines()]
    for action in actions:
        if "metaData" in action:
            action["metaData"]["schemaString"] = json.dumps(schema)
    file.write_text("\n".join(map(json.dumps, actions)))


def test_columns_that_are_not_declared_are_read_from_the_lake_when_the_command_loads_the_topology(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fields = [("id", "long"), ("at", "timestamp"), ("price", "decimal(12,2)"), ("_timestamp", "timestamp")]
    for name in ("none", "keyless", "whole"):
        folder = tmp_path / name
        (folder / "topologies").mkdir(parents=True)
        (folder / "topologies" / "follower.py").write_text(FOLLOWER)
    builder = StreamsBuilder("shop")
    builder.table("orders", Consumed.json(key="id bigint", value="at timestamp, price decimal(12,2)"))
    shop = builder.build()
    stored(tmp_path / "keyless" / ".lake", fields, "{}")
    stored(tmp_path / "whole" / ".lake", fields, definition(shop, shop.table("orders")))
    for name, problem in (
        ("none", "run `tidetable run shop` once"),
        ("keyless", "does not say which columns are its key"),
    ):
        settings = Settings(lake=str(tmp_path / name / ".lake"), topologies=(str(tmp_path / name / "topologies"),))
        with pytest.raises(BrokenTopology, match=problem):
            discover.topologies(settings=settings)
    monkeypatch.setenv("TIDETABLE_LAKE", str(tmp_path / "whole" / ".lake"))
    monkeypatch.setenv("TIDETABLE_TOPOLOGIES", str(tmp_path / "whole" / "topologies"))
    for name, says in (
        ("shop.orders", "shop.orders is a table of the topology shop, which follower reads and never writes: run this"),
        ("follower.cpoy", "unknown name 'follower.cpoy'; did you mean follower.copy?; known names: follower"),
    ):
        refused = CliRunner().invoke(cli.main, ["rebuild", name])
        assert refused.exit_code == 2
        assert says in " ".join(refused.output.split())
    described = CliRunner().invoke(cli.main, ["describe", "follower.copy"])
    assert described.exit_code == 0, described.output
    assert "key: id bigint" in described.output
    assert "columns: at timestamp, price decimal(12,2)" in described.output
