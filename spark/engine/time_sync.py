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
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa  # type: ignore[import-untyped]  # has no types of its own
import pyarrow.compute as pc  # type: ignore[import-untyped]  # the same
from deltalake import DeltaTable, QueryBuilder

from spark.engine.errors import LogBroken, PositionLost
from spark.engine.inputs.pin import lowers
from spark.engine.inputs.snapshot import NO_RECORD, within
from spark.engine.log import commit
from spark.engine.log.commit import until_committed
from spark.engine.log.position import Release
from spark.engine.log.stored_table import StoredTable
from spark.engine.offsets import TopicOffsets
from spark.engine.ports import opened

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from spark.engine.log.position import Position
    from spark.engine.ports import Lakehouse, Ports
    from spark.topology.topology import Source, Topology

NEVER, UNTIMED, ALWAYS = -(2**63), 1 - 2**63, 2**63 - 1
"""Microseconds: before every record; the time reached at a record without an event time so far; after every record."""

PLACED = pa.schema([(name, pa.int64()) for name in ("_partition", "_offset", "_batch", "_reached")])
REACHED = """
SELECT _partition, _offset, _batch, max(CASE WHEN _error IS NULL THEN _timestamp END)
    OVER (PARTITION BY _partition ORDER BY _offset ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS _reached
FROM landing WHERE {where}
"""
NEWEST = """
SELECT _partition, max(_timestamp) AS _reached FROM landing WHERE _error IS NULL AND ({where}) GROUP BY _partition
"""


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
class _Backlog:
    """The records of a landing after the last cut, each with the time reached at it."""

    source: Source
    topic: str
    """`<cluster id>/<topic>`, the key of a cut."""
    end: TopicOffsets
    records: pa.Table
    seen: dict[int, int]
    """The newest time of each partition up to the last cut, in microseconds since 1970."""
    landing: StoredTable

    @cached_property
    def newest(self) -> dict[int, int]:
        """The newest time that each partition ever had, in microseconds since 1970."""
        return self.times(ALWAYS)

    def times(self, until: int) -> dict[int, int]:
        """Return the newest time of each partition up to a cut, in microseconds since 1970."""
        records = self.records.filter(pc.less_equal(self.records["_reached"], until))
        timed = records.filter(pc.greater(records["_reached"], UNTIMED))
        return _later(_by_partition(timed, "_reached", "max"), self.seen)

    def landed_at(self, batch: int) -> int:
        """Return when a batch was landed, in milliseconds since 1970; 0 if the log no longer has its commit."""
        commit = self.landing.oldest_commit(lambda position: position.n >= batch)
        return commit.at if commit is not None and commit.position.n == batch else 0

    def beyond(self, until: int) -> pa.Table:
        """Return the records after a cut."""
        return self.records.filter(pc.greater(self.records["_reached"], until))

    def cut(self, until: int) -> TopicOffsets:
        """Return the end of the longest prefix of every partition whose times do not exceed `until`."""
        return replace(self.end, offsets={**self.end.offsets, **_by_partition(self.beyond(until), "_offset", "min")})


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
        at = keeper.position
        position = replace(at, n=at.n + 1, run=run, data_version=keeper.data_version, release=wanted)
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
        if any(one.beyond(group.frontier).num_rows > one.beyond(until).num_rows for one in group.backlogs):
            enforced += [one.topic for one in group.backlogs]
        for one in group.backlogs:
            cut[one.topic], times[one.topic] = one.cut(until), one.times(until)
    return Release(run, cut, times if topology.settings.max_task_idle_ms > 0 else {}, tuple(enforced))


