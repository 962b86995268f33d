"""The declaration of a topic's columns, as DDL text."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, get_args

from spark.topology.calls import checks_calls
from spark.topology.columns import Column
from spark.topology.envelope import PLACEHOLDER, Envelope, TimeUnit
from spark.topology.errors import Place, user_line
from spark.topology.formats import HEADERS, KEY_FORMATS, check_held, check_key_format, check_registry
from spark.topology.protobuf import FORMAT as PROTOBUF
from spark.topology.protobuf import Message, check_message, message_of
from spark.topology.sql.ddl import legal_name, parse_columns
from spark.topology.sql.expressions import column_named

# Spark cannot compare maps and variants, and floats with equal text may differ in the last bit.
_NO_KEY = ("array<", "map<", "struct<", "variant", "float", "double")
_NO_EQUALITY = re.compile(r"(?<![^:<,])(?:variant(?![^,>])|map<)")  # as types, not as parts of names
# A bigint holds milliseconds since 1970, as Kafka's own timestamps do.
_EVENT_TIMES = ("timestamp", "timestamp_ntz", "date", "bigint")
_DEBEZIUM_FORMATS: Final = ("json", "json_with_schemas", "avro")
_TIME_UNITS: Final[tuple[TimeUnit, ...]] = get_args(TimeUnit)


@checks_calls
@dataclass(frozen=True)
class Consumed:
    """The columns of a topic. `timestamp` names the column with the event time.

    `format` and `key_format` name the serdes of value and key. `again` are the columns that key and value both have.
    They are columns of the key, and their values must be equal. `headers` names the column with the record's headers.
    `envelope` is the form of a Debezium topic.
    `registry` is the URL of the topic's schema registry; None for that of the settings.
    `message` and `key_message` are the Protobuf messages of value and key.
    """

    format: str
    key: tuple[Column, ...]
    value: tuple[Column, ...]
    timestamp: str | None = None
    again: tuple[Column, ...] = ()
    key_format: str = "json"
    envelope: Envelope | None = None
    headers: str | None = None
    registry: str | None = None
    message: Message | None = None
    key_message: Message | None = None

    @property
    def reads_headers(self) -> bool:
        """Whether the headers of its records are read: into a column, or as a part of the envelope."""
        return self.headers is not None or self.envelope is not None

    @property
    def columns(self) -> tuple[Column, ...]:
        """The key's columns, then the value's, then the one with the record's headers, if it was asked for."""
        return self.key + self.value + (() if self.headers is None else (Column(self.headers, HEADERS),))

    @staticmethod
    def json(
        *, key: str, value: str, timestamp: str | None = None, key_format: str = "json", headers: str | None = None
    ) -> Consumed:
        """JSON in key and value, or only in the value.

        Args:
            key: the key's columns, such as "order_id bigint".
            value: the value's columns, such as "amount decimal(12,2)". It may repeat columns of the key with the same
                type; a record in which key and value differ goes into quarantine.
            timestamp: the column with the event time; by default the timestamp of the Kafka record.
            key_format: the format of the key: "json", or "kafka" for what Kafka's own serializers write.
            headers: the name of one more column, which gets the record's headers in their order, as
                array<struct<key:string,value:binary>>; null without any. By default headers are not read.

        Raises:
            TopologyError: the text is no DDL, or a column cannot be stored, compared or used as a key, or the format of
                the key cannot hold it.
        """
        return _declared("json", key, value, timestamp, key_format, Place("Consumed.json", user_line()), headers)

    @staticmethod
    def avro(
        *,
        key: str,
        value: str,
        timestamp: str | None = None,
        registry: str | None = None,
        key_format: str = "avro",
        headers: str | None = None,
    ) -> Consumed:
        """Avro with a schema registry in key and value, or only in the value.

        The declared columns are those that a schema has under these names. Each record is read by the schema that it
        names, and converted to the declared types. `docs/formats.md` has the types. No network is needed to build a
        topology: schemas are read, and compared with the declaration, when the topic lands. `tidetable schema declare
        TOPIC` prints the declaration of a topic.

        Args:
            key: the key's columns, such as "order_id bigint".
            value: the value's columns, such as "amount decimal(12,2)". It may repeat columns of the key with the same
                type; a record in which key and value differ goes into quarantine.
            timestamp: the column with the event time; by default the timestamp of the Kafka record.
            registry: the URL of the topic's schema registry, without credentials; by default that of the settings.
            key_format: the format of the key: "avro", "json", or "kafka" for what Kafka's own serializers write.
            headers: the name of one more column, with the record's headers, as of `json`.

        Raises:
            TopologyError: the text is no DDL, or a column cannot be stored, compared or used as a key, or the format
                cannot hold it, or the registry is no URL.
        """
        place = Place("Consumed.avro", user_line())
        consumed = _declared("avro", key, value, timestamp, key_format, place, headers)
        return replace(consumed, registry=check_registry(registry, place))

    @staticmethod
    def json_schema(
        *,
        key: str,
        value: str,
        timestamp: str | None = None,
        key_format: str = "json_schema",
        headers: str | None = None,
    ) -> Consumed:
        """JSON with a schema of a registry, as Confluent's serializers of JSON Schema write it.

        A byte 0 and the id of the schema in four bytes are before the JSON. The schema is not read: the declared
        columns say what is, as of `json`.

        Args:
            key: the key's columns, such as "order_id bigint".
            value: the value's columns, such as "amount decimal(12,2)".
            timestamp: the column with the event time; by default the timestamp of the Kafka record.
            key_format: the format of the key: "json_schema", "json", "avro", or "kafka" for what Kafka's own
                serializers write.
            headers: the name of one more column, with the record's headers, as of `json`.

        Raises:
            TopologyError: as `json`.
        """
        place = Place("Consumed.json_schema", user_line())
        return _declared("json_schema", key, value, timestamp, key_format, place, headers)

    @staticmethod
    def protobuf(
        *,
        key: str,
        value: str,
        message: str,
        descriptors: str | Path | bytes,
        key_message: str | None = None,
        timestamp: str | None = None,
        key_format: str = "protobuf",
        headers: str | None = None,
    ) -> Consumed:
        """Protobuf in key and value, or only in the value.

        The declared columns are fields of the message; `docs/formats.md` has the types. They are checked when the
        topology is built, and no registry is asked: a message is read by the schema that is declared here. Records may
        have the framing of a registry, as Confluent's serializers write it.

        Args:
            key: the key's columns, such as "order_id bigint".
            value: the value's columns, such as "customer_id bigint, note string". It may repeat columns of the key with
                the same type; a record in which key and value differ goes into quarantine.
            message: the full name of the value's message, such as "shop.Order".
            descriptors: a FileDescriptorSet with the messages and all their imports, as bytes, or the path of its file:
                what `protoc --include_imports --descriptor_set_out=FILE` makes. A relative path is relative to the
                folder of the file that declares the topic.
            key_message: the full name of the key's message, for a key in Protobuf.
            timestamp: the column with the event time; by default the timestamp of the Kafka record.
            key_format: the format of the key: "protobuf", "avro", "json", "json_schema", or "kafka" for what Kafka's
                own serializers write.
            headers: the name of one more column, with the record's headers, as of `json`.

        Raises:
            TopologyError: as `json`; or the descriptors cannot be read or lack a file, or they have no such message, or
                the message has no such field, or not of this type.
        """
        place = Place("Consumed.protobuf", user_line())
        consumed = _declared(PROTOBUF, key, value, timestamp, key_format, place, headers)
        found = message_of(message, descriptors, place)
        check_message(found, consumed.value + consumed.again, place)
        if consumed.key_format != PROTOBUF:
            if key_message is not None:
                raise place.mistake(
                    f"key_message is {key_message!r}, and key_format is {key_format!r}", "leave one out"
                )
            return replace(consumed, message=found)
        if key_message is None:
            do = 'write key_message="shop.OrderKey", or the format of the key, such as key_format="kafka"'
            raise place.mistake("the key has no message", do)
        of_key = message_of(key_message, descriptors, place, "key_message")
        check_message(of_key, consumed.key, place)
        return replace(consumed, message=found, key_message=of_key)

    @staticmethod
    def kafka(
        *, key: str, value: str, timestamp: str | None = None, key_format: str = "kafka", headers: str | None = None
    ) -> Consumed:
        """What Kafka's own serializers write, in key and value, or only in the value: one column each.

        The type of a column says which serializer it was: smallint, int, bigint, float, double and boolean are those of
        Short, Integer, Long, Float, Double and Boolean, string is StringSerializer and UUIDSerializer, binary is
        ByteArraySerializer. A record without a value is a tombstone; a text or a binary of length 0 is a value.

        Args:
            key: the key's column, such as "user_id bigint".
            value: the value's column, such as "line string".
            timestamp: the column with the event time; by default the timestamp of the Kafka record.
            key_format: the format of the key: "kafka", or "json".
            headers: the name of one more column, with the record's headers, as of `json`.

        Raises:
            TopologyError: the text is no DDL, or declares several columns, or one of a type without a serializer.
        """
        return _declared("kafka", key, value, timestamp, key_format, Place("Consumed.kafka", user_line()), headers)

    @staticmethod
    def debezium(
        *,
        key: str,
        value: str,
        format: str = "json",
        truncate: bool = False,
        time_unit: str | None = None,
        placeholder: str = PLACEHOLDER,
        flattened: bool = False,
        registry: str | None = None,
    ) -> Consumed:
        """The changes of a database table, as a Debezium connector writes them: the table is the database's table.

        A row is the state after the newest event of its key (`after`). An event that deletes, and a tombstone, delete
        it. The event time is the time of the change in the database (`source.ts_ms`). A value that an event leaves out,
        because the database did not log it, is that of the newest earlier event that has it.

        Args:
            key: the columns of the table's primary key, such as "order_id bigint".
            value: the other columns that are wanted, such as "amount decimal(12,2)". It may repeat columns of the key.
            format: "json" (`value.converter.schemas.enable=false`), "json_with_schemas", or "avro" with a schema
                registry.
            truncate: whether an event that empties the table (`TRUNCATE`, which the connector skips unless
                `skipped.operations` is changed) is applied. The topic must have one partition: the event has no key, so
                it has no order among the records of other partitions. If False, such an event goes into quarantine.
            time_unit: "milliseconds", "microseconds" or "nanoseconds": the unit of timestamps that are numbers in JSON
                without schemas, which does not say it. Without it, such a record goes into quarantine. The connector
                writes microseconds for a `timestamp`, milliseconds for a `timestamp(3)` or if `time.precision.mode` is
                "connect".
            placeholder: the connector's `unavailable.value.placeholder`.
            flattened: whether the transformation `ExtractNewRecordState` has removed the envelope. The value is the row
                then. It is deleted by a tombstone, or if `__deleted` is "true" or `__op` is "d"; the event time is
                `__source_ts_ms` if the record has it, and the timestamp of the Kafka record if not.
            registry: with format "avro", the URL of the topic's schema registry, as of `avro`.

        Raises:
            TopologyError: as `Consumed.avro`; or there is no such format or unit.
        """
        place = Place("Consumed.debezium", user_line())
        if format not in _DEBEZIUM_FORMATS:
            raise place.mistake(f"format is {format!r}", 'write "json", "json_with_schemas" or "avro"')
        for name, flag in (("truncate", truncate), ("flattened", flattened)):
            if not isinstance(flag, bool):
                raise place.mistake(f"{name} is {flag!r}", "write True or False")
        unit = next((one for one in _TIME_UNITS if one == time_unit), None)
        if time_unit is not None and unit is None:
            units = ", ".join(f'"{one}"' for one in _TIME_UNITS)
            raise place.mistake(f"time_unit is {time_unit!r}", f"write one of {units}, or leave it out")
        if not isinstance(placeholder, str) or not placeholder:
            do = "write the connector's unavailable.value.placeholder, or leave it out"
            raise place.mistake(f"placeholder is {placeholder!r}", do)
        check_registry(registry, place)
        if registry is not None and format != "avro":
            raise place.mistake(f"format is {format!r}, which has no registry", 'write format="avro", or no registry')
        parts = "avro" if format == "avro" else "json"
        consumed = _declared(parts, key, value, None, parts, place)
        schemas = format == "json_with_schemas"
        envelope = Envelope(schemas, flattened, truncate, unit, placeholder)
        return replace(consumed, envelope=envelope, registry=registry)


