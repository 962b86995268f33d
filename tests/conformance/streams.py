"""Streams against Kafka Streams: what was emitted, record by record, for histories in the order of time.

Out of order Kafka's joins of two streams depend on which of their clocks saw what, and ours do not: the laws hold
there. In order nothing depends on anything but the records, so every record that Kafka emits must be one of ours;
of windows that are not suppressed, the last one.
The histories are one behind the other in time, far apart: an operator has one stream time.
Those of versioned tables are out of order: what a record sees there goes by timestamp. They are sent in the order in
which Kafka would take records that are all there, so it is ours as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from random import Random
from typing import TYPE_CHECKING, Any

from spark.testing import TopologyTestDriver
from spark.topology import JoinWindows, SessionWindows, SlidingWindows, Suppressed, TimeWindows
from tests.conformance.cases import MISSING, TOPICS, F, Kind, Record, topology
from tests.support.simulation import visited

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark.topology.handles import KStream, KTable
    from spark.topology.topology import Topology
    from tests.conformance.cases import Sources, World
    from tests.conformance.oracle import Answer
    from tests.support.simulation import Queue

APART = 1_000_000
"""Milliseconds from one history to the next: every window of one is closed when the next begins."""

Sent = Counter[tuple[int, object, object, int]]
"""How often a table emitted what: history, key, row, event time."""

NEAR = JoinWindows.of("10ms", grace="6ms")
LATER = JoinWindows.of("10ms", before="3ms", after="14ms", grace="5ms")
NOT_YET = JoinWindows.of("10ms", before="-2ms", after="9ms", grace="4ms")


def _filtered(of: Sources) -> KStream:
    taps = of.stream("taps").filter("v IS NULL OR v < 3").map_values(["v + 1 AS v"])
    return taps.outer_join(of.stream("tips").filter("v > 0"), within=NEAR, select=["left.v", "right.v AS w"])


def _merged(of: Sources) -> KStream:
    both = of.stream("taps").map_values(["v"]).merge(of.stream("tips").filter("v IS NULL OR v > 0"))
    return both.left_join(of.stream("tips"), within=NEAR, select=PAIR)


def _chain(of: Sources) -> KStream:
    first = of.stream("taps").left_join(of.global_table("names"), on=F, select=["left.*", "right.n"])
    return first.join(of.global_table("names"), on=["world", "CASE WHEN n > 1 THEN 'a' ELSE f END"], select=BOTH)


def _windows(
    windows: TimeWindows | SlidingWindows | SessionWindows, final: bool = False
) -> Callable[[Sources], KTable]:
    def of(sources: Sources) -> KTable:
        found = sources.stream("taps").group_by("world", "k").windowed_by(windows)
        counted = found.aggregate(n="count(*)", total="sum(v)", most="max(v)")
        return counted.suppress(Suppressed.until_window_closes()) if final else counted

    return of


TUMBLING = TimeWindows.of("20ms", grace="5ms")
HOPPING = TimeWindows.of("20ms", advance="7ms", grace="5ms")
SLIDING = SlidingWindows.of("15ms", grace="5ms")
SESSIONS = SessionWindows.of("9ms", grace="5ms")
BOTH = ["left.v", "left.n", "right.n AS m"]
PAIR = ["left.v", "right.v AS w"]
KINDS = {
    kind.name: kind
    for kind in (
        Kind("ss_inner", lambda of: of.stream("taps").join(of.stream("tips"), within=NEAR, select=PAIR)),
        Kind("ss_left", lambda of: of.stream("taps").left_join(of.stream("tips"), within=NEAR, select=PAIR)),
        Kind("ss_outer", lambda of: of.stream("taps").outer_join(of.stream("tips"), within=NEAR, select=PAIR)),
        Kind("ss_inner_later", lambda of: of.stream("taps").join(of.stream("tips"), within=LATER, select=PAIR)),
        Kind("ss_left_later", lambda of: of.stream("taps").left_join(of.stream("tips"), within=LATER, select=PAIR)),
        Kind("ss_outer_later", lambda of: of.stream("taps").outer_join(of.stream("tips"), within=LATER, select=PAIR)),
        Kind(
            "ss_not_yet",
            lambda of: of.stream("taps").outer_join(of.stream("tips"), within=NOT_YET, select=PAIR),
        ),
        Kind("ss_self", lambda of: of.stream("tips").join(of.stream("tips"), within=NEAR, select=PAIR)),
        Kind("ss_filtered", _filtered),
        Kind("st_inner", lambda of: of.stream("taps").join(of.table("rates"), select=["left.v", "right.n"])),
        Kind("st_left", lambda of: of.stream("taps").left_join(of.table("rates"), select=["left.*", "right.n"])),
        Kind(
            "st_view",
            lambda of: of.stream("taps").left_join(of.table("rates").filter("n > 0"), select=["left.v", "right.n"]),
        ),
        Kind(
            "sg_inner",
            lambda of: of.stream("taps").join(
                of.global_table("names"), on=["world", "f"], select=["left.v", "right.n"]
            ),
        ),
        Kind(
            "sg_left",
            lambda of: of.stream("taps").left_join(of.global_table("names"), on=F, select=["left.v", "right.n"]),
        ),
        Kind("sg_chain", _chain),
        Kind("w_tumbling", _windows(TUMBLING)),
        Kind("w_hopping", _windows(HOPPING)),
        Kind("w_sliding", _windows(SLIDING)),
        Kind("w_sessions", _windows(SESSIONS)),
        Kind("w_tumbling_final", _windows(TUMBLING, final=True)),
        Kind("w_hopping_final", _windows(HOPPING, final=True)),
        Kind("w_sliding_final", _windows(SLIDING, final=True)),
    )
}
VERSIONED = {
    kind.name: kind
    for kind in (
        Kind("sv_inner", lambda of: of.stream("posts").join(of.table("fees"), select=["left.v", "right.n"])),
        Kind("sv_left", lambda of: of.stream("posts").left_join(of.table("fees"), select=["left.v", "right.n"])),
        Kind(
            "sv_view",
            lambda of: of.stream("posts").left_join(of.table("fees").filter("n > 0"), select=["left.v", "right.n"]),
        ),
        Kind(
            "sv_inner_grace",
            lambda of: of.stream("posts").join(of.table("fees"), grace="8ms", select=["left.v", "right.n"]),
        ),
        Kind(
            "sv_left_grace",
            lambda of: of.stream("posts").left_join(of.table("fees"), grace="8ms", select=["left.v", "right.n"]),
        ),
    )
}
LIVE = {
    kind.name: kind
    for kind in (
        Kind("ss_self_left", lambda of: of.stream("tips").left_join(of.stream("tips"), within=NEAR, select=PAIR)),
        Kind("ss_merged", _merged),
    )
}
"""Kinds of which no answers are recorded: they are asked live alone."""

RECORDED = {"streams": KINDS, "versioned": VERSIONED}
"""The kinds by the run that they are recorded in."""
EVERY = KINDS | VERSIONED | LIVE


def histories(asked: Topology, seed: int, count: int) -> list[World]:
    """So many histories, global tables first; behind them one that is there to close the last one's windows."""
    topics = [source.topic for source in asked.sources]
    random = Random(f"{topics} {seed}")
    history = _late_history if "posts" in topics else _history
    drawn = [history(asked, topics, APART * (number + 1), random) for number in range(count)]
    driving = ("taps", "tips", "posts")
    end = tuple(Record(topic, {"k": 9}, {"v": 0}, APART * (count + 1)) for topic in topics if topic in driving)
    return [*drawn, end]


