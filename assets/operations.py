"""The jobs that repair or inspect a topology: status, audit, rebuild, restore, check, and quarantine.

Each job does what the command of the same name does, for one topology. None is a part of a tick.
"""

# No `from __future__ import annotations`: Dagster reads the annotations of an op as objects.
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

import dagster as dg

from assets import metadata
from assets.failures import PERMANENT, TRANSIENT
from assets.gates import gates
from assets.retries import retried
from assets.specs import TOPOLOGY_TAG, table_key, word
from assets.suites import Suite
from resources.tidetable import Tidetable
from spark.engine.attempt import Stepped
from spark.engine.audit import Audited, Unprovable, audit, audits
from spark.engine.check import check
from spark.engine.errors import CannotRestore
from spark.engine.quarantine import redecode, undecodable
from spark.engine.rebuild import rebuild
from spark.engine.restore import restore
from spark.engine.status import observe, with_counts
from spark.topology import Topology
from spark.topology.topology import Source, Table

DATA_VERSION = "dagster/data_version"

Events = Iterator[dg.AssetObservation | dg.AssetMaterialization | dg.Output[None]]
"""The events of an op. It yields each at once: an event that is only logged is lost if the op fails later."""

DONE = dg.Output(None)

TABLES = dg.Field([str], default_value=[], description="Names of tables; by default all tables of the topology.")
TABLE = dg.Field(str, description="The name of a table.")
ALL_VERSIONS = dg.Field(
    bool,
    default_value=False,
    description="Every version that can be computed again; the log of the run names the other versions.",
)
DOWNSTREAM = dg.Field(bool, default_value=False, description="Also rebuild every table that is computed from it.")
FROM_ROWS = dg.Field(
    bool,
    default_value=False,
    description="If changes of inputs have expired, start again from the rows that the inputs have now.",
)
VERSION = dg.Field(int, is_required=False, description="The version to restore.")
TIMESTAMP = dg.Field(str, is_required=False, description="Or the time to restore: ISO 8601, in UTC by default.")
LIMIT = dg.Field(int, default_value=20, description="How many of the newest records of each topic to list.")
TOPICS = dg.Field([str], default_value=[], description="Names of topics; by default all topics of the topology.")


def operations(topology: Topology, checked: Mapping[str, Suite]) -> list[dg.JobDefinition]:
    """The operational jobs of a topology. A rebuild passes the gates of its tables, as a step does."""
    return [
        _status(topology),
        _audit(topology),
        _rebuild(topology, checked),
        _restore(topology),
        _check(topology, checked),
        _quarantine_list(topology),
        _quarantine_replay(topology),
    ]


def _status(topology: Topology) -> dg.JobDefinition:
    @dg.op(
        name=_name(topology, "look"),
        description="Observes the state of every landing and table: lag, position, and the inputs that it waits for.",
    )
    def look(tidetable: dg.ResourceParam[Tidetable]) -> Events:
        with retried():
            _, statuses = observe(tidetable.lakehouse, tidetable.ports().kafka, topology)
            statuses = with_counts(tidetable.lakehouse, topology, statuses)
        for status in statuses:
            yield _observed(topology, status.table, metadata.of_status(status))
        yield DONE

    return _job(topology, "status", look, "Report the state of every landing and table.")


def _audit(topology: Topology) -> dg.JobDefinition:
    @dg.op(
        name=_name(topology, "audit", "tables"),
        config_schema={"tables": TABLES, "all_versions": ALL_VERSIONS},
        description="Compares each table with its query over the inputs that its commit names; fails if one differs.",
    )
    def audit_tables(context: dg.OpExecutionContext, tidetable: dg.ResourceParam[Tidetable]) -> Events:
        wrong: list[str] = []
        for table in [_table(topology, name) for name in context.op_config["tables"]] or topology.tables:
            with retried(), _collected(wrong):
                for audited in _audited(tidetable, topology, table, context.op_config["all_versions"]):
                    if isinstance(audited, Unprovable):
                        until = audited.version if audited.until is None else audited.until
                        context.log.warning(
                            "%s versions %s to %s: %s", audited.table, audited.version, until, audited.why
                        )
                        continue
                    yield _observed(topology, table.name, metadata.of_audit(audited))
                    if not audited.holds:
                        wrong.append(f"{audited.table} version {audited.version}: {audited.differing} keys differ")
        if wrong:
            raise dg.Failure("; ".join(wrong), allow_retries=False)
        yield DONE

    return _job(topology, "audit", audit_tables, "Audit the tables that the configuration names, by default all.")


