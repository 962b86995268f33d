"""DuckDB beside us: it reads our tables as a user would, answers the same queries, and compares the rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa  # type: ignore[import-untyped]  # has no types of its own
from deltalake import DeltaTable, QueryBuilder

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def rows(path: str, columns: Sequence[str] = ("*",)) -> pa.Table:
    """Columns of a Delta table. deltalake applies its deletion vectors, which DuckDB's own Parquet reader does not."""
    query = f"SELECT {', '.join(columns)} FROM t"
    return pa.table(QueryBuilder().register("t", DeltaTable(path)).execute(query).read_all())


def answer(sql: str, tables: Mapping[str, pa.Table], threads: int = 2) -> pa.Table:
    """The rows of a query over tables by name, on as many threads as the engine has cores."""
    with duckdb.connect(config={"threads": threads}) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for name, table in tables.items():
            connection.register(name, table)
        return connection.sql(sql).to_arrow_table()


def same(ours: pa.Table, theirs: pa.Table, what: str) -> int:
    """The number of rows, which must be the same ones on both sides, each as often; decimals are compared exactly."""
    assert ours.column_names == theirs.column_names, f"{what}: {ours.column_names} and {theirs.column_names}"
    for one, other in (("ours", "theirs"), ("theirs", "ours")):
        sql = f"SELECT * FROM (FROM {one} EXCEPT ALL FROM {other}) LIMIT 3"
        more = answer(sql, {"ours": ours, "theirs": theirs}).to_pylist()
        assert more == [], f"{what}: {len(ours)} rows of ours, {len(theirs)} of theirs; only in {one}: {more}"
    return len(ours)
