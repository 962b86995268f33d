"""The Avro schemas of published columns: the same text for the same columns; what Avro does not have is refused."""

from __future__ import annotations

import json
from typing import Any

import fastavro
import pytest

from spark.topology import Consumed, Produced, StreamsBuilder
from spark.topology.avro_schema import TYPES, full_name, schema_of
from spark.topology.columns import WINDOW_BOUNDS, Column
from tests.topology.mistakes import Act, raised

SCALARS = tuple(Column(kind, kind) for kind in TYPES)
NESTED = (
    Column("price", "decimal(12,2)"),
    Column("tags", "array<string>"),
    Column("parts", "map<string,array<decimal(38,38)>>"),
    Column("address", "struct<city:string,at:struct<lat:double>>"),
    Column("lines", "array<struct<sku:string,amount:decimal(5,0)>>"),
)


def schema(part: str, *columns: Column, name: str = "com.shop.Order") -> Any:
    text = schema_of(part, columns, name)
    fastavro.parse_schema(json.loads(text))  # another implementation of Avro takes it
    assert schema_of(part, columns, name) == text
    return json.loads(text)


def test_a_value_is_a_record_whose_fields_are_null_by_default() -> None:
    found = schema("value", *SCALARS)
    assert {name: found[name] for name in ("type", "name", "namespace")} == {
        "type": "record",
        "name": "Order",
        "namespace": "com.shop",
    }
    assert found["fields"] == [{"name": kind, "type": ["null", avro], "default": None} for kind, avro in TYPES.items()]


def test_arrays_maps_and_structs_are_made_of_their_parts() -> None:
    text = schema_of("value", NESTED, "Order")
    assert text == (
        '{"type":"record","name":"Order","fields":['
        '{"name":"price","type":["null",{"type":"bytes","logicalType":"decimal","precision":12,"scale":2}],'
        '"default":null},'
        '{"name":"tags","type":["null",{"type":"array","items":["null","string"]}],"default":null},'
        '{"name":"parts","type":["null",{"type":"map","values":["null",{"type":"array","items":["null",'
        '{"type":"bytes","logicalType":"decimal","precision":38,"scale":38}]}]}],"default":null},'
        '{"name":"address","type":["null",{"type":"record","name":"Order_address","fields":['
        '{"name":"city","type":["null","string"],"default":null},'
        '{"name":"at","type":["null",{"type":"record","name":"Order_address_at","fields":['
        '{"name":"lat","type":["null","double"],"default":null}]}],"default":null}]}],"default":null},'
        '{"name":"lines","type":["null",{"type":"array","items":["null",{"type":"record","name":"Order_lines",'
        '"fields":[{"name":"sku","type":["null","string"],"default":null},'
        '{"name":"amount","type":["null",{"type":"bytes","logicalType":"decimal","precision":5,"scale":0}],'
        '"default":null}]}]}],"default":null}]}'
    )
    schema("value", *NESTED)
    assert schema("value") == {"type": "record", "name": "Order", "namespace": "com.shop", "fields": []}


def test_a_key_of_one_column_is_bare_and_one_of_several_a_record() -> None:
    assert schema("key", Column("order-id", "bigint")) == "long"
    assert schema("key", Column("day", "date")) == {"type": "int", "logicalType": "date"}
    windowed = schema("key", Column("sku", "string"), *WINDOW_BOUNDS, name="com.shop.OrderKey")
    assert [field["name"] for field in windowed["fields"]] == ["sku", "window_start", "window_end"]


