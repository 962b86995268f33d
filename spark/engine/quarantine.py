"""Records that did not decode: kept in their landing, with the reason and the raw bytes, and decoded again on demand.

What decodes now is put right where it landed, by one MERGE behind the landing's fence, whose cut counts it: so a table
takes it by its next step, as a record that arrives then at its old offset, and never beside an input without it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from spark.engine import commit, table
from spark.engine import position as positions
from spark.engine.changes import REDECODED, version_of
from spark.engine.counts import moved, so_far
from spark.engine.errors import NotCommitted
from spark.engine.land import TRIES, check_types, landed, widen
from spark.topology.sql.ddl import quoted

if TYPE_CHECKING:
    from datetime import datetime

    from spark.engine.doors import Doors
    from spark.topology.topology import Source, Topology

COORDINATES = ("_partition", "_offset")


@dataclass(frozen=True)
class Undecodable:
    """One record as it came. Bytes that are no text are shown by their escapes."""

    topic: str
    partition: int
    offset: int
    timestamp: datetime | None
    error: str
    key: str | None
    value: str | None


@dataclass(frozen=True)
class Redecoded:
    """How many records of a landing decode now, and how many still do not."""

    table: str
    decoded: int
    left: int
    version: int | None
    """The landing's, behind it; None where nothing has landed."""
    seconds: float


def undecodable(doors: Doors, topology: Topology, source: Source, limit: int) -> list[Undecodable]:
    """The newest records of a landing that did not decode."""
    path = doors.lakehouse.table(topology.name, source.landing)
    if positions.read(path, f"{topology.name}/{source.landing}") is None:
        return []
    session = doors.engine.session()
    try:
        broken = session.read.format("delta").load(path).where("_error IS NOT NULL")
        newest = broken.orderBy("_batch", "_partition", "_offset", ascending=False).limit(limit)
        columns = ("_topic", "_partition", "_offset", "_timestamp", "_error", "_key", "_value")
        rows = newest.select(*columns).collect()
    finally:
        session.stop()
    return [
        Undecodable(topic, partition, offset, timestamp, error, _text(key), _text(value))
        for topic, partition, offset, timestamp, error, key, value in rows
    ]


def redecode(doors: Doors, topology: Topology, source: Source, run: str) -> Redecoded:
    """Decode again, as the topic is declared now, what did not decode when it landed. Nothing new commits nothing.

    A record keeps its place: in a table the newest of its key stays the newest, and where time has passed it is late.

    Raises:
        PlanChanged: a column is declared with another type than it landed with.
        NotCommitted: other runs kept landing first.
    """
    began = time.monotonic()
    name, path = f"{topology.name}/{source.landing}", doors.lakehouse.table(topology.name, source.landing)
    for _ in range(TRIES):
        state = positions.read(path, name)
        if state is None or state.position.n == 0:
            return Redecoded(name, 0, 0, None, time.monotonic() - began)
        session = doors.engine.session()
        try:
            check_types(name, state, source)
            widen(session, path, state, source)
            broken = version_of(session, path, positions.version(path)).where("_error IS NOT NULL")
            raw = broken.select(
                F.col("_key").alias("key"),
                F.col("_value").alias("value"),
                *(F.col(f"_{column}").alias(column) for column in ("topic", "partition", "offset", "timestamp")),
            )
            again = landed(raw, source, 0, topology.settings.message_timestamp_after_max_ms)
            decoded = again.where("_error IS NULL").drop("_key", "_value", "_batch", "_topic")
            counted, count, deleted = broken.count(), decoded.count(), decoded.where("_deleted").count()
            if count == 0:
                return Redecoded(name, 0, counted, state.version, time.monotonic() - began)
            table.add_columns(session, path, {REDECODED: "bigint"})  # landings of before this could be done lack it
            decoded.createOrReplaceTempView("__decoded")
            state = positions.read(path, name) or state  # landings went on while this was decoded
            was = state.position
            [(topic, at)] = was.cut.items()
            cut = {topic: replace(at, redecoded=at.redecoded + 1)}
            values = {quoted(column): f"s.{quoted(column)}" for column in decoded.columns if column not in COORDINATES}
            values[REDECODED] = str(cut[topic].redecoded)
            statement = (
                f"MERGE INTO delta.{quoted(path)} AS t USING __decoded AS s "
                f"ON {' AND '.join(f't.{c} = s.{c}' for c in COORDINATES)} AND t._error IS NOT NULL "
                f"WHEN MATCHED THEN UPDATE SET {', '.join(f't.{c} = {value}' for c, value in values.items())}"
            )
            counts = moved(so_far(path, state), count, deleted)
            position = replace(was, n=was.n + 1, run=run, cut=cut, data_version=state.data_version, counts=counts)
            committed = commit.run(session, statement, path, position)
        finally:
            session.stop()
        if committed is not None:
            return Redecoded(name, count, counted - count, committed.version, time.monotonic() - began)
    raise NotCommitted(
        f"{name}: {TRIES} times another run landed first; is more than one tick of {topology.name} running?"
    )


def _text(raw: bytes | None) -> str | None:
    return None if raw is None else bytes(raw).decode(errors="backslashreplace")
