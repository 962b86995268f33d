"""Items of a node's select list: (column, SQL expression) for every column of the node."""

from __future__ import annotations

from collections.abc import Mapping, Set

from spark.topology.columns import Column
from spark.topology.sql.ddl import quoted
from spark.topology.sql.tokens import names_in, tokens_of
from spark.topology.sql.widening import Wider

Items = tuple[tuple[str, str], ...]
Columns = tuple[Column, ...]


def text_of(name: str, text: str) -> str:
    """An item as SQL text."""
    return text if text == quoted(name) else f"{text} AS {quoted(name)}"


def selected(select: Items, columns: Columns, names: Set[str]) -> tuple[Items, Columns]:
    """The items and columns with these names."""
    return tuple(item for item in select if item[0] in names), tuple(c for c in columns if c.name in names)


def without(select: Items, columns: Columns, texts: Set[str]) -> tuple[Items, Columns]:
    """The items whose expression is not one of these texts, and their columns."""
    return selected(select, columns, {name for name, text in select if text not in texts})


def passed_through(side: str, columns: Columns, before: Columns) -> set[str]:
    """The expressions that only name a column which the source (or the side, such as `left.`) did not have before."""
    added = {column.name for column in columns} - {column.name for column in before}
    return {f"{side}{quoted(name)}" for name in added}


def columns_in(columns: Columns, *texts: str) -> set[str]:
    """The columns whose name occurs in SQL texts: at least all columns that the texts read."""
    found = names_in(*texts)
    return {column.name for column in columns if column.name.lower() in found}


def columns_of_side(side: str, columns: Columns, select: Items) -> set[str]:
    """The columns of one side of a join that its expressions read, each qualified by the side's name."""
    names = set()
    for _, text in select:
        tokens = tokens_of(text)
        for qualifier, dot, name in zip(tokens, tokens[1:], tokens[2:], strict=False):
            if qualifier.is_name and qualifier.name.lower() == side and dot.is_("."):
                names.add(name.name.lower())
    return {column.name for column in columns if column.name.lower() in names}


def passing_on(select: Items, wider: Mapping[str, Wider]) -> tuple[dict[str, Wider], list[str]]:
    """The columns that pass a widened one through, and the expressions of the others.

    `wider` has the widened columns by their texts, qualified in a join.
    """
    passed = {name: wider[text] for name, text in select if text in wider}
    return passed, [text for name, text in select if name not in passed]
