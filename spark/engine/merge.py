"""The MERGE: update what differs, delete what is absent, insert what is new, leave the rest alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from spark.operators.algebra import PRESENT, col
from spark.topology.sql.ddl import quoted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame, Row
    from pyspark.sql.types import StructType


# What the order of additions may change in a sum, relative to it, or to 1 where it is smaller.
TOLERANCE = {"float": "1e-5D", "double": "1e-9D"}

LITERALS = 1_000  # keys written into the condition: the table's log keeps the text, some 10 kB of numbers


def statement(path: str, source: str, key: Sequence[str], schema: StructType, keys: Iterable[Row] = ()) -> str:
    """MERGE a view with one row per touched key (`_present` false: no row) into the table at `path`.

    `keys`, if given, are all the touched keys. As literals they let Parquet skip the pages that hold none of them;
    Delta prunes by conditions on the target's columns alone, never by what it joins.
    """
    names = [quoted(field.name) for field in schema]
    values = [name for name in names if name not in {quoted(column) for column in key}]
    on = " AND ".join(f"t.{quoted(column)} = s.{quoted(column)}" for column in key)
    on += "".join(f" AND {condition}" for condition in _among(key, list(keys)))
    return f"""
        MERGE INTO delta.{quoted(path)} AS t USING {source} AS s ON {on}
        WHEN MATCHED AND NOT s.{PRESENT} THEN DELETE
        WHEN MATCHED AND NOT ({same(schema, "t", "s", key)}) THEN UPDATE SET {_pairs(values)}
        WHEN NOT MATCHED AND s.{PRESENT} THEN INSERT ({", ".join(names)}) VALUES ({", ".join(f"s.{n}" for n in names)})
    """


def _among(key: Sequence[str], keys: list[Row]) -> Iterator[str]:
    """The target's key columns are among the values that the touched keys have there."""
    for column in key if keys else ():
        values = {row[column] for row in keys}
        if all(type(value) is int for value in values):
            yield f"t.{quoted(column)} IN ({', '.join(map(str, sorted(values)))})"
        elif all(type(value) is str for value in values):
            yield f"t.{quoted(column)} IN ({', '.join(map(literal, sorted(values)))})"


def literal(text: str) -> str:
    """A SQL string literal. Without any `$`: Spark puts settings in the place of `${...}`, also inside a literal."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("$", "\\u0024") + "'"


def same(schema: StructType, one: str, other: str, without: Iterable[str] = (), about: bool = False) -> str:
    """A condition: two rows are equal in every column. Null equals null; maps compare by their sorted entries.

    `about`: floating-point numbers need only agree to `TOLERANCE`, finite ones.
    """
    left_out = set(without)
    return " AND ".join(
        _equal(one, other, field.name, field.dataType.typeName(), about)
        for field in schema
        if field.name not in left_out
    )


def difference(rows: DataFrame, stored: DataFrame, key: Sequence[str], about: bool = False) -> DataFrame:
    """One row for every key at which two tables differ: the row it should have, or `_present` false."""
    schema = stored.schema
    s = rows.select("*", F.lit(True).alias(PRESENT)).alias("s")
    t = stored.select("*", F.lit(True).alias("_stored")).alias("t")
    on = F.expr(" AND ".join(f"s.{quoted(name)} = t.{quoted(name)}" for name in key))
    differs = f"s.{PRESENT} IS NULL OR t._stored IS NULL OR NOT ({same(schema, 's', 't', key, about)})"
    keys = [F.coalesce(col(name, "s"), col(name, "t")).alias(name) for name in key]
    values = [col(name, "s") for name in schema.names if name not in key]
    here = F.expr(f"s.{PRESENT} IS NOT NULL").alias(PRESENT)
    return s.join(t, on, "full_outer").where(differs).select(*keys, *values, here)


def _equal(one: str, other: str, name: str, kind: str, about: bool) -> str:
    a, b = _comparable(one, name, kind), _comparable(other, name, kind)
    if about and kind in ("float", "double"):
        size = f"greatest(abs({a}), abs({b}), 1)"  # infinite, or not a number: equal or not, never about
        near = f"{size} < double('infinity') AND abs({a} - {b}) <= {TOLERANCE[kind]} * {size}"
        return f"coalesce({a} <=> {b} OR ({near}), false)"
    return f"{a} <=> {b}"


def _comparable(alias: str, name: str, type_name: str) -> str:
    column = f"{alias}.{quoted(name)}"
    return f"array_sort(map_entries({column}))" if type_name == "map" else column


def _pairs(names: Iterable[str]) -> str:
    return ", ".join(f"{name} = s.{name}" for name in names)
