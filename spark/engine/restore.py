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

from spark.engine.attempt import Stepped, attempting, changes_lost, message
from spark.engine.errors import CannotRestore, InputChanged
from spark.engine.inputs.pin import Pins
from spark.engine.inputs.snapshot import version_of
from spark.engine.log.commit import until_committed
from spark.engine.log.definition import evolved
from spark.engine.log.stored_table import StoredTable

if TYPE_CHECKING:
    from spark.engine.log.stored_table import Commit
    from spark.engine.ports import Ports
    from spark.topology.topology import Table, Topology


def restore(
    ports: Ports,
    topology: Topology,
    target: Table,
    run: str,
    *,
    version: int | None = None,
    timestamp: int | None = None,
) -> Stepped:
    """Restore a table to our newest commit at or before a version or a time.

    Args:
        ports: the interfaces to Spark, Kafka and the lake.
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
        NotCommitted: other runs committed first, several times.
    """
    began = time.monotonic()
    table = StoredTable.of(ports.lakehouse, topology.name, target.name)
    if target.plan.is_stream:
        raise CannotRestore(
            f"{table.name} is a stream: consumers have its records already, and would receive them twice. "
            f"`tidetable rebuild {topology.name}.{target.name}` puts right what somebody changed in it"
        )

    def once() -> Stepped | None:
        state = table.state()
        if state is None:
            raise InputChanged(f"{table.name} was never computed: run `tidetable run {topology.name}`")
        commits = list(table.all_commits())
        chosen = _chosen(table.name, state.version, commits, version, timestamp)
        if chosen is commits[0] and state.data_version == chosen.data_version:
            raise CannotRestore(
                f"{table.name} is what it was in version {chosen.version}: no commit since changed it. Nothing was "
                f"changed"
            )
        state = evolved(ports, topology, target, state, run)
        was = chosen.position
        with attempting(ports, topology, target, state, Pins(was.inputs, was.cut), run) as attempt:
            position = replace(
                attempt.position,
                time=was.time,
                dropped=was.dropped,
                seen=was.seen,
                lateness=was.lateness,
                enforced=was.enforced,
                restored=chosen.version,
                gated=was.gated,
            )
            attempt.plan_for_all_rows()
            try:
                rows = version_of(attempt.session, table.path, chosen.version, target.plan)
                return replace(attempt, position=position).replace_rows(attempt.as_stored(rows))
            except PySparkException as error:
                if not changes_lost(error):
                    raise
                raise CannotRestore(
                    f"the files of version {chosen.version} of {table.name} were removed (by default after a week): "
                    f"{message(error).strip()}"
                ) from error

    done = until_committed(table.name, once, f"stop the ticks of {topology.name}")
    return replace(done, seconds=time.monotonic() - began)


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
