"""A table over a Debezium topic is the database's table: what an event makes of its row, and what is no event."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Context, Decimal
from typing import TYPE_CHECKING, Any

import pytest

from spark.serdes.avro import Mismatch
from spark.serdes.records import check, decode
from spark.testing import TopologyTestDriver
from spark.topology import Consumed, StreamsBuilder, TopologyError, Versioned
from spark.topology.envelope import Envelope
from tests.operators.test_avro import record, schemas, written

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

    from resources.engine import Engine
    from spark.serdes.schemas import Schemas

GONE = "__debezium_unavailable_value"
WIDE = "name string, note string, photo binary, tags array<string>, ratings array<int>, attributes map<string,string>"


@pytest.fixture(scope="module")
def session(engine: Engine) -> Iterator[SparkSession]:
    session = engine.session()
    yield session
    session.stop()


class Source:
    """A table of a database, and the events that a connector writes of it."""

    def __init__(self, driver: TopologyTestDriver, form: str = "json") -> None:
        self.driver = driver
        self.form = form
        self.lsn = 0

    def event(
        self, op: str, key: object, after: object = None, at: int = 0, partition: int = 0, **headers: object
    ) -> None:
        """Pipe one event."""
        source = {"connector": "postgresql", "ts_ms": at, "table": "t", "lsn": self.lsn}
        # What `before` has besides the key are defaults, under the default replica identity.
        before = None if op in "cr" else {"id": key, "name": "", "note": "wrong"}
        value = {"before": before, "after": after, "source": source, "op": op, "ts_ms": at + 5}
        self.pipe(None if key is None else {"id": key}, value, at, partition, headers)

    def pipe(
        self, key: object, value: object, at: int = 0, partition: int = 0, headers: Mapping[str, object] | None = None
    ) -> None:
        """Pipe one record as JSON; a header has a key."""
        texts = {f"__debezium.{name}": json.dumps({"id": old}) for name, old in (headers or {}).items()}
        sent = (None if part is None else json.dumps(part).encode() for part in (key, value))
        key_bytes, value_bytes = sent
        self.driver.pipe("t", key=key_bytes, value=value_bytes, timestamp=at + 1000, partition=partition, headers=texts)

    def put(self, key: int, at: int = 0, op: str = "u", partition: int = 0, **row: object) -> None:
        """Insert or update a row."""
        self.lsn += 1
        self.event(op, key, {"id": key, **row}, at, partition)

    def delete(self, key: int, at: int = 0, partition: int = 0) -> None:
        """Delete a row."""
        self.lsn += 1
        self.event("d", key, None, at, partition)
        self.pipe({"id": key}, None, at, partition)

    def move(self, old: int, new: int, at: int = 0, partitions: tuple[int, int] = (0, 0), **row: object) -> None:
        """Change a key: two events and a tombstone, of one place in the database's log."""
        self.lsn += 1
        self.left(old, new, at, partitions[0])
        self.event("c", new, {"id": new, **row}, at, partitions[1], oldkey=old)

    def left(self, old: int, new: int, at: int = 0, partition: int = 0) -> None:
        """Tell the first part of a change of a key."""
        self.event("d", old, None, at, partition, newkey=new)
        self.pipe({"id": old}, None, at, partition, {"newkey": new})


def source(session: SparkSession, value: str = "name string, note string", batch: Any = "all", **given: Any) -> Source:
    builder = StreamsBuilder("captured")
    versioned = given.pop("versioned", None)
    builder.table("t", Consumed.debezium(key="id int", value=value, **given), versioned=versioned)
    return Source(TopologyTestDriver(builder.build(), batch=batch, session=session))


def rows(it: Source, *names: str) -> dict[object, object]:
    found = it.driver.table("t")
    columns = names or ("name", "note")
    return {row["id"]: tuple(row[name] for name in columns) if len(columns) > 1 else row[columns[0]] for row in found}


def reasons(it: Source) -> list[str]:
    return [str(record["error"]) for record in it.driver.quarantined("t")]


