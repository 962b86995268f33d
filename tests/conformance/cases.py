"""What is compared: kinds of operators, each a table of a topology, and random histories of its topics.

Every key begins with a `world`, so that many histories are one run, here and in Kafka, and no two of them meet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from spark.topology import Consumed, StreamsBuilder, Versioned

if TYPE_CHECKING:
    from spark.topology.handles import GlobalKTable, KStream, KTable
    from spark.topology.topology import Topology

Cells = Mapping[str, object]
Draw = Callable[[Random], object]


@dataclass(frozen=True)
class Record:
    """A record of a world; its key is without the world, which is given when it is sent."""

    topic: str
    key: Cells
    value: Cells | None
    timestamp: int


World = tuple[Record, ...]


def late(random: Random, at: int) -> int:
    """Out of order, and sometimes at the same moment."""
    return 100 + at + random.randint(-12, 12)


def late_and_unique(random: Random, at: int) -> int:
    """Out of order; no two records of a world are of one moment."""
    return 100 * late(random, at) + at


def in_order(_random: Random, at: int) -> int:
    """One after the other."""
    return 100 + at


@dataclass(frozen=True)
class Topic:
    """A topic's declaration, and how its cells are drawn."""

    key: str
    value: str
    keys: Mapping[str, Draw]
    values: Mapping[str, Draw]
    time: Callable[[Random, int], int] = late
    versioned: str | None = None


@dataclass(frozen=True)
class Kind:
    """A table under comparison, and which differences to Kafka are known.

    `counts` are columns that are zero in what Kafka keeps of an emptied group. `times` names, by what a record was
    ("left", or "left tombstone" where only that), the divergences that its results' event times may show.
    """

    name: str
    table: Callable[[Sources], KTable | KStream]
    counts: tuple[str, ...] = ()
    times: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class Sources:
    """The topics of a topology, each declared when it is first used."""

    def __init__(self) -> None:
        self.builder = StreamsBuilder("conformance")
        self.tables: dict[str, KTable] = {}
        self.streams: dict[str, KStream] = {}
        self.globals: dict[str, GlobalKTable] = {}

    def table(self, topic: str) -> KTable:
        """A topic as a table."""
        if topic not in self.tables:
            history = TOPICS[topic].versioned
            versioned = None if history is None else Versioned(history)
            self.tables[topic] = self.builder.table(topic, _consumed(topic), versioned=versioned)
        return self.tables[topic]

    def stream(self, topic: str) -> KStream:
        """A topic as a stream."""
        if topic not in self.streams:
            self.streams[topic] = self.builder.stream(topic, _consumed(topic))
        return self.streams[topic]

    def global_table(self, topic: str) -> GlobalKTable:
        """A topic as a global table."""
        if topic not in self.globals:
            self.globals[topic] = self.builder.global_table(topic, _consumed(topic))
        return self.globals[topic]


def _consumed(topic: str) -> Consumed:
    return Consumed.json(key=TOPICS[topic].key, value=TOPICS[topic].value)


def topology(kinds: Iterable[Kind]) -> Topology:
    """A table for every kind, under its name, over topics that they share."""
    sources = Sources()
    for kind in kinds:
        kind.table(sources).materialize(kind.name)
    return sources.builder.build()


def one_of(*cells: object) -> Draw:
    """One of these, as often as it is named."""
    return lambda random: random.choice(cells)


MISSING = object()  # a value without the field
KEYS, STRINGS = one_of(1, 2, 3, 4), one_of("a", "ab", "b")  # "a" is a prefix of "ab"
KEYED = one_of(1, 1, 1, 2, 2, 3, None)
FOREIGN = one_of("a", "a", "ab", "ab", "b", "b", "nobody", None, None, MISSING)
NUMBER, WORD = one_of(0, 1, 2, 3, None), one_of("x", "y", "z", None)

