"""A step brings a table to its pins: just the touched keys, in one commit."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from spark.engine.errors import InputChanged, PlanChanged
from spark.engine.inputs import span
from spark.engine.ports import Ports
from spark.engine.step import step
from spark.topology import Consumed, StreamsBuilder
from tests.engine.shop import DERIVED, Story
from tests.support import lake
from tests.support.lake import NoEngine, Record, copied, send

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame

    from resources.kafka import Kafka

TABLES = ("orders", "customers", "products", *DERIVED)


def called(story: Story, table: str) -> str:
    """A table's name: those of topics carry a number."""
    return next(name for name in story.shop.names() if name.split("-")[0] == table)


@pytest.mark.parametrize("table", TABLES)
def test_after_every_wave_a_table_has_the_rows_of_the_oracle(story: Story, table: str) -> None:
    name = called(story, table)
    for wave in story.waves.values():
        expected = wave.expected[name]
        columns = list(next(iter(expected.values())))
        assert lake.rows(wave.ports, story.topology, name, columns) == expected


def row(story: Story, wave: str, table: str, key: int) -> lake.Row | None:
    """A row's columns without its time, as stored after a wave."""
    found = lake.rows(story.waves[wave].ports, story.topology, called(story, table))
    return found.get(key)


def test_a_changed_order_is_changed_wherever_it_is_read(story: Story) -> None:
    assert row(story, "left", "enriched", 1) == {"customer_id": 1, "sku": "tea", "amount": 11, "name": "ada"}
    assert row(story, "left", "chained", 1) == {"name": "ada", "amount": 11, "title": "Tea"}


def test_a_moved_foreign_key_leaves_the_old_customer(story: Story) -> None:
    assert row(story, "first", "enriched", 8) == {"customer_id": 2, "sku": "tea", "amount": 80, "name": "bob"}
    assert row(story, "left", "enriched", 8) == {"customer_id": 1, "sku": "tea", "amount": 80, "name": "ada"}
    assert row(story, "left", "enriched", 9) is None, "moved to nobody"


def test_a_deleted_order_is_gone(story: Story) -> None:
    assert [row(story, "left", table, 2) for table in ("orders", *DERIVED)] == [None] * 5


def test_an_order_that_does_not_decode_leaves_the_row_before_it(story: Story) -> None:
    assert row(story, "left", "orders", 10) == {"customer_id": 1, "sku": "tea", "amount": 100}


def test_a_live_row_of_nulls_is_kept_where_nothing_must_be_found(story: Story) -> None:
    assert row(story, "first", "orders", 7) == {"customer_id": None, "sku": None, "amount": None}
    assert row(story, "first", "titled", 7) == {"customer_id": None, "sku": None, "title": None}
    assert row(story, "first", "enriched", 7) is None


def test_a_changed_right_row_changes_all_that_look_it_up(story: Story) -> None:
    names = {key: row(story, "right", "enriched", key) for key in (1, 6, 8, 10)}
    assert {key: found and found["name"] for key, found in names.items()} == dict.fromkeys(names, "ada l.")
    assert row(story, "right", "titled", 1) == {"customer_id": 1, "sku": "tea", "title": "Green tea"}
    assert row(story, "right", "titled", 9) == {"customer_id": None, "sku": "mug", "title": None}, "deleted"


def test_a_deleted_right_row_takes_its_rows_along_and_one_that_appears_brings_them(story: Story) -> None:
    assert row(story, "left", "enriched", 11) is not None
    assert row(story, "right", "enriched", 11) is None
    assert row(story, "left", "enriched", 4) is None
    assert row(story, "right", "enriched", 4) == {"customer_id": 4, "sku": "tea", "amount": 40, "name": "dan"}


def test_a_lookup_only_join_keeps_what_it_found(story: Story) -> None:
    assert row(story, "right", "looked_up", 1) == {"customer_id": 1, "sku": "tea", "title": "Tea"}
    assert row(story, "both", "looked_up", 3) == {"customer_id": 1, "sku": "mug", "title": "Big mug"}


def test_a_chain_through_views_follows_each_of_its_inputs(story: Story) -> None:
    assert row(story, "left", "chained", 3) is None, "filtered on the right"
    assert row(story, "right", "chained", 3) == {"name": "cid", "amount": 30, "title": "Green tea"}
    assert row(story, "both", "chained", 3) == {"name": "ada k.", "amount": 31, "title": "Big mug"}
    assert row(story, "right", "chained", 4) == {"name": "dan", "amount": 40, "title": "Green tea"}
    assert row(story, "both", "chained", 4) is None, "filtered on the left"
    assert row(story, "both", "chained", 5) == {"name": None, "amount": 51, "title": "Green tea"}


