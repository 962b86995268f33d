"""Ten thousand records of all sorts: each one is where it belongs, and none stops or spoils anything."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from spark.engine.audit import audit
from spark.engine.tick import tick
from spark.topology import StreamsBuilder, Topology
from tests.engine.poison import COLUMNS, CONSUMED, Judged, drawn, judge
from tests.support import lake

if TYPE_CHECKING:
    from collections.abc import Callable

    from resources.kafka import Kafka
    from spark.engine.ports import Ports

RECORDS = 10_000
TICKS = 4
PARTITIONS = 3
LARGE = 10_000_000  # bytes
LARGEST = str(12_000_000)

Sent = tuple[bytes | None, bytes | None]
Place = tuple[int, int]


def records() -> list[Sent]:
    """What is sent: some of it is large."""
    rng = random.Random(11)
    found = [drawn(rng, 1000 + number) for number in range(RECORDS - 4)]
    text = b'{"a": 1, "s": "%s"}' % (b"x" * LARGE)
    large: list[Sent] = [
        (b"1", text),
        (b"2", text[:-1]),
        (b"3", text.replace(b'"s"', b'"other"')),
        (b"7" * LARGE, b"{}"),
    ]
    return [*large[:2], *found, *large[2:]]


@pytest.fixture(scope="module")
def poisoned(ports: Ports, kafka: Kafka, topic: Callable[..., str]) -> tuple[Topology, dict[Place, Sent]]:
    """The topology after all ticks, and what was sent, by partition and offset."""
    name = topic("poisoned", PARTITIONS, {"max.message.bytes": LARGEST})
    builder = StreamsBuilder(f"poison-{name}")
    builder.table(name, CONSUMED)
    topology = builder.build()
    settings: dict[str, str | int] = {"message.max.bytes": LARGEST}
    producer = kafka.producer(**settings)
    sent: dict[Place, Sent] = {}
    ends = [0] * PARTITIONS
    all_records = records()
    for number in range(TICKS):
        for key, value in all_records[number::TICKS]:
            judged = judge(key, None).key
            partition = (judged or 0) % PARTITIONS  # a key has one partition, so its newest record is its last there
            producer.produce(name, key=key, value=value, partition=partition)
            sent[partition, ends[partition]] = (key, value)
            ends[partition] += 1
        assert producer.flush(60) == 0
        assert tick(ports, topology, f"tick {number}").failed == {}
    return topology, sent


def test_every_record_is_a_row_or_in_quarantine_with_its_coordinates(
    ports: Ports, poisoned: tuple[Topology, dict[Place, Sent]]
) -> None:
    topology, sent = poisoned
    [source] = topology.sources
    assert len(sent) == RECORDS
    rows = lake.listed(lake.path(ports, topology, source.landing))
    found = {(row["_partition"], row["_offset"]): row for row in rows}
    assert len(rows) == len(found)
    assert found.keys() == sent.keys()
    wrong = []
    broken = 0
    for place, (key, value) in sent.items():
        row, judged = found[place], judge(key, value)
        assert row["_topic"] == source.topic
        broken += judged.broken
        if landed(row) != expected(judged, key, value):
            wrong.append((key and key[:100], value and value[:300], landed(row), expected(judged, key, value)))
    assert wrong == [], f"{len(wrong)} of {len(sent)}"
    assert RECORDS / 4 < broken < RECORDS * 3 / 4


def test_the_table_over_it_has_the_newest_right_record_of_every_key(
    ports: Ports, poisoned: tuple[Topology, dict[Place, Sent]]
) -> None:
    topology, sent = poisoned
    [source] = topology.sources
    table: dict[lake.Key, dict[str, str]] = {}
    for place in sorted(sent):
        judged = judge(*sent[place])
        if judged.broken or judged.key is None:
            continue
        table.pop(judged.key, None)
        if judged.row is not None:
            table[judged.key] = _texts(judged.row)
    stored = lake.rows(ports, topology, source.topic)
    assert {key: _texts(row) for key, row in stored.items()} == table
    assert len(table) > 1000
    assert audit(ports, topology, topology.table(source.topic)).holds


def expected(judged: Judged, key: bytes | None, value: bytes | None) -> tuple[Any, ...]:
    """A record as it must have landed: of a table, one without a key is no row."""
    if judged.broken or judged.key is None:
        return (True, key, value)
    return (False, None, None, judged.key, judged.row is None, _texts(judged.row or dict.fromkeys(COLUMNS)))


def landed(row: lake.Row) -> tuple[Any, ...]:
    """A record as it landed."""
    if row["_error"] is not None:
        return (True, row["_key"], row["_value"])
    columns = _texts({name: row[name] for name in COLUMNS})
    return (False, row["_key"], row["_value"], row["id"], row["_deleted"], columns)


def _texts(row: dict[str, Any]) -> dict[str, str]:
    """Values by their text, by which not a number equals itself."""
    return {name: repr(value) for name, value in row.items()}