@checks_calls
@dataclass(frozen=True)
class Versioned:
    """A table whose newest record is the one with the greatest timestamp (KIP-889).

    An out-of-order record does not update the row. `history`, such as "7d", is how far back a record of a stream can
    look up an earlier version. Records of the table that are older than that are accepted.
    """

    history: str


def _declared(
    format_: str,
    key: str,
    value: str,
    timestamp: str | None,
    key_format: object,
    place: Place,
    headers: str | None = None,
) -> Consumed:
    """The declared columns, checked by the rules for every format."""
    keys = parse_columns(key, replace(place, node=f"{place.node} key"))
    values = parse_columns(value, replace(place, node=f"{place.node} value"))
    only_value = tuple(column for column in values if column_named(column.name, keys) is None)
    place = replace(place, columns={"key": keys, "value": values})
    check_key(keys, place)
    _check_same_types(keys, values, place)
    check_comparable(only_value, place)
    of_key = check_key_format(key_format, place, (*KEY_FORMATS, PROTOBUF) if format_ == PROTOBUF else KEY_FORMATS)
    check_held(of_key, "key", keys, place)
    check_held(format_, "value", values, place)
    time = None if timestamp is None else _event_time(timestamp, keys + only_value, place)
    again = tuple(column for column in values if column not in only_value)
    if headers is not None and column_named(legal_name(headers, place), keys + only_value) is not None:
        raise place.mistake(f"{headers!r} is already a column", "choose another name for the headers")
    return Consumed(format_, keys, only_value, time, again, of_key, headers=headers)


