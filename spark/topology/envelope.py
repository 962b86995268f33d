"""How a Debezium connector writes the changes of a table: `Consumed.debezium` documents the settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from spark.topology.columns import Column

TimeUnit = Literal["milliseconds", "microseconds", "nanoseconds"]

PLACEHOLDER: Final = "__debezium_unavailable_value"
"""Debezium's default of `unavailable.value.placeholder`."""

CAPTURED: Final = ("_unavailable", "_old_key", "_new_key", "_change", "_truncated")
"""The columns that the landing of a Debezium topic has besides those of every landing.

`_unavailable` (array<string>): the columns whose value the event leaves out, because the database did not log it; null
if there are none. `_old_key`, `_new_key` (structs of the key columns): the key that the row had before this event, or
has after it; null if the event does not change the key. `_change` (bigint): identifies a change of a key, which two
events tell; null if the key does not change. `_truncated` (boolean): the event empties the table.
"""


@dataclass(frozen=True)
class Envelope:
    """The form of a Debezium topic.

    `schemas`: every JSON key and value has a schema beside its payload. `flattened`: the value is the row, without an
    envelope. `truncate`: an event that empties the table is applied. `time_unit`: the unit of times that are numbers,
    where no schema names it. `placeholder`: stands for a value that the event leaves out.
    """

    schemas: bool = False
    flattened: bool = False
    truncate: bool = False
    time_unit: TimeUnit | None = None
    placeholder: str = PLACEHOLDER

    def __str__(self) -> str:
        """The form in words, by which a landing is compared with its declaration."""
        words = ["rows of Debezium" if self.flattened else "envelopes of Debezium"]
        words += ["with schemas"] if self.schemas else []
        words += [f"with times in {self.time_unit}"] if self.time_unit else []
        return " ".join(words)


def may_be_unavailable(column: Column) -> bool:
    """Whether an event may leave out the value of a column, by its type: the database stores long values apart."""
    return str(column.type).startswith(("string", "binary", "array<", "map<"))
