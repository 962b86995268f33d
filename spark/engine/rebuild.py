"""Rebuild a table: compute every key again, and commit the difference; also after a change of its definition."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from spark.engine.advance import advance
from spark.engine.attempt import Stepped, attempting
from spark.engine.errors import ChangesExpired, InputChanged, PlanChanged, PositionLost
from spark.engine.gate import passed
from spark.engine.inputs.pin import pin
from spark.engine.inputs.stream_time import Clock
from spark.engine.log import commit, table
from spark.engine.log.commit import close_other_epochs, races, until_committed
from spark.engine.log.definition import check_landings, definition, evolved
from spark.engine.log.leaders import check_leaders
from spark.engine.log.position import Gap
from spark.engine.log.stored_table import StoredTable
from spark.engine.ports import opened
from spark.engine.replay import replayed
from spark.engine.step import expired_inputs, is_new, remedy, step

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from spark.engine.attempt import Attempt
    from spark.engine.gate import Gate
    from spark.engine.log.stored_table import State
    from spark.engine.ports import Ports
    from spark.topology.topology import Table, Topology

EXPIRED = "expired before the table read them"


def step_or_rebuild(ports: Ports, topology: Topology, target: Table, run: str, gate: Gate | None = None) -> Stepped:
    """Step a table; if changes of an input have expired, and `on_data_loss` is "ledger", rebuild it.

    The table then has the rows that it would have had, and its ledger names the versions whose changes it did not read.
    A stream, windows, and a lookup-only join depend on the changes themselves, and are not rebuilt.

    Raises:
        ChangesExpired: changes of an input have expired, and the table is not rebuilt.
    """
    try:
        return step(ports, topology, target, run, gate)
    except ChangesExpired:
        if topology.settings.on_data_loss == "fail" or target.plan.depends_on_spans:
            raise
        return rebuild(ports, topology, target, run, gate, unseen=True)


def rebuild(
    ports: Ports,
    topology: Topology,
    target: Table,
    run: str,
    gate: Gate | None = None,
    *,
    unseen: bool = False,
    from_rows: bool = False,
) -> Stepped:
    """Compute every key again at the newest common cut, and merge what differs; also after a change of definition.

    A stored stream and windows are replayed, through the spans of their commits.

    If changes of the inputs have expired, so that the rows cannot be computed again, the rebuild fails, and the table
    does not change. With `from_rows` the table begins again instead, and the rows of such inputs replace their changes.
    A table without rows begins so without `from_rows`.

    The change feed has only the difference, so tables that read this one step as usual. If the columns changed, all
    rows are replaced. The gate evaluates all rows. With `unseen`, the ledger gets the versions of the inputs between
    the table's position and its pins.

    Raises:
        InputChanged: an input was never computed.
        LeaderChanged: a table of another topology does not have the columns that are read.
        LeaderMissing: a table of another topology was never computed.
        ChangesExpired: changes of an input that the rebuild needs have expired; the table's rows and definition did
            not change.
        NotCommitted: other runs committed first, several times.
    """
    began = time.monotonic()
    stored = StoredTable.of(ports.lakehouse, topology.name, target.name)
    new_epoch, expired = False, tuple[str, ...]()

    def once() -> Stepped | None:
        nonlocal new_epoch, expired
        check_leaders(ports.lakehouse, topology, target)
        state = _renewed(ports, topology, target, stored, run, from_rows, new_epoch)
        new_epoch = False
        pins = pin(ports, topology, target)  # after the state: else a step in between could be ahead of the pins
        if not pins.inputs:
            missing = ", ".join(pins.lagging)
            raise InputChanged(f"{stored.name}: {missing} was never computed: run `tidetable run {topology.name}`")
        try:
            with attempting(ports, topology, target, state, pins, run, gate, expired) as attempt:
                if attempt.overtaken(state) or not close_other_epochs(attempt.no_rows(), stored, attempt.before):
                    return None
                gaps = (*attempt.position.gaps, *(_unseen(attempt) if unseen else ()))
                # A rebuild computes every row, so the gate evaluates every row.
                gated = None if gate is None else passed(gate, attempt.before.version)
                position = replace(attempt.position, whole=True, gaps=gaps, gated=gated)
                return _rebuilt(ports, topology, replace(attempt, position=position))
        except ChangesExpired as error:
            if from_rows and state is not None and state.position.n > 0:
                new_epoch = True
                return None
            if (from_rows or is_new(state)) and (now := expired_inputs(ports, topology, target, pins)) != expired:
                expired = now
                return None  # again, with the rows of these inputs
            raise _refused(topology, target, str(error).partition("\n")[0]) from error

    done = until_committed(stored.name, once, f"stop the ticks of {topology.name}")
    return replace(done, seconds=time.monotonic() - began)


def _unseen(attempt: Attempt) -> Iterator[Gap]:
    """Yield the versions of a table's inputs between its position and its pins, as gaps."""
    was, found_at = attempt.before.position.inputs, round(time.time() * 1000)
    for name, pinned in attempt.position.inputs.items():
        if name in was and was[name].version < pinned.version:
            yield Gap(name, None, was[name].version + 1, pinned.version, EXPIRED, found_at)


