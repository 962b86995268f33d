"""What Kafka's own serializers write, and what they do not."""

from __future__ import annotations

import math
import random
import struct
import uuid
from typing import TYPE_CHECKING

import pytest

from spark.serdes.kafka import PACKED, encode_key, encode_value, from_bytes, to_bytes
from spark.serdes.records import decode
from spark.testing import TopologyTestDriver
from spark.topology import Consumed, Produced, StreamsBuilder, TopologyError
from spark.topology.columns import Column
from tests.topology.mistakes import Act, raised

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

Bytes = bytes | None
BROKEN, DELETED = "broken", "deleted"
UUID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")

WRITTEN: dict[str, dict[bytes, object]] = {
    # As Kafka's serializers write them: `new LongSerializer().serialize("t", -2L)` and so on.
    "smallint": {b"\x00\x07": 7, b"\xff\xfe": -2, b"\x7f\xff": 2**15 - 1, b"\x80\x00": -(2**15)},
    "int": {b"\x00\x00\x00\x07": 7, b"\xff\xff\xff\xfe": -2, b"\x80\x00\x00\x00": -(2**31)},
    "bigint": {
        b"\x00\x00\x00\x00\x00\x00\x00\x07": 7,
        b"\xff\xff\xff\xff\xff\xff\xff\xfe": -2,
        b"\x7f" + b"\xff" * 7: 2**63 - 1,
        b"\x80" + b"\x00" * 7: -(2**63),
        b"\x00\x00\x00\x00\xff\xff\xff\xff": 2**32 - 1,
    },
    "boolean": {b"\x00": False, b"\x01": True},
    "string": {
        b"seven": "seven",
        b"": "",
        b"null": "null",
        b' {"a": 1} ': ' {"a": 1} ',
        "größe ☃\0".encode(): "größe ☃\0",
    },
    "binary": {b"\x00\xff": b"\x00\xff", b"": b""},
}
NUMBERS = [0.0, 1.0, -1.5, 0.1, math.pi, 5e-324, 2.2250738585072014e-308, 1.7976931348623157e308, math.inf, -math.inf]
WRITTEN["double"] = {struct.pack(">d", number): number for number in NUMBERS}
WRITTEN["float"] = {struct.pack(">f", number): number for number in (0.0, 1.0, -1.5, 2.0**-149, 2.0**-126, math.inf)}

OTHERS: dict[str, list[bytes]] = {
    "smallint": [b"", b"7", b"\x00\x00\x07"],
    "int": [b"", b"7", b"\x00\x07", b"\x00" * 8],
    "bigint": [b"", b"7", b"\x00\x00\x00\x07", b"\xff" * 9, b"\xff" * 100],
    "boolean": [b"", b"\x02", b"\xff", b"\x00\x00"],
    "float": [b"", b"\x00" * 8],
    "double": [b"", b"\x00" * 4],
    "string": [b"\xff\xfe", b"a\xc3", b"\xed\xa0\x80"],
}


def values(session: SparkSession, kind: str, values: Sequence[Bytes]) -> list[object]:
    """What each value decodes to."""
    consumed = Consumed.kafka(key="k string", value=f"v {kind}")
    frame = session.createDataFrame(
        [(n, b"k", value) for n, value in enumerate(values)], "_n int, _key binary, _value binary"
    )
    found = sorted(decode(frame, consumed).collect(), key=lambda row: row["_n"])
    assert [row["k"] is None for row in found] == [row["_error"] is not None for row in found]
    return [BROKEN if row["_error"] is not None else DELETED if row["_deleted"] else row["v"] for row in found]


@pytest.mark.parametrize("kind", WRITTEN)
def test_a_value_of_a_serializer_is_read_and_nothing_else(session: SparkSession, kind: str) -> None:
    written, others = WRITTEN[kind], OTHERS.get(kind, [])
    found = values(session, kind, [*written, *others, None])
    wanted = [*written.values(), *(BROKEN for _ in others), DELETED]
    assert [repr(one) for one in found] == [repr(bytearray(one) if isinstance(one, bytes) else one) for one in wanted]
    column = (Column("v", kind),)
    assert [from_bytes(raw, column) for raw in written] == list(written.values())
    assert [to_bytes(value, column) for value in written.values() if not isinstance(value, bytes)] == [
        raw for raw, value in written.items() if not isinstance(value, bytes)
    ]


