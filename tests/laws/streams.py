"""The law of streams as one check: what a plan emits in each span of many small worlds is what the simulation says.

A span of a world reads what was there before it, what came with it, the rows emitted earlier, and stream time: nothing
else. So every span of every world, cut in every way, is a world of its own in one frame: a `world` column in front of
every key, and topics of their own, keep them apart, and a world's number tells its two stream times.
The rows emitted earlier are the simulation's: where all spans agree, those of the operator are the same, by induction.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from spark.engine.advance import stored_records
from spark.engine.inputs.stream_time import Arrived, Clock, advance_clock
from spark.operators.algebra import cols, dropped
from spark.operators.order import with_reached
from spark.testing import computed
from spark.topology.columns import Column
from spark.topology.nodes import Node, Records, Scan, StreamJoin
from spark.topology.topology import Table
from tests.support.simulation import (
    LEFT,
    Happened,
    Lookups,
    in_queues,
    later,
    simulated,
    sources_of,
    topics_of,
    visited,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql import Row as SparkRow

    from tests.support.reference import Meaning, Row, Rows

COLUMNS = (
    Column("world", "bigint"),
    Column("k", "int"),
    Column("f", "int"),
    Column("v", "int"),
    Column("a", "array<int>"),
)
NAMES = tuple(column.name for column in COLUMNS)
KEY = ("world", "k")
KEYS = (0, 1, 2)
PARTITIONS = (0, 1)
OURS = ("_timestamp", "_topic", "_partition", "_offset")
RECORD = (*NAMES, *OURS, "_deleted", "_batch")
SCHEMA = (
    "world bigint, k int, f int, v int, a array<int>, _micros bigint, _topic string, _partition int, _offset bigint"
)
IDENTIFIED = ("_topic", "_partition", "_offset", "_ordinal")
IDENTITY = "struct<_topic: string, _partition: int, _offset: bigint, _ordinal: bigint>"

MILLISECOND = 1000
NEVER = 1023  # of stream time, in a world's number: no record had a time yet

Cutting = list[list["Row"]]


def stream(topic: str) -> Records:
    """The records of a topic."""
    return Records(Scan(f"_landing/{topic}", KEY, COLUMNS, appended=True))


def table(name: str) -> Scan:
    """A stored table."""
    return Scan(name, KEY, COLUMNS)


class Broken(AssertionError):
    """The law that a stream operator broke: where, with what is there and what should be."""

    def __init__(self, law: str, found: Counter[Any], expected: Counter[Any]) -> None:
        more, missing = found - expected, expected - found
        told = [f"  not expected: {one}" for one in sorted(more, key=repr)[:5]]
        told += [f"  missing:      {one}" for one in sorted(missing, key=repr)[:5]]
        super().__init__(f"{law} is broken by {more.total()} and {missing.total()} records:\n" + "\n".join(told))
        self.law = law


@dataclass(frozen=True)
class Case:
    """One span of one world, as a world of its own."""

    number: int
    older: list[Row]
    newer: list[Row]
    before: dict[Node, Rows]
    """Tables at the beginning of the span."""
    after: dict[Node, Rows]
    own: list[Row]
    happened: Happened


def times(number: int, *known: int | None) -> int:
    """The number of a world that tells its stream times, before and after, and the time of its versioned tables."""
    for time in known:
        assert time is None or time // MILLISECOND < NEVER
        number = number * (NEVER + 1) + (NEVER if time is None else time // MILLISECOND)
    return number


def told(world: SparkColumn) -> list[SparkColumn]:
    """These three times of a world, in microseconds, by its number."""
    parts = [F.floor(world / (NEVER + 1) ** place) % (NEVER + 1) for place in (2, 1, 0)]
    return [F.when(part != NEVER, part * MILLISECOND) for part in parts]


def drawn(rng: random.Random, topics: Sequence[str], size: int, spread: bool = True) -> list[Row]:
    """The records of some topics; a key keeps to one partition unless they are `spread`."""
    clock, offsets, found = 0, Counter[tuple[str, int]](), []
    for _ in range(size):
        clock += rng.choice((0, 0, 1, 1, 2, 3))
        at = max(clock - rng.choice((0, 0, 0, 0, 1, 2, 4, 8)), 0)
        topic, k = rng.choice(topics), rng.choice((None, *KEYS, *KEYS, *KEYS))
        partition = rng.choice(PARTITIONS) if spread or k is None else k % len(PARTITIONS)
        offset = offsets[topic, partition]
        offsets[topic, partition] += 1
        row: Row = {"world": 0, "k": k, "f": rng.choice((None, *KEYS)), "v": rng.choice((None, 0, 1, 2, 3))}
        row["a"] = rng.choice((None, [], [1], [2, 3], [4, None]))
        row["_deleted"] = rng.random() < 0.12
        if row["_deleted"]:
            row |= {"f": None, "v": None, "a": None}
        time = None if rng.random() < 0.06 else at * MILLISECOND
        found.append(row | {"_timestamp": time, "_topic": topic, "_partition": partition, "_offset": offset})
    return found


def drawn_table(rng: random.Random) -> Rows:
    """The rows of a table that is read at a pin."""
    found = drawn(rng, ["g"], rng.randrange(14))
    live = [row for row in found if row["k"] is not None and not row["_deleted"]]
    return {(0, row["k"]): row for row in live}


def by_partition(records: Sequence[Row]) -> dict[tuple[str, int], list[Row]]:
    """Records by topic and partition, in the order of offsets."""
    found: dict[tuple[str, int], list[Row]] = {}
    for record in records:
        found.setdefault((record["_topic"], record["_partition"]), []).append(record)
    return found


def cut_anywhere(rng: random.Random, records: Sequence[Row], spans: int) -> Cutting:
    """Every partition cut by itself."""
    cutting: Cutting = [[] for _ in range(spans)]
    for partition in by_partition(records).values():
        cuts = sorted(rng.randrange(len(partition) + 1) for _ in range(spans - 1))
        for number, (since, until) in enumerate(zip([0, *cuts], [*cuts, len(partition)], strict=True)):
            cutting[number] += partition[since:until]
    return cutting


def cut_in_time(records: Sequence[Row], cuts: Sequence[int]) -> Cutting:
    """Of every partition the longest beginning whose greatest time is at most a cut's; then the next."""
    cutting: Cutting = [[] for _ in range(len(cuts) + 1)]
    for partition in by_partition(records).values():
        greatest: int | None = None
        for record in partition:
            greatest = later(greatest, record["_timestamp"])
            cutting[sum(cut < (-1 if greatest is None else greatest) for cut in cuts)].append(record)
    return cutting