def _rebuilt(ports: Ports, topology: Topology, attempt: Attempt) -> Stepped | None:
    """Compute every key, and commit what differs.

    A table that uses stream time is computed through the spans of its commits. In a new epoch, as after a change of
    definition, it has no commits, and is computed in one span, as any other table.
    """
    attempt.plan_for_all_rows()
    target, position = attempt.target, attempt.position
    commits = list(attempt.table.commits()) if target.plan.uses_stream_time else []
    if commits:
        newest = commits[0].position
        rows, clock = replayed(ports, attempt.cache, topology, target, attempt.table, commits)
        position = replace(position, inputs=newest.inputs, cut=newest.cut)
        rows = attempt.as_stored(rows)
    else:
        advanced = advance(topology, target, attempt.initial_span(), Clock(), position.n)
        assert advanced.output.frame is not None, "the first span has every row"
        rows, clock = advanced.output.frame, advanced.clock
    position = replace(position, time=clock.time, dropped=clock.dropped, seen=clock.seen)
    return replace(attempt, position=position).replace_rows(rows)


def _refused(topology: Topology, target: Table, why: str) -> ChangesExpired:
    return ChangesExpired(f"{topology.name}.{target.name} cannot be computed again: {why}\n{remedy(topology, target)}")


def _renewed(
    ports: Ports,
    topology: Topology,
    target: Table,
    stored: StoredTable,
    run: str,
    from_rows: bool,
    new_epoch: bool,
) -> State | None:
    """Return the state to rebuild from, in a new epoch if the definition or an input changed, or the position is lost.

    In a new epoch the spans of the old one cannot be replayed. So if changes of the inputs have expired, an epoch
    begins only with `from_rows`; without it the rebuild fails before anything is lost. `new_epoch` always begins one.
    """
    state, agrees = None, False
    try:
        state = stored.state()
        if state is None:
            return None
        state, agrees = evolved(ports, topology, target, state, run), True
    except (PositionLost, PlanChanged):
        check_landings(ports.lakehouse, topology, target)
    if (
        agrees
        and state is not None
        and not new_epoch
        and not _input_replaced(ports, topology, target, state, from_rows)
    ):
        if not from_rows or state.position.n == 0 or not _expired(ports, topology, target, state.position.begun):
            return state
    elif not from_rows and (state is None or not is_new(state)) and (expired := _expired(ports, topology, target)):
        raise _refused(topology, target, f"{', '.join(expired)} no longer has all of its changes")
    _begin_epoch(ports, stored, run, definition(topology, target))
    return stored.state()


def _expired(
    ports: Ports, topology: Topology, target: Table, begun: Mapping[str, int] | None = None
) -> tuple[str, ...]:
    """Return the inputs whose changes the table reads, and whose changes have expired."""
    if not target.plan.changelogs:
        return ()
    return expired_inputs(ports, topology, target, pin(ports, topology, target), begun)


def _input_replaced(ports: Ports, topology: Topology, target: Table, state: State, from_rows: bool) -> bool:
    """Return whether a replay cannot go through the inputs, because one of them changed other than by steps.

    It was recreated; or it is a stream that was computed again by another definition, or changed by somebody else; or a
    table that was replaced, where its change feed ends.
    """
    for scan in target.inputs if target.plan.uses_stream_time or target.plan.changelogs else ():
        source = StoredTable.of(ports.lakehouse, topology.name, scan.table)
        pinned, now = state.position.inputs.get(scan.table), source.state()
        if pinned is None or now is None:
            continue
        if now.id != pinned.id or now.version < pinned.version:
            return True
        if target.plan.uses_stream_time and (scan.appended or scan in target.plan.drivers):
            try:
                changed = source.changed_versions(pinned.version, now.version)
            except ChangesExpired as error:
                if from_rows:
                    return True
                raise _refused(topology, target, str(error)) from error
            for one in changed:
                if one.replaced or (scan.appended and (one.position is None or one.position.n == 1)):
                    return True
    return False


def _begin_epoch(ports: Ports, stored: StoredTable, run: str, given: str) -> None:
    """Close the old epoch, so that none of its writers can commit, and anchor a new one.

    Raises:
        NotCommitted: other runs committed first, several times.
    """
    old = stored.salvaged_state().position
    with opened(ports.engine) as session:
        no_rows = session.read.format("delta").load(stored.path).where("false")
        until_committed(
            stored.name, lambda: commit.close_epoch(no_rows, stored, old) or None, "stop the ticks of its topology"
        )
        now = stored.salvaged_state()
        if now.position.epoch == old.epoch:  # else another rebuild has anchored a new one meanwhile
            begun = table.unpositioned(stored.name, table.new_epoch(), run)
            fresh = replace(begun, data_version=now.data_version, gaps=old.gaps)
            with races():  # another rebuild may anchor at the same time: its epoch serves as well
                table.anchor(session, stored, fresh, given)
