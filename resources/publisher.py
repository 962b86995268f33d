"""Sends one table's records to one topic, and commits a position with them."""

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

    from resources.cluster import Cluster, Setting
    from spark.engine.ports import Headers

TIMEOUT = 60.0  # seconds: a coordinator that has just started reads its log first; a transaction has the same timeout
PAUSE = 0.1  # seconds between two checks whether a transaction has ended
BLOCKED = 1.0  # seconds until a full queue is tried again
IDLE = 2_000  # milliseconds until an idle connection is closed
LOOK = 1_000  # records that are read first from a partition's end; each further read takes four times as many

Sending = tuple["bytes | None", dict[str, str]]
"""The key and the headers of a record."""

POSITION = 0
"""The partition of the topic for which the group commits its offset."""

OVERTAKEN = {
    KafkaError._FENCED,
    KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
}

REFUSED = {
    KafkaError.INVALID_TIMESTAMP: (
        "its timestamp is further from the broker's clock than message.timestamp.after.max.ms (an hour by default) or "
        "message.timestamp.before.max.ms allows: raise that setting of the topic"
    ),
    KafkaError.MSG_SIZE_TOO_LARGE: (
        "it is larger than max.message.bytes of the topic, or message.max.bytes of the producer, allows, 1 MB by "
        "default: raise that setting, or publish fewer columns"
    ),
    KafkaError.INVALID_RECORD: "the broker rejects it as invalid: a compacted topic accepts no record without a key",
}
"""Why a topic refuses a record, and what its owner can do."""

BESIDE = KafkaError._INVALID_DIFFERENT_RECORD
"""The error of every record in a batch with several refused records."""


