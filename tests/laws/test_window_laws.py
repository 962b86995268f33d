"""Windows against a simulation that takes one record at a time, on hundreds of small random worlds in one frame.

Each world is a topic, and its number the first column of every group. Stream time is a number for each of them.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from spark.operators.algebra import PRESENT, dropped, touched
from spark.operators.order import with_reached
from spark.topology.columns import WINDOW_BOUNDS, Column
from spark.topology.nodes import ClosedSessions, Node, Records, Scan, Window, WindowKind
from spark.topology.sql.fold import Fold
from tests.laws.fuzz import GREAT_MANY, fuzzing, hunt
from tests.support.quick import quick_session

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import Column as Computed
    from pyspark.sql import DataFrame, SparkSession

    from resources.engine import Engine
    from spark.operators.algebra import Span

COUNT = 150  # worlds in a frame
SIZE = 10
SCHEMA = (
    "world int, k string, v int, _timestamp timestamp, _topic string, _partition int, _offset bigint, "
    "_batch bigint, _deleted boolean, _ordinal bigint"
)
CLICKS = Records(
    Scan("_landing/clicks", ("world", "k"), (Column("world", "int"), Column("k", "string"), Column("v", "int")), True)
)
SELECT = (("n", "count(1)"), ("total", "sum(v)"), ("all", "sort_array(collect_list(v))"))
FOLDED = (*SELECT[:2], ("all", "array(min(v), max(v))"))
AGGREGATES = (Column("n", "bigint"), Column("total", None), Column("all", None))
STORED = Scan("sessions", ("world", "k", *(column.name for column in WINDOW_BOUNDS)), ())


@dataclass(frozen=True)
class Record:
    """A record of a world; its event time is in milliseconds."""

    k: str | None
    v: int | None
    at: int | None
    partition: int
    offset: int

    @property
    def place(self) -> tuple[int, int, int]:
        """What makes one record of a window the newest."""
        return -1 if self.at is None else self.at, self.partition, self.offset


Bounds = tuple[str, int, int]
Rows = dict[Bounds, tuple[object, ...]]


@dataclass
class World:
    """One world, a record at a time: stream time, the records in every window there is, and what was dropped."""

    node: Window
    time: int | None = None
    accepted: list[Record] = field(default_factory=list)
    held: dict[Bounds, list[Record]] = field(default_factory=dict)
    published: Rows = field(default_factory=dict)
    dropped: Counter[str] = field(default_factory=Counter)

    def span(self, records: Sequence[Record]) -> None:
        """Take in the records of a span, in the order of time."""
        for record in in_order(records):
            self.take(record)
            self.publish()

    def is_open(self, end: int) -> bool:
        """Whether a window that ends there is still open."""
        if self.time is None:
            return True
        passed = self.time - self.node.grace
        if self.node.kind == "session":
            return end >= passed - SIZE
        return end >= passed if self.node.kind == "sliding" else end > passed

    def take(self, record: Record) -> None:
        """One record: it moves stream time, and counts in its open windows."""
        if record.at is not None and (self.time is None or record.at > self.time):
            self.time = record.at
        if record.v is None:
            self.dropped["null value"] += 1
        elif record.at is None:
            self.dropped["no timestamp"] += 1
        elif record.k is None:
            self.dropped["null key"] += 1
        elif self.node.kind == "sliding":
            self.slide(record, record.at, record.k)
        elif self.node.kind == "session":
            self.prolong(record, record.at, record.k)
        else:
            starts = range(max(0, record.at - SIZE + 1), record.at + 1)
            opened = [s for s in starts if s % self.node.advance == 0 and self.is_open(s + SIZE)]
            for start in opened:
                self.held.setdefault((record.k, start, start + SIZE), []).append(record)
            self.dropped["late"] += not opened

    def slide(self, record: Record, at: int, k: str) -> None:
        """Join the windows that hold the record, and make those that are there because of it."""
        if not self.is_open(at + SIZE):
            self.dropped["late"] += 1
            return
        for (key, start, end), members in self.held.items():
            if key == k and start <= at <= end and self.is_open(end):
                members.append(record)
        self.accepted.append(record)
        others = [other for other in self.accepted if other.k == k]
        starts = [max(0, at - SIZE), at + 1]
        starts += [other.at + 1 for other in others if other.at is not None]
        for start in starts:
            inside = [other for other in others if other.at is not None and start <= other.at <= start + SIZE]
            bounds = (k, start, start + SIZE)
            if bounds not in self.held and inside and self.is_open(start + SIZE):
                self.held[bounds] = inside

    def prolong(self, record: Record, at: int, k: str) -> None:
        """Put the open sessions that the record is near to together with it."""
        if not self.is_open(at):
            self.dropped["late"] += 1
            return
        near = [
            bounds
            for bounds in self.held
            if bounds[0] == k and self.is_open(bounds[2]) and bounds[1] - SIZE <= at <= bounds[2] + SIZE
        ]
        members = [record, *(member for bounds in near for member in self.held.pop(bounds))]
        times = [member.at for member in members if member.at is not None]
        self.held[k, min(times), max(times)] = members

    def publish(self) -> None:
        """The rows of all windows; of suppressed ones, those that are closed now, for good."""
        if self.node.kind == "session" and not self.node.suppressed:
            self.published = {}
        for bounds, members in self.held.items():
            row = aggregated(members, folded=self.node.kind == "session")
            if not self.node.suppressed:
                self.published[bounds] = row
            elif not self.is_open(bounds[2]) and self.published.setdefault(bounds, row) != row:
                raise AssertionError(f"a closed window {bounds} changed from {self.published[bounds]} to {row}")


def aggregated(members: list[Record], folded: bool) -> tuple[object, ...]:
    """A window's row: the aggregates, and the coordinates of its newest record."""
    values = sorted(member.v for member in members if member.v is not None)
    total = sum(values)
    values = [values[0], values[-1]] if folded else values
    return len(members), total, values, *max(member.place for member in members)


