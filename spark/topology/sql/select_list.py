"""A select list: the key first, then the columns of the items, each column once."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from spark.topology.columns import Column
from spark.topology.errors import Place
from spark.topology.sql.ddl import legal_name, quoted
from spark.topology.sql.expressions import parse_item
from spark.topology.sql.tokens import texts

Selected = tuple[tuple[tuple[str, str], ...], tuple[Column, ...]]


def select_values(items: str | Sequence[str], key: tuple[str, ...], place: Place) -> Selected:
    """The columns that items over one source select: (name, SQL text) pairs, and the columns.

    Raises:
        TopologyError: an item is invalid, has no name or no type, takes the key's name, or repeats a column's name.
    """
    source = place.columns[""]
    return _selected(items, _items("", source[: len(key)]), {"*": _items("", source)}, place)


def select_joined(
    items: str | Sequence[str], left_key: tuple[str, ...], right_key: tuple[str, ...], place: Place
) -> Selected:
    """The columns that items over two sides select, as in `select_values`.

    "right.*" does not include the right key, whose values `on` holds.
    """
    left, right = place.columns["left"], place.columns["right"]
    stars = {"left.*": _items("left", left), "right.*": _items("right", right[len(right_key) :])}
    return _selected(items, _items("left", left[: len(left_key)]), stars, place)


def _items(side: str, columns: Sequence[Column]) -> list[tuple[str, Column]]:
    return [(f"{side}.{quoted(c.name)}".lstrip("."), c) for c in columns]


def _selected(
    items: str | Sequence[str],
    key: list[tuple[str, Column]],
    stars: Mapping[str, list[tuple[str, Column]]],
    place: Place,
) -> Selected:
    keys = {column.name.lower(): text for text, column in key}
    chosen = {column.name.lower(): (text, column) for text, column in key}
    for item in texts(items, place):
        for text, column in _expanded(item, keys, stars, place):
            name = column.name.lower()
            if name in keys and text == keys[name]:
                continue
            if name in keys:
                do = f"give it another name; the key {column.name!r} is always passed through"
                raise place.mistake(f"{item!r} is not the key {column.name!r}, but has its name", do)
            if name in chosen:
                do = f"give one of them another name: '{text} AS another_{column.name}'"
                raise place.mistake(f"{item!r} is a second column {column.name!r}", do)
            chosen[name] = text, column
    return (
        tuple((column.name, text) for text, column in chosen.values()),
        tuple(column for _, column in chosen.values()),
    )


def _expanded(
    item: str, keys: Collection[str], stars: Mapping[str, list[tuple[str, Column]]], place: Place
) -> Iterator[tuple[str, Column]]:
    star = item.replace(" ", "").lower()
    if star in stars:
        yield from stars[star]
        return
    if star.endswith("*"):
        if any(part in stars for part in star.split(",")):
            raise place.mistake(f"one string has several items: {item!r}", "write a list with one string for each")
        raise place.mistake(f"{item!r} is not available here", f"write {' or '.join(map(repr, stars))}")
    name, expression = parse_item(item, place)
    if name is None and expression.column is not None:
        name = expression.column.name
    if name is None:
        raise place.mistake(f"{item!r} has no name", f"write '{expression.text} AS name'")
    if expression.text.lower() == "null":
        do = f"write 'cast(null as string) AS {name}', or another type"
        raise place.mistake(f"{item!r} has no type", do)
    if name.lower() not in keys:  # a key may have the name of one of our columns
        legal_name(name, place)
    yield expression.text, Column(name, expression.type)