@pytest.mark.parametrize(
    ("topic", "name", "key", "value"),
    [
        ("orders", None, "orders.Key", "orders.Value"),
        ("shop.public.order-lines", None, "shop.public.order_lines.Key", "shop.public.order_lines.Value"),
        ("7.eleven..é", None, "_7.eleven._._.Key", "_7.eleven._._.Value"),
        ("orders", "com.shop.Order", "com.shop.OrderKey", "com.shop.Order"),
        ("orders", "Order", "OrderKey", "Order"),
    ],
)
def test_records_are_named_by_the_topic_or_by_the_user(topic: str, name: str | None, key: str, value: str) -> None:
    assert (full_name(topic, name, "key"), full_name(topic, name, "value")) == (key, value)
    schema("value", Column("a", "int"), name=value)


AVRO = Produced.avro()
TWO_OF_A_NAME = ["cast(null AS struct<b:struct<c:int>>) AS a", "cast(null AS struct<c:int>) AS a_b"]


MISTAKES: list[tuple[Act, str]] = [
    (lambda _: Produced.avro(key_format="xml"), 'key_format is \'xml\'\n  write "avro", "json" or "kafka"\n'),
    (
        lambda _: Produced.avro(subject_name_strategy="table", name="Order"),
        'Produced.avro: subject_name_strategy is \'table\'\n  write one of "topic", "record", "topic_record"\n',
    ),
    (
        lambda _: Produced.avro(subject_name_strategy="record"),
        'the subject is named by the record (record), and the record has no name\n  write name="com.shop.Order"\n',
    ),
    (lambda _: Produced.avro(name="com.shop.7"), "name is 'com.shop.7'\n  write a full name of Avro"),
    (lambda _: Produced.avro(name=7), "name is 7\n"),  # type: ignore[arg-type]  # what a user may write
    (lambda _: Produced.avro(registry="https://me:secret@host"), "registry is no URL without credentials\n"),
    (
        lambda shop: shop.orders.map_values("amount AS `the-amount`").to("there", AVRO),
        "to topic there: the name 'the-amount' cannot be that of a field of Avro\n"
        "  it has: order_id bigint, the-amount decimal(12,2)\n"
        '  rename it, as in map_values(["`order-id` AS order_id"]): ASCII letters, digits and _, no digit first\n',
    ),
    (
        lambda shop: shop.orders.map_values("amount AS größe").to("there", AVRO),
        "the name 'größe' cannot be that of a field of Avro\n",
    ),
    (
        lambda shop: shop.orders.map_values("cast(null AS struct<a:array<struct<`b-c`:int>>>) AS s").to("there", AVRO),
        "the name 's.a.b-c' cannot be that of a field of Avro\n",
    ),
    (
        lambda shop: shop.orders.map_values("cast(null AS map<int,string>) AS m").to("there", AVRO),
        "'m' is map<int,string>, and the keys of a map of Avro are strings\n",
    ),
    (
        lambda shop: shop.orders.map_values("cast(null AS array<map<date,int>>) AS m").to("there", AVRO),
        "'m' is map<date,int>, and the keys of a map of Avro are strings\n",
    ),
    (
        lambda shop: shop.clicks.map_values("cast(null AS variant) AS v").to("there", AVRO),
        "'v' is variant, and Avro has no such type\n",
    ),
    (
        lambda shop: shop.orders.map_values(TWO_OF_A_NAME).to("there", AVRO),
        "the structs a.b and a_b would be records of Avro with one name, ..._a_b\n",
    ),
]


@pytest.mark.parametrize(("act", "what"), MISTAKES)
def test_what_avro_does_not_have_is_refused_with_the_line(act: Act, what: str) -> None:
    assert what in raised(act)


def test_the_declaration_is_part_of_the_topology_and_described() -> None:
    builder = StreamsBuilder("shop")
    table = builder.table("orders", Consumed.json(key="id int", value="v int"))
    produced = Produced.avro(name="com.shop.Order", subject_name_strategy="topic_record", key_format="kafka")
    table.to("there", produced)
    topology = builder.build()
    assert topology.table("orders").produced == produced
    assert type(topology).from_dict(topology.to_dict()) == topology
    assert "published to: topic there, values in avro, keys in kafka\n" in topology.describe()