def in_order(records: Sequence[Record]) -> Iterator[Record]:
    """The records as Kafka Streams takes them: always the one with the smallest time that is first in its partition."""
    queues = {p: deque(r for r in records if r.partition == p) for p in sorted({r.partition for r in records})}
    while any(queues.values()):
        yield min((q for q in queues.values() if q), key=lambda q: -1 if q[0].at is None else q[0].at).popleft()


def drawn(random: Random) -> list[Record]:
    """The records of a world, in the order in which they land. Some are late, some jump far ahead."""
    now, found = random.choice([0, 0, 7, 1000]), []
    offsets: Counter[int] = Counter()
    for _ in range(random.randint(1, 14)):
        now += random.choice([0, 0, 1, 2, 3, 5, 9, 10, 11, 40])
        at = max(0, now - random.choice([0, 0, 0, 1, 4, 9, 10, 11, 12, 20, 30, 45]))
        partition = random.randint(0, 1)
        k = random.choice("aaab") if random.random() < 0.95 else None
        v = random.randint(-9, 9) if random.random() < 0.93 else None
        found.append(Record(k, v, at if random.random() < 0.97 else None, partition, offsets[partition]))
        offsets[partition] += 1
    return found


def cut(records: list[Record], random: Random, aligned: bool) -> list[list[Record]]:
    """Three spans: cut anywhere, or so that the running maximum of each partition's times is in one span."""
    if not aligned:
        first, second = sorted(random.randint(0, len(records)) for _ in range(2))
        return [records[:first], records[first:second], records[second:]]
    times = sorted(random.randint(0, 60) for _ in range(2))
    spans: list[list[Record]] = [[], [], []]
    highest: dict[int, int] = {}
    for record in records:
        highest[record.partition] = max(highest.get(record.partition, 0), record.at or 0)
        spans[sum(highest[record.partition] > time for time in times)].append(record)
    return spans


def window(kind: WindowKind, advance: int, grace: int, suppressed: bool) -> Window:
    """Counts, sums and lists by world and key."""
    columns = (Column("world", "int"), Column("k", "string"), *WINDOW_BOUNDS, *AGGREGATES)
    made = Window(CLICKS, ("world", "k"), SELECT, columns, kind, SIZE, advance, grace, suppressed)
    if kind != "session":
        return made
    made = replace(made, select=FOLDED)
    fold = made.foldable
    assert isinstance(fold, Fold)
    return replace(made, fold=fold)


