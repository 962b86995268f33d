"""Protobuf by descriptors: every type, presence, framing, broken records, and what the workers of an engine need."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa  # type: ignore[import-untyped]  # it has no types
import pytest
from google.protobuf.json_format import ParseDict
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet
from pyspark.cloudpickle import dumps

from spark.serdes.protobuf import Messages, kind
from spark.serdes.protobuf_worker import reader
from spark.serdes.schemas import NO_SCHEMAS
from spark.topology.errors import Place
from spark.topology.protobuf import check_message, message_of
from spark.topology.sql.ddl import parse_columns
from tests.support.protos import descriptors, file, message_class, well_known

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pyspark.sql import SparkSession

    from spark.serdes.part import Part

PLACE = Place("test", None)
IMPORTS = ("google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto", "google/protobuf/struct.proto")
ENUMS = {"Status": ("OPEN", "PAID")}
NESTED = {"Price": {"cents": "sint64", "currency": "optional string"}}


def set_of(
    fields: dict[str, str], *, syntax: str = "proto3", more: Mapping[str, Mapping[str, str]] | None = None
) -> bytes:
    """Descriptors of a message shop.Row with these fields, and of others."""
    optional = {"Price": NESTED["Price"]} if syntax == "proto3" else {"Price": {"cents": "optional sint64"}}
    made = file("row.proto", {"Row": fields, **optional, **(more or {})}, enums=ENUMS, imports=IMPORTS, syntax=syntax)
    return descriptors(*map(well_known, ("timestamp", "wrappers", "struct")), made)


def reads(files: bytes, columns: str, part: Part = "value", name: str = "shop.Row") -> Callable[..., Iterable[Any]]:
    """What a worker reads a message with; the declaration is checked as that of a topic."""
    message, declared = message_of(name, files, PLACE), parse_columns(columns, PLACE)
    check_message(message, declared, PLACE)
    kinds = tuple((column.name, kind(str(column.type))) for column in declared)
    return reader(part, message.name, message.files, message.index, kinds)


def decoded(
    files: bytes, columns: str, *raw: bytes | None, part: Part = "value", name: str = "shop.Row"
) -> list[tuple[Any, str | None]]:
    """The row of each record as a dict, and its error."""
    batch = pa.RecordBatch.from_pydict({f"_{part}": pa.array(raw, pa.binary())})
    [found] = reads(files, columns, part, name)([batch])
    assert found.column(0).equals(batch.column(0))
    rows = [None if one is None else _plain(one) for one in found.column(1).to_pylist()]
    errors = found.column(2).to_pylist()
    return [(None if error else row, error) for row, error in zip(rows, errors, strict=True)]


def _plain(value: Any) -> Any:
    """Maps as dicts, which pyarrow has as lists of pairs, and times with one kind of UTC."""
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list):
        pairs = bool(value) and isinstance(value[0], tuple)
        return {key: _plain(one) for key, one in value} if pairs else [_plain(one) for one in value]
    return value.astimezone(UTC) if isinstance(value, datetime) else value


@dataclass(frozen=True)
class Type:
    """A field, the type it is declared with, what is sent (as JSON), and the value of the column."""

    field: str
    kind: str
    sent: Any
    value: Any


TIME, INT64 = ".google.protobuf.Timestamp", ".google.protobuf.Int64Value"
VALUE, STRUCT = ".google.protobuf.Value", ".google.protobuf.Struct"
MAX = b"\xff" * 9 + b"\1"  # 2**64 - 1
NAN = bytes(6) + b"\xf8\x7f"
AT = "2026-11-25T01:02:03.000004Z"
TYPES = (
    Type("double", "double", 0.1, 0.1),
    Type("double", "double", "Infinity", math.inf),
    Type("float", "float", 1.5, 1.5),
    Type("float", "double", 0.25, 0.25),
    Type("int32", "int", -(2**31), -(2**31)),
    Type("int32", "bigint", 7, 7),
    Type("sint32", "int", -7, -7),
    Type("sfixed32", "int", -7, -7),
    Type("int64", "bigint", -(2**63), -(2**63)),
    Type("sint64", "bigint", 2**63 - 1, 2**63 - 1),
    Type("sfixed64", "bigint", -7, -7),
    Type("uint32", "bigint", 2**32 - 1, 2**32 - 1),
    Type("fixed32", "bigint", 2**32 - 1, 2**32 - 1),
    Type("uint64", "decimal(20,0)", 2**64 - 1, Decimal(2**64 - 1)),
    Type("uint64", "bigint", 2**63 - 1, 2**63 - 1),
    Type("fixed64", "decimal(20,0)", 2**64 - 1, Decimal(2**64 - 1)),
    Type("bool", "boolean", True, True),
    Type("string", "string", "é\0𝄞", "é\0𝄞"),
    Type("bytes", "binary", "AP8=", b"\0\xff"),
    Type("Status", "string", "PAID", "PAID"),
    Type("Status", "string", 9, "9"),
    Type("Status", "int", 9, 9),
    Type("Price", "struct<cents:bigint,currency:string>", {"cents": 5}, {"cents": 5, "currency": None}),
    Type("repeated int64", "array<bigint>", [1, 0], [1, 0]),
    Type("repeated Status", "array<string>", ["OPEN", "PAID"], ["OPEN", "PAID"]),
    Type("repeated Price", "array<struct<cents:bigint>>", [{"cents": 5}, {}], [{"cents": 5}, {"cents": 0}]),
    Type("map<string, Price>", "map<string,struct<cents:bigint>>", {"b": {"cents": 5}}, {"b": {"cents": 5}}),
    Type("map<int64, string>", "map<bigint,string>", {"7": "x", "-1": ""}, {-1: "", 7: "x"}),
    Type("map<uint64, string>", "map<bigint,string>", {"7": "x"}, {7: "x"}),
    Type("map<uint64, bytes>", "map<decimal(20,0),binary>", {str(2**64 - 1): ""}, {Decimal(2**64 - 1): b""}),
    Type(".google.protobuf.Timestamp", "timestamp", AT, datetime(2026, 11, 25, 1, 2, 3, 4, UTC)),
    Type(".google.protobuf.Timestamp", "struct<seconds:bigint,nanos:int>", AT, {"seconds": 1795568523, "nanos": 4000}),
    Type("repeated .google.protobuf.Timestamp", "array<timestamp>", [AT], [datetime(2026, 11, 25, 1, 2, 3, 4, UTC)]),
    Type(".google.protobuf.Int64Value", "bigint", 0, 0),
    Type(".google.protobuf.UInt64Value", "decimal(20,0)", 5, Decimal(5)),
    Type(".google.protobuf.StringValue", "string", "", ""),
    Type(".google.protobuf.Struct", "string", {"b": [1, None], "a": {"é": True}}, '{"a":{"é":true},"b":[1,null]}'),
    Type(".google.protobuf.Value", "string", "text", '"text"'),
    Type(".google.protobuf.ListValue", "string", [1.5], "[1.5]"),
)  # fmt: skip


def all_types() -> tuple[bytes, str, bytes, dict[str, Any]]:
    """Descriptors of a message with all types, the declaration, a message and its row."""
    named = {f"c{number}": one for number, one in enumerate(TYPES)}
    files = set_of({name: one.field for name, one in named.items()})
    sent = {name: one.sent for name, one in named.items()}
    message = ParseDict(sent, message_class(files, "shop.Row")())
    columns = ", ".join(f"{name} {one.kind}" for name, one in named.items())
    return files, columns, message.SerializeToString(), {name: one.value for name, one in named.items()}


def test_every_type_is_read_and_absent_fields_are_defaults_or_null() -> None:
    files, columns, raw, row = all_types()
    [whole, absent] = decoded(files, columns, raw, b"")
    assert whole == (row, None)
    assert absent[1] is None
    for number, one in enumerate(TYPES):
        found = absent[0][f"c{number}"]
        if one.field[0] in ".P":  # a message
            assert found is None
        elif one.field.startswith(("repeated ", "map<")):
            assert found == []
        else:
            zero = {"string": "OPEN" if one.field == "Status" else "", "binary": b"", "boolean": False}
            assert found == zero.get(one.kind, 0)


def test_spark_reads_what_the_workers_read_and_keeps_the_other_columns(session: SparkSession) -> None:
    files, columns, raw, row = all_types()
    kept = "_n int, _value binary, _timestamp timestamp, _headers array<struct<key:string,value:binary>>, "
    kept += "_key_row struct<id:decimal(20,0)>"
    at = datetime(2026, 11, 25, 1, 2, 3, 4)
    name = next(f"c{number}" for number, one in enumerate(TYPES) if one.field == "map<uint64, string>")
    great = ParseDict({name: {str(2**63): ""}}, message_class(files, "shop.Row")()).SerializeToString()
    records = [
        (0, raw, at, [("h", b"\0"), ("h", None)], (Decimal(7),)),
        (1, None, None, None, None),
        (2, b"\xff", at, [], None),
        (3, great, at, [], None),
    ]
    frame = session.createDataFrame(records, kept)
    found = Messages(message_of("shop.Row", files, PLACE)).decode(
        frame, "value", parse_columns(columns, PLACE), NO_SCHEMAS
    )
    assert found.schema.names == [*frame.schema.names, "_value_row", "_value_error"]
    first, second, third, fourth = (one.asDict(recursive=True) for one in sorted(found.collect()))
    for one, sent in zip((first, second, third, fourth), sorted(frame.collect()), strict=True):
        assert {name: one[name] for name in frame.columns} == sent.asDict(recursive=True)
    local = {name: _local(value) for name, value in row.items()}
    assert (first["_value_row"], first["_value_error"]) == (local, None)
    assert (second["_value_row"], second["_value_error"]) == (None, None)
    assert third["_value_error"] == "the value does not decode as the Protobuf message shop.Row"
    assert fourth["_value_error"] == f"the value's {name}.key does not fit bigint: it is too great"


def _local(value: Any) -> Any:
    """Times as Spark returns them: in the zone of this process, without the zone."""
    if isinstance(value, list):
        return [_local(one) for one in value]
    return value.astimezone().replace(tzinfo=None) if isinstance(value, datetime) else value


def test_presence_is_that_of_the_syntax() -> None:
    new = set_of({"a": "int32", "b": "optional int32", "c": "oneof string", "d": "oneof int32"})
    row = message_class(new, "shop.Row")
    assert decoded(new, "a int, b int, c string, d int", b"", row(a=0, b=0, d=0).SerializeToString()) == [
        ({"a": 0, "b": None, "c": None, "d": None}, None),
        ({"a": 0, "b": 0, "c": None, "d": 0}, None),
    ]
    old = set_of({"a": "optional int32", "b": "optional int32 = -5", "c": "optional Status"}, syntax="proto2")
    assert decoded(old, "a int, b int, c string", b"") == [({"a": None, "b": -5, "c": None}, None)]
    required = set_of({"a": "required int32"}, syntax="proto2")
    assert decoded(required, "a int", b"", b"\x08\x07") == [
        (None, "the value lacks a required field of shop.Row"),
        ({"a": 7}, None),
    ]


def test_a_newer_writer_may_have_more_fields() -> None:
    old, new = set_of({"a": "int32"}), set_of({"a": "int32", "b": "Price"})
    row = message_class(new, "shop.Row")(a=7, b={"cents": 5})
    assert decoded(old, "a int", row.SerializeToString()) == [({"a": 7}, None)]


def test_a_framed_record_is_read_and_one_of_another_message_is_refused() -> None:
    files = set_of({"a": "int32"}, more={"Other": {"x": "int32"}, "Other.Inner": {"a": "int32"}})
    seven, schema, guid = b"\x08\x07", b"\0\0\0\0\x05", b"\1" + bytes(range(16))
    read = [(({"a": 7}), None)]
    for framed in (seven, schema + b"\0" + seven, schema + b"\x02\0" + seven, guid + b"\0" + seven):
        assert decoded(files, "a int", framed) == read
    inner = schema + b"\x04\x04\0" + seven  # the first message of the third
    assert decoded(files, "a int", inner, name="shop.Other.Inner") == read
    assert decoded(files, "a int", schema + b"\0", b"") == [({"a": 0}, None)] * 2
    other = "the value is message [2, 0] of its schema, and shop.Row is message [0]"
    assert decoded(files, "a int", inner) == [(None, other)]
    neither = "the key is neither a Protobuf message nor framed"
    broken = (b"\0", schema, schema + b"\x02", schema + b"\x01\0", schema + b"\xff" * 6, guid[:9], b"\3\0", b"\7")
    for [row, error] in decoded(files, "a int", *broken, part="key"):
        assert row is None
        assert error is not None
        assert error.startswith(neither)


@pytest.mark.parametrize(
    ("fields", "columns", "raw", "error"),
    [
        ({"a": "int32"}, "a int", b"\x0a\x01x", "the value's a was written as another type than shop.Row has"),
        ({"a": "int32"}, "a int", b"\x08\x07\0", "the value does not decode as the Protobuf message shop.Row"),
        ({"a": "Status"}, "a string", b"\x0a\0", "the value's a was written as another type"),
        ({"a": "Status"}, "a string", b"\x0d" + bytes(4), "the value's a was written as another type"),
        ({"p": "Price"}, "p struct<cents:bigint>", b"\x0a\x03\x0a\x01x", "the value's p.cents was written as another"),
        ({"p": "repeated Price"}, "p array<struct<cents:bigint>>", b"\x0a\0\x0a\x03\x0a\x01x", "the value's p.cents"),
        ({"w": INT64}, "w bigint", b"\x0a\x09\x09" + NAN, "the value's w does not fit bigint: value was written"),
        ({"w": f"repeated {INT64}"}, "w array<bigint>", b"\x0a\0\x0a\2\x0a\0", "w does not fit bigint: value was"),
        ({"w": f"map<int32, {INT64}>"}, "w map<int,bigint>", b"\x0a\4\x12\2\x0a\0", "w.value does not fit bigint: val"),
        ({"t": TIME}, "t timestamp", b"\x0a\2\x0a\0", "the value's t does not fit timestamp: seconds was written"),
        ({"v": VALUE}, "v string", b"\x0a\2\x10\7", "the value's v does not fit string: number_value was written"),
        ({"v": VALUE}, "v string", b"\x0a\6\x32\4\x0a\2\x10\7", "number_value was written as another type than google"),
        ({"s": STRUCT}, "s string", b"\x0a\6\x0a\4\x12\2\x10\7", "number_value was written as another type than"),
        ({"s": STRUCT}, "s string", b"\x0a\4\x0a\2\x10\7", "fields was written as another type than google.pro"),
        ({"a": "string"}, "a string", b"\x0a\x01\xff", "the value does not decode as the Protobuf message shop.Row"),
        ({"a": "uint64"}, "a bigint", b"\x08" + MAX, "the value's a does not fit bigint: it is too great"),
        ({"a": "repeated uint64"}, "a array<bigint>", b"\x0a\x0b\0" + MAX, "the value's a does not fit bigint: it is"),
        ({"t": TIME}, "t timestamp", b"\x0a\2\x10\1", "the value's t does not fit timestamp: it is finer than micro"),
        ({"t": TIME}, "t timestamp", b"\x0a\x07\x08" + b"\xff" * 5 + b"\x7f", "it is outside of the years 1 to 9999"),
        ({"v": VALUE}, "v string", b"\x0a\x09\x11" + NAN, "does not fit string: JSON has no such"),
    ],
)  # fmt: skip
def test_a_value_that_does_not_fit_is_an_error(fields: dict[str, str], columns: str, raw: bytes, error: str) -> None:
    good = message_class(set_of(fields), "shop.Row")().SerializeToString()
    first, [row, found], last = decoded(set_of(fields), columns, good, raw, good)
    assert first[1] is last[1] is None  # the record's own
    assert row is None
    assert found is not None
    assert error in found


def test_a_text_of_proto2_that_is_no_utf_8_is_an_error() -> None:
    files = set_of({"a": "optional string"}, syntax="proto2")
    assert decoded(files, "a string", b"\x0a\x01\xff", b"\x0a\2\xc3\xa9") == [
        (None, "the value's a does not fit string: it is no UTF-8"),
        ({"a": "é"}, None),
    ]


def test_a_number_that_a_closed_enum_does_not_have_is_an_error_if_the_field_is_declared() -> None:
    fields = {"c": "optional Status", "d": "repeated Status", "m": "map<string, Status>", "n": "optional int32"}
    old = set_of(fields, syntax="proto2")
    columns = {"c": "c string", "d": "d array<string>", "m": "m map<string,string>", "n": "n int"}
    good = b"\x08\1\x12\2\0\1\x1a\5\x0a\1x\x10\1"
    row = {"c": "PAID", "d": ["OPEN", "PAID"], "m": {"x": "PAID"}, "n": None}
    assert decoded(old, ", ".join(columns.values()), good) == [(row, None)]
    for name, more in (
        ("c", b"\x08\x09"),
        ("c", b"\x08" + MAX),  # -1
        ("d", b"\x10\x09"),
        ("d", b"\x12\2\1\x09"),  # packed
        ("m", b"\x1a\5\x0a\1y\x10\x09"),
    ):
        error = f"the value's {name} has a number that the enum shop.Status does not have"
        others = ", ".join(column for one, column in columns.items() if one != name)
        assert decoded(old, columns[name], good + more) == [(None, error)]
        [(_, skipped), (_, wrong)] = decoded(old, others, good + more, good + more + b"\x22\0")
        assert skipped is None
        assert wrong == "the value's n was written as another type than shop.Row has"
    assert decoded(old, "c int", b"\x08\x09")[0][0] is None
    new = set_of({"m": "map<string, Status>"})
    assert decoded(new, "m map<string,string>", b"\x0a\5\x0a\1y\x10\x09", b"\x0a\5\x0a\1y\x12\0") == [
        ({"m": {"y": "9"}}, None),
        (None, "the value's m was written as another type than shop.Row has"),
    ]


def test_a_map_whose_key_does_not_fit_is_an_error_of_its_record_alone() -> None:
    files = set_of({"m": "map<uint64, string>"})
    row = message_class(files, "shop.Row")
    good, great = row(m={2: "b", 1: "a"}).SerializeToString(), row(m={2**63: "c", 1: "a"}).SerializeToString()
    read = ({"m": {1: "a", 2: "b"}}, None)
    wrong = (None, "the value's m.key does not fit bigint: it is too great")
    assert decoded(files, "m map<bigint,string>", good, great, good) == [read, wrong, read]

    old = set_of({"p": "repeated Codes"}, syntax="proto2", more={"Codes": {"m": "map<string, int32>"}})
    codes, no_utf_8 = b"\x0a\x05\x0a\x01x\x10\x07", b"\x0a\x05\x0a\x01\xff\x10\x07"  # entries of the map
    whole = b"\x0a\x07" + codes
    broken = whole + b"\x0a\x0e" + codes + no_utf_8
    held = ({"p": [{"m": {"x": 7}}]}, None)
    no_text = (None, "the value's p.m.key does not fit string: it is no UTF-8")
    assert decoded(old, "p array<struct<m:map<string,int>>>", whole, broken, whole) == [held, no_text, held]


FUZZED = {
    "id": "int64",
    "note": "optional string",
    "status": "Status",
    "price": "Price",
    "lines": "repeated Price",
    "codes": "map<string, int32>",
    "at": ".google.protobuf.Timestamp",
    "total": "uint64",
    "ratio": "double",
}
DECLARED = (
    "id bigint, note string, status string, price struct<cents:bigint,currency:string>, "
    "lines array<struct<cents:bigint,currency:string>>, codes map<string,int>, at timestamp, total decimal(20,0), "
    "ratio double"
)


def fuzzed(count: int, seed: int) -> tuple[bytes, list[bytes]]:
    """Descriptors, and framed messages of which most are broken."""
    files, draw = set_of(FUZZED), random.Random(seed)
    row = message_class(files, "shop.Row")
    made = []
    for number in range(count):
        one = row(
            id=draw.randrange(-(2**63), 2**63),
            status=draw.randrange(3),
            total=draw.randrange(2**64),
            ratio=draw.random(),
        )
        one.codes[draw.choice("abc")] = number
        one.lines.add(cents=draw.randrange(100), currency="EUR")
        one.at.seconds = draw.randrange(2**33)
        if draw.random() < 0.5:
            one.note, one.price.cents = "né" * draw.randrange(9), draw.randrange(10**9)
        raw = bytearray(b"\0\0\0\0\1\0" + one.SerializeToString())
        for _ in range(draw.choice((0, 1, 1, 2, 9))):
            at = draw.randrange(len(raw) + 1)
            match draw.randrange(4):
                case 0:
                    raw[at : at + 1] = bytes([draw.randrange(256)])
                case 1:
                    del raw[at:]
                case 2:
                    raw[at:at] = draw.randbytes(draw.randrange(1, 12))
                case _:
                    del raw[at : at + draw.randrange(1, 9)]
        made.append(bytes(raw))
    return files, made


def own_reading(row: Any, raw: bytes) -> dict[str, Any] | None:
    """What Protobuf's own library reads of a bare or framed message; None if it is broken."""
    if raw[:1] == b"\0":
        if raw[5:6] == b"\0":
            raw = raw[6:]
        elif raw[5:7] == b"\2\0":
            raw = raw[7:]
        else:
            return None
    try:
        one = row.FromString(raw)
    except DecodeError:
        return None
    parts = [one, *([one.price] if one.HasField("price") else []), *one.lines]
    numbers = {part.DESCRIPTOR.full_name: set(part.DESCRIPTOR.fields_by_number) for part in parts}
    if any(each.field_number in numbers[p.DESCRIPTOR.full_name] for p in parts for each in UnknownFieldSet(p)):
        return None
    at = None
    if one.HasField("at"):
        if one.at.nanos % 1000 or not 0 <= one.at.nanos < 10**9:
            return None
        try:
            at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=one.at.seconds, microseconds=one.at.nanos // 1000)
        except OverflowError:
            return None
    status = one.DESCRIPTOR.fields_by_name["status"].enum_type.values_by_number.get(one.status)
    return {
        "id": one.id,
        "note": one.note if one.HasField("note") else None,
        "status": str(one.status) if status is None else status.name,
        "price": _price(one.price) if one.HasField("price") else None,
        "lines": [_price(line) for line in one.lines],
        "codes": dict(one.codes) or [],
        "at": at,
        "total": Decimal(one.total),
        "ratio": one.ratio,
    }


