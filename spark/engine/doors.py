"""What the engine needs of the world outside; `resources` has the real ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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


class Kafka(Protocol):
    """Where topics are."""

    def cluster_id(self) -> str:
        """The cluster's own id."""

    def end_offsets(self, topics: Iterable[str], read_committed: bool = True) -> dict[str, TopicOffsets]:
        """The next offset of every partition: the last stable one under read_committed."""

    def beginning_offsets(self, topics: Iterable[str]) -> dict[str, TopicOffsets]:
        """The first offset that every partition still holds."""

    def spark_options(self) -> Mapping[str, str]:
        """The connection, as options of Spark's Kafka source."""


@dataclass(frozen=True)
class Doors:
    """Everything outside, passed to every verb."""

    engine: Engine
    lakehouse: Lakehouse
    kafka: Kafka