@dataclass(frozen=True)
class Landed:
    """All worlds' records up to a span."""

    frame: DataFrame

    def records(self, scan: Scan) -> DataFrame:  # noqa: ARG002  # there is one
        """All of them."""
        return self.frame.withColumn("_reached", F.lit(None).cast("bigint"))


@dataclass(frozen=True)
class Sessions:
    """All worlds' sessions behind a span; each world has its own stream time."""

    frame: DataFrame
    time_after: Computed | None

    def stored(self, scan: Scan) -> DataFrame:  # noqa: ARG002  # there is one
        """All of them."""
        return self.frame

    def time(self, scan: Scan) -> Computed | None:  # noqa: ARG002
        """Each world's."""
        return self.time_after


@dataclass(frozen=True)
class Prolonged:
    """A span of all worlds' sessions."""

    before: Sessions
    after: Sessions
    changed: DataFrame

    def has_changes(self, scan: Scan) -> bool:  # noqa: ARG002  # there is one
        """They have."""
        return True

    def changes(self, scan: Scan) -> DataFrame:  # noqa: ARG002
        """Those that changed."""
        return self.changed


@dataclass(frozen=True)
class Worlds:
    """A span of all worlds at once; each has its own stream time."""

    before: Landed
    new: DataFrame
    is_small: bool
    time_before: Computed | None
    time_after: Computed
    own: DataFrame

    def records(self, scan: Scan) -> DataFrame:  # noqa: ARG002
        """The new records."""
        return with_reached(self.new)

    def has_changes(self, scan: Scan) -> bool:  # noqa: ARG002
        """They have."""
        return True

    def few(self, keys: DataFrame, node: Node) -> None:
        """No table is large."""

    def keep(self, frame: DataFrame) -> DataFrame:
        """Computed as often as it is read."""
        return frame


@pytest.fixture(scope="module")
def session(engine: Engine) -> Iterator[SparkSession]:
    session = quick_session(engine)
    session.conf.set("spark.sql.session.timeZone", "UTC")
    yield session
    session.stop()


def framed(session: SparkSession, spans: list[list[Record]], number: int) -> DataFrame:
    """What a span brought to every world."""
    records = [
        (world, r.k, r.v, moment(r.at), f"t{world}", r.partition, r.offset, number, r.v is None, 0)
        for world, span in enumerate(spans)
        for r in span
    ]
    return session.createDataFrame(records, SCHEMA)


def moment(at: int | None) -> datetime | None:
    return None if at is None else datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=at)


def times(worlds: list[World]) -> Computed:
    """Every world's stream time in microseconds, by its number."""
    known = [part for n, world in enumerate(worlds) if world.time is not None for part in (n, world.time * 1000)]
    return F.element_at(F.create_map(*map(F.lit, known)), F.col("world")) if known else F.lit(None).cast("bigint")


def told(frame: DataFrame) -> dict[int, dict[Bounds, tuple[object, ...] | None]]:
    """The rows by world; None where one went.

    Raises:
        AssertionError: a key is there twice.
    """
    found: dict[int, dict[Bounds, tuple[object, ...] | None]] = {}
    bounds = [F.unix_millis(column.name) for column in WINDOW_BOUNDS]
    ours = [F.unix_millis("_timestamp"), F.col("_partition"), F.col("_offset")]
    for row in frame.select(PRESENT, "world", "k", *bounds, "n", "total", "all", *ours).collect():
        there, world, *rest = row
        key, values = tuple(rest[:3]), tuple(rest[3:])
        assert key not in found.setdefault(world, {})
        found[world][key] = values if there else None
    return found


def merged(stored: DataFrame, changed: DataFrame, node: Window, number: int) -> DataFrame:
    """Stored rows with what a span changed."""
    now = changed.where(PRESENT).drop(PRESENT)
    return now if number == 0 else stored.join(changed, list(node.key), "left_anti").unionByName(now)


def stored_nothing(stored: Sessions) -> Sessions:
    """Before anything was stored."""
    return Sessions(stored.frame.where("false"), None)


