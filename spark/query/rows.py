"""The rows that a query found: dicts, or what the packages of the field make of them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import pyarrow as pa  # type: ignore[import-untyped]  # has no types of its own

from spark.query.errors import PackageMissing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import ModuleType

Row = dict[str, Any]
"""A row by column. A time with a zone is in UTC, a struct and a map are dicts."""


class Rows:
    """Rows in the order of the key. They iterate as dicts."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __iter__(self) -> Iterator[Row]:
        for batch in self._table.to_batches(max_chunksize=1_000):
            yield from batch.to_pylist(maps_as_pydicts="strict")

    def __getitem__(self, place: int) -> Row:
        [row] = self._table.slice(range(len(self))[place], 1).to_pylist(maps_as_pydicts="strict")
        found: Row = row
        return found

    def __eq__(self, other: object) -> bool:
        return list(self) == (list(other) if isinstance(other, Rows) else other)

    __hash__ = None  # type: ignore[assignment]  # a list of dicts has none either

    def __repr__(self) -> str:
        return f"<{len(self)} rows of {', '.join(self._table.column_names)}>"

    def arrow(self) -> pa.Table:
        """Return an Arrow table."""
        return self._table

    def pandas(self) -> Any:
        """Return a pandas DataFrame. Raises `PackageMissing` if pandas is not installed."""
        needed("pandas", "pandas()")
        return self._table.to_pandas()

    def polars(self) -> Any:
        """Return a polars DataFrame. Raises `PackageMissing` if polars is not installed."""
        return needed("polars", "polars()").from_arrow(self._table)

    def duckdb(self, connection: Any = None) -> Any:
        """Return a DuckDB relation, of a connection or the default one. Raises `PackageMissing` without duckdb."""
        return (connection or needed("duckdb", "duckdb()")).from_arrow(self._table)


def ordered(table: pa.Table, key: Sequence[str], reverse: bool = False) -> pa.Table:
    """Return the rows in the order of their key columns. Columns without an order, such as structs, do not decide."""
    order = "descending" if reverse else "ascending"
    by = [(name, order) for name in key if not pa.types.is_nested(table.schema.field(name).type)]
    return table.sort_by(by) if by else table


def needed(package: str, what: str) -> ModuleType:
    """Return a package.

    Raises:
        PackageMissing: it is not installed.
    """
    try:
        return import_module(package)
    except ImportError as error:
        raise PackageMissing(f"{what} needs {package}, which is not installed: pip install {package}") from error
