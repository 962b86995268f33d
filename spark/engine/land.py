"""Append a topic's records to its landing: records, offsets and fence in one commit.

The offsets are given, start and end, so the same step reads the same records; what it reached is the end it was given,
not the last record it saw, since transaction markers and compaction leave gaps. Offsets are never reset: a topic that
was recreated, or whose retention passed our offset, is an error by name. With `on_data_loss="ledger"` the latter is
not: the landing goes on from what is left, and writes into the same commit which offsets are missing.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql import Observation
from pyspark.sql import functions as F
from pyspark.sql.types import LongType

from spark.engine import commit, table
from spark.engine import position as positions
from spark.engine.changes import REDECODED, version_of
from spark.engine.cleaned import may_miss, missing, newest_of, tombstones
from spark.engine.counts import kinds, so_far
from spark.engine.errors import NotCommitted, OffsetsExpired, PlanChanged, TopicRecreated
from spark.engine.kept import keeping
from spark.engine.position import Cut, Gap, Position, State
from spark.operators.algebra import col, cols
from spark.serdes.serde import serde

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from spark.engine.doors import Doors, Kafka
    from spark.engine.kept import Kept
    from spark.engine.offsets import TopicOffsets
    from spark.topology.consumed import Consumed
    from spark.topology.topology import Source, Topology

LAST_MILLIS = 2**62 // 1000  # a timestamp is microseconds in 64 bits, and so is the difference of two
TRIES = 5  # lost races before a landing gives up; each one means that another run did land something
TIME, KEY, KIND = "_timestamp", "_key", "_records"  # of a landing's definition; no column of a user has such a name
REMOVED = "removed from the topic before they were landed"


@dataclass(frozen=True)
class Landed:
    """What landing a topic did: from which offsets to which, and how many records.

    Of them, `errors` are in quarantine and `tombstones` have no value. `gaps` is what it found missing; all that ever
    was is in the position. `cleaned` counts tombstones that stand for those that compaction had removed before; they
    are none of the records.
    """

    table: str
    outcome: str
    start: dict[int, int]
    end: dict[int, int]
    records: int
    errors: int
    tombstones: int
    version: int
    position: Position
    seconds: float
    gaps: tuple[Gap, ...] = ()
    cleaned: int = 0


def capture(kafka: Kafka, topology: Topology) -> Cut:
    """The cut: the end offsets of every topic of the topology, asked for once."""
    return _ends(kafka, topology, topology.settings.exactly_once)


def written(kafka: Kafka, topology: Topology) -> Cut:
    """The ends of every topic with what transactions wrote that have not ended: no cut reaches that before they have.

    Asked for before a cut, so that what is between the two is theirs. Nothing where the cut itself reaches that.
    """
    return _ends(kafka, topology, committed=False) if topology.settings.exactly_once else {}


def _ends(kafka: Kafka, topology: Topology, committed: bool) -> Cut:
    ends = kafka.end_offsets([source.topic for source in topology.sources], committed)
    return {f"{kafka.cluster_id()}/{topic}": offsets for topic, offsets in ends.items()}


def land(doors: Doors, topology: Topology, source: Source, cut: Cut, run: str) -> Landed:
    """Land a topic up to a cut. Landing to where it already is commits nothing and starts no Spark.

    Raises:
        OffsetsExpired: records were removed from the topic before they were landed.
        TopicRecreated: the topic was deleted and made anew, or lost its newest records.
        PlanChanged: a column that has landed is declared with another type.
        NotCommitted: other runs kept landing first.
    """
    began, now = time.monotonic(), round(time.time() * 1000)
    name = f"{topology.name}/{source.landing}"
    path = doors.lakehouse.table(topology.name, source.landing)
    topic = f"{doors.kafka.cluster_id()}/{source.topic}"
    for _ in range(TRIES):
        state = positions.read(path, name)
        if state is not None:
            check_types(name, state, source)  # also where no record came: tables would be rebuilt for it
        start, end, gaps = _range(doors.kafka, topology, source, state, topic, cut[topic])
        if state is not None and state.position.n > 0 and start == end and not gaps:
            return Landed(name, "idle", start, end, 0, 0, 0, state.version, state.position, time.monotonic() - began)
        session = doors.engine.session()
        try:
            if state is None:
                schema, definition = _schema(session, source), json.dumps(_definition(source))
                state = table.create(session, path, name, schema, run, definition)
                if state.position.n > 0:
                    continue  # another run landed here meanwhile: its offsets are where to start
            if not commit.alone(session.read.format("delta").load(path).where("false"), path, state):
                continue
            widen(session, path, state, source)
            with keeping(session) as keeps:
                records, lost = _records(keeps, doors, topology, source, state, start, end, now)
                cleaned = 0 if lost is None else lost.count()
                position = Position(
                    table=name,
                    epoch=state.position.epoch,
                    n=state.position.n + 1,
                    run=run,
                    cut={topic: replace(state.position.cut.get(topic, cut[topic]), offsets=end)},
                    inputs={},
                    data_version=state.data_version,
                    floor=state.position.floor if state.position.n else {p: o for p, o in start.items() if o > 0},
                    release=state.position.release,
                    gaps=(*state.position.gaps, *gaps),
                    read_at=now,
                    cleaned=state.position.cleaned + cleaned,
                    counts=so_far(path, state),
                )
                seen = Observation()
                rows = landed(records, source, position.n, topology.settings.message_timestamp_after_max_ms).observe(
                    seen,
                    F.count(F.lit(1)).alias("records"),
                    F.count("_error").alias("errors"),
                    F.count(F.expr("CASE WHEN _deleted AND _error IS NULL THEN 1 END")).alias("tombstones"),
                )
                batch = rows if lost is None else rows.unionByName(lost)
                try:
                    committed = commit.append(batch, path, position)
                except PySparkException:
                    if not _expiring(doors.kafka, source, cut[topic], start, end):
                        raise
                    continue  # records were removed while they were fetched: the next try sees what is left
            if committed is not None:
                # Nothing was seen where the connection broke and the write was asked for again, which Delta skipped.
                counted = seen.get
                if not counted:
                    counted = kinds(path, committed.version, position.n)
                    counted |= {name: counted[name] - cleaned for name in ("records", "tombstones")}
                count = counted["records"]
                errors = int(counted.get("errors", 0))
                tombstones = int(counted.get("tombstones", 0))
                seconds = time.monotonic() - began
                version = committed.version
                return Landed(
                    name, "landed", start, end, count, errors, tombstones, version, position, seconds, gaps, cleaned
                )
        finally:
            session.stop()
    raise NotCommitted(
        f"{name}: {TRIES} times another run landed first; is more than one tick of {topology.name} running?"
    )


def landed(records: DataFrame, source: Source, batch: int, ahead: int | None = None) -> DataFrame:
    """Records of Spark's Kafka source as rows of the landing. Raw bytes are kept only where something is wrong.

    Of a table, also a record without a whole key is wrong: it could be no row, and would be nowhere. Of a stream, what
    its key lacks is taken from its value.

    Args:
        records: what the source read.
        source: what they are decoded to, and what they mean.
        batch: the number of the landing's commit.
        ahead: how many milliseconds a record may be ahead of the clock; None for no limit.
    """
    consumed = source.consumed
    raw = records.select(
        F.col("key").alias("_key"),
        F.col("value").alias("_value"),
        F.col("timestamp").alias("_timestamp"),
        F.col("topic").alias("_topic"),
        F.col("partition").alias("_partition"),
        F.col("offset").alias("_offset"),
    )
    broken = F.col("_error").isNotNull()
    ours = [
        F.when(broken, _records_own()).otherwise(_timestamp(consumed)).alias("_timestamp"),
        F.col("_topic"),
        F.col("_partition"),
        F.col("_offset"),
        F.col("_deleted"),
        F.col("_error"),
        F.when(broken, F.col("_key")).alias("_key"),
        F.when(broken, F.col("_value")).alias("_value"),
        F.lit(batch).cast("bigint").alias("_batch"),
    ]
    of_stream = source.kind == "stream"
    decoded = serde(consumed.format).decode(raw, consumed, key_from_value=of_stream)
    if not of_stream:
        decoded = decoded.withColumn("_error", F.coalesce("_error", _without_key(consumed)))
    if ahead is not None:
        decoded = decoded.withColumn("_error", F.coalesce("_error", _too_far(_timestamp(consumed), ahead)))
    return decoded.select(*cols(_names(consumed)), *ours)


def _too_far(at: Column, ahead: int) -> Column:
    """What is wrong with an event time that is too far ahead of the clock; null if nothing is."""
    latest = time.time_ns() // 1_000_000 + ahead
    told = f" is more than {ahead} ms ahead of the clock (message_timestamp_after_max_ms)"
    return F.when(
        at > F.timestamp_millis(F.lit(latest)), F.concat(F.lit("the timestamp "), at.cast("string"), F.lit(told))
    )


def _without_key(consumed: Consumed) -> Column:
    """What is wrong with a record of a table that has no key, or only a part of one; null if nothing is."""
    missing = F.greatest(F.lit(False), *(col(column.name).isNull() for column in consumed.key))
    key = ", ".join(column.name for column in consumed.key)
    told = f"the key ({key}) is null, or a part of it is, and no row of a table has such a key"
    return F.when(missing, F.lit(told))


def _range(
    kafka: Kafka, topology: Topology, source: Source, state: State | None, topic: str, want: TopicOffsets
) -> tuple[dict[int, int], dict[int, int], tuple[Gap, ...]]:
    """From which offsets to which, and what is missing before. A partition that is new starts at its beginning."""
    have = state.position.cut.get(topic) if state is not None else None
    if have is not None and (have.topic_id, have.offsets) == (want.topic_id, want.offsets):
        return dict(have.offsets), dict(want.offsets), ()
    if have is not None and have.topic_id != want.topic_id:
        raise _recreated(source, have.topic_id, want.topic_id)
    if have is None and state is not None and state.position.n > 0:
        raise TopicRecreated(
            f"{source.landing} holds records of {', '.join(state.position.cut)}, and this is {topic}: another cluster. "
            f"Land it under another topology name, or move {source.landing} away to start over"
        )
    first = _first(kafka, source, want)
    known = first if have is None else have.offsets
    # A broker that has not heard of a partition leaves it out of an answer: it stays where it was.
    partitions = want.offsets.keys() | (known.keys() if have is not None else set())
    start = {partition: known.get(partition, 0) for partition in sorted(partitions)}
    expired = {p: (offset, first[p]) for p, offset in start.items() if p in want.offsets and offset < first.get(p, 0)}
    if expired and topology.settings.on_data_loss == "fail":
        lost = ", ".join(f"partition {p}: offsets {a} to {b - 1}" for p, (a, b) in expired.items())
        raise OffsetsExpired(
            f"topic {source.topic} no longer holds records that were not landed yet ({lost}). They are lost to "
            f"retention; raise retention.ms above the longest pause between ticks. To go on without them, write "
            f'StreamsBuilder("{topology.name}", on_data_loss="ledger"): it writes down what is missing'
        )
    found = round(time.time() * 1000)
    gaps = tuple(Gap(source.topic, p, a, b - 1, REMOVED, found) for p, (a, b) in expired.items())
    start |= {p: b for p, (_, b) in expired.items()}
    shrunk = {p: offset for p, offset in start.items() if offset > want.offsets.get(p, offset)}
    if shrunk:
        now = kafka.end_offsets([source.topic], read_committed=False)[source.topic].offsets  # all there is
        if any(offset > now.get(partition, 0) for partition, offset in shrunk.items()):
            raise TopicRecreated(
                f"topic {source.topic} ends at {now}, before the offsets {shrunk} that were landed: "
                f"its newest records are gone"
            )
    return start, {partition: max(offset, want.offsets.get(partition, 0)) for partition, offset in start.items()}, gaps


def _first(kafka: Kafka, source: Source, want: TopicOffsets) -> dict[int, int]:
    """Where a topic's partitions begin now; it must be the topic whose offsets are wanted."""
    now = kafka.beginning_offsets([source.topic])[source.topic]
    if now.topic_id != want.topic_id:
        raise _recreated(source, want.topic_id, now.topic_id)
    return now.offsets


