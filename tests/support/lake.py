"""What tests do to topics, and how they look at tables: without Spark, by another reader of Delta than the engine."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa  # type: ignore[import-untyped]  # has no types of its own
from confluent_kafka import OFFSET_BEGINNING, KafkaError, TopicPartition
from deltalake import DeltaTable, QueryBuilder

from resources.lakehouse import Lakehouse
from spark.engine.audit import Audited, Unprovable, audits
from spark.engine.land import capture, land
from spark.engine.log.position import Gated
from spark.engine.log.stored_table import State, StoredTable
from spark.engine.step import step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from arro3.core import RecordBatchReader
    from confluent_kafka import Producer
    from pyspark.sql import DataFrame, SparkSession

    from resources.cluster import Setting
    from resources.kafka import Kafka
    from spark.engine.attempt import Stepped
    from spark.engine.land import Landed
    from spark.engine.ports import Ports
    from spark.topology import Topology

Value = str | int | float | bool | bytes | None
Row = dict[str, Value]
Key = Value | tuple[Value, ...]


@dataclass(frozen=True)
class Record:
    """A record to send: JSON of key and value, or the bytes given; no value is a tombstone."""

    key: object = None
    value: Mapping[str, object] | bytes | None = None
    partition: int = 0
    timestamp: int = 1_700_000_000_000  # milliseconds


def until(done: Callable[[], object], seconds: float = 60) -> None:
    """Wait for what a broker, or a server, is about to do."""
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, f"it did not in {seconds} s"
        time.sleep(0.1)


def send(kafka: Kafka, topic: str, *records: Record) -> None:
    """Send records, and wait until the broker has them."""
    producer = kafka.producer()
    for record in records:
        producer.produce(
            topic,
            key=_bytes(record.key),
            value=_bytes(record.value),
            partition=record.partition,
            timestamp=record.timestamp,
        )
    assert producer.flush(30) == 0


def _bytes(part: object) -> bytes | None:
    return part if part is None or isinstance(part, bytes) else json.dumps(part).encode()


@contextmanager
def transaction(kafka: Kafka, topic: str, *values: str) -> Iterator[Producer]:
    """A transaction that holds some records, and is still open."""
    settings: dict[str, str | int] = {
        "transactional.id": f"{topic}-{values}",
        "transaction.timeout.ms": 600_000,
    }
    producer = kafka.producer(**settings)
    producer.init_transactions(30)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, key=b"1", value=f'{{"name": "{value}"}}'.encode())
    assert producer.flush(30) == 0
    yield producer


@dataclass(frozen=True)
class Told:
    """A record as a reader of the topic has it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: dict[str, str]

    @property
    def change(self) -> tuple[Any, Any]:
        """Key and value, from JSON."""
        return json.loads(self.key or b"null"), None if self.value is None else json.loads(self.value)


def received(kafka: Kafka, topic: str, committed: bool = True) -> list[Told]:
    """Every record that a topic still has, in the order of each partition."""
    found = []
    level = "read_committed" if committed else "read_uncommitted"
    reading: dict[str, Setting] = {"group.id": "reader", "enable.partition.eof": True, "isolation.level": level}
    consumer = kafka.consumer(**reading)
    partitions = kafka.end_offsets([topic])[topic].offsets
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
    left = set(partitions)
    while left:
        message = consumer.poll(10)
        assert message is not None
        error = message.error()
        if error is not None:
            assert error.code() == KafkaError._PARTITION_EOF
            left.discard(message.partition() or 0)
            continue
        headers = {
            name: value.decode() for name, value in dict(message.headers() or []).items() if isinstance(value, bytes)
        }
        place = message.partition() or 0, message.offset() or 0
        found.append(Told(*place, message.key(), message.value(), message.timestamp()[1], headers))
    consumer.close()
    return found


def land_all(ports: Ports, topology: Topology, run: str = "test") -> list[Landed]:
    """Land every topic to its end."""
    cut = capture(ports.kafka, topology)
    return [land(ports, topology, source, cut, run) for source in topology.sources]


def step_all(ports: Ports, topology: Topology, *names: str, run: str = "test") -> dict[str, Stepped]:
    """Step some tables, or all, in topological order."""
    tables = [table for table in topology.tables if not names or table.name in names]
    return {table.name: step(ports, topology, table, run) for table in tables}


