"""The Kafka cluster of a lake: what the engine reads from it, and the publishers that write to it."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from resources.cluster import CREATION, PAUSE, TIMEOUT, Cluster, Setting
from resources.kafka_options import spark_options
from resources.publisher import POSITION, Publisher

# Transient: the group's coordinator is moving, or a transaction of the group is being committed.
SOON = {
    KafkaError._TIMED_OUT,  # the consumer itself waited for one of these, or no broker answers
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.UNSTABLE_OFFSET_COMMIT,
}


@dataclass(frozen=True, repr=False)
class Kafka(Cluster):
    """One cluster, given by librdkafka's configuration. `spark_options` translates it for Spark."""

    def spark_options(self) -> dict[str, str]:
        """The connection as options of Spark's Kafka source.

        Raises:
            Untranslatable: a security property has no counterpart in Spark's client.
        """
        return spark_options(self.config)

    def published(self, name: str, topic: str, stable: bool = False) -> str | None:
        """The position that the publisher `name` committed last, from its group's offset metadata; None without one.

        With `stable`, waits until no open transaction has an offset of the group.

        Raises:
            KafkaUnavailable: no broker answers, or the wait takes longer than `CREATION` seconds.
        """
        level = "read_committed" if stable else "read_uncommitted"
        # Not the admin client: NOT_COORDINATOR in an answer ends the whole process (librdkafka issue 5040).
        own: dict[str, Setting] = {"group.id": name, "isolation.level": level}
        deadline = time.monotonic() + CREATION
        with closing(self.consumer(**own)) as consumer:
            while True:
                try:
                    [spot] = consumer.committed([TopicPartition(topic, POSITION)], TIMEOUT)
                    if spot.error is None:
                        return None if spot.offset < 0 else str(spot.metadata)
                    raise KafkaException(spot.error)
                except KafkaException as error:
                    if error.args[0].code() not in SOON or time.monotonic() > deadline:
                        raise self.unavailable(error) from error
                self.check_answers()
                time.sleep(PAUSE)

    def publishing(self, name: str, topic: str, exactly_once: bool, alone: bool = False) -> Publisher:
        """The publisher `name`. With `exactly_once`, it fences the previous publisher of that name."""
        return Publisher(self, name, topic, exactly_once, alone)
