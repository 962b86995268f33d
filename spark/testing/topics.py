"""Topics of the driver, as Kafka's driver has them: records are piped into one, and read from another."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Protocol

from spark.serdes.serde import serde
from spark.topology.errors import Place, user_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from spark.topology.columns import Column
    from spark.topology.produced import Produced

Timestamp = int | datetime
Duration = int | timedelta
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Pipes(Protocol):
    """What pipes a record: the driver."""

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
        """Send a record."""


@dataclass(frozen=True)
class TestRecord:
    """A record of an output topic, as publishing its table sends it.

    `key` and `value` are what a reader of the format gets; a number of JSON with a fraction is a Decimal, and `value`
    is None for a tombstone. `timestamp` is in milliseconds since 1970, None for a row without event time. `headers` are
    text.
    """

    __test__ = False  # a name that begins with Test is no test

    key: object
    value: object
    timestamp: int | None
    headers: Mapping[str, str]
    key_bytes: bytes | None = field(repr=False)
    value_bytes: bytes | None = field(repr=False)

    @staticmethod
    def of(
        produced: Produced,
        columns: tuple[tuple[Column, ...], tuple[Column, ...]],
        parts: tuple[bytes | None, bytes | None],
        timestamp: int | None,
        headers: Mapping[str, str],
    ) -> TestRecord:
        """The record of a key and a value in bytes, which hold these columns in a format."""
        formats = produced.key_format, produced.format
        key, value = (
            None if part is None else serde(format_).from_bytes(part, held)
            for format_, part, held in zip(formats, parts, columns, strict=True)
        )
        return TestRecord(key, value, timestamp, headers, *parts)


class TestInputTopic:
    """Pipes records into a topic of the topology. Timestamps are in milliseconds since 1970, or datetimes.

    A record without a timestamp of its own has that of the topic, which then advances by `auto_advance`. It begins at
    0, and not now as in Kafka: a test should not depend on when it runs.
    """

    __test__ = False

    def __init__(self, driver: Pipes, topic: str, start_timestamp: Timestamp, auto_advance: Duration) -> None:
        self._driver = driver
        self._topic = topic
        self._now = millis(start_timestamp, self._place("create_input_topic"))
        self._advance = duration(auto_advance, self._place("create_input_topic"))

    def pipe_input(
        self,
        key: object,
        value: object,
        timestamp: Timestamp | None = None,
        headers: Mapping[str, str | bytes | None] | None = None,
        partition: int = 0,
    ) -> None:
        """Send a record: as the driver's `pipe`. `timestamp` does not change the topic's own."""
        at = self._tick() if timestamp is None else millis(timestamp, self._place("pipe_input"))
        self._driver.pipe(self._topic, key=key, value=value, timestamp=at, headers=headers, partition=partition)

    def pipe_key_value_list(
        self,
        records: Iterable[tuple[object, object]],
        start_timestamp: Timestamp | None = None,
        advance: Duration = 0,
    ) -> None:
        """Send records, each a key and a value.

        Args:
            records: the keys and values.
            start_timestamp: the timestamp of the first; without one, all have the topic's own, which advances.
            advance: what is added to `start_timestamp` for each next record, in milliseconds or as a timedelta.
        """
        if start_timestamp is None:
            for key, value in records:
                self.pipe_input(key, value)
            return
        at = millis(start_timestamp, self._place("pipe_key_value_list"))
        step = duration(advance, self._place("pipe_key_value_list"))
        for number, (key, value) in enumerate(records):
            self.pipe_input(key, value, at + number * step)

    def pipe_value_list(
        self, values: Iterable[object], start_timestamp: Timestamp | None = None, advance: Duration = 0
    ) -> None:
        """Send records without a key: as `pipe_key_value_list`."""
        self.pipe_key_value_list(((None, value) for value in values), start_timestamp, advance)

    def advance_time(self, by: Duration) -> None:
        """Advance the topic's own timestamp, by milliseconds or a timedelta.

        Raises:
            TopologyError: it would go back.
        """
        self._now += duration(by, self._place("advance_time"))

    def _tick(self) -> int:
        now = self._now
        self._now += self._advance
        return now

    def _place(self, method: str) -> Place:
        return Place(f"{method} of topic {self._topic!r}", user_line())


class Sends(Protocol):
    """What sends records: the driver."""

    def sent(self, table: str, since: int) -> tuple[list[TestRecord], int]:
        """The records of a table behind a place among its changes, and the place behind them."""


class TestOutputTopic:
    """Reads what publishing a table sends to its topic, each record once."""

    __test__ = False

    def __init__(self, driver: Sends, name: str, table: str) -> None:
        self._driver = driver
        self._name = name
        self._table = table
        self._place = 0
        self._queue: list[TestRecord] = []

    @property
    def queue_size(self) -> int:
        """The number of records that are not read yet."""
        new, self._place = self._driver.sent(self._table, self._place)
        self._queue += new
        return len(self._queue)

    @property
    def is_empty(self) -> bool:
        """True if all records are read."""
        return self.queue_size == 0

    def read_record(self) -> TestRecord:
        """The next record.

        Raises:
            TopologyError: there is none.
        """
        if self.is_empty:
            place = Place(f"read_record of topic {self._name!r}", user_line())
            raise place.mistake("all records are read", "pipe another, or ask is_empty before")
        return self._queue.pop(0)

    def read_value(self) -> object:
        """The value of the next record.

        Raises:
            TopologyError: there is none.
        """
        return self.read_record().value

    def read_key_value(self) -> tuple[object, object]:
        """The key and the value of the next record.

        Raises:
            TopologyError: there is none.
        """
        record = self.read_record()
        return record.key, record.value

    def read_records_to_list(self) -> list[TestRecord]:
        """All records that are not read yet."""
        return [self.read_record() for _ in range(self.queue_size)]

    def read_key_values_to_list(self) -> list[tuple[object, object]]:
        """The keys and values of all records that are not read yet."""
        return [(record.key, record.value) for record in self.read_records_to_list()]

    def read_values_to_list(self) -> list[object]:
        """The values of all records that are not read yet."""
        return [record.value for record in self.read_records_to_list()]

    def read_key_values_to_map(self) -> dict[object, object]:
        """The newest value of every key among the records that are not read yet; None for a tombstone.

        A key of several columns is a tuple of them.
        """
        return {_plain(record.key): record.value for record in self.read_records_to_list()}


def millis(at: Timestamp, place: Place) -> int:
    """A timestamp in milliseconds since 1970.

    Raises:
        TopologyError: it is neither a whole number nor a datetime with a time zone.
    """
    if isinstance(at, datetime) and at.tzinfo is not None:
        return (at - _EPOCH) // timedelta(milliseconds=1)
    if not isinstance(at, int) or isinstance(at, bool):
        do = "write whole milliseconds since 1970, or a datetime with a time zone"
        raise place.mistake(f"timestamp is {at!r}", do)
    return at


def duration(by: Duration, place: Place) -> int:
    """A length of time in milliseconds.

    Raises:
        TopologyError: it is neither a whole number nor a timedelta, or it is negative.
    """
    found = by // timedelta(milliseconds=1) if isinstance(by, timedelta) else by
    if not isinstance(found, int) or isinstance(found, bool):
        raise place.mistake(f"{by!r} is no length of time", "write whole milliseconds, or a timedelta")
    if found < 0:
        raise place.mistake(f"{by!r} is negative", "time does not go back: give such a record its own timestamp=")
    return found


def _plain(key: object) -> object:
    return tuple(key.values()) if isinstance(key, dict) else key
