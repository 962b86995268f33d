"""Records that did not decode: kept in their landing, with the reason and the raw bytes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from deltalake import DeltaTable

if TYPE_CHECKING:
    from spark.engine.doors import Doors
    from spark.topology import Topology
    from spark.topology.topology import Source


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


def undecodable(doors: Doors, topology: Topology, source: Source, limit: int) -> list[Undecodable]:
    """The newest records of a landing that did not decode."""
    path = doors.lakehouse.table(topology.name, source.landing)
    if not DeltaTable.is_deltatable(path):
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


def _text(raw: bytes | None) -> str | None:
    return None if raw is None else bytes(raw).decode(errors="backslashreplace")