def cut_in_pieces(plan: Node, records: Sequence[Row]) -> Cutting:
    """One record a span, in the order in which all are taken; all of equal times, where that order is two sides'."""
    if isinstance(plan, StreamJoin) and topics_of(plan.left) & topics_of(plan.right):
        known = sorted({record["_timestamp"] for record in records if record["_timestamp"] is not None})
        return cut_in_time(records, known)
    return [[record] for _, record in visited(in_queues(records, sources_of(plan)))]


@dataclass(frozen=True)
class Kind:
    """A plan, the topics that drive it, and the tables it reads."""

    plan: Node
    topics: tuple[str, ...]
    pinned: tuple[Node, ...] = ()
    told: tuple[Node, ...] = ()
    spread: bool = True
    versioned: bool = False
    """Whether the tables that are told are versioned."""

    def cases(self, seed: int, worlds: int, meaning: Meaning) -> Iterator[Case]:
        """The spans of some worlds, cut in several ways.

        Raises:
            Broken: "batch invariance", if cuts in time make a difference to the simulation itself.
        """
        rng, numbers = random.Random(seed), count()
        for world in range(worlds):
            records = drawn(rng, self.topics, rng.randrange(2, 14), self.spread)
            last = max((record["_timestamp"] or 0 for record in records), default=0)
            ways = [[records], cut_in_time(records, sorted(rng.randrange(last + 1) for _ in range(3)))]
            if world % 10 == 0:
                ways.append(cut_in_pieces(self.plan, records))
            fixed: dict[Node, Rows] = {name: drawn_table(rng) for name in self.pinned}
            whole: list[Happened] | None = None
            for spans in ways:
                cases, happened = self.run(numbers, spans, [fixed] * (len(spans) + 1), meaning)
                yield from cases
                whole = happened if whole is None else whole
                check_invariance(whole, happened)
            spans = cut_anywhere(rng, records, rng.randrange(3, 5))
            moving: list[dict[Node, Rows]] = [
                {name: drawn_table(rng) for name in self.pinned} for _ in range(len(spans) + 1)
            ]
            yield from self.run(numbers, spans, moving, meaning)[0]

    def run(
        self, numbers: Iterator[int], spans: Cutting, pins: Sequence[dict[Node, Rows]], meaning: Meaning
    ) -> tuple[list[Case], list[Happened]]:
        """The spans of one world cut in one way, with the tables before, between and behind them."""
        happened = simulated(self.plan, spans, pins[1:], meaning)
        now: dict[Node, Rows] = {name: {} for name in self.told}
        cases: list[Case] = []
        older: list[Row] = []
        own: list[Row] = []
        time: int | None = None
        for index, (newer, here) in enumerate(zip(spans, happened, strict=True)):
            seen = greatest(self.told, older) if self.versioned else None
            batched = [record | {"_batch": index} for record in newer]
            if self.versioned:
                before, now = now, {name: newest_by_time(name, older + batched) for name in now}
            else:
                before, now = now, {name: newest(name, rows, newer) for name, rows in now.items()}
            number = times(next(numbers), time, here.time, seen)
            cases.append(Case(number, older, batched, pins[index] | before, pins[index + 1] | now, own, here))
            older, own, time = older + batched, own + here.emitted, here.time
        return cases, happened


