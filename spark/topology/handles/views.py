"""Nodes with one source: `filter`, `map_values`, `select_key`, `flat_map`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from spark.topology.columns import Column
from spark.topology.consumed import check_key
from spark.topology.nodes import Aggregate, Explode, Select
from spark.topology.sql.ddl import quoted
from spark.topology.sql.expressions import OWN_COLUMNS, parse_expression
from spark.topology.sql.select_list import select_values
from spark.topology.sql.tokens import texts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark.topology.errors import Place
    from spark.topology.nodes import Node


def filtered(method: Literal["filter", "filter_not"], source: Node, sql: str, place: Place) -> Select:
    """The rows for which a condition is true; for `filter_not`, the other rows."""
    select, columns = select_values("*", source.key, place)
    where = condition(sql, place)
    where = where if method == "filter" else f"NOT coalesce({where}, false)"
    return Select(source, select, columns, where, line=place.line)


def condition(sql: str, place: Place) -> str:
    """The text of a condition; an expression that is known to be of another type is refused."""
    expression = parse_expression(sql, place)
    if expression.known not in (None, "boolean"):
        do = f"write a condition, such as '{expression.text} IS NOT NULL'"
        raise place.mistake(f"{sql!r} is {expression.known}, not a condition", do)
    return expression.text


def mapped(source: Node, select: str | Sequence[str], place: Place) -> Select:
    """Value columns computed from each row."""
    chosen, columns = select_values(select, source.key, place)
    return Select(source, chosen, columns, line=place.line)


def rekeyed_stream(source: Node, columns: object, place: Place) -> Select:
    """The records by another key."""
    key = named_columns("select_key", columns, place)
    names = tuple(column.name for column in key)
    chosen = (*key, *(column for column in source.columns if column.name not in names))
    select = tuple((column.name, quoted(column.name)) for column in chosen)
    return Select(source, select, chosen, rekeyed=names, line=place.line)


def rekeyed_table(source: Node, columns: object, place: Place) -> Aggregate:
    """The rows by another key; of several rows with the same key, the newest by event time."""
    by = named_columns("select_key", columns, place)
    names = tuple(column.name for column in by)
    others = tuple(column for column in source.columns if column.name not in names)
    # Two rows may derive from one record. Ordering by the old key too takes all columns from the same row.
    order = ", ".join((*(column.name for column in OWN_COLUMNS), *map(quoted, source.key)))
    newest = ((column.name, f"max_by({quoted(column.name)}, struct({order}))") for column in others)
    select = (*((name, quoted(name)) for name in names), *newest)
    return Aggregate(source, names, select, (*by, *others), line=place.line)


def exploded(source: Node, column: object, place: Place) -> Explode:
    """One record for every element of an array column."""
    (found,) = named_columns("flat_map", (column,), place, key=False)
    kind = found.type
    if found.name in source.key or (kind is not None and not kind.startswith("array<")):
        raise place.mistake(f"{column} is {kind}, not an array column of the value", "name an array column")
    element = Column(found.name, None if kind is None else kind.removeprefix("array<").removesuffix(">"))
    columns = tuple(element if other == found else other for other in source.columns)
    return Explode(source, found.name, columns, line=place.line)


def named_columns(method: str, given: object, place: Place, key: bool = True) -> tuple[Column, ...]:
    """The named columns of the place; with `key`, their types must be allowed in a key."""
    names = texts(given, place)
    if not names:
        raise place.mistake("no column is given", f'write {method}("column")')
    found: dict[str, Column] = {}
    for text in names:
        column = parse_expression(text, place).column
        if column is None or column in OWN_COLUMNS:
            do = f"call map_values with '{text} AS name' first, then {method}(\"name\")"
            raise place.mistake(f"{text!r} is not a column of the source", do)
        if column.name in found:
            raise place.mistake(f"{text!r} is given twice", "name each column once")
        found[column.name] = column
    if key:
        check_key(tuple(found.values()), place)
    return tuple(found.values())
