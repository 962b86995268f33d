"""Slices of a backlog give what the whole gives; what waits for an empty partition waits until its deadline."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from spark.engine import position as positions
from spark.engine.repair import audit
from spark.engine.step import step
from spark.engine.tick import tick
from spark.topology import Consumed, JoinWindows, StreamsBuilder, Topology
from tests import lake
from tests.lake import NoEngine, Record, Row, send

if TYPE_CHECKING:
    from collections.abc import Callable

    from resources.kafka import Kafka
    from spark.engine.doors import Doors

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


def held(doors: Doors, made: Topology, name: str) -> list[str]:
    """The rows of a table, without what tells how many steps made them."""
    rows = lake.listed(lake.path(doors, made, name))
    return sorted(str({key: row[key] for key in row if key not in ("_batch", "_ordinal", "_reached")}) for row in rows)


def caught_up(doors: Doors, made: Topology) -> bool:
    """Whether every table is where the landings are."""
    landed = {
        t: at for source in made.sources for t, at in lake.state(doors, made, source.landing).position.cut.items()
    }
    cuts = [lake.state(doors, made, table.name).position.cut for table in made.tables]
    return all(at == landed[topic] for cut in cuts for topic, at in cut.items())


def taken(doors: Doors, made: Topology) -> int:
    """How many records the newest release has let go in all."""
    release = lake.state(doors, made, made.sources[0].landing).position.release
    assert release is not None
    return sum(offset for at in release.cut.values() for offset in at.offsets.values())


def test_a_backlog_in_slices_is_what_it_is_in_one_piece(doors: Doors, kafka: Kafka, topic: Callable[..., str]) -> None:
    names = {name: topic(name, 2) for name in ("clicks", "buys", "orders", "customers", "titles")}
    for name, records in backlog(random.Random(1), 0).items():
        send(kafka, names[name], *records)
    whole, sliced = topology(f"whole-{names['clicks']}", names), topology(f"sliced-{names['clicks']}", names, limit=60)
    assert tick(doors, whole, "whole").failed == {}
    so_far, ticks = 6, 0  # the titles are no part of a slice
    while not ticks or not caught_up(doors, sliced):
        assert tick(doors, sliced, f"slice {ticks}").failed == {}
        so_far, before, ticks = taken(doors, sliced), so_far, ticks + 1
        assert before < so_far <= before + 60
        if ticks == 2:
            assert audit(doors, sliced, sliced.table("sales")).holds
    assert ticks == 3
    for name in (*TABLES, names["orders"], names["customers"]):
        assert held(doors, sliced, name) == held(doors, whole, name), name
    assert held(doors, sliced, "pairs") != []
    position = lake.state(doors, sliced, "pairs").position
    assert position.dropped == lake.state(doors, whole, "pairs").position.dropped
    assert position.time == lake.state(doors, whole, "pairs").position.time