def _late_history(_asked: Topology, _topics: Sequence[str], at: int, random: Random) -> World:
    """Posts and fees out of order. No fee is older than the history: Kafka's table would refuse it.

    No two fees are of one time, where Kafka forgets a tombstone; and all posts have key and value, whose time alone
    counts there. They are in the order in which they are taken.
    """
    queues: dict[Queue, list[dict[str, Any]]] = {(0, "fees", 0): [], (1, "posts", 0): []}
    taken: set[int] = set()
    at += 100
    for queue in random.choices(list(queues), (2, 3), k=30):
        topic = queue[1]
        at += random.choice((0, 1, 1, 2, 3, 5, 13))
        time = at - random.choice((0, 0, 0, 1, 2, 4, 8, 12) if topic == "fees" else (0, 0, 0, 1, 3, 7, 10, 20, 40))
        key = {name: draw(random) for name, draw in TOPICS[topic].keys.items()}
        value = {name: draw(random) for name, draw in TOPICS[topic].values.items()}
        if topic == "fees":
            if time in taken:
                continue
            taken.add(time)
        gone = topic == "fees" and random.random() < 0.2
        queues[queue].append({"_timestamp": time, "record": Record(topic, key, None if gone else value, time)})
    return tuple(row["record"] for _, row in visited(queues))