@pytest.mark.parametrize("batch", ["all", 5])
def test_the_table_is_the_source_table_row_for_row(session: SparkSession, batch: Any) -> None:
    it = source(session, batch=batch)
    it.put(1, op="r", name="Ada", note="long")
    it.put(2, op="r", name="Ben", note=None)
    it.put(1, op="u", at=1, name="Ada L.", note=GONE)
    it.put(3, op="c", at=2, name="Cyd", note="c")
    it.delete(2, at=3)
    it.put(1, op="r", at=4, name="Ada L.", note="long")  # an incremental snapshot over the stream
    it.delete(3, at=5)
    it.put(3, op="c", at=6, name="Cy", note="new")
    it.put(3, op="u", at=7, name="Cyd", note=GONE)
    it.move(1, 10, at=8, name="Ada", note=GONE)
    it.move(10, 11, at=9, name="Ada", note=GONE)
    it.put(11, op="u", at=10, name="Ada!", note=GONE)
    assert rows(it) == {3: ("Cyd", "new"), 11: ("Ada!", "long")}
    assert reasons(it) == []


@pytest.mark.parametrize("versioned", [None, Versioned("1d")])
def test_a_stream_looks_up_whole_rows_whatever_the_batches(session: SparkSession, versioned: Versioned | None) -> None:
    builder = StreamsBuilder("looked")
    table = builder.table("t", Consumed.debezium(key="id int", value="name string, note string"), versioned=versioned)
    clicks = builder.stream("clicks", Consumed.json(key="n int", value="id int"))
    clicks.left_join(table, on="id", select=["left.*", "right.name", "right.note"]).materialize("seen")
    found = []
    for batch in ("all", 4):
        it = Source(TopologyTestDriver(builder.build(), batch=batch, session=session))

        def click(n: int, row: int, at: int, it: Source = it) -> None:
            it.driver.pipe("clicks", key=n, value={"id": row}, timestamp=at)

        it.put(1, op="c", at=1, name="Ada", note="long")
        click(1, 1, 2)
        it.put(1, op="u", at=3, name="Ada L.", note=GONE)
        click(2, 1, 4)
        it.move(1, 2, at=5, name="Ada M.", note=GONE)
        click(3, 1, 6)
        click(4, 2, 7)
        seen: list[Any] = it.driver.records("seen")
        by_number = sorted(seen, key=lambda record: int(record["key"]["n"]))
        found.append([(record["value"]["name"], record["value"]["note"]) for record in by_number])
    assert found == [[("Ada", "long"), ("Ada L.", "long"), (None, None), ("Ada M.", "long")]] * 2


ENVELOPE = Consumed.debezium(
    key="id int", value=f"{WIDE}, amount decimal(12,2), day date, at timestamp, local timestamp_ntz"
)
SOURCE = {"ts_ms": 7, "table": "t", "lsn": 1}


def decoded(
    session: SparkSession, consumed: Consumed, values: list[object], keys: list[object] | None = None
) -> list[dict[str, Any] | str]:
    """What each value decodes to, or the reason why it does not."""
    raw = [part if isinstance(part, bytes | None) else json.dumps(part).encode() for part in values]
    of_keys = keys if keys is not None else [{"id": 1}] * len(values)
    sent = [None if part is None else json.dumps(part).encode() for part in of_keys]
    time = datetime(2026, 1, 1, tzinfo=UTC)
    rows: list[tuple[Any, ...]] = [(n, k, v, [], time, 0) for n, (k, v) in enumerate(zip(sent, raw, strict=True))]
    kind = "_number int, _key binary, _value binary, _headers array<struct<key: string, value: binary>>"
    frame = session.createDataFrame(rows, f"{kind}, _timestamp timestamp, _partition int")
    found = sorted(decode(frame, consumed).drop("_key", "_value", "_headers").collect(), key=lambda row: row["_number"])
    return [row["_error"] if row["_error"] is not None else row.asDict(recursive=True) for row in found]


def column(session: SparkSession, consumed: Consumed, name: str, *parts: object) -> list[object]:
    """What a column of each row decodes to; or the reason."""
    values = [{"op": "u", "after": {"id": 1, name: part}, "source": SOURCE} for part in parts]
    return [row if isinstance(row, str) else row[name] for row in decoded(session, consumed, list(values))]


