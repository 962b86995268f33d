"""The MERGE statement: update what differs, delete what is absent, insert what is new, leave the rest alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark.operators.algebra import PRESENT, quoted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql.types import StructType


def statement(path: str, source: str, key: Sequence[str], schema: StructType) -> str:
    """MERGE a view with one row per touched key (`_present` false: no row) into the table at `path`."""
    names = [quoted(field.name) for field in schema]
    values = [name for name in names if name not in {quoted(column) for column in key}]
    on = " AND ".join(f"t.{quoted(column)} = s.{quoted(column)}" for column in key)
    return f"""
        MERGE INTO delta.{quoted(path)} AS t USING {source} AS s ON {on}
        WHEN MATCHED AND NOT s.{PRESENT} THEN DELETE
        WHEN MATCHED AND NOT ({same(schema, "t", "s", key)}) THEN UPDATE SET {_pairs(values)}
        WHEN NOT MATCHED AND s.{PRESENT} THEN INSERT ({", ".join(names)}) VALUES ({", ".join(f"s.{n}" for n in names)})
    """


def same(schema: StructType, one: str, other: str, without: Iterable[str] = ()) -> str:
    """A condition: two rows are equal in every column. Null equals null; maps compare by their sorted entries."""
    left_out = set(without)
    return " AND ".join(
        f"{_comparable(one, field.name, field.dataType.typeName())} <=> "
        f"{_comparable(other, field.name, field.dataType.typeName())}"
        for field in schema
        if field.name not in left_out
    )


def _comparable(alias: str, name: str, type_name: str) -> str:
    column = f"{alias}.{quoted(name)}"
    return f"array_sort(map_entries({column}))" if type_name == "map" else column


def _pairs(names: Iterable[str]) -> str:
    return ", ".join(f"{name} = s.{name}" for name in names)
