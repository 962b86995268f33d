"""Whoever keeps sending, whatever happens to the broker: plain records, and transactions some of which it aborts."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import TYPE_CHECKING, Self

from confluent_kafka import KafkaException

from tests.faults.kills.shop import waves

if TYPE_CHECKING:
    from collections.abc import Callable

    from confluent_kafka import KafkaError, Message, Producer

    from resources.cluster import Setting
    from resources.kafka import Kafka
    from tests.faults.kills.shop import Sent, Topics, Wave

BOUND = 600.0  # seconds for a broker that was killed to be there again
PAUSE = 0.3  # seconds between two waves: some fifteen records a second
NUMBER = "number"
"""The header that tells a record."""


@dataclass
class Sender:
    """Sends waves in a thread of its own, and remembers what the broker said of each record."""

    kafka: Kafka
    topics: Topics
    seed: int
    sure: set[int] = field(default_factory=set)
    """Written, the broker says."""
    undone: set[int] = field(default_factory=set)
    """Aborted, the broker says."""
    sent: int = 0
    _refused: list[str] = field(default_factory=list)
    _over: Event = field(default_factory=Event)

    def __enter__(self) -> Self:
        """Begin to send."""
        self._thread = Thread(target=self._send, name="sender", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Send no more."""
        self._over.set()

    def close(self) -> None:
        """Send no more, and wait until all that was sent is on the broker, or is undone."""
        self._over.set()
        self._thread.join(BOUND)
        assert not self._thread.is_alive()
        assert self._refused == []

    def _send(self) -> None:
        plain = self._producer()
        transactional = self._transactional()
        for wave in waves(self.topics, self.seed):
            if self._over.wait(PAUSE):
                break
            self.sent += len(wave.records)
            if wave.kind == "plain":
                self._produce(plain, wave, self.sure.add)
                plain.poll(0)
            elif not self._transaction(transactional, wave):
                transactional = self._transactional()  # the new one ends what the old one began
        plain.flush()

    def _transaction(self, producer: Producer, wave: Wave) -> bool:
        """Send a wave in a transaction, and end it; whether the producer is still good."""
        numbers = {record.number for record in wave.records}
        try:
            producer.begin_transaction()
            try:
                self._produce(producer, wave, nothing)
                producer.flush()
                if wave.kind == "committed":
                    insisted(producer.commit_transaction)
                    self.sure |= numbers
                    return True
            except KafkaException as error:
                if not error.args[0].txn_requires_abort():
                    raise
            insisted(producer.abort_transaction)
            self.undone |= numbers
        except KafkaException as error:
            if not error.args[0].fatal():
                raise
            return False
        return True

    def _produce(self, producer: Producer, wave: Wave, written: Callable[[int], None]) -> None:
        for record in wave.records:
            producer.produce(
                record.topic,
                key=json.dumps(record.key),
                value=None if record.value is None else json.dumps(record.value),
                partition=record.partition,
                timestamp=record.timestamp,
                headers=[(NUMBER, str(record.number).encode())],
                on_delivery=self._told(record, written),
            )

    def _told(self, record: Sent, written: Callable[[int], None]) -> Callable[[KafkaError | None, Message], None]:
        def told(error: KafkaError | None, _: Message) -> None:
            if error is None:
                written(record.number)
            elif written is not nothing:
                self._refused.append(f"{record}: {error}")

        return told

    def _transactional(self) -> Producer:
        own: dict[str, Setting] = {
            "transactional.id": f"sender-{self.topics.orders}",
            "transaction.timeout.ms": 300_000,
        }
        producer = self._producer(**own)
        insisted(producer.init_transactions)
        return producer

    def _producer(self, **more: Setting) -> Producer:
        patient: dict[str, Setting] = {"message.timeout.ms": 300_000}
        return self.kafka.producer(**patient, **more)


def nothing(_: int) -> None:
    """In a transaction it is the commit that says what was written."""


def insisted(do: Callable[[], None]) -> None:
    """Do what may be asked for again until it is done."""
    while True:
        try:
            do()
        except KafkaException as error:
            if not error.args[0].retriable():
                raise
        else:
            return