def test_the_placeholder_stands_for_a_value_in_the_form_of_its_type(session: SparkSession) -> None:
    raw = GONE.encode()
    after = {
        "id": 1,
        "name": GONE,
        "note": base64.b64encode(raw).decode(),  # bytes that are declared as text
        "photo": base64.b64encode(raw).decode(),
        "tags": [GONE],
        "ratings": list(raw),
        "attributes": {GONE: GONE},
    }
    near = after | {
        "name": GONE + "!",
        "note": "x",
        "photo": "AAAA",
        "tags": [GONE, GONE],
        "ratings": [],
        "attributes": {},
    }
    own = Consumed.debezium(key="id int", value="name string", placeholder="gone")
    both = [{"op": "u", "after": one, "source": SOURCE} for one in (after, near)]
    missing, whole = decoded(session, ENVELOPE, list(both))
    assert isinstance(missing, dict)
    assert isinstance(whole, dict)
    assert missing["_unavailable"] == ["name", "note", "photo", "tags", "ratings", "attributes"]
    assert {missing[name] for name in missing["_unavailable"]} == {None}
    assert (whole["_unavailable"], whole["name"], whole["tags"]) == (None, GONE + "!", [GONE, GONE])
    mine = decoded(
        session, own, [{"op": "u", "after": {"id": 1, "name": name}, "source": SOURCE} for name in ("gone", GONE)]
    )
    assert [row["_unavailable"] for row in mine if isinstance(row, dict)] == [["name"], None]


def test_what_is_no_event_of_a_row_says_what_it_is(session: SparkSession) -> None:
    event = {"before": None, "after": {"id": 1, "name": "a"}, "source": SOURCE, "op": "c"}
    found = decoded(
        session,
        ENVELOPE,
        [
            event,
            None,
            {"op": "d", "before": {"id": 1, "name": ""}, "after": None, "source": SOURCE},
            {"ts_ms": 5},
            {"status": "BEGIN", "id": "7:1", "event_count": None, "ts_ms": 1},
            {"source": {}, "ddl": "ALTER TABLE", "tableChanges": []},
            {"op": "m", "message": {"prefix": "p", "content": ""}, "source": SOURCE},
            {"op": "t", "source": SOURCE, "before": None, "after": None},
            {"op": "x", "after": {}, "source": SOURCE},
            {"op": "u", "after": None, "source": SOURCE},
            {"schema": {"type": "struct"}, "payload": event},
            {"id": 1, "name": "a"},
            b"{",
            b"\xff",
            json.dumps(event).encode() + b" x}",
            json.dumps(event).replace('"a"', '"\udcff"').encode(errors="surrogateescape"),
        ],
    )
    rows = [row for row in found if isinstance(row, dict)]
    assert [(row["name"], row["_deleted"]) for row in rows] == [("a", False), (None, True), (None, True)]
    assert [row["_at"] for row in rows] == [
        datetime(1970, 1, 1, 0, 0, 0, 7000),
        None,
        datetime(1970, 1, 1, 0, 0, 0, 7000),
    ]
    reasons = [row for row in found if isinstance(row, str)]
    for reason, said in zip(
        reasons,
        [
            "a heartbeat",
            "where a transaction begins or ends",
            "a change of a schema",
            "pg_logical_emit_message",
            r"write truncate=True, .*one partition",
            "unknown op: x",
            "no after, and op is u",
            'format="json_with_schemas"',
            "no envelope of Debezium.*flattened=True",
            *["does not decode as JSON"] * 4,
        ],
        strict=True,
    ):
        assert re.search(said, reason), (said, reason)


def test_schemaless_numbers_are_read_only_where_they_have_one_meaning(session: SparkSession) -> None:
    assert column(session, ENVELOPE, "amount", "12.34", "-0.50", 12.5, 1.0e7, "1E+3", None)[:-1] == [
        Decimal("12.34"),
        Decimal("-0.50"),
        Decimal("12.50"),
        Decimal("10000000.00"),
        Decimal("1000.00"),
    ]
    precise, places, nan = column(session, ENVELOPE, "amount", "BNI=", "1.234", "NaN")
    assert "decimal.handling.mode=string" in str(precise)
    assert "amount is declared decimal(12,2), and the event has 1.234" in str(places)
    assert "the event has NaN" in str(nan)
    assert column(session, ENVELOPE, "day", 19_723, "2024-01-01", "2024-01-01Z")[:3] == [date(2024, 1, 1)] * 3
    zoned, unit, late = column(
        session, ENVELOPE, "at", "2024-01-01T10:00:00.123456Z", 1_704_103_200_123_456, "2024-01-01T25:00Z"
    )
    assert zoned == datetime(2024, 1, 1, 10, 0, 0, 123_456)
    assert "write time_unit=" in str(unit)
    assert "2024-01-01T25:00Z" in str(late)
    for time_unit, number in (("milliseconds", 1_704_103_200_123), ("microseconds", 1_704_103_200_123_000)):
        consumed = Consumed.debezium(key="id int", value="at timestamp, local timestamp_ntz", time_unit=time_unit)
        infinite = 9_223_371_331_200_000_000
        found = column(session, consumed, "at", number, infinite) + column(session, consumed, "local", number)
        assert [found[0], found[2]] == [datetime(2024, 1, 1, 10, 0, 0, 123_000)] * 2
        assert "at is declared timestamp, and the event has 9223371331200000000" in str(found[1])


