"""Bring one table from its position to its pins: find the touched keys, compute their rows, commit once."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from spark.engine.advance import advance
from spark.engine.attempt import Stepped, attempting, changes_lost
from spark.engine.errors import ChangesExpired, InputChanged
from spark.engine.gate import must_evaluate
from spark.engine.inputs.pin import Pins, pin
from spark.engine.inputs.snapshot import DeltaSnapshot
from spark.engine.inputs.span import IncrementalSpan
from spark.engine.log.commit import close_other_epochs, until_committed
from spark.engine.log.definition import evolved
from spark.engine.log.leaders import check_leaders
from spark.engine.log.stored_table import StoredTable
from spark.engine.ports import opened

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark.engine.attempt import Attempt, Outcome
    from spark.engine.gate import Gate
    from spark.engine.log.position import Position
    from spark.engine.log.stored_table import State
    from spark.engine.ports import Ports
    from spark.topology.nodes import Scan
    from spark.topology.topology import Table, Topology

ANOTHER_TICK = "is more than one tick of {topology} running?"


def step(ports: Ports, topology: Topology, target: Table, run: str, gate: Gate | None = None) -> Stepped:
    """Bring a table to the newest cut that all its inputs reached.

    A step that finds nothing new commits nothing and starts no Spark session. If a table reads all changes of an input,
    and some of them have expired, the first step reads the rows of the input instead.

    Raises:
        PlanChanged: the table was computed by another definition, and a rebuild is needed; or a table of another
            topology does not have the columns that are read.
        LeaderMissing: a table of another topology was never computed.
        InputChanged: an input is not the table that the position names.
        ChangesExpired: changes of an input that the step needs have expired.
        ExpressionFailed: an expression of the topology failed.
        NotCommitted: other runs committed first, several times.
    """
    began = time.monotonic()
    table = StoredTable.of(ports.lakehouse, topology.name, target.name)
    expired: tuple[str, ...] = ()

    def once() -> Stepped | None:
        nonlocal expired
        check_leaders(ports.lakehouse, topology, target)
        state = table.state()
        if state is not None:
            state = evolved(ports, topology, target, state, run)
        pins = pin(ports, topology, target)
        here = Pins({}, {}) if state is None else Pins(state.position.inputs, state.position.cut)
        idle = (pins.inputs, pins.cut) == (here.inputs, here.cut) or not pins.inputs or _is_ahead(here, pins)
        if idle and not must_evaluate(gate, state):
            outcome: Outcome = "waiting" if pins.lagging else "idle"
            return Stepped(table.name, outcome, state, state, pins.lagging)
        until = replace(here, lagging=pins.lagging) if idle else pins
        try:
            with attempting(ports, topology, target, state, until, run, gate, expired) as attempt:
                if attempt.overtaken(state) or not close_other_epochs(attempt.no_rows(), table, attempt.before):
                    return None
                attempt = attempt.evaluate_gate()
                done = attempt.commit_position() if idle else _step(topology, attempt)
        except ChangesExpired as error:
            if is_new(state) and (now := expired_inputs(ports, topology, target, until)) != expired:
                expired = now
                return None  # again, with the rows of these inputs
            raise ChangesExpired(f"{error}\n{remedy(topology, target)}") from error
        return None if done is None else replace(done, waiting_for=pins.lagging if idle else ())

    done = until_committed(table.name, once, ANOTHER_TICK.format(topology=topology.name))
    return replace(done, seconds=time.monotonic() - began)


def _step(topology: Topology, attempt: Attempt) -> Stepped | None:
    """Compute what the span to the pins makes of the table, and commit it. None: another run committed this step."""
    was = attempt.before.position
    if was.n == 0:
        return _first_step(topology, attempt)
    _check_inputs(was, attempt.position)
    before = replace(attempt.now, inputs=was.inputs, cut=was.cut)
    receives = not attempt.target.plan.uses_stream_time
    span = IncrementalSpan(before, attempt.now, attempt.cache, own=attempt.stored(), receives=receives)
    if not span.is_small:
        attempt.plan_for_all_rows()
    advanced = advance(topology, attempt.target, span, attempt.clock, attempt.position.n)
    attempt, output = attempt.timed(advanced), advanced.output
    if output.frame is None:
        return attempt.commit_position()
    if attempt.widen(output.frame):
        return None
    if output.mode == "append":
        return attempt.append(output.frame)
    return attempt.merge(output.frame, span)


def _first_step(topology: Topology, attempt: Attempt) -> Stepped | None:
    """Compute every key of a table for its first commit. None: another run committed it."""
    attempt = replace(attempt, position=replace(attempt.position, whole=True))
    attempt.plan_for_all_rows()
    advanced = advance(topology, attempt.target, attempt.initial_span(), attempt.clock, attempt.position.n)
    attempt, rows = attempt.timed(advanced), advanced.output.frame
    assert rows is not None, "the first span has every row"
    if attempt.before.data_version == 0:
        if attempt.widen(rows):
            return None
        return attempt.append(rows)
    return attempt.replace_rows(rows)  # a rebuild died after it committed its anchor: the table has older rows


def is_new(state: State | None) -> bool:
    """Return whether a table holds no rows yet, not even rows from before a rebuild that died."""
    return state is None or (state.position.n == 0 and state.data_version == 0)


def expired_inputs(
    ports: Ports, topology: Topology, target: Table, pins: Pins, begun: Mapping[str, int] | None = None
) -> tuple[str, ...]:
    """Return those inputs that the table reads all changes of, and whose changes have expired.

    `begun` has, by input, the version from which on the changes are needed; without one, all of them are.
    """
    changelogs = target.plan.changelogs
    if not changelogs or not pins.inputs:
        return ()
    with opened(ports.engine) as session:
        now = DeltaSnapshot(session, ports.lakehouse, topology.name, pins.inputs, pins.cut, begun or {})
        return tuple(dict.fromkeys(scan.table for scan in changelogs if not _has_changelog(now, scan)))


def _has_changelog(now: DeltaSnapshot, scan: Scan) -> bool:
    try:
        now.changelog(scan).count()  # opens every file of the feed, and reads no column
    except ChangesExpired:
        return False
    except PySparkException as error:
        if not changes_lost(error):
            raise
        return False
    return True


def remedy(topology: Topology, target: Table) -> str:
    """Return what to do about a table that needs expired changes of its inputs."""
    name = f"{topology.name}.{target.name}"
    if not target.plan.uses_stream_time and not target.plan.changelogs:
        return f"run `tidetable rebuild {name}`"
    return (
        f"Its rows did not change. To discard what it computed from the expired changes, and to begin with the rows "
        f"that its inputs have now, run `tidetable rebuild {name} --from-rows`"
    )


def _is_ahead(here: Pins, pins: Pins) -> bool:
    """Return whether a table is ahead of its pins, as it is when the topology was limited after the table stepped.

    False if an input is another table by now, or a topic was created again: the two cannot be compared.
    """
    same = all(here.inputs.get(name, pinned).id == pinned.id for name, pinned in pins.inputs.items())
    both = [(pins.cut[topic], at) for topic, at in here.cut.items() if topic in pins.cut]
    same = same and all(there.topic_id == at.topic_id for there, at in both)
    return same and any(there.is_before(at) for there, at in both)


def _check_inputs(was: Position, will: Position) -> None:
    """Refuse to step from versions of an input that was recreated or restored."""
    for name, pinned in will.inputs.items():
        known = was.inputs.get(name)
        if known is None or known.id != pinned.id or known.version > pinned.version:
            raise InputChanged(
                f"{will.table} was computed from {name} ({known}), which is now {pinned}: it was dropped and created "
                f"again, or restored. Run `tidetable rebuild {will.table.replace('/', '.')}`"
            )