@contextmanager
def _collected(wrong: list[str]) -> Iterator[None]:
    """Collect the message of a permanent error, so that the other tables are audited or checked all the same."""
    try:
        yield
    except TRANSIENT:
        raise
    except PERMANENT as error:
        wrong.append(str(error))


def _audited(tidetable: Tidetable, topology: Topology, table: Table, every: bool) -> Iterable[Audited | Unprovable]:
    if every:
        return audits(tidetable.ports(), topology, table)
    return [audit(tidetable.ports(), topology, table)]


def _rebuild(topology: Topology, checked: Mapping[str, Suite]) -> dg.JobDefinition:
    @dg.op(
        name=_name(topology, "rebuild", "table"),
        config_schema={"table": TABLE, "downstream": DOWNSTREAM, "from_rows": FROM_ROWS},
        description="Computes every row again, as after a changed definition, and writes the rows that differ.",
    )
    def rebuild_table(context: dg.OpExecutionContext, tidetable: dg.ResourceParam[Tidetable]) -> Events:
        table = _table(topology, context.op_config["table"])
        downstream = topology.downstream(table.name) if context.op_config["downstream"] else ()
        by_table, from_rows = gates(topology, checked), context.op_config["from_rows"]
        for number, target in enumerate((table, *downstream), 1):
            context.log.info("rebuilding %s, %s of %s", target.name, number, 1 + len(downstream))
            with retried():
                gate = by_table.get(target.name)
                done = rebuild(tidetable.ports(), topology, target, context.run.run_id, gate, from_rows=from_rows)
            yield _materialized(tidetable, topology, target, done)
        yield DONE

    return _job(
        topology,
        "rebuild",
        rebuild_table,
        "Rebuild a table and, with downstream, the tables that are computed from it.",
    )


def _restore(topology: Topology) -> dg.JobDefinition:
    @dg.op(
        name=_name(topology, "restore", "table"),
        config_schema={"table": TABLE, "version": VERSION, "timestamp": TIMESTAMP},
        description="Restores a table to an earlier version; the next step continues from there.",
    )
    def restore_table(context: dg.OpExecutionContext, tidetable: dg.ResourceParam[Tidetable]) -> Events:
        table = _table(topology, context.op_config["table"])
        version, timestamp = context.op_config.get("version"), context.op_config.get("timestamp")
        if (version is None) == (timestamp is None):
            raise dg.Failure("write either version or timestamp", allow_retries=False)
        with retried():
            at = None if timestamp is None else _milliseconds(timestamp)
            done = restore(tidetable.ports(), topology, table, context.run.run_id, version=version, timestamp=at)
        yield _materialized(tidetable, topology, table, done)
        yield DONE

    return _job(topology, "restore", restore_table, "Restore a table to a version or a time.")


def _check(topology: Topology, checked: Mapping[str, Suite]) -> dg.JobDefinition:
    @dg.op(
        name=_name(topology, "check", "tables"),
        config_schema={"tables": TABLES},
        description="Evaluates the suite of each table on all of its rows; fails if a critical expectation fails.",
    )
    def check_tables(context: dg.OpExecutionContext, tidetable: dg.ResourceParam[Tidetable]) -> Events:
        wrong: list[str] = []
        by_table = gates(topology, checked)
        for table in [_table(topology, name) for name in context.op_config["tables"]] or topology.tables:
            gate = by_table.get(table.name)
            if gate is None:
                context.log.info("%s has no suite", table.name)
                continue
            with retried(), _collected(wrong):
                done = check(tidetable.ports(), topology, table, gate, context.run.run_id)
                if gate.stored is None:
                    context.log.info("%s has no rows yet", table.name)
                    continue
                yield _observed(topology, table.name, metadata.of_check(done, gate.stored))
                if gate.stored.worst == "critical":
                    wrong.append(f"{done.table} version {done.version}: {gate.stored}")
        if wrong:
            raise dg.Failure("; ".join(wrong), allow_retries=False)
        yield DONE

    return _job(topology, "check", check_tables, "Evaluate the suites of tables on all of their rows.")


