"""Quarantine: records that did not decode are in their landing, with the reason and the raw bytes.

They are decoded again on demand. One MERGE with the landing's fence updates them in place, and its cut counts it. So
the next step of a table reads them as records that arrive then, at their old offsets, and no step mixes inputs with and
without them.

They are dropped on demand too, by one MERGE of the same kind, whose position counts them by the reason that was given
and by whom. No table has read them, so no step notices.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from datetime import UTC
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from spark.engine.counts import after_dropping, after_redecoding, query, so_far
from spark.engine.errors import NotInQuarantine
from spark.engine.inputs.snapshot import REDECODED, version_of
from spark.engine.land import landed
from spark.engine.log import commit, table
from spark.engine.log.commit import until_committed
from spark.engine.log.landing_definition import check_landing, evolve_landing
from spark.engine.log.stored_table import StoredTable
from spark.engine.ports import opened
from spark.engine.python_workers import check_workers
from spark.engine.schemas import check_limits, schemas_of
from spark.topology.formats import HEADERS
from spark.topology.sql.ddl import quoted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from pyspark.sql import Column, DataFrame

    from spark.engine.ports import Ports
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


@dataclass(frozen=True)
class RawRecord(Undecodable):
    """One record with all of its bytes, as hexadecimal digits."""

    key_hex: str | None
    value_hex: str | None
    headers: tuple[tuple[str, str | None], ...] = ()
    """The headers in their order, a name and a text each, if the topic is declared with `headers=`."""


@dataclass(frozen=True)
class Dropped:
    """How many records were dropped from the quarantine of a landing, and how many are left in it."""

    table: str
    dropped: int
    left: int
    version: int | None
    """The version of the landing afterwards; None if nothing has landed."""
    seconds: float


def undecodable(ports: Ports, topology: Topology, source: Source, limit: int) -> list[Undecodable]:
    """Return the newest records of a landing that did not decode, at most `limit`."""
    landing = StoredTable.of(ports.lakehouse, topology.name, source.landing)
    if landing.state() is None:
        return []
    with opened(ports.engine) as session:
        broken = session.read.format("delta").load(landing.path).where("_error IS NOT NULL")
        newest = broken.orderBy("_batch", "_partition", "_offset", ascending=False).limit(limit)
        columns = ("_topic", "_partition", "_offset", "_timestamp", "_error", "_key", "_value")
        rows = newest.select(*columns).collect()
    return [
        Undecodable(topic, partition, offset, at and at.astimezone(UTC), error, _text(key), _text(value))
        for topic, partition, offset, at, error, key, value in rows  # Spark returns local times without a zone
    ]


def raw_record(ports: Ports, topology: Topology, source: Source, partition: int, offset: int) -> RawRecord:
    """Return one record in quarantine; starts no Spark session.

    Raises:
        NotInQuarantine: the record is not in quarantine.
    """
    landing = StoredTable.of(ports.lakehouse, topology.name, source.landing)
    state = landing.state()
    where = f"_error IS NOT NULL AND _partition = {partition} AND _offset = {offset}"
    found = [] if state is None else query(landing.path, state.version, f"SELECT * FROM it WHERE {where}")
    if not found:
        raise _not_there(landing.name, [(partition, offset)])
    row = found[0]
    key, value = row["_key"], row["_value"]
    return RawRecord(
        topic=row["_topic"],
        partition=partition,
        offset=offset,
        timestamp=row["_timestamp"],
        error=row["_error"],
        key=_text(key),
        value=_text(value),
        key_hex=_hex(key),
        value_hex=_hex(value),
        headers=tuple((one["key"], _text(one["value"])) for one in row.get("_headers") or ()),
    )


def drop(
    ports: Ports,
    topology: Topology,
    source: Source,
    chosen: Mapping[int, Sequence[int]] | str,
    reason: str,
    by: str,
    run: str,
) -> Dropped:
    """Drop records from quarantine for good. The landing's position counts them by reason and by whom.

    Args:
        ports: the connections.
        topology: the topology.
        source: the topic.
        chosen: the offsets of the records, by partition; or the reason for which they are in quarantine.
        reason: why they are dropped.
        by: who drops them.
        run: the run's id.

    Raises:
        NotInQuarantine: a record is not in quarantine, or none is for that reason; nothing is dropped.
        NotCommitted: other runs committed first, several times.
    """
    began = time.monotonic()
    landing = StoredTable.of(ports.lakehouse, topology.name, source.landing)
    why = f"{reason} ({by})"
    aim, count = None, 0  # how often records were dropped for this reason once a commit of this call was made

    def once() -> Dropped | None:
        nonlocal aim, count
        state = landing.state()
        if state is None or state.position.n == 0:
            raise NotInQuarantine(f"{landing.name}: nothing has landed, so nothing is in quarantine")
        was = state.position
        so_often = was.dropped.get(why, 0)
        if aim is not None and so_often >= aim:  # another run committed before the commit was read back
            return Dropped(landing.name, count, so_far(landing, state).errors, state.version, 0.0)
        with opened(ports.engine) as session:
            broken = version_of(session, landing.path, state.version).where("_error IS NOT NULL")
            found = broken.where(_is_chosen(chosen)).select(*COORDINATES)
            count = _counted(landing.name, found, chosen)
            aim = so_often + count
            found.createOrReplaceTempView("__dropped")
            statement = (
                f"MERGE INTO delta.{quoted(landing.path)} AS t USING __dropped AS s "
                f"ON {' AND '.join(f't.{c} = s.{c}' for c in COORDINATES)} AND t._error IS NOT NULL "
                f"WHEN MATCHED THEN DELETE"
            )
            counts = after_dropping(so_far(landing, state), count)
            dropped = was.dropped | {why: aim}
            position = replace(was.next(run, state.data_version), dropped=dropped, counts=counts)
            committed = commit.merge(session, statement, landing, position)
        return None if committed is None else Dropped(landing.name, count, counts.errors, committed.version, 0.0)

    done = until_committed(landing.name, once, f"is more than one tick of {topology.name} running?")
    return replace(done, seconds=time.monotonic() - began)


def _is_chosen(chosen: Mapping[int, Sequence[int]] | str) -> Column:
    if isinstance(chosen, str):
        return F.col("_error") == chosen
    parts = [(F.col("_partition") == partition) & F.col("_offset").isin(*at) for partition, at in chosen.items()]
    return reduce(or_, parts, F.lit(False))


def _counted(name: str, found: DataFrame, chosen: Mapping[int, Sequence[int]] | str) -> int:
    """Return how many records are chosen.

    Raises:
        NotInQuarantine: a record that was named is not there, or none is.
    """
    if isinstance(chosen, str):
        count = found.count()
        if count == 0:
            raise NotInQuarantine(f"{name}: no record is in quarantine for this reason: {chosen}")
        return count
    there = {tuple(row) for row in found.collect()}
    wanted = {(partition, offset) for partition, offsets in chosen.items() for offset in offsets}
    if missing := sorted(wanted - there):
        raise _not_there(name, missing)
    return len(there)


def _not_there(name: str, missing: Sequence[tuple[int, int]]) -> NotInQuarantine:
    places = ", ".join(f"partition {partition} offset {offset}" for partition, offset in missing)
    return NotInQuarantine(f"{name}: not in quarantine: {places}. `tidetable quarantine list` lists what is")


def redecode(ports: Ports, topology: Topology, source: Source, run: str) -> Redecoded:
    """Decode records in quarantine again, by the present declaration. If none decodes, this commits nothing.

    A record has its old offset and timestamp: in a table it does not replace a newer record of its key, and an operator
    whose stream time has passed it drops it as late.

    Raises:
        PlanChanged: a landed column is declared with a type that is not wider, or records with another event time or
            key.
        NotCommitted: other runs committed first, several times.
    """
    began = time.monotonic()
    landing = StoredTable.of(ports.lakehouse, topology.name, source.landing)

    def once() -> Redecoded | None:
        state = landing.state()
        if state is None or state.position.n == 0:
            return Redecoded(landing.name, 0, 0, None, 0.0)
        with opened(ports.engine) as session:
            check_landing(landing.name, state, source)
            if not evolve_landing(session, landing, state, source, run):
                return None
            broken = version_of(session, landing.path, landing.version()).where("_error IS NOT NULL")
            raw = broken.select(
                F.col("_key").alias("key"),
                F.col("_value").alias("value"),
                *(F.col(f"_{column}").alias(column) for column in ("topic", "partition", "offset", "timestamp")),
                *([_headers(broken)] if source.consumed.reads_headers else []),
            )
            check_limits(ports, session, source)
            check_workers(ports, session, source)
            schemas = schemas_of(ports, source, raw, scan=True)
            again = landed(raw, source, 0, topology.settings.message_timestamp_after_max_ms, schemas)
            decoded = again.where("_error IS NULL").drop("_key", "_value", "_headers", "_batch", "_topic")
            quarantined, count, deleted = broken.count(), decoded.count(), decoded.where("_deleted").count()
            if count == 0:
                return Redecoded(landing.name, 0, quarantined, state.version, 0.0)
            table.add_columns(session, landing, {REDECODED: "bigint"})  # older landings lack the column
            decoded.createOrReplaceTempView("__decoded")
            state = landing.state() or state  # the topic may have landed again meanwhile
            was = state.position
            [(topic, at)] = was.cut.items()
            cut = {topic: replace(at, redecoded=at.redecoded + 1)}
            values = {quoted(column): f"s.{quoted(column)}" for column in decoded.columns if column not in COORDINATES}
            values[REDECODED] = str(cut[topic].redecoded)
            statement = (
                f"MERGE INTO delta.{quoted(landing.path)} AS t USING __decoded AS s "
                f"ON {' AND '.join(f't.{c} = s.{c}' for c in COORDINATES)} AND t._error IS NOT NULL "
                f"WHEN MATCHED THEN UPDATE SET {', '.join(f't.{c} = {value}' for c, value in values.items())}"
            )
            counts = after_redecoding(so_far(landing, state), count, deleted)
            position = replace(was.next(run, state.data_version), cut=cut, counts=counts)
            committed = commit.merge(session, statement, landing, position)
        if committed is None:
            return None
        return Redecoded(landing.name, count, quarantined - count, committed.version, 0.0)

    done = until_committed(landing.name, once, f"is more than one tick of {topology.name} running?")
    return replace(done, seconds=time.monotonic() - began)


def _headers(broken: DataFrame) -> Column:
    """Return the headers of records in quarantine; null if they landed before headers were asked for."""
    there = F.col("_headers") if "_headers" in broken.columns else F.lit(None)
    return there.cast(HEADERS).alias("headers")


def _hex(raw: bytes | None) -> str | None:
    return None if raw is None else bytes(raw).hex()


def _text(raw: bytes | None) -> str | None:
    return None if raw is None else bytes(raw).decode(errors="backslashreplace")
