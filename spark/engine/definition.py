"""The definition of a stored table: stored with it, compared before every step, extended when its inputs gain columns.

An input may gain columns at any time. A table that passes them on has nulls in them in every row so far, because its
inputs did not have them. So only the schema of the table changes, and its next step goes on from its position.
"""

from __future__ import annotations

import json
from dataclasses import replace
from difflib import unified_diff
from typing import TYPE_CHECKING

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from spark.engine import commit, table
from spark.engine import position as positions
from spark.engine.commit import races
from spark.engine.errors import NotCommitted, PlanChanged
from spark.engine.land import check_types
from spark.engine.sync import behind
from spark.engine.table import add_columns
from spark.topology.describe import describe_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark.engine.doors import Doors, Lakehouse
    from spark.engine.position import State
    from spark.topology.topology import Table, Topology

TRIES = 5  # lost races before adding columns gives up; each one means that another run committed a step


def definition(topology: Topology, target: Table) -> str:
    """Return the definition of a table as JSON, which is stored with the table to be compared and shown.

    `is` describes the plan in words, `plan` has it in full: it shows a difference that the words omit.
    """
    parts = {
        "fingerprint": topology.fingerprint(target.name),
        "is": describe_table(replace(target, plan=target.plan.minimal()), topology.sources, topology.settings),
        "plan": topology.computed_by(target.name),
    }
    return json.dumps(parts)


def check_definition(topology: Topology, target: Table, state: State) -> None:
    """Check that the given definition computed the table.

    Raises:
        PlanChanged: another definition did; the message shows how the two differ.
    """
    stored = json.loads(state.properties[table.DEFINITION])
    if topology.computes(target.name, stored["fingerprint"]):
        return
    given = json.loads(definition(topology, target))
    difference = _difference(stored["is"], given["is"])
    if not difference and "plan" in stored:
        difference = _difference(*(json.dumps(one["plan"], indent=1) for one in (stored, given)))
    difference = difference or "(the words for both are the same, and an earlier build kept nothing else of it)"
    raise PlanChanged(
        f"{topology.name}.{target.name} was computed by another definition than the one at {target.line}:\n"
        f"{difference}\nrun `tidetable rebuild {topology.name}.{target.name}`"
    )


def _difference(stored: str, given: str) -> str:
    return "\n".join(unified_diff(stored.splitlines(), given.splitlines(), "computed by", "declared now", lineterm=""))


def agreed(doors: Doors, topology: Topology, target: Table, state: State, run: str) -> State:
    """Return the state of a table that the given definition computed, after adding the columns that it gains.

    Raises:
        PlanChanged: the definition differs in more than added columns.
        NotCommitted: other runs committed first, `TRIES` times.
    """
    name, path = f"{topology.name}/{target.name}", doors.lakehouse.table(topology.name, target.name)
    for _ in range(TRIES):
        columns = gaining(doors.lakehouse, topology, target, state)
        if columns is None:
            return state
        _gain(doors, topology, target, state, columns, run)
        found = positions.read(path, name)
        assert found is not None, "a table that gained columns is there"
        state = found
    raise NotCommitted(f"{name}: {TRIES} times another run committed first; stop the ticks of {topology.name}")


def _gain(doors: Doors, topology: Topology, target: Table, state: State, columns: Mapping[str, str], run: str) -> None:
    """Add columns that were verified for exactly this state, then record the new definition.

    A run of the older definition may be about to commit from the same state: rows without the columns, computed from
    inputs that have them. So an empty commit takes the state's next number before the definition is recorded. If
    another run has taken the number, the columns were verified for an older state, and nothing is recorded. A run of
    the older definition that begins later finds columns that it does not compute, and is refused.
    """
    path = doors.lakehouse.table(topology.name, target.name)
    session = doors.engine.session()
    try:
        add_columns(session, path, columns)
        nothing = session.read.format("delta").load(path).where("false")
        was = state.position
        position = replace(was, n=was.n + 1, run=run, data_version=state.data_version, whole=False, restored=None)
        if commit.append(nothing, path, position) is not None:
            with races():  # another run may record it at the same time
                table.set_properties(session, path, {table.DEFINITION: definition(topology, target)})
    finally:
        session.stop()


def gaining(lakehouse: Lakehouse, topology: Topology, target: Table, state: State) -> dict[str, str] | None:
    """Return the columns, type by name, that a table gains in its next step; None if its definition is the given one.

    Raises:
        PlanChanged: the definition differs in more than added columns.
    """
    try:
        check_definition(topology, target, state)
    except PlanChanged:
        check_landings(lakehouse, topology, target)
        columns = _gained(lakehouse, topology, target, state)
        if columns is None:
            raise
        return columns
    return None


def check_landings(lakehouse: Lakehouse, topology: Topology, target: Table) -> None:
    """Check that every landing that a table is computed from agrees with the declaration of its topic.

    Raises:
        PlanChanged: a landing differs from its declaration; a rebuild of the table would not help.
    """
    for source in map(topology.source, sorted(behind(topology)[target.name])):
        name = f"{topology.name}/{source.landing}"
        state = positions.read(lakehouse.table(topology.name, source.landing), name)
        if state is not None:
            check_types(name, state, source)


def _gained(lakehouse: Lakehouse, topology: Topology, target: Table, state: State) -> dict[str, str] | None:
    """Return the columns, type by name, that a table passes on from columns that its inputs gained.

    None if the definition differs in anything else, or if the former columns of an input are unknown.
    """
    gained: dict[str, set[str]] = {}
    for scan in target.inputs:
        pinned = state.position.inputs.get(scan.table)
        if pinned is None:
            return None
        try:
            fields = DeltaTable(lakehouse.table(topology.name, scan.table), pinned.version).schema().fields
        except DeltaError:
            return None  # the pinned version is gone, and its columns with it
        gained[scan.table] = {column.name for column in scan.columns} - {field.name for field in fields}
    columns = topology.added_columns(target.name, gained, json.loads(state.properties[table.DEFINITION])["fingerprint"])
    if columns is None or any(column.type is None for column in columns):
        return None
    return {column.name: column.type for column in columns if column.type is not None}