KINDS: dict[str, tuple[WindowKind, int, int, bool]] = {
    "tumbling, suppressed": ("time", 10, 0, True),
    "tumbling, with grace": ("time", 10, 12, False),
    "hopping": ("time", 4, 0, False),
    "hopping, with grace, suppressed": ("time", 3, 5, True),
    "sliding": ("sliding", 0, 0, False),
    "sliding, suppressed": ("sliding", 0, 0, True),
    "sliding, with grace, suppressed": ("sliding", 0, 4, True),
    "sliding, with a long grace": ("sliding", 0, 25, False),
    "session": ("session", 0, 0, False),
    "session, suppressed": ("session", 0, 0, True),
    "session, with grace, suppressed": ("session", 0, 7, True),
    "session, with a long grace": ("session", 0, 25, False),
}
FAILED: tuple[tuple[str, int], ...] = ()
"""Kinds, and seeds of worlds, that were once other than the simulation."""


@pytest.mark.parametrize(("name", "seed"), [*((name, 0) for name in KINDS), *FAILED])
def test_windows_are_those_of_a_simulation_however_the_records_are_cut(
    session: SparkSession, name: str, seed: int
) -> None:
    check(session, window(*KINDS[name]), Random(f"{name} {seed}"))


@fuzzing
@pytest.mark.parametrize("name", KINDS)
def test_so_they_are_in_a_great_many_worlds(session: SparkSession, name: str) -> None:
    hunt(GREAT_MANY // COUNT, lambda seed: check(session, window(*KINDS[name]), Random(f"{name} {seed}")))


def check(session: SparkSession, node: Window, random: Random) -> None:
    """Compare what three spans of many worlds publish and drop with the simulation."""
    landed = [drawn(random) for _ in range(COUNT)]
    cuts = [cut(records, random, aligned=n % 2 == 0) for n, records in enumerate(landed)]
    worlds = [World(node) for _ in landed]
    rows: list[Rows] = [{} for _ in landed]
    late: list[Counter[str]] = [Counter() for _ in landed]
    seen = framed(session, [[] for _ in landed], 0)
    stored = Sessions(seen, None)
    for number in range(3):
        before, new = times(worlds), framed(session, [spans[number] for spans in cuts], number + 1)
        for world, spans in zip(worlds, cuts, strict=True):
            world.span(spans[number])
        worlds_span: Any = Worlds(
            Landed(seen), new, number > 0, before if number else None, times(worlds), stored.frame
        )
        span: Span = worlds_span  # but for stream time, which is a column
        changed = touched(node, span)
        assert changed is not None
        if node.kind == "session":
            changed = session.createDataFrame(changed.collect(), changed.schema)
            was, stored = stored, Sessions(merged(stored.frame, changed, node, number), times(worlds))
            if node.suppressed:
                prolonged: Any = Prolonged(was if number else stored_nothing(stored), stored, changed)
                changed = touched(ClosedSessions(STORED, SIZE + node.grace), prolonged)
                assert changed is not None
        for n, found in told(changed).items():
            if node.suppressed:
                assert not {key for key, row in found.items() if row} & rows[n].keys(), "a closed window is there again"
            rows[n].update({key: row for key, row in found.items() if row})
            for key in (key for key, row in found.items() if not row):
                rows[n].pop(key, None)
        refused = dropped(node, span)
        assert refused is not None
        for row in refused.groupBy("_topic", "_reason").count().collect():
            late[int(row["_topic"][1:])][row["_reason"]] += row["count"]
        seen = seen.unionByName(new)
    for n, world in enumerate(worlds):
        assert rows[n] == world.published, (n, cuts[n])
        assert late[n] == +world.dropped, (n, cuts[n])
    assert sum(len(found) for found in rows) > COUNT
    assert all(sum(counted[reason] for counted in late) for reason in ("late", "null key", "null value"))


@pytest.mark.parametrize("kind", ["time", "sliding", "session"])
def test_cuts_by_time_change_nothing_in_the_simulation(kind: WindowKind) -> None:
    random = Random(kind)
    for n in range(2000):
        node = window(kind, 4, random.choice([0, 3, 20]), suppressed=n % 2 == 0)
        records = drawn(random)
        whole, pieces = World(node), World(replace(node))
        whole.span(records)
        for span in cut(records, random, aligned=True):
            pieces.span(span)
        assert (pieces.published, pieces.dropped) == (whole.published, whole.dropped)
