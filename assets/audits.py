"""Audits on demand: every table computed again and compared. As dear as a rebuild, so no part of a tick."""

# Annotations are not deferred here: Dagster reads those of an op as objects.
import json

import dagster as dg

from assets.retries import retried
from assets.specs import TOPOLOGY_TAG, table_key, word
from resources.tidetable import Tidetable
from spark.engine.repair import Audited, audit
from spark.topology import Topology

TABLES = dg.Field([str], default_value=[], description="Names of tables; none: all of the topology.")


def audit_job(topology: Topology) -> dg.JobDefinition:
    """Audit tables, observe the verdicts on their assets, and fail if one does not hold."""
    name = f"{word(topology.name)}_audit"

    @dg.op(
        name=f"{name}_tables",
        config_schema={"tables": TABLES},
        description="Compares each table with its query over the inputs that its commit names.",
    )
    def audit_tables(context: dg.OpExecutionContext, tidetable: dg.ResourceParam[Tidetable]) -> None:
        wrong = []
        for table in [topology.table(name) for name in context.op_config["tables"]] or topology.tables:
            with retried():
                audited = audit(tidetable.doors(), topology, table)
            key = table_key(topology, table.name)
            context.log_event(dg.AssetObservation(asset_key=key, metadata=_metadata(audited)))
            if not audited.holds:
                wrong.append(f"{audited.table} version {audited.version}: {audited.differing} keys differ")
        if wrong:
            raise dg.Failure("; ".join(wrong), allow_retries=False)

    @dg.job(
        name=name,
        description=f"Audit tables of {topology.name}: all of them, or those the configuration names.",
        tags={TOPOLOGY_TAG: topology.name},
        executor_def=dg.in_process_executor,
    )
    def auditing() -> None:
        audit_tables()

    return auditing


def _metadata(audited: Audited) -> dict[str, dg.MetadataValue]:
    return {
        "audit/version": dg.MetadataValue.int(audited.version),
        "audit/rows": dg.MetadataValue.int(audited.rows),
        "audit/differing": dg.MetadataValue.int(audited.differing),
        "audit/duration_s": dg.MetadataValue.float(audited.seconds),
        "audit/sample": dg.MetadataValue.json(json.loads(json.dumps(audited.sample, default=str))),
    }
