"""The ports of the engine: its interfaces to Spark, Kafka and the lake, which `resources` implements."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from pyspark.sql import SparkSession

    from spark.engine.offsets import TopicOffsets
    from spark.serdes.schemas import Schema, SchemaKind
    from spark.topology.topology import Settings


Headers = tuple[tuple[str, bytes | None], ...]
"""Headers of a record in their order: a name and a value each."""


class Engine(Protocol):
    """Spark, with a session for every step."""

    @property
    def width(self) -> int:
        """How many independent statements to run concurrently."""

    @property
    def has_replace_on(self) -> bool:
        """Whether its Delta is known to have the option `replaceOn`; one that does not would replace all rows."""

    def session(self) -> SparkSession:
        """Return a new session; the caller stops it."""

    def plan_for(self, session: SparkSession, size: int) -> None:
        """Let a session plan queries that read so many bytes of files. A new session plans for few."""


class Lakehouse(Protocol):
    """The place of the tables."""

    def table(self, topology: str, name: str) -> str:
        """Return the path of a stored table, or of a landing by its name `_landing/<topic>`."""


class Publisher(Protocol):
    """Sends records to a topic. A commit makes them visible together with a position."""

    def send(
        self, key: bytes | None, value: bytes | None, timestamp: int | None, headers: dict[str, str], more: Headers = ()
    ) -> None:
        """Send a record; its timestamp is in milliseconds since 1970, None for now. `more` headers come first."""

    def commit(self, version: int, position: str) -> None:
        """Commit the records sent so far, with the version as the group's offset and the position as its metadata."""

    def newest(self, header: str, value: str) -> dict[int, dict[str, str]]:
        """Return, by partition, the headers of its newest record whose `header` has this value, if it has one."""


class Kafka(Protocol):
    """The cluster of the topics."""

    def cluster_id(self) -> str:
        """Return the cluster's id."""

    def end_offsets(self, topics: Iterable[str], read_committed: bool = True) -> dict[str, TopicOffsets]:
        """Return the next offset of every partition; with `read_committed` the last stable offset."""

    def beginning_offsets(self, topics: Iterable[str]) -> dict[str, TopicOffsets]:
        """Return the first offset that every partition has."""

    def topic_config(self, topic: str) -> Mapping[str, str] | None:
        """Return the configuration of a topic; None if the cluster does not allow reading it."""

    def spark_options(self) -> Mapping[str, str]:
        """Return the connection as options of Spark's Kafka source."""

    def published(self, name: str, topic: str, stable: bool = False) -> str | None:
        """Return the position that the publisher of a name committed last; None if there is none, or it has expired.

        `stable`: wait until a transaction that is being committed has ended.
        """

    def publishing(
        self, name: str, topic: str, exactly_once: bool, alone: bool = False
    ) -> AbstractContextManager[Publisher]:
        """Return the publisher of a name. With `exactly_once` it fences any earlier publisher of the name.

        `alone`: send every record in a batch of its own, so that an error names the record that the topic refuses.
        """


class Registry(Protocol):
    """The registry of the schemas of topics. Every method raises `RegistryUnavailable` if it does not answer."""

    @property
    def address(self) -> str:
        """Return the URL of the registry, without secrets."""

    def at(self, url: str) -> Registry:
        """Return the registry at a URL; credentials are sent to the URL of the settings only."""

    def schema(self, schema_id: int) -> Schema | None:
        """Return the schema of an id; None if the registry does not have it."""

    def versions(self, subject: str) -> tuple[Schema, ...]:
        """Return the schemas of a subject, by version; empty if the registry does not have the subject."""

    def register(self, subject: str, kind: SchemaKind, text: str) -> int:
        """Register a schema as the newest of a subject, unless the subject has it, and return its id.

        Raises:
            RegistryRefused: the schema is not valid, or is incompatible with the subject's; or the credentials may not
                write it.
        """

    def compatibility(self, subject: str) -> str:
        """Return the compatibility that is required of the schemas of a subject, such as BACKWARD."""


@dataclass(frozen=True)
class Ports:
    """The interfaces, passed to every operation. Without a registry, only formats that need none can be read."""

    engine: Engine
    lakehouse: Lakehouse
    kafka: Kafka
    registry: Registry | None = None


@contextmanager
def opened(engine: Engine, settings: Settings | None = None) -> Iterator[SparkSession]:
    """Yield a new session, with the rules of a topology's settings, and stop it when the block ends."""
    session = engine.session()
    try:
        if settings is not None:
            session.conf.set("spark.sql.ansi.enabled", str(settings.ansi).lower())
        yield session
    finally:
        session.stop()