def schema_of(*fields: tuple[str, str, str | None, dict[str, str]]) -> dict[str, object]:
    """The schema of an envelope with columns: name, type, semantic name and parameters."""
    row = [{"field": n, "type": t, "name": s, "parameters": p, "optional": True} for n, t, s, p in fields]
    return {
        "type": "struct",
        "fields": [{"field": name, "type": "struct", "fields": row} for name in ("before", "after")],
    }


def test_with_schemas_a_column_is_read_by_its_name_and_scale(session: SparkSession) -> None:
    consumed = Consumed.debezium(
        key="id int",
        value="amount decimal(38,4), day date, at timestamp, local timestamp_ntz",
        format="json_with_schemas",
    )
    connect, times = "org.apache.kafka.connect.data", "io.debezium.time"

    def value(part: object, name: str, kind: str, semantics: str | None, **parameters: str) -> dict[str, object]:
        payload = {"op": "u", "after": {"id": 1, name: part}, "source": SOURCE}
        return {"schema": schema_of((name, kind, semantics, parameters)), "payload": payload}

    def decimal(unscaled: int, scale: int) -> dict[str, object]:
        size = (unscaled + (unscaled < 0)).bit_length() // 8 + 1
        text = base64.b64encode(unscaled.to_bytes(size, "big", signed=True)).decode()
        return value(text, "amount", "bytes", f"{connect}.Decimal", scale=str(scale))

    numbers = [(1234, 2), (141_234, 4), (-5, 2), (0, 0), (-(10**20), 1), (10**38 - 1, 4), (1 - 10**38, 4)]
    found = decoded(
        session, consumed, [decimal(*number) for number in numbers], [{"payload": {"id": 1}, "schema": {}}] * 7
    )
    assert [row if isinstance(row, str) else row["amount"] for row in found] == [
        Decimal(unscaled).scaleb(-scale, context=Context(prec=60)) for unscaled, scale in numbers
    ]
    moment, micros = datetime(2024, 1, 1, 10, 0, 0, 123_000), 1_704_103_200_123_000
    others = [
        (
            value({"scale": 3, "value": "BNI="}, "amount", "struct", "io.debezium.data.VariableScaleDecimal"),
            Decimal("1.234"),
        ),
        (value(19_723, "day", "int32", f"{times}.Date"), date(2024, 1, 1)),
        (value(19_723, "day", "int32", f"{connect}.Date"), date(2024, 1, 1)),
        (value(micros // 1000, "at", "int64", f"{times}.Timestamp"), moment),
        (value(micros // 1000, "at", "int64", f"{connect}.Timestamp"), moment),
        (value(micros, "at", "int64", f"{times}.MicroTimestamp"), moment),
        (value(micros * 1000, "at", "int64", f"{times}.NanoTimestamp"), moment),
        (value(micros, "local", "int64", f"{times}.MicroTimestamp"), moment),
        (value("2024-01-01T11:00:00.123+01:00", "at", "string", f"{times}.ZonedTimestamp"), moment),
        (value(micros * 1000 + 1, "at", "int64", f"{times}.NanoTimestamp"), f"{times}.NanoTimestamp"),
        (value(36_000_000, "at", "int32", f"{times}.Time"), f"{times}.Time"),
        (value(micros, "day", "int64", f"{times}.MicroTimestamp"), f"{times}.MicroTimestamp"),
        ({"op": "u", "after": {"id": 1}, "source": SOURCE}, 'write format="json"'),
    ]
    found = decoded(session, consumed, [one for one, _ in others], [{"payload": {"id": 1}, "schema": {}}] * len(others))
    for row, (sent, expected) in zip(found, others, strict=True):
        if isinstance(row, str):
            assert isinstance(expected, str), (row, expected, sent)
            assert expected in row
        else:
            assert expected in [row[name] for name in ("amount", "day", "at", "local")], (row, expected)
    gone = decoded(session, consumed, [{"schema": {}, "payload": None}], [{"payload": {"id": 1}, "schema": {}}])
    assert [row["_deleted"] for row in gone if isinstance(row, dict)] == [True]


def test_a_flattened_topic_says_itself_what_is_deleted(session: SparkSession) -> None:
    consumed = Consumed.debezium(key="id int", value="name string", flattened=True)
    more = {"__op": "u", "__source_ts_ms": 7}
    found = decoded(
        session,
        consumed,
        [
            {"id": 1, "name": "a", "__deleted": "false"} | more,
            {"id": 1, "name": "a", "__deleted": "true"} | more,
            {"id": 1, "name": "a", "__op": "d"},
            {"id": 1, "name": "a"},
            None,
            {"op": "u", "before": {"id": 1}, "after": {"id": 1}},
        ],
    )
    assert [(row["name"], row["_deleted"]) for row in found[:5] if isinstance(row, dict)] == [
        ("a", False),
        (None, True),
        (None, True),
        ("a", False),
        (None, True),
    ]
    assert "leave out flattened=True" in str(found[5])


def test_a_change_of_a_key_is_found_whichever_partition_lands_first(session: SparkSession) -> None:
    it = source(session, batch=1, versioned=Versioned("1d"))
    it.put(1, op="c", at=1, name="Ada", note="long")
    it.lsn += 1
    it.event("c", 2, {"id": 2, "name": "Ada", "note": GONE}, at=2, partition=1, oldkey=1)
    assert rows(it) == {1: ("Ada", "long"), 2: ("Ada", None)}
    it.left(1, 2, at=2)
    assert rows(it) == {2: ("Ada", "long")}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"format": "xml"}, 'write "json", "json_with_schemas" or "avro"'),
        ({"time_unit": "s"}, 'write one of "milliseconds"'),
        ({"truncate": "yes"}, "write True or False"),
        ({"placeholder": ""}, "unavailable.value.placeholder"),
    ],
)
def test_a_wrong_argument_is_refused_by_name(given: dict[str, Any], said: str) -> None:
    with pytest.raises(TopologyError, match=re.escape(said)):
        Consumed.debezium(key="id int", value="name string", **given)