def test_a_row_that_is_touched_and_not_changed_is_left_alone(story: Story) -> None:
    done = story.waves["nothing"].stepped("enriched")
    assert done.outcome == "stepped"
    assert done.touched > 0
    assert (done.inserted, done.updated, done.deleted) == (0, 0, 0)
    before, after = done.before, done.after
    assert before is not None
    assert after is not None
    assert (after.version, after.data_version) == (before.version + 1, before.data_version)


def test_a_step_writes_what_it_changed_and_no_more(story: Story) -> None:
    for before, wave in zip(list(story.waves.values())[:-1], list(story.waves.values())[1:], strict=True):
        for name in ("enriched", "titled", "chained"):
            was, now = before.expected[name], wave.expected[name]
            done = wave.stepped(name)
            counted = (done.inserted, done.updated, done.deleted)
            moved = sum(was[key] != now[key] for key in was.keys() & now.keys())
            # A row whose order was sent again with the same columns has the new record's coordinates.
            assert counted[0] == len(now.keys() - was.keys())
            assert counted[1] >= moved
            assert counted[2] == len(was.keys() - now.keys())


def test_a_cut_that_moved_without_a_change_of_an_input_is_a_commit_of_the_position_alone(story: Story) -> None:
    done = story.waves["nothing"].stepped("titled")
    before, after = done.before, done.after
    assert done.outcome == "positioned"
    assert before is not None
    assert after is not None
    assert (after.version, after.data_version) == (before.version + 1, before.data_version)
    assert after.position.inputs == before.position.inputs
    assert after.position.cut != before.position.cut


def test_a_step_run_twice_commits_nothing_and_starts_no_spark(story: Story) -> None:
    idle = Ports(NoEngine(), story.last.ports.lakehouse, story.last.ports.kafka)
    for name, done in lake.step_all(idle, story.topology).items():
        assert done.outcome == "idle", name
        assert done.after == done.before
        assert lake.versions(idle, story.topology, name) == story.last.versions[name]


