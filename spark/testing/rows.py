"""The rows of a table, as the driver shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark.topology.errors import Place, user_line

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spark.topology.topology import Table


class Rows(list[dict[str, object]]):
    """A list of rows, each a dict by column, in the order of their keys."""

    def __init__(self, rows: Iterable[dict[str, object]], table: Table) -> None:
        super().__init__(rows)
        self._table = table

    def get(self, key: object) -> dict[str, object] | None:
        """The row of a key; None if there is none.

        Args:
            key: the value of a key of one column; a tuple of all values, in the order of the columns; or a dict.

        Raises:
            TopologyError: these are not the columns of the key.
        """
        names = self._table.plan.key
        if isinstance(key, dict):
            given = key
        else:
            parts = key if isinstance(key, tuple) else (key,)
            given = dict(zip(names, parts, strict=True)) if len(parts) == len(names) else {}
        if set(given) != set(names):
            columns = tuple(column for column in self._table.plan.columns if column.name in names)
            place = Place(f"table({self._table.name!r}).get", user_line(), {"the key": columns})
            raise place.mistake(f"{key!r} is no key of it", "write its value, a tuple of its values, or a dict")
        return next((row for row in self if all(row[name] == part for name, part in given.items())), None)