def _recreated(source: Source, was: str, now: str) -> TopicRecreated:
    return TopicRecreated(
        f"topic {source.topic} was deleted and created anew: its id is {now}, the landing holds offsets of {was}, and "
        f"the two would mix, whatever on_data_loss says. Land it under another topology name, or move "
        f"{source.landing} away to start over"
    )


def _expiring(kafka: Kafka, source: Source, want: TopicOffsets, start: dict[int, int], end: dict[int, int]) -> bool:
    """Whether records between two offsets are no longer there."""
    first = _first(kafka, source, want)
    return any(offset < min(first.get(partition, 0), end[partition]) for partition, offset in start.items())


def _records(
    keeps: Kept,
    doors: Doors,
    topology: Topology,
    source: Source,
    state: State,
    start: dict[int, int],
    end: dict[int, int],
    now: int,
) -> tuple[DataFrame, DataFrame | None]:
    """What a topic holds between two offsets, and rows for the tombstones that it no longer holds, if there are any."""
    session, batch = keeps.session, state.position.n + 1
    records = _read(session, doors.kafka, topology, source, start, end)
    newest = newest_of(topology, source)
    if not newest or not may_miss(doors.kafka, source, state.position, now):
        return records, None
    ranges = keeps.keep(missing(records, start, end))
    if ranges.isEmpty():
        return records, None
    known = doors.kafka.beginning_offsets([source.topic])[source.topic].offsets
    first = {partition: min(known.get(partition, 0), offset) for partition, offset in end.items()}
    content = _keys(_read(session, doors.kafka, topology, source, first, end), source.consumed)
    landing = version_of(session, doors.lakehouse.table(topology.name, source.landing), state.version)
    versioned = any(latest.history is not None for latest in newest)
    lost = tombstones(keeps, source, versioned, landing, content, first, ranges, batch)
    return records, None if lost.isEmpty() else lost