def check_key(key: tuple[Column, ...], place: Place) -> None:
    """Refuse key columns of types without exact equality."""
    for column in key:
        if column.type is not None and column.type.startswith(_NO_KEY):
            what = f"the key column {column.name!r} is {column.type}, and a key needs exact equality"
            do = "make it an integer, decimal, string, boolean, binary, date or timestamp"
            raise place.mistake(what, do)


def check_comparable(columns: tuple[Column, ...], place: Place) -> None:
    """Refuse columns that a MERGE cannot compare: it writes only the rows that differ."""
    for column in columns:
        kind = column.type or ""
        inside = kind.removeprefix("map<") if kind.startswith("map<") else kind
        if _NO_EQUALITY.search(inside):
            what = f"the column {column.name!r} is {kind}, and Spark cannot compare a variant or a nested map"
            raise place.mistake(what, f"make {column.name} a string with the JSON text, or a struct")


def _check_same_types(keys: tuple[Column, ...], values: tuple[Column, ...], place: Place) -> None:
    """Refuse a column with different types in key and value."""
    for column in values:
        same = column_named(column.name, keys)
        if same is not None and same.type != column.type:
            what = f"{same.name!r} is {same.type} in the key and {column.type} in the value"
            raise place.mistake(what, "declare it with the same type in both, or leave it out of the value")


def _event_time(timestamp: str, columns: tuple[Column, ...], place: Place) -> str:
    column = column_named(timestamp, columns) if isinstance(timestamp, str) else None
    if column is None or column.type not in _EVENT_TIMES:
        what = f"the timestamp {timestamp!r} is {'not a column' if column is None else column.type}"
        do = "name a column that is a timestamp, timestamp_ntz, date, or bigint (milliseconds since 1970)"
        raise place.mistake(what, do)
    return column.name
