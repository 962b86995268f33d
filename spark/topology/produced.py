"""The format in which a table is published."""

from __future__ import annotations

from dataclasses import dataclass

from spark.topology.calls import checks_calls
from spark.topology.columns import Column
from spark.topology.errors import Place, user_line
from spark.topology.formats import check_key_format, check_written


@checks_calls
@dataclass(frozen=True)
class Produced:
    """The format of the keys and values of a published topic."""

    format: str
    key_format: str = "json"

    @staticmethod
    def json(*, key_format: str = "json") -> Produced:
        """JSON in key and value, or only in the value, as `Consumed.json` reads it.

        Args:
            key_format: the format of the key: "json", or "kafka" for what Kafka's own serializers write.

        Raises:
            TopologyError: there is no such format.
        """
        return Produced("json", check_key_format(key_format, Place("Produced.json", user_line())))

    @staticmethod
    def kafka(*, key_format: str = "kafka") -> Produced:
        """What Kafka's own serializers write, as `Consumed.kafka` reads it: a key and a value of one column each.

        Floating-point numbers cannot be written. A row whose value is null cannot be sent, because a record without a
        value is a tombstone.

        Args:
            key_format: the format of the key: "kafka", or "json".

        Raises:
            TopologyError: there is no such format.
        """
        return Produced("kafka", check_key_format(key_format, Place("Produced.kafka", user_line())))


def check_published(produced: Produced, key: tuple[str, ...], columns: tuple[Column, ...], place: Place) -> None:
    """Check that a key and a value can be written in the format.

    Raises:
        TopologyError: one of them cannot.
    """
    of_key = tuple(column for column in columns if column.name in key)
    of_value = tuple(column for column in columns if column.name not in key)
    check_written(produced.key_format, "key", of_key, place)
    check_written(produced.format, "value", of_value, place)


JSON = Produced("json")
"""The default format."""
