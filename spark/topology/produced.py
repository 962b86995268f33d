"""The format in which a table is published."""

from __future__ import annotations

from dataclasses import dataclass

from spark.topology.calls import checks_calls


@checks_calls
@dataclass(frozen=True)
class Produced:
    """The format of the keys and values of a published topic."""

    format: str

    @staticmethod
    def json() -> Produced:
        """JSON in key and value, as `Consumed.json` reads it."""
        return JSON


JSON = Produced("json")
"""The default format."""
