"""Items of a node's select list: (column, SQL expression), one for every column that the node has."""

from __future__ import annotations

from collections.abc import Set

from spark.topology.columns import Column
from spark.topology.sql.ddl import quoted
from spark.topology.sql.tokens import names_in, tokens_of

Items = tuple[tuple[str, str], ...]
Columns = tuple[Column, ...]


def text_of(name: str, text: str) -> str:
    """An item as one would write it."""
    return text if text == quoted(name) else f"{text} AS {quoted(name)}"


def kept(select: Items, columns: Columns, names: Set[str]) -> tuple[Items, Columns]:
    """The items and columns of some names."""
    return tuple(item for item in select if item[0] in names), tuple(one for one in columns if one.name in names)


def without(select: Items, columns: Columns, texts: Set[str]) -> tuple[Items, Columns]:
    """The items whose expression is none of some texts, and their columns."""
    return kept(select, columns, {name for name, text in select if text not in texts})


def passed_on(side: str, columns: Columns, before: Columns) -> set[str]:
    """The expressions that pass on a column which a source, or a side such as `left.`, did not have before."""
    added = {column.name for column in columns} - {column.name for column in before}
    return {f"{side}{quoted(name)}" for name in added}


def columns_in(columns: Columns, *texts: str) -> set[str]:
    """The columns whose name occurs in SQL texts: all that they read, maybe more."""
    found = names_in(*texts)
    return {column.name for column in columns if column.name.lower() in found}


def columns_of_side(side: str, columns: Columns, select: Items) -> set[str]:
    """The columns of a join's side that its expressions read; its name is written before each of them."""
    names = set()
    for _, text in select:
        tokens = tokens_of(text)
        for at, dot, name in zip(tokens, tokens[1:], tokens[2:], strict=False):
            if at.is_name and at.name.lower() == side and dot.is_("."):
                names.add(name.name.lower())
    return {column.name for column in columns if column.name.lower() in names}
