"""Mistakes at the builder: sources, formats, names, topics and settings."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from spark.topology import (
    Consumed,
    Produced,
    StreamsBuilder,
    TimeWindows,
    Topology,
    TopologyError,
    Versioned,
)
from spark.topology.handles import KTable
from tests.topology.mistakes import IT, Act, raised, shown
from tests.topology.shop import CLICKS, CUSTOMERS, ORDERS, PRODUCTS, Shop


def test_a_topic_is_produced_in_a_format_that_there_is() -> None:
    shop = Shop()
    with pytest.raises(TopologyError, match=r"produced is 'json'\n.*\n  write to\(topic, Produced.json\(\)\)"):
        shop.orders.to("orders-again", "json")  # type: ignore[arg-type]  # what a user may write
    shop.orders.to("orders-again", Produced.json())
    assert shop.builder.build().table("orders").produced == Produced.json()


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("orders", "'orders' is already stored: orders at tests/topology/shop.py:"),
        ("Products", "'products' is already stored"),
        ("_large", "the name '_large' cannot be a folder"),
        (".large", "cannot be a folder"),
        ("large/orders", "cannot be a folder"),
        ("large orders", "cannot be a folder"),
        ("", "cannot be a folder"),
        ("x" * 250, "at most 249 characters"),
    ],
)
def test_a_wrong_name_of_a_table_is_refused(name: str, what: str) -> None:
    message = raised(lambda shop: shop.orders.filter("amount > 1").materialize(name))
    assert message.startswith(f"table {name} (filter of orders): ")
    assert IT in message
    assert what in message


def test_two_tables_of_one_name_are_told_by_both_lines() -> None:
    shop = Shop()
    shop.orders.filter("amount > 1").materialize("large")
    with pytest.raises(TopologyError) as caught:
        shop.orders.filter("amount > 2").materialize("large")
    line = shop.builder.build().table("large").line
    assert line is not None
    message = str(caught.value)
    assert message.startswith(
        f"table large (filter of orders): 'large' is already stored: filter of orders at {line}\n"
    )
    assert message.endswith(f"  at {shown(__file__)}:{line.line + 2}")


def test_the_same_rows_are_not_stored_twice() -> None:
    shop = Shop()
    shop.orders.filter("amount > 1").materialize("large")
    with pytest.raises(TopologyError, match="the same rows are already stored as 'large' at"):
        shop.orders.filter("amount > 1").materialize("also_large")
    with pytest.raises(TopologyError, match="the same rows are already stored as 'orders' at"):
        shop.orders.materialize("orders_again")


def test_a_topic_cannot_take_the_name_of_a_table() -> None:
    shop = Shop()
    shop.orders.filter("amount > 1").materialize("large")
    with pytest.raises(TopologyError, match="'large' is already stored: filter of orders at"):
        shop.builder.table("large", ORDERS)


def counted(shop: Shop) -> KTable:
    """Windows of clicks."""
    return shop.clicks.group_by("sku").windowed_by(TimeWindows.of("1m", grace="0s")).count("Window_Start")


@pytest.mark.parametrize(
    ("told", "what", "mistake"),
    [
        (
            "orders to topic orders",
            "the topology reads this topic, as table() at",
            lambda shop: shop.orders.to("orders"),
        ),
        ("orders to topic a b", "'a b' is not a valid topic name", lambda shop: shop.orders.to("a b")),
        (
            "customers to topic out",
            "the table 'orders' is already published to this topic",
            lambda shop: [shop.orders.to("out"), shop.customers.to("out")],
        ),
        (
            "orders to topic b",
            "the table 'orders' is already published to 'a'",
            lambda shop: [shop.orders.to("a"), shop.orders.to("b")],
        ),
        (
            "table later",
            "'orders' is published to this topic",
            lambda shop: [shop.orders.to("later"), shop.builder.table("later", ORDERS)],
        ),
        (
            "table out (clicks)",
            "'out' is already stored",
            lambda shop: [shop.orders.filter("true").materialize("out"), shop.clicks.to("out")],
        ),
        ("windows of clicks by sku to topic out", "published as window_start", lambda shop: counted(shop).to("out")),
    ],
)
def test_what_cannot_be_published_is_told(told: str, what: str, mistake: Callable[[Shop], object]) -> None:
    message = raised(mistake)
    assert message.startswith(f"{told}: ")
    assert what in message
    assert "tests/topology/test_errors_builder.py:" in message


SOURCES: list[tuple[str, str, Act]] = [
    (
        "table orders",
        "the topic 'orders' is already declared as table() at tests/topology/shop.py:",
        lambda shop: shop.builder.table("orders", CUSTOMERS),
    ),
    (
        "stream orders",
        "declare a topic once, and use its handle several times",
        lambda shop: shop.builder.stream("orders", ORDERS),
    ),
    (
        "global_table clicks",
        "the topic 'clicks' is already declared as stream() at",
        lambda shop: shop.builder.global_table("clicks", CLICKS),
    ),
    (
        "stream Clicks",
        "the topic 'clicks' is already declared as stream() at",
        lambda shop: shop.builder.stream("Clicks", CLICKS),
    ),
    (
        "table prices",
        "'7 days' is not a duration",
        lambda shop: shop.builder.table("prices", PRODUCTS, versioned=Versioned("7 days")),
    ),
    (
        "global_table prices",
        'write versioned=Versioned("7d")',
        lambda shop: shop.builder.global_table("prices", PRODUCTS, versioned="7d"),  # type: ignore[arg-type]  # the mistake
    ),
    (
        "table prices",
        "consumed is 'id bigint'\n  write Consumed.json(",
        lambda shop: shop.builder.table("prices", "id bigint"),  # type: ignore[arg-type]  # the mistake
    ),
    (
        "stream a b",
        "'a b' is not a valid topic name",
        lambda shop: shop.builder.stream("a b", PRODUCTS),
    ),
    (
        "stream ..",
        "'..' is not a valid topic name",
        lambda shop: shop.builder.stream("..", PRODUCTS),
    ),
    (
        "table _schemas (_schemas)",
        "the name '_schemas' cannot be a folder",
        lambda shop: shop.builder.table("_schemas", PRODUCTS),
    ),
]


@pytest.mark.parametrize(("node", "what", "act"), SOURCES)
def test_a_wrong_source_is_refused(node: str, what: str, act: Act) -> None:
    message = raised(act)
    assert message.startswith(f"{node}: ")
    assert what in message


def test_a_topic_declared_twice_shows_its_columns() -> None:
    assert IT in raised(lambda shop: shop.builder.table("orders", CUSTOMERS))


CONSUMED: list[tuple[str, str, Act]] = [
    (
        "Consumed.json key",
        "a column name is missing, at character 1 of ''",
        lambda _: Consumed.json(key="", value="v int"),
    ),
    (
        "Consumed.json value",
        "there is no type 'decimall'; did you mean decimal?, at character 8 of 'amount decimall(12,2)'",
        lambda _: Consumed.json(key="id int", value="amount decimall(12,2)"),
    ),
    (
        "Consumed.json value",
        "the column name '_offset' begins with an underscore",
        lambda _: Consumed.json(key="id int", value="_offset bigint"),
    ),
    (
        "Consumed.json",
        "the key column 'id' is double, and a key needs exact equality\n  key has: id double",
        lambda _: Consumed.json(key="id double", value="v int"),
    ),
    (
        "Consumed.json",
        "the key column 'ids' is array<int>",
        lambda _: Consumed.json(key="ids array<int>", value="v int"),
    ),
    (
        "Consumed.json",
        "the timestamp 'at' is not a column\n  key has: id int\n  value has: v int",
        lambda _: Consumed.json(key="id int", value="v int", timestamp="at"),
    ),
    (
        "Consumed.json",
        "the timestamp 'v' is int\n",
        lambda _: Consumed.json(key="id int", value="v int", timestamp="v"),
    ),
    (
        "Consumed.json",
        "the timestamp 7 is not a column\n",
        lambda _: Consumed.json(key="id int", value="v int", timestamp=7),  # type: ignore[arg-type]  # the mistake
    ),
    (
        "Consumed.json",
        "the column 'm' is map<int,string>, and the keys of a JSON object are strings\n",
        lambda _: Consumed.json(key="id int", value="m map<int,string>"),
    ),
    (
        "Consumed.json",
        "'id' is int in the key and string in the value\n  key has: id int\n  value has: ID string",
        lambda _: Consumed.json(key="id int", value="ID string"),
    ),
    (
        "Consumed.avro",
        "registry is no URL without credentials\n",
        lambda _: Consumed.avro(key="id int", value="v int", registry="https://me:secret@host"),
    ),
    (
        "Consumed.debezium",
        "registry is no URL without credentials\n",
        lambda _: Consumed.debezium(key="id int", value="v int", format="avro", registry="host:8081"),
    ),
    (
        "Consumed.debezium",
        "format is 'json', which has no registry\n  write format=\"avro\", or no registry",
        lambda _: Consumed.debezium(key="id int", value="v int", registry="https://host:8081"),
    ),
    (
        "Consumed.debezium",
        'format is \'xml\'\n  write "json", "json_with_schemas" or "avro"',
        lambda _: Consumed.debezium(key="id int", value="v int", format="xml"),
    ),
    (
        "Consumed.debezium",
        "truncate is 'yes'\n  write True or False",
        lambda _: Consumed.debezium(key="id int", value="v int", truncate="yes"),  # type: ignore[arg-type]  # the mistake
    ),
    (
        "Consumed.debezium",
        "time_unit is 's'\n  write one of ",
        lambda _: Consumed.debezium(key="id int", value="v int", time_unit="s"),
    ),
    (
        "Consumed.debezium",
        "placeholder is ''\n  write the connector's unavailable.value.placeholder",
        lambda _: Consumed.debezium(key="id int", value="v int", placeholder=""),
    ),
]


@pytest.mark.parametrize(("node", "what", "act"), CONSUMED)
def test_a_wrong_declaration_is_refused(node: str, what: str, act: Act) -> None:
    message = raised(act)
    assert message.startswith(f"{node}: ")
    assert what in message


BUILDERS: list[tuple[str, Act]] = [
    ("the name 'a/b' cannot be a folder", lambda _: StreamsBuilder("a/b")),
    ("the name '_shop' cannot be a folder", lambda _: StreamsBuilder("_shop")),
    ("the name 7 cannot be a folder", lambda _: StreamsBuilder(7)),  # type: ignore[arg-type]  # the mistake
    ("max_task_idle_ms is -2", lambda _: StreamsBuilder("s", max_task_idle_ms=-2)),
    ("message_timestamp_after_max_ms is -1", lambda _: StreamsBuilder("s", message_timestamp_after_max_ms=-1)),
    ("max_task_idle_ms is '1 s'", lambda _: StreamsBuilder("s", max_task_idle_ms="1 s")),  # type: ignore[arg-type]  # the mistake
    ("max_records_per_tick is 0", lambda _: StreamsBuilder("s", max_records_per_tick=0)),
    ("max_records_per_tick is True", lambda _: StreamsBuilder("s", max_records_per_tick=True)),
    ('write "exactly_once_v2" or "at', lambda _: StreamsBuilder("s", processing_guarantee="exactly_twice")),
    ('write "fail" or "ledger"', lambda _: StreamsBuilder("s", on_data_loss="ignore")),
    ("processing_guarantee is ['x']", lambda _: StreamsBuilder("s", processing_guarantee=["x"])),  # type: ignore[arg-type]  # the mistake
    ("on_data_loss is {}", lambda _: StreamsBuilder("s", on_data_loss={})),  # type: ignore[arg-type]  # the mistake
    ("ansi is 'no'", lambda _: StreamsBuilder("s", ansi="no")),  # type: ignore[arg-type]  # the mistake
]


@pytest.mark.parametrize(("what", "act"), BUILDERS)
def test_a_wrong_setting_is_refused(what: str, act: Act) -> None:
    message = raised(act)
    assert message.startswith("StreamsBuilder ")
    assert what in message


def test_an_empty_topology_is_refused() -> None:
    assert raised(lambda _: StreamsBuilder("empty").build()).startswith("topology empty: no topic is declared\n")


def test_data_that_is_no_topology_is_refused() -> None:
    with pytest.raises(TopologyError, match=r"the data is a settings; pass what Topology\.to_dict"):
        Topology.from_dict({"is": "settings", "ansi": True})


def test_a_file_outside_the_working_folder_is_named_in_full(tmp_path: Path) -> None:
    file = tmp_path / "topology.py"
    code = compile("\n\nbuilder.stream('a b', None)", str(file), "exec")
    with pytest.raises(TopologyError) as caught:
        exec(code, {"builder": StreamsBuilder("s")})
    assert str(caught.value).endswith(f"  at {file}:3")


def test_an_error_can_be_sent_to_another_process() -> None:
    with pytest.raises(TopologyError) as caught:
        StreamsBuilder("a/b")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
