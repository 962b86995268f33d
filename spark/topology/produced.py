"""The format in which a table is published."""

from __future__ import annotations

from dataclasses import dataclass

from spark.topology.calls import checks_calls
from spark.topology.columns import Column
from spark.topology.errors import Place, user_line
from spark.topology.formats import HEADERS, WRITTEN_KEY_FORMATS, check_key_format, check_written


@checks_calls
@dataclass(frozen=True)
class Produced:
    """The format of the keys and values of a published topic. `headers` names the column with its records' headers."""

    format: str
    key_format: str = "json"
    headers: str | None = None

    @staticmethod
    def json(*, key_format: str = "json", headers: str | None = None) -> Produced:
        """JSON in key and value, or only in the value, as `Consumed.json` reads it.

        Args:
            key_format: the format of the key: "json", or "kafka" for what Kafka's own serializers write.
            headers: the column whose elements are sent as headers of the record, and which the value then lacks: an
                array<struct<key:string,value:binary>>, as `Consumed.json(..., headers=...)` reads them. A tombstone of
                a table has no such headers.

        Raises:
            TopologyError: there is no such format.
        """
        place = Place("Produced.json", user_line())
        return Produced("json", check_key_format(key_format, place, WRITTEN_KEY_FORMATS), headers)

    @staticmethod
    def kafka(*, key_format: str = "kafka", headers: str | None = None) -> Produced:
        """What Kafka's own serializers write, as `Consumed.kafka` reads it: a key and a value of one column each.

        Floating-point numbers cannot be written. A row whose value is null cannot be sent, because a record without a
        value is a tombstone.

        Args:
            key_format: the format of the key: "kafka", or "json".
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
