"""Tables of other topologies: their stored columns, compared with what a topology declares that it reads."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from deltalake.exceptions import TableNotFoundError
from pyspark.sql.types import StructType

from spark.engine.errors import LeaderChanged
from spark.engine.log.position import DEFINITION
from spark.engine.log.stored_table import StoredTable
from spark.engine.log.table import ddl
from spark.topology.columns import WINDOW_BOUNDS, Column
from spark.topology.errors import Place, TopologyError, shown
from spark.topology.sql.ddl import parse_type
from spark.topology.sql.tokens import lex
from spark.topology.topology import Topology

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark.engine.ports import Lakehouse
    from spark.topology.leaders import StoredColumns
    from spark.topology.nodes import Scan
    from spark.topology.topology import Table

BOUNDS = tuple(column.name for column in WINDOW_BOUNDS)
STREAM = "_ordinal"
"""A column of every stored stream, and of no stored table."""


def stored_columns(lakehouse: Lakehouse, name: str) -> StoredColumns | None:
    """Return the key and the columns of another topology's table by its name in plans; None if it does not exist.

    The key is None if the stored definition does not have it, because an earlier version wrote it. The columns are
    without those of Tidetable.

    Raises:
        LogBroken: its log cannot be read.
    """
    table = StoredTable.of(lakehouse, "", name)
    try:
        schema, properties = StructType.fromJson(json.loads(table.schema())), table.properties()
    except TableNotFoundError:
        return None
    return _key(properties), _columns(schema)


def check_leaders(lakehouse: Lakehouse, topology: Topology, target: Table) -> None:
    """Check that the tables of other topologies that a table reads have the declared key and columns.

    A leader that does not exist is no mistake here.

    Raises:
        LeaderChanged: a leader lacks a column, has another type or key, or is a stream; the message has its columns.
        LogBroken: the log of a leader cannot be read.
    """
    for scan in target.inputs:
        leader = topology.leader(scan.table)
        if leader is None or (found := stored_columns(lakehouse, scan.table)) is None:
            continue
        stored = StoredTable.of(lakehouse, topology.name, scan.table)
        problem = "is a stream, and not a table" if STREAM in stored.columns() else _problem(scan, found)
        if problem:
            raise LeaderChanged(
                f"{topology.name}.{target.name} reads {leader.dotted_name}, which {problem}, at {leader.line}\n"
                f"  it has: {shown(found[1])}\n"
                f"Correct key= and value= of the read-only table, and run `tidetable rebuild "
                f"{topology.name}.{target.name}` if the table was computed. Nothing was changed"
            )


def _problem(scan: Scan, found: StoredColumns) -> str:
    """Return how stored columns differ from those that a scan reads; empty if it has them all."""
    key, columns = found
    types = {column.name: column.type for column in columns}
    if lacking := [column for column in scan.columns if column.name not in types]:
        return f"has no {shown(tuple(lacking))}"
    if other := [column for column in scan.columns if column.type not in (None, types[column.name])]:
        return "has " + ", ".join(f"{column.name} as {types[column.name]}, not {column.type}" for column in other)
    stored = key or tuple(column.name for column in columns[: len(scan.key)])  # the key's columns are the first ones
    return "" if set(stored) == set(scan.key) else f"has the key {', '.join(stored)}, not {', '.join(scan.key)}"


def _key(properties: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the key of the plan in a table's properties; None if the plan is not in a form that is read."""
    try:
        return Topology.stored_plan(json.loads(properties[DEFINITION])["plan"]).key
    except (KeyError, TopologyError):
        return None


def _columns(schema: StructType) -> tuple[Column, ...]:
    """Return the user's columns, and the bounds of windows, with types as topologies write them."""
    place = Place("stored columns", None)
    users = [field for field in schema if not field.name.startswith("_") or field.name in BOUNDS]
    return tuple(Column(field.name, parse_type(lex(ddl(field.dataType), place), 0)[0]) for field in users)