def test_a_float_that_is_no_number_is_read(session: SparkSession) -> None:
    [one, other] = values(session, "double", [struct.pack(">d", math.nan), struct.pack(">d", -0.0)])
    assert repr((one, other)) == "(nan, -0.0)"


def test_a_reason_names_the_serializer_and_the_column(session: SparkSession) -> None:
    consumed = Consumed.json(key="id bigint", value="a int", key_format="kafka")
    frame = session.createDataFrame([(b"7", b'{"a": 1}')], "_key binary, _value binary")
    [row] = decode(frame, consumed).collect()
    assert row["_error"] == "the key is not what Kafka's LongSerializer writes (id bigint)"


def test_a_key_and_a_value_have_formats_of_their_own(session: SparkSession) -> None:
    frame = session.createDataFrame(
        [(str(UUID).encode(), b"\x00\x07"), (b"{}", b"\x00\x08"), (None, b"\x00\x09")], "_key binary, _value binary"
    )
    text = decode(frame, Consumed.kafka(key="id string", value="v smallint")).collect()
    assert [(row["id"], row["v"]) for row in text] == [(str(UUID), 7), ("{}", 8), (None, 9)]
    as_json = decode(frame, Consumed.kafka(key="id string", value="v smallint", key_format="json")).collect()
    assert [(row["id"], row["v"]) for row in as_json] == [(str(UUID), 7), (None, 8), (None, 9)]


@pytest.mark.parametrize("kind", ["smallint", "int", "bigint", "boolean", "string", "binary"])
def test_what_is_encoded_is_what_the_serializer_writes(session: SparkSession, kind: str) -> None:
    written = WRITTEN[kind]
    rows = session.createDataFrame([(one,) for one in written.values()], f"k {kind}")
    found = rows.select(encode_key(rows, ("k",)), encode_value(rows, ("k",))).collect()
    assert [(bytes(key), bytes(value)) for key, value in found] == [(one, one) for one in written]


def test_a_null_is_a_key_that_is_missing_and_no_value_at_all(session: SparkSession) -> None:
    rows = session.sql("SELECT cast(null AS bigint) AS k")
    assert rows.select(encode_key(rows, ("k",))).collect() == [(None,)]
    with pytest.raises(Exception, match="k is null, and without a value a record is a tombstone"):
        rows.select(encode_value(rows, ("k",))).collect()


def test_the_driver_pipes_values_and_reads_them(session: SparkSession) -> None:
    builder = StreamsBuilder("plain")
    lines = builder.table("lines", Consumed.kafka(key="id bigint", value="line string"))
    lines.to("lines-again", Produced.kafka())
    lines.map_values("length(line) AS n").to("lengths", Produced.kafka(key_format="json"))
    driver = TopologyTestDriver(builder.build(), batch="all", session=session)
    driver.pipe("lines", key=7, value="seven")
    driver.pipe("lines", key=8, value="")
    driver.pipe("lines", key=9, value="nine")
    driver.pipe("lines", key=9, value=None)
    driver.pipe("lines", key=b"9", value="an ASCII nine")
    assert driver.table("lines") == [{"id": 7, "line": "seven"}, {"id": 8, "line": ""}]
    assert [one["error"] for one in driver.quarantined("lines")] == [
        "the key is not what Kafka's LongSerializer writes (id bigint)"
    ]
    again = driver.create_output_topic("lines-again").read_records_to_list()
    assert [(one.key, one.value) for one in again] == [(7, "seven"), (8, "")]
    assert [(one.key_bytes, one.value_bytes) for one in again] == [
        (b"\0" * 7 + b"\7", b"seven"),
        (b"\0" * 7 + b"\10", b""),
    ]
    lengths = driver.create_output_topic("lengths").read_records_to_list()
    assert [(one.key_bytes, one.value_bytes) for one in lengths] == [(b"7", b"\0\0\0\5"), (b"8", b"\0\0\0\0")]
    with pytest.raises(TopologyError, match=r"KAFKA cannot hold it: 'x' is no bigint, as id is\n  pipe values"):
        driver.pipe("lines", key="x", value="x")
    with pytest.raises(TopologyError, match="is beyond bigint, as id is"):
        driver.pipe("lines", key=2**63, value="x")


