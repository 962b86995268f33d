"""Topics in memory: offsets, transactions that leave gaps, retention, partitions that are added; and who may send."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from spark.engine.errors import NotCommitted
from spark.engine.offsets import TopicOffsets
from tests.protocol.producer import Producer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tests.protocol.delta import Row
    from tests.protocol.turns import Turns


@dataclass(frozen=True)
class Record:
    """A record of a topic; one without a key is a transaction's marker, or was aborted: nobody reads it."""

    key: int | None
    value: str | None = None
    """None is a tombstone."""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Name:
    """A transactional id, which is a consumer group too: who has it, what is under way, how far it is."""

    epoch: int = 0
    """That of the producer that opened it last: no other one may do anything."""
    told: str | None = None
    """The position that the open transaction will commit."""
    decided: bool = False
    """The open transaction is committed, though not everybody was told."""
    committed: tuple[str, ...] = ()
    """All positions, in their order."""
    forgotten: int = 0
    """How many of them the group has no more."""


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

    turns: Turns

    def __init__(self, topics: Mapping[str, int]) -> None:
        self.topics = {name: [Partition() for _ in range(count)] for name, count in topics.items()}
        self.names: defaultdict[tuple[str, str], Name] = defaultdict(Name)
        """With the one topic that each sends to."""

    def copy(self) -> Broker:
        """The same topics, which then go their own way."""
        made = Broker({})
        made.topics = {
            name: [Partition(list(p.records), p.first, p.open) for p in partitions]
            for name, partitions in self.topics.items()
        }
        made.names = self.names.copy()
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

    def topic_config(self, topic: str) -> Mapping[str, str] | None:
        """No topic is compacted here."""
        return {"cleanup.policy": "delete"} if topic in self.topics else None

    def spark_options(self) -> Mapping[str, str]:
        """None are needed."""
        return {}

    def published(self, name: str, topic: str, stable: bool = False) -> str | None:
        """The position that a name committed last."""
        if stable:
            self.complete(name, topic)
        known = self.names[name, topic]
        return known.committed[-1] if len(known.committed) > known.forgotten else None

    def publishing(self, name: str, topic: str, exactly_once: bool, alone: bool = False) -> Producer:
        """The producer of a name."""
        assert exactly_once, "nobody publishes at least once here"
        assert not alone, "no record is refused here"
        return Producer(self, name, topic)

    def opened(self, name: str, topic: str) -> int:
        """Take a name from whoever had it, with an end to what that one began; the epoch that is the taker's."""
        self.complete(name, topic)
        self.aborted(name, topic)
        self._change(name, topic, epoch=self.names[name, topic].epoch + 1)
        return self.names[name, topic].epoch

    def sent(self, name: str, topic: str, epoch: int, key: int, value: str | None, headers: Mapping[str, str]) -> None:
        """Append a record in the transaction of a name."""
        self._check(name, topic, epoch)
        partition = self.topics[topic][key % 10]
        partition.open = len(partition.records) if partition.open is None else partition.open
        partition.records.append(Record(key, value, headers))

    def told(self, name: str, topic: str, epoch: int, position: str) -> None:
        """Add the position to the transaction."""
        self._check(name, topic, epoch)
        self._change(name, topic, told=position)

    def decided(self, name: str, topic: str, epoch: int) -> None:
        """Commit the transaction: nothing can undo it any more, though nobody sees it yet."""
        self._check(name, topic, epoch)
        self._change(name, topic, decided=True)

    def complete(self, name: str, topic: str) -> None:
        """Tell partitions and group of a transaction that is committed: whoever asks waits for that."""
        known = self.names[name, topic]
        if known.decided:
            self._ended(topic, committed=True)
            position = (known.told,) if known.told is not None else ()
            self._change(name, topic, told=None, decided=False, committed=known.committed + position)

    def aborted(self, name: str, topic: str) -> None:
        """End a transaction that is not committed, as if it had never been."""
        if not self.names[name, topic].decided:
            self._ended(topic, committed=False)
            self._change(name, topic, told=None)

    def forget(self) -> None:
        """Group offsets expire."""
        for name, topic in self.names:
            self._change(name, topic, forgotten=len(self.names[name, topic].committed))

    def newest(self, topic: str, header: str, value: str) -> dict[int, dict[str, str]]:
        """The headers of the newest record of every partition that has one in which a header has this value."""
        found = {}
        for number, partition in enumerate(self.topics[topic]):
            readable = partition.records[partition.first : partition.stable]
            told = [one.headers for one in readable if one.headers.get(header) == value]
            if told:
                found[number] = dict(told[-1])
        return found

    def _ended(self, topic: str, committed: bool) -> None:
        for partition in self.topics[topic]:
            if partition.open is not None:
                self.end(partition, committed)

    def _check(self, name: str, topic: str, epoch: int) -> None:
        if self.names[name, topic].epoch != epoch:
            raise NotCommitted(f"another run publishes {name}, and took over")

    def _change(self, name: str, topic: str, **fields: object) -> None:
        self.names[name, topic] = replace(self.names[name, topic], **fields)  # type: ignore[arg-type]  # they are its own

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
