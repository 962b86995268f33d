"""`read_only_table`: a table of another topology, declared without reading it, or with the columns that are stored.

A topology is built from the standard library alone. Who loads topologies in a process that sees a lake says how the
columns of a stored table are read (`reading_columns`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from spark.topology.builder_state import BuilderState, legal_path_part
from spark.topology.columns import WINDOW_BOUNDS, Column, Line
from spark.topology.consumed import check_key
from spark.topology.errors import Place
from spark.topology.model import Leader, LeaderKind
from spark.topology.nodes import Scan, leader_name
from spark.topology.sql.ddl import parse_columns

StoredColumns = tuple[tuple[str, ...] | None, tuple[Column, ...]]
"""The key of a stored table, None if the table does not say it, and its columns without those of Tidetable."""
ReadColumns = Callable[[str], StoredColumns | None]
"""Returns the columns of a stored table by its name in plans; None if there is no such table."""

_read: ContextVar[ReadColumns | None] = ContextVar("read_columns", default=None)


@contextmanager
def reading_columns(read: ReadColumns) -> Iterator[None]:
    """Let read-only tables that are declared in the block without columns take those that `read` returns."""
    token = _read.set(read)
    try:
        yield
    finally:
        _read.reset(token)


def declare_leader(
    state: BuilderState,
    kind: LeaderKind,
    name: str,
    from_: object,
    key: str | None,
    value: str | None,
    lake: object,
    allow_missing: object,
    line: Line,
) -> Leader:
    """Declare a table of another topology, and return it."""
    method = "read_only_table" if kind == "table" else "read_only_global_table"
    place = Place(f"{method} {name}", line)
    legal_path_part(name, place)
    topology, table = _origin(from_, place)
    if topology == state.name and lake is None:
        raise place.mistake(f"{from_!r} is a table of this topology", f"use the handle of {table!r}")
    if lake is not None and (not isinstance(lake, str) or not (lake.startswith("/") or "://" in lake)):
        raise place.mistake(f"lake is {lake!r}", "write the lake's absolute path or URL, or None for this lake")
    if not isinstance(allow_missing, bool):
        raise place.mistake(f"allow_missing is {allow_missing!r}", "write True or False")
    full = leader_name(topology, table, None if lake is None else str(lake).rstrip("/"))
    for other in state.leaders:
        if other.scan.table == full or other.name.lower() == name.lower():
            what = f"{other.name!r}, of {other.dotted_name}, is already declared at {other.line}"
            raise place.mistake(what, "declare a leader once, and use its handle several times")
    for source in state.sources:
        if source.topic.lower() == name.lower():
            raise place.mistake(f"{name!r} is a topic of this topology, at {source.line}", "choose another name")
    for stored in state.stored:
        if stored.name.lower() == name.lower():
            raise place.mistake(f"{stored.name!r} is stored by this topology, at {stored.line}", "choose another name")
    keys, values = _stored(full, str(from_), place) if key is None and value is None else _given(key, value, place)
    check_key(keys, Place(place.node, line, {"key": keys, "value": values}))
    scan = Scan(full, tuple(column.name for column in keys), keys + values, line=line)
    leader = Leader(name, scan, kind, allow_missing, line)
    state.leaders.append(leader)
    return leader


def _origin(from_: object, place: Place) -> tuple[str, str]:
    """The topology and the table that `from_` names; a name of a topology with a dot needs the slash."""
    text = from_ if isinstance(from_, str) else ""
    topology, _, table = text.partition("/" if "/" in text else ".")
    if not topology or not table or "/" in table:
        do = 'write from_="topology.table", or "topology/table" if the name of the topology has a dot'
        raise place.mistake(f"from_ is {from_!r}", do)
    return legal_path_part(topology, place), legal_path_part(table, place)


def _given(key: str | None, value: str | None, place: Place) -> tuple[tuple[Column, ...], tuple[Column, ...]]:
    """The declared columns of key and value."""
    if key is None or value is None:
        given, other = ("value", "key") if key is None else ("key", "value")
        do = 'write both, as in key="id bigint", value="name string" (value="" for no column), or neither'
        raise place.mistake(f"{given}= is given, and {other}= is not", do)
    bounds = [column.name for column in WINDOW_BOUNDS]
    keys = parse_columns(key, Place(f"{place.node} key", place.line), bounds)
    values = parse_columns(value, Place(f"{place.node} value", place.line)) if value else ()
    names = {column.name.lower() for column in keys}
    if twice := [column.name for column in values if column.name.lower() in names]:
        what = f"{', '.join(twice)} is in the key and in the value"
        raise Place(place.node, place.line, {"key": keys, "value": values}).mistake(what, "leave it out of the value")
    return keys, values


def _stored(full: str, from_: str, place: Place) -> tuple[tuple[Column, ...], tuple[Column, ...]]:
    """The stored columns of key and value."""
    read = _read.get()
    declare = 'declare its columns with key="..." and value="..."'
    if read is None:
        what = f"the columns of {from_} are not declared, and only the command and Dagster read them from the lake"
        raise place.mistake(what, declare)
    found = read(full)
    if found is None:
        what = f"the columns of {from_} are not declared, and the lake has no table {from_} to read them from"
        topology = from_.partition("/" if "/" in from_ else ".")[0]
        raise place.mistake(what, f"run `tidetable run {topology}` once, or {declare}")
    key, columns = found
    if key is None:
        raise place.mistake(f"the stored table {from_} does not say which columns are its key", declare)
    return tuple(one for one in columns if one.name in key), tuple(one for one in columns if one.name not in key)
