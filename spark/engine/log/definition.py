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

from spark.engine.errors import PlanChanged
from spark.engine.log import commit, table
from spark.engine.log.commit import races, until_committed
from spark.engine.log.landing_definition import check_landing
from spark.engine.log.position import DEFINITION
from spark.engine.log.stored_table import StoredTable
from spark.engine.log.table import add_columns
from spark.engine.ports import opened
from spark.topology.describe import describe_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark.engine.log.stored_table import State
    from spark.engine.ports import Lakehouse, Ports
    from spark.topology.topology import Table, Topology


def definition(topology: Topology, target: Table) -> str:
    """Return the definition of a table as JSON, which is stored with the table to be compared and shown.

    `is` describes the plan in words, `plan` has it in full: it shows a difference that the words omit.
    """
    parts = {
        "fingerprint": topology.fingerprint(target.name),
        "is": describe_table(
            replace(target, plan=target.plan.minimal()), topology.sources, topology.settings, topology.leaders
        ),
        "plan": topology.computed_by(target.name),
    }
    return json.dumps(parts)


def check_definition(topology: Topology, target: Table, state: State) -> None:
    """Check that the given definition computed the table.

    Raises:
        PlanChanged: another definition did; the message shows how the two differ.
    """
    stored = json.loads(state.properties[DEFINITION])
    if topology.computes(target.name, stored["fingerprint"]):
        return
    given = json.loads(definition(topology, target))
    difference = _difference(stored["is"], given["is"])
    if not difference and "plan" in stored:
        difference = _difference(*(json.dumps(one["plan"], indent=1) for one in (stored, given)))
    difference = difference or "(both descriptions are equal, and an earlier version of Tidetable stored nothing else)"
    raise PlanChanged(
        f"{topology.name}.{target.name} was computed by another definition than the one at {target.line}:\n"
        f"{difference}\nrun `tidetable rebuild {topology.name}.{target.name}`"
    )


def _difference(stored: str, given: str) -> str:
    return "\n".join(unified_diff(stored.splitlines(), given.splitlines(), "computed by", "declared now", lineterm=""))


def evolved(ports: Ports, topology: Topology, target: Table, state: State, run: str) -> State:
    """Return the state of a table that the given definition computed, after adding the columns that it gains.

    Raises:
        PlanChanged: the definition differs in more than added columns.
        NotCommitted: other runs committed first, several times.
    """
    stored = StoredTable.of(ports.lakehouse, topology.name, target.name)
    present = state

    def evolve() -> State | None:
        nonlocal present
        columns = added_columns(ports.lakehouse, topology, target, present)
        if columns is None:
            return present
        _add(ports, topology, target, stored, present, columns, run)
        after = stored.state()
        assert after is not None, "a table that gained columns exists"
        present = after
        return None  # compare the definition again

    return until_committed(stored.name, evolve, f"stop the ticks of {topology.name}")


def _add(
    ports: Ports,
    topology: Topology,
    target: Table,
    stored: StoredTable,
    state: State,
    columns: Mapping[str, str],
    run: str,
) -> None:
    """Add columns that were verified for exactly this state, then record the new definition.

    A run of the older definition may be about to commit from the same state: rows without the columns, computed from
    inputs that have them. So an empty commit takes the state's next number before the definition is recorded. If
    another run has taken the number, the columns were verified for an older state, and nothing is recorded. A run of
    the older definition that begins later finds columns that it does not compute, and is refused.
    """
    with opened(ports.engine) as session:
        add_columns(session, stored, columns)
        no_rows = session.read.format("delta").load(stored.path).where("false")
        was = state.position
        position = replace(
            was, n=was.n + 1, run=run, data_version=state.data_version, whole=False, restored=None, deleted=None
        )
        if commit.append(no_rows, stored, position) is not None:
            with races():  # another run may record it at the same time
                table.set_properties(session, stored, {DEFINITION: definition(topology, target)})


def added_columns(lakehouse: Lakehouse, topology: Topology, target: Table, state: State) -> dict[str, str] | None:
    """Return the columns, type by name, that a table gains in its next step; None if its definition is the given one.

    Raises:
        PlanChanged: the definition differs in more than added columns.
    """
    try:
        check_definition(topology, target, state)
    except PlanChanged:
        check_landings(lakehouse, topology, target)
        columns = _added_with_inputs(lakehouse, topology, target, state)
        if columns is None:
            raise
        return columns
    return None


def check_landings(lakehouse: Lakehouse, topology: Topology, target: Table) -> None:
    """Check that every landing that a table is computed from agrees with the declaration of its topic.

    Raises:
        PlanChanged: a landing differs from its declaration; a rebuild of the table would not help.
    """
    for source in map(topology.source, sorted(topology.source_topics[target.name])):
        landing = StoredTable.of(lakehouse, topology.name, source.landing)
        state = landing.state()
        if state is not None:
            check_landing(landing.name, state, source)


def _added_with_inputs(lakehouse: Lakehouse, topology: Topology, target: Table, state: State) -> dict[str, str] | None:
    """Return the columns, type by name, that a table passes on from columns that its inputs gained.

    None if the definition differs in anything else, or if the former columns of an input are unknown.
    """
    added: dict[str, set[str]] = {}
    for scan in target.inputs:
        pinned = state.position.inputs.get(scan.table)
        if pinned is None:
            return None
        try:
            path = StoredTable.of(lakehouse, topology.name, scan.table).path
            fields = DeltaTable(path, pinned.version).schema().fields
        except DeltaError:
            return None  # the pinned version is gone, and its columns with it
        added[scan.table] = {column.name for column in scan.columns} - {field.name for field in fields}
    columns = topology.added_columns(target.name, added, json.loads(state.properties[DEFINITION])["fingerprint"])
    if columns is None or any(column.type is None for column in columns):
        return None
    return {column.name: column.type for column in columns if column.type is not None}
