"""The format in which a table is published."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

from spark.topology.avro_schema import is_full_name
from spark.topology.calls import checks_calls
from spark.topology.columns import Column
from spark.topology.errors import Place, user_line
from spark.topology.formats import (
    HEADERS,
    WITH_REGISTRY,
    WRITTEN_KEY_FORMATS,
    check_key_format,
    check_registry,
    check_written,
)

SubjectNameStrategy = Literal["topic", "record", "topic_record"]
"""What a subject of a registry is named by, as Confluent's serializers have it."""

_STRATEGIES: Final[tuple[SubjectNameStrategy, ...]] = get_args(SubjectNameStrategy)


@checks_calls
@dataclass(frozen=True)
class Produced:
    """The format of the keys and values of a published topic. `headers` names the column with its records' headers.

    Of a topic in Avro, `name` is the full name of the value's record (None: by the topic), `subject_name_strategy` what
    the subject of the value is named by, and `registry` the URL of the topic's registry (None: that of the settings).
    """

    format: str
    key_format: str = "json"
    headers: str | None = None
    name: str | None = None
    subject_name_strategy: SubjectNameStrategy = "topic"
    registry: str | None = None

    @property
    def needs_registry(self) -> bool:
        """Whether the records name schemas of a registry, in the key or in the value."""
        return not {self.format, self.key_format}.isdisjoint(WITH_REGISTRY)

    @staticmethod
    def json(*, key_format: str = "json", headers: str | None = None) -> Produced:
        """JSON in key and value, or only in the value, as `Consumed.json` reads it.

        Args:
            key_format: the format of the key: "json", "avro", or "kafka" for what Kafka's own serializers write.
            headers: the column whose elements are sent as headers of the record, and which the value then lacks: an
                array<struct<key:string,value:binary>>, as `Consumed.json(..., headers=...)` reads them. A tombstone of
                a table has no such headers.

        Raises:
            TopologyError: there is no such format.
        """
        place = Place("Produced.json", user_line())
        return Produced("json", check_key_format(key_format, place, WRITTEN_KEY_FORMATS), headers)

    @staticmethod
    def avro(
        *,
        name: str | None = None,
        subject_name_strategy: str = "topic",
        registry: str | None = None,
        key_format: str = "avro",
        headers: str | None = None,
    ) -> Produced:
        """Avro with a schema registry in key and value, or only in the value, as `Consumed.avro` reads it.

        The schemas are made from the columns (`docs/formats.md` has the types), and registered before the first record
        that has them. A column that is added or dropped is a new version of the value's schema, if the registry takes
        it. The id of the key's schema is a part of the key's bytes, so a topic keeps the one that it began with.

        Args:
            name: the full name of the value's record, such as "com.shop.Order". A key of several columns is a record
                of this name followed by "Key". By default they are named "Value" and "Key", and the topic is their
                namespace.
            subject_name_strategy: the subject of the value's schema: "topic" for `<topic>-value`, "record" for the
                record's full name, or "topic_record" for `<topic>-<full name>`. The key's is `<topic>-key`.
            registry: the URL of the topic's schema registry, without credentials; by default that of the settings.
            key_format: the format of the key: "avro", "json", or "kafka" for what Kafka's own serializers write.
            headers: the column with the headers of the record, as of `json`.

        Raises:
            TopologyError: there is no such format or strategy; the name is none of Avro, or is missing though the
                subject is named by it; the registry is no URL.
        """
        place = Place("Produced.avro", user_line())
        of_key = check_key_format(key_format, place, WRITTEN_KEY_FORMATS)
        strategy = next((one for one in _STRATEGIES if one == subject_name_strategy), None)
        if strategy is None:
            known = ", ".join(f'"{one}"' for one in _STRATEGIES)
            raise place.mistake(f"subject_name_strategy is {subject_name_strategy!r}", f"write one of {known}")
        if name is not None and (not isinstance(name, str) or not is_full_name(name)):
            do = 'write a full name of Avro, as in "com.shop.Order": words of ASCII letters, digits and _, and dots'
            raise place.mistake(f"name is {name!r}", do)
        if name is None and strategy != "topic":
            what = f"the subject is named by the record ({strategy}), and the record has no name"
            raise place.mistake(what, 'write name="com.shop.Order"')
        return Produced("avro", of_key, headers, name, strategy, check_registry(registry, place))

    @staticmethod
    def kafka(*, key_format: str = "kafka", headers: str | None = None) -> Produced:
        """What Kafka's own serializers write, as `Consumed.kafka` reads it: a key and a value of one column each.

        Floating-point numbers cannot be written. A row whose value is null cannot be sent, because a record without a
        value is a tombstone.

        Args:
            key_format: the format of the key: "kafka", "avro", or "json".
            headers: the column with the headers of the record, as of `json`.

        Raises:
            TopologyError: there is no such format.
        """
        place = Place("Produced.kafka", user_line())
        return Produced("kafka", check_key_format(key_format, place, WRITTEN_KEY_FORMATS), headers)


def check_published(produced: Produced, key: tuple[str, ...], columns: tuple[Column, ...], place: Place) -> None:
    """Check that a key and a value can be written in the format.

    Raises:
        TopologyError: one of them cannot.
    """
    of_key = tuple(column for column in columns if column.name in key)
    of_value = tuple(column for column in columns if column.name not in key and column.name != produced.headers)
    if produced.headers is not None:
        found = next((column for column in columns if column.name == produced.headers and column.name not in key), None)
        if found is None or found.type not in (HEADERS, None):
            what = f"the headers {produced.headers!r} are {'not a column' if found is None else found.type}"
            raise place.mistake(what, f"name a column that is {HEADERS}")
    check_written(produced.key_format, "key", of_key, place)
    check_written(produced.format, "value", of_value, place)


JSON = Produced("json")
"""The default format."""
