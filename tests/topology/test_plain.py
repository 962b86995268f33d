"""A topology travels as plain data, and its fingerprint changes with the question alone."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark.topology import Consumed, StreamsBuilder, Topology
from spark.topology.handles import GlobalKTable, KTable
from spark.topology.nodes import Scan
from spark.topology.serialization import to_plain
from tests.topology.shop import CUSTOMERS, Shop, whole_shop


def travelled(topology: Topology) -> Topology:
    """The topology after a journey through JSON."""
    return Topology.from_dict(json.loads(json.dumps(topology.to_dict())))


def test_the_shop_survives_the_journey() -> None:
    topology = whole_shop()
    assert travelled(topology) == topology
    assert travelled(topology).fingerprint() == topology.fingerprint()
    assert travelled(topology).describe() == topology.describe()


def test_no_line_travels() -> None:
    topology = whole_shop()
    assert "shop.py" not in json.dumps(topology.to_dict())
    assert travelled(topology).table("orders_enriched").line is None


def test_plain_data_reads_like_the_plan() -> None:
    builder = StreamsBuilder("t")
    builder.table("topic", Consumed.json(key="id int", value="v string")).filter("v > 'a'").materialize("large")
    columns = [{"is": "column", "name": "id", "type": "int"}, {"is": "column", "name": "v", "type": "string"}]
    data = builder.build().to_dict()
    assert isinstance(data["tables"], list)
    assert data["tables"][1] == {
        "is": "table",
        "name": "large",
        "plan": {
            "is": "select",
            "source": {
                **{"is": "scan", "table": "topic", "key": ["id"], "columns": columns},
                **{"appended": False, "by_time": False},
            },
            "select": [["id", "id"], ["v", "v"]],
            "columns": columns,
            "where": "v > 'a'",
            "rekeyed": None,
        },
        "followed": False,
        "topic": None,
        "produced": {
            **{"is": "produced", "format": "json", "key_format": "json", "headers": None},
            **{"name": None, "subject_name_strategy": "topic", "registry": None},
        },
        "former_rows_read": False,
    }


def test_a_field_that_has_its_default_is_no_part_of_a_fingerprint() -> None:
    scan = Scan("topic", ("id",), ())
    assert to_plain(scan) == {
        "is": "scan",
        "table": "topic",
        "key": ["id"],
        "columns": [],
        "appended": False,
        "by_time": False,
    }
    assert to_plain(scan, defaults=False) == {"is": "scan", "table": "topic", "key": ["id"], "columns": []}
    assert to_plain(replace(scan, appended=True), defaults=False) != to_plain(scan, defaults=False)


def test_a_line_that_moves_changes_no_fingerprint() -> None:
    one, other = Shop(), Shop()
    one.orders.filter("amount > 100").materialize("large")

    other.orders.filter(
        """
        amount
          > 100
        """
    ).materialize("large")
    assert one.builder.build().table("large").line != other.builder.build().table("large").line
    assert one.builder.build().fingerprint() == other.builder.build().fingerprint()


def test_a_plan_that_changes_changes_its_own_fingerprint_alone() -> None:
    one, other = Shop(), Shop()
    for shop, limit in ((one, 100), (other, 101)):
        large = shop.orders.filter(f"amount > {limit}").materialize("large")
        large.map_values("sku").materialize("skus")
    before, after = one.builder.build(), other.builder.build()
    assert before.fingerprint() != after.fingerprint()
    assert before.fingerprint("large") != after.fingerprint("large")
    assert before.fingerprint("skus") == after.fingerprint("skus")
    assert before.fingerprint("orders") == after.fingerprint("orders")


def test_a_view_is_part_of_the_fingerprint_of_the_table_that_reads_it() -> None:
    one, other = Shop(), Shop()
    one.orders.filter("amount > 100").map_values("sku").materialize("skus")
    other.orders.filter("amount > 101").map_values("sku").materialize("skus")
    assert one.builder.build().fingerprint("skus") != other.builder.build().fingerprint("skus")


def test_a_column_added_to_an_input_concerns_only_who_takes_it() -> None:
    def enriched(orders: str) -> Topology:
        builder = StreamsBuilder("shop")
        left = builder.table("orders", Consumed.json(key="order_id bigint", value=orders))
        right = builder.table("customers", CUSTOMERS)
        some = left.filter("amount > 1").join(right, on="customer_id", select=["left.amount", "right.name"])
        some.materialize("some")
        left.join(right, on="customer_id", select=["left.*", "right.name"]).materialize("all")
        return builder.build()

    before, after = enriched("customer_id bigint, amount int"), enriched("customer_id bigint, amount int, note string")
    assert before.fingerprint("some") == after.fingerprint("some")
    assert before.fingerprint("all") != after.fingerprint("all")
    assert before.fingerprint("orders") != after.fingerprint("orders")


def test_a_column_added_to_a_view_concerns_only_who_reads_it() -> None:
    def asked(more: list[str]) -> Topology:
        builder = StreamsBuilder("shop")
        orders = builder.table("orders", Consumed.json(key="order_id bigint", value="customer_id bigint, amount int"))
        customers = builder.table("customers", CUSTOMERS)
        view = orders.join(customers, on="customer_id", select=["left.*", "right.name", *(f"right.{m}" for m in more)])
        view = view.map_values(["name", "amount", *more])
        view.group_by("name").aggregate(total="sum(amount)").materialize("totals")
        view.filter("true").materialize("all").to_stream().materialize("told")
        clicks = builder.stream("clicks", Consumed.json(key="click_id bigint", value="at bigint, tags array<string>"))
        tagged = clicks.map_values(["tags", *(["at + 1 AS later"] if more else [])]).flat_map("tags")
        tagged.group_by("tags").count().materialize("tagged")
        tagged.select_key("tags").to_table().materialize("newest")
        return builder.build()

    before, after = asked([]), asked(["country"])
    for name in ("totals", "tagged"):
        assert before.fingerprint(name) == after.fingerprint(name), name
    for name in ("all", "told", "newest"):
        assert before.fingerprint(name) != after.fingerprint(name), name
    assert "country" in after.describe("totals"), "what is declared is shown"


@pytest.mark.parametrize("read", ["abs(`left`.a)", "abs(`LEFT`.`a`)", "abs(left . a)", "abs(`right`.b)"])
def test_what_a_quoted_side_reads_is_in_the_fingerprint(read: str) -> None:
    def asked(a: str, b: str) -> Topology:
        builder = StreamsBuilder("t")
        ours, theirs = (
            builder.table(topic, Consumed.json(key="id int", value=f"{name} int, c int")).map_values(
                [f"{text} AS {name}"]
            )
            for topic, name, text in (("ours", "a", a), ("theirs", "b", b))
        )
        ours.join(theirs, select=[f"{read} AS z"]).materialize("t")
        return builder.build()

    changed = asked("a", "b + 1") if "b" in read.partition(".")[2] else asked("a + 1", "b")
    assert asked("a", "b").fingerprint("t") != changed.fingerprint("t")


def test_ansi_rules_change_what_every_expression_means() -> None:
    one, other = StreamsBuilder("t"), StreamsBuilder("t", ansi=False)
    for builder in (one, other):
        topic = builder.table("topic", Consumed.json(key="id int", value="v string"))
        topic.filter("v::int > 0").materialize("positive")
    assert one.build().fingerprint("topic") == other.build().fingerprint("topic")
    assert one.build().fingerprint("positive") != other.build().fingerprint("positive")
    assert "an expression that fails is: null" in other.build().describe("positive")


def test_settings_and_unread_views_change_no_table() -> None:
    one, other = StreamsBuilder("t"), StreamsBuilder("t", max_task_idle_ms=5)
    for builder in (one, other):
        builder.table("topic", Consumed.json(key="id int", value="v string"))
    assert one.build().fingerprint() != other.build().fingerprint()
    assert one.build().fingerprint("topic") == other.build().fingerprint("topic")
    shop = Shop()
    before = shop.builder.build()
    shop.orders.filter("amount > 1")
    assert shop.builder.build() == before
    assert shop.builder.build().fingerprint() == before.fingerprint()


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    """A topology over up to three topics of one integer key and value, with up to six operators on them."""
    builder = StreamsBuilder("random", ansi=draw(st.booleans()))
    consumed = Consumed.json(key="id int", value="v int")
    handles = [builder.table(f"topic{i}", consumed) for i in range(draw(st.integers(1, 3)))]
    looked_up = builder.global_table("everywhere", consumed)
    for number in range(draw(st.integers(0, 6))):
        handle = draw(st.sampled_from(handles))
        rights: list[KTable | GlobalKTable] = [*handles, looked_up]
        other = draw(st.sampled_from(rights))
        on = draw(st.sampled_from([None, "v", "id", "cast(v + 1 AS int)"]))
        drive = draw(st.sampled_from(["both", "left"]))
        kind = draw(st.sampled_from(["filter", "map_values", "group_by", "join", "left_join", "outer_join"]))
        name = f"table{number}"
        match kind:
            # the number keeps a question from being asked, and stored, twice
            case "filter":
                made = handle.filter(f"v > {number}")
            case "map_values":
                made = handle.map_values(f"cast(v * {number} AS int) AS v")
            case "group_by":
                made = handle.group_by("id").aggregate(v=f"cast(max(v) + {number} AS int)")
            case "outer_join":
                select = [f"coalesce(left.v, right.v, {number})::int AS v"]
                made = handle.outer_join(draw(st.sampled_from(handles)), select=select)
            case "join":
                select = ["left.*", f"{number} AS n{number}"]
                made = handle.join(other, on=on, select=select, drive="left" if drive == "left" else "both")
            case _:
                select = [f"coalesce(left.v, right.v, {number})::int AS v"]
                made = handle.left_join(other, on=on, select=select, drive="left" if drive == "left" else "both")
        if (drive == "left" and kind in ("join", "left_join")) or draw(st.booleans()):
            made.materialize(name)
        handles.append(made)
    return builder.build()


@given(topologies())
def test_any_topology_survives_the_journey(topology: Topology) -> None:
    again = travelled(topology)
    assert again == topology
    assert again.fingerprint() == topology.fingerprint()
    assert again.graph() == topology.graph()
    assert [again.fingerprint(t.name) for t in again.tables] == [topology.fingerprint(t.name) for t in topology.tables]


@given(topologies())
def test_any_table_reads_a_landing_or_tables_before_it(topology: Topology) -> None:
    ready = {source.landing for source in topology.sources}
    for table in topology.tables:
        assert {scan.table for scan in table.inputs} <= ready
        assert table.plan.columns[: len(table.plan.key)] == table.plan.columns[:1]
        ready.add(table.name)