def newest(table: Node, rows: Rows, span: Sequence[Row]) -> Rows:
    """A table with the records of a span, in the order in which they are taken."""
    assert isinstance(table, Scan)
    lookups = Lookups({table: dict(rows)}, {})
    told = stream(table.table)
    for _, record in visited(in_queues(span, {0: [told]})):
        lookups.tell(table, told, record)
    return lookups.tables[table]


def newest_by_time(table: Node, records: Sequence[Row]) -> Rows:
    """A versioned table of the records so far."""
    found = sorted(keyed(table, records), key=lambda row: (row["_timestamp"] is not None, *(row[n] for n in OURS)))
    return {key: row for key, row in {(0, row["k"]): row for row in found}.items() if not row["_deleted"]}


def greatest(tables: Sequence[Node], records: Sequence[Row]) -> int | None:
    """The greatest timestamp in some tables of records."""
    known = [row["_timestamp"] for table in tables for row in keyed(table, records) if row["_timestamp"] is not None]
    return max(known, default=None)


def keyed(table: Node, records: Sequence[Row]) -> list[Row]:
    """The records of a table's topic that have a key."""
    assert isinstance(table, Scan)
    return [row for row in records if row["_topic"] == table.table and row["k"] is not None]


def check_invariance(whole: Sequence[Happened], pieces: Sequence[Happened]) -> None:
    """The rules themselves do not depend on cuts in time.

    Raises:
        Broken: they do.
    """
    one, other = (Counter(_plain(row) for here in way for row in here.emitted) for way in (whole, pieces))
    if one != other:
        raise Broken("batch invariance", other, one)
    one, other = (sum((here.dropped for here in way), Counter[Any]()) for way in (whole, pieces))
    if one != other or whole[-1].time != pieces[-1].time:
        raise Broken("batch invariance", other, one)


def _plain(row: Row) -> tuple[Any, ...]:
    return tuple((name, tuple(value) if isinstance(value, list) else value) for name, value in sorted(row.items()))


@dataclass(frozen=True)
class Frames:
    """A snapshot of all cases: the operators' `Snapshot`."""

    read: dict[str, DataFrame]

    def stored(self, scan: Scan) -> DataFrame:
        """All rows, or all records."""
        return self.read[scan.table]

    def records(self, scan: Scan) -> DataFrame:
        """All records of a topic."""
        return self.stored(scan).withColumn("_reached", F.lit(None).cast("bigint"))

    def time(self, scan: Scan) -> int | None:  # noqa: ARG002  # the protocol's
        """No input is a stored stream."""
        return None


