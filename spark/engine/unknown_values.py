"""Values that no event of a Debezium topic has, and that a table has nulls for; see `spark.operators.carried`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark.engine.counts import query
from spark.engine.log.stored_table import StoredTable

if TYPE_CHECKING:
    from spark.engine.log.position import Position
    from spark.engine.ports import Lakehouse
    from spark.topology.topology import Table, Topology

QUERY = """
    SELECT array_to_string(_unavailable, ',') AS names, count(*) AS rows
    FROM it WHERE _unavailable IS NOT NULL GROUP BY array_to_string(_unavailable, ',')
"""


def may_have(topology: Topology, table: Table) -> bool:
    """Return whether a table is that of a Debezium topic, whose rows may have unknown values."""
    return any(one.topic == table.name and one.consumed.envelope is not None for one in topology.sources)


def unknown_values(lakehouse: Lakehouse, topology: Topology, table: Table) -> dict[str, int] | None:
    """Return the number of rows with an unknown value, by column; None if the table is of no Debezium topic.

    Raises:
        LogBroken: the log of the table cannot be read.
    """
    if not may_have(topology, table):
        return None
    stored = StoredTable.of(lakehouse, topology.name, table.name)
    state = stored.state()
    return {} if state is None or state.position.n == 0 else _at(stored.path, state.version)


def upstream(lakehouse: Lakehouse, topology: Topology, target: Table, at: Position, version: int) -> dict[str, int]:
    """Return the rows with an unknown value that a version of a table was computed from, by `table.column`.

    Args:
        lakehouse: where the tables are.
        topology: the topology of the table.
        target: the table.
        at: its position at the version.
        version: its version.

    Raises:
        ChangesExpired: the log of an input was cleaned up.
    """
    if may_have(topology, target):
        stored = StoredTable.of(lakehouse, topology.name, target.name)
        return {f"{target.name}.{name}": rows for name, rows in _at(stored.path, version).items()}
    found: dict[str, int] = {}
    tables = {table.name: table for table in topology.tables}
    for scan in target.inputs:
        source = tables.get(scan.table)
        if source is None or not derives(topology, source):
            continue
        pinned = at.inputs[scan.table].version
        stored = StoredTable.of(lakehouse, topology.name, source.name)
        below = at if may_have(topology, source) else stored.position_at(pinned, at.cut)
        found |= upstream(lakehouse, topology, source, below, pinned)
    return found


def derives(topology: Topology, table: Table) -> bool:
    """Return whether a table is that of a Debezium topic, or is computed from one."""
    tables = {one.name: one for one in topology.tables}
    return may_have(topology, table) or any(
        derives(topology, tables[scan.table]) for scan in table.inputs if scan.table in tables
    )


def _at(path: str, version: int) -> dict[str, int]:
    found: dict[str, int] = {}
    for row in query(path, version, QUERY):
        for name in row["names"].split(","):
            found[name] = found.get(name, 0) + row["rows"]
    return found
