"""Find the records that a stored stream dropped, by a replay of its commits' spans: they are not stored anywhere."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from spark.engine.attempt import table_errors
from spark.engine.inputs.frame_cache import frame_cache
from spark.engine.inputs.snapshot import version_of
from spark.engine.log.definition import added_columns
from spark.engine.log.stored_table import StoredTable
from spark.engine.ports import opened
from spark.engine.replay import span_between
from spark.operators.algebra import IDENTITY, dropped
from spark.operators.order import stream_time

if TYPE_CHECKING:
    from spark.engine.ports import Ports
    from spark.topology.topology import Table, Topology


@dataclass(frozen=True)
class DroppedRecord:
    """A record that a table dropped, and the reason. `timestamp` and the `stream_time` at the record are UTC text."""

    topic: str
    partition: int
    offset: int
    reason: str
    timestamp: str | None
    stream_time: str | None
    version: int


@dataclass(frozen=True)
class DroppedRecords:
    """Records that a table dropped. `older` counts, by reason, those from before its log, which cannot be listed."""

    records: list[DroppedRecord]
    older: dict[str, int] = field(default_factory=dict)
    computed: bool = True
    """Whether the table was ever computed."""


def dropped_records(ports: Ports, topology: Topology, target: Table, limit: int) -> DroppedRecords:
    """Return the newest records that a table dropped: late ones, and those without a key, value or timestamp it needs.

    Raises:
        PlanChanged: the table was computed by another definition than the one given.
        ChangesExpired: an input no longer has the changes that a commit was computed from.
    """
    table = StoredTable.of(ports.lakehouse, topology.name, target.name)
    state = table.state()
    if state is None:
        return DroppedRecords([], computed=False)
    added_columns(ports.lakehouse, topology, target, state)  # columns that it gains drop no records
    commits = list(table.commits())
    # The span of the oldest commit in the log is unknown, unless it is the first commit of the table.
    has_first = not commits or commits[-1].position.n == 1
    found: list[DroppedRecord] = []
    with (
        opened(ports.engine, topology.settings) as session,
        table_errors(topology, target),
        frame_cache(session) as cache,
    ):
        for commit, before in pairwise([*commits, *([None] if has_first else [])]):
            assert commit is not None, "only the last of the list is None"
            was = None if before is None else before.position
            if commit.position.dropped == ({} if was is None else was.dropped) or len(found) >= limit:
                continue
            own = version_of(session, table.path, commit.version, target.plan).where("false")
            span = span_between(ports, cache, topology, own, was, commit.position)
            span = span.at(None if was is None else was.time, commit.position.time)
            records = dropped(target.plan, span)
            if records is None:
                continue
            newest = records.orderBy("_topic", "_partition", "_offset", ascending=False).limit(limit - len(found))
            at = F.timestamp_micros(stream_time(span))
            # As text, because Python's datetime cannot represent every timestamp.
            times = (time.cast("string") for time in (F.col("_timestamp"), at))
            rows = newest.select(*IDENTITY[:3], "_reason", *times).collect()
            found += [
                DroppedRecord(topic, partition, offset, reason, timestamp, reached, commit.version)
                for topic, partition, offset, reason, timestamp, reached in rows
            ]
    return DroppedRecords(found, {} if has_first else commits[-1].position.dropped)
