"""What the engine needs of the world outside; `resources` has the real ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from contextlib import AbstractContextManager

    from pyspark.sql import SparkSession

    from spark.engine.offsets import TopicOffsets


class Engine(Protocol):
    """Spark, by sessions of its own for every step."""

    def session(self) -> SparkSession:
        """A new session; the caller stops it."""


class Lakehouse(Protocol):
    """Where tables are."""

    def table(self, topology: str, name: str) -> str:
        """The path of a stored table, or of a landing by its name `_landing/<topic>`."""


class Publisher(Protocol):
    """Sends records to a topic, which are there together with a position once that is committed."""

    def send(self, key: bytes | None, value: bytes | None, timestamp: int | None, headers: dict[str, str]) -> None:
        """Send a record; a timestamp is in milliseconds since 1970, None is now."""

    def commit(self, version: int, position: str) -> None:
        """Commit what was sent, and how far that is."""

    def newest(self, header: str, value: str) -> dict[int, dict[str, str]]:
        """The headers of the newest record of every partition that has one in which a header has this value."""


class Kafka(Protocol):
    """Where topics are."""

    def cluster_id(self) -> str:
        """The cluster's own id."""

    def end_offsets(self, topics: Iterable[str], read_committed: bool = True) -> dict[str, TopicOffsets]:
        """The next offset of every partition: the last stable one under read_committed."""

    def beginning_offsets(self, topics: Iterable[str]) -> dict[str, TopicOffsets]:
        """The first offset that every partition still holds."""

    def topic_config(self, topic: str) -> Mapping[str, str] | None:
        """The settings of a topic; None where the cluster does not tell us."""

    def spark_options(self) -> Mapping[str, str]:
        """The connection, as options of Spark's Kafka source."""

    def published(self, name: str, topic: str, stable: bool = False) -> str | None:
        """What the publisher of a name committed last with a position; None where there is none, or none any more.

        `stable`: waits until a transaction that is just being committed is.
        """

    def publishing(
        self, name: str, topic: str, exactly_once: bool, alone: bool = False
    ) -> AbstractContextManager[Publisher]:
        """The one publisher of a name. Exactly once, it takes the name from whoever had it.

        `alone`: it sends every record in a batch of its own, so that it can say which one the topic refuses.
        """


@dataclass(frozen=True)
class Doors:
    """Everything outside, passed to every verb."""

    engine: Engine
    lakehouse: Lakehouse
    kafka: Kafka
