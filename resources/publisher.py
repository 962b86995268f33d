"""The producer of one table on one topic, and the position that it commits with its records."""

from __future__ import annotations

import time
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Self

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from spark.engine.errors import NotCommitted, RecordRefused
from spark.engine.offsets import KafkaUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from confluent_kafka import Message

    from resources.kafka import Kafka, Setting

TIMEOUT = 60.0  # seconds: a coordinator that has just started reads its log first; a transaction lives as long
PAUSE = 0.1  # seconds between two looks for the end of a transaction
BLOCKED = 1.0  # seconds until a full queue is tried again
IDLE = 2_000  # milliseconds until an idle connection is closed
LOOK = 1_000  # records of a partition's end that are looked at first, four times as many with each further look

Sending = tuple["bytes | None", dict[str, str]]
"""Key and headers of a record."""

POSITION = 0
"""The partition of the topic that the group's offset is kept for."""

OVERTAKEN = {
    KafkaError._FENCED,
    KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
}

REFUSED = {
    KafkaError.INVALID_TIMESTAMP: (
        "its time is further from the broker's clock than message.timestamp.after.max.ms (an hour by default) or "
        "message.timestamp.before.max.ms allows: raise that setting of the topic"
    ),
    KafkaError.MSG_SIZE_TOO_LARGE: (
        "it is larger than max.message.bytes of the topic, or message.max.bytes of the producer, allows, 1 MB by "
        "default: raise that setting, or publish fewer columns"
    ),
    KafkaError.INVALID_RECORD: "the broker does not find it valid: a compacted topic takes no record without a key",
}
"""Why a topic does not take a record, and what the topic's owner can do."""

BESIDE = KafkaError._INVALID_DIFFERENT_RECORD
"""What is reported of records that are in one batch with several that are refused."""


