"""Kafka Streams beside us: the application of `Shop.java` in a JVM of its own, and its output topic as a table."""

from __future__ import annotations

import io
import os
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pyarrow as pa  # type: ignore[import-untyped]  # has no types of its own
import pyarrow.json  # type: ignore[import-untyped]
from confluent_kafka import OFFSET_BEGINNING, KafkaError, TopicPartition

from resources.jars import jars
from resources.java import java
from tests.benchmarks.measure import cpu

if TYPE_CHECKING:
    from resources.cluster import Setting
    from resources.kafka import Kafka

SOURCE = Path(__file__).with_name("Shop.java")
PARTITIONS = 4
LOOK = 0.02  # seconds between two looks at the end of the output
QUIET = 3.0  # seconds without a new record after which the output is complete; the comparison shows if it was not
PATIENCE = 60.0  # seconds without a new record after which one that is missing will not come
AT_ONCE = 10_000  # records of one read

Ends = dict[int, int]
"""By partition, the last stable offset: the first that a reader of committed records does not see."""
Place = tuple[int, int]
"""Partition and offset."""

ROWS = {
    "customer_id": pa.int64(),
    "amount": pa.decimal128(12, 2),
    "quantity": pa.int32(),
    "status": pa.string(),
    "placed_at": pa.timestamp("us", "UTC"),
    "note": pa.string(),
    "name": pa.string(),
    "country": pa.string(),
}
"""The columns of a joined row."""
AS_TEXT = ("amount", "placed_at")
"""Columns that are text in JSON."""


@dataclass(frozen=True)
class Cost:
    """Seconds on the clock, CPU seconds of one side's own processes, and of the broker."""

    seconds: float
    cpu: float
    broker: float


def compiled(folder: Path) -> list[str]:
    """The command of the application, compiled into a folder. It needs a JDK."""
    path = [*map(str, jars("streams")), *(str(jar) for jar in jars("broker") if jar.name.startswith("slf4j-simple"))]
    compiler = [str(java()), "-m", "jdk.compiler/com.sun.tools.javac.Main", "-d", str(folder)]
    subprocess.run([*compiler, "-cp", os.pathsep.join(path), str(SOURCE)], check=True)
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
    return [str(java()), "-Xmx1g", quiet, "-cp", os.pathsep.join([str(folder), *path]), SOURCE.stem]


class Application:
    """A JVM that runs the application when it is asked to."""

    def __init__(self, command: list[str], servers: str, log: Path) -> None:
        self._command, self._log = [*command, servers], log

    def __enter__(self) -> Self:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        return self

    def __exit__(self, *raised: object) -> None:
        self._process.kill()
        self._process.communicate()

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def obey(self, *words: str) -> None:
        """Do a command of `Shop.java`, and wait until it is done."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(" ".join(words) + "\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "done\n", f"Kafka Streams ended: {self._log.read_text()[-4000:]}"


@dataclass(frozen=True)
class Moment:
    """When the output had these ends, and the CPU seconds of application and broker so far."""

    at: float
    ends: Ends
    cpu: float
    broker: float


@dataclass
class Output:
    """The output topic, read as a user reads it: committed records, the newest value of each key."""

    kafka: Kafka
    topic: str
    newest: dict[int, tuple[bytes, int]] = field(default_factory=dict)
    """By key: value, and timestamp in milliseconds."""
    _next: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(PARTITIONS), OFFSET_BEGINNING))

    def create(self) -> Self:
        """Create the topic."""
        self.kafka.create_topic(self.topic, PARTITIONS)
        return self

    def ends(self) -> Ends:
        """The ends now."""
        return dict(self.kafka.end_offsets([self.topic])[self.topic].offsets)

    def watch(self, application: int, broker: int) -> Watch:
        """Begin to watch the output: the clock runs."""
        return Watch(self, application, broker)

    def read(self) -> dict[int, Place]:
        """Read on to the end. By key: the place of its last new record."""
        own: dict[str, Setting] = {"group.id": "output", "enable.partition.eof": True}
        consumer = self.kafka.consumer(**own, **{"isolation.level": "read_committed"})
        consumer.assign([TopicPartition(self.topic, *spot) for spot in self._next.items()])
        found: dict[int, Place] = {}
        left = set(self._next)
        while left:
            for message in consumer.consume(AT_ONCE, 1.0):
                error, partition, offset = message.error(), message.partition() or 0, message.offset() or 0
                if error is not None:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    left.discard(partition)
                    continue
                key, value = int(message.key() or b""), message.value()
                found[key] = partition, offset
                self._next[partition] = offset + 1
                if value is None:
                    self.newest.pop(key, None)
                else:
                    self.newest[key] = value, message.timestamp()[1]
        consumer.close()
        return found

    def table(self) -> pa.Table:
        """The rows in the order of their keys: `order_id`, those of `ROWS`, `_timestamp` in milliseconds."""
        keys = sorted(self.newest)
        schema = pa.schema({name: pa.string() if name in AS_TEXT else of for name, of in ROWS.items()})
        lines = io.BytesIO(b"\n".join(self.newest[key][0] for key in keys))
        read = pyarrow.json.read_json(lines, parse_options=pyarrow.json.ParseOptions(explicit_schema=schema))
        rows = read.select(list(ROWS)).cast(pa.schema(ROWS)).add_column(0, "order_id", pa.array(keys, pa.int64()))
        return rows.append_column("_timestamp", pa.array([self.newest[key][1] for key in keys], pa.int64()))


class Watch:
    """The ends of an output over time, so that it need not be read while it is measured."""

    def __init__(self, output: Output, application: int, broker: int) -> None:
        self._output, self._pids = output, (application, broker)
        self.moments = [self._moment(output.ends())]

    def look(self) -> None:
        """Note new ends."""
        ends = self._output.ends()
        if ends != self.moments[-1].ends:
            self.moments.append(self._moment(ends))

    def complete(self, least: int) -> dict[int, Place]:
        """Wait until at least so many keys have a new record, and no further one comes. By key: its last place."""
        found: dict[int, Place] = {}
        read = self.moments[0].ends
        while len(found) < least:
            time.sleep(LOOK)
            self.look()
            quiet = time.time() - self.moments[-1].at
            assert quiet < PATIENCE, (
                f"Kafka Streams has sent {len(found)} of {least} keys, and no more for {quiet:.0f} s"
            )
            if self.moments[-1].ends != read and quiet > QUIET:
                read = self.moments[-1].ends
                found |= self._output.read()
        self.look()
        return found

    def visible(self, place: Place) -> Moment:
        """The first moment at which a record was visible."""
        partition, offset = place
        return next(moment for moment in self.moments if moment.ends[partition] > offset)

    def last(self, places: dict[int, Place]) -> Moment:
        """The moment at which the last of these records was visible."""
        return max(map(self.visible, dict(sorted(places.values())).items()), key=lambda moment: moment.at)

    def cost(self, places: dict[int, Place]) -> Cost:
        """The cost until then."""
        first, last = self.moments[0], self.last(places)
        return Cost(last.at - first.at, last.cpu - first.cpu, last.broker - first.broker)

    def _moment(self, ends: Ends) -> Moment:
        return Moment(time.time(), ends, *map(cpu, self._pids))
