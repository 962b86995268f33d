"""What a builder builds: plans over stored tables, in topological order."""

from __future__ import annotations

import json

import pytest

from spark.topology import Consumed, StreamsBuilder, Topology, TopologyError
from spark.topology.columns import Column
from spark.topology.nodes import Join, Latest, Records, Scan, Select
from tests.topology.shop import Shop

ORDER_COLUMNS = (
    Column("order_id", "bigint"),
    Column("customer_id", "bigint"),
    Column("sku", "string"),
    Column("amount", "decimal(12,2)"),
)


def names(shop: Shop) -> list[str]:
    """The stored tables in their order, without the topics' own."""
    topics = ("orders", "customers", "products")
    return [table.name for table in shop.builder.build().tables if table.name not in topics]


def test_the_design_example_builds_as_written() -> None:
    builder = StreamsBuilder("shop")
    orders = builder.table(
        "orders", Consumed.json(key="order_id bigint", value="customer_id bigint, amount decimal(12,2)")
    )
    customers = builder.table("customers", Consumed.json(key="customer_id bigint", value="name string, country string"))
    builder.global_table("products", Consumed.json(key="sku string", value="title string"))
    builder.stream("clicks", Consumed.json(key="user_id bigint", value="sku string, at timestamp", timestamp="at"))
    enriched = orders.join(customers, on="customer_id", select=["left.*", "right.name", "right.country"])
    enriched.materialize("orders_enriched")
    topology = builder.build()

    left = Scan("orders", ("order_id",), (*ORDER_COLUMNS[:2], ORDER_COLUMNS[3]))
    right = Scan(
        "customers",
        ("customer_id",),
        (Column("customer_id", "bigint"), Column("name", "string"), Column("country", "string")),
    )
    assert topology.table("orders_enriched").plan == Join(
        left,
        right,
        "inner",
        (
            ("order_id", "left.order_id"),
            ("customer_id", "left.customer_id"),
            ("amount", "left.amount"),
            ("name", "right.name"),
            ("country", "right.country"),
        ),
        (*left.columns, *right.columns[1:]),
        ("customer_id",),
        "both",
    )
    assert topology.table("orders_enriched").inputs == (left, right)
    assert [source.topic for source in topology.sources] == ["orders", "customers", "products", "clicks"]


def test_a_topic_table_is_the_newest_record_of_its_landing() -> None:
    topology = Shop().builder.build()
    assert topology.table("orders").plan == Latest(
        Records(Scan("_landing/orders", ("order_id",), ORDER_COLUMNS, appended=True))
    )
    assert topology.source("orders").landing == "_landing/orders"


def test_a_stream_has_a_landing_and_no_table() -> None:
    topology = Shop().builder.build()
    assert topology.source("clicks").consumed.timestamp == "at"
    with pytest.raises(TopologyError, match="there is no table 'clicks'"):
        topology.table("clicks")


def test_a_stream_alone_is_a_topology() -> None:
    builder = StreamsBuilder("clicks")
    builder.stream("clicks", Consumed.json(key="id bigint", value="url string"))
    assert builder.build().tables == ()


def test_views_compose() -> None:
    shop = Shop()
    shop.orders.filter("amount > 100").map_values("sku").filter("sku IS NOT NULL").materialize("skus")
    plan = shop.builder.build().table("skus").plan
    assert isinstance(plan, Select)
    assert plan.where == "sku IS NOT NULL"
    (mapped,) = plan.sources
    assert isinstance(mapped, Select)
    assert mapped.select == (("order_id", "order_id"), ("sku", "sku"))
    (filtered,) = mapped.sources
    assert filtered.sources == (Scan("orders", ("order_id",), ORDER_COLUMNS),)


def test_a_stored_node_below_another_is_a_scan_whenever_it_was_stored() -> None:
    shop = Shop()
    large = shop.orders.filter("amount > 100")
    large.map_values("sku").materialize("skus")
    large.materialize("large")
    assert names(shop) == ["large", "skus"]
    plan = shop.builder.build().table("skus").plan
    assert plan.sources == (Scan("large", ("order_id",), ORDER_COLUMNS),)


