"""Time synchronisation (KIP-353): the cut up to which steps may read what has landed.

A tick lands everything. If the topology limits the records of a tick, or waits for empty partitions, the steps read
less: up to a cut at one event time across topics and partitions, the same for all tables. In every partition the cut
is the longest prefix whose running maximum of event times, starting where the last cut ended, does not exceed that
time. So streams emit what they would have emitted for the whole, and tables end with the rows of the whole.

A slice ends at the latest such time up to which there are at most `max_records_per_tick` records, but at least one.

With `max_task_idle_ms` above 0, topics that a table reads together hold back every record that is newer than the newest
record that some partition ever had: that partition is empty, and older records may follow in it. A partition that never
had a record holds back everything. `max_task_idle_ms` after the oldest held record was landed, all of them are
released, and the release is counted as enforced. The commit of a record has the time when it was landed, so the
deadline survives a restart. Global tables neither wait nor are waited for: they are read at the pin.

The cut is stored in a commit of the first topic's landing, the keeper. One commit sets it for all topics or for none.
The fence of the keeper lets one of two concurrent ticks decide. Every step reads the same cut, in a tick or alone. The
tables' own commits cannot give the last cut: a table that failed lags, and a table that stepped first in a tick is
ahead of the others. They give how far steps had come before the keeper had a cut.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa  # type: ignore[import-untyped]  # has no types of its own
import pyarrow.compute as pc  # type: ignore[import-untyped]  # the same
from deltalake import QueryBuilder

from spark.engine.errors import UNREADABLE
from spark.engine.inputs.pin import lowers
from spark.engine.log import commit, delta_log
from spark.engine.log.commit import until_committed
from spark.engine.log.position import Release
from spark.engine.log.stored_table import StoredTable
from spark.engine.offsets import TopicOffsets
from spark.engine.ports import opened

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from deltalake import DeltaTable

    from spark.engine.log.position import Position
    from spark.engine.ports import Lakehouse, Ports
    from spark.topology.topology import Source, Topology

NEVER, UNTIMED, ALWAYS = -(2**63), 1 - 2**63, 2**63 - 1
"""Microseconds: before every record; the time reached at a record without an event time so far; after every record."""

FIRST_LOOK = 1_000  # offsets of a partition that a search reads first; then twice as many each time
CHUNK = 100_000  # offsets of all partitions together that are read at once, at least

REACHED = """
_partition, greatest(_carry, max(_time) OVER (
    PARTITION BY _partition ORDER BY _offset ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
)) AS _reached
"""
"""The time reached at a record, of what was reached before (`_carry`) and the records so far."""
TIME = "CASE WHEN _error IS NULL THEN CAST(_timestamp AS BIGINT) END"
"""The event time of a record in microseconds since 1970; null if it has none, or is in quarantine."""


@dataclass(frozen=True)
class Waiting:
    """Records of a partition that are held back, from `since` to `until`, in milliseconds since 1970.

    `waits_for` has the empty partitions, as `<topic>-<partition>`.
    """

    topic: str
    partition: int
    records: int
    waits_for: tuple[str, ...]
    since: int
    until: int

    def over(self, now: int) -> bool:
        """Return whether the wait ended by the clock `now`, or the clock went back by more than the wait."""
        return now >= self.until or now < 2 * self.since - self.until


@dataclass(frozen=True)
class _Records:
    """The records of a landing between two offsets of each partition. Queries return numbers, never all records."""

    landing: DeltaTable
    since: Mapping[int, int]
    until: Mapping[int, int]
    batch: int = 0
    """The batch that has the first of these records, or an earlier one."""

    def within(self, since: Mapping[int, int], until: Mapping[int, int]) -> _Records:
        """Return those between other offsets; a partition that is in neither has none."""
        return replace(self, since=since, until=until)

    def select(self, columns: str, more: str = "", carry: Mapping[int, int] | None = None) -> pa.Table:
        """Return the rows of a query; `carry` has a number for each partition. The partitions are joined as rows.

        A condition for each would nest too deeply with some thousand of them.
        """
        carry = carry or {}
        ranges = [
            (partition, self.since.get(partition, 0), end, carry.get(partition, NEVER + 1))
            for partition, end in self.until.items()
            if self.since.get(partition, 0) < end
        ]
        if not ranges:
            return pa.table({})
        values = ", ".join(f"({p}, {since}, {until}, {carried})" for p, since, until, carried in ranges)
        least, most = min(since for _, since, _, _ in ranges), max(until for _, _, until, _ in ranges)
        bounds = f"_batch >= {self.batch} AND _offset >= {least} AND _offset < {most}"  # by these, files are skipped
        query = (
            f"SELECT {columns} FROM (SELECT *, {TIME} AS _time FROM landing WHERE {bounds}) AS landing "
            f"JOIN (VALUES {values}) AS ranges (_of, _since, _until, _carry) ON _partition = _of "
            f"WHERE _offset >= _since AND _offset < _until {more}"
        )
        return pa.table(QueryBuilder().register("landing", self.landing).execute(query).read_all())

    def by_partition(self, aggregate: str, where: str = "true") -> dict[int, Any]:
        """Return an aggregate of some records by partition; a partition without such records, or with null, lacks."""
        rows = self.select(f"_partition, {aggregate} AS _found", f"AND ({where}) GROUP BY _partition").to_pylist()
        return {row["_partition"]: row["_found"] for row in rows if row["_found"] is not None}

    def first_beyond(self, time: int) -> dict[int, int]:
        """Return, by partition, the offset of the first record that reaches more than a time; none if none does."""
        found: dict[int, int] = {}
        if time == ALWAYS:
            return found
        left, size = (
            {p: self.since.get(p, 0) for p, end in self.until.items() if self.since.get(p, 0) < end},
            FIRST_LOOK,
        )
        while left:
            ends = {partition: min(offset + size, self.until[partition]) for partition, offset in left.items()}
            here = self.within(left, ends)
            found |= here.by_partition("min(_offset)", f"_time > {time}" if time > NEVER else "true")
            left = {p: end for p, end in ends.items() if p not in found and end < self.until[p]}
            size *= 2
        return found


@dataclass(frozen=True)
class _Backlog:
    """The records of a landing after the last cut. Each has the time reached at it: the greatest so far."""

    source: Source
    topic: str
    """`<cluster id>/<topic>`, the key of a cut."""
    end: TopicOffsets
    records: _Records
    seen: dict[int, int]
    """The newest time of each partition up to the last cut, in microseconds since 1970."""
    landing: StoredTable
    cuts: dict[int, TopicOffsets] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def newest(self) -> dict[int, int]:
        """The newest time that each partition ever had, in microseconds since 1970."""
        return self.times(ALWAYS)

    def times(self, until: int) -> dict[int, int]:
        """Return the newest time of each partition up to a cut, in microseconds since 1970."""
        taken = self.records.within(self.records.since, self.cut(until).offsets)
        return _later(taken.by_partition("max(_time)"), self.seen)

    def landed_at(self, batch: int) -> int:
        """Return when a batch was landed, in milliseconds since 1970; 0 if the log no longer has its commit."""
        commit = self.landing.commit(batch)
        return 0 if commit is None else commit.at

    def beyond(self, until: int) -> _Records:
        """Return the records after a cut."""
        return self.records.within(self.cut(until).offsets, self.records.until)

    def cut(self, until: int) -> TopicOffsets:
        """Return the end of the longest prefix of every partition whose times do not exceed `until`."""
        if until not in self.cuts:
            offsets = {**self.end.offsets, **self.records.first_beyond(until)}
            self.cuts[until] = replace(self.end, offsets=offsets)
        return self.cuts[until]


@dataclass(frozen=True)
class _Group:
    """Topics that tables read together; `frontier` is the time, in microseconds, that every partition has reached."""

    backlogs: tuple[_Backlog, ...]
    frontier: int = ALWAYS
    waiting: tuple[Waiting, ...] = ()

    def until(self, now: int) -> int:
        """Return the time, in microseconds, up to which steps may read the records."""
        return ALWAYS if any(one.over(now) for one in self.waiting) else self.frontier


def release(ports: Ports, topology: Topology, run: str) -> Release | None:
    """Commit the cut up to which the steps of a run may read, once a run. None if they may read everything.

    Raises:
        NotCommitted: other runs committed first, several times.
    """
    if not lowers(topology.settings):
        return None
    table = StoredTable.of(ports.lakehouse, topology.name, topology.sources[0].landing)

    def once() -> tuple[Release | None] | None:
        keeper = table.state()
        if keeper is None or keeper.position.n == 0:
            return (None,)
        was = keeper.position.release
        if was is not None and was.run == run:
            return (was,)
        wanted = _released(topology, _backlogs(ports.lakehouse, topology, was), run, _now())
        if was is not None and (was.cut, was.times) == (wanted.cut, wanted.times):
            return (was,)
        position = replace(keeper.position.next(run, keeper.data_version), release=wanted)
        with opened(ports.engine) as session:
            no_rows = session.read.format("delta").load(table.path).where("false")
            return None if commit.append(no_rows, table, position) is None else (wanted,)

    [found] = until_committed(table.name, once, f"is more than one tick of {topology.name} running?")
    return found


def waiting(lakehouse: Lakehouse, topology: Topology) -> list[Waiting]:
    """Return what is held back, also if its deadline has passed since the last tick. Starts no Spark session."""
    if topology.settings.max_task_idle_ms <= 0:
        return []
    keeper = StoredTable.of(lakehouse, topology.name, topology.sources[0].landing).state()
    was = None if keeper is None else keeper.position.release
    return [one for group in _groups(topology, _backlogs(lakehouse, topology, was)) for one in group.waiting]


def concerning(topology: Topology, name: str, found: Iterable[Waiting]) -> tuple[Waiting, ...]:
    """Return what of `found` is held back from a table, or in a landing by its name `_landing/<topic>`."""
    topics = topology.source_topics[name]
    return tuple(one for one in found if one.topic in topics)


def _now() -> int:
    return round(time.time() * 1000)


def _released(topology: Topology, backlogs: list[_Backlog], run: str, now: int) -> Release:
    """Return how far steps may read at the time `now`, in milliseconds since 1970."""
    groups = _groups(topology, backlogs)
    end = _slice(topology.settings.max_records_per_tick, groups, now)
    cut = {one.topic: one.end for one in backlogs}  # global tables have no slice
    times: dict[str, dict[int, int]] = {}
    enforced: list[str] = []
    for group in groups:
        until = min(end, group.until(now))
        if any(one.cut(group.frontier).is_before(one.cut(until)) for one in group.backlogs):
            enforced += [one.topic for one in group.backlogs]
        for one in group.backlogs:
            cut[one.topic] = one.cut(until)
            if topology.settings.max_task_idle_ms > 0:
                times[one.topic] = one.times(until)
    return Release(run, cut, times, tuple(enforced))


def _slice(limit: int | None, groups: list[_Group], now: int) -> int:
    """Return the latest time up to which steps may read at most `limit` records, but at least the earliest one."""
    if limit is None:
        return ALWAYS
    first = _first(limit + 1, [(one.records, group.until(now)) for group in groups for one in group.backlogs])
    if len(first) <= limit:
        return ALWAYS
    first_left: int = first[limit].as_py()
    last_taken: int | None = pc.max(first.filter(pc.less(first, first_left))).as_py()
    return first_left if last_taken is None else last_taken


def _first(count: int, backlogs: list[tuple[_Records, int]]) -> pa.Array:
    """Return the earliest `count` times that are reached by records, each up to the time beside them, in order.

    Every partition is read from its beginning, a piece at a time, until no later record of it can be among them.
    """
    first = pa.array([], pa.int64())
    left = [{p: records.since.get(p, 0) for p in records.until} for records, _ in backlogs]
    reached: list[dict[int, int]] = [{} for _ in backlogs]
    while partitions := sum(map(len, left)):
        size = -(-max(CHUNK, 2 * count) // partitions)
        for number, (records, until) in enumerate(backlogs):
            ends = {p: min(offset + size, records.until[p]) for p, offset in left[number].items()}
            rows = records.within(left[number], ends).select(REACHED, carry=reached[number])
            left[number] = {p: end for p, end in ends.items() if end < records.until[p]}
            if rows.num_rows == 0:
                continue
            times = rows["_reached"].combine_chunks()
            first = pa.concat_arrays([first, times.filter(pc.less_equal(times, until))]).sort()[:count]
            newest = rows.group_by("_partition").aggregate([("_reached", "max")])
            reached[number] |= dict(
                zip(newest["_partition"].to_pylist(), newest["_reached_max"].to_pylist(), strict=True)
            )
        enough = first[-1].as_py() if len(first) == count else ALWAYS
        for number, (_, until) in enumerate(backlogs):
            so_far = reached[number]
            left[number] = {p: o for p, o in left[number].items() if enough > so_far.get(p, NEVER) <= until}
    return first


def _groups(topology: Topology, backlogs: list[_Backlog]) -> list[_Group]:
    """Return the groups of topics that tables read together, also through other tables; global tables excluded."""
    streams = [one for one in backlogs if one.source.kind != "global_table"]
    together: list[set[str]] = []
    for every in topology.source_topics.values():
        topics = every & {one.source.topic for one in streams}
        joined = [group for group in together if group & topics]
        together = [group for group in together if group not in joined] + [topics.union(*joined)]
    found = (tuple(one for one in streams if one.source.topic in topics) for topics in together)
    return [_held(group, topology.settings.max_task_idle_ms) for group in found if group]


def _held(backlogs: tuple[_Backlog, ...], idle: int) -> _Group:
    """Return a group with what it holds back: records newer than the newest record of one of its partitions."""
    if idle <= 0 or len(backlogs) < 2:
        return _Group(backlogs)
    seen = {(one.source.topic, p): one.newest.get(p, NEVER) for one in backlogs for p in one.end.offsets}
    frontier = min(seen.values(), default=ALWAYS)
    held = {one.source.topic: one.beyond(frontier) for one in backlogs}
    # The first record that is held back of a partition has the earliest time reached of those.
    reached = [
        UNTIMED if time is None else time
        for records in held.values()
        for time in records.select("first_value(_time ORDER BY _offset) AS _time", "GROUP BY _partition")
        .to_pydict()
        .get("_time", [])
    ]
    if not reached:
        return _Group(backlogs)
    waits_for = tuple(f"{topic}-{partition}" for (topic, partition), newest in seen.items() if newest < min(reached))
    oldest = ((one, min(held[one.source.topic].by_partition("min(_batch)").values(), default=None)) for one in backlogs)
    since = min(one.landed_at(batch) for one, batch in oldest if batch is not None)
    found = (
        Waiting(topic, partition, count, waits_for, since, since + idle)
        for topic, records in held.items()
        for partition, count in sorted(records.by_partition("count(*)").items())
    )
    return _Group(backlogs, frontier, tuple(found))


def _backlogs(lakehouse: Lakehouse, topology: Topology, was: Release | None) -> list[_Backlog]:
    """Return what every landing holds after the last cut, and after the position of every table."""
    stepped = []
    for table in topology.tables:
        with suppress(*UNREADABLE):  # its own step raises it; its position does not limit the others
            state = StoredTable.of(lakehouse, topology.name, table.name).state()
            stepped += [] if state is None else [state.position]
    found = []
    for source in topology.sources:
        landing = StoredTable.of(lakehouse, topology.name, source.landing)
        one = _backlog(landing, source, was, stepped, topology.settings.max_task_idle_ms)
        found += [] if one is None else [one]
    return found


def _backlog(
    stored: StoredTable, source: Source, was: Release | None, stepped: list[Position], idle: int
) -> _Backlog | None:
    state = stored.state()
    if state is None or not state.position.is_readable:
        return None
    [(topic, end)] = state.position.cut.items()
    released = {} if was is None or topic not in was.cut else was.cut[topic].offsets
    cuts = [released, *(position.cut[topic].offsets for position in stepped if topic in position.cut)]
    base = {p: min(last, max(cut.get(p, 0) for cut in cuts)) for p, last in end.offsets.items()}
    # Records beyond an offset landed in the first commit that went beyond it, or later.
    first = stored.oldest_commit(lambda position: replace(end, offsets=base).is_before(position.cut[topic]))
    batch = 0 if first is None or stored.commit(first.position.n - 1) is None else first.position.n
    records = _Records(delta_log.opened(stored.path, state.version), base, end.offsets, batch)
    if source.kind == "global_table":
        return _Backlog(source, topic, end, records.within({}, {}), {}, stored)
    seen: dict[int, int] = {}
    if idle > 0:
        known = None if was is None else was.times.get(topic)
        earlier = replace(records.within({} if known is None else released, base), batch=0)
        seen = _later(known or {}, earlier.by_partition("max(_time)"))
    return _Backlog(source, topic, end, records, seen, stored)


def _later(one: Mapping[int, int], other: Mapping[int, int]) -> dict[int, int]:
    return {p: max(one.get(p, NEVER), other.get(p, NEVER)) for p in sorted(one.keys() | other.keys())}
