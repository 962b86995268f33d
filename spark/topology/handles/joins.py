"""Nodes with two sources: joins of tables, lookups of streams in tables, joins of streams, `merge`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark.topology.durations import format_duration, milliseconds
from spark.topology.errors import Place, TopologyError, shown
from spark.topology.handles.handle import Handle, Joinable, check_same_builder, join_place
from spark.topology.handles.windowing import join_lengths
from spark.topology.nodes import METHODS, Join, Latest, Lookup, Scan, StreamJoin, Union
from spark.topology.sql.ddl import quoted
from spark.topology.sql.expressions import column_named, is_condition, parse_expression
from spark.topology.sql.select_list import select_joined
from spark.topology.sql.tokens import texts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark.topology.columns import Column, Line
    from spark.topology.nodes import Drive, How, Node

TABLES = ("table", "global table")
"""The kinds of handles in which rows can be looked up."""


def table_join(
    left: Handle, how: How, other: object, on: object, select: str | Sequence[str], drive: Drive, line: Line
) -> Join:
    """A join of two tables."""
    place = join_place(METHODS[how], left, other, line)
    if isinstance(other, Handle) and other.kind == "stream":
        do = "swap the sides, so that the stream is on the left, or call to_table() on the stream"
        raise place.mistake(f"{other.node.title} is a stream, and a table cannot look rows up in a stream", do)
    if not isinstance(other, Handle) or other.kind not in TABLES:
        raise place.mistake(f"the right side is {other!r}", "join a handle that table() or global_table() returned")
    check_same_builder(left, other, place)
    if drive not in ("both", "left"):
        raise place.mistake(f"drive is {drive!r}", 'write drive="both" or drive="left"')
    lookup = lookup_key(left.node, other.node, on, place, takes_on=how != "outer")
    chosen, columns = select_joined(select, left.node.key, other.node.key, place)
    return Join(left.node, other.node, how, chosen, columns, lookup, drive, line=line)


def outer_table_join(
    left: Handle, other: object, on: object, select: str | Sequence[str], drive: object, line: Line
) -> Join:
    """An outer join of two tables, by equal keys."""
    place = join_place("outer_join", left, other, line)
    if on is not None:
        what = "a foreign-key outer join is not possible: a row without a left side would have no key"
        raise place.mistake(what, "write left_join(..., on=...)")
    if isinstance(other, Handle) and other.kind == "global table":
        what = f"{other.node.title} is a global table, which can only be looked up"
        raise place.mistake(what, f"write left_join(...), or declare {other.node.title} with table()")
    if drive != "both":
        raise place.mistake(f"drive is {drive!r}, and both sides drive an outer join", "leave out drive=")
    return table_join(left, "outer", other, None, select, "both", line)


def stream_lookup(
    left: Handle,
    how: How,
    other: Handle,
    on: object,
    within: object,
    select: str | Sequence[str],
    grace: object,
    place: Place,
) -> Lookup:
    """A lookup of every record of a stream in a table."""
    if how == "outer":
        do = "write left_join(...): a row of the table that no record looks up produces no record"
        raise place.mistake("an outer join of a stream with a table is not available", do)
    if within is not None:
        raise place.mistake("within= is for two streams, and the right side is a table", "leave out within=")
    lookup = lookup_key(left.node, other.node, on, place)
    chosen, columns = select_joined(select, left.node.key, other.node.key, place)
    is_global = other.kind == "global table"
    as_of = None if is_global else as_of_source(other.node)
    history = None if as_of is None else _history(other.node)
    return Lookup(
        *(left.node, other.node, how, chosen, columns, lookup),
        as_of=as_of,
        broadcast=is_global,
        history=history,
        grace=None if grace is None else _lookup_grace(grace, history, other, place),
        line=place.line,
    )


def stream_join(
    left: Handle,
    how: How,
    other: Handle,
    on: object,
    within: object,
    select: str | Sequence[str],
    grace: object,
    place: Place,
) -> StreamJoin:
    """A join of two streams within a window of time."""
    if on is not None or grace is not None:
        name, do = ("on", "call select_key(...) first") if on is not None else ("grace", "write it in within=")
        raise place.mistake(f"{name}= is for a table on the right; two streams are joined by equal keys", do)
    before, after, window_grace = join_lengths(within, place)
    lookup_key(left.node, other.node, None, place, takes_on=False)
    chosen, columns = select_joined(select, left.node.key, other.node.key, place)
    return StreamJoin(left.node, other.node, how, chosen, columns, before, after, window_grace, line=place.line)


def merged(left: Handle, other: object, line: Line) -> Union:
    """The records of two streams."""
    right = other.node.title if isinstance(other, Joinable) and other.kind == "stream" else type(other).__name__
    place = Place(f"merge of {left.node.title} with {right}", line, {"left": left.node.columns})
    if not isinstance(other, Joinable) or other.kind != "stream":
        raise place.mistake(f"{right} is not a stream", "merge two streams; join tables")
    check_same_builder(left, other, place)
    if any(side.node.of_changes for side in (left, other)):
        what = "a deleted row has no timestamp, and merged streams are ordered by timestamp"
        raise place.mistake(what, "merge the streams of the topics, before to_table()")
    if (left.node.key, left.node.columns) != (other.node.key, other.node.columns):
        place = Place(place.node, line, {"left": left.node.columns, "right": other.node.columns})
        do = "call map_values and select_key first, so that names, types and order are the same"
        raise place.mistake("the two streams have different keys or columns", do)
    return Union(left.node, other.node, line=line)


def check_for_tables_only(method: str, left: Handle, other: object, within: object, grace: object, line: Line) -> None:
    """Refuse the arguments that are for streams only."""
    if within is not None or grace is not None:
        name = "within" if within is not None else "grace"
        place = join_place(method, left, other, line)
        raise place.mistake(f"{name}= is for streams, and the left side is a table", f"leave out {name}=")


def global_on_the_left(method: str, left: Handle, other: object, line: Line) -> TopologyError:
    """The error about a global table as the left side of a join with anything but a global table."""
    place = join_place(method, left, other, line)
    do = f"declare {left.node.title} with table(), or swap the sides, so that the global table is on the right"
    return place.mistake("a global table cannot be the left side of a join, except with another global table", do)


def lookup_key(left: Node, right: Node, on: object, place: Place, takes_on: bool = True) -> tuple[str, ...]:
    """The expressions over left columns that equal the right key, with its types as far as they are known."""
    expressions = tuple(map(quoted, left.key)) if on is None else texts(on, place)
    right_key = right.columns[: len(right.key)]
    keys = shown(right_key)
    do = f"write on=[...] with one expression over left columns for each of: {keys}"
    if not takes_on:
        do = "give both sides the same key: compute its columns with map_values(...), and call select_key(...)"
    if len(expressions) != len(right_key):
        given = f"the left key ({', '.join(left.key)})" if on is None else f"on={on!r}"
        raise place.mistake(f"{given} cannot look up the right key ({keys})", do)
    names = tuple(column.name for column in right_key)
    left_names, right_names = ([name.lower() for name in key] for key in (left.key, names))
    if on is None and left_names != right_names and set(left_names) == set(right_names):
        what = f"the left key is ({', '.join(left.key)}), and the right key has another order: ({', '.join(names)})"
        raise place.mistake(what, "declare both keys in the same order")
    pairs = zip(expressions, right_key, strict=True)
    return tuple(_key_expression(text, column, do if on is None else None, place) for text, column in pairs)


def _key_expression(text: str, key: Column, do: str | None, place: Place) -> str:
    """The expression that equals a column of the right key."""
    source = Place(place.node, place.line, {"": place.columns["left"]})
    if key.type not in (None, "boolean") and is_condition(text, source):
        what = f"{text!r} is a condition, and the right key {key.name} is {key.type}"
        raise place.mistake(
            what, "write on= without the condition: the expression over left columns that the key equals"
        )
    if column_named(text, place.columns["left"]) is None and column_named(text, place.columns["right"]) is not None:
        what = f"{text!r} is a column of the right side only, and on= takes expressions over left columns"
        raise place.mistake(what, f"write the left column or expression that equals {key.name}")
    expression = parse_expression(text, source)
    if None not in (expression.known, key.type) and expression.known != key.type:
        what = f"{expression.text} is {expression.known}, and the right key {key.name} is {key.type}"
        cast = f'write on="cast({expression.text} as {key.type})", or declare equal types'
        nested = "write the field or the element that equals it" if "<" in (expression.known or "") else None
        raise place.mistake(what, do or nested or cast)
    return expression.text


def as_of_source(right: Node) -> Node | None:
    """The stream whose newest records a table, or a view of one, holds; None for any other table."""
    latest = _viewed(right)
    if not isinstance(latest, Latest) or latest.source.of_changes:
        return None
    return latest.source if latest.by_arrival or latest.history is not None else None


def _history(right: Node) -> int | None:
    """The history of a versioned table, or of a view of one, in milliseconds; None for any other table."""
    latest = _viewed(right)
    return latest.history if isinstance(latest, Latest) else None


def _lookup_grace(grace: object, history: int | None, other: Handle, place: Place) -> int:
    """How long a record waits before it looks a row up, in milliseconds."""
    if history is None and isinstance(leader := _viewed(other.node), Scan) and leader.read_only:
        what = f"grace= needs a versioned table, and {leader.table} is read-only: records see it at the pin of the step"
        raise place.mistake(what, "leave out grace=, or declare the topic with table(..., versioned=Versioned(...))")
    if history is None:
        do = f'declare {other.node.title} with table(..., versioned=Versioned("7d")), or leave out grace='
        kind = "a global table" if other.kind == "global table" else "not one, nor a filter or map of one"
        raise place.mistake(f"grace= needs a versioned table, and the right side is {kind}", do)
    length = milliseconds(grace, place)
    if length > history:
        longest = format_duration(history)
        what = f"grace is {format_duration(length)}, and the history of {_viewed(other.node).title} is {longest}"
        raise place.mistake(what, f'write grace="{longest}" or less, or declare a longer history')
    return length


def _viewed(node: Node) -> Node:
    """The node below the filters and maps of a view."""
    return _viewed(*node.sources) if node.is_row_by_row else node
