"""The definition of a stored table: stored with it, compared before every step, and extended when its inputs evolve.

An input may gain columns at any time. A table that passes them on has nulls in them in every row so far, because its
inputs did not have them. So only the schema of the table changes, and its next step goes on from its position.

A column of an input may become wider. If the plan without the wider types has the fingerprint of the table, and no
expression can have another value because of them, all rows so far are what the plan yields. The step that has wider
rows widens the table's columns (`Attempt.widen`).
"""

from __future__ import annotations

import json
from dataclasses import replace
from difflib import unified_diff
from typing import TYPE_CHECKING

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from spark.engine.errors import ChangesExpired, PlanChanged
from spark.engine.log import commit, table
from spark.engine.log.commit import races, until_committed
from spark.engine.log.landing_definition import check_landing
from spark.engine.log.position import DEFINITION
from spark.engine.log.stored_table import StoredTable
from spark.engine.log.table import add_columns, stored_types
from spark.engine.ports import opened
from spark.topology.describe import describe_table
from spark.topology.sql.widening import ValuesMayDiffer, Wider, is_wider

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import SparkSession

    from spark.engine.log.stored_table import State
    from spark.engine.ports import Lakehouse, Ports
    from spark.topology.nodes import WiderColumns
    from spark.topology.topology import Table, Topology


def definition(topology: Topology, target: Table) -> str:
    """Return the definition of a table as JSON, which is stored with the table to be compared and shown.

    `is` describes the plan in words, `plan` has it in full: it shows a difference that the words omit. `types` has the
    declared types of the columns of each input, which a plan does not have.
    """
    parts = {
        "fingerprint": topology.fingerprint(target.name),
        "is": describe_table(
            replace(target, plan=target.plan.minimal()), topology.sources, topology.settings, topology.leaders
        ),
        "plan": topology.computed_by(target.name),
        "types": _declared_types(target),
    }
    return json.dumps(parts)


def _declared_types(target: Table) -> dict[str, dict[str, str]]:
    return {
        scan.table: {column.name: column.type for column in scan.columns if column.type is not None}
        for scan in target.inputs
    }


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
        if columns and not _columns_added(session, stored, state, columns, run):
            return
        with races():  # another run may record it at the same time
            table.set_properties(session, stored, {DEFINITION: definition(topology, target)})


def _columns_added(
    session: SparkSession, stored: StoredTable, state: State, columns: Mapping[str, str], run: str
) -> bool:
    """Add columns, and take the state's next number by an empty commit; return whether this run took it."""
    add_columns(session, stored, columns)
    no_rows = session.read.format("delta").load(stored.path).where("false")
    return commit.append(no_rows, stored, state.position.next(run, state.data_version)) is not None


def added_columns(lakehouse: Lakehouse, topology: Topology, target: Table, state: State) -> dict[str, str] | None:
    """Return the columns, type by name, that a table gains in its next step; None if its definition is the given one.

    None are gained if its definition differs in wider types of its inputs alone.

    Raises:
        PlanChanged: the definition differs in more than added and widened columns, or a widened column may change rows.
    """
    stored = json.loads(state.properties[DEFINITION])
    other: PlanChanged | None = None
    try:
        check_definition(topology, target, state)
    except PlanChanged as error:
        check_landings(lakehouse, topology, target)
        other = error
    wider = _widened_inputs(lakehouse, topology, target, state, stored.get("types"))
    if other is None and not wider and "types" in stored:
        return None
    columns: dict[str, str] | None = {}
    try:
        if other is not None or wider:
            columns = _added_with_inputs(lakehouse, topology, target, state, wider)
    except ValuesMayDiffer as error:
        name = f"{topology.name}.{target.name}"
        raise PlanChanged(
            f"{name}, at {target.line}, was computed before a column was widened: {error}\n"
            f"run `tidetable rebuild {name}`"
        ) from other
    if columns is None:
        raise other or PlanChanged(_changed_types(topology, target, wider))
    if other is None and not columns and stored.get("types") == _declared_types(target):
        return None  # nothing is to be recorded: the wider types are not declared ones
    return columns


def _changed_types(topology: Topology, target: Table, wider: WiderColumns) -> str:
    name = f"{topology.name}.{target.name}"
    changed = ", ".join(
        f"{column} of {table} was {before} and is {now}"
        for table, columns in wider.items()
        for column, (before, now) in columns.items()
    )
    return f"{name}, at {target.line}, was computed from other types: {changed}\nrun `tidetable rebuild {name}`"


def _widened_inputs(
    lakehouse: Lakehouse,
    topology: Topology,
    target: Table,
    state: State,
    stored: Mapping[str, Mapping[str, str]] | None,
) -> dict[str, dict[str, Wider]]:
    """Return the columns of the inputs that have another type now than when the table was computed.

    Former types are those in the stored definition. A definition of an earlier format has none, and no topology
    declares the types of aggregates: they are those of the version of the input that the table was computed from.
    """
    found: dict[str, dict[str, Wider]] = {}
    for scan in target.inputs:
        declared = {column.name: column.type for column in scan.columns if column.type is not None}
        pinned, input_ = state.position.inputs.get(scan.table), StoredTable.of(lakehouse, topology.name, scan.table)
        if stored is not None or pinned is None:
            before = (stored or {}).get(scan.table, {})
        else:
            before = _types_at(input_, pinned.version)
        changed = {name: Wider(before[name], now) for name, now in declared.items() if before.get(name, now) != now}
        undeclared = [column.name for column in scan.columns if column.type is None]
        if pinned is not None and undeclared:
            changed |= _widened_since(input_, pinned.version, undeclared)
        if changed:
            found[scan.table] = changed
    return found


def _widened_since(input_: StoredTable, version: int, columns: Iterable[str]) -> dict[str, Wider]:
    """Return those of the columns of a stored input that were widened after a version of it."""
    try:
        if not input_.widened_versions(version, input_.version()):
            return {}
    except (ChangesExpired, TableNotFoundError):
        return {}  # the step reads the changes, and says so
    before, now = _types_at(input_, version), stored_types(input_.schema())
    return {name: Wider(before[name], now[name]) for name in columns if before.get(name, now[name]) != now[name]}


def _types_at(input_: StoredTable, version: int) -> dict[str, str]:
    """Return the types of the columns of a stored input at a version; none if the version is gone."""
    try:
        return stored_types(DeltaTable(input_.path, version).schema().to_json())
    except DeltaError:
        return {}


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


def _added_with_inputs(
    lakehouse: Lakehouse, topology: Topology, target: Table, state: State, wider: WiderColumns
) -> dict[str, str] | None:
    """Return the columns, type by name, that a table passes on from columns that its inputs gained.

    None if the definition differs in anything else but wider columns of its inputs, or if the former columns of an
    input are unknown.

    Raises:
        ValuesMayDiffer: the table may have other values now that columns are wider.
    """
    if not all(is_wider(now, before) for columns in wider.values() for before, now in columns.values()):
        return None
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
    key = target.plan.widened(wider).keys() & set(target.plan.key)
    if key and target.topic is not None and target.produced.key_format != "json":
        raise ValuesMayDiffer(
            f"the key {', '.join(sorted(key))} has other bytes in topic {target.topic} now that its type is wider; "
            f'publish to a new topic, as in .to("..."), before the rebuild'
        )
    fingerprint = json.loads(state.properties[DEFINITION])["fingerprint"]
    columns = topology.added_columns(target.name, added, wider, fingerprint)
    if columns is None or any(column.type is None for column in columns):
        return None
    return {column.name: column.type for column in columns if column.type is not None}