def audited(ports: Ports, topology: Topology, *names: str) -> list[Audited | Unprovable]:
    """Every version of some tables that can be tried, as an audit of all versions finds it; not those it leaves out."""
    found = [one for name in names for one in audits(ports, topology, topology.table(name))]
    return [one for one in found if isinstance(one, Audited) or one.until is None]


def path(ports: Ports, topology: Topology, name: str) -> str:
    """Where a table is."""
    return ports.lakehouse.table(topology.name, name)


def state(ports: Ports, topology: Topology, name: str) -> State:
    """A table as its log tells it."""
    found = StoredTable(f"{topology.name}/{name}", path(ports, topology, name)).state()
    assert found is not None
    return found


def listed(where: str, version: int | None = None) -> list[Row]:
    """All rows of a Delta table; timestamps in milliseconds."""
    return plain(QueryBuilder().register("t", DeltaTable(where, version=version)).execute("SELECT * FROM t"))


def plain(read: RecordBatchReader) -> list[Row]:
    """What deltalake reads, row by row; timestamps in milliseconds."""
    found = pa.table(read.read_all())
    columns = [_plain(column) for column in found.columns]
    return [dict(zip(found.column_names, values, strict=True)) for values in zip(*columns, strict=True)]


def _plain(column: pa.ChunkedArray) -> list[Value]:
    """The values of a column; Python's own times end with the year 9999."""
    values: list[Value] = (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist()
    if not pa.types.is_timestamp(column.type):
        return values
    parts = {"ms": 1, "us": 1_000}[column.type.unit]  # the time of a commit is in milliseconds
    return [round(value / parts) if isinstance(value, int) else None for value in values]


def rows(
    ports: Ports, topology: Topology, name: str, columns: Sequence[str] = (), version: int | None = None
) -> dict[Key, Row]:
    """The rows of a table by key, with some columns of each, or all but the key and ours; a key twice fails."""
    key = topology.table(name).plan.key
    stored = listed(path(ports, topology, name), version)
    found: dict[Key, Row] = {}
    for row in stored:
        its = tuple(row[part] for part in key)
        names = columns or [column for column in row if column not in key and not column.startswith("_")]
        found[its[0] if len(key) == 1 else its] = {column: row[column] for column in names}
    assert len(found) == len(stored), f"{name} has a key twice"
    return found


def records(ports: Ports, topology: Topology, topic: str) -> list[Row]:
    """The records of a landing, by partition and offset."""
    found = listed(path(ports, topology, topology.source(topic).landing))
    return sorted(found, key=lambda row: (row["_partition"], row["_offset"]))


def versions(ports: Ports, topology: Topology, name: str) -> int:
    """The newest version of a table."""
    return DeltaTable(path(ports, topology, name)).version()


def vacuum(session: SparkSession, where: str) -> None:
    """Remove the files that the newest version of a table does not need, as it is when they are a week old."""
    session.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    session.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", "2")  # tasks; 10,000 take a minute
    session.sql(f"VACUUM delta.`{where}` RETAIN 0 HOURS").collect()


def forget(session: SparkSession, where: str) -> None:
    """Compact, and remove at once whatever the newest version does not need."""
    session.sql(f"OPTIMIZE delta.`{where}`").collect()
    vacuum(session, where)


def copied(ports: Ports, topology: Topology, to: Path) -> Ports:
    """The same world with a copy of the topology's tables: what is done to the copy, the original does not see."""
    shutil.copytree(path(ports, topology, ""), to / topology.name)
    return replace(ports, lakehouse=Lakehouse(str(to)))


@dataclass(frozen=True)
class Watching:
    """A gate that does with the rows of a step what a test wants, and finds nothing wrong with those that are there."""

    watch: Callable[[DataFrame], None]
    digest: str = "watching"
    watch_all: Callable[[DataFrame], None] = lambda _: None

    def __call__(self, batch: DataFrame, table: Callable[[], DataFrame], known: Gated) -> Gated:
        """Watch."""
        self.watch(batch)
        self.watch_all(table())
        return known

    def look(self, rows: DataFrame) -> dict[str, int | None]:  # noqa: ARG002  # a gate's
        """Nothing fails."""
        return {}


@dataclass(frozen=True)
class NoEngine:
    """An engine that must not be needed."""

    width = 2
    has_replace_on = False

    def session(self) -> SparkSession:
        """Fail."""
        raise AssertionError("an engine session was opened")

    def plan_for(self, session: SparkSession, size: int) -> None:
        """Nothing: there is no session."""