@dataclass(frozen=True)
class Spans:
    """The spans of all cases: the operators' `Span`."""

    before: Frames
    after: Frames
    new: dict[str, DataFrame]
    own: DataFrame
    time_before: SparkColumn | int | None
    time_after: SparkColumn | int | None
    seen: Mapping[str, int | SparkColumn] = field(default_factory=dict)
    apart: tuple[str, ...] = ("world",)
    is_small: bool = True

    def at(
        self, time_before: int | None, time_after: int | None = None, seen: Mapping[str, int] | None = None
    ) -> Spans:
        """The same spans between two stream times of all of them."""
        return replace(self, time_before=time_before, time_after=time_after, seen=seen or {})

    def keep(self, frame: DataFrame) -> DataFrame:
        """The same rows, computed now."""
        return computed(frame)

    def is_empty(self, frame: DataFrame) -> bool:
        """Whether a frame has no rows."""
        return frame.isEmpty()

    def few(self, keys: DataFrame, node: Node) -> Sequence[SparkRow] | None:  # noqa: ARG002
        """As if each table were large."""
        return keys.collect()

    def has_changes(self, scan: Scan) -> bool:  # noqa: ARG002
        """Every input did, in some case."""
        return True

    def changes(self, scan: Scan) -> DataFrame:
        """No stream operator asks for a table's changed keys."""
        raise NotImplementedError

    def previous(self, scan: Scan) -> DataFrame:
        """Nor for what was there."""
        raise NotImplementedError

    def overlapping_records(self, scan: Scan) -> DataFrame | None:  # noqa: ARG002  # the protocol's
        """A batch is taken whole."""
        return None

    def records(self, scan: Scan) -> DataFrame:
        """The new records of a topic."""
        return with_reached(self.new[scan.table])


def spans(session: SparkSession, kind: Kind, cases: Sequence[Case]) -> Spans:
    """The spans of some cases, in frames that all of them share."""
    before: dict[str, DataFrame] = {}
    after: dict[str, DataFrame] = {}
    new: dict[str, DataFrame] = {}
    for topic in kind.topics:
        name = f"_landing/{topic}"
        before[name] = records(session, topic, [(case.number, case.older) for case in cases])
        new[name] = records(session, topic, [(case.number, case.newer) for case in cases])
        after[name] = before[name].unionByName(new[name])
    for scan in (*kind.pinned, *kind.told):
        assert isinstance(scan, Scan)
        before[scan.table] = rows(session, [(case.number, case.before[scan]) for case in cases])
        after[scan.table] = rows(session, [(case.number, case.after[scan]) for case in cases])
    own = [
        (case.number, row["_timestamp"], *(_there(case.number, row.get(side)) for side in ("_left", "_right")))
        for case in cases
        for row in case.own
    ]
    had = session.createDataFrame(own, f"world bigint, _micros bigint, _left {IDENTITY}, _right {IDENTITY}")
    then, now, seen = told(F.col("world"))
    seen_in = {f"_landing/{scan.table}": seen for scan in kind.told if isinstance(scan, Scan) and kind.versioned}
    return Spans(Frames(before), Frames(after), new, timed(had), then, now, seen_in)


def records(session: SparkSession, topic: str, worlds: Sequence[tuple[int, Sequence[Row]]]) -> DataFrame:
    """The records of a topic in some worlds."""
    found = [
        (*_stored(number, row), row["_deleted"], row["_batch"], 0)
        for number, rows in worlds
        for row in rows
        if row["_topic"] == topic
    ]
    return timed(session.createDataFrame(found, f"{SCHEMA}, _deleted boolean, _batch bigint, _ordinal bigint"))


def rows(session: SparkSession, worlds: Sequence[tuple[int, Rows]]) -> DataFrame:
    """The rows of a table in some worlds."""
    found = [_stored(number, row) for number, rows in worlds for row in rows.values()]
    return timed(session.createDataFrame(found, SCHEMA))


def timed(frame: DataFrame) -> DataFrame:
    """A frame whose event times are times."""
    return frame.withColumn("_timestamp", F.timestamp_micros("_micros")).drop("_micros")


def _stored(world: int, row: Row) -> tuple[Any, ...]:
    values = (row["k"], row["f"], row["v"], row["a"], row["_timestamp"])
    return (world, *values, f"{row['_topic']}{world}", row["_partition"], row["_offset"])