TOPICS = {
    "left": Topic(
        "world int, k int",
        "f string, h string, boss int, v int, g string",
        {"k": KEYS},
        {"f": FOREIGN, "h": FOREIGN, "boss": one_of(1, 2, 3, 4, None, MISSING), "v": NUMBER, "g": WORD},
    ),
    "right": Topic(
        "world int, f string", "n int, p string, c string", {"f": STRINGS}, {"n": NUMBER, "p": WORD, "c": FOREIGN}
    ),
    "anywhere": Topic("world int, f string", "n int", {"f": STRINGS}, {"n": NUMBER}),
    "third": Topic("world int, c string", "m int", {"c": STRINGS}, {"m": NUMBER}),
    "same": Topic("world int, k int", "n int", {"k": KEYS}, {"n": NUMBER}),
    "old_left": Topic(
        "world int, k int",
        "f string, v int, g string",
        {"k": KEYS},
        {"f": FOREIGN, "v": NUMBER, "g": WORD},
        time=late_and_unique,
        versioned="1d",
    ),
    "lines": Topic("world int, line int", "k int, q int", {"line": KEYS}, {"k": one_of(1, 2, 3, 4, None), "q": NUMBER}),
    "old_same": Topic("world int, k int", "n int", {"k": KEYS}, {"n": NUMBER}, time=late_and_unique, versioned="1d"),
    "old_right": Topic(
        "world int, f string", "n int", {"f": STRINGS}, {"n": NUMBER}, time=late_and_unique, versioned="1d"
    ),
    "clicks": Topic("world int, k int", "f string, v int", {"k": KEYS}, {"f": FOREIGN, "v": NUMBER}, time=in_order),
    "buys": Topic("world int, k int", "f string, v int", {"k": KEYS}, {"f": FOREIGN, "v": NUMBER}, time=in_order),
    "hits": Topic("world int, k int", "f string, v int", {"k": KEYS}, {"f": FOREIGN, "v": NUMBER}),
    "pairs": Topic("world int, k int, s string", "v int", {"k": one_of(1, 2), "s": one_of("a", "ab")}, {"v": NUMBER}),
    "taps": Topic("world int, k int", "f string, v int", {"k": KEYED}, {"f": FOREIGN, "v": NUMBER}),
    "tips": Topic("world int, k int", "v int", {"k": KEYED}, {"v": NUMBER}),
    "rates": Topic("world int, k int", "n int", {"k": KEYS}, {"n": NUMBER}),
    "posts": Topic("world int, k int", "v int", {"k": one_of(1, 1, 2, 3)}, {"v": NUMBER}),
    "fees": Topic("world int, k int", "n int", {"k": one_of(1, 1, 2, 3)}, {"n": NUMBER}, versioned="20ms"),
    "names": Topic("world int, f string", "n int", {"f": STRINGS}, {"n": NUMBER}),
    "twins": Topic("world int, k int, s string", "n int", {"k": one_of(1, 2), "s": one_of("a", "ab")}, {"n": NUMBER}),
}


F, H, BOSS = ["world", "f"], ["world", "h"], ["world", "boss"]
# Names of divergences.yaml.
EMPTIED = "emptied groups"
RIGHT_ALONE = "event time of a foreign-key join driven from the right"
TOMBSTONE = "event time of a join after a tombstone"
NEWEST = "event time of an aggregate"


def _two_foreign_keys(of: Sources) -> KTable:
    first = of.table("left").left_join(of.table("right"), on=F, select=["left.*", "right.n"])
    return first.left_join(of.table("right"), on=H, select=["left.v", "left.n", "right.n AS other"])


def _diamond(of: Sources) -> KTable:
    first = of.table("left").join(of.table("right"), on=F, select=["left.v", "right.n"])
    return first.join(of.table("left"), select=["left.*", "right.v AS again", "right.g"])


def _filtered_sides(of: Sources) -> KTable:
    right = of.table("right").filter("n > 0").map_values(["6 div n AS n", "coalesce(p, 'none') AS p"])
    return of.table("left").filter("v < 3").join(right, on=F, select=["left.v", "right.n", "right.p"])


def _chain(of: Sources) -> KTable:
    first = of.table("left").join(of.table("right"), on=F, select=["left.v", "right.n", "right.c"])
    return first.left_join(of.table("third"), on=["world", "c"], select=["left.*", "right.m"])


def _chain_of_four(of: Sources) -> KTable:
    ordered = of.table("lines").join(of.table("left"), on=["world", "k"], select=["left.q", "right.f"])
    bought = ordered.join(of.table("right"), on=F, select=["left.q", "right.n", "right.c"])
    return bought.left_join(of.table("third"), on=["world", "c"], select=["left.*", "right.m"])


def _three_of_one_key(of: Sources) -> KTable:
    first = of.table("left").left_join(of.table("same"), select=["left.v", "right.n"])
    return first.join(of.table("rates"), select=["left.*", "right.n AS rate"])


def _chain_on_the_right(of: Sources) -> KTable:
    looked_up = of.table("right").join(of.table("third"), on=["world", "c"], select=["left.n", "right.m"])
    return of.table("left").left_join(looked_up, on=F, select=["left.v", "right.*"])


def _grouped(of: Sources) -> KTable:
    figures = {"n": "count(*)", "total": "sum(v)", "least": "min(v)", "most": "max(v)", "mean": "avg(v)"}
    return of.table("left").group_by("world", "g").aggregate(**figures)


