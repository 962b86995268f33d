"""The interface between a topic's bytes and a table's columns: one serde for every format, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from spark.serdes import json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame

    from spark.topology.consumed import Consumed


class Serde(Protocol):
    """A format of keys and values. A module implements it with its functions."""

    def decode(self, records: DataFrame, consumed: Consumed, *, key_from_value: bool = False) -> DataFrame:
        """Decode bytes to columns.

        Args:
            records: binary `_key` and `_value`, and other columns whose names begin with an underscore.
            consumed: the declared columns.
            key_from_value: whether a column that is missing in the key is read from the value, if declared there too.

        Returns:
            The columns of `records`; the columns of the key and of the value, in their declared types; `_deleted`
            (boolean), true if there is no value; `_error` (string), what does not decode, or null. If `_error` is set,
            every declared column is null. One row for every record: a serde drops no record and raises no error.
        """

    def encode_key(self, rows: DataFrame, key: tuple[str, ...]) -> Column:
        """The key of each row, as a string or binary column; null if every column of the key is null."""

    def encode_value(self, columns: tuple[str, ...]) -> Column:
        """The value of each row, with its columns by name, as a string or binary column; never null."""

    def to_bytes(self, part: object) -> bytes:
        """A key or a value as bytes, from a Python value that a test pipes.

        Raises:
            TypeError: the format has no such value.
            ValueError: the same.
        """

    def from_bytes(self, part: bytes) -> object:
        """A key or a value as a Python value, for a test that reads a topic."""


SERDES: Final[Mapping[str, Serde]] = {"json": json}
"""Serdes by the name of their format, which `Consumed` and `Produced` hold."""


def serde(name: str) -> Serde:
    """The serde of a format.

    Raises:
        KeyError: no serde has this name. `Consumed` and `Produced` accept only names that exist.
    """
    return SERDES[name]
