"""What a stored table is computed by: kept with it, compared before every step, followed where columns are gained.

An input may gain columns at any time. A table that passes them on has nulls there in all the rows it has so far, since
its inputs had none of them. So it gains them by name alone, and its next step goes on.
"""

from __future__ import annotations

import json
from difflib import unified_diff
from typing import TYPE_CHECKING

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from spark.engine import position as positions
from spark.engine import table
from spark.engine.commit import races
from spark.engine.errors import PlanChanged
from spark.engine.table import add_columns

if TYPE_CHECKING:
    from spark.engine.doors import Doors
    from spark.engine.position import State
    from spark.topology.topology import Table, Topology


def definition(topology: Topology, target: Table) -> str:
    """What a table is computed by, as text that is kept with the table: to compare, and to show."""
    columns = [column.name for column in target.plan.columns]
    told = {"fingerprint": topology.fingerprint(target.name), "is": topology.describe(target.name), "columns": columns}
    return json.dumps(told)


def check_definition(topology: Topology, target: Table, state: State) -> None:
    """Refuse to go on with a table that another definition computed.

    Raises:
        PlanChanged: it did; says how the two differ.
    """
    given, stored = json.loads(definition(topology, target)), json.loads(state.properties[table.DEFINITION])
    if stored["fingerprint"] == given["fingerprint"]:
        return
    texts = (stored["is"].splitlines(), given["is"].splitlines())
    difference = "\n".join(unified_diff(*texts, "computed by", "declared now", lineterm=""))
    raise PlanChanged(
        f"{topology.name}.{target.name} was computed by another definition than the one at {target.line}:\n"
        f"{difference}\nrun `tidetable rebuild {topology.name}.{target.name}`"
    )


def agreed(doors: Doors, topology: Topology, target: Table, state: State) -> State:
    """The state of a table that the given definition computed, maybe but for columns that it gains now.

    Raises:
        PlanChanged: the definition differs in something else.
    """
    try:
        check_definition(topology, target, state)
    except PlanChanged:
        name, path = f"{topology.name}/{target.name}", doors.lakehouse.table(topology.name, target.name)
        columns = _gained(doors, topology, target, state)
        if not columns:
            raise
        session = doors.engine.session()
        try:
            add_columns(session, path, columns)
            with races():  # another run says so too
                table.set_properties(session, path, {table.DEFINITION: definition(topology, target)})
        finally:
            session.stop()
        now = positions.read(path, name)
        assert now is not None, "a table that gained columns is there"
        check_definition(topology, target, now)
        return now
    return state


def _gained(doors: Doors, topology: Topology, target: Table, state: State) -> dict[str, str]:
    """The columns, by name and type, that a table passes on of inputs that had none of them; {} if there is more."""
    stored = json.loads(state.properties[table.DEFINITION])
    had = stored.get("columns")  # tables that were made before this was kept are rebuilt
    new = {column.name: column.type for column in target.plan.columns if had is not None and column.name not in had}
    kinds = {name: kind for name, kind in new.items() if kind is not None}
    taken = topology.gained(target.name, new, stored["fingerprint"])
    if kinds != new or any(_had(doors, topology, state, scan.table, names) for scan, names in taken.items()):
        return {}
    return kinds if taken else {}


def _had(doors: Doors, topology: Topology, state: State, name: str, columns: set[str]) -> bool:
    """Whether an input had some of its columns already where a table was computed from it, as far as anybody knows."""
    pinned = state.position.inputs.get(name)
    if pinned is None:
        return False
    try:
        fields = DeltaTable(doors.lakehouse.table(topology.name, name), pinned.version).schema().fields
    except DeltaError:
        return True
    return any(field.name in columns for field in fields)