def _quarantine_list(topology: Topology) -> dg.JobDefinition:
    @dg.op(
        name=_name(topology, "list", "records"),
        config_schema={"topics": TOPICS, "limit": LIMIT},
        description="Observes the newest records in quarantine of each landing, with their reasons and bytes.",
    )
    def list_records(context: dg.OpExecutionContext, tidetable: dg.ResourceParam[Tidetable]) -> Events:
        for source in _sources(topology, context.op_config["topics"]):
            with retried():
                records = undecodable(tidetable.ports(), topology, source, context.op_config["limit"])
            yield _observed(topology, source.landing, metadata.of_undecodable(records))
        yield DONE

    return _job(topology, "quarantine_list", list_records, "List the records in quarantine.")


def _quarantine_replay(topology: Topology) -> dg.JobDefinition:
    @dg.op(
        name=_name(topology, "redecode", "records"),
        config_schema={"topics": TOPICS},
        description="Decodes the records in quarantine again, as declared now; the next tick reads those that decode.",
    )
    def replay(context: dg.OpExecutionContext, tidetable: dg.ResourceParam[Tidetable]) -> Events:
        for source in _sources(topology, context.op_config["topics"]):
            with retried():
                done = redecode(tidetable.ports(), topology, source, context.run.run_id)
            yield _observed(topology, source.landing, metadata.of_redecoded(done))
        yield DONE

    return _job(topology, "quarantine_replay", replay, "Decode the records in quarantine again.")


def _job(topology: Topology, verb: str, op: dg.OpDefinition, description: str) -> dg.JobDefinition:
    @dg.job(
        name=_name(topology, verb),
        description=f"{topology.name}: {description}",
        tags={TOPOLOGY_TAG: topology.name},
        executor_def=dg.in_process_executor,
    )
    def job() -> None:
        op()

    return job


def _name(topology: Topology, *words: str) -> str:
    return "_".join((word(topology.name), *words))


def _named(topology: Topology, kind: str, name: str, names: Sequence[str]) -> str:
    """A name in the configuration, which must be one of `names`; raises dg.Failure otherwise."""
    if name not in names:
        raise dg.Failure(f"{topology.name} has no {kind} {name}; it has {', '.join(names)}", allow_retries=False)
    return name


def _table(topology: Topology, name: str) -> Table:
    return topology.table(_named(topology, "table", name, [table.name for table in topology.tables]))


def _sources(topology: Topology, names: Sequence[str]) -> Sequence[Source]:
    topics = [source.topic for source in topology.sources]
    return [topology.source(_named(topology, "topic", name, topics)) for name in names] or topology.sources


def _milliseconds(text: str) -> int:
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise CannotRestore(f"{text} is not a time in ISO 8601, such as 2026-11-21T10:00:00") from error
    return round((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)


def _observed(topology: Topology, name: str, found: metadata.Metadata) -> dg.AssetObservation:
    return dg.AssetObservation(asset_key=table_key(topology, name), metadata=found)


def _materialized(tidetable: Tidetable, topology: Topology, table: Table, done: Stepped) -> dg.AssetMaterialization:
    """The event that a step would report: the table has a new version."""
    state = done.after
    assert state is not None, "a rebuild and a restore commit"
    path = tidetable.lakehouse.table(topology.name, table.name)
    return dg.AssetMaterialization(
        asset_key=table_key(topology, table.name),
        metadata=metadata.of_step(done) | metadata.of_table(path, state),
        tags={DATA_VERSION: str(state.data_version)},
    )
