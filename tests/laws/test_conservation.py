"""No record vanishes: each is a row, a tombstone, superseded by a newer one, late, or in quarantine with its reason."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from spark.testing import TopologyTestDriver
from spark.topology import Consumed, StreamsBuilder, TimeWindows, Topology
from tests.support.quick import quick_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from resources.engine import Engine

BAD = {
    "is not JSON": (b'{"a": 1, "b": "x"}', b"{"),
    "of another type": (b'{"a": 1, "b": "x"}', b'{"v": "many", "d": 1}'),
    "beyond the scale": (b'{"a": 1, "b": "x"}', b'{"v": 1, "d": 1.005}'),
    "a key that is not JSON": (b"{", b'{"v": 1, "d": 1}'),
}
PARTS = {"half a key": b'{"a": 1}', "no key": None, "a key of nulls": b'{"a": null, "b": null}'}


@pytest.fixture(scope="module")
def session(engine: Engine) -> Iterator[SparkSession]:
    """A session for small queries."""
    session = quick_session(engine)
    yield session
    session.stop()


def topology() -> Topology:
    """Each kind of input, a table in windows, which drops what is late, and tables of a stream, which need its keys."""
    shape = Consumed.json(key="a int, b string", value="v int, d decimal(9,2)")
    builder = StreamsBuilder("conserved")
    builder.table("changes", shape)
    builder.global_table("dimension", shape)
    events = builder.stream("events", shape)
    events.group_by("v").windowed_by(TimeWindows.of("10ms", grace="5ms")).count().materialize("windows")
    events.group_by("a").count().materialize("groups")
    events.group_by("a").aggregate(several="sort_array(collect_list(v))").materialize("lists")
    events.to_table().materialize("newest")
    return builder.build()


@pytest.mark.parametrize("seed", range(3))
def test_every_record_is_counted_once(session: SparkSession, seed: int) -> None:
    rng = random.Random(seed)
    driver = TopologyTestDriver(topology(), rng.randrange(5, 60), session)
    newest: dict[str, dict[tuple[int, str], int | None]] = {name: {} for name in ("changes", "dimension")}
    fates: dict[str, Counter[str]] = {name: Counter() for name in ("changes", "dimension", "events")}
    keyless, ungrouped = 0, 0
    for n in range(60):
        topic, key = rng.choice(list(fates)), (rng.randrange(3), rng.choice("xy"))
        value: object = {"v": n % 4, "d": 1.25}
        named: object = {"a": key[0], "b": key[1]}
        match rng.random():
            case chance if chance < 0.2:
                named, value = rng.choice(list(BAD.values()))
                fates[topic]["quarantined"] += 1
            case chance if chance < 0.4:
                named = rng.choice(list(PARTS.values()))
                fates[topic]["rows" if topic == "events" else "quarantined"] += 1
                keyless += topic == "events"
                ungrouped += topic == "events" and named != PARTS["half a key"]
            case chance if chance < 0.6:
                value = None
                fates[topic]["tombstones"] += 1
            case _:
                fates[topic]["rows"] += 1
        good = value is None or (isinstance(value, dict) and isinstance(named, dict))
        if good and topic in newest:
            newest[topic][key] = None if value is None else n % 4
        driver.pipe(topic, key=named, value=value, timestamp=rng.randrange(100))
    for topic, expected in fates.items():
        counted = driver.counted(topic)
        told = {name: getattr(counted, name) for name in ("rows", "tombstones", "quarantined")}
        assert told == {name: expected[name] for name in told}, topic
        assert counted.records == counted.offsets == expected.total()
        assert sum(counted.reasons.values()) == counted.quarantined == len(driver.quarantined(topic))
    for topic, rows in newest.items():
        stored = driver.table(topic)
        assert {(row["a"], row["b"]): row["v"] for row in stored} == {
            key: v for key, v in rows.items() if v is not None
        }
        deleted = sum(v is None for v in rows.values())
        counted = driver.counted(topic)
        superseded = counted.rows + counted.tombstones - len(rows)
        assert len(stored) + deleted + superseded + counted.quarantined == counted.records
    in_windows = sum(int(str(row["count"])) for row in driver.table("windows"))
    dropped = driver.dropped("windows")
    assert in_windows + dropped.get("late", 0) == fates["events"]["rows"]
    assert dropped.get("null value", 0) == fates["events"]["tombstones"]
    gone = {"null value": fates["events"]["tombstones"], "null key": ungrouped}
    for name in ("groups", "lists"):
        assert driver.dropped(name) == {reason: count for reason, count in gone.items() if count}
    in_groups = sum(int(str(row["count"])) for row in driver.table("groups"))
    assert in_groups + driver.dropped("groups").get("null key", 0) == fates["events"]["rows"]
    assert driver.dropped("newest") == ({"null key": keyless} if keyless else {})


def test_a_key_that_a_record_of_a_stream_lacks_is_the_values(session: SparkSession) -> None:
    shape = Consumed.json(key="a int, b string", value="A int, v int")
    builder = StreamsBuilder("lent")
    builder.stream("events", shape).to_table().materialize("newest")
    builder.table("changes", shape)
    driver = TopologyTestDriver(builder.build(), "all", session)
    for topic in ("events", "changes"):
        driver.pipe(topic, key=b'{"b": "x"}', value=b'{"A": 7, "v": 1}')
        driver.pipe(topic, key=None, value={"A": 7, "v": 2})
    driver.expect("newest", [{"a": 7, "b": "x", "v": 1}])
    assert driver.dropped("newest") == {"null key": 1}
    assert driver.counted("changes").quarantined == 2  # whose partition, and whose tombstones, would be another's


def test_a_reason_is_told_for_every_kind_of_bad_record(session: SparkSession) -> None:
    driver = TopologyTestDriver(topology(), "all", session)
    for key, value in BAD.values():
        driver.pipe("changes", key=key, value=value)
    for part in PARTS.values():
        driver.pipe("changes", key=part, value=json.dumps({"v": 1, "d": 1}).encode())
    assert driver.counted("changes").quarantined == len(BAD) + len(PARTS)
    assert all(record["error"] for record in driver.quarantined("changes"))