def _history(asked: Topology, topics: Sequence[str], at: int, random: Random) -> World:
    pinned = [topic for topic in topics if asked.source(topic).kind == "global_table"]
    told = [topic for topic in topics if topic not in pinned]
    drawn = [random.choice(pinned) for _ in range(4 * len(pinned))]
    drawn += [random.choice(told) for _ in range(12 * len(told))]
    records = []
    for topic in drawn:
        at += random.choice((1, 1, 2, 2, 3, 5, 8, 13, 40))
        key = {name: draw(random) for name, draw in TOPICS[topic].keys.items()}
        value = {name: cell for name, draw in TOPICS[topic].values.items() if (cell := draw(random)) is not MISSING}
        records.append(Record(topic, key, None if random.random() < 0.15 else value, at))
    return tuple(records)


def ours(session: SparkSession, kinds: Sequence[Kind], worlds: Sequence[World]) -> dict[str, Sent]:
    """What our tables emit, all histories in one batch."""
    asked = topology(kinds)
    driver = TopologyTestDriver(asked, "all", session)
    topics = {source.topic for source in asked.sources}
    for number, records in enumerate(worlds):
        for record in records:
            if record.topic in topics:
                key = {"world": number, **record.key}
                driver.pipe(record.topic, key=key, value=record.value, timestamp=record.timestamp)
    driver.advance()
    found: dict[str, Sent] = {}
    for kind in kinds:
        plan = asked.table(kind.name).plan
        values = [column.name for column in plan.columns[len(plan.key) :]]
        rows = driver._tables[kind.name].rows.values()  # records() leaves out event times
        found[kind.name] = Counter(
            _sent([_plain(row[name]) for name in plan.key], [row[name] for name in values], _millis(row["_timestamp"]))
            for row in rows
        )
    return found


def kafkas(answer: Answer, kinds: Sequence[Kind]) -> dict[str, Sent]:
    """What Kafka's emitted."""
    found = {}
    for kind in kinds:
        told = answer[kind.name]
        if kind.name.startswith("w_") and not kind.name.endswith("_final"):
            told = list({tuple(one.key): one for one in told}.values())  # the last of every window
        sent = [(one.key, *one.row) for one in told if one.row is not None]
        found[kind.name] = Counter(_sent(key, row, time) for key, row, time in sent)
    return found


def _plain(cell: object) -> object:
    return _millis(cell) if isinstance(cell, datetime) else cell


def _millis(at: datetime) -> int:
    return round(at.timestamp() * 1000)


def _sent(key: Sequence[object], row: Sequence[object], time: int) -> tuple[int, object, object, int]:
    """A record without key has no world in it; its time tells."""
    shown = None if None in key else tuple(key[1:])
    return time // APART - 1, shown, tuple(row), time


def differing(mine: Sent, theirs: Sent, worlds: Sequence[World]) -> list[str]:
    """The first history in which the two differ, in lines; none if they are equal. The last one is not closed yet."""
    wrong = sorted({one[0] for one in (mine - theirs) + (theirs - mine)} - {len(worlds) - 1})
    if not wrong:
        return []
    first = wrong[0]
    return [
        f"{len(wrong)} of {len(worlds)} histories differ; the first is {first}:",
        *(f"  {r.topic} {r.key} {r.value} @{r.timestamp - APART * (first + 1)}" for r in worlds[first]),
        *(f"- ours alone: {one[1:]}" for one in (mine - theirs) if one[0] == first),
        *(f"+ Kafka's alone: {one[1:]}" for one in (theirs - mine) if one[0] == first),
    ]
