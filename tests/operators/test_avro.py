"""Avro by schemas of a registry: every type, every trap of Avro's reader, and 10,000 broken records."""

from __future__ import annotations

import io
import json
import random
import uuid
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from spark.serdes.avro import Mismatch, check, decode
from spark.serdes.schemas import UNKNOWN, Schema, Schemas
from spark.topology.errors import Place
from spark.topology.sql.ddl import parse_columns

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

    from spark.serdes.part import Part

PLACE = Place("test", None)


def record(title: str = "Row", /, **fields: object) -> dict[str, Any]:
    """A schema; a field may be its type, or a dict with `type` and `default` or `aliases`."""
    return {
        "type": "record",
        "name": title,
        "fields": [
            {
                "name": field,
                **(kind if isinstance(kind, dict) and "of" not in kind and _is_field(kind) else {"type": kind}),
            }
            for field, kind in fields.items()
        ],
    }


def _is_field(kind: Mapping[str, object]) -> bool:
    return "default" in kind or "aliases" in kind


def logical(kind: str, means: str, /, **more: object) -> dict[str, object]:
    return {"type": kind, "logicalType": means, **more}


def debezium(name: str) -> dict[str, object]:
    """A text that Kafka Connect marks by the name of Debezium's type."""
    return {"type": "string", "connect.name": f"io.debezium.time.{name}"}