def _there(world: int, identity: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
    return None if identity is None else (f"{identity[0]}{world}", *identity[1:])


def check(session: SparkSession, kind: Kind, seed: int, worlds: int, meaning: Meaning) -> None:
    """Hold a plan to the law of streams, on some worlds.

    Raises:
        Broken: "records" that are emitted, "dropped" ones, or "batch invariance".
    """
    cases = list(kind.cases(seed, worlds, meaning))
    span = spans(session, kind, cases)
    compare(kind.plan, cases, span)


def check_memory(session: SparkSession, kind: Kind, seed: int, size: int, meaning: Meaning) -> None:
    """The same for one world, whose spans follow each other and remember their own rows, and stream time, as steps do.

    Raises:
        Broken: as above, or "clock".
    """
    rng = random.Random(seed)
    pieces = cut_anywhere(rng, drawn(rng, kind.topics, size, kind.spread), 3)
    tables: list[dict[Node, Rows]] = [{name: drawn_table(rng) for name in kind.pinned} for _ in range(4)]
    cases, _ = kind.run(count(), pieces, tables, meaning)
    clock, lost, own = Clock(), Counter[str](), None
    for case in (replace(case, number=0) for case in cases):
        was, seen, span = clock.time, clock.seen, spans(session, kind, [case])
        clock, arrived = advance_clock(kind.plan, span, clock)
        span = replace(span.at(was, clock.time, seen), own=span.own if own is None else own)
        compare(kind.plan, [case], span)
        found = stored_records(Table("table", kind.plan, followed=True), span, 0)
        own = computed(found if own is None else own.unionByName(found))
        lost += Counter(reason for _, reason in case.happened.dropped.elements())
        known = greatest(kind.told, [*case.older, *case.newer]) if kind.versioned else None
        there = {} if known is None else {f"_landing/{name}": known for name in kind.topics if table(name) in kind.told}
        should = Clock(case.happened.time, dict(lost), there), behind(kind.plan, case.newer, was)
        if (clock, arrived) != should:
            raise Broken("clock", Counter([str((clock, arrived))]), Counter([str(should)]))


def behind(plan: Node, span: Sequence[Row], time: int | None) -> Arrived:
    """How many records a span brings to a stream that is at some time, and how far behind it they are."""
    found = []
    for _, record in visited(in_queues(span, {LEFT: [plan]})):
        time = later(time, record["_timestamp"])
        found.append(0 if time is None or record["_timestamp"] is None else time - record["_timestamp"])
    mean = sum(found) / len(found) / MILLISECOND if found else 0.0
    return Arrived(len(found), mean, max(found, default=0) / MILLISECOND)


def compare(plan: Node, cases: Sequence[Case], span: Spans) -> None:
    """What spans emit and drop is what happened in their cases.

    Raises:
        Broken: it is not.
    """
    sides = ("_left", "_right") if isinstance(plan, StreamJoin) else ()
    names = [*(column.name for column in plan.columns), "_timestamp", *IDENTIFIED, "_deleted", "_reached", *sides]
    table = Table("table", plan, followed=True)
    found = (
        stored_records(table, span, 0)
        .withColumn("_timestamp", F.unix_micros("_timestamp"))
        .select(*cols(names))
        .collect()
    )
    should = Counter(_told(case, row, names) for case in cases for row in case.happened.emitted)
    if (there := Counter(tuple(row) for row in found)) != should:
        raise Broken("records", there, should)
    refused = dropped(plan, span)
    lost = [] if refused is None else refused.select(*cols(IDENTIFIED), "_reason").collect()
    missing = Counter(
        (*(_there(case.number, identity) or ()), reason)
        for case in cases
        for identity, reason in case.happened.dropped.elements()
    )
    if (there := Counter(tuple(row) for row in lost)) != missing:
        raise Broken("dropped", there, missing)


def _told(case: Case, row: Row, names: Sequence[str]) -> tuple[Any, ...]:
    here = row | {"world": case.number, "_topic": f"{row['_topic']}{case.number}"}
    here |= {side: _there(case.number, row[side]) for side in ("_left", "_right") if side in row}
    return tuple(here[name] for name in names)
