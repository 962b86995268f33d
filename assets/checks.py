"""Dagster checks. A gate evaluates rows before the commit; its check reports the verdict and blocks downstream ops."""

from __future__ import annotations

from typing import TYPE_CHECKING

import dagster as dg

from assets.specs import word
from spark.engine.status import describe_waiting, utc_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from assets.gates import Verdict
    from assets.suites import Suite
    from spark.engine.counts import Counted
    from spark.engine.log.position import Gap
    from spark.engine.log.stored_table import State
    from spark.engine.time_sync import Waiting

VERSION = "delta/version"
"""In a check's metadata: the newest data version that it covers. A refused step committed nothing, and has none."""

TIME_SYNC = "time_sync"
GAPS = "gaps"
QUARANTINE = "quarantine"
UNKNOWN = "unknown_values"

Metadata = dict[str, dg.MetadataValue | int | float | str]


def check_spec(suite: Suite, key: dg.AssetKey) -> dg.AssetCheckSpec:
    """The check of a suite; it blocks downstream steps if an expectation is critical."""
    what = f"Evaluates the rows of each step with `{suite.path.name}` before they are committed."
    return dg.AssetCheckSpec(check_name(suite), asset=key, blocking=suite.worst == "critical", description=what)


def check_name(suite: Suite) -> str:
    """The name of a suite's check."""
    return f"gx_{word(suite.name)}"


def refused(suite: Suite, verdict: Verdict) -> dg.AssetCheckResult:
    """The check result of a step that the gate refused."""
    return _result(suite, verdict, {})


def passed(suite: Suite, verdict: Verdict | None, state: State | None) -> dg.AssetCheckResult:
    """The check result of a step that committed or had nothing to commit.

    `verdict` is on the step's rows; None if it had none. `state` is the table's state after the step: its position has
    the results of all other rows, whichever run stepped or checked the table last. Rows that are older than the suite
    and fail it are a warning: they are committed, and readers have them. If the position does not say that the suite
    has seen the rows, the check fails.
    """
    gated = None if state is None else state.position.gated
    if state is None or gated is None or gated.gate != suite.digest:
        return dg.AssetCheckResult(
            passed=False,
            check_name=check_name(suite),
            severity=dg.AssetCheckSeverity.WARN,
            description="The suite has not been evaluated on any row of the table yet.",
        )
    failing = gated.failing if verdict is not None else gated.failing | gated.let_through
    metadata: Metadata = {VERSION: state.data_version, "stored_expectations_failing": len(failing)}
    if failing:
        metadata["stored_rows_failing"] = _counts(failing)
    warnings = []
    if gated.failing:
        warnings.append(
            f"Rows of version {gated.version} fail: {_failing(gated.failing)}. They are committed; correct them at "
            f"their source, then run `tidetable check`."
        )
    if verdict is not None:
        return _result(suite, verdict, metadata, warnings)
    if gated.let_through:
        warnings.append(f"No new rows. At the last step with rows, these failed: {_failing(gated.let_through)}.")
    return dg.AssetCheckResult(
        passed=not warnings,
        check_name=check_name(suite),
        metadata=metadata,
        severity=dg.AssetCheckSeverity.WARN,
        description=" ".join(warnings)
        or "No new rows. Every row passed the critical expectations of this suite when it was committed, or when the "
        "suite was first evaluated.",
    )


def _failing(failing: Mapping[str, int | None]) -> str:
    return ", ".join(name if count is None else f"{name} ({count})" for name, count in failing.items())


def _counts(failing: Mapping[str, int | None]) -> dg.TableMetadataValue:
    """The number of rows that fail each expectation, as a table; a row may fail several."""
    return dg.MetadataValue.table(
        [
            dg.TableRecord({"expectation": name, "rows": "" if count is None else count})
            for name, count in failing.items()
        ],
        schema=dg.TableSchema([dg.TableColumn("expectation"), dg.TableColumn("rows")]),
    )


def sync_spec(key: dg.AssetKey) -> dg.AssetCheckSpec:
    """The check of a table whose records may wait for an empty partition."""
    why = "Whether records wait for an empty partition: which records, for which partition, and until when."
    return dg.AssetCheckSpec(TIME_SYNC, asset=key, blocking=False, description=why)


def synchronised(held: Sequence[Waiting]) -> dg.AssetCheckResult:
    """The check result of a step: the records that it held back."""
    records = [
        dg.TableRecord(
            {
                "partition": f"{one.topic}-{one.partition}",
                "records": one.records,
                "waits for": ", ".join(one.waits_for),
                "since": utc_text(one.since),
                "until": utc_text(one.until),
            }
        )
        for one in held
    ]
    description = "; ".join(map(describe_waiting, held)) or "No records wait for an empty partition."
    return _found(TIME_SYNC, "held", records, description)


def quarantine_spec(key: dg.AssetKey) -> dg.AssetCheckSpec:
    """The check of the counts of a landing's records."""
    why = (
        "Whether every record that was read has a value, is a tombstone, is in quarantine or was dropped from it, and "
        "whether any is in quarantine."
    )
    return dg.AssetCheckSpec(QUARANTINE, asset=key, blocking=False, description=why)


