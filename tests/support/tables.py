"""Tables drawn as text: one row, one fact.

The first line names the columns, with their types where a table is made; `null` is null and `''` the empty string.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from spark.operators.algebra import col, cols
from spark.topology.sql.ddl import quoted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession


def table(session: SparkSession, text: str) -> DataFrame:
    """The drawn table as a frame: `id bigint | name string` and rows below."""
    header, *rows = _cells(text)
    columns = [(name, kind) for name, kind in (cell.rsplit(" ", 1) for cell in header)]
    texts = session.createDataFrame(
        [tuple(None if cell == "null" else cell.strip("'") for cell in row) for row in rows],
        ", ".join(f"{quoted(name)} string" for name, _ in columns),
    )
    return texts.select(*(col(name).cast(kind).alias(name) for name, kind in columns))


def assert_table(frame: DataFrame, text: str) -> None:
    """The drawn columns of the frame hold exactly the drawn rows, in any order."""
    header, *rows = _cells(text)
    found = frame.select(*(column.cast("string") for column in cols(header))).collect()
    assert _drawn(header, [[_cell(value) for value in row] for row in found]) == _drawn(header, rows)


def _cells(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")] for line in text.splitlines() if line.strip()]


def _cell(value: str | None) -> str:
    return "null" if value is None else value or "''"


def _drawn(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = [" | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return [" | ".join(header), *sorted(lines)]


def with_ours(frame: DataFrame) -> DataFrame:
    """The frame with those of our own columns that it was drawn without, null."""
    kinds = {"_timestamp": "timestamp", "_topic": "string", "_partition": "int", "_offset": "bigint"}
    return frame.select(
        "*", *(F.lit(None).cast(kind).alias(name) for name, kind in kinds.items() if name not in frame.columns)
    )