@pytest.mark.thorough
@pytest.mark.parametrize("few", [50_000, 1])
def test_a_span_of_several_commits_is_stepped_at_once(
    story: Story, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    monkeypatch.setattr(span, "BROADCAST_ROWS", few)  # 1: every span is wide
    ports = copied(story.last.ports, story.topology, tmp_path)
    for name in DERIVED:
        where = lake.path(ports, story.topology, name)
        shutil.rmtree(where)
        shutil.copytree(lake.path(story.waves["first"].ports, story.topology, name), where)
    for name, done in lake.step_all(ports, story.topology, *DERIVED).items():
        assert done.outcome == "stepped", name
        assert done.after is not None
        assert done.after.position.inputs == lake.state(story.last.ports, story.topology, name).position.inputs
        # What was looked up now, and not in between, is what is there now.
        expected = story.last.expected["titled" if name == "looked_up" else name]
        found = lake.rows(ports, story.topology, name, list(next(iter(expected.values()))))
        moved = {
            key: found[key] for key in found if name != "looked_up" or key not in story.waves["first"].expected[name]
        }
        assert moved == {key: expected[key] for key in moved}
        assert found.keys() == expected.keys()


class Refused(Exception):
    """What a gate says."""


def test_a_gate_sees_the_new_rows_at_touched_keys_and_refuses_them_before_the_commit(
    story: Story, tmp_path: Path
) -> None:
    ports = copied(story.waves["first"].ports, story.topology, tmp_path)
    seen: list[tuple[set[object], list[str]]] = []

    def gate(batch: DataFrame) -> None:
        seen.append(({row["order_id"] for row in batch.collect()}, batch.columns))
        raise Refused

    lake.land_all(ports, story.topology)
    lake.step_all(ports, story.topology, called(story, "orders"))
    version = lake.versions(ports, story.topology, "titled")
    with pytest.raises(Refused):
        step(ports, story.topology, story.topology.table("titled"), "refused", lake.Watching(gate))
    [(keys, columns)] = seen
    assert {1, 3, 8, 9, 11} <= keys
    assert not {2, 10, 99} & keys, "deleted"
    assert not {6, 7} & keys, "not touched"
    assert columns == ["order_id", "customer_id", "sku", "title", "_timestamp", "_topic", "_partition", "_offset"]
    assert lake.versions(ports, story.topology, "titled") == version

    will: list[tuple[object, ...]] = []
    gate_of_all = lake.Watching(lambda _: None, watch_all=lambda table: will.extend(map(tuple, table.collect())))
    passed = step(ports, story.topology, story.topology.table("titled"), "passed", gate_of_all)
    assert passed.outcome == "stepped"
    there = {
        key: (row["title"], row["_offset"])
        for key, row in lake.rows(ports, story.topology, "titled", ["title", "_offset"]).items()
    }
    assert {row[0]: (row[3], row[-1]) for row in will} == there, "all rows, as they are behind the commit"
    assert len(will) == len(there)

    # Rows that somebody else wrote, no gate has seen: it looks once more.
    assert step(ports, story.topology, story.topology.table("titled"), "again", gate_of_all).outcome == "idle"
    DeltaTable(lake.path(ports, story.topology, "titled")).delete("order_id = 1")
    for outcome in ("positioned", "idle"):
        done = step(ports, story.topology, story.topology.table("titled"), "again", gate_of_all)
        assert done.outcome == outcome


def test_a_gate_that_refuses_the_first_rows_leaves_an_empty_table_that_nobody_reads(
    story: Story, tmp_path: Path
) -> None:
    ports = copied(story.waves["first"].ports, story.topology, tmp_path)
    shutil.rmtree(lake.path(ports, story.topology, "titled"))

    def gate(batch: DataFrame) -> None:
        assert batch.count() == len(story.waves["first"].expected["titled"])
        raise Refused

    with pytest.raises(Refused):
        step(ports, story.topology, story.topology.table("titled"), "refused", lake.Watching(gate))
    assert lake.rows(ports, story.topology, "titled") == {}
    assert lake.state(ports, story.topology, "titled").position.n == 0


def test_a_changed_definition_is_refused_with_the_difference_and_what_to_run(story: Story) -> None:
    orders, customers, _ = (called(story, name) for name in ("orders", "customers", "products"))
    builder = StreamsBuilder(story.topology.name)
    o = builder.table(orders, Consumed.json(key="order_id bigint", value="customer_id bigint, sku string, amount int"))
    c = builder.table(
        customers, Consumed.json(key="customer_id bigint", value="name string, country string, note string")
    )
    o.join(c, on="customer_id", select=["left.*", "right.name", "right.country"]).materialize("enriched")
    changed = builder.build()
    idle = Ports(NoEngine(), story.last.ports.lakehouse, story.last.ports.kafka)
    with pytest.raises(PlanChanged) as refused:
        step(idle, changed, changed.table("enriched"), "test")
    said = str(refused.value)
    assert "-  columns: customer_id bigint, sku string, amount int, name string\n" in said
    assert "+  columns: customer_id bigint, sku string, amount int, name string, country string\n" in said
    assert f"tidetable rebuild {changed.name}.enriched" in said
    assert step(idle, changed, changed.table(orders), "test").outcome == "idle", "other tables are not concerned"


def test_an_input_that_was_dropped_and_made_anew_is_refused_by_name(story: Story, tmp_path: Path) -> None:
    ports = copied(story.last.ports, story.topology, tmp_path)
    customers = called(story, "customers")
    shutil.rmtree(lake.path(ports, story.topology, customers))
    assert step(ports, story.topology, story.topology.table(customers), "test").outcome == "stepped"
    version = lake.versions(ports, story.topology, "enriched")
    with pytest.raises(InputChanged, match=rf"was computed from {customers} .* dropped and created again"):
        step(ports, story.topology, story.topology.table("enriched"), "test")
    assert lake.versions(ports, story.topology, "enriched") == version


def test_names_that_need_quoting_go_all_the_way(ports: Ports, kafka: Kafka, topic: Callable[..., str]) -> None:
    left, right = topic("my-topic.v1"), topic("select")
    builder = StreamsBuilder(f"names-{left}")
    items = builder.table(left, Consumed.json(key="`order` int", value="`größe` int, `it's` string, `from-to` int"))
    others = builder.table(
        right,
        Consumed.json(
            key="`from-to` int", value="`left` string, s struct<`end`:int,`my-field`:array<struct<`a-b`:int>>>"
        ),
    )
    select = ["left.*", "right.`left`", "right.s", "right.s.`my-field`[0].`a-b` AS `my-field`"]
    items.left_join(others, on="`from-to`", select=select).materialize("joined-names.v1")
    topology = builder.build()

    send(kafka, right, Record(7, {"left": "a", "s": {"end": 1, "my-field": [{"a-b": 2}]}}))
    send(kafka, left, Record({"order": 1}, {"größe": 2, "it's": "x", "from-to": 7}), Record(2, {"größe": 3}))
    lake.land_all(ports, topology)
    assert {done.outcome for done in lake.step_all(ports, topology).values()} == {"stepped"}
    send(kafka, right, Record(7, {"left": "b", "s": {"end": 1, "my-field": [{"a-b": 3}]}}))
    lake.land_all(ports, topology)
    lake.step_all(ports, topology)
    columns = ["größe", "it's", "from-to", "left", "my-field"]
    assert lake.rows(ports, topology, "joined-names.v1", columns) == {
        1: {"größe": 2, "it's": "x", "from-to": 7, "left": "b", "my-field": 3},
        2: {"größe": 3, "it's": None, "from-to": None, "left": None, "my-field": None},
    }
