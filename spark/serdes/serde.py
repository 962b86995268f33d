"""The seam between a topic's bytes and a table's columns: one serde for every format, found by its name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from spark.serdes import json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame

    from spark.topology.consumed import Consumed


class Serde(Protocol):
    """A format of keys and values. A module implements it by its functions."""

    def decode(self, records: DataFrame, consumed: Consumed, *, key_from_value: bool = False) -> DataFrame:
        """Bytes as columns.

        Args:
            records: binary `_key` and `_value`, and other columns whose names begin with an underscore.
            consumed: the columns that are declared.
            key_from_value: whether a column that the key lacks, and that is declared in the value too, is the value's.

        Returns:
            The columns of `records`; the key's columns and the value's, typed as they are declared; `_deleted`
            (boolean), true where there is no value; `_error` (string), what does not decode, or null. Where `_error`
            is set, every declared column is null. One row for every record: a serde drops nothing and raises nothing.
        """

    def encode_key(self, rows: DataFrame, key: tuple[str, ...]) -> Column:
        """The key of each row, as a string or binary column; null where every column of the key is null."""

    def encode_value(self, columns: tuple[str, ...]) -> Column:
        """The value of each row, of its columns by name, as a string or binary column; never null."""


SERDES: Final[Mapping[str, Serde]] = {"json": json}
"""By the name of a format, as `Consumed` and `Produced` hold it."""


def serde(name: str) -> Serde:
    """The serde of a format.

    Raises:
        KeyError: there is none of this name, which `Consumed` and `Produced` do not construct.
    """
    return SERDES[name]
