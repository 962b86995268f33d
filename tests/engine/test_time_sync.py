"""Slices of a backlog give what the whole gives; what waits for an empty partition waits until its deadline."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa  # type: ignore[import-untyped]  # has no types of its own
import pytest
from deltalake import DeltaTable, write_deltalake

from spark.engine import time_sync
from spark.engine.audit import audit
from spark.engine.errors import LogBroken
from spark.engine.ports import Ports
from spark.engine.step import step
from spark.engine.tick import tick
from spark.engine.time_sync import Waiting, waiting
from spark.topology import Consumed, JoinWindows, StreamsBuilder, Topology
from tests.support import lake
from tests.support.lake import NoEngine, Record, send

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from resources.kafka import Kafka

SINCE = 1_700_000_000_000  # milliseconds since 1970
TABLES = ("pairs", "seen", "titled", "enriched", "sales")


def topology(name: str, topics: dict[str, str], limit: int | None = None) -> Topology:
    """Two streams joined, counted, and looked up in a global table; a foreign-key join, and sums of it."""
    builder = StreamsBuilder(name, max_records_per_tick=limit)
    click = Consumed.json(key="user bigint", value="v int")
    clicks, buys = builder.stream(topics["clicks"], click), builder.stream(topics["buys"], click)
    orders = builder.table(topics["orders"], Consumed.json(key="id bigint", value="customer bigint, amount int"))
    customers = builder.table(topics["customers"], Consumed.json(key="customer bigint", value="name string"))
    titles = builder.global_table(topics["titles"], Consumed.json(key="user bigint", value="title string"))
    within = JoinWindows.of("5ms", grace="4ms")
    clicks.left_join(buys, within=within, select=["left.v AS l", "right.v AS r"]).materialize("pairs")
    clicks.merge(buys).group_by("user").aggregate(n="count(*)", v="sum(v)").materialize("seen")
    clicks.left_join(titles, on="user", select=["left.v", "right.title"]).materialize("titled")
    enriched = orders.join(customers, on="customer", select=["left.*", "right.name"]).materialize("enriched")
    enriched.group_by("name").aggregate(amount="sum(amount)").materialize("sales")
    return builder.build()


def backlog(rng: random.Random, since: int) -> dict[str, list[Record]]:
    """Records of all topics, out of order within their partitions, some without key or value."""

    def records(count: int, keys: int, value: Callable[[], dict[str, object]], spread: int) -> list[Record]:
        found = []
        for number in range(count):
            key = rng.choice([None, *range(keys)]) if spread else rng.randrange(keys)
            at = since + number * 3 // 2 + rng.randrange(-12, 12)
            partition = rng.randrange(2) if spread else (key or 0) % 2
            found.append(Record(key, None if rng.random() < 0.1 else value(), partition, SINCE + at))
        return found

    return {
        "clicks": records(60, 3, lambda: {"v": rng.randrange(9)}, spread=1),
        "buys": records(40, 3, lambda: {"v": rng.randrange(9)}, spread=1),
        "orders": records(40, 8, lambda: {"customer": rng.randrange(4), "amount": rng.randrange(9)}, spread=0),
        "customers": records(20, 4, lambda: {"name": rng.choice("abc")}, spread=0),
        "titles": records(6, 3, lambda: {"title": rng.choice("xyz")}, spread=0),
    }


def held(ports: Ports, made: Topology, name: str) -> list[str]:
    """The rows of a table, without what tells how many steps made them."""
    rows = lake.listed(lake.path(ports, made, name))
    return sorted(str({key: row[key] for key in row if key not in ("_batch", "_ordinal", "_reached")}) for row in rows)


def caught_up(ports: Ports, made: Topology) -> bool:
    """Whether every table is where the landings are."""
    landed = {
        t: at for source in made.sources for t, at in lake.state(ports, made, source.landing).position.cut.items()
    }
    cuts = [lake.state(ports, made, table.name).position.cut for table in made.tables]
    return all(at == landed[topic] for cut in cuts for topic, at in cut.items())


def taken(ports: Ports, made: Topology) -> int:
    """How many records the newest release has let go in all."""
    release = lake.state(ports, made, made.sources[0].landing).position.release
    assert release is not None
    return sum(offset for at in release.cut.values() for offset in at.offsets.values())


@pytest.mark.thorough
def test_a_backlog_in_slices_is_what_it_is_in_one_piece(ports: Ports, kafka: Kafka, topic: Callable[..., str]) -> None:
    names = {name: topic(name, 2) for name in ("clicks", "buys", "orders", "customers", "titles")}
    for name, records in backlog(random.Random(1), 0).items():
        send(kafka, names[name], *records)
    whole, sliced = topology(f"whole-{names['clicks']}", names), topology(f"sliced-{names['clicks']}", names, limit=60)
    assert tick(ports, whole, "whole").failed == {}
    so_far, ticks = 6, 0  # the titles are no part of a slice
    while not ticks or not caught_up(ports, sliced):
        assert tick(ports, sliced, f"slice {ticks}").failed == {}
        so_far, before, ticks = taken(ports, sliced), so_far, ticks + 1
        assert before < so_far <= before + 60
        if ticks == 2:
            assert audit(ports, sliced, sliced.table("sales")).holds
    assert ticks == 3
    for name in (*TABLES, names["orders"], names["customers"]):
        assert held(ports, sliced, name) == held(ports, whole, name), name
    assert held(ports, sliced, "pairs") != []
    position = lake.state(ports, sliced, "pairs").position
    assert position.dropped == lake.state(ports, whole, "pairs").position.dropped
    assert position.time == lake.state(ports, whole, "pairs").position.time


def newest(items: str, name: str, limit: int | None = None) -> Topology:
    """A topic as a table."""
    builder = StreamsBuilder(name, max_records_per_tick=limit)
    builder.table(items, Consumed.json(key="id bigint", value="v int"))
    return builder.build()


def test_a_key_of_several_partitions_ends_where_it_ends_in_one_piece(
    ports: Ports, kafka: Kafka, topic: Callable[..., str]
) -> None:
    name = topic("items", 2)
    send(
        kafka,
        name,
        *(Record(1, {"v": v}, partition, SINCE + at) for v, partition, at in ((1, 0, 20), (2, 0, 5), (3, 1, 10))),
        *(Record(2, {"v": v}, partition, SINCE + at) for v, partition, at in ((4, 1, 12), (5, 0, 30))),
    )
    whole, sliced = newest(name, f"whole-{name}"), newest(name, f"sliced-{name}", limit=1)
    assert tick(ports, whole, "whole").failed == {}
    assert lake.rows(ports, whole, name) == {1: {"v": 3}, 2: {"v": 5}}
    found = []
    for number in range(4):
        assert tick(ports, sliced, f"slice {number}").failed == {}
        assert audit(ports, sliced, sliced.table(name)).holds
        found.append({key: row["v"] for key, row in lake.rows(ports, sliced, name).items()})
    assert found == [{1: 3}, {1: 3, 2: 4}, {1: 3, 2: 4}, {1: 3, 2: 5}]


def joined(name: str, left: str, right: str, idle: int) -> Topology:
    """Two streams that a table counts together."""
    builder = StreamsBuilder(name, max_task_idle_ms=idle)
    item = Consumed.json(key="id bigint", value="v int")
    both = builder.stream(left, item).merge(builder.stream(right, item))
    both.group_by("id").aggregate(n="count(*)", v="sum(v)").materialize("counted")
    return builder.build()


HOUR = 3_600_000  # milliseconds


def test_records_wait_for_an_empty_partition_until_their_deadline(
    ports: Ports, kafka: Kafka, topic: Callable[..., str]
) -> None:
    left, right = topic("left"), topic("right", 2)
    made = joined(f"held-{left}", left, right, HOUR)
    counted = made.table("counted")

    def put(name: str, at: int, partition: int = 0) -> None:
        send(kafka, name, Record(1, {"v": at}, partition, SINCE + at))

    def taken() -> object:
        return lake.rows(ports, made, "counted").get(1, {}).get("v")

    def landed_at() -> int:
        return lake.state(ports, made, made.source(left).landing).at

    put(left, 10)
    lake.land_all(ports, made)
    since = landed_at()
    assert tick(ports, made, "never").failed == {}
    assert taken() is None
    first = Waiting(left, 0, 1, (f"{right}-0", f"{right}-1"), since, since + HOUR)
    assert waiting(ports.lakehouse, made) == [first]
    put(left, 11)
    again = tick(ports, made, "again")
    assert (again.failed, again.held) == ({}, waiting(ports.lakehouse, made))
    assert again.held == [Waiting(left, 0, 2, (f"{right}-0", f"{right}-1"), since, since + HOUR)]
    alone = step(Ports(NoEngine(), ports.lakehouse, kafka), made, counted, "alone")
    assert alone.outcome == "idle"

    put(right, 5, 0)
    put(right, 7, 1)
    held = tick(ports, made, "right has older ones").held
    assert taken() == 5
    assert [(one.topic, one.partition, one.records, one.waits_for) for one in held] == [
        (left, 0, 2, (f"{right}-0",)),
        (right, 1, 1, (f"{right}-0",)),
    ]
    put(right, 20, 0)
    put(right, 10, 1)
    held = tick(ports, made, "right has newer ones").held
    assert taken() == 5 + 7 + 10 + 10
    assert [(one.topic, one.partition, one.waits_for) for one in held] == [
        (left, 0, (f"{right}-1",)),
        (right, 0, (f"{right}-1",)),
    ]
    assert lake.state(ports, made, "counted").position.enforced == 0

    hasty = joined(made.name, left, right, 1)
    done = tick(ports, hasty, "the deadline has passed")
    assert (done.failed, done.held) == ({}, [])
    assert taken() == 5 + 7 + 10 + 10 + 11 + 20
    assert lake.state(ports, made, "counted").position.enforced == 1
    assert {stepped.outcome for stepped in tick(ports, hasty, "nothing new").stepped} == {"idle"}
    put(left, 6)
    put(right, 11, 1)
    late = tick(ports, made, "what others have passed waits for nobody")
    assert (late.failed, late.held) == ({}, [])
    assert taken() == 5 + 7 + 10 + 10 + 11 + 20 + 6 + 11
    assert lake.state(ports, made, "counted").position.enforced == 1


TIMED = pa.schema(
    [
        ("_timestamp", pa.timestamp("us", "UTC")),
        ("_error", pa.string()),
        ("_partition", pa.int32()),
        ("_offset", pa.int64()),
        ("_batch", pa.int64()),
    ]
)


def forged(path: Path, rows: Sequence[tuple[int | None, bool, int, int, int]]) -> time_sync._Records:
    """A landing of some records: time, whether it is in quarantine, partition, offset, batch; not in their order."""
    columns: list[list[Any]] = [list(column) for column in zip(*rows, strict=True)]
    columns[1] = ["broken" if broken else None for broken in columns[1]]
    data = {name: pa.array(column, TIMED.field(name).type) for name, column in zip(TIMED.names, columns, strict=True)}
    write_deltalake(str(path), pa.table(data))
    ends: dict[int, int] = {}
    for _, _, partition, offset, _ in rows:
        ends[partition] = max(ends.get(partition, 0), offset + 1)
    return time_sync._Records(DeltaTable(str(path)), {}, ends)


@pytest.mark.parametrize("seed", range(5))
def test_what_a_slice_takes_is_what_all_records_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Read in pieces of a few offsets, with gaps between them."""
    monkeypatch.setattr(time_sync, "FIRST_LOOK", 3)
    monkeypatch.setattr(time_sync, "CHUNK", 7)
    rng = random.Random(seed)
    rows = [
        (None if rng.random() < 0.1 else rng.randrange(40) + offset, rng.random() < 0.1, partition, offset, 1)
        for partition in range(3)
        for offset in range(60)
        if rng.random() < 0.7 or offset > 50
    ]
    records = forged(tmp_path / "landing", rng.sample(rows, len(rows)))
    reached: dict[tuple[int, int], int] = {}
    for partition in range(3):
        so_far = time_sync.UNTIMED
        for at, broken, _, offset, _ in [row for row in rows if row[2] == partition]:
            so_far = so_far if at is None or broken else max(so_far, at)
            reached[partition, offset] = so_far
    for until in (time_sync.NEVER, *range(0, 100, 3), time_sync.ALWAYS):
        beyond = [place for place, time in reached.items() if time > until]
        cut = {partition: min(offset for p, offset in beyond if p == partition) for partition, _ in beyond}
        assert records.first_beyond(until) == cut
        for count in (1, 2, 20, 60, 1_000):
            times = sorted(time for time in reached.values() if time <= until)[:count]
            assert time_sync._first(count, [(records, until)]).to_pylist() == times


