"""Clients, topics and offsets of one Kafka cluster."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
    TopicDescription,
)

from spark.engine.offsets import KafkaUnavailable, TopicMissing, TopicOffsets

TIMEOUT = 10.0  # seconds: longer than a leader election, and as long as a user waits for an answer
CREATION = 60.0  # seconds until a new topic can be read: measured, a loaded broker takes 3, a cold one 10
QUIET = {"log_level": 0}  # a client logs connection failures some 20 times a second; our errors report them
PAUSE = 0.1  # seconds between two requests to a cluster that is not ready yet

# Transient: a partition that was just created, or whose leader moves, has no leader.
UNSETTLED = {
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.UNKNOWN_LEADER_EPOCH,  # the client knows of a newer leader than the broker
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError._NOENT,  # none of the requested partitions has a leader
}

# No broker answered; only connection errors have the reason.
SILENT = {KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN}

# The client is not authorized to read the settings of a topic.
REFUSED = {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED}

Setting = str | int | float | bool
"""The value of a setting of librdkafka."""


@dataclass(frozen=True, repr=False)
class Cluster:
    """One cluster, given by librdkafka's configuration."""

    config: Mapping[str, str]

    def __repr__(self) -> str:
        """The address only, because the configuration may contain passwords."""
        return f"{type(self).__name__}({self.address})"

    @property
    def address(self) -> str:
        """The bootstrap servers."""
        return self.config.get("bootstrap.servers", "")

    def consumer(self, **extra: Setting) -> Consumer:
        """A consumer without automatic commits and automatic offset resets."""
        own: dict[str, Setting] = {"enable.auto.commit": False, "auto.offset.reset": "error"}
        return Consumer({**own, **self.config, **QUIET, **extra})

    def producer(self, **extra: Setting) -> Producer:
        """An idempotent producer: its retries write no record twice."""
        return Producer({"enable.idempotence": True, **self.config, **QUIET, **extra})

    def admin(self) -> AdminClient:
        """The admin client, shared by all calls: a new one for each call would open new connections."""
        self._admin.poll(0)  # serves its connection errors, which would otherwise accumulate
        return self._admin

    def cluster_id(self) -> str:
        """The id of the cluster.

        Raises:
            KafkaUnavailable: no broker answers.
        """
        return self._cluster_id

    def end_offsets(self, topics: Iterable[str], read_committed: bool = True) -> dict[str, TopicOffsets]:
        """The end offset of every partition, by topic; with `read_committed`, the last stable offset.

        Raises:
            TopicMissing: one of the topics does not exist.
            KafkaUnavailable: no broker answers, or it refuses.
        """
        level = IsolationLevel.READ_COMMITTED if read_committed else IsolationLevel.READ_UNCOMMITTED
        return self._offsets(topics, OffsetSpec.latest(), level)

    def beginning_offsets(self, topics: Iterable[str]) -> dict[str, TopicOffsets]:
        """The first offset that every partition holds, by topic.

        Raises:
            TopicMissing: one of the topics does not exist.
            KafkaUnavailable: no broker answers, or it refuses.
        """
        return self._offsets(topics, OffsetSpec.earliest(), IsolationLevel.READ_UNCOMMITTED)

    def partitions(self, topics: Iterable[str]) -> dict[str, int]:
        """The number of partitions of each of these topics; topics that do not exist are left out."""
        found = {name: self._described(future) for name, future in self._describe(topics).items()}
        return {name: len(topic.partitions) for name, topic in found.items() if topic is not None}

    def topic_config(self, topic: str) -> dict[str, str] | None:
        """The settings of a topic, including defaults; None if the client is not authorized to read them."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        try:
            found = self.admin().describe_configs([resource], request_timeout=TIMEOUT)[resource].result()
        except KafkaException as error:
            if error.args[0].code() in REFUSED:
                return None
            raise self.unavailable(error) from error
        return {name: entry.value for name, entry in found.items() if entry.value is not None}

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        """Create the topic unless it exists, and wait until it can be read."""
        topic = NewTopic(name, num_partitions=partitions, config=dict(config or {}))
        try:
            self.admin().create_topics([topic], request_timeout=TIMEOUT)[name].result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise self.unavailable(error) from error
        spots = [TopicPartition(name, partition) for partition in range(partitions)]
        self._list(spots, OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED, CREATION)

    def unavailable(self, error: KafkaException) -> KafkaUnavailable:
        """Convert a client error to `KafkaUnavailable`; a timeout gets the last connection error as its reason."""
        self._admin.poll(0)
        said = error.args[0]
        if said.code() not in SILENT:
            return KafkaUnavailable(f"Kafka at {self.address} refuses: {said.str()}")
        reason = self._trouble[-1] if self._trouble else said.str()
        return KafkaUnavailable(
            f"Kafka at {self.address} does not answer: {reason}. Check the address and that its brokers run"
        )

    def check_answers(self) -> None:
        """Check that a broker answers.

        Raises:
            KafkaUnavailable: none does.
        """
        try:
            self.admin().list_topics(timeout=TIMEOUT)
        except KafkaException as error:
            raise self.unavailable(error) from error

    @cached_property
    def _admin(self) -> AdminClient:
        return AdminClient({**self.config, **QUIET}, error_cb=self._note)

    @cached_property
    def _cluster_id(self) -> str:
        try:
            return str(self.admin().describe_cluster(request_timeout=TIMEOUT).result().cluster_id)
        except KafkaException as error:
            raise self.unavailable(error) from error

    @cached_property
    def _trouble(self) -> deque[str]:
        """The last connection error: the reason of a timeout."""
        return deque(maxlen=1)

    def _note(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:  # adds nothing to the timeout
            self._trouble.append(error.str())

    def _offsets(self, topics: Iterable[str], spec: OffsetSpec, level: IsolationLevel) -> dict[str, TopicOffsets]:
        found = {name: self._described(future) for name, future in self._describe(topics).items()}
        if missing := [name for name, topic in found.items() if topic is None]:
            several = "topics" if len(missing) > 1 else "topic"
            raise TopicMissing(
                f"Kafka at {self.address} has no {several} {', '.join(map(repr, missing))}; correct the topology, or "
                f"run `tidetable topics create TOPOLOGY`, which creates those of its topics that are not there"
            )
        described = [topic for topic in found.values() if topic is not None]
        spots = [TopicPartition(topic.name, partition.id) for topic in described for partition in topic.partitions]
        offsets = self._list(spots, spec, level)
        return {
            topic.name: TopicOffsets(str(topic.topic_id), {p.id: offsets[topic.name, p.id] for p in topic.partitions})
            for topic in described
        }

    def _describe(self, topics: Iterable[str]) -> dict[str, Future[TopicDescription]]:
        return self.admin().describe_topics(TopicCollection(sorted(set(topics))), request_timeout=TIMEOUT)

    def _described(self, future: Future[TopicDescription]) -> TopicDescription | None:
        """The description of a topic; None if the topic does not exist."""
        try:
            return future.result()
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return None
            raise self.unavailable(error) from error

    def _list(
        self, spots: Iterable[TopicPartition], spec: OffsetSpec, level: IsolationLevel, patience: float = TIMEOUT
    ) -> dict[tuple[str, int], int]:
        """The requested offsets by topic and partition. Repeats the request while a partition has no leader."""
        wanted = dict.fromkeys(spots, spec)
        deadline = time.monotonic() + patience
        while True:
            asked = self.admin().list_offsets(wanted, isolation_level=level, request_timeout=TIMEOUT)
            try:
                return {(spot.topic, spot.partition): future.result().offset for spot, future in asked.items()}
            except KafkaException as error:
                if error.args[0].code() not in UNSETTLED or time.monotonic() > deadline:
                    raise self.unavailable(error) from error
            with suppress(KafkaException):
                self._admin.list_topics(timeout=TIMEOUT)  # else librdkafka caches for minutes that there is no leader
            time.sleep(PAUSE)
