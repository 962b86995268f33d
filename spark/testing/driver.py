"""The driver: records wait until somebody looks; then all their batches are computed at once, each as a world."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from difflib import ndiff
from typing import TYPE_CHECKING, Literal

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from spark.serdes.serde import serde
from spark.testing.rows import Rows
from spark.testing.run import Piped, Run, check_decoded, decoded, quick, sent, sortable, without_schemas
from spark.testing.steps import Counted
from spark.testing.surely import surely_decodes
from spark.testing.topics import TestInputTopic, TestOutputTopic, duration
from spark.topology.errors import Place, TopologyError, did_you_mean, user_line
from spark.topology.nodes import Latest, Records, Scan
from spark.topology.topology import Consumed, Source, Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from spark.testing.topics import Duration, TestRecord, Timestamp
    from spark.testing.worlds import Emitted, Row, Stored
    from spark.topology.columns import Column
    from spark.topology.topology import Topology

FRAME = 20_000
"""The greatest number of rows times batches in a frame, as far as it is known before: more batches take several."""
BATCHES = 250
"""The greatest number of batches in a frame."""


class TopologyTestDriver:
    """Pipes records through a topology and returns its tables, like Kafka Streams' driver of the same name.

    A batch is what one step of a table reads: "each" record alone, "all" records piped since the last read, or a
    number of records. The content of a topology's tables must not depend on it.

    A topic in Avro or JSON Schema is piped, and read, as one in JSON with the same columns: a test needs no schema
    registry.

    A read-only table is piped as a topic of its name is: a value is the new row of its key, and None deletes it.

    Example:
        driver = TopologyTestDriver(topology)
        driver.pipe("customers", key=7, value={"name": "Ada"})
        driver.pipe("orders", key=1, value={"customer_id": 7, "amount": "120.00"})
        assert driver.table("orders_enriched")[0]["name"] == "Ada"
    """

    def __init__(
        self, topology: Topology, batch: Literal["each", "all"] | int = "each", session: SparkSession | None = None
    ) -> None:
        """Start with empty topics.

        Args:
            topology: the topology to test.
            batch: how many records make a batch.
            session: the Spark session to compute with; by default `SparkSession.builder.getOrCreate()`.

        Raises:
            ValueError: the batch is neither "each" nor "all" nor a number from 1.
        """
        if batch not in ("each", "all") and (not isinstance(batch, int) or batch < 1):
            raise ValueError(f'batch is {batch!r}; write "each", "all", or a number from 1')
        self._topology = _with_leaders(topology)
        self._size = 1 if batch == "each" else None if batch == "all" else int(batch)
        self._session = session if session is not None else _own_session()
        self._ahead = topology.settings.message_timestamp_after_max_ms
        self._piped: list[Piped] = []
        self._waiting: list[list[Piped]] = []
        self._offsets: Counter[tuple[str, int]] = Counter()
        self._batches = 0
        self._tables: dict[str, Stored] = {}
        self._emitted: dict[str, list[Emitted]] = {table.name: [] for table in self._topology.tables}

    def pipe(
        self,
        topic: str,
        *,
        key: object,
        value: object,
        timestamp: int = 0,
        partition: int = 0,
        headers: Mapping[str, str | bytes | None] | None = None,
    ) -> None:
        """Send a record. It waits until something is read from the driver.

        Args:
            topic: one of the topology's topics, or the name of a read-only table.
            key: a value that the topic's format can hold, or bytes, sent unchanged; None for a record without a key.
            value: the same; None for a tombstone.
            timestamp: milliseconds since 1970.
            partition: the partition's number.
            headers: text, bytes or None by name, for a topic whose headers are read: by `headers=` or as an envelope.

        A record that does not decode is an error. Bytes, which may be anything, and a record without a key are not:
        they go into quarantine, as they do when they land.

        Raises:
            TopologyError: the topology has no such topic; the timestamp or partition is no valid number; a header is
                no text; the format cannot hold the key or value; or they do not have their declared types.
        """
        place = Place(f"pipe({topic!r})", user_line())
        source = self._source(topic, place)
        for what, number in (("timestamp", timestamp), ("partition", partition)):
            if not isinstance(number, int) or isinstance(number, bool):
                raise place.mistake(f"{what} is {number!r}", f"write {what}= as a whole number")
        if partition < 0:
            raise place.mistake(f"partition is {partition}", "write a number from 0")
        for name, text in (headers or {}).items():
            if not isinstance(name, str) or not isinstance(text, str | bytes | None):
                raise place.mistake(f"the header {name!r} is {text!r}", "write text, bytes or None, by a name")
        consumed = source.consumed
        parts = (consumed.key_format, key, consumed.key), (consumed.format, value, consumed.value + consumed.again)
        sent = [_bytes(*part, place) for part in parts]
        offset = self._offsets[topic, partition]
        self._offsets[topic, partition] += 1
        names = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")
        pairs = [
            {"key": name, "value": text.encode() if isinstance(text, str) else text}
            for name, text in (headers or {}).items()
        ]
        record: Row = dict(zip(names, (*sent, topic, partition, offset, timestamp, pairs or None), strict=True))
        on_purpose = key is None or isinstance(key, bytes) or isinstance(value, bytes)
        piped = Piped(source, record, place.line, None if on_purpose else place)
        if not on_purpose and not surely_decodes(source, key, value, timestamp, self._ahead):
            with quick(self._session, self._topology):
                [row] = decoded(self._session, source, [record], self._ahead).collect()
            check_decoded(piped, row["_error"])
        self._piped.append(piped)
        if self._size is not None and len(self._piped) >= self._size:
            self._waiting.append(self._piped)
            self._piped = []

    def create_input_topic(
        self, topic: str, start_timestamp: Timestamp = 0, auto_advance: Duration = 0
    ) -> TestInputTopic:
        """A topic of the topology to pipe records into, as Kafka's driver has it.

        Args:
            topic: one of the topology's topics.
            start_timestamp: the timestamp of its first record, in milliseconds since 1970 or as a datetime.
            auto_advance: what is added to the timestamp after each record, in milliseconds or as a timedelta.

        Raises:
            TopologyError: the topology reads no such topic; or the timestamp or the duration is none.
        """
        self._source(topic, Place(f"create_input_topic({topic!r})", user_line()))
        return TestInputTopic(self, topic, start_timestamp, auto_advance)

    def create_output_topic(self, topic: str) -> TestOutputTopic:
        """The records that publishing a table sends, from its first one.

        Args:
            topic: a topic that a table is published to; or a stored table, as if it were published as JSON.

        Raises:
            TopologyError: there is neither such a topic nor such a table.
        """
        tables = self._topology.tables
        found = next((one for one in tables if one.topic == topic), None)
        found = next((one for one in tables if one.name == topic), None) if found is None else found
        if found is None:
            known = [*(one.topic for one in tables if one.topic is not None), *(one.name for one in tables)]
            what = f"the topology {self._topology.name} publishes no topic, and stores no table, {topic!r}"
            place = Place(f"create_output_topic({topic!r})", user_line())
            raise place.mistake(what, f"write one of {', '.join(known)}{did_you_mean(topic, known)}")
        return TestOutputTopic(self, topic, found.name)

    def advance_wall_clock_time(self, by: Duration) -> None:
        """Advance the driver's clock, by milliseconds or a timedelta, ahead of the real one.

        Only `message_timestamp_after_max_ms` depends on a clock: records that are piped from now on may have later
        timestamps. Windows and joins depend on stream time, which only records advance. `max_task_idle_ms` concerns
        ticks, which a driver does not run.

        Raises:
            TopologyError: it is no length of time, or negative.
        """
        ahead = duration(by, Place("advance_wall_clock_time", user_line()))
        self._process()  # what was piped before came before
        if self._ahead is not None:
            self._ahead += ahead

    def stream_time(self, name: str) -> int | None:
        """The stream time of a stored stream, or of a table of windows, in milliseconds since 1970; None: it has none.

        Raises:
            TopologyError: the topology has no such table, or the table keeps no stream time.
        """
        table = self._topology.table(name)
        if not table.plan.uses_stream_time:
            place = Place(f"stream_time({name!r})", user_line())
            known = [one.name for one in self._topology.tables if one.plan.uses_stream_time]
            do = f"ask for one that does: {', '.join(known) or 'the topology has none'}"
            raise place.mistake(f"{name} is {table.plan.title}, and keeps no stream time", do)
        self.advance()
        time = self._tables[name].clock.time
        return None if time is None else time // 1000

    def advance(self) -> None:
        """Process all piped records; those since the last full batch are one batch.

        Raises:
            PySparkException: an expression fails.
        """
        if self._piped or not (self._waiting or self._tables):
            self._waiting.append(self._piped)
            self._piped = []
        self._process()

    def _process(self) -> None:
        """Process the batches that wait."""
        while self._waiting:
            batches = self._waiting[: self._at_once()]
            try:
                self._taken(batches)
            except (PySparkException, TopologyError):
                self._one_by_one(len(batches))
            else:
                del self._waiting[: len(batches)]

    def _one_by_one(self, count: int) -> None:
        """Process some batches again, of which one fails: those before it are taken, and those after it wait."""
        for _ in range(count):
            batch = self._waiting.pop(0)
            try:
                self._taken([batch])
            except PySparkException as error:
                error.add_note(f"in the batch that ends with what {batch[-1].line} piped")
                raise

    def table(self, name: str) -> Rows:
        """The rows of a stored table in key order, without our own columns; processes the piped records first.

        It is a list of dicts. `table(name).get(key)` is the row of a key.

        Raises:
            TopologyError: the topology has no such table.
        """
        self.advance()
        table = self._topology.table(name)
        stored = self._tables[name].rows
        columns = [column.name for column in table.plan.columns]
        found = [{column: stored[key][column] for column in columns} for key in sorted(stored, key=sortable)]
        return Rows(found, table)

    def expect(self, name: str, rows: Iterable[Mapping[str, object]]) -> None:
        """Compare a stored table with the expected rows, in any order.

        Raises:
            AssertionError: the rows differ; the message shows the difference, line by line.
            TopologyError: the topology has no such table.
        """
        key = self._topology.table(name).plan.key
        wanted = sorted(rows, key=lambda row: sortable(tuple(row.get(column) for column in key)))
        found = self.table(name)
        if found != wanted:
            lines = ndiff([repr(dict(row)) for row in wanted], [repr(row) for row in found])
            told = [f"{name} is another table (- wanted, + found):", *(line.rstrip() for line in lines)]
            raise AssertionError("\n".join(told))

    def records(self, name: str) -> list[dict[str, object]]:
        """The records that a stored table emitted, in order: `key`, and `value`, which is None for a tombstone.

        Raises:
            TopologyError: the topology has no such table.
        """
        self.advance()
        table = self._topology.table(name)
        return [one.as_record(table) for one in self._emitted[table.name]]

    def sent(self, table: str, since: int) -> tuple[list[TestRecord], int]:
        """What publishing a table sends; processes the piped records first. For output topics.

        Args:
            table: a stored table.
            since: how many of the table's changes are left out.

        Returns:
            The records, and the number of changes so far.
        """
        self.advance()
        found = self._emitted[table][since:]
        return list(sent(self._session, self._topology, table, self._tables, found)), since + len(found)

    def quarantined(self, topic: str) -> list[dict[str, object]]:
        """The records of a topic in quarantine: `partition`, `offset`, `error`, and `key` and `value` as bytes.

        Raises:
            TopologyError: the topology has no such topic.
        """
        landing = self._topology.source(topic).landing
        self.advance()
        names = ("partition", "offset", "error", "key", "value")
        stored = self._tables[landing].rows if landing in self._tables else {}
        broken = (row for _, row in sorted(stored.items()) if row["_error"] is not None)
        return [{name: row[f"_{name}"] for name in names} for row in broken]

    def counted(self, topic: str) -> Counted:
        """Counts of a topic's records: with a value, tombstones, and in quarantine, by reason.

        Raises:
            TopologyError: the topology has no such topic.
        """
        landing = self._topology.source(topic).landing
        self.advance()
        stored = list(self._tables[landing].rows.values()) if landing in self._tables else []
        reasons: Counter[str] = Counter(row["_error"] for row in stored if row["_error"] is not None)
        good = [row for row in stored if row["_error"] is None]
        tombstones = sum(row["_deleted"] for row in good)
        return Counted(
            records=len(stored),
            rows=len(good) - tombstones,
            tombstones=tombstones,
            quarantined=reasons.total(),
            offsets=sum(offset for (piped, _), offset in self._offsets.items() if piped == topic),
            reasons=dict(reasons),
        )

    def dropped(self, name: str) -> dict[str, int]:
        """How many records of a stream a table, or a join of streams, dropped, by reason.

        Raises:
            TopologyError: the topology has no such table.
        """
        table = self._topology.table(name)
        self.advance()
        return dict(self._tables[table.name].clock.dropped)

    def _taken(self, batches: Sequence[Sequence[Piped]]) -> None:
        """Process some batches at once."""
        run = Run(self._session, self._topology, self._tables, batches, self._batches + 1, self._ahead)
        moved = run.moved()
        for table in self._topology.tables:
            self._emitted[table.name] += moved[table.name].emitted(self._batches + 1)
        self._batches += len(batches)
        self._tables = {name: one.now() for name, one in moved.items()}

    def _source(self, topic: str, place: Place) -> Source:
        topics = [source.topic for source in self._topology.sources]
        if topic not in topics:
            what = f"the topology {self._topology.name} reads no topic {topic!r}"
            raise place.mistake(what, f"write one of {', '.join(topics)}{did_you_mean(topic, topics)}")
        return self._topology.source(topic)

    def _at_once(self) -> int:
        """How many of the batches that wait make a frame."""
        stored = max((len(one.rows) + len(one.history) for one in self._tables.values()), default=0)
        rows = stored + sum(map(len, self._waiting[:BATCHES]))
        return max(1, min(BATCHES, FRAME // max(rows, 1)))


def _with_leaders(topology: Topology) -> Topology:
    """The topology with a topic, and its table, in the place of every table of another topology."""
    sources, tables = [], []
    for leader in topology.leaders:
        scan = leader.scan
        key = scan.columns[: len(scan.key)]
        source = Source(leader.name, leader.kind, Consumed("json", key, scan.columns[len(key) :]), leader.line)
        records = Records(Scan(source.landing, scan.key, scan.columns, appended=True))
        sources.append(source)
        tables.append(Table(scan.table, Latest(records), line=leader.line))
    piped = (replace(source, consumed=without_schemas(source.consumed)) for source in topology.sources)
    return replace(topology, sources=(*sources, *piped), tables=(*tables, *topology.tables))


def _own_session() -> SparkSession:
    builder = SparkSession.builder
    if SparkSession.getActiveSession() is None and not is_remote():
        # The call site of every column would be half of what goes to and fro between Python and the JVM.
        builder = builder.config("spark.python.sql.dataFrameDebugging.enabled", "false")
    return builder.getOrCreate()


def _bytes(format_: str, part: object, columns: tuple[Column, ...], place: Place) -> bytes | None:
    if part is None or isinstance(part, bytes):
        return part
    try:
        return serde(format_).to_bytes(part, columns)
    except (TypeError, ValueError) as error:
        do = "pipe values of the declared types; in JSON, decimals and times are text"
        raise place.mistake(f"{format_.upper()} cannot hold it: {error}", do) from None