def _keys(records: DataFrame, consumed: Consumed) -> DataFrame:
    """The keys of records, whatever is the matter with their values."""
    raw = records.select(F.col("key").alias("_key"), F.lit(None).cast("binary").alias("_value"))
    alone = replace(consumed, value=(), timestamp=None, again=())
    return serde(consumed.format).decode(raw, alone).select(*cols([column.name for column in consumed.key]))


def _read(
    session: SparkSession,
    kafka: Kafka,
    topology: Topology,
    source: Source,
    start: dict[int, int],
    end: dict[int, int],
) -> DataFrame:
    options = dict(kafka.spark_options()) | {
        "assign": json.dumps({source.topic: sorted(end)}),
        "startingOffsets": json.dumps({source.topic: start}),
        "endingOffsets": json.dumps({source.topic: end}),
        "failOnDataLoss": "true",
        "kafka.isolation.level": "read_committed" if topology.settings.exactly_once else "read_uncommitted",
    }
    return session.read.format("kafka").options(**options).load()


def _timestamp(consumed: Consumed) -> Column:
    """Event time: a declared column, else the record's own timestamp; null where the record has none that is one."""
    if consumed.timestamp is None:
        return _records_own()
    types = {column.name: column.type for column in (*consumed.key, *consumed.value)}
    at = col(consumed.timestamp)
    if types[consumed.timestamp] != "bigint":
        declared = at.cast("timestamp")
    else:
        declared = F.timestamp_millis(F.when(at.between(-LAST_MILLIS, LAST_MILLIS), at))
    return F.when(F.col("_deleted"), _records_own()).otherwise(declared)  # a tombstone has no columns


