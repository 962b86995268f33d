"""Append a topic's records to its landing: records, offsets and fence in one commit.

Start and end offsets are given, so the same landing reads the same records. The position has the given end, not the
offset of the last record, because transaction markers and compaction leave gaps. Offsets are never reset: a topic that
was recreated, or whose retention removed records before they were landed, raises an error. With
`on_data_loss="ledger"` removed records raise none: the landing goes on with the first record that is left, and its
commit names the missing offsets.

A backlog is landed in slices, each a commit, so a landing that was interrupted goes on where it was. No table reads a
landing before its first landing has reached the offsets that were captured when it began (KIP-99): a stream that is
joined to a part of a table would miss rows for ever.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.types import LongType

from spark.engine.counts import kinds, so_far
from spark.engine.errors import OffsetsExpired, TopicRecreated, TopicUnordered
from spark.engine.inputs.frame_cache import frame_cache
from spark.engine.inputs.snapshot import REDECODED, version_of
from spark.engine.log import commit, table
from spark.engine.log.commit import until_committed
from spark.engine.log.landing_definition import check_landing, evolve_landing, landing_definition
from spark.engine.log.position import Cut, Gap, Position
from spark.engine.log.stored_table import StoredTable
from spark.engine.missed_tombstones import may_miss, missing, newest_of, tombstones
from spark.engine.ports import opened
from spark.engine.python_workers import check_workers
from spark.engine.schemas import check_limits, has_unknown_id, schemas_of
from spark.operators.algebra import col, cols
from spark.serdes.records import decode, decode_key
from spark.serdes.schemas import NONE
from spark.topology.envelope import CAPTURED
from spark.topology.formats import HEADERS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from spark.engine.inputs.frame_cache import FrameCache
    from spark.engine.log.stored_table import State
    from spark.engine.offsets import TopicOffsets
    from spark.engine.ports import Kafka, Ports
    from spark.serdes.part import Part
    from spark.serdes.schemas import Schemas
    from spark.topology.consumed import Consumed
    from spark.topology.topology import Source, Topology

TASK_RECORDS, TASK_PARTITIONS = 10_000, 64
"""How many records, and partitions with any, a task of a landing reads and writes into one file, at most; but a
partition is never split. Such a task takes a fraction of a second, so fewer of them would make nothing quicker."""

SLICE = 2_000_000  # offsets of all partitions that one commit of a landing reads: some 15 seconds on two cores

CONSUMER = {
    # Consumers are pooled. When a landing ends, one fetch is in flight, and the broker holds it for that long before it
    # serves what the next landing asks. With the default, 500 ms, that is half of a small landing. A landing of 1,000
    # partitions waits 1,000 times: its tasks look up the offsets of each after their first fetch.
    "kafka.fetch.max.wait.ms": "1",
    # Each partition has a consumer, and 64 are kept. Metrics that nobody reads cost much of a new one's CPU:
    # those that it registers with JMX, and those that it pushes to the broker (KIP-714).
    "kafka.auto.include.jmx.reporter": "false",
    "kafka.metric.reporters": "",
    "kafka.enable.metrics.push": "false",
}
"""Options of Spark's consumers."""

LAST_MILLIS = 2**62 // 1000  # a timestamp is microseconds in 64 bits, and so is the difference of two
REMOVED = "removed from the topic before they were landed"
COUNTS = "counts"
"""The name under which the records of a commit are counted while it writes them."""