def accounted(counted: Counted | None) -> dg.AssetCheckResult:
    """The check result of a landing: a warning if records are in quarantine, an error if its counts do not add up."""
    if counted is None:
        return dg.AssetCheckResult(passed=True, check_name=QUARANTINE, description="No records have landed.")
    schema = dg.TableSchema([dg.TableColumn("reason"), dg.TableColumn("records", "int")])
    reasons = [dg.TableRecord({"reason": why, "records": count}) for why, count in counted.reasons.items()]
    counts = f"Of {counted.records} records {counted.rows} have a value, {counted.tombstones} are tombstones"
    dropped = sum(counted.dropped.values())
    if dropped:
        counts += f", {dropped} were dropped from quarantine"
    return dg.AssetCheckResult(
        passed=not counted.quarantined and not counted.wrong,
        check_name=QUARANTINE,
        metadata={
            "records": counted.records,
            "with_value": counted.rows,
            "tombstones": counted.tombstones,
            "quarantined": counted.quarantined,
            "dropped": dropped,
            "offsets_read": counted.offsets,
            "reasons": dg.MetadataValue.table(reasons, schema=schema),
            **({"dropped_by": dg.MetadataValue.json({**counted.dropped})} if dropped else {}),
        },
        severity=dg.AssetCheckSeverity.ERROR if counted.wrong else dg.AssetCheckSeverity.WARN,
        description="; ".join(counted.wrong) or f"{counts}, {counted.quarantined} are in quarantine.",
    )


def unknown_spec(key: dg.AssetKey) -> dg.AssetCheckSpec:
    """The check of the values that no event of a Debezium topic has."""
    why = "Whether every value of the rows is known: the database does not log long values that a change leaves as is."
    return dg.AssetCheckSpec(UNKNOWN, asset=key, blocking=False, description=why)


def known(unknown: Mapping[str, int] | None) -> dg.AssetCheckResult:
    """The check result of a Debezium topic's table: a warning if rows have values that no event has."""
    found = dict(unknown or {})
    rows = ", ".join(f"{count} rows of {name}" for name, count in found.items())
    return dg.AssetCheckResult(
        passed=not found,
        check_name=UNKNOWN,
        metadata={"rows": dg.MetadataValue.json({**found})},
        severity=dg.AssetCheckSeverity.WARN,
        description=f"No event has the value of {rows}; they are null." if found else "Every value is known.",
    )


def gaps_spec(key: dg.AssetKey) -> dg.AssetCheckSpec:
    """The check of records that were gone from a topic before they were landed."""
    why = "Whether records were deleted from the topic before they were landed: which, and when this was found."
    return dg.AssetCheckSpec(GAPS, asset=key, blocking=False, description=why)


def whole(gaps: Sequence[Gap], beginning: str, cleaned: int) -> dg.AssetCheckResult:
    """The check result of a landing: every gap that it ever found, and where it began, which is no gap.

    `cleaned` is the number of tombstones that compaction had removed before they were landed. They are no gap: the keys
    that they deleted are deleted here too.
    """
    records = [
        dg.TableRecord(
            {
                "partition": f"{gap.input}-{gap.partition}",
                "first": gap.first,
                "last": gap.last,
                "found": utc_text(gap.at),
            }
        )
        for gap in gaps
    ]
    ranges = ", ".join(f"{gap.input}-{gap.partition} {gap.first} to {gap.last}" for gap in gaps)
    description = f"Offsets that were deleted before they were landed: {ranges}." if gaps else "No records are missing."
    if beginning:
        description += f" It {beginning}."
    if cleaned:
        description += (
            f" {cleaned} rows were deleted for tombstones that compaction had removed before they were landed."
        )
    return _found(GAPS, "missing", records, description)


def _found(check: str, what: str, records: list[dg.TableRecord], description: str) -> dg.AssetCheckResult:
    """The check result that warns if there are `records`, and shows them as a table."""
    schema = dg.TableSchema([dg.TableColumn(name) for name in records[0].data]) if records else None
    return dg.AssetCheckResult(
        passed=not records,
        check_name=check,
        metadata={what: dg.MetadataValue.table(records, schema=schema)} if records else {},
        severity=dg.AssetCheckSeverity.WARN,
        description=description,
    )


def _result(suite: Suite, verdict: Verdict, known: Metadata, warnings: Sequence[str] = ()) -> dg.AssetCheckResult:
    """The check result of a verdict. The `warnings`, about other rows, come first."""
    succeeded = verdict.expectations - len(verdict.failures)
    metadata: Metadata = {
        "evaluated": verdict.expectations,
        "failed": len(verdict.failures),
        "success_percent": 100.0 * succeeded / verdict.expectations,
        **known,
    }
    if verdict.worst is not None:
        metadata |= {"max_severity": verdict.worst, "failing_expectations": _table(verdict)}
    failed = "; ".join(failure.expectation for failure in verdict.failures) or "Every expectation succeeded."
    return dg.AssetCheckResult(
        passed=not warnings and verdict.evaluated and verdict.worst in (None, "info"),
        check_name=check_name(suite),
        metadata=metadata,
        severity=dg.AssetCheckSeverity.ERROR if verdict.refuses else dg.AssetCheckSeverity.WARN,
        description=" ".join([*warnings, f"The rows of this step: {failed}" if warnings else failed]),
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
