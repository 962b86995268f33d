"""Dagster's metadata of landings, steps and other verbs. Names are stable, since Dagster plots every number by name."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from typing import TYPE_CHECKING

import dagster as dg
import pyarrow as pa  # type: ignore[import-untyped]  # has no types of its own
import pyarrow.compute as pc  # type: ignore[import-untyped]  # the same
from deltalake import DeltaTable

from spark.engine.quarantine import Undecodable
from spark.engine.status import describe_held, metrics

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from assets.gates import Verdict
    from spark.engine.attempt import Stepped
    from spark.engine.audit import Audited
    from spark.engine.check import Checked
    from spark.engine.land import Landed
    from spark.engine.log.position import Position
    from spark.engine.log.stored_table import State
    from spark.engine.publish import Published
    from spark.engine.quarantine import Redecoded
    from spark.engine.status import TableStatus

Metadata = dict[str, dg.MetadataValue]


def of_landing(landed: Landed, lag: int, kept: int) -> Metadata:
    """Start and end offsets, the number of records, the lag after it, and the number of missing offsets.

    `kept` is the number of offsets that no consumer reads before a transaction has ended; they are no lag.
    """
    return {
        "kafka/start_offsets": offsets(landed.start),
        "kafka/next_offsets": offsets(landed.end),
        "kafka/lag_after": dg.MetadataValue.int(lag),
        "kafka/in_transactions": dg.MetadataValue.int(kept),
        "batch/outcome": dg.MetadataValue.text(landed.outcome),
        "batch/records_in": dg.MetadataValue.int(landed.records),
        "batch/errors": dg.MetadataValue.int(landed.errors),
        "batch/tombstones": dg.MetadataValue.int(landed.tombstones),
        "kafka/gaps": dg.MetadataValue.int(sum(gap.width for gap in landed.position.gaps)),
        "kafka/cleaned": dg.MetadataValue.int(landed.position.cleaned),
        "batch/duration_s": dg.MetadataValue.float(landed.seconds),
    }


def of_step(stepped: Stepped) -> Metadata:
    """The numbers of touched keys and of changed rows, and the inputs of which older changes were gone."""
    entries: Metadata = {
        "batch/outcome": dg.MetadataValue.text(stepped.outcome),
        "batch/keys_touched": dg.MetadataValue.int(stepped.touched),
        "batch/rows_inserted": dg.MetadataValue.int(stepped.inserted),
        "batch/rows_updated": dg.MetadataValue.int(stepped.updated),
        "batch/rows_deleted": dg.MetadataValue.int(stepped.deleted),
        "batch/duration_s": dg.MetadataValue.float(stepped.seconds),
    }
    if stepped.waiting_for:
        entries["waiting_for"] = dg.MetadataValue.text(", ".join(stepped.waiting_for))
    if stepped.after is not None:
        entries |= {
            name: dg.MetadataValue.float(float(number)) for name, number in metrics(stepped.after.position).items()
        }
        if stepped.after.position.begun:
            entries["begun"] = dg.MetadataValue.json(stepped.after.position.begun)
        entries["enforced-processing-rate"] = dg.MetadataValue.float(enforced_rate(stepped.before, stepped.after))
    return entries


def of_status(status: TableStatus) -> Metadata:
    """The state of a landing or a table: its lag by topic, what it waits for, what is held back, and its position."""
    state = status.state
    entries: Metadata = {
        "behind": dg.MetadataValue.bool(status.is_lagging),
        "lag": dg.MetadataValue.json(status.lag or {}),
        "waiting_for": dg.MetadataValue.text(", ".join(status.waiting_for)),
        "held_back": dg.MetadataValue.text(describe_held(status)),
        "gaps": dg.MetadataValue.int(len(status.gaps)),
        "versions_to_publish": dg.MetadataValue.int(status.unpublished),
    }
    if status.refused is not None:
        entries["refused"] = dg.MetadataValue.text(status.refused)
    if status.log_error is not None:
        entries["trouble"] = dg.MetadataValue.text(status.log_error)
    if status.first_offsets:
        entries["kafka/first_offsets"] = offsets(status.first_offsets)
    if (counted := status.counted) is not None:
        entries |= {
            "landing/records": dg.MetadataValue.int(counted.records),
            "landing/with_value": dg.MetadataValue.int(counted.rows),
            "landing/tombstones": dg.MetadataValue.int(counted.tombstones),
            "landing/quarantined": dg.MetadataValue.int(counted.quarantined),
            "landing/dropped": dg.MetadataValue.int(sum(counted.dropped.values())),
        }
    if (taken := status.taken) is not None:
        entries["table/records_taken"] = dg.MetadataValue.int(taken.values + taken.tombstones)
        entries["table/superseded_or_deleted"] = dg.MetadataValue.int(taken.superseded)
    if status.unknown is not None:
        entries["table/rows_with_unknown_values"] = dg.MetadataValue.json({**status.unknown})
    if state is not None:
        entries |= {"delta/version": dg.MetadataValue.int(state.version), "position": position(state.position)}
        if (gated := state.position.gated) is not None:
            entries |= {
                "gate/rows_failing": dg.MetadataValue.json({**gated.failing}),
                "gate/let_through": dg.MetadataValue.json({**gated.let_through}),
            }
    return entries


def of_audit(audited: Audited) -> Metadata:
    """The audited version, the number of its rows, and the number of keys that differ, with some of them."""
    return {
        "audit/version": dg.MetadataValue.int(audited.version),
        "audit/rows": dg.MetadataValue.int(audited.rows),
        "audit/differing": dg.MetadataValue.int(audited.differing),
        "audit/duration_s": dg.MetadataValue.float(audited.seconds),
        "audit/sample": dg.MetadataValue.json(json.loads(json.dumps(audited.sample, default=str))),
    }


def of_check(checked: Checked, verdict: Verdict) -> Metadata:
    """The checked version, the number of expectations that it fails, and the failures."""
    return {
        "check/version": dg.MetadataValue.int(checked.version or 0),
        "check/failed": dg.MetadataValue.int(len(verdict.failures)),
        "check/failing": dg.MetadataValue.json([asdict(failure) for failure in verdict.failures]),
        "check/duration_s": dg.MetadataValue.float(checked.seconds),
    }


def of_undecodable(records: Sequence[Undecodable]) -> Metadata:
    """Records in quarantine: the offset, the reason and the content of each."""
    columns = [field.name for field in fields(Undecodable)]
    rows = [
        dg.TableRecord({name: str(getattr(record, name)) for name in columns if getattr(record, name) is not None})
        for record in records
    ]
    schema = dg.TableSchema([dg.TableColumn(name, "string") for name in columns])
    return {"quarantine/records": dg.MetadataValue.table(rows, schema)}


def of_redecoded(done: Redecoded) -> Metadata:
    """The number of records that decode now, and of those that do not."""
    return {
        "quarantine/decoded": dg.MetadataValue.int(done.decoded),
        "quarantine/left": dg.MetadataValue.int(done.left),
        "batch/duration_s": dg.MetadataValue.float(done.seconds),
    }


def of_publish(published: Published, behind: int) -> Metadata:
    """The number of records sent, the version that the topic has, and the number of newer versions of the table.

    `published/skipped` counts all records that were ever left out of the topic on a user's request.
    """
    entries: Metadata = {
        "batch/outcome": dg.MetadataValue.text(published.outcome),
        "batch/records_out": dg.MetadataValue.int(published.records),
        "batch/tombstones": dg.MetadataValue.int(published.tombstones),
        "batch/left_out": dg.MetadataValue.int(published.left_out),
        "batch/skipped": dg.MetadataValue.int(len(published.skipped)),
        "batch/transactions": dg.MetadataValue.int(published.transactions),
        "batch/duration_s": dg.MetadataValue.float(published.seconds),
        "delta/versions_behind": dg.MetadataValue.int(behind),
    }
    if published.after is not None:
        entries["delta/version"] = dg.MetadataValue.int(published.after.version)
        entries["published/skipped"] = dg.MetadataValue.int(published.after.skipped)
    return entries


def enforced_rate(before: State | None, after: State) -> float:
    """Enforced steps per second between two commits of a table."""
    if before is None or before.position.n == 0 or after.at <= before.at:
        return 0.0
    return 1000 * (after.position.enforced - before.position.enforced) / (after.at - before.at)


def of_table(path: str, state: State) -> Metadata:
    """The current version, its position, and the number of its rows."""
    entries: Metadata = {
        "delta/version": dg.MetadataValue.int(state.version),
        "position": position(state.position),
    }
    rows = row_count(path)
    if rows is not None:
        entries["dagster/row_count"] = dg.MetadataValue.int(rows)
    return entries


def position(of: Position) -> dg.MetadataValue:
    """A position as the commit has it."""
    return dg.MetadataValue.json(json.loads(of.to_json()))


def offsets(of: Mapping[int, int]) -> dg.MetadataValue:
    """Offsets by partition."""
    return dg.MetadataValue.json({str(partition): offset for partition, offset in sorted(of.items())})


def row_count(path: str) -> int | None:
    """The number of rows of a Delta table, from its log and deletion vectors; None if a file has no count."""
    table = DeltaTable(path)
    rows = pa.table(table.get_add_actions(flatten=True)).column("num_records")
    if rows.null_count > 0:
        return None
    deleted = 0
    for batch in table.deletion_vectors():
        kept = pa.record_batch(batch).column("selection_vector").flatten()
        deleted += len(kept) - (pc.sum(kept).as_py() or 0)
    return (pc.sum(rows).as_py() or 0) - deleted
