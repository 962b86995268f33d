"""Find the records that a stored stream dropped, by a replay of its commits' spans: they are not stored anywhere."""

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
    """A record that a table dropped, and the reason. `timestamp` and the `stream_time` at the record are UTC text."""

    topic: str
    partition: int
    offset: int
    reason: str
    timestamp: str | None
    stream_time: str | None
    version: int


@dataclass(frozen=True)
class Late:
    """Records that a table dropped. `older` counts, by reason, those from before its log, which cannot be listed."""

    records: list[Dropped]
    older: dict[str, int] = field(default_factory=dict)
    computed: bool = True
    """Whether the table was ever computed."""


def late(doors: Doors, topology: Topology, target: Table, limit: int) -> Late:
    """Return the newest records that a table dropped: late ones, and those without a key, value or timestamp it needs.

    Raises:
        PlanChanged: the table was computed by another definition than the one given.
        ChangesExpired: an input no longer has the changes that a commit was computed from.
    """
    name, path = f"{topology.name}/{target.name}", doors.lakehouse.table(topology.name, target.name)
    state = positions.read(path, name)
    if state is None:
        return Late([], computed=False)
    gaining(doors.lakehouse, topology, target, state)  # columns that it gains drop no records
    commits = list(positions.commits(path, name))
    # The span of the oldest commit in the log is unknown, unless it is the first commit of the table.
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
                # As text, because Python's datetime cannot represent every timestamp.
                times = (time.cast("string") for time in (F.col("_timestamp"), at))
                rows = newest.select(*IDENTITY[:3], "_reason", *times).collect()
                found += [
                    Dropped(topic, partition, offset, reason, timestamp, reached, made.version)
                    for topic, partition, offset, reason, timestamp, reached in rows
                ]
    finally:
        session.stop()
    return Late(found, {} if whole else commits[-1].position.dropped)