def _grouped_join(of: Sources) -> KTable:
    joined = of.table("left").join(of.table("right"), on=F, select=["left.v", "right.n AS x", "right.p"])
    return joined.group_by("world", "p").aggregate(n="count(*)", total="sum(v + x)", most="max(x)")


def _groups_of_groups(of: Sources) -> KTable:
    groups = of.table("left").group_by("world", "g").aggregate(n="count(*)", total="sum(v)")
    return groups.group_by("world", "n").aggregate(groups="count(*)", total="sum(total)")


def _old_join(of: Sources) -> KTable:
    return of.table("old_left").left_join(of.table("old_right"), on=F, select=["left.v", "right.n"])


def _old_groups(of: Sources) -> KTable:
    return of.table("old_left").group_by("world", "g").aggregate(n="count(*)", total="sum(v)", most="max(v)")


def _stream_groups(of: Sources) -> KTable:
    figures = {"n": "count(*)", "total": "sum(v)", "least": "min(v)", "most": "max(v)", "mean": "avg(v)"}
    return of.stream("hits").group_by("world", "f").aggregate(**figures)


def _merged(of: Sources) -> KStream:
    clicks = of.stream("clicks").filter("v IS NULL OR v < 3").map_values(["f", "v + 1 AS v"])
    return clicks.merge(of.stream("buys").map_values(["f", "v + 0 AS v"]))


def _rekeyed(of: Sources) -> KTable:
    return of.stream("hits").filter("v IS NULL OR v > 0").select_key(["world", "f"]).to_table()


def _same_side_twice(of: Sources) -> KTable:
    first = of.table("left").join(of.table("same"), select=["left.v", "right.n"])
    return first.join(of.table("same"), select=["left.*", "right.n AS again"])


KINDS = {
    kind.name: kind
    for kind in (
        Kind("select", lambda of: of.table("left").filter("v > 0").map_values(["12 div v AS x", "upper(g) AS g"])),
        Kind("pk_inner", lambda of: of.table("left").join(of.table("same"), select=["left.v", "right.n"])),
        Kind(
            "pk_left",
            lambda of: of.table("left").left_join(of.table("same"), select=["left.v", "right.n"]),
            times={"same tombstone": (TOMBSTONE,)},
        ),
        Kind(
            "pk_outer",
            lambda of: of.table("left").outer_join(of.table("same"), select=["left.v", "right.n"]),
            times={"left tombstone": (TOMBSTONE,), "same tombstone": (TOMBSTONE,)},
        ),
        Kind(
            "pk_composite",
            lambda of: of.table("pairs").outer_join(of.table("twins"), select=["left.v", "right.n"]),
            times={"pairs tombstone": (TOMBSTONE,), "twins tombstone": (TOMBSTONE,)},
        ),
        Kind(
            "fk_inner",
            lambda of: of.table("left").join(of.table("right"), on=F, select=["left.v", "right.n", "right.p"]),
            times={"right": (RIGHT_ALONE,)},
        ),
        Kind(
            "fk_left",
            lambda of: of.table("left").left_join(of.table("right"), on=F, select=["left.*", "right.n"]),
            times={"right": (RIGHT_ALONE,)},
        ),
        Kind(
            "self_join",
            lambda of: of.table("left").left_join(of.table("left"), on=BOSS, select=["left.v", "right.v AS above"]),
            times={"left": (RIGHT_ALONE,)},
        ),
        Kind("chain", _chain, times={topic: (RIGHT_ALONE,) for topic in ("left", "right", "third")}),
        Kind(
            "chain_on_the_right",
            _chain_on_the_right,
            times={t: (RIGHT_ALONE, TOMBSTONE) for t in ("left", "right", "third")},
        ),
        Kind("two_foreign_keys", _two_foreign_keys, times={"left": (RIGHT_ALONE,), "right": (RIGHT_ALONE,)}),
        Kind("diamond", _diamond, times={"left": (RIGHT_ALONE,), "right": (RIGHT_ALONE,)}),
        Kind("filtered_sides", _filtered_sides, times={"right": (RIGHT_ALONE,)}),
        Kind(
            "global",
            lambda of: of.table("left").join(of.global_table("anywhere"), on=F, select=["left.v", "right.n"]),
            times={"anywhere": (RIGHT_ALONE,)},
        ),
        Kind("aggregate", _grouped, ("n",), {"left": (NEWEST,)}),
        Kind(
            "aggregate_of_a_join",
            _grouped_join,
            ("n",),
            {"left": (NEWEST, RIGHT_ALONE), "right": (NEWEST, RIGHT_ALONE)},
        ),
        Kind("aggregate_of_an_aggregate", _groups_of_groups, ("n", "groups"), {"left": (NEWEST,)}),
        Kind("versioned", _old_join, times={"old_right": (RIGHT_ALONE,)}),
        Kind("aggregate_of_a_versioned", _old_groups, ("n",), {"old_left": (NEWEST,)}),
        Kind("stream_to_table", lambda of: of.stream("hits").filter("v IS NULL OR v < 3").to_table()),
        Kind("stream_rekeyed", _rekeyed),
        Kind("stream_aggregate", _stream_groups),
        Kind("stream_merged", lambda of: _merged(of).to_table()),
        Kind(
            "stream_merged_aggregate", lambda of: _merged(of).group_by("world", "f").aggregate(n="count(*)", s="sum(v)")
        ),
    )
}

