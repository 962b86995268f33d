"""The SQL of commits: the MERGE of a step, which does not write equal rows, and conditions on keys as literals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from spark.operators.algebra import PRESENT, col
from spark.topology.sql.ddl import quoted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame, Row
    from pyspark.sql.types import StructType


# By how much the order of additions may change a sum, relative to the sum, or to 1 if it is smaller.
TOLERANCE = {"float": "1e-5D", "double": "1e-9D"}

LITERALS = 1_000  # keys in the condition at most: Delta's log stores its text, some 10 kB of numbers
GONE = 10_000  # deleted keys in the condition of a replacement of many rows, at most
ON_LENGTH = 200_000  # characters of such a condition, at most: the log stores it too

OLD, NEW = "_old", "_new"
"""Aliases of the rows of a table, and of those that replace them. Delta would take `s` for a column of that name."""


def statement(path: str, source: str, key: Sequence[str], schema: StructType, keys: Sequence[Row] = ()) -> str:
    """Return a MERGE of a view with one row per touched key (`_present` false: no row) into the table at `path`.

    `keys`, if given, are all the touched keys. As literals they let Parquet skip pages without any of them: Delta
    prunes by conditions on columns of the target only, not by the join.
    """
    names = [quoted(field.name) for field in schema]
    values = [name for name in names if name not in {quoted(column) for column in key}]
    on = " AND ".join([_equal_keys("t", "s", key), *_among(key, keys)])
    return f"""
        MERGE INTO delta.{quoted(path)} AS t USING {source} AS s ON {on}
        WHEN MATCHED AND NOT s.{PRESENT} THEN DELETE
        WHEN MATCHED AND NOT ({same(schema, "t", "s", key)}) THEN UPDATE SET {_pairs(values)}
        WHEN NOT MATCHED AND s.{PRESENT} THEN INSERT ({", ".join(names)}) VALUES ({", ".join(f"s.{n}" for n in names)})
    """


def has_literals(keys: Sequence[Row], key: Sequence[str]) -> bool:
    """Return whether `at_keys` can write the keys: every column of them is an integer or text."""
    return all(type(row[column]) in (int, str) for row in keys for column in key)


def at_keys(key: Sequence[str], keys: Sequence[Row], of: str = "") -> str:
    """Return a SQL condition: a row, whose columns begin with `of`, has one of the keys, which `has_literals`.

    A condition on each column comes first: Parquet skips pages by these, and not by a condition on several columns.
    """
    each = list(_among(key, keys, of))
    if len(key) == 1:
        return each[0]
    kinds = [type(keys[0][column]) for column in key]
    names = ", ".join(
        f"bigint({of}{quoted(name)})" if kind is int else f"{of}{quoted(name)}"
        for name, kind in zip(key, kinds, strict=True)
    )
    tuples = ", ".join(f"({', '.join(_literal(row[column], 'L') for column in key)})" for row in keys)
    return " AND ".join([*each, f"({names}) IN ({tuples})"])  # the types of tuples must be equal


def on_keys(key: Sequence[str], gone: Sequence[Row] = (), written: Row | None = None) -> str:
    """Return a SQL condition: a row `OLD` of the table has the key of a row `NEW` that is written, or one of `gone`.

    Delta deletes the rows that meet it with any row that is written, and finds them by a join, which has to be one of
    equal columns. So a key of `gone`, which no row is written at, counts as the key `written`, which one is.
    """
    if not gone:
        return _equal_keys(OLD, NEW, key)
    assert written is not None, "nothing is deleted if no row is written"
    is_gone = at_keys(key, gone, of=f"{OLD}.")
    return " AND ".join(
        f"IF({is_gone}, {_literal(written[column])}, {OLD}.{quoted(column)}) = {NEW}.{quoted(column)}" for column in key
    )


def _equal_keys(one: str, other: str, key: Sequence[str]) -> str:
    return " AND ".join(f"{one}.{quoted(column)} = {other}.{quoted(column)}" for column in key)


def _among(key: Sequence[str], keys: Sequence[Row], of: str = "t.") -> Iterator[str]:
    """Yield conditions: a key column of the target has one of the values of the touched keys."""
    for column in key if keys else ():
        values = {row[column] for row in keys}
        if all(type(value) is int for value in values) or all(type(value) is str for value in values):
            yield f"{of}{quoted(column)} IN ({', '.join(map(_literal, sorted(values)))})"


def _literal(value: int | str, suffix: str = "") -> str:
    return literal(value) if isinstance(value, str) else f"{value}{suffix}"


def literal(text: str) -> str:
    """Return a SQL string literal. It has no `$`, because Spark substitutes `${...}` inside literals too."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("$", "\\u0024") + "'"


def same(schema: StructType, one: str, other: str, without: Iterable[str] = (), about: bool = False) -> str:
    """Return a SQL condition: two rows are equal in every column except `without`.

    Null equals null; maps are compared by their sorted entries. `about`: finite floating-point numbers are equal within
    `TOLERANCE`.
    """
    left_out = set(without)
    return " AND ".join(
        _equal(one, other, field.name, field.dataType.typeName(), about)
        for field in schema
        if field.name not in left_out
    )


def difference(rows: DataFrame, stored: DataFrame, key: Sequence[str], about: bool = False) -> DataFrame:
    """Return one row for every key at which `stored` differs from `rows`: the row in `rows`, or `_present` false.

    Columns: those of `stored`, key first, and `_present`.
    """
    schema = stored.schema
    s = rows.select("*", F.lit(True).alias(PRESENT)).alias("s")
    t = stored.select("*", F.lit(True).alias("_stored")).alias("t")
    on = F.expr(_equal_keys("s", "t", key))
    differs = f"s.{PRESENT} IS NULL OR t._stored IS NULL OR NOT ({same(schema, 's', 't', key, about)})"
    keys = [F.coalesce(col(name, "s"), col(name, "t")).alias(name) for name in key]
    values = [col(name, "s") for name in schema.names if name not in key]
    here = F.expr(f"s.{PRESENT} IS NOT NULL").alias(PRESENT)
    return s.join(t, on, "full_outer").where(differs).select(*keys, *values, here)


def _equal(one: str, other: str, name: str, kind: str, about: bool) -> str:
    a, b = _comparable(one, name, kind), _comparable(other, name, kind)
    if about and kind in ("float", "double"):
        size = f"greatest(abs({a}), abs({b}), 1)"  # infinity and NaN have no tolerance
        near = f"{size} < double('infinity') AND abs({a} - {b}) <= {TOLERANCE[kind]} * {size}"
        return f"coalesce({a} <=> {b} OR ({near}), false)"
    return f"{a} <=> {b}"


def _comparable(alias: str, name: str, type_name: str) -> str:
    column = f"{alias}.{quoted(name)}"
    return f"array_sort(map_entries({column}))" if type_name == "map" else column


def _pairs(names: Iterable[str]) -> str:
    return ", ".join(f"{name} = s.{name}" for name in names)