def test_events_are_no_stream_and_a_versioned_table_is_not_truncated() -> None:
    builder = StreamsBuilder("wrong")
    with pytest.raises(TopologyError, match=r"declare it with table\(\) or global_table\(\)"):
        builder.stream("t", Consumed.debezium(key="id int", value="name string"))
    asked = Consumed.debezium(key="id int", value="name string", truncate=True)
    with pytest.raises(TopologyError, match="leave out versioned=, or truncate=True"):
        builder.table("t", asked, versioned=Versioned("1d"))


OPTIONAL = ["null", "string"]
LOCAL = {"type": "long", "connect.name": "io.debezium.time.MicroTimestamp"}
ROW = record("Value", id="int", name=OPTIONAL, at=["null", LOCAL], note=OPTIONAL)
EVENT = record(
    "Envelope", before=["null", ROW], after=["null", "Value"], source=record("Source", ts_ms="long"), op="string"
)
FLAT = record("Value", id="int", name=OPTIONAL, __deleted=OPTIONAL, __op=OPTIONAL, __source_ts_ms=["null", "long"])
PLAIN = record("Value", id="int", name="string")
HEARTBEAT = record("Heartbeat", ts_ms="long")
AVRO = schemas(record("Key", id="int"), EVENT, FLAT, PLAIN, HEARTBEAT)
RECORDS = (
    "_key binary, _value binary, _headers array<struct<key: string, value: binary>>, _topic string, _partition int, "
    "_offset bigint, _timestamp timestamp"
)


