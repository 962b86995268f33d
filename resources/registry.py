"""A schema registry with Confluent's API."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TypeVar, cast

from confluent_kafka.schema_registry import Schema as ClientSchema
from confluent_kafka.schema_registry import SchemaRegistryClient, SchemaRegistryError

# The library chooses one of two HTTP clients, and raises the errors of that one.
from confluent_kafka.schema_registry.common._httpx_compat import httpx

from spark.engine.errors import RegistryRefused, RegistryUnavailable
from spark.serdes.schemas import Schema, SchemaKind

Answer = TypeVar("Answer")

TIMEOUT = 10  # seconds for an answer, as for Kafka
QUICK = {"timeout": TIMEOUT, "max.retries": 3, "retries.wait.ms": 200, "retries.max.wait.ms": 2000}

NO_SUBJECT, NO_VERSION, NO_SCHEMA = 40401, 40402, 40403
"""Error codes of Confluent's API. A server that is no registry answers 404 without them."""

REFUSED = (409, 422)
"""HTTP codes: the schema is incompatible with the subject's, or is not valid."""

FORBIDDEN = (401, 403)
"""HTTP codes: the credentials do not suffice."""


@dataclass(frozen=True, repr=False)
class Registry:
    """One registry, given by the configuration of confluent-kafka's client. `setting` says where its URL was written.

    Schemas are immutable and are read once per process.
    """

    config: Mapping[str, str]
    setting: str = "TIDETABLE_SCHEMA_REGISTRY_URL"
    _schemas: dict[int, Schema | None] = field(default_factory=dict, compare=False)
    _versions: dict[tuple[str, int], Schema] = field(default_factory=dict, compare=False)

    def __repr__(self) -> str:
        """The address only, because the configuration may contain passwords."""
        return f"{type(self).__name__}({self.address})"

    @property
    def address(self) -> str:
        """The URL of the registry; it has no secrets."""
        return self.config["url"]

    def check(self) -> None:
        """Read the certificates and the key of the configuration. Asks nothing.

        Raises:
            OSError: a file cannot be read, or is not what it should be (`ssl.SSLError`).
            ValueError: the configuration contradicts itself.
        """
        _ = self._client

    def at(self, url: str) -> Registry:
        """The registry at a URL. Credentials are sent only to the URL of the settings."""
        return self if url.rstrip("/") == self.address.rstrip("/") else _other(url)

    def schema(self, schema_id: int) -> Schema | None:
        """The schema of an id, with those that it refers to; None if the registry does not have the id.

        Raises:
            RegistryUnavailable: the registry does not answer.
        """
        if schema_id not in self._schemas:
            found = self._ask(lambda client: client.get_schema(schema_id), NO_SCHEMA)
            if found is None:
                return None  # it may be registered later
            self._schemas[schema_id] = self._complete(schema_id, found)
        return self._schemas[schema_id]

    def versions(self, subject: str) -> tuple[Schema, ...]:
        """The schemas of a subject, by version; empty if the registry does not have the subject.

        Raises:
            RegistryUnavailable: the registry does not answer.
        """
        numbers = self._ask(lambda client: client.get_versions(subject), NO_SUBJECT) or []
        found = (self._version(subject, number) for number in sorted(numbers))
        return tuple(schema for schema in found if schema is not None)

    def register(self, subject: str, kind: SchemaKind, text: str) -> int:
        """Register a schema as the newest version of a subject, unless it has it, and return its id.

        Raises:
            RegistryRefused: the schema is not valid, or is incompatible with the subject's; or the credentials do not
                suffice (`forbidden`).
            RegistryUnavailable: the registry does not answer.
        """
        schema = ClientSchema(text, kind)
        try:
            number = self._ask(lambda client: client.register_schema(subject, schema), refused=(*REFUSED, *FORBIDDEN))
            return cast(int, number)
        except SchemaRegistryError as error:
            if error.http_status_code in FORBIDDEN:
                raise RegistryRefused(
                    f"the registry {self.address}: these credentials may not write {subject} "
                    f"({error.http_status_code}): register this schema first: {text}",
                    forbidden=True,
                ) from error
            raise RegistryRefused(
                f"the registry {self.address} refuses the {kind} schema for the subject {subject}: "
                f"{error.error_message}. Its compatibility is {self.compatibility(subject)}"
            ) from error

    def compatibility(self, subject: str) -> str:
        """The compatibility that the registry requires of the schemas of a subject, such as BACKWARD.

        Raises:
            RegistryUnavailable: the registry does not answer.
        """
        own = self._ask(lambda client: client.get_compatibility(subject), NO_SUBJECT, 40408)
        return str(own or self._ask(lambda client: client.get_compatibility()))

    def _version(self, subject: str, number: int) -> Schema | None:
        # A version that was deleted may come again with another schema, but then with another number.
        if (subject, number) not in self._versions:
            found = self._ask(lambda client: client.get_version(subject, number), NO_VERSION, NO_SUBJECT)
            if found is None or found.schema_id is None:
                return None  # deleted since
            schema = self._complete(found.schema_id, found.schema)
            self._versions[subject, number] = schema
            self._schemas[found.schema_id] = schema
        return self._versions[subject, number]

    def _complete(self, schema_id: int, schema: ClientSchema) -> Schema:
        """A schema with the texts of those that it refers to, in an order in which each is known before it is used."""
        texts: dict[str, None] = {}
        for reference in schema.references or []:
            referred = self._version(str(reference.subject), int(reference.version or 0))
            if referred is None:
                raise RegistryUnavailable(
                    f"the registry {self.address} does not have version {reference.version} of the subject "
                    f"{reference.subject}, to which the schema {schema_id} refers"
                )
            texts |= dict.fromkeys((*referred.references, referred.text))
        kind = cast(SchemaKind, schema.schema_type or "AVRO")
        return Schema(schema_id, kind, str(schema.schema_str), tuple(texts))

    def _ask(
        self, question: Callable[[SchemaRegistryClient], Answer], *absent: int, refused: tuple[int, ...] = REFUSED
    ) -> Answer | None:
        """The answer of the registry; None if it answers that there is none, by one of the error codes `absent`.

        Raises:
            SchemaRegistryError: it answers with one of the HTTP codes `refused`.
            RegistryUnavailable: it does not answer, or answers with another code.
        """
        try:
            return question(self._client)
        except SchemaRegistryError as error:
            if error.error_code in absent:
                return None
            if error.http_status_code in refused:
                raise
            raise self._unavailable(str(error)) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._unavailable(f"{type(error).__name__}: {error}") from error
        except ValueError as error:  # an answer that is not JSON
            raise self._unavailable("it does not answer as a registry") from error

    def _unavailable(self, why: str) -> RegistryUnavailable:
        return RegistryUnavailable(f"the schema registry at {self.address} ({self.setting}) does not answer: {why}")

    @cached_property
    def _client(self) -> SchemaRegistryClient:
        client = SchemaRegistryClient({**self.config, **QUICK})
        weakref.finalize(self, client.close)
        return client


@lru_cache
def _other(url: str) -> Registry:
    """The registry of a topic that names its own; one for each URL, because it holds the schemas that it has read."""
    return Registry({"url": url}, "registry= of the topic")