def test_a_view_written_twice_is_one_question() -> None:
    shop = Shop()
    shop.orders.filter("amount > 100").materialize("large")
    shop.orders.filter("amount  >\n100").map_values("sku").materialize("skus")
    assert shop.builder.build().table("skus").plan.sources == (Scan("large", ("order_id",), ORDER_COLUMNS),)


def test_tables_come_in_the_order_of_declaration_where_it_is_free() -> None:
    shop = Shop()
    for name in ("zebra", "ant", "mole"):
        shop.orders.filter(f"sku = '{name}'").materialize(name)
    assert names(shop) == ["zebra", "ant", "mole"]


def test_materialize_returns_the_handle() -> None:
    shop = Shop()
    shop.orders.filter("amount > 100").materialize("large").map_values("sku").materialize("skus")
    assert names(shop) == ["large", "skus"]


def test_equal_keys_join_by_position_whatever_their_names() -> None:
    builder = StreamsBuilder("keys")
    left = builder.table("a", Consumed.json(key="x int, y string", value="v int"))
    right = builder.table("b", Consumed.json(key="p int, q string", value="w int"))
    left.join(right, select=["right.*", "right.q AS q"]).materialize("c")
    plan = builder.build().table("c").plan
    assert isinstance(plan, Join)
    assert plan.on == ("x", "y")
    assert plan.select == (("x", "left.x"), ("y", "left.y"), ("w", "right.w"), ("q", "right.q"))


def test_a_lookup_is_any_expression_over_left_columns() -> None:
    shop = Shop()
    joined = shop.orders.left_join(shop.products, on=["upper(trim(sku))"], select="right.title", drive="left")
    joined.materialize("titled")
    plan = shop.builder.build().table("titled").plan
    assert isinstance(plan, Join)
    assert (plan.how, plan.on, plan.drive) == ("left", ("upper(trim(sku))",), "left")


def test_the_key_is_passed_through_first_though_not_selected() -> None:
    shop = Shop()
    shop.orders.map_values(["sku", "order_id"]).materialize("skus")
    assert shop.builder.build().table("skus").plan.columns == (ORDER_COLUMNS[0], ORDER_COLUMNS[2])


def test_types_are_known_of_columns_and_casts_alone() -> None:
    shop = Shop()
    shop.orders.map_values(
        ["AMOUNT", "sku AS Code", "cast(amount AS Double) AS d", "amount::int AS i", "amount + 1 AS more"]
    ).materialize("typed")
    assert shop.builder.build().table("typed").plan.columns[1:] == (
        Column("amount", "decimal(12,2)"),
        Column("Code", "string"),
        Column("d", "double"),
        Column("i", "int"),
        Column("more", None),
    )


def test_a_name_that_is_no_plain_word_is_backquoted() -> None:
    builder = StreamsBuilder("names")
    table = builder.table("t", Consumed.json(key="`my-key` int", value="`größe` int, plain int"))
    table.join(table, on="`my-key`", select=["right.*"]).materialize("u")
    assert builder.build().table("u").plan.columns == (
        Column("my-key", "int"),
        Column("größe", "int"),
        Column("plain", "int"),
    )
    plan = builder.build().table("u").plan
    assert isinstance(plan, Join)
    assert plan.on == ("`my-key`",)
    assert plan.select == (("my-key", "left.`my-key`"), ("größe", "right.`größe`"), ("plain", "right.plain"))


def test_a_value_column_named_like_a_key_column_is_the_keys() -> None:
    consumed = Consumed.json(key="Id bigint", value="ID long, name string", timestamp="id")
    assert consumed.columns == (Column("Id", "bigint"), Column("name", "string"))
    assert consumed.timestamp == "Id"
    assert consumed.again == (Column("ID", "bigint"),)