class Publisher:
    """Sends records; exactly once in transactions, or each at least once.

    A context: what was sent and not committed when it ends is undone, as far as it can be.

    A broker refuses batches. Where one record of a batch is refused, librdkafka reports the same error of each. So only
    a publisher that sends every record `alone`, in a batch of its own, can say which one it was; it is slower.
    """

    def __init__(self, kafka: Kafka, name: str, topic: str, exactly_once: bool, alone: bool = False) -> None:
        """Open the producer of a name, which is its consumer group too; a transactional one fences its predecessor."""
        self._kafka, self._name, self._topic, self._exactly_once = kafka, name, topic, exactly_once
        self._alone = alone
        self._begun = False
        self._failed: list[tuple[KafkaError, Sending | None]] = []
        kafka.end_offsets([topic])  # an error by name if it is missing
        level = "read_committed" if exactly_once else "read_uncommitted"
        group: dict[str, Setting] = {"group.id": name, "enable.partition.eof": True, "isolation.level": level}
        self._consumer = kafka.consumer(**group)
        sending: dict[str, Setting] = {
            # Kafka's own clients put equal keys in equal partitions; librdkafka puts them elsewhere unless it is told.
            "partitioner": "murmur2_random",
            # Where a broker comes again between two transactions, sending offsets to the second one looks for the
            # coordinator only when some connection changes, whatever its time-out (librdkafka issues 5511 and 5456). A
            # broker closes an idle one after ten minutes.
            "connections.max.idle.ms": IDLE,
        }
        if alone:  # also in flight: the end of a transaction waits a minute for what is so behind one that is refused
            sending |= {"batch.num.messages": 1, "max.in.flight.requests.per.connection": 1}
        with ExitStack() as undoing:
            undoing.callback(self._consumer.close)  # nobody enters what did not open, nor leaves it
            try:
                self._producer = kafka.producer(**sending, **({"transactional.id": name} if exactly_once else {}))
            except KafkaException as error:  # settings that a producer cannot have
                raise kafka.unavailable(error) from error
            if exactly_once:
                self._insist(lambda: self._producer.init_transactions(TIMEOUT))
            undoing.pop_all()

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        """Abort what is not committed, and say by name what the client refused."""
        told = _kafkas(error)
        refused = None if told is None else self._refused(told)
        if self._begun and self._exactly_once:
            # The next one to open this name aborts it, as the broker does in a while.
            with suppress(KafkaException, SystemError):
                self._producer.abort_transaction(TIMEOUT)
        self._consumer.close()
        if refused is not None:
            raise refused from error

    def send(self, key: bytes | None, value: bytes | None, timestamp: int | None, headers: dict[str, str]) -> None:
        """Send a record; a timestamp is in milliseconds since 1970, None is now."""
        self._begin()
        sending = (key, headers)
        while True:
            try:
                self._producer.produce(
                    self._topic,
                    value,
                    key,
                    on_delivery=partial(self._delivered, sending),
                    timestamp=timestamp or 0,
                    headers=[(name, text.encode()) for name, text in headers.items()],
                )
            except BufferError:
                self._producer.poll(BLOCKED)
            except KafkaException as error:
                if error.args[0].code() in REFUSED:  # else it only says that an earlier one failed
                    self._failed.append((error.args[0], sending))
                raise
            else:
                self._producer.poll(0)
                return

    def commit(self, version: int, position: str) -> None:
        """Commit what was sent, and how far that is."""
        self._begin()
        spot = TopicPartition(self._topic, POSITION, version, position)
        if self._exactly_once:
            group = self._consumer.consumer_group_metadata()
            self._insist(lambda: self._producer.send_offsets_to_transaction([spot], group, TIMEOUT))
            self._insist(lambda: self._producer.commit_transaction(TIMEOUT))
        else:
            left = self._producer.flush(TIMEOUT)
            for failed in [*(one for one, _ in self._failed), *([KafkaError(KafkaError._TIMED_OUT)] if left else [])]:
                raise self._refused(KafkaException(failed))
            self._insist(lambda: self._consumer.commit(offsets=[spot], asynchronous=False))
        self._begun = False

    def newest(self, header: str, value: str) -> dict[int, dict[str, str]]:
        """The headers of the newest record of every partition that has one in which a header has this value."""
        ends, first = self._ends(), self._kafka.beginning_offsets([self._topic])[self._topic].offsets
        found = {
            partition: self._last(partition, first[partition], end, header, value) for partition, end in ends.items()
        }
        return {partition: headers for partition, headers in found.items() if headers is not None}

    def _ends(self) -> dict[int, int]:
        """Where the topic ends. Exactly once, what is there is read once no transaction of others is open before it."""
        ends = self._kafka.end_offsets([self._topic], read_committed=False)[self._topic].offsets
        deadline = time.monotonic() + TIMEOUT
        while self._exactly_once:
            readable = self._kafka.end_offsets([self._topic])[self._topic].offsets
            held = [partition for partition, end in ends.items() if readable.get(partition, 0) < end]
            if not held:
                break
            if time.monotonic() > deadline:
                raise KafkaUnavailable(
                    f"topic {self._topic}: a transaction that has not ended keeps back the newest records of partition "
                    f"{held[0]}, from offset {readable.get(held[0], 0)} on, which tell how far {self._name} is: its "
                    f"group has no offset. End that transaction: kafka-transactions.sh find-hanging"
                )
            time.sleep(PAUSE)
        return ends

    def _last(self, partition: int, first: int, end: int, header: str, value: str) -> dict[str, str] | None:
        look, since = LOOK, end
        while since > first:
            since, until = max(first, since - look), since
            look *= 4
            told = [
                headers
                for message in self._between(partition, since, until)
                if (headers := _headers(message)).get(header) == value
            ]
            if told:
                return told[-1]
        return None

    def _between(self, partition: int, since: int, until: int) -> Iterator[Message]:
        """The records between two offsets, some of which may be no records at all."""
        self._consumer.assign([TopicPartition(self._topic, partition, since)])
        while True:
            message = self._consumer.poll(TIMEOUT)
            if message is None:
                raise self._refused(KafkaException(KafkaError(KafkaError._TIMED_OUT)))
            error = message.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise self._refused(KafkaException(error))
            if error is not None or (message.offset() or 0) >= until:
                return
            yield message

    def _begin(self) -> None:
        if self._exactly_once and not self._begun:
            self._producer.begin_transaction()
        self._begun = True

    def _delivered(self, sending: Sending, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self._failed.append((error, sending if self._alone else None))

    def _insist(self, do: Callable[[], object]) -> None:
        """Do what may be asked again until it is done."""
        deadline = time.monotonic() + TIMEOUT
        while True:
            try:
                do()
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise self._refused(error) from error
            else:
                return

    def _refused(self, error: KafkaException) -> Exception:
        error = self._reason(error)
        if self._exactly_once and error.args[0].code() in OVERTAKEN:
            return NotCommitted(
                f"another run publishes {self._name} to topic {self._topic}, and took over; or a transaction lasted "
                f"longer than transaction.timeout.ms, and the broker ended it"
            )
        deadline = time.monotonic() + BLOCKED
        while not self._failed and len(self._producer) and time.monotonic() < deadline:
            with suppress(KafkaException, SystemError):
                self._producer.poll(BLOCKED)  # a transaction says that it failed; the report of a record says why
        for failed, sending in (*self._failed, (error.args[0], None)):
            if failed.code() in (*REFUSED, BESIDE):
                return RecordRefused(REFUSED.get(failed.code(), failed.str()), *(sending or ()))
        return self._kafka.unavailable(error)

    def _reason(self, error: KafkaException) -> KafkaException:
        """Why, of an error that says no more than that it is fatal: a call about the transaction tells."""
        if self._exactly_once and error.args[0].code() == KafkaError._FATAL:
            try:
                self._producer.abort_transaction(TIMEOUT)
            except KafkaException as reason:
                return reason
            except SystemError as reason:
                return _kafkas(reason) or error
        return error


def _kafkas(error: BaseException | None) -> KafkaException | None:
    """Kafka's own error, if it is one: what is fatal comes out of the report of a record, which fails of it in turn.

    Or out of a call of the client's, which then returns nothing and says nothing.
    """
    while isinstance(error, SystemError):
        if "cimpl." in str(error) and error.__cause__ is None:
            return KafkaException(KafkaError(KafkaError._FATAL))
        error = error.__cause__
    return error if isinstance(error, KafkaException) else None


def _headers(message: Message) -> dict[str, str]:
    found = message.headers() or []
    pairs = found.items() if isinstance(found, dict) else found
    return {name: value.decode(errors="replace") for name, value in pairs if isinstance(value, bytes)}
