"""Quarantine: records that did not decode are in their landing, with the reason and the raw bytes.

They are decoded again on demand. One MERGE with the landing's fence updates them in place, and its cut counts it. So
the next step of a table reads them as records that arrive then, at their old offsets, and no step mixes inputs with and
without them.
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
    """One record as it arrived. Bytes that are not UTF-8 are shown as escapes."""

    topic: str
    partition: int
    offset: int
    timestamp: datetime | None
    error: str
    key: str | None
    value: str | None


@dataclass(frozen=True)
class Redecoded:
    """How many records of a landing were decoded again, and how many are left in quarantine."""

    table: str
    decoded: int
    left: int
    version: int | None
    """The version of the landing afterwards; None if nothing has landed."""
    seconds: float


def undecodable(doors: Doors, topology: Topology, source: Source, limit: int) -> list[Undecodable]:
    """Return the newest records of a landing that did not decode, at most `limit`."""
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
    """Decode records in quarantine again, by the present declaration. If none decodes, this commits nothing.

    A record has its old offset and timestamp: in a table it does not replace a newer record of its key, and an operator
    whose stream time has passed it drops it as late.

    Raises:
        PlanChanged: a landed column is declared with another type, or records with another event time or key.
        NotCommitted: other runs committed first, `TRIES` times.
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
            table.add_columns(session, path, {REDECODED: "bigint"})  # older landings lack the column
            decoded.createOrReplaceTempView("__decoded")
            state = positions.read(path, name) or state  # the topic may have landed again meanwhile
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
