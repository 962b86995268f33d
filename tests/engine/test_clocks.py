"""Clocks that are wrong, in records or of the machine: a table's rows are the same, and nothing waits for ever."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from spark.engine import time_sync as sync
from spark.engine.tick import tick
from spark.topology import Consumed, StreamsBuilder
from tests.support import lake
from tests.support.lake import Record, send

if TYPE_CHECKING:
    from collections.abc import Callable

    from resources.kafka import Kafka
    from spark.engine.ports import Ports

DAY = 86_400_000  # milliseconds
NOW = time.time_ns() // 1_000_000
CLOCKS = {
    "long-past": [0, 1],
    "backwards": [NOW, NOW - 365 * DAY],
    "ahead": [NOW + DAY, NOW],
    "microseconds": [1000 * NOW, NOW],
    "brokers": [NOW + DAY, 0],
}


@pytest.mark.thorough
def test_a_tables_rows_do_not_depend_on_clocks(ports: Ports, kafka: Kafka, topic: Callable[..., str]) -> None:
    builder = StreamsBuilder("clocks", message_timestamp_after_max_ms=None)
    names = {}
    for kind in ("CreateTime", "LogAppendTime"):
        far = {"message.timestamp.type": kind, "message.timestamp.after.max.ms": str(2**63 - 1)}
        names[kind] = topic(kind.lower(), config=far)
        builder.table(names[kind], Consumed.json(key="clock string, id bigint", value="v int"))
    made = builder.build()
    for number in (0, 1):
        for clock, times in CLOCKS.items():
            name = names["LogAppendTime" if clock == "brokers" else "CreateTime"]
            keys = ({"clock": clock, "id": id_} for id_ in (1, 2 + number))
            send(kafka, name, *(Record(key, {"v": number}, timestamp=times[number]) for key in keys))
        assert tick(ports, made, f"tick {number}").failed == {}
    rows = {key: row for name in names.values() for key, row in lake.rows(ports, made, name).items()}
    assert rows == {(clock, id_): {"v": v} for clock in CLOCKS for id_, v in ((1, 1), (2, 0), (3, 1))}


def test_what_is_held_back_waits_no_longer_because_a_machines_clock_is_wrong(
    ports: Ports, kafka: Kafka, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, empty = topic("here"), topic("empty")
    builder = StreamsBuilder(f"held-{here}", max_task_idle_ms=3_600_000)
    consumed = Consumed.json(key="id bigint", value="v int")
    builder.table(here, consumed).left_join(builder.table(empty, consumed), select="left.v").materialize("joined")
    made = builder.build()
    for number, wrong in enumerate((-DAY, DAY)):
        send(kafka, here, Record(number, {"v": number}, timestamp=NOW + number))
        assert tick(ports, made, f"right {number}").failed == {}
        assert number not in lake.rows(ports, made, "joined"), "it waits for an hour"
        with monkeypatch.context() as patched:
            patched.setattr(sync, "_now", lambda wrong=wrong: round(time.time() * 1000) + wrong)
            assert tick(ports, made, f"wrong {number}").failed == {}
        assert lake.rows(ports, made, "joined")[number] == {"v": number}
