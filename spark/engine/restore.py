"""Restore a table to an earlier version: its rows, and the position that they were computed from.

One commit with the fence merges the rows that differ, as a step does. So the readers of the table follow its change
feed, and a concurrent step loses the race. The next step starts from the restored position. Delta's RESTORE would roll
back the properties but not the transactions, and its change feed would have the rows of every file that it restores.
"""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from spark.engine import position as positions
from spark.engine.changes import version_of
from spark.engine.definition import agreed
from spark.engine.errors import CannotRestore, InputChanged, NotCommitted, condition
from spark.engine.pin import Pins
from spark.engine.step import CHANGES_LOST, Stepped, named, put_right, working

if TYPE_CHECKING:
    from spark.engine.doors import Doors
    from spark.engine.position import Commit
    from spark.topology.topology import Table, Topology

TRIES = 5  # lost races before a restore gives up


def restore(
    doors: Doors,
    topology: Topology,
    target: Table,
    run: str,
    *,
    version: int | None = None,
    timestamp: int | None = None,
) -> Stepped:
    """Restore a table to our newest commit at or before a version or a time.

    Args:
        doors: the interfaces to Spark, Kafka and the lake.
        topology: the topology of the table.
        target: the table.
        run: the run that restores.
        version: a Delta version of the table.
        timestamp: milliseconds since 1970, instead of a version.

    Raises:
        CannotRestore: the table is a stream, whose records consumers may have read; or it has no commit at or before
            the version or time, is the same already, or lost the files of the version.
        InputChanged: the table was never computed.
        PlanChanged: the table was computed by another definition than the one given.
        NotCommitted: other runs committed first, `TRIES` times.
    """
    began = time.monotonic()
    name, path = f"{topology.name}/{target.name}", doors.lakehouse.table(topology.name, target.name)
    if target.plan.is_stream:
        raise CannotRestore(
            f"{name} is a stream: consumers have its records already, and would receive them twice. "
            f"`tidetable rebuild {topology.name}.{target.name}` puts right what somebody changed in it"
        )
    for _ in range(TRIES):
        state = positions.read(path, name)
        if state is None:
            raise InputChanged(f"{name} was never computed: run `tidetable run {topology.name}`")
        commits = list(positions.every(path, name))
        found = _chosen(name, state.version, commits, version, timestamp)
        if found is commits[0] and state.data_version == found.data_version:
            raise CannotRestore(
                f"{name} is what it was in version {found.version}: no commit since changed it. Nothing was changed"
            )
        state = agreed(doors, topology, target, state, run)
        was = found.position
        with named(topology, target), working(doors, topology, target, state, Pins(was.inputs, was.cut), run) as work:
            back = replace(
                work.position,
                time=was.time,
                dropped=was.dropped,
                seen=was.seen,
                lateness=was.lateness,
                enforced=was.enforced,
                restored=found.version,
                gated=was.gated,
            )
            try:
                done = put_right(
                    replace(work, position=back), version_of(work.session, path, found.version, target.plan)
                )
            except PySparkException as error:
                if not condition(error).startswith(CHANGES_LOST):
                    raise
                raise CannotRestore(
                    f"the files of version {found.version} of {name} are no longer kept, a week by default: "
                    f"{str(error).partition('JVM stacktrace:')[0].strip()}"
                ) from error
        if done is not None:
            return replace(done, seconds=time.monotonic() - began)
    raise NotCommitted(f"{name}: {TRIES} times another run committed first; stop the ticks of {topology.name}")


def _chosen(name: str, newest: int, commits: list[Commit], version: int | None, timestamp: int | None) -> Commit:
    """Return the newest commit at or before a version or a time; `newest` is the newest version of the table.

    Raises:
        CannotRestore: there is none.
    """
    wanted = f"version {version}" if timestamp is None else f"commit as old as {moment(timestamp)}"
    if (version or 0) <= newest and (timestamp or 0) <= round(time.time() * 1000):
        for commit in commits:
            if (version is None or commit.version <= version) and (timestamp is None or commit.at <= timestamp):
                return commit
    elif timestamp is not None:
        wanted = f"commit of {moment(timestamp)}, which is in the future"
    if not commits:
        raise CannotRestore(f"{name} has no commit that can be restored, by its present definition")
    oldest = commits[-1]
    raise CannotRestore(
        f"{name} cannot be put back to any {wanted}. Of its present epoch are versions {oldest.version} to {newest}, "
        f"of {moment(oldest.at)} to {moment(commits[0].at)}; a rebuild by another definition begins an epoch. Nothing "
        f"was changed"
    )


def moment(milliseconds: int) -> str:
    """Return a time in milliseconds since 1970 as text, in UTC."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(sep=" ", timespec="seconds")