class Publisher:
    """Sends records to a topic: exactly once in transactions, or at least once.

    A context manager: when it ends, it aborts the open transaction. Without transactions, sent records stay.

    A broker refuses whole batches. If one record of a batch is refused, librdkafka reports the same error for each. So
    only a publisher with `alone`, which sends every record in a batch of its own, can name the refused record. It is
    slower.
    """

    def __init__(self, cluster: Cluster, name: str, topic: str, exactly_once: bool, alone: bool = False) -> None:
        """Open the producer and the consumer group `name`; a transactional producer fences its predecessor."""
        self._cluster, self._name, self._topic, self._exactly_once = cluster, name, topic, exactly_once
        self._alone = alone
        self._begun = False
        self._failed: list[tuple[KafkaError, Sending | None]] = []
        cluster.end_offsets([topic])  # raises TopicMissing
        level = "read_committed" if exactly_once else "read_uncommitted"
        group: dict[str, Setting] = {"group.id": name, "enable.partition.eof": True, "isolation.level": level}
        self._consumer = cluster.consumer(**group)
        sending: dict[str, Setting] = {
            # The partitioner of Kafka's Java clients; librdkafka's default puts a key in another partition.
            "partitioner": "murmur2_random",
            # If a broker restarts between two transactions, sending offsets to the second one looks for the coordinator
            # only when some connection changes, whatever its timeout (librdkafka issues 5511 and 5456). A broker closes
            # an idle connection only after ten minutes.
            "connections.max.idle.ms": IDLE,
        }
        if alone:  # one in flight too: else the end of a transaction waits a minute for requests after a refused one
            sending |= {"batch.num.messages": 1, "max.in.flight.requests.per.connection": 1}
        with ExitStack() as undoing:
            undoing.callback(self._consumer.close)  # `__exit__` does not run if the constructor fails
            try:
                self._producer = cluster.producer(**sending, **({"transactional.id": name} if exactly_once else {}))
            except KafkaException as error:  # invalid settings of a producer
                raise cluster.unavailable(error) from error
            if exactly_once:
                self._insist(lambda: self._producer.init_transactions(TIMEOUT))
            undoing.pop_all()

    def __enter__(self) -> Self:
        """Return the publisher."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        """Abort the open transaction, and raise one of our errors for an error of the client.

        Raises:
            RecordRefused: the topic refuses a record.
            NotCommitted: another publisher of this name took over, or the transaction timed out.
            KafkaUnavailable: no broker answers, or it refuses.
        """
        kafka_error = _kafkas(error)
        refused = None if kafka_error is None else self._refused(kafka_error)
        if self._begun and self._exactly_once:
            # If it fails, the next publisher of this name aborts it, or the broker after its timeout.
            with suppress(KafkaException, SystemError):
                self._producer.abort_transaction(TIMEOUT)
        self._consumer.close()
        if refused is not None:
            raise refused from error

    def send(
        self, key: bytes | None, value: bytes | None, timestamp: int | None, headers: dict[str, str], more: Headers = ()
    ) -> None:
        """Queue a record. `timestamp` is in milliseconds since 1970; None means now. `more` headers come first."""
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
                    headers=[*more, *((name, text.encode()) for name, text in headers.items())],
                )
            except BufferError:
                self._producer.poll(BLOCKED)
            except KafkaException as error:
                if error.args[0].code() in REFUSED:  # any other error reports that an earlier record failed
                    self._failed.append((error.args[0], sending))
                raise
            else:
                self._producer.poll(0)
                return

    def commit(self, version: int, position: str) -> None:
        """Commit the sent records, with `version` as the group's offset and `position` as its metadata.

        Raises:
            RecordRefused: the topic refuses a record.
            NotCommitted: another publisher of this name took over, or the transaction timed out.
            KafkaUnavailable: no broker answers, or it refuses.
        """
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
        """By partition, the headers of the newest record whose `header` has this value, where there is one."""
        ends, first = self._ends(), self._cluster.beginning_offsets([self._topic])[self._topic].offsets
        found = {
            partition: self._last(partition, first[partition], end, header, value) for partition, end in ends.items()
        }
        return {partition: headers for partition, headers in found.items() if headers is not None}

    def _ends(self) -> dict[int, int]:
        """The end offset of every partition. Under exactly once, waits until every transaction before it has ended.

        Raises:
            KafkaUnavailable: a transaction does not end within `TIMEOUT` seconds.
        """
        ends = self._cluster.end_offsets([self._topic], read_committed=False)[self._topic].offsets
        deadline = time.monotonic() + TIMEOUT
        while self._exactly_once:
            readable = self._cluster.end_offsets([self._topic])[self._topic].offsets
            held = [partition for partition, end in ends.items() if readable.get(partition, 0) < end]
            if not held:
                break
            if time.monotonic() > deadline:
                raise KafkaUnavailable(
                    f"topic {self._topic}: an open transaction hides the records of partition {held[0]} from offset "
                    f"{readable.get(held[0], 0)} on. The group {self._name} has no committed offset, so its position "
                    f"must be read from these records. End the transaction: kafka-transactions.sh find-hanging"
                )
            time.sleep(PAUSE)
        return ends

    def _last(self, partition: int, first: int, end: int, header: str, value: str) -> dict[str, str] | None:
        look, since = LOOK, end
        while since > first:
            since, until = max(first, since - look), since
            look *= 4
            found = [
                headers
                for message in self._between(partition, since, until)
                if (headers := _headers(message)).get(header) == value
            ]
            if found:
                return found[-1]
        return None

    def _between(self, partition: int, since: int, until: int) -> Iterator[Message]:
        """The records from offset `since` up to and without `until`. Some offsets have no record."""
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
        """Call `do`, and repeat it for `TIMEOUT` seconds while its error is retriable."""
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
                f"topic {self._topic}: another publisher of {self._name} took over, or a transaction lasted longer "
                f"than transaction.timeout.ms, and the broker aborted it"
            )
        deadline = time.monotonic() + BLOCKED
        while not self._failed and len(self._producer) and time.monotonic() < deadline:
            with suppress(KafkaException, SystemError):
                self._producer.poll(BLOCKED)  # a transaction's error has no reason; a record's delivery report has it
        for failed, sending in (*self._failed, (error.args[0], None)):
            if failed.code() in (*REFUSED, BESIDE):
                return RecordRefused(REFUSED.get(failed.code(), failed.str()), *(sending or ()))
        return self._cluster.unavailable(error)

    def _reason(self, error: KafkaException) -> KafkaException:
        """The cause of an error that is only called fatal: a call about the transaction raises the cause."""
        if self._exactly_once and error.args[0].code() == KafkaError._FATAL:
            try:
                self._producer.abort_transaction(TIMEOUT)
            except KafkaException as reason:
                return reason
            except SystemError as reason:
                return _kafkas(reason) or error
        return error


def _kafkas(error: BaseException | None) -> KafkaException | None:
    """The Kafka error in an error; None if there is none.

    A fatal error can arrive as a SystemError: from the delivery report of a record, or from a client call that fails
    without an exception of its own.
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
