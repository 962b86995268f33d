"""Topics as they are: all compression codecs, plain values, headers and times of arrival, from topic to topic."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from confluent_kafka import OFFSET_BEGINNING, TopicPartition
from confluent_kafka.serialization import IntegerDeserializer, StringDeserializer

from resources.kafka import Kafka
from spark.engine.publish import publish
from spark.engine.quarantine import raw_record, redecode
from spark.engine.status import observe, with_arrival_time
from spark.topology import Consumed, Produced, StreamsBuilder
from tests.support import lake
from tests.support.lake import Record, send

if TYPE_CHECKING:
    from collections.abc import Callable

    from confluent_kafka import Message

    from spark.engine.ports import Ports

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
LARGE = 10_000_000  # bytes
ROOM: dict[str, str | int] = {"message.max.bytes": 12_000_000}
TRACE = "traceparent"


def messages(kafka: Kafka, topic: str) -> list[Message]:
    """The committed records of a topic of one partition."""
    consumer = kafka.consumer(**{"group.id": "formats", "isolation.level": "read_committed"})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found = []
    # The end of a transaction is written behind its records when the publisher has gone on already.
    lake.until(lambda: kafka.end_offsets([topic]) == kafka.end_offsets([topic], read_committed=False))
    end = kafka.end_offsets([topic])[topic].offsets[0]
    while consumer.position([TopicPartition(topic, 0)])[0].offset < end:
        message = consumer.poll(1)
        if message is not None:
            assert message.error() is None
            found.append(message)
    consumer.close()
    return found


def test_records_of_every_codec_and_ten_megabytes_are_read_and_published_for_kafkas_own_deserializers(
    ports: Ports, kafka: Kafka, topic: Callable[..., str]
) -> None:
    size = {"max.message.bytes": "12000000"}
    lines, lengths, again = topic("lines", config=size), topic("lengths"), topic("again", config=size)
    builder = StreamsBuilder(f"formats-{lines}")
    table = builder.table(lines, Consumed.kafka(key="id int", value="line string"))
    table.to(again, Produced.kafka())
    table.map_values("cast(length(line) AS int) AS n").materialize("n").to(lengths, Produced.kafka())
    topology = builder.build()
    wanted = {}
    for codec in CODECS:
        producer = kafka.producer(**ROOM, **{"compression.type": codec})
        for at in range(3):
            key = 3 * CODECS.index(codec) + at
            wanted[key] = codec * (LARGE // len(codec) if (codec, at) == ("zstd", 2) else 10 * at)
            producer.produce(lines, key=key.to_bytes(4, "big"), value=wanted[key].encode())
        assert producer.flush(60) == 0
    producer.produce(lines, key=b"no int", value=b"x")
    producer.produce(lines, key=(99).to_bytes(4, "big"), value=b"\xff")
    assert producer.flush(60) == 0

    lake.land_all(ports, topology)
    lake.step_all(ports, topology)
    assert lake.rows(ports, topology, "n") == {key: {"n": len(line)} for key, line in wanted.items()}
    assert raw_record(ports, topology, topology.sources[0], 0, 15).error == (
        "the key is not what Kafka's IntegerSerializer writes (id int)"
    )
    publish(ports, topology, topology.table("n"))
    key_of, value_of, text_of = IntegerDeserializer(), IntegerDeserializer(), StringDeserializer()
    found = {key_of(one.key(), None): value_of(one.value(), None) for one in messages(kafka, lengths)}
    assert found == {key: len(line) for key, line in wanted.items()}
    large = Kafka({**kafka.config, "message.max.bytes": str(ROOM["message.max.bytes"])})
    publish(replace(ports, kafka=large), topology, topology.table(lines))
    assert {key_of(one.key(), None): text_of(one.value(), None) for one in messages(kafka, again)} == wanted


def test_headers_arrive_in_their_column_and_leave_with_the_records(
    ports: Ports, kafka: Kafka, topic: Callable[..., str]
) -> None:
    orders, sink = topic("orders", config={"message.timestamp.type": "LogAppendTime"}), topic("sink")

    def made(value: str) -> StreamsBuilder:
        builder = StreamsBuilder(f"headers-{orders}")
        table = builder.table(orders, Consumed.json(key="id bigint", value=value, headers="headers"))
        traced = table.map_values(["a", "headers", f"filter(headers, h -> h.key = '{TRACE}')[0].value AS trace"])
        traced.materialize("traced").to(sink, Produced.json(headers="headers"))
        return builder

    producer = kafka.producer()
    pairs: list[tuple[str, str | bytes | None]] = [(TRACE, b"00-1"), ("twice", b"\xff"), ("twice", b""), ("none", None)]
    producer.produce(orders, key=b"1", value=b'{"a": 1}', headers=pairs)
    producer.produce(orders, key=b"2", value=b'{"a": 2}')
    producer.produce(orders, key=b"3", value=b'{"a": 3, "b": "x"}', headers=pairs[:1])
    producer.produce(orders, key=b"4", value=b"{no json", headers=pairs[:2])
    assert producer.flush(30) == 0
    strict, topology = made("a int, b int").build(), made("a int").build()
    lake.land_all(ports, strict)
    raw = raw_record(ports, strict, strict.sources[0], 0, 3)
    assert (raw.value, raw.headers) == ("{no json", ((TRACE, "00-1"), ("twice", "\\xff")))
    redecode(ports, topology, topology.sources[0], "again")
    lake.step_all(ports, topology)

    rows: dict[Any, dict[str, Any]] = {
        row["id"]: row for row in map(dict, lake.listed(lake.path(ports, topology, "traced")))
    }
    assert {key: row["trace"] for key, row in rows.items()} == {1: b"00-1", 2: None, 3: b"00-1"}
    assert [(one["key"], one["value"]) for one in rows[1]["headers"]] == pairs
    assert rows[2]["headers"] is None
    publish(ports, topology, topology.table("traced"))
    sent = {
        one.key(): [pair for pair in one.headers() or [] if not pair[0].startswith("tidetable")]
        for one in messages(kafka, sink)
    }
    assert sent == {b"1": pairs, b"2": [], b"3": pairs[:1]}
    send(kafka, orders, Record(1, None))
    lake.land_all(ports, topology)
    lake.step_all(ports, topology)
    publish(ports, topology, topology.table("traced"))
    assert messages(kafka, sink)[-1].value() is None

    states = with_arrival_time(kafka, topology, observe(ports.lakehouse, kafka, topology)[1])
    assert [state.table for state in states if state.arrival_time] == [topology.sources[0].landing]