def _price(price: Any) -> dict[str, Any]:
    return {"cents": price.cents, "currency": price.currency if price.HasField("currency") else None}


def test_10_000_fuzzed_records_are_decoded_as_protobuf_itself_reads_them_or_quarantined() -> None:
    files, made = fuzzed(10_000, seed=1)
    row = message_class(files, "shop.Row")
    found = decoded(files, DECLARED, *made)
    good = 0
    for raw, (values, error) in zip(made, found, strict=True):
        assert (values is None) != (error is None), raw.hex()
        wanted = own_reading(row, raw)
        assert repr(values) == repr(wanted), (raw.hex(), error)  # by their text, since NaN is not NaN
        good += error is None
    assert 3_000 < good < 9_000


def test_what_is_sent_to_the_engine_needs_no_tidetable_there() -> None:
    files, columns, raw, _ = all_types()
    sent = dumps(reads(files, columns)).hex()  # type: ignore[no-untyped-call]  # it has no types
    without = f"""
import sys, pyarrow as pa
class Nowhere:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("spark", "resources", "tidetable", "assets", "dagster_project", "tests"):
            raise ImportError(name)
sys.meta_path.insert(0, Nowhere())
from pyspark.cloudpickle import loads
read = loads(bytes.fromhex("{sent}"))
[batch] = read([pa.RecordBatch.from_pydict({{"_value": [bytes.fromhex("{raw.hex()}")]}})])
print(batch.column(1)[0]["c4"], batch.column(2)[0])
"""
    done = subprocess.run([sys.executable, "-c", without], capture_output=True, text=True, cwd="/", check=True)
    assert done.stdout == "-2147483648 None\n"