def _slice(limit: int | None, groups: list[_Group], now: int) -> int:
    """Return the latest time up to which steps may read at most `limit` records, but at least the earliest one."""
    if limit is None:
        return ALWAYS
    may_go = [
        reached.filter(pc.less_equal(reached, group.until(now)))
        for group in groups
        for one in group.backlogs
        for reached in one.records["_reached"].chunks
    ]
    reached = pa.chunked_array(may_go, pa.int64()).combine_chunks().sort()
    if len(reached) <= limit:
        return ALWAYS
    first_left: int = reached[limit].as_py()
    last_taken: int | None = pc.max(reached.filter(pc.less(reached, first_left))).as_py()
    return first_left if last_taken is None else last_taken


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
    reached = [pc.min(records["_reached"]).as_py() for records in held.values() if records.num_rows > 0]
    if not reached:
        return _Group(backlogs)
    waits_for = tuple(f"{topic}-{partition}" for (topic, partition), newest in seen.items() if newest < min(reached))
    oldest = ((one, pc.min(held[one.source.topic]["_batch"]).as_py()) for one in backlogs)
    since = min(one.landed_at(batch) for one, batch in oldest if batch is not None)
    found = (
        Waiting(topic, partition, count, waits_for, since, since + idle)
        for topic, records in held.items()
        for partition, count in sorted(_by_partition(records, "_offset", "count").items())
    )
    return _Group(backlogs, frontier, tuple(found))


def _backlogs(lakehouse: Lakehouse, topology: Topology, was: Release | None) -> list[_Backlog]:
    """Return what every landing holds after the last cut, and after the position of every table."""
    stepped = []
    for table in topology.tables:
        with suppress(PositionLost, LogBroken):  # its own step raises it; its position does not limit the others
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
    if state is None or state.position.n == 0:
        return None
    [(topic, end)] = state.position.cut.items()
    released = {} if was is None or topic not in was.cut else was.cut[topic].offsets
    cuts = [released, *(position.cut[topic].offsets for position in stepped if topic in position.cut)]
    base = {p: min(last, max(cut.get(p, 0) for cut in cuts)) for p, last in end.offsets.items()}
    landing = DeltaTable(stored.path, version=state.version)
    seen: dict[int, int] = {}
    if idle > 0 and source.kind != "global_table":
        known = None if was is None else was.times.get(topic)
        seen = _newest(landing, {}, base) if known is None else _later(known, _newest(landing, released, base))
    records = PLACED.empty_table() if source.kind == "global_table" else _placed(landing, base, end.offsets)
    return _Backlog(source, topic, end, records, seen, stored)


def _placed(landing: DeltaTable, since: Mapping[int, int], until: Mapping[int, int]) -> pa.Table:
    """Return the records between two offsets, each with the time that its partition reached at it (`PLACED`)."""
    where = within(since, until)
    if where == NO_RECORD:
        return PLACED.empty_table()
    records = _query(landing, REACHED.format(where=where))
    return records.set_column(3, "_reached", pc.fill_null(records["_reached"], UNTIMED)).cast(PLACED)


def _newest(landing: DeltaTable, since: Mapping[int, int], until: Mapping[int, int]) -> dict[int, int]:
    """Return the newest time of every partition between two offsets, in microseconds since 1970."""
    where = within(since, until)
    if where == NO_RECORD:
        return {}
    return _by_partition(_query(landing, NEWEST.format(where=where)).drop_null(), "_reached", "max")


def _query(landing: DeltaTable, query: str) -> pa.Table:
    """Return the rows of a query over `landing`, with `_reached` in microseconds since 1970."""
    found = pa.table(QueryBuilder().register("landing", landing).execute(query).read_all())
    times = found["_reached"].cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    return found.set_column(found.schema.get_field_index("_reached"), "_reached", times)


def _later(one: Mapping[int, int], other: Mapping[int, int]) -> dict[int, int]:
    return {p: max(one.get(p, NEVER), other.get(p, NEVER)) for p in sorted(one.keys() | other.keys())}


def _by_partition(records: pa.Table, column: str, aggregate: str) -> dict[int, int]:
    found = records.group_by("_partition").aggregate([(column, aggregate)])
    return dict(zip(found["_partition"].to_pylist(), found[f"{column}_{aggregate}"].to_pylist(), strict=True))
