"""(l) The price of depth and of width: a chain of ten tables, and fifty tables side by side, after few changes."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from spark.topology import Consumed, StreamsBuilder
from tests.benchmarks.duck import answer, rows, same
from tests.benchmarks.measure import Row, row
from tests.benchmarks.shop import produce
from tests.benchmarks.ticking import Parts, ticked

if TYPE_CHECKING:
    from spark.topology import Topology
    from tests.benchmarks.measure import Bench

LEVELS, ROWS = 10, 1_000_000
WIDTH, TOPICS, WIDE_ROWS = 50, 10, 10_000  # tables, those of topics among them, and rows of each
CHANGED = 100  # rows of each topic; every table above it changes as many
WARM_UP = 1  # ticks, which are not counted


def run(bench: Bench) -> list[Row]:
    """Ticks of ten levels, and of fifty tables."""
    bench.engine_warm_up()
    rng = random.Random(11)
    deep = _ticks(bench, rng, _deep(), bench.scaled(ROWS))
    wide = _ticks(bench, rng, _wide(), bench.scaled(WIDE_ROWS))
    per_level, per_table = ([each.query / (LEVELS - 1) for each in deep], [each.steps / WIDTH for each in wide])
    return [
        *_rows(f"{LEVELS} levels, {CHANGED} changed rows", deep),
        row(f"{LEVELS} levels, {CHANGED} changed rows: each level", per_level, "s"),
        *_rows(f"{WIDTH} tables, {CHANGED} changed rows in each", wide),
        row(f"{WIDTH} tables, {CHANGED} changed rows in each: each table", per_table, "s"),
    ]


def _deep() -> Topology:
    """A table of a topic, and nine tables one on the other; the last number of a name is what was added so far."""
    builder = StreamsBuilder("deep")
    table = builder.table("deep", Consumed.json(key="k bigint", value="f bigint"))
    for level in range(1, LEVELS):
        table = table.map_values("f + 1 AS f").materialize(f"level_{level}")
    return builder.build()


def _wide() -> Topology:
    """Ten tables of topics, and four tables on each; the last number of a name is what it adds."""
    builder = StreamsBuilder("wide")
    for topic in range(TOPICS):
        table = builder.table(f"wide-{topic}", Consumed.json(key="k bigint", value="f bigint"))
        for number in range(1, WIDTH // TOPICS):
            table.map_values(f"f + {number} AS f").materialize(f"above_{topic}_{number}")
    return builder.build()


def _ticks(bench: Bench, rng: random.Random, topology: Topology, count: int) -> list[Parts]:
    """Fill the tables; then change some rows of every topic, turn by turn."""
    for source in topology.sources:
        bench.kafka.create_topic(source.topic, 4)
        produce(bench.kafka, source.topic, ((key, b'{"f":0}') for key in range(count)))
    bench.say(f"{topology.name}: first {ticked(bench, topology)}")
    found = []
    for turn in bench.turns(topology.name, warm_up=WARM_UP):
        for source in topology.sources:
            keys = rng.sample(range(count), min(CHANGED, count))
            produce(bench.kafka, source.topic, ((key, b'{"f":%d}' % (turn + 1)) for key in keys))
        found.append(ticked(bench, topology))
        bench.say(f"{topology.name}: {found[-1]}")
    _check(bench, topology)
    return found[WARM_UP:]


def _check(bench: Bench, topology: Topology) -> None:
    """Every table must have the rows of the table of its topic, with its number added."""
    topics = {source.topic for source in topology.sources}
    for table in topology.tables:
        if table.name in topics:
            continue
        below = table.inputs[0].table
        while below not in topics:
            below = topology.table(below).inputs[0].table
        ours, theirs = (rows(bench.lakehouse.table(topology.name, name), ("k", "f")) for name in (table.name, below))
        added = answer(f"SELECT k, f + {table.name.rpartition('_')[2]} AS f FROM below", {"below": theirs})
        assert same(ours, added, f"{topology.name}/{table.name}") > 0


def _rows(what: str, parts: list[Parts]) -> list[Row]:
    return [
        row(f"{what}: the tick", [each.whole for each in parts], "s"),
        row(f"{what}: landing", [each.landing for each in parts], "s"),
        row(f"{what}: steps", [each.steps for each in parts], "s"),
        row(f"{what}: engine and client", [each.cpu for each in parts], "CPU-s"),
    ]
