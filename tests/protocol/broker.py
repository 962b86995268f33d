"""Topics in memory: offsets, transactions that leave gaps, retention, partitions that are added."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spark.engine.offsets import TopicOffsets

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from contextlib import AbstractContextManager

    from spark.engine.doors import Publisher
    from tests.protocol.delta import Row


@dataclass(frozen=True)
class Record:
    """A record of a topic; one without a key is a transaction's marker, or was aborted: nobody reads it."""

    key: int | None
    value: str | None = None
    """None is a tombstone."""


@dataclass
class Partition:
    """Its records from offset 0, the first that is still kept, and where a transaction is open."""

    records: list[Record] = field(default_factory=list)
    first: int = 0
    open: int | None = None

    @property
    def stable(self) -> int:
        """The last stable offset."""
        return len(self.records) if self.open is None else self.open


class Broker:
    """Topics by name."""

    def __init__(self, topics: Mapping[str, int]) -> None:
        self.topics = {name: [Partition() for _ in range(count)] for name, count in topics.items()}

    def copy(self) -> Broker:
        """The same topics, which then go their own way."""
        made = Broker({})
        made.topics = {
            name: [Partition(list(p.records), p.first, p.open) for p in partitions]
            for name, partitions in self.topics.items()
        }
        return made

    def cluster_id(self) -> str:
        """The cluster's own id."""
        return "cluster"

    def end_offsets(self, topics: Iterable[str], read_committed: bool = True) -> dict[str, TopicOffsets]:
        """The next offset of every partition."""
        ends = {
            topic: {n: p.stable if read_committed else len(p.records) for n, p in enumerate(self.topics[topic])}
            for topic in topics
        }
        return {topic: TopicOffsets("id", offsets) for topic, offsets in ends.items()}

    def beginning_offsets(self, topics: Iterable[str]) -> dict[str, TopicOffsets]:
        """The first offset that every partition still holds."""
        return {topic: TopicOffsets("id", {n: p.first for n, p in enumerate(self.topics[topic])}) for topic in topics}

    def spark_options(self) -> Mapping[str, str]:
        """None are needed."""
        return {}

    def published(self, *_: object) -> str | None:
        """Nothing is published here."""
        return None

    def publishing(self, *_: object) -> AbstractContextManager[Publisher]:
        """Nobody publishes here."""
        raise NotImplementedError

    def send(self, topic: str, key: int, tombstone: bool = False) -> None:
        """Append a record; its value says where it is, and the last digit of its key in which partition."""
        number = key % 10
        partition = self.topics[topic][number]
        value = None if tombstone else f"{topic}-{number}@{len(partition.records)}"
        partition.records.append(Record(key, value))

    def add(self, topic: str, count: int) -> None:
        """Add partitions up to so many."""
        self.topics[topic] += [Partition() for _ in range(count - len(self.topics[topic]))]

    def begin(self, topic: str, key: int) -> Partition:
        """Append a record in a transaction that is open yet."""
        partition = self.topics[topic][key % 10]
        partition.open = len(partition.records)
        self.send(topic, key)
        return partition

    def end(self, partition: Partition, committed: bool) -> None:
        """End the transaction: a marker follows, and what was aborted is nobody's."""
        if not committed and partition.open is not None:
            partition.records[partition.open :] = [Record(None)] * (len(partition.records) - partition.open)
        partition.records.append(Record(None))
        partition.open = None

    def between(self, topic: str, since: Mapping[int, int], until: Mapping[int, int]) -> list[Row]:
        """All that was ever there between two offsets, also what is kept no more."""
        return [
            ((number, offset), (partition.records[offset].key, partition.records[offset].value))
            for number, partition in enumerate(self.topics[topic])
            for offset in range(since.get(number, 0), until.get(number, 0))
            if partition.records[offset].key is not None
        ]
