"""Read-only tables: declared without a lake, used as any table, and never written by who follows them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from spark.topology import Consumed, StreamsBuilder, Topology, TopologyError
from spark.topology.columns import Column
from spark.topology.leaders import reading_columns
from spark.topology.nodes import leader_name, leader_parts

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark.topology.leaders import StoredColumns

KEY, VALUE = "id bigint", "name string, amount decimal(12,2)"


def following() -> tuple[StreamsBuilder, Topology]:
    """A topology over two leaders, one of them in another lake and looked up as a global table."""
    builder = StreamsBuilder("follower")
    customers = builder.read_only_table("customers", from_="leader.customers", key=KEY, value=VALUE)
    rates = builder.read_only_global_table(
        "rates", from_="far/rates", key="sku string", value="rate double", lake="s3://lake/", allow_missing=True
    )
    orders = builder.table("orders", Consumed.json(key="order_id bigint", value="customer_id bigint, sku string"))
    named = orders.join(customers, on="customer_id", select=["left.*", "right.name"])
    named.left_join(rates, on="sku", select=["left.*", "right.rate"]).materialize("rated")
    customers.materialize("copy")
    customers.to_stream().materialize("changed")
    return builder, builder.build()


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("orders", None),
        ("_landing/orders", None),
        ("shop/orders", (None, "shop", "orders")),
        ("/a/lake/shop/orders", ("/a/lake", "shop", "orders")),
        ("s3://a/lake/shop/orders", ("s3://a/lake", "shop", "orders")),
    ],
)
def test_a_name_says_whose_table_it_is(name: str, parts: tuple[str | None, str, str] | None) -> None:
    assert leader_parts(name) == parts
    if parts is not None:
        lake, topology, table = parts
        assert leader_name(topology, table, lake) == name


def test_a_topology_over_leaders_is_built_without_a_lake_and_says_what_it_reads() -> None:
    _, made = following()
    assert [leader.scan.table for leader in made.leaders] == ["leader/customers", "s3://lake/far/rates"]
    assert [leader.allow_missing for leader in made.leaders] == [False, True]
    assert [scan.table for scan in made.table("rated").inputs] == ["orders", "copy", "s3://lake/far/rates"]
    assert [scan.table for scan in made.table("copy").inputs] == ["leader/customers"]
    assert made.source_topics["copy"] == set()
    assert made.source_topics["rated"] == {"orders"}
    text = made.describe()
    assert "Source: KTABLE-SOURCE-0000000002 (table: leader.customers)" in text
    assert "is: leader/customers (read-only)" in text
    assert "right: s3://lake/far/rates (read-only, global table)" in text
    assert 'leader1[/"far.rates in s3://lake"/]' in made.graph()
    assert Topology.from_dict(made.to_dict()) == made


def test_a_topology_of_leaders_alone_needs_no_topic_and_no_setting_about_topics() -> None:
    builder = StreamsBuilder("follower")
    builder.read_only_table("c", from_="leader.c", key=KEY, value="").materialize("copy")
    assert builder.build().sources == ()
    builder = StreamsBuilder("follower", max_records_per_tick=10)
    builder.read_only_table("c", from_="leader.c", key=KEY, value="").materialize("copy")
    with pytest.raises(TopologyError, match="are about topics, and no topic is declared"):
        builder.build()


def test_what_a_leader_is_called_or_how_it_is_read_changes_who_computes_what() -> None:
    def made(**options: str) -> Topology:
        builder = StreamsBuilder("follower")
        given = {"from_": "leader.customers", "value": VALUE} | options
        builder.read_only_table("c", key=KEY, **given).map_values("name").materialize("names")  # type: ignore[arg-type]
        return builder.build()

    first = made().fingerprint("names")
    assert made(value="name string").fingerprint("names") == first, "a column that is not read changes nothing"
    assert made(from_="other.customers").fingerprint("names") != first
    assert made(lake="/far").fingerprint("names") != first


@pytest.mark.parametrize(
    ("call", "what", "do"),
    [
        (lambda b: b.read_only_table("c", from_="shop", key=KEY, value=""), "from_ is 'shop'", "topology.table"),
        (lambda b: b.read_only_table("c", from_="a/b/c", key=KEY, value=""), "from_ is 'a/b/c'", "topology/table"),
        (lambda b: b.read_only_table("c", from_="follower.x", key=KEY, value=""), "of this topology", "the handle"),
        (lambda b: b.read_only_table("c", from_="a.b", key=KEY), "value= is not", 'value=""'),
        (lambda b: b.read_only_table("c", from_="a.b", value=VALUE), "key= is not", "or neither"),
        (lambda b: b.read_only_table("c", from_="a.b", key=KEY, value="ID int"), "ID is in the key", "leave it out"),
        (lambda b: b.read_only_table("c", from_="a.b", key="x float", value=""), "exact equality", "make it"),
        (lambda b: b.read_only_table("c", from_="a.b", key=KEY, value="", lake="lake"), "lake is 'lake'", "absolute"),
        (lambda b: b.read_only_table("c", from_="a.b", key=KEY, value="", allow_missing=1), "allow_missing", "True"),
        (lambda b: b.read_only_table("c", from_="leader.customers", key=KEY, value=""), "already declared", "once"),
        (lambda b: b.read_only_table("Customers", from_="a.b", key=KEY, value=""), "already declared", "once"),
        (lambda b: b.read_only_table("orders", from_="a.b", key=KEY, value=""), "is a topic of this", "another name"),
        (lambda b: b.read_only_table("copy", from_="a.b", key=KEY, value=""), "is stored by this", "another name"),
        (lambda b: b.read_only_table("c", from_="a.b"), "are not declared", 'key="..."'),
        (lambda b: b.stream("customers", Consumed.json(key=KEY, value=VALUE)), "read-only table", "otherwise"),
    ],
)
def test_a_wrong_declaration_says_what_to_write(call: Callable[[StreamsBuilder], object], what: str, do: str) -> None:
    builder, _ = following()
    with pytest.raises(TopologyError) as refused:
        call(builder)
    lines = str(refused.value).splitlines()
    assert what in lines[0]
    assert do in lines[-2]
    assert "test_leaders.py:" in lines[-1]


def test_a_follower_has_no_verb_that_writes_its_leader() -> None:
    builder = StreamsBuilder("follower")
    customers = builder.read_only_table("customers", from_="leader.customers", key=KEY, value=VALUE)
    clicks = builder.stream("clicks", Consumed.json(key="click_id bigint", value="id bigint"))
    for write in (customers.materialize, customers.filter("id > 1").materialize, customers.to):
        with pytest.raises(TopologyError, match=r"'customers' is the read-only table of leader\.customers") as refused:
            write("customers")
        assert "only the leader's own topology" in str(refused.value)
    with pytest.raises(TopologyError, match="read-only: records see it at the pin"):
        clicks.join(customers, on="id", select=["left.*"], grace="1s")


def test_columns_that_are_not_declared_are_those_that_are_stored() -> None:
    stored: dict[str, StoredColumns] = {
        "leader/customers": (("id",), (Column("id", "bigint"), Column("name", "string"))),
        "leader/keyless": (None, (Column("id", "bigint"),)),
    }
    builder = StreamsBuilder("follower")
    with reading_columns(stored.get):
        customers = builder.read_only_table("customers", from_="leader.customers")
        with pytest.raises(TopologyError, match="does not say which columns are its key"):
            builder.read_only_table("keyless", from_="leader.keyless")
        with pytest.raises(
            TopologyError, match=r"the lake has no table leader.gone to read them from\n.*tidetable run"
        ):
            builder.read_only_table("gone", from_="leader.gone")
    assert (customers.node.key, customers.node.columns) == (("id",), stored["leader/customers"][1])