def written(number: int, schema: object, value: object) -> bytes:
    """A value as the serializers of a registry write it."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)  # type: ignore[arg-type]
    return b"\0" + number.to_bytes(4, "big") + out.getvalue()


def schemas(*known: object, missing: frozenset[int] = frozenset(), is_complete: bool = True) -> Schemas:
    """Schemas with the ids 1, 2, ..."""
    made = {number: Schema(number, "AVRO", json.dumps(one)) for number, one in enumerate(known, 1)}
    return Schemas(made, missing, is_complete)


def decoded(
    session: SparkSession, columns: str, known: Schemas, *raw: bytes | None, part: Part = "value"
) -> list[tuple[Any, str | None]]:
    """The row of each record as a dict, and its error."""
    frame = session.createDataFrame([(number, one) for number, one in enumerate(raw)], f"_n int, _{part} binary")
    found = decode(frame, part, parse_columns(columns, PLACE), known)
    row = F.when(F.col(f"_{part}_error").isNull(), F.col(f"_{part}_row"))  # else its text may be no UTF-8
    rows = sorted(found.select("_n", row, f"_{part}_error").collect())
    return [(row and row.asDict(recursive=True), error) for _, row, error in rows]


def test_records_of_several_schemas_are_read_each_by_its_own(session: SparkSession) -> None:
    first = record(id="long", amount=logical("bytes", "decimal", precision=10, scale=2))
    second = record(id="long", amount=logical("bytes", "decimal", precision=12, scale=4), note=["null", "string"])
    third = record(id="int")
    rows = decoded(
        *(session, "id bigint, amount decimal(12,4), note string", schemas(first, second, third)),
        written(1, first, {"id": 1, "amount": Decimal("123.45")}),
        written(2, second, {"id": 2, "amount": Decimal("123.4567"), "note": "é"}),
        written(3, third, {"id": 3}),
        None,
    )
    assert rows == [
        ({"id": 1, "amount": Decimal("123.4500"), "note": None}, None),
        ({"id": 2, "amount": Decimal("123.4567"), "note": "é"}, None),
        ({"id": 3, "amount": None, "note": None}, None),
        (None, None),
    ]


@dataclass(frozen=True)
class Row:
    """A value of an Avro type, the declared type, and the value of the column; an error if that is `BAD`."""

    avro: object
    value: object
    declared: str
    column: object


BAD = "does not fit"
MILLIS = logical("long", "timestamp-millis")
MICROS = logical("long", "timestamp-micros")
NANOS = logical("long", "timestamp-nanos")
AT = datetime(2026, 11, 24, 12, 34, 56, 789000, UTC)
LOCAL = datetime(2026, 11, 24, 12, 34, 56, 789000)
EPOCH_NANOS = int(AT.timestamp()) * 10**9 + 789_000_000
UUID = uuid.UUID("12345678-9abc-def0-1234-56789abcdef0")
VARIABLE = {**record("VariableScaleDecimal", scale="int", value="bytes"), "namespace": "io.debezium.data"}
INNER = record("Inner", city="string", size=["null", "int"])
TWO = ["null", "int", "string"]

ROWS = {
    "boolean": Row("boolean", True, "boolean", True),
    "int": Row("int", 7, "int", 7),
    "int as bigint": Row("int", -7, "bigint", -7),
    "int as smallint": Row("int", 7, "smallint", 7),
    "int too great for tinyint": Row("int", 200, "tinyint", BAD),
    "int as string": Row("int", 7, "string", "7"),
    "int as double": Row("int", 7, "double", 7.0),
    "long": Row("long", 2**62, "bigint", 2**62),
    "long as int": Row("long", 5, "int", 5),
    "long too great for int": Row("long", 2**40, "int", BAD),
    "long as decimal": Row("long", 5, "decimal(10,2)", Decimal("5.00")),
    "long not exact as double": Row("long", 2**53 + 1, "double", BAD),
    "float": Row("float", 0.5, "float", 0.5),
    "float as double": Row("float", 0.5, "double", 0.5),
    "double": Row("double", 0.1, "double", 0.1),
    "string": Row("string", "é", "string", "é"),
    "string as decimal": Row("string", "12.50", "decimal(5,1)", Decimal("12.5")),
    "string too fine for decimal": Row("string", "12.55", "decimal(5,1)", BAD),
    "string as bigint": Row("string", "12", "bigint", 12),
    "string with a fraction as bigint": Row("string", "12.5", "bigint", BAD),
    "string as date": Row("string", "2026-11-24", "date", date(2026, 11, 24)),
    "string of half a date": Row("string", "2026-11", "date", BAD),
    "string as timestamp": Row("string", "2026-11-24T12:34:56.789Z", "timestamp", AT),
    "bytes": Row("bytes", b"\0\xff", "binary", b"\0\xff"),
    "fixed": Row({"type": "fixed", "name": "F", "size": 2}, b"ab", "binary", b"ab"),
    "enum": Row({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "string", "B"),
    "decimal": Row(
        logical("bytes", "decimal", precision=10, scale=2), Decimal("-1.25"), "decimal(10,2)", Decimal("-1.25")
    ),
    "decimal in fixed": Row(
        logical("fixed", "decimal", name="D", size=6, precision=10, scale=2),
        *(Decimal("1.25"), "decimal(10,2)", Decimal("1.25")),
    ),
    "decimal as a greater scale": Row(
        logical("bytes", "decimal", precision=10, scale=2), Decimal("123.45"), "decimal(12,3)", Decimal("123.450")
    ),
    "decimal finer than declared": Row(
        logical("bytes", "decimal", precision=10, scale=4), Decimal("1.2345"), "decimal(10,2)", BAD
    ),
    "decimal too great": Row(
        logical("bytes", "decimal", precision=10, scale=2), Decimal("12345.00"), "decimal(4,2)", BAD
    ),
    "date": Row(logical("int", "date"), date(2026, 11, 24), "date", date(2026, 11, 24)),
    "date as int": Row(logical("int", "date"), date(1970, 1, 3), "int", 2),
    "time-millis": Row(logical("int", "time-millis"), 45_296_789, "int", 45_296_789),
    "time-millis as string": Row(
        {"type": "int", "logicalType": "time-millis"}, 45_296_789, "string", "12:34:56.789000"
    ),
    "time-micros": Row(logical("long", "time-micros"), 45_296_000_000, "bigint", 45_296_000_000),
    "time-micros as string": Row(logical("long", "time-micros"), 45_296_000_000, "string", "12:34:56"),
    "timestamp-millis": Row(MILLIS, AT, "timestamp", AT),
    "timestamp-micros": Row(MICROS, AT, "timestamp", AT),
    "timestamp-micros as bigint": Row(MICROS, AT, "bigint", EPOCH_NANOS // 1000),
    "timestamp-nanos": Row(NANOS, EPOCH_NANOS, "timestamp", AT),
    "timestamp-nanos finer than microseconds": Row(NANOS, EPOCH_NANOS + 1, "timestamp", BAD),
    "local-timestamp-millis": Row(logical("long", "local-timestamp-millis"), LOCAL, "timestamp_ntz", LOCAL),
    "local-timestamp-micros": Row(logical("long", "local-timestamp-micros"), LOCAL, "timestamp_ntz", LOCAL),
    "local-timestamp-nanos": Row(logical("long", "local-timestamp-nanos"), EPOCH_NANOS, "timestamp_ntz", LOCAL),
    "MicroTimestamp of Debezium": Row(
        {"type": "long", "connect.name": "io.debezium.time.MicroTimestamp"}, EPOCH_NANOS // 1000, "timestamp_ntz", LOCAL
    ),
    "VariableScaleDecimal of Debezium": Row(
        VARIABLE, {"scale": 3, "value": b"\xff"}, "decimal(12,3)", Decimal("-0.001")
    ),
    "VariableScaleDecimal as string": Row(VARIABLE, {"scale": 1, "value": b"\x0f"}, "string", "1.5"),
    "VariableScaleDecimal of a negative scale": Row(
        VARIABLE, {"scale": -2, "value": b"\x0f"}, "decimal(12,2)", Decimal("1500.00")
    ),
    "VariableScaleDecimal of 38 digits": Row(
        VARIABLE,
        {"scale": 0, "value": (10**38 - 1).to_bytes(16, "big")},
        *("decimal(38,0)", Decimal(10**38 - 1)),
    ),
    "VariableScaleDecimal finer than declared": Row(VARIABLE, {"scale": 3, "value": b"\x01"}, "decimal(12,2)", BAD),
    "VariableScaleDecimal of a scale that no number has": Row(
        VARIABLE, {"scale": 2**31 - 1, "value": b"\x01"}, "decimal(12,2)", BAD
    ),
    "VariableScaleDecimal as struct": Row(
        VARIABLE, {"scale": 1, "value": b"\x0f"}, "struct<scale:int,value:binary>", {"scale": 1, "value": "Dw=="}
    ),
    "ZonedTimestamp of Debezium": Row(debezium("ZonedTimestamp"), "2026-11-24T12:34:56.789Z", "timestamp", AT),
    "IsoTimestamp of Debezium": Row(debezium("IsoTimestamp"), "2026-11-24T12:34:56.789Z", "timestamp_ntz", LOCAL),
    "IsoDate of Debezium": Row(debezium("IsoDate"), "2026-11-24Z", "date", date(2026, 11, 24)),
    "other text with a zone": Row("string", "2026-11-24T12:34:56.789Z", "timestamp_ntz", BAD),
    "uuid": Row(logical("string", "uuid"), UUID, "string", str(UUID)),
    "uuid in fixed": Row(logical("fixed", "uuid", name="U", size=16), UUID.bytes, "string", str(UUID)),
    "array": Row({"type": "array", "items": "int"}, [1, 2], "array<bigint>", [1, 2]),
    "array with an element too great": Row({"type": "array", "items": "long"}, [1, 2**40], "array<int>", BAD),
    "map": Row({"type": "map", "values": "long"}, {"a": 1}, "map<string,bigint>", {"a": 1}),
    "map as int": Row({"type": "map", "values": "long"}, {"a": 1}, "map<string,int>", {"a": 1}),
    "record": Row(INNER, {"city": "Ulm", "size": 3}, "struct<size:bigint,city:string>", {"size": 3, "city": "Ulm"}),
    "record with a field that it has not": Row(
        INNER, {"city": "Ulm", "size": None}, "struct<city:string,zip:string>", {"city": "Ulm", "zip": None}
    ),
    "array of records": Row(
        {"type": "array", "items": INNER}, [{"city": "Ulm", "size": 3}], "array<struct<city:string>>", [{"city": "Ulm"}]
    ),
    "union with null": Row(["null", "long"], None, "bigint", None),
    "union of numbers": Row(["int", "long"], 5, "bigint", 5),
    "union": Row(TWO, "x", "struct<member_int:int,member_string:string>", {"member_int": None, "member_string": "x"}),
    "union with a boolean": Row(
        ["string", "boolean"], True, "struct<member_boolean:boolean>", {"member_boolean": True}
    ),
    "union without a member": Row(TWO, 5, "struct<member_string:string>", {"member_string": None}),
}


@pytest.fixture(scope="module")
def read(session: SparkSession) -> dict[str, tuple[Any, str | None]]:
    """Every value, read by one query."""
    frames: list[DataFrame] = []
    for number, row in enumerate(ROWS.values()):
        schema = record(one=row.avro)
        raw = session.createDataFrame([(written(1, schema, {"one": row.value}),)], "_value binary")
        found = decode(raw, "value", parse_columns(f"one {row.declared}", PLACE), schemas(schema))
        one = F.to_json(F.col("_value_row"), {"timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"})
        frames.append(found.select(F.lit(number).alias("n"), one.alias("one"), "_value_error"))
    rows = sorted(reduce(lambda left, right: left.unionAll(right), frames).collect())
    return {name: (text and json.loads(text), error) for name, (_, text, error) in zip(ROWS, rows, strict=True)}


@pytest.mark.parametrize("name", ROWS)
def test_a_type_is_read_as_declared(read: dict[str, tuple[Any, str | None]], name: str) -> None:
    expected, (row, error) = ROWS[name], read[name]
    if expected.column is BAD:
        assert error is not None
        assert f"the value's one does not fit {expected.declared}" in error
        return
    assert error is None
    assert plain(row.get("one"), expected.declared) == plain(expected.column, expected.declared)


def plain(value: object, kind: str) -> object:
    """A value of JSON, or of Python, in a form in which both are equal."""
    if value is None:
        return None
    if kind == "binary":
        import base64

        return base64.b64decode(value) if isinstance(value, str) else value
    if kind.startswith("decimal"):
        return Decimal(str(value))
    if kind == "date":
        return str(value)
    if kind.startswith("timestamp"):
        at = datetime.fromisoformat(value) if isinstance(value, str) else value
        assert isinstance(at, datetime)
        return at.astimezone(UTC) if at.tzinfo else at
    if isinstance(value, dict):
        return {name: one for name, one in value.items() if one is not None}
    return value


def test_an_undecodable_record_is_told_from_nulls(session: SparkSession) -> None:
    schema = record(a=["null", "long"], b=["null", "string"])
    good = written(1, schema, {"a": None, "b": None})
    rows = decoded(session, "a bigint, b string", schemas(schema), good, good[:-1], good[:-2] + b"\x09", good[:5])
    assert rows[0] == ({"a": None, "b": None}, None)
    assert [error for _, error in rows[1:]] == ["the value does not decode as Avro by the schema id 1"] * 3


def test_bytes_after_a_record_are_an_error(session: SparkSession) -> None:
    schema = record(a="long")
    good = written(1, schema, {"a": 5})
    rows = decoded(session, "a bigint", schemas(schema), good, good + b"\0", good + good)
    assert rows[0] == ({"a": 5}, None)
    assert all("does not decode as Avro" in str(error) for _, error in rows[1:])


def test_a_forged_length_is_an_error_and_the_engine_lives(session: SparkSession) -> None:
    schema = record(s="string", b="bytes", i={"type": "array", "items": "null"})
    good = written(1, schema, {"s": "x", "b": b"", "i": []})
    two_gb = b"\xfe\xff\xff\xff\x0f"  # 2147483647 as a zigzag varint
    rows = decoded(
        *(session, "s string, b binary, i array<string>", schemas(record(s="string", b="bytes"))),
        *(good[:5] + two_gb, good[:7] + two_gb, good[:5] + b"\x01"),
    )
    assert all("does not decode as Avro" in str(error) for _, error in rows)
    columns = "s string, i array<boolean>"
    items = record(s="string", i={"type": "array", "items": "boolean"})
    [(_, error)] = decoded(session, columns, schemas(items), written(1, items, {"s": "x", "i": []})[:-1] + two_gb)
    assert "does not decode as Avro" in str(error)


def test_a_decimal_is_read_by_the_scale_of_its_writer(session: SparkSession) -> None:
    schema = record(d=logical("bytes", "decimal", precision=10, scale=2))
    [(row, error)] = decoded(session, "d decimal(12,3)", schemas(schema), written(1, schema, {"d": Decimal("123.45")}))
    assert (row, error) == ({"d": Decimal("123.450")}, None)


def test_a_decimal_beyond_its_precision_is_an_error_and_not_null(session: SparkSession) -> None:
    schema = record(d=logical("bytes", "decimal", precision=4, scale=2), n="int")

    def of(unscaled: bytes) -> bytes:
        return b"\0\0\0\0\1" + bytes([len(unscaled) * 2]) + unscaled + b"\x02"

    beyond = (2**64 + 5).to_bytes(9, "big"), (10**40).to_bytes(17, "big"), (123456).to_bytes(4, "big")
    rows = decoded(session, "d decimal(4,2), n int", schemas(schema), of(b"\x05"), *map(of, beyond))
    assert rows[0] == ({"d": Decimal("0.05"), "n": 1}, None)
    assert all(error is not None for _, error in rows[1:])


def test_a_decimal_of_64_digits_is_read_with_38(session: SparkSession) -> None:
    schema = record(d=logical("bytes", "decimal", precision=64, scale=2))
    unscaled = (12345).to_bytes(2, "big")
    [(row, error)] = decoded(session, "d decimal(38,2)", schemas(schema), b"\0\0\0\0\1\x04" + unscaled)
    assert (row, error) == ({"d": Decimal("123.45")}, None)


def test_invalid_utf_8_is_an_error(session: SparkSession) -> None:
    java = {"type": "string", "avro.java.string": "String"}  # Java would replace the bytes
    schema = record(s=java, m={"type": "map", "values": "string"}, a={"type": "array", "items": ["null", "string"]})
    good = written(1, schema, {"s": "qq", "m": {"kk": "vv"}, "a": [None, "ww"]})
    broken = [good.replace(one, b"\xff\xfe") for one in (b"qq", b"kk", b"vv", b"ww")]
    rows = decoded(session, "s string, m map<string,string>, a array<string>", schemas(schema), good, *broken)
    assert rows[0] == ({"s": "qq", "m": {"kk": "vv"}, "a": [None, "ww"]}, None)
    assert [("does not fit" in str(error)) for _, error in rows[1:]] == [True] * 4


def test_fields_that_are_not_declared_are_skipped_whatever_they_are(session: SparkSession) -> None:
    tree = record("Tree", n="long", below={"type": "array", "items": "Tree"})
    schema = record(before=tree, n="long", after="Tree", d=logical("bytes", "decimal", precision=80, scale=50))
    raw = b"\0\0\0\0\1" + b"\x02\x02\x04\0\0" + b"\x0a" + b"\x04\0" + b"\x02\x05"
    assert decoded(session, "n bigint", schemas(schema), raw) == [({"n": 5}, None)]
    columns = parse_columns("before struct<n:bigint,below:array<struct<n:bigint>>>", PLACE)
    with pytest.raises(Mismatch, match=r"before is declared .* record Tree: leave before out"):
        check("value", columns, schemas(schema), newest_only=True)


def test_a_record_of_a_type_that_is_used_twice_is_read_in_both_places(session: SparkSession) -> None:
    schema = record(home=INNER, work=["null", "Inner"])
    raw = written(1, schema, {"home": {"city": "Ulm", "size": 1}, "work": {"city": "Bonn", "size": 2}})
    declared = "home struct<city:string>, work struct<size:int>"
    assert decoded(session, declared, schemas(schema), raw) == [({"home": {"city": "Ulm"}, "work": {"size": 2}}, None)]


def test_a_renamed_field_is_found_by_its_alias_and_an_added_one_has_its_default(session: SparkSession) -> None:
    old = record(id="long", cust="long")
    new = record(id="long", customer={"type": "long", "aliases": ["cust"]}, state={"type": "string", "default": "new"})
    raws = written(1, old, {"id": 1, "cust": 7}), written(2, new, {"id": 2, "customer": 8, "state": "paid"})
    rows = decoded(session, "id bigint, customer bigint, state string", schemas(old, new), *raws)
    assert rows == [
        ({"id": 1, "customer": 7, "state": "new"}, None),
        ({"id": 2, "customer": 8, "state": "paid"}, None),
    ]
    former = decoded(session, "cust bigint", schemas(old, new), *raws)
    assert former == [({"cust": 7}, None), ({"cust": 8}, None)]


def test_a_key_may_be_a_single_value_and_null_is_no_key(session: SparkSession) -> None:
    for schema, value in (("long", 7), (["null", "long"], 7), (record("Key", id="long"), {"id": 7})):
        [(row, error)] = decoded(session, "id bigint", schemas(schema), written(1, schema, value), part="key")
        assert (row, error) == ({"id": 7}, None)
    nothing = written(1, ["null", "long"], None)
    assert decoded(session, "id bigint", schemas(["null", "long"]), nothing, None, part="key") == [(None, None)] * 2
    with pytest.raises(Mismatch, match="one column, and a, b are declared"):
        check("key", parse_columns("a bigint, b bigint", PLACE), schemas("long"), newest_only=True)


def test_the_null_of_a_union_is_a_tombstone(session: SparkSession) -> None:
    schema = ["null", record(a="long")]
    raws = written(1, schema, None), written(1, schema, {"a": 1})
    assert decoded(session, "a bigint", schemas(schema), *raws) == [(None, None), ({"a": 1}, None)]


def test_framings_that_name_no_id_are_told_apart(session: SparkSession) -> None:
    schema = record(a="long")
    raws = b"\1" + UUID.bytes + b"\x02", b'{"a": 1}', b"", b"\0\0\0", b"\0\0\0\0\x63\x02"
    errors = [error for _, error in decoded(session, "a bigint", schemas(schema), *raws)]
    assert "names its schema by a GUID" in str(errors[0])
    assert all("has no Avro framing" in str(error) for error in errors[1:4])
    assert errors[4] == "the value was written by a schema that the registry does not have, id 99"


def test_an_id_that_was_not_looked_up_fails_the_query(session: SparkSession) -> None:
    schema = record(a="long")
    raw = b"\0\0\0\0\x63\x02"
    with pytest.raises(PySparkException, match=f"{UNKNOWN} value 99"):
        decoded(session, "a bigint", schemas(schema, is_complete=False), raw)
    [(_, error)] = decoded(session, "a bigint", schemas(schema, missing=frozenset({99}), is_complete=False), raw)
    assert "does not have, id 99" in str(error)


def money(scale: int) -> dict[str, object]:
    return logical("bytes", "decimal", precision=12, scale=scale)


@dataclass(frozen=True)
class Change:
    """Two versions of a schema, a value by each, and the declared column that is looked at."""

    before: dict[str, Any]
    after: dict[str, Any]
    declared: str
    old: dict[str, Any]
    new: dict[str, Any]


CHANGES = {
    "a field is added with a default, and is declared": Change(
        record(id="int"), record(id="int", a={"type": "int", "default": 9}), "a int", {"id": 1}, {"id": 1, "a": 2}
    ),
    "a field is added without a default, and is declared": Change(
        record(id="int"), record(id="int", a="int"), "a int", {"id": 1}, {"id": 1, "a": 2}
    ),
    "a declared field is dropped": Change(
        record(id="int", a="int"), record(id="int"), "a int", {"id": 1, "a": 2}, {"id": 1}
    ),
    "a field is renamed, with its former name as an alias, and is declared by the new name": Change(
        record(b="int"), record(a={"type": "int", "aliases": ["b"]}), "a int", {"b": 2}, {"a": 2}
    ),
    "a field is renamed without an alias, and is declared by the new name": Change(
        record(b="int"), record(a="int"), "a int", {"b": 2}, {"a": 2}
    ),
    "a field is widened: int to long, declared bigint": Change(
        record(a="int"), record(a="long"), "a bigint", {"a": 2}, {"a": 2}
    ),
    "a field is narrowed: long to int, declared bigint": Change(
        record(a="long"), record(a="int"), "a bigint", {"a": 2}, {"a": 2}
    ),
    "a field becomes nullable": Change(record(a="int"), record(a=["null", "int"]), "a int", {"a": 2}, {"a": 2}),
    "a decimal gets a greater scale, which is declared": Change(
        record(a=money(2)), record(a=money(4)), "a decimal(12,4)", {"a": Decimal("2.00")}, {"a": Decimal("2.0000")}
    ),
    "a decimal gets a greater scale than declared, and the value has such places": Change(
        record(a=money(2)), record(a=money(4)), "a decimal(12,2)", {"a": Decimal("2.00")}, {"a": Decimal("2.0001")}
    ),
    "a field gets a type that cannot be read as declared": Change(
        record(a="int"), record(a=INNER), "a int", {"a": 2}, {"a": {"city": "Ulm", "size": 2}}
    ),
    "a field had such a type before": Change(
        record(a=INNER), record(a="int"), "a int", {"a": {"city": "Ulm", "size": 2}}, {"a": 2}
    ),
}


def test_each_change_of_a_schema_does_what_the_page_says(session: SparkSession) -> None:
    page = (Path(__file__).parents[2] / "docs" / "formats.md").read_text()
    table = page.partition("| records of the version after |")[2].partition("\n\n")[0]
    cells = [[cell.strip() for cell in line.strip("| ").split("|")] for line in table.splitlines()[2:]]
    assert [row[0] for row in cells] == list(CHANGES)
    found = {what: [what, *outcomes(session, change)] for what, change in CHANGES.items()}
    assert [found[row[0]] for row in cells] == cells


def outcomes(session: SparkSession, change: Change) -> list[str]:
    known = schemas(change.before, change.after)
    try:
        check("value", parse_columns(change.declared, PLACE), known, newest_only=True)
    except Mismatch:
        return ["refused", "refused"]
    raws = written(1, change.before, change.old), written(2, change.after, change.new)
    rows = decoded(session, change.declared, known, *raws)
    words = {2: "value", 9: "default", None: "null"}
    return ["quarantine" if error is not None else words[row["a"]] for row, error in rows]


@pytest.mark.parametrize(
    ("columns", "known", "message"),
    [
        ("a int", [record(a="string"), record(a=record("In", n="int"))], "has it as record In: declare a struct"),
        ("a bigint", [record(a=MICROS)], None),
        ("a timestamp", [record(a="long")], "schema 1 has it as long: declare a bigint"),
        ("a timestamp", [record(a=logical("long", "local-timestamp-micros"))], "declare a timestamp_ntz"),
        ("b int", [record(a="int"), record(c="int")], r"no schema of the value has the column b \(int\).* are c"),
        ("a int", [record(b="int", a="int"), record(b="int")], None),
        ("a int", [record(a="null")], "leave a out"),
    ],
)  # fmt: skip
def test_a_declaration_is_compared_with_the_newest_schema(
    columns: str, known: list[object], message: str | None
) -> None:
    if message is None:
        check("value", parse_columns(columns, PLACE), schemas(*known), newest_only=True)
        return
    with pytest.raises(Mismatch, match=message):
        check("value", parse_columns(columns, PLACE), schemas(*known), newest_only=True)


def test_an_older_schema_that_cannot_be_read_puts_its_records_into_quarantine(session: SparkSession) -> None:
    old, new = record(a=record("In", n="int")), record(a="int")
    rows = decoded(session, "a int", schemas(old, new), written(1, old, {"a": {"n": 1}}), written(2, new, {"a": 2}))
    assert "the schema 1 has it as record In: declare a struct<n:int>" in str(rows[0][1])
    assert rows[1] == ({"a": 2}, None)


def test_a_schema_with_references_is_read(session: SparkSession) -> None:
    address = {"type": "record", "name": "Address", "namespace": "shop", "fields": [{"name": "city", "type": "string"}]}
    text = json.dumps(record("C", home="Address", n="int") | {"namespace": "shop"})
    known = Schemas({1: Schema(1, "AVRO", text, (json.dumps(address),))})
    raw = b"\0\0\0\0\1\x06Ulm\x02"
    assert decoded(session, "home struct<city:string>, n int", known, raw) == [
        ({"home": {"city": "Ulm"}, "n": 1}, None)
    ]


SHAPES = [
    record(
        "Shape1",
        id="long",
        name="string",
        d=logical("bytes", "decimal", precision=10, scale=2),
        at=MICROS,
        tags={"type": "array", "items": "string"},
        more={"type": "map", "values": ["null", "int"]},
        kind={"type": "enum", "name": "Kind", "symbols": ["A", "B", "C"]},
        home=["null", INNER],
        f="double",
        ok="boolean",
    ),
]
FUZZED = "id bigint, name string, d decimal(10,2), at timestamp, tags array<string>, more map<string,int>, kind string, home struct<city:string,size:int>, f double, ok boolean"  # noqa: E501


def test_10_000_broken_records_decode_as_fastavro_reads_them_or_are_errors(session: SparkSession) -> None:
    draw = random.Random(23)
    [schema] = SHAPES
    parsed = fastavro.parse_schema(schema)
    raws: list[bytes] = []
    for _ in range(10_000):
        value = {
            "id": draw.randrange(-(2**62), 2**62),
            "name": "".join(draw.choices("aé漢🙂 ", k=draw.randrange(6))),
            "d": Decimal(draw.randrange(-(10**9), 10**9)).scaleb(-2),
            "at": datetime.fromtimestamp(draw.randrange(0, 2**31), UTC),
            "tags": ["x" * draw.randrange(4) for _ in range(draw.randrange(3))],
            "more": {str(one): draw.choice([None, one]) for one in range(draw.randrange(3))},
            "kind": draw.choice("ABC"),
            "home": draw.choice([None, {"city": "Ulm", "size": draw.choice([None, 5])}]),
            "f": draw.random(),
            "ok": draw.random() < 0.5,
        }
        body = bytearray(written(1, schema, value)[5:])
        for _ in range(draw.randrange(4)):
            at = draw.randrange(len(body)) if body else 0
            act = draw.randrange(4)
            if act == 0 and body:
                body[at] = draw.randrange(256)
            elif act == 1:
                body[at:at] = bytes([draw.randrange(256)])
            elif act == 2 and body:
                del body[at]
            else:
                del body[at:]
        raws.append(b"\0\0\0\0\1" + bytes(body))
    rows = decoded(session, FUZZED, schemas(schema), *raws)
    assert len(rows) == len(raws)
    wrong, good = [], 0
    for raw, (row, error) in zip(raws, rows, strict=True):
        expected = oracle(parsed, raw[5:])
        if error is None:
            good += 1
            own = row | {"at": row["at"].replace(tzinfo=UTC), "more": dict(sorted(row["more"].items()))}
            if repr(expected) != repr(own):  # as text, NaN equals NaN
                wrong.append((raw.hex(), row, expected))
        elif expected is not None and written(1, schema, expected) == raw:  # fastavro reads numbers that are too long
            wrong.append((raw.hex(), error, expected))
    assert wrong == []
    assert 3_000 < good < 9_000


def oracle(schema: Any, body: bytes) -> dict[str, Any] | None:
    """What fastavro reads, if it reads all bytes and every value is one that the columns can hold; else None."""
    stream = io.BytesIO(body)
    try:
        value: Any = fastavro.schemaless_reader(stream, schema, None)
    except Exception:  # it raises whatever its readers raise
        return None
    if stream.read(1):
        return None
    if body[-1] > 1:  # fastavro takes any byte for a boolean, and this one is the last
        return None
    if abs(value["d"]) >= Decimal(10) ** 8:
        return None
    found: dict[str, Any] = value | {"more": dict(sorted(value["more"].items()))}
    return found
