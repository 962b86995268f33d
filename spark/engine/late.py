"""The records that a stored stream dropped, by replaying the spans of its commits: nothing else has to be kept."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from spark.engine import position as positions
from spark.engine.changes import version_of
from spark.engine.definition import gaining
from spark.engine.kept import keeping
from spark.engine.replay import span_between
from spark.engine.step import named
from spark.operators.algebra import IDENTITY, dropped
from spark.operators.order import stream_time

if TYPE_CHECKING:
    from spark.engine.doors import Doors
    from spark.topology.topology import Table, Topology


@dataclass(frozen=True)
class Dropped:
    """A record that had no part in a stream: why, its time, and how far stream time was at its place, as UTC text."""

    topic: str
    partition: int
    offset: int
    reason: str
    timestamp: str | None
    stream_time: str | None
    version: int


@dataclass(frozen=True)
class Late:
    """Records that a table dropped; and how many, by reason, were `older` than its log: which they were is not told."""

    records: list[Dropped]
    older: dict[str, int] = field(default_factory=dict)
    computed: bool = True
    """Whether the table was ever computed."""


def late(doors: Doors, topology: Topology, target: Table, limit: int) -> Late:
    """The newest records that a table dropped: late ones, and those without the key, value or timestamp it needs.

    Raises:
        PlanChanged: the table was computed by another definition than the one given.
        ChangesExpired: an input no longer tells what a commit was computed from.
    """
    name, path = f"{topology.name}/{target.name}", doors.lakehouse.table(topology.name, target.name)
    state = positions.read(path, name)
    if state is None:
        return Late([], computed=False)
    gaining(doors.lakehouse, topology, target, state)  # such columns drop nothing
    commits = list(positions.commits(path, name))
    # What came before the first commit that the log still tells of is not known, unless it is the first of all.
    whole = not commits or commits[-1].position.n == 1
    found: list[Dropped] = []
    session = doors.engine.session()
    try:
        session.conf.set("spark.sql.ansi.enabled", str(topology.settings.ansi).lower())
        with named(topology, target), keeping(session) as keeps:
            for made, before in pairwise([*commits, *([None] if whole else [])]):
                assert made is not None, "only the last of a list has nothing behind it"
                was = None if before is None else before.position
                if made.position.dropped == ({} if was is None else was.dropped) or len(found) >= limit:
                    continue
                own = version_of(session, path, made.version, target.plan).where("false")
                span = span_between(doors, keeps, topology, own, was, made.position)
                span = span.at(None if was is None else was.time, made.position.time)
                records = dropped(target.plan, span)
                if records is None:
                    continue
                newest = records.orderBy("_topic", "_partition", "_offset", ascending=False).limit(limit - len(found))
                at = F.timestamp_micros(stream_time(span))
                # As text: a time of any clock, also one that Python has no datetime for.
                times = (time.cast("string") for time in (F.col("_timestamp"), at))
                rows = newest.select(*IDENTITY[:3], "_reason", *times).collect()
                found += [
                    Dropped(topic, partition, offset, reason, timestamp, reached, made.version)
                    for topic, partition, offset, reason, timestamp, reached in rows
                ]
    finally:
        session.stop()
    return Late(found, {} if whole else commits[-1].position.dropped)