def test_settings_are_part_of_the_topology() -> None:
    builder = StreamsBuilder(
        "s",
        max_task_idle_ms=-1,
        max_records_per_tick=10,
        processing_guarantee="exactly_once",
        ansi=False,
        on_data_loss="ledger",
    )
    builder.table("t", Consumed.json(key="id int", value="v int"))
    made = builder.build()
    settings = made.settings
    assert (settings.max_task_idle_ms, settings.max_records_per_tick) == (-1, 10)
    assert settings.processing_guarantee == "exactly_once_v2"
    assert settings.ansi is False
    assert settings.on_data_loss == "ledger"
    assert Topology.from_dict(made.to_dict()) == made


def test_what_is_done_about_lost_data_is_no_part_of_what_a_table_is() -> None:
    made = []
    for on_data_loss in ("fail", "ledger"):
        builder = StreamsBuilder("s", on_data_loss=on_data_loss)
        builder.table("t", Consumed.json(key="id int", value="v int"))
        made.append(builder.build().fingerprint("t"))
    assert made[0] == made[1]


def test_what_is_computed_from_a_table_is_known_in_order() -> None:
    shop = Shop()
    large = shop.orders.filter("amount > 100").materialize("large")
    large.group_by("sku").count().materialize("counted")
    made = shop.builder.build()
    assert [table.name for table in made.downstream("orders")] == ["large", "counted"]
    assert made.downstream("counted") == ()


def test_a_node_knows_the_line_it_was_written_on() -> None:
    shop = Shop()
    shop.orders.filter("amount > 100").materialize("large")
    topology = shop.builder.build()
    table, plan = topology.table("large"), topology.table("large").plan
    assert isinstance(plan, Select)
    assert table.line == plan.line
    assert str(table.line).startswith("tests/topology/test_builder.py:")
    assert str(topology.source("orders").line).startswith("tests/topology/shop.py:")


def test_what_does_not_exist_is_told_with_what_does() -> None:
    topology = Shop().builder.build()
    with pytest.raises(TopologyError, match=r"no topic 'order'\n  it has orders, customers, products, clicks\n"):
        topology.source("order")


def test_what_is_published_is_stored_under_its_own_name_or_the_topics() -> None:
    shop = Shop()
    large = shop.orders.filter("amount > 100").materialize("large")
    large.to("large-orders")
    shop.clicks.filter("sku IS NOT NULL").to("clicked")
    topology = shop.builder.build()
    assert {table.name: table.topic for table in topology.tables if table.topic is not None} == {
        "large": "large-orders",
        "clicked": "clicked",
    }
    assert Topology.from_dict(json.loads(json.dumps(topology.to_dict()))) == topology
    assert "    Sink: KSTREAM-SINK-" in topology.describe()
    assert "(topic: large-orders)\n      <-- KTABLE-FILTER-" in topology.describe()
    assert "  published to: topic large-orders\n" in topology.describe("large")
    assert '(["large-orders"])' in topology.graph()


def test_publishing_changes_no_fingerprint_of_a_table() -> None:
    one, other = Shop(), Shop()
    one.orders.to("copies")
    before, after = other.builder.build(), one.builder.build()
    assert after.fingerprint("orders") == before.fingerprint("orders")
    assert after.fingerprint() != before.fingerprint()


def test_a_table_of_a_stored_stream_is_looked_up_at_the_pin() -> None:
    builder = StreamsBuilder("t")
    changes = builder.stream("changes", Consumed.json(key="id int", value="name string"))
    clicks = builder.stream("clicks", Consumed.json(key="k int", value="id int"))
    kept = changes.filter("name <> ''")
    clicks.join(kept.to_table(), on="id", select=["right.name"]).materialize("named")
    assert "as of the record's place in the merge order" in builder.build().describe("named")
    kept.materialize("kept")
    assert "read at the pin" in builder.build().describe("named")
