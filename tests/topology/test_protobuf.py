"""A Protobuf topic is checked against its descriptors when it is declared, and the plan holds them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from spark.topology import Consumed, StreamsBuilder, Topology, TopologyError
from spark.topology.protobuf import Message, columns_of
from tests.support.protos import descriptors, file, message_class, well_known

SHOP = file(
    "shop.proto",
    {
        "Key": {"id": "int64"},
        "Order": {
            "id": "int64",
            "note": "optional string",
            "status": "Status",
            "price": "Price",
            "lines": "repeated Order.Line",
            "by_code": "map<string, int32>",
            "at": ".google.protobuf.Timestamp",
            "parent": "Order",
            "total": "uint64",
        },
        "Order.Line": {"sku": "string", "count": "uint32"},
        "Price": {"cents": "sint64", "currency": "string"},
    },
    enums={"Status": ["OPEN", "PAID"]},
    imports=["google/protobuf/timestamp.proto"],
)
FILES = descriptors(well_known("timestamp"), well_known("struct"), SHOP)
ORDER = (
    "id bigint, note string, status string, price struct<cents:bigint,currency:string>, "
    "lines array<struct<sku:string,count:bigint>>, by_code map<string,int>, at timestamp, total decimal(20,0)"
)


def declared(value: str, **more: Any) -> Consumed:
    given = {"key": "id bigint", "message": "shop.Order", "descriptors": FILES, "key_format": "kafka", **more}
    return Consumed.protobuf(value=value, **given)


def test_a_message_has_the_columns_that_its_descriptors_say() -> None:
    consumed = declared(ORDER, timestamp="at")
    assert consumed.message is not None
    kinds = {column.name: column.type for column in columns_of(consumed.message)}
    assert ", ".join(f"{name} {kind}" for name, kind in kinds.items() if name != "parent") == ORDER
    assert kinds["parent"] is None  # it contains itself, so any depth must be declared
    declared("parent struct<id:bigint,parent:struct<status:int>>, total bigint, price struct<cents:bigint>")
    assert consumed.message.index == (1,)
    line = declared("sku string", message="shop.Order.Line").message
    assert line is not None
    assert line.index == (1, 1)  # the entries of the map are the first message inside


def test_the_plan_holds_the_files_that_the_message_needs() -> None:
    builder = StreamsBuilder("t")
    builder.table("orders", declared("note string"))
    topology = builder.build()
    again = Topology.from_dict(json.loads(json.dumps(topology.to_dict())))
    assert again == topology
    message = again.sources[0].consumed.message
    assert isinstance(message, Message)
    names = [re.search(rb"[\w/]+\.proto", one) for one in message.files]
    assert [name and name.group() for name in names] == [b"google/protobuf/timestamp.proto", b"shop.proto"]
    assert message.descriptors not in repr(again)
    wider = descriptors(well_known("timestamp"), _with_field("extra"))
    builder = StreamsBuilder("t")
    builder.table("orders", declared("note string", descriptors=wider))
    assert builder.build().fingerprint("orders") == topology.fingerprint("orders")  # no table is computed again


def _with_field(name: str) -> Any:
    wider = type(SHOP).FromString(SHOP.SerializeToString())
    wider.message_type[1].field.add(name=name, number=99, type=9, label=1)
    return wider


def test_a_relative_path_is_relative_to_the_file_that_declares_the_topic(tmp_path: Path) -> None:
    (tmp_path / "shop.desc").write_bytes(FILES)
    code = compile(
        "consumed = Consumed.protobuf(key='id bigint', value='note string', message='shop.Order', "
        "key_message='shop.Key', descriptors='shop.desc')",
        str(tmp_path / "orders.py"),
        "exec",
    )
    names: dict[str, Any] = {"Consumed": Consumed}
    exec(code, names)
    consumed = names["consumed"]
    assert (consumed.format, consumed.key_format, consumed.key_message.name) == ("protobuf", "protobuf", "shop.Key")


@pytest.mark.parametrize(
    ("value", "more", "says"),
    [
        ("nota string", {}, "has no field 'nota' (nota)\n  shop.Order has: id bigint, note string"),
        ("nota string", {}, "leave it out; did you mean note?"),
        ("id int", {"key": "x string"}, "id is declared int, and in shop.Order it is int64"),
        ("status bigint", {}, "declare status as string"),
        ("price struct<cent:bigint>", {}, "the message shop.Price has no field 'cent' (price.cent)"),
        ("lines array<struct<count:int>>", {}, "lines.count is declared int, and in shop.Order.Line it is uint32"),
        ("by_code map<string,string>", {}, "and in shop.Order it is map<string, int32>"),
        ("at bigint", {}, "declare at as timestamp"),
        ("note string", {"message": "shop.Ordr"}, "no message shop.Ordr\n  they have google.protobuf.Timestamp"),
        ("note string", {"message": "shop.Ordr"}, "did you mean shop.Order?"),
        ("note string", {"message": None}, "message is None"),
        ("note string", {"descriptors": b"syntax = 'proto3';"}, "descriptors are no FileDescriptorSet"),
        ("note string", {"descriptors": descriptors(SHOP)}, "shop.proto imports google/protobuf/timestamp.proto"),
        ("note string", {"descriptors": "no.desc"}, "the descriptors 'no.desc' cannot be read (No such file"),
        ("note string", {"descriptors": 5}, "descriptors are of the type int"),
        ("note string", {"key_format": "protobuf"}, 'write key_message="shop.OrderKey"'),
        ("note string", {"key_message": "shop.Key"}, "key_message is 'shop.Key', and key_format is 'kafka'"),
        ("note string", {"key_format": "protobuf", "key_message": "shop.Price"}, "shop.Price has no field 'id'"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_what_to_do(value: str, more: dict[str, Any], says: str) -> None:
    with pytest.raises(TopologyError) as caught:
        declared(value, **more)
    assert says in str(caught.value)
    assert "Consumed.protobuf" in str(caught.value)
    assert "test_protobuf.py" in str(caught.value)


def test_other_formats_have_no_protobuf_keys() -> None:
    with pytest.raises(TopologyError, match=r"""key_format is 'protobuf'[\s\S]*"json_schema" or "kafka\""""):
        Consumed.json(key="id bigint", value="note string", key_format="protobuf")


def test_the_descriptors_are_those_that_protobuf_itself_reads() -> None:
    order = message_class(FILES, "shop.Order")
    assert [field.name for field in order.DESCRIPTOR.fields] == [
        *(c.split()[0] for c in ORDER.split(", ")[:-1]),
        "parent",
        "total",
    ]
