"""A suite's verdict as a Dagster check: the gate ran before the commit, the check tells and holds back what follows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import dagster as dg

from assets.lag import moment, told
from assets.specs import word

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assets.gates import Suite, Verdict
    from spark.engine.position import Gap
    from spark.engine.sync import Waiting

VERSION = "delta/version"
"""In a check's metadata: the newest data version it speaks of. A refusal has none, since nothing was committed."""

TIME_SYNC = "time_sync"
GAPS = "gaps"

RECORDS = 10  # of a check, looked at for the newest evaluation: more runs than this were hardly killed in a row


def check_spec(suite: Suite, key: dg.AssetKey) -> dg.AssetCheckSpec:
    """One check per suite; blocking if anything in it is critical."""
    told = f"The rows of each step against `{suite.path.name}`, evaluated before they are committed."
    return dg.AssetCheckSpec(check_name(suite), asset=key, blocking=suite.worst == "critical", description=told)


def check_name(suite: Suite) -> str:
    """The name of a suite's check."""
    return f"gx_{word(suite.name)}"


def refused(suite: Suite, verdict: Verdict) -> dg.AssetCheckResult:
    """The check of a step that the gate refused."""
    return _result(suite, verdict, {})


def passed(suite: Suite, verdict: Verdict, version: int) -> dg.AssetCheckResult:
    """The check of a step that was committed as this version."""
    return _result(suite, verdict, {VERSION: version})


def unchanged(instance: dg.DagsterInstance, suite: Suite, key: dg.AssetKey, version: int) -> dg.AssetCheckResult:
    """The check of a step without new rows: the standing version's own verdict.

    What was committed without a verdict here was let through by the gate all the same.
    """
    evaluation = _last_evaluation(instance, dg.AssetCheckKey(key, check_name(suite)))
    if evaluation is not None and evaluation.metadata.get(VERSION) == dg.MetadataValue.int(version):
        return dg.AssetCheckResult(
            passed=evaluation.passed,
            check_name=check_name(suite),
            metadata=dict(evaluation.metadata),
            severity=evaluation.severity,
            description="No new rows: the verdict on the rows of the last step.",
        )
    return dg.AssetCheckResult(
        passed=True,
        check_name=check_name(suite),
        metadata={VERSION: version},
        description="No new rows; those of this version passed the gate when they were committed.",
    )


def sync_spec(key: dg.AssetKey) -> dg.AssetCheckSpec:
    """The check of a table that may wait for an empty partition."""
    why = "Whether records are held back because a partition beside theirs is empty: which, for what, until when."
    return dg.AssetCheckSpec(TIME_SYNC, asset=key, blocking=False, description=why)


def synchronised(held: Sequence[Waiting]) -> dg.AssetCheckResult:
    """The check of a step: what it had to leave for later."""
    records = [
        dg.TableRecord(
            {
                "partition": f"{one.topic}-{one.partition}",
                "records": one.records,
                "waits for": ", ".join(one.waits_for),
                "since": moment(one.since),
                "until": moment(one.until),
            }
        )
        for one in held
    ]
    description = "; ".join(map(told, held)) or "Nothing waits for an empty partition."
    return _found(TIME_SYNC, "held", records, description)


def gaps_spec(key: dg.AssetKey) -> dg.AssetCheckSpec:
    """The check of a landing that goes on where records are gone."""
    why = "Whether records were gone from the topic before they were landed: which, and when that was found."
    return dg.AssetCheckSpec(GAPS, asset=key, blocking=False, description=why)


def whole(gaps: Sequence[Gap]) -> dg.AssetCheckResult:
    """The check of a landing: all that it ever found missing."""
    records = [
        dg.TableRecord(
            {"partition": f"{gap.input}-{gap.partition}", "first": gap.first, "last": gap.last, "found": moment(gap.at)}
        )
        for gap in gaps
    ]
    ranges = ", ".join(f"{gap.input}-{gap.partition} {gap.first} to {gap.last}" for gap in gaps)
    description = f"Offsets that were gone before they were landed: {ranges}." if gaps else "Nothing is missing."
    return _found(GAPS, "missing", records, description)


def _found(check: str, what: str, records: list[dg.TableRecord], description: str) -> dg.AssetCheckResult:
    """A check that warns of what was found, as a table."""
    schema = dg.TableSchema([dg.TableColumn(name) for name in records[0].data]) if records else None
    return dg.AssetCheckResult(
        passed=not records,
        check_name=check,
        metadata={what: dg.MetadataValue.table(records, schema=schema)} if records else {},
        severity=dg.AssetCheckSeverity.WARN,
        description=description,
    )


def _last_evaluation(instance: dg.DagsterInstance, check: dg.AssetCheckKey) -> dg.AssetCheckEvaluation | None:
    """The newest evaluation. Runs that were planned and never got there, such as this one, have records without."""
    records = instance.event_log_storage.get_asset_check_execution_history(check, limit=RECORDS)
    evaluations = (record.event.asset_check_evaluation for record in records if record.event is not None)
    return next((evaluation for evaluation in evaluations if evaluation is not None), None)


def _result(suite: Suite, verdict: Verdict, committed: dict[str, int]) -> dg.AssetCheckResult:
    held = verdict.evaluated - len(verdict.failures)
    metadata: dict[str, dg.MetadataValue | int | float | str] = {
        "evaluated": verdict.evaluated,
        "failed": len(verdict.failures),
        "success_percent": 100.0 * held / verdict.evaluated,
        **committed,
    }
    if verdict.worst is not None:
        metadata |= {"max_severity": verdict.worst, "failing_expectations": _table(verdict)}
    return dg.AssetCheckResult(
        passed=verdict.worst in (None, "info"),
        check_name=check_name(suite),
        metadata=metadata,
        severity=dg.AssetCheckSeverity.ERROR if verdict.worst == "critical" else dg.AssetCheckSeverity.WARN,
        description="; ".join(failure.expectation for failure in verdict.failures) or "Every expectation held.",
    )


def _table(verdict: Verdict) -> dg.TableMetadataValue:
    return dg.MetadataValue.table(
        [
            dg.TableRecord(
                {
                    "expectation": failure.expectation,
                    "severity": failure.severity,
                    "rows": "" if failure.rows is None else failure.rows,
                    "sample": failure.sample,
                }
            )
            for failure in verdict.failures
        ],
        schema=dg.TableSchema([dg.TableColumn(name) for name in ("expectation", "severity", "rows", "sample")]),
    )