@dataclass(frozen=True)
class Landed:
    """The result of landing a topic: the offsets from `start` to `end` by partition, and the number of `records`.

    Of the records, `errors` are in quarantine and `tombstones` have no value. `gaps` are the offsets that it found
    missing; the position has those of all commits. `cleaned` counts the tombstones that it wrote for those that
    compaction had removed; `records` does not include them. `left` is the number of offsets up to the cut that later
    commits of the same landing read: 0 at its end.
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
    left: int = 0

    def and_then(self, later: Landed) -> Landed:
        """Return the result of this landing and a later one that began where it ended."""
        return replace(
            later,
            outcome=self.outcome,
            start=later.start | self.start,
            records=self.records + later.records,
            errors=self.errors + later.errors,
            tombstones=self.tombstones + later.tombstones,
            gaps=(*self.gaps, *later.gaps),
            cleaned=self.cleaned + later.cleaned,
        )


def capture(kafka: Kafka, topology: Topology) -> Cut:
    """Return the cut: the end offsets of every topic of the topology, read once."""
    return _ends(kafka, topology, topology.settings.exactly_once)


def written(kafka: Kafka, topology: Topology) -> Cut:
    """Return the end offsets of every topic including open transactions; empty if cuts include them anyway.

    Call this before `capture`: then the offsets between the two are of transactions that were open at the cut.
    """
    return _ends(kafka, topology, committed=False) if topology.settings.exactly_once else {}


def _ends(kafka: Kafka, topology: Topology, committed: bool) -> Cut:
    ends = kafka.end_offsets([source.topic for source in topology.sources], committed)
    return {f"{kafka.cluster_id()}/{topic}": offsets for topic, offsets in ends.items()}


def land(
    ports: Ports,
    topology: Topology,
    source: Source,
    cut: Cut,
    run: str,
    say: Callable[[Landed], None] | None = None,
) -> Landed:
    """Land a topic up to a cut. If the landing has reached it, this commits nothing and starts no Spark session.

    A commit reads at most `SLICE` offsets. `say` is called after every commit but the last, with the result so far.

    Raises:
        OffsetsExpired: records were removed from the topic before they were landed.
        TopicRecreated: the topic was deleted and created again, or lost its newest records.
        TopicUnordered: a Debezium topic with several partitions is declared with `truncate=True`.
        PlanChanged: a landed column is declared with a type that is not wider, or records with another event time or
            key.
        NotCommitted: other runs committed first, several times.
        RegistryUnavailable: the topic has a schema registry, and it does not answer.
        SchemaMismatch: the schemas of the topic cannot be read as declared.
        EngineUnlimited: the topic is in Avro, and the engine does not limit the lengths in its records.
        EngineWithoutPython: the topic is in Protobuf, and the engine cannot decode it.
    """
    began, now = time.monotonic(), round(time.time() * 1000)
    landing = StoredTable.of(ports.lakehouse, topology.name, source.landing)
    topic, key = f"{ports.kafka.cluster_id()}/{source.topic}", [column.name for column in source.consumed.key]

    envelope = source.consumed.envelope
    if envelope is not None and envelope.truncate and len(cut[topic].offsets) > 1:
        raise TopicUnordered(
            f"topic {source.topic} has {len(cut[topic].offsets)} partitions, and is declared with truncate=True at "
            f"{source.line}: an event that empties the table has no order among the records of other partitions. Write "
            f"the table into a topic of one partition, or leave out truncate=True"
        )
    scan = False  # whether the records have a schema id that their subject does not have

    def once() -> Landed | None:
        nonlocal scan
        state = landing.state()
        if state is not None:
            check_landing(landing.name, state, source)  # even without new records: else tables are rebuilt in vain
        start, until, gaps = _range(ports.kafka, topology, source, state, topic, cut[topic])
        if state is not None and state.position.n > 0 and start == until and not gaps:
            return Landed(landing.name, "idle", start, until, 0, 0, 0, state.version, state.position, 0.0)
        end = _slice(start, until)
        left = sum(until.values()) - sum(end.values())
        with opened(ports.engine) as session:
            # Before the landing is created: it would keep a declaration that its schemas refuse.
            check_limits(ports, session, source)
            check_workers(ports, session, source)
            schemas = schemas_of(ports, source, _read(session, ports.kafka, topology, source, start, end), scan=scan)
            if state is None:
                definition = json.dumps(landing_definition(source))
                state = table.create(session, landing, _schema(session, source), run, definition, key)
                if state.position.n > 0:
                    return None  # another run has landed meanwhile: start at its offsets
            no_rows = session.read.format("delta").load(landing.path).where("false")
            if not commit.close_other_epochs(no_rows, landing, state):
                return None
            if not evolve_landing(session, landing, state, source, run):
                return None
            table.keep_statistics(session, landing, state, key)
            table.keep_format(session, landing, state)
            with frame_cache(session) as cache:
                records, lost = _records(cache, ports, topology, source, state, start, end, now)
                cleaned = 0 if lost is None else lost.count()
                was = state.position
                bootstrap = was.bootstrap if was.n else until
                if all(end.get(partition, 0) >= offset for partition, offset in bootstrap.items()):
                    bootstrap = {}
                # Between two slices of a first landing, a tombstone cannot vanish unseen; later, since the last cut.
                is_read = left == 0 or was.n == 0 or bool(was.bootstrap)
                position = Position(
                    table=landing.name,
                    epoch=was.epoch,
                    n=was.n + 1,
                    run=run,
                    cut={topic: replace(was.cut.get(topic, cut[topic]), offsets=end)},
                    inputs={},
                    data_version=state.data_version,
                    floor=was.floor if was.n else {p: o for p, o in start.items() if o > 0},
                    bootstrap=bootstrap,
                    dropped=was.dropped,
                    release=was.release,
                    gaps=(*was.gaps, *gaps),
                    read_at=now if is_read else was.read_at,
                    cleaned=was.cleaned + cleaned,
                    counts=so_far(landing, state),
                )
                ahead = topology.settings.message_timestamp_after_max_ms
                rows = landed(records.coalesce(_tasks(start, end)), source, position.n, ahead, schemas).observe(
                    COUNTS,  # an `Observation` would analyze the plan once more, to ask whether it is a stream
                    F.count(F.lit(1)).alias("records"),
                    F.count("_error").alias("errors"),
                    F.count(F.expr("CASE WHEN _deleted AND _error IS NULL THEN 1 END")).alias("tombstones"),
                )
                batch = rows if lost is None else rows.unionByName(lost, allowMissingColumns=True)
                try:
                    committed = commit.append(batch, landing, position)
                except PySparkException as error:
                    if not scan and has_unknown_id(error):
                        scan = True
                        return None
                    if not _expiring(ports.kafka, source, cut[topic], start, end):
                        raise
                    return None  # records were removed while they were read: the next try finds the gap
            if committed is None:
                return None
            # Nothing was observed if the connection broke after the commit: Delta skipped the repeated write.
            counts = observed(batch)
            if not counts:
                counts = kinds(landing.path, committed.version, position.n)
                counts |= {name: counts[name] - cleaned for name in ("records", "tombstones")}
            return Landed(
                landing.name,
                "landed",
                start,
                end,
                counts["records"],
                int(counts.get("errors", 0)),
                int(counts.get("tombstones", 0)),
                committed.version,
                position,
                0.0,
                gaps,
                cleaned,
                left,
            )

    total: Landed | None = None
    while True:
        done = until_committed(landing.name, once, f"is more than one tick of {topology.name} running?")
        total = done if total is None else total.and_then(done)
        total = replace(total, seconds=time.monotonic() - began)
        if total.left == 0:
            return total
        if say is not None:
            say(total)


def observed(written: DataFrame) -> dict[str, int]:
    """Return the counts that the engine observed while it wrote a frame; empty if it wrote nothing."""
    info = written.executionInfo
    return {} if info is None else dict(info.flows).get(COUNTS, {})


def landed(
    records: DataFrame,
    source: Source,
    batch: int,
    ahead: int | None = None,
    schemas: Mapping[Part, Schemas] = NONE,
) -> DataFrame:
    """Return records of Spark's Kafka source as rows of the landing; those with an `_error` are in quarantine.

    Columns: the key and value columns of the declaration, `_timestamp` (event time), `_topic`, `_partition`, `_offset`,
    `_deleted`, `_error`, `_key` and `_value` (the raw bytes, of a record in quarantine only), `_headers` (the same, if
    the declaration reads headers), `_batch`. Of a Debezium topic also `CAPTURED`.

    A record of a table is in quarantine also if a part of its key is null: no row could hold it. For a stream, missing
    key columns are read from the value.

    Args:
        records: the records, with the columns of Spark's Kafka source; `headers` only if the declaration reads them.
        source: the declaration of the topic.
        batch: the number of the landing's commit.
        ahead: how many milliseconds a record may be ahead of the clock; None for no limit.
        schemas: by part, the schemas of a registry that the records name.
    """
    consumed = source.consumed
    raw = records.select(
        F.col("key").alias("_key"),
        F.col("value").alias("_value"),
        F.col("timestamp").alias("_timestamp"),
        F.col("topic").alias("_topic"),
        F.col("partition").alias("_partition"),
        F.col("offset").alias("_offset"),
        *([F.col("headers").alias("_headers")] if consumed.reads_headers else []),
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
        *([F.when(broken, F.col("_headers")).alias("_headers")] if consumed.reads_headers else []),
        F.lit(batch).cast("bigint").alias("_batch"),
    ]
    if consumed.envelope is not None:
        ours += cols(CAPTURED)
    of_stream = source.kind == "stream"
    decoded = decode(raw, consumed, schemas, key_from_value=of_stream)
    if not of_stream:
        decoded = decoded.withColumn("_error", F.coalesce("_error", _without_key(consumed)))
    if ahead is not None:
        decoded = decoded.withColumn("_error", F.coalesce("_error", _too_far(_timestamp(consumed), ahead)))
    return decoded.select(*cols(_names(consumed)), *ours)


def _too_far(at: Column, ahead: int) -> Column:
    """Return the error of an event time that is more than `ahead` milliseconds ahead of the clock; null if none."""
    latest = time.time_ns() // 1_000_000 + ahead
    late = f" is more than {ahead} ms ahead of the clock (message_timestamp_after_max_ms)"
    return F.when(
        at > F.timestamp_millis(F.lit(latest)), F.concat(F.lit("the timestamp "), at.cast("string"), F.lit(late))
    )


def _without_key(consumed: Consumed) -> Column:
    """Return the error of a record of a table whose key, or a part of it, is null; null if none."""
    missing = F.greatest(F.lit(False), *(col(column.name).isNull() for column in consumed.key))
    if consumed.envelope is not None:
        missing &= F.col("_truncated").isNull()  # it changes every row, and has no key
    key = ", ".join(column.name for column in consumed.key)
    reason = f"the key ({key}) is null, or a part of it is, and no row of a table has such a key"
    return F.when(missing, F.lit(reason))


def _range(
    kafka: Kafka, topology: Topology, source: Source, state: State | None, topic: str, want: TopicOffsets
) -> tuple[dict[int, int], dict[int, int], tuple[Gap, ...]]:
    """Return the start and end offsets by partition, and the gaps before them.

    A new partition starts at 0, a new landing at the first offset of every partition.

    Raises:
        OffsetsExpired: records were removed before they were landed, and the topology does not allow that.
        TopicRecreated: the topic is another one, or lost its newest records.
    """
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
    # A broker with old metadata omits a new partition from its answer: the partition keeps its offset.
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
        now = kafka.end_offsets([source.topic], read_committed=False)[source.topic].offsets  # the log end
        if any(offset > now.get(partition, 0) for partition, offset in shrunk.items()):
            raise TopicRecreated(
                f"topic {source.topic} ends at {now}, before the offsets {shrunk} that were landed: "
                f"its newest records are gone"
            )
    return start, {partition: max(offset, want.offsets.get(partition, 0)) for partition, offset in start.items()}, gaps


def _slice(start: Mapping[int, int], until: Mapping[int, int]) -> dict[int, int]:
    """Return the end of the next slice: the same part of the backlog of each partition."""
    count = sum(until.values()) - sum(start.values())
    if count <= SLICE:
        return dict(until)
    return {p: start[p] + -(-(offset - start[p]) * SLICE // count) for p, offset in until.items()}


def _first(kafka: Kafka, source: Source, want: TopicOffsets) -> dict[int, int]:
    """Return the first offset that each partition of a topic has now.

    Raises:
        TopicRecreated: the topic has another id than `want`.
    """
    now = kafka.beginning_offsets([source.topic])[source.topic]
    if now.topic_id != want.topic_id:
        raise _recreated(source, want.topic_id, now.topic_id)
    return now.offsets


def _recreated(source: Source, was: str, now: str) -> TopicRecreated:
    return TopicRecreated(
        f"topic {source.topic} was deleted and created again: its id is {now}, the landing holds offsets of {was}, and "
        f"the two would mix, whatever on_data_loss says. Land it under another topology name, or move "
        f"{source.landing} away to start over"
    )


def _expiring(kafka: Kafka, source: Source, want: TopicOffsets, start: dict[int, int], end: dict[int, int]) -> bool:
    """Return whether records between two offsets have been removed."""
    first = _first(kafka, source, want)
    return any(offset < min(first.get(partition, 0), end[partition]) for partition, offset in start.items())


def _records(
    cache: FrameCache,
    ports: Ports,
    topology: Topology,
    source: Source,
    state: State,
    start: dict[int, int],
    end: dict[int, int],
    now: int,
) -> tuple[DataFrame, DataFrame | None]:
    """Return a topic's records between two offsets, and landing rows for tombstones that compaction removed, if any.

    The records have the columns of Spark's Kafka source.
    """
    session, batch = cache.session, state.position.n + 1
    records = _read(session, ports.kafka, topology, source, start, end)
    newest = newest_of(topology, source)
    if not newest or not may_miss(ports.kafka, source, state.position, now):
        return records, None
    ranges = cache.cache(missing(records, start, end))
    if ranges.isEmpty():
        return records, None
    known = ports.kafka.beginning_offsets([source.topic])[source.topic].offsets
    first = {partition: min(known.get(partition, 0), offset) for partition, offset in end.items()}
    whole = _read(session, ports.kafka, topology, source, first, end)
    # All ids are looked up: a key that did not decode would count as removed, and its row would be deleted.
    content = _keys(whole, source.consumed, schemas_of(ports, source, whole, scan=True)["key"])
    landing = version_of(session, ports.lakehouse.table(topology.name, source.landing), state.version)
    versioned = any(latest.history is not None for latest in newest)
    lost = tombstones(cache, source, versioned, landing, content, first, ranges, batch)
    return records, None if lost.isEmpty() else lost


def _tasks(start: Mapping[int, int], end: Mapping[int, int]) -> int:
    """Return how many tasks land the records between two offsets, each into a file of its own.

    Spark's Kafka source has one for every partition, and each file is listed by every reader of the table from then on.
    """
    counts = [offset - start[partition] for partition, offset in end.items() if offset > start[partition]]
    return max(1, -(-sum(counts) // TASK_RECORDS), -(-len(counts) // TASK_PARTITIONS))


def _keys(records: DataFrame, consumed: Consumed, schemas: Schemas) -> DataFrame:
    """Return the key columns of records, without decoding their values: those may be broken."""
    decoded = decode_key(records.select(F.col("key").alias("_key")), consumed, schemas)
    whole = F.col("_key_error").isNull()
    fields = [(column.name, F.col("_key_row").getField(column.name)) for column in consumed.key]
    return decoded.select(*(F.when(whole, field).alias(name) for name, field in fields))


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
        "includeHeaders": str(source.consumed.reads_headers).lower(),
        "kafka.isolation.level": "read_committed" if topology.settings.exactly_once else "read_uncommitted",
    }
    return session.read.format("kafka").options(**options, **CONSUMER).load()


def _timestamp(consumed: Consumed) -> Column:
    """Return the event time: the declared column, else the record's own timestamp; null if it is not a valid time.

    Of a Debezium topic it is the time of the change in the database, which a tombstone does not have.
    """
    if consumed.envelope is not None:
        return F.col("_at")
    if consumed.timestamp is None:
        return _records_own()
    types = {column.name: column.type for column in consumed.columns}
    at = col(consumed.timestamp)
    if types[consumed.timestamp] != "bigint":
        declared = at.cast("timestamp")
    else:
        declared = F.timestamp_millis(F.when(at.between(-LAST_MILLIS, LAST_MILLIS), at))
    return F.when(F.col("_deleted"), _records_own()).otherwise(declared)  # a tombstone has no columns


def _records_own() -> Column:
    """Return the record's Kafka timestamp; null if it has none."""
    return F.when(F.unix_millis("_timestamp") >= 0, F.col("_timestamp"))


def _names(consumed: Consumed) -> list[str]:
    return list(dict.fromkeys(column.name for column in consumed.columns))


def _schema(session: SparkSession, source: Source) -> StructType:
    """Return the schema of a landing: that of `landed`, and `_redecoded`, which is null until a record is redecoded."""
    kafka = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp"
    kafka += f", headers {HEADERS}"
    return landed(session.createDataFrame([], kafka), source, 0).schema.add(REDECODED, LongType())