LIVE = {
    kind.name: kind
    for kind in (
        Kind(
            "self_join_inner",
            lambda of: of.table("left").join(of.table("left"), on=BOSS, select=["left.v", "right.v AS above"]),
            times={"left": (RIGHT_ALONE,)},
        ),
        # The third table finds the first two joined, with the time that a tombstone left there.
        Kind("pk_three", _three_of_one_key, times={"same tombstone": (TOMBSTONE,), "rates": (TOMBSTONE,)}),
        Kind("chain_of_four", _chain_of_four, times={t: (RIGHT_ALONE,) for t in ("lines", "left", "right", "third")}),
        Kind(
            "global_left",
            lambda of: of.table("left").left_join(of.global_table("anywhere"), on=F, select=["left.v", "right.n"]),
            times={"anywhere": (RIGHT_ALONE,)},
        ),
        Kind(
            "versioned_pk",
            lambda of: of.table("old_left").outer_join(of.table("old_same"), select=["left.v", "right.n"]),
            times={"old_left tombstone": (TOMBSTONE,), "old_same tombstone": (TOMBSTONE,)},
        ),
    )
}
"""Kinds of which no answers are recorded: they are asked live alone."""

DIVERGENT = {kind.name: kind for kind in (Kind("same_side_twice", _same_side_twice),)}
"""Kinds that divergences.yaml alone has cases of: there Kafka's tables are not what their query says."""


def worlds(asked: Topology, seed: int, count: int) -> list[World]:
    """So many histories of a topology's topics; the first one is the 23 steps if it has their topics."""
    topics = [source.topic for source in asked.sources]
    random = Random(f"{topics} {seed}")
    fixed = [STEPS] if {record.topic for record in STEPS} <= set(topics) else []
    return fixed + [_world(topics, random) for _ in range(count - len(fixed))]


def _world(topics: Sequence[str], random: Random) -> World:
    length = random.randint(10, 30) * (max(len(topics), 2) + 3) // 5  # more topics need more records to meet
    weights = {"left": 4, "right": 2, "same": 2}  # by how many kinds read them
    drawn = random.choices(topics, [weights.get(topic, 1) for topic in topics], k=length)
    return tuple(_record(topic, at, random) for at, topic in enumerate(drawn))


def _record(topic: str, at: int, random: Random) -> Record:
    drawn = TOPICS[topic]
    key = {name: draw(random) for name, draw in drawn.keys.items()}
    value = {name: cell for name, draw in drawn.values.items() if (cell := draw(random)) is not MISSING}
    return Record(topic, key, None if random.random() < 0.2 else value, drawn.time(random, at))


def _steps() -> World:
    """One key's history of two tables: every transition between rows and absences, later ones out of order.

    The inputs of the 23 steps that Apache Kafka's own join tests agree on, as facts; numbers stand for its letters.
    """
    moves = (
        *(("left", None, 1), ("same", None, 2), ("left", 1, 3), ("same", 1, 4), ("left", 2, 5), ("same", 2, 6)),
        *(("left", None, 7), ("same", None, 8), ("left", 3, 9), ("same", 3, 10), ("same", None, 11)),
        *(("left", None, 12), ("same", None, 13), ("same", 4, 7), ("left", 4, 6), ("left", None, 2)),
        *(("same", None, 3), ("same", 5, 14), ("left", 5, 15), ("left", None, 10), ("same", None, 9)),
        *(("left", 6, 4), ("same", 6, 3)),
    )
    column = {"left": "v", "same": "n"}
    return tuple(Record(to, {"k": 0}, None if n is None else {column[to]: n}, at) for to, n, at in moves)


STEPS = _steps()
