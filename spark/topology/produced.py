"""How a table's columns become a topic's bytes."""

from __future__ import annotations

from dataclasses import dataclass

from spark.topology.calls import checks_calls


@checks_calls
@dataclass(frozen=True)
class Produced:
    """The format of the keys and values of a topic that a table is published to."""

    format: str

    @staticmethod
    def json() -> Produced:
        """JSON in key and value, as `Consumed.json` reads it."""
        return JSON


JSON = Produced("json")
"""The format of a topic for which none is chosen."""