def test_six_thousand_partitions_are_sliced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A condition for each of them was nested more deeply than a query can be; and only a slice is read."""
    partitions, each = 6_000, 200
    rows = [
        (offset * 10 + partition % 7, False, partition, offset, 1)
        for partition in range(partitions)
        for offset in range(each)
    ]
    records, read = forged(tmp_path / "landing", rows), []
    select = time_sync._Records.select

    def counted(*arguments: Any, **options: Any) -> pa.Table:
        read.append(select(*arguments, **options))
        return read[-1]

    monkeypatch.setattr(time_sync._Records, "select", counted)
    first = time_sync._first(1_001, [(records, time_sync.ALWAYS)])
    assert (len(first), first[-1].as_py()) == (1_001, 1)
    assert sum(rows.num_rows for rows in read) <= 2 * time_sync.CHUNK
    assert records.first_beyond(1) == {p: 0 if p % 7 > 1 else 1 for p in range(partitions)}
    assert len(records.by_partition("max(_time)")) == partitions


def test_a_landing_that_cannot_be_read_is_named_and_the_tick_ends(
    ports: Ports, kafka: Kafka, topic: Callable[..., str], tmp_path: Path
) -> None:
    left, right = topic("left"), topic("right")
    made = joined(f"broken-{left}", left, right, HOUR)
    for name in (left, right):
        send(kafka, name, Record(1, {"v": 1}, 0, SINCE))
    assert tick(ports, made, "before").failed == {}
    copy = lake.copied(ports, made, tmp_path)
    for source in reversed(made.sources):  # the first one keeps the cut of all
        where = Path(lake.path(copy, made, source.landing))
        DeltaTable(str(where)).create_checkpoint()
        [checkpoint] = (where / "_delta_log").glob("*.checkpoint.parquet")
        checkpoint.unlink()
        done = tick(copy, made, f"without {source.topic}")
        assert "time_sync" in done.failed
        assert all(isinstance(error, LogBroken) for error in done.failed.values())
        assert str(where) in str(done.failed["time_sync"])
        assert done.held == []