def test_the_driver_pipes_headers_and_reads_them(session: SparkSession) -> None:
    builder = StreamsBuilder("traced")
    lines = builder.stream("lines", Consumed.kafka(key="id int", value="line string", headers="headers"))
    lines.filter("headers[0].key = 'traceparent'").to("traced", Produced.kafka(headers="headers"))
    driver = TopologyTestDriver(builder.build(), batch="all", session=session)
    driver.pipe("lines", key=1, value="one", headers={"traceparent": "00-1", "raw": b"\xff"})
    driver.pipe("lines", key=2, value="two", headers={"other": None})
    driver.pipe("lines", key=3, value="three")
    [sent] = driver.create_output_topic("traced").read_records_to_list()
    assert (sent.key, sent.value, sent.headers["traceparent"], sent.headers["raw"]) == (1, "one", "00-1", "\\xff")


def test_ten_thousand_records_of_any_bytes_are_read_as_python_reads_them(session: SparkSession) -> None:
    """Most have the right length; a third of the texts has a byte changed."""
    rng = random.Random(23)

    def drawn(kind: str) -> bytes:
        if kind == "string":
            text = bytearray("".join(rng.choices('az09 {}"ß☃😀\0', k=rng.randrange(6))).encode())
            if text and rng.random() < 0.3:
                text[rng.randrange(len(text))] = rng.randrange(256)
            return bytes(text)
        size = struct.calcsize(PACKED[kind])
        return rng.randbytes(size if rng.random() < 0.7 else rng.randrange(12))

    for kind in (*PACKED, "string"):
        raw = [drawn(kind) for _ in range(1_500)]
        for one, found in zip(raw, values(session, kind, raw), strict=True):
            try:
                wanted = from_bytes(one, (Column("v", kind),))
            except (struct.error, UnicodeDecodeError):
                wanted = BROKEN
            if kind == "boolean" and one not in (b"\x00", b"\x01"):
                wanted = BROKEN  # as BooleanDeserializer; Python takes any byte but 0 as true
            assert repr(found) == repr(wanted), (kind, one)


MISTAKES: list[tuple[Act, str]] = [
    (
        lambda _: Consumed.kafka(key="id bigint", value="a int, b int"),
        "Consumed.kafka: the value has 2 columns, and what Kafka's own serializers write is one value\n"
        "  key has: id bigint\n  value has: a int, b int\n  declare one column of the value\n",
    ),
    (
        lambda _: Consumed.kafka(key="id bigint", value="d decimal(12,2)"),
        "the column 'd' is decimal(12,2), for which Kafka has no serializer\n",
    ),
    (
        lambda _: Consumed.json(key="a int, b int", value="v int", key_format="kafka"),
        "Consumed.json: the key has 2 columns, and what Kafka's own serializers write is one value\n",
    ),
    (
        lambda _: Consumed.json(key="a int", value="v int", key_format="Kafka"),
        "key_format is 'Kafka'\n  key has: a int\n  value has: v int\n"
        '  write "avro", "json", "json_schema" or "kafka"; did you mean kafka?\n',
    ),
    (lambda _: Consumed.json(key="a int", value="v int", headers="V"), "'V' is already a column\n"),
    (lambda _: Consumed.json(key="a int", value="v int", headers="_h"), "begins with an underscore\n"),
    (
        lambda shop: shop.orders.to("there", Produced.json(headers="sku")),
        "the headers 'sku' are string\n",
    ),
    (
        lambda shop: shop.orders.to("there", Produced.json(headers="trace")),
        "the headers 'trace' are not a column\n",
    ),
    (lambda _: Produced.json(key_format="text"), 'key_format is \'text\'\n  write "avro", "json" or "kafka"\n'),
    (
        lambda shop: shop.orders.to("there", Produced.kafka()),
        "the value has 3 columns, and what Kafka's own serializers write is one value\n",
    ),
    (
        lambda shop: shop.orders.map_values("cast(amount AS double) AS d").to("there", Produced.kafka()),
        "the column 'd' is double, of which Spark cannot write the bytes\n",
    ),
]


@pytest.mark.parametrize(("act", "what"), MISTAKES)
def test_a_wrong_declaration_is_refused(act: Act, what: str) -> None:
    assert what in raised(act)