def from_avro(session: SparkSession, consumed: Consumed, *values: tuple[int, object, object] | None) -> list[Any]:
    """The decoded records: each value by the number of its schema, its schema, and what is written."""
    raw = [None if value is None else written(*value) for value in values]
    key, at = written(1, record("Key", id="int"), {"id": 1}), datetime(2026, 1, 1, tzinfo=UTC)
    rows = [(key, value, None, "t", 0, number, at) for number, value in enumerate(raw)]
    decoded = decode(session.createDataFrame(rows, RECORDS), consumed, {"key": AVRO, "value": AVRO})
    return decoded.orderBy("_offset").collect()


def test_an_envelope_in_avro_is_a_row_a_deletion_or_in_quarantine(session: SparkSession) -> None:
    def event(op: str, after: object) -> tuple[int, object, object]:
        before = {"id": 1, "name": "before", "at": 2**62, "note": None}
        return 2, EVENT, {"before": before, "after": after, "source": {"ts_ms": 1000}, "op": op}

    ada = {"id": 1, "name": "Ada", "at": 5_000_001, "note": GONE}
    wrong = ada | {"at": 2**62}
    events = event("c", ada), event("d", None), None, event("t", None), event("m", None), event("x", ada)
    more = event("u", None), event("u", wrong), (5, HEARTBEAT, {"ts_ms": 1}), (4, PLAIN, {"id": 1, "name": "Ada"})
    declared = "name string, at timestamp, note string"
    consumed = Consumed.debezium(key="id int", value=declared, format="avro")
    found = from_avro(session, consumed, *events, *more)
    first = found[0]
    at = datetime.fromtimestamp(5.000001, UTC)
    assert (first["id"], first["name"], first["note"], first["_unavailable"]) == (1, "Ada", None, ["note"])
    assert first["at"].astimezone(UTC) == at
    assert [row["_deleted"] for row in found[:3]] == [False, True, True]
    assert [row["_at"] and row["_at"].timestamp() for row in found[:3]] == [1.0, 1.0, None]
    assert [row["_error"] for row in found[:3]] == [None] * 3
    said = "truncate=True", "pg_logical_emit_message", "unknown op: x", "no after, and op is u", "at does not fit"
    for row, text in zip(found[3:], (*said, "no op, source and after", "no op, source and after"), strict=True):
        assert text in row["_error"]
    truncating = from_avro(session, replace(consumed, envelope=Envelope(truncate=True)), event("t", None))
    assert [(row["_truncated"], row["_deleted"], row["_error"]) for row in truncating] == [(True, True, None)]


def test_a_flattened_record_in_avro_is_a_row_or_a_deletion(session: SparkSession) -> None:
    def row(deleted: str | None, op: str | None, at: int | None) -> tuple[int, object, object]:
        return 3, FLAT, {"id": 1, "name": "Ada", "__deleted": deleted, "__op": op, "__source_ts_ms": at}

    plain = 4, PLAIN, {"id": 1, "name": "Ada"}
    event = {"before": None, "after": None, "source": {"ts_ms": 1000}, "op": "d"}
    consumed = Consumed.debezium(key="id int", value="name string", format="avro", flattened=True)
    rows = row("false", "c", 1000), row("true", "d", 2000), row(None, "d", None), plain, (2, EVENT, event)
    *found, last = from_avro(session, consumed, *rows)
    own = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
    assert [(one["name"], one["_deleted"], one["_at"].timestamp()) for one in found] == [
        *(("Ada", False, 1.0), (None, True, 2.0), (None, True, own), ("Ada", False, own))
    ]
    assert "leave out flattened=True" in last["_error"]


def test_a_declaration_is_compared_with_the_row_in_the_schema() -> None:
    def checked(value: str, known: Schemas, **more: Any) -> None:
        check("value", Consumed.debezium(key="id int", value=value, format="avro", **more), known, newest_only=True)

    checked("name string, at timestamp_ntz", schemas(EVENT))
    for value, known, more, said in (
        ("nmae string", EVENT, {}, "no schema of the value has the column nmae .* are id, name, at, note"),
        ("name date, note array<int>", EVENT, {}, "note is declared array<int>.* declare note string"),
        ("name string", HEARTBEAT, {}, "which is no envelope of Debezium"),
        ("name string", EVENT, {"flattened": True}, "leave out flattened=True"),
    ):
        with pytest.raises(Mismatch, match=said):
            checked(value, schemas(known), **more)
