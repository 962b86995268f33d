"""Clocks that are wrong: a table goes by offset, so its rows are the same, whoever's clock is in the records."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from spark.engine.tick import tick
from spark.topology import Consumed, StreamsBuilder
from tests import lake
from tests.lake import Record, send

if TYPE_CHECKING:
    from collections.abc import Callable

    from resources.kafka import Kafka
    from spark.engine.doors import Doors

DAY = 86_400_000  # milliseconds
NOW = time.time_ns() // 1_000_000
CLOCKS = {
    "long-past": [0, 1],
    "backwards": [NOW, NOW - 365 * DAY],
    "ahead": [NOW + DAY, NOW],
    "microseconds": [1000 * NOW, NOW],
    "brokers": [NOW + DAY, 0],
}


def test_a_tables_rows_do_not_depend_on_clocks(doors: Doors, kafka: Kafka, topic: Callable[..., str]) -> None:
    builder = StreamsBuilder("clocks")
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
        assert tick(doors, made, f"tick {number}").failed == {}
    rows = {key: row for name in names.values() for key, row in lake.rows(doors, made, name).items()}
    assert rows == {(clock, id_): {"v": v} for clock in CLOCKS for id_, v in ((1, 1), (2, 0), (3, 1))}