def _records_own() -> Column:
    """What Kafka says of a record's time; null where it says nothing."""
    return F.when(F.unix_millis("_timestamp") >= 0, F.col("_timestamp"))


def _names(consumed: Consumed) -> list[str]:
    return list(dict.fromkeys(column.name for column in (*consumed.key, *consumed.value)))


def _schema(session: SparkSession, source: Source) -> StructType:
    """The landing's columns, as the landing of no records has them, and one that no record has when it lands."""
    kafka = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp"
    return landed(session.createDataFrame([], kafka), source, 0).schema.add(REDECODED, LongType())


def _columns(consumed: Consumed) -> dict[str, str]:
    return {column.name: str(column.type) for column in (*consumed.key, *consumed.value)}


def _definition(source: Source) -> dict[str, str]:
    """The columns, and what else the rows of a landing depend on, under names that no column has."""
    consumed, stream = source.consumed, source.kind == "stream"
    time = f"of {consumed.timestamp}" if consumed.timestamp is not None else "of Kafka's record"
    kind = "of a stream, whose keys may be null" if stream else "of a table, whose keys are whole"
    return _columns(consumed) | {TIME: time, KEY: ", ".join(column.name for column in consumed.key), KIND: kind}


def check_types(name: str, state: State, source: Source) -> None:
    """Refuse a declaration that gives a landed column another type, or its records another event time or key.

    A stream is refused that is declared as a table: its records without a whole key would be counted, and be no rows.
    The other way round they are in quarantine, from where `quarantine replay` brings them.

    Raises:
        PlanChanged: says which.
    """
    stored, declared = json.loads(state.properties[table.DEFINITION]), _definition(source)
    changed = {column: (stored[column], kind) for column, kind in declared.items() if stored.get(column, kind) != kind}
    ours = {what: changed.pop(what) for what in (TIME, KEY, KIND) if what in changed}
    if source.kind == "stream":
        ours.pop(KIND, None)
    if changed:
        raise PlanChanged(
            f"{name}: landed and declared types differ: "
            + ", ".join(f"{column} is {old}, declared {new}" for column, (old, new) in changed.items())
            + ". Declare a column of another name for the new type, "
            "or land the topic anew under another topology name"
        )
    if ours:
        raise PlanChanged(
            f"{name}: landed and declared records differ:\n"
            + "\n".join(f"- {what[1:]} {old}\n+ {what[1:]} {new}" for what, (old, new) in ours.items())
            + "\nThe rows so far have the one, and those to come would have the other. Declare it as it was"
            + (" (`to_table()` makes a table of a stream)" if KIND in ours else "")
            + ", land the topic under another topology name, or move the landing's folder away, run a tick, which "
            "lands what the topic still holds, and `tidetable rebuild --downstream` the tables that read it"
        )


def widen(session: SparkSession, path: str, state: State, source: Source) -> None:
    """Add columns that the declaration gained; older records have null there."""
    stored, declared = json.loads(state.properties[table.DEFINITION]), _definition(source)
    if stored | declared == stored:
        return
    table.add_columns(session, path, _columns(source.consumed))
    with commit.races():
        table.set_properties(session, path, {table.DEFINITION: json.dumps(stored | declared)})
