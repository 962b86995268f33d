"""A table's gate: the expectations that rows must meet before they are committed.

A suite is evaluated on the rows that a step is about to merge. Expectations about rows together (unique values, counts,
sums, `mostly`) are evaluated on all rows of the table as they will be after the merge. A failed expectation of severity
`critical` (the default) refuses the step: the table stays at its last version, and the next tick tries again. `warning`
and `info` are only reported. An expectation that cannot be evaluated refuses the step, whatever its severity. A new
suite is evaluated once on the rows that exist already; they stay, and the table's position has the number of them that
fail. A failure that the table had before a step does not refuse the step. Great Expectations is imported when a gate is
first used, because the import takes seconds.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypedDict, cast

from assets.suites import WORST_FIRST
from spark.engine.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from great_expectations.core import ExpectationSuiteValidationResult
    from pyspark.sql import DataFrame

    from assets.suites import Expectation, Severity, Suite
    from spark.engine.log.position import Gated
    from spark.topology import Topology
    from spark.topology.topology import Table

GX_ERRORS = (ArithmeticError, AttributeError, LookupError, NotImplementedError, TypeError, ValueError)
"""Errors that Great Expectations raises for expectations that it has and cannot evaluate on Spark."""

SINGLE = (
    *("expect_column_value", "expect_column_pair_values_", "expect_multicolumn_", "expect_select_column_values_"),
    *("expect_column_to_exist", "expect_column_type_to_be", "expect_table_column"),
)
"""Prefixes of expectations about single rows or about columns: a table meets them if the rows of every step do."""
NOT_SINGLE = (
    *("expect_column_values_to_be_unique", "expect_column_values_to_not_be_outliers"),
    *("expect_column_values_to_be_increasing", "expect_column_values_to_be_decreasing"),
    "expect_column_value_z_scores_to_be_less_than",
)
"""Expectations with such a prefix that compare rows. An unknown expectation is treated like these."""

SAMPLE = 5  # failing rows shown for each expectation


class _Evaluated(TypedDict):
    success: bool
    expectation_config: Expectation
    result: dict[str, object]
    exception_info: dict[str, object]


@dataclass(frozen=True)
class Failure:
    """One expectation that did not hold, or that could not be evaluated.

    `rows` is the number of rows that failed it; None if it is not about single rows. `sample` shows some of them, or,
    if it was not `evaluated`, the reason. `known` is true if the table failed it before; an evaluated failure that is
    known refuses no step.
    """

    expectation: str
    severity: Severity
    rows: int | None
    sample: str
    evaluated: bool = True
    known: bool = False

    @property
    def refuses(self) -> bool:
        """Whether this failure refuses the step."""
        return not self.evaluated or (self.severity == "critical" and not self.known)


@dataclass(frozen=True)
class Verdict:
    """The result of a suite on some rows: the number of its expectations, and the failures, worst first."""

    suite: str
    expectations: int
    failures: tuple[Failure, ...]

    @property
    def worst(self) -> Severity | None:
        """The severity of the worst failure; None if everything held."""
        return next((s for s in WORST_FIRST if any(f.severity == s for f in self.failures)), None)

    @property
    def refuses(self) -> bool:
        """Whether the verdict refuses the step."""
        return any(failure.refuses for failure in self.failures)

    @property
    def evaluated(self) -> bool:
        """Whether every expectation was evaluated."""
        return all(failure.evaluated for failure in self.failures)

    @property
    def failing(self) -> dict[str, int | None]:
        """The number of failing rows by expectation, for the position; failures of severity `info` are left out."""
        return {failure.expectation: failure.rows for failure in self.failures if failure.severity != "info"}

    def __str__(self) -> str:
        return "; ".join(f"{failure.expectation}: {failure.sample}" for failure in self.failures)


class Refused(EngineError):
    """The gate refused the rows: nothing was committed.

    Read which expectation failed on which rows. Correct the records at their source, or the suite; the next tick
    evaluates the rows again. `docs/how-to/gates.md` describes gates.
    """

    def __init__(self, message: str, verdict: Verdict) -> None:
        super().__init__(message)
        self.verdict = verdict


class SuiteGate:
    """The gate of one table with a suite. It stores its verdicts, which the checks report."""

    def __init__(self, topology: Topology, table: Table, suite: Suite) -> None:
        self.name = f"{topology.name}.{table.name}"
        self.key = table.plan.key
        self.suite = suite
        self.digest = suite.digest
        self.verdict: Verdict | None = None
        """The verdict on the rows of a step."""
        self.stored: Verdict | None = None
        """The verdict on the rows that were committed before."""

    def __call__(self, batch: DataFrame, table: Callable[[], DataFrame], known: Gated) -> Gated:
        """Evaluate the suite on the rows of a step, and return the result for the position.

        Expectations about rows together are evaluated on all rows of the table after the merge.

        Raises:
            Refused: a critical expectation failed that the table did not fail before, or one could not be evaluated.
        """
        expectations = self.suite.expectations
        outcomes = evaluate(self.suite, [one for one in expectations if not about_rows_together(one)], batch, self.key)
        stored = known.failing
        if about_all := [one for one in expectations if about_rows_together(one)]:
            before, all_rows = known.failing.keys() | known.let_through.keys(), table()
            empty = all_rows.isEmpty()
            of_table = evaluate(self.suite, applicable(about_all, empty), all_rows, self.key)
            stored = {} if empty else {one: rows for one, rows in stored.items() if one not in dict(of_table)}
            outcomes += [(one, failure and replace(failure, known=one in before)) for one, failure in of_table]
        self.verdict = _verdict(self.suite, outcomes)
        if self.verdict.refuses:
            raise Refused(
                f"{self.name}: the rows of this step, or the table with them, fail {self.suite.path.name}, and nothing "
                f"was committed ({self.verdict}). Correct the records at their source, or the suite; the next tick "
                f"evaluates the rows again",
                self.verdict,
            )
        return replace(known, failing=stored, let_through=self.verdict.failing)

    def look(self, rows: DataFrame) -> dict[str, int | None]:
        """Evaluate the suite on rows that are committed already. Returns the number of failing rows by expectation.

        Raises:
            Refused: an expectation could not be evaluated.
        """
        expectations = applicable(self.suite.expectations, rows.isEmpty())
        self.stored = _verdict(self.suite, evaluate(self.suite, expectations, rows, self.key))
        if not self.stored.evaluated:
            raise Refused(
                f"{self.name}: {self.suite.path.name} cannot be evaluated on the rows of the table, and nothing was "
                f"committed ({self.stored}). Correct the suite",
                self.stored,
            )
        return self.stored.failing


def gates(topology: Topology, found: Mapping[str, Suite]) -> dict[str, SuiteGate]:
    """The gates of the topology's tables that have a suite, by the table's name."""
    names = {table.name: found.get(f"{topology.name}.{table.name}") for table in topology.tables}
    return {name: SuiteGate(topology, topology.table(name), suite) for name, suite in names.items() if suite}


def about_rows_together(one: Expectation) -> bool:
    """Whether an expectation is about rows together: the rows of every step may meet it, and the table may not."""
    single = one["type"].startswith(SINGLE) and one["type"] not in NOT_SINGLE
    return not single or one.get("kwargs", {}).get("mostly", 1) != 1


def applicable(expectations: Sequence[Expectation], empty: bool) -> list[Expectation]:
    """The expectations to evaluate: all, or, without rows, those about the table. An empty column has no maximum."""
    return [one for one in expectations if not empty or one["type"].startswith("expect_table_")]


def evaluate(
    suite: Suite, expectations: Sequence[Expectation], batch: DataFrame, key: tuple[str, ...]
) -> list[tuple[str, Failure | None]]:
    """Evaluate expectations on rows. Returns the name and arguments of each, with its failure; None if it holds.

    Failing rows are read only if something failed.
    """
    from great_expectations.exceptions.exceptions import GreatExpectationsError

    if not expectations:
        return []
    try:
        result = _validate(suite, expectations, batch, {"result_format": "BOOLEAN_ONLY"})
        if not result.success:
            shown = {"unexpected_index_column_names": list(key), "partial_unexpected_count": SAMPLE}
            result = _validate(suite, expectations, batch, {"result_format": "SUMMARY", **shown})
    except (GreatExpectationsError, *GX_ERRORS) as error:
        why = f"Great Expectations failed: {type(error).__name__}: {error}"
        return [_unevaluated(f"all of {suite.path.name}", why)]
    outcomes = [_outcome(cast(_Evaluated, one.to_json_dict())) for one in result.results]
    # Great Expectations logs and leaves out an expectation that it cannot construct.
    if missing := len(expectations) - len(outcomes):
        why = "Great Expectations did not evaluate them; its log has the reason"
        outcomes.append(_unevaluated(f"{missing} expectations of {suite.path.name}", why))
    return outcomes


def _unevaluated(what: str, why: str) -> tuple[str, Failure]:
    return what, Failure(what, "critical", None, why, evaluated=False)


def _verdict(suite: Suite, outcomes: Sequence[tuple[str, Failure | None]]) -> Verdict:
    failures = [failure for _, failure in outcomes if failure is not None]
    failures.sort(key=lambda failure: WORST_FIRST.index(failure.severity))
    return Verdict(suite.name, len(suite.expectations), tuple(failures))


def _validate(
    suite: Suite, expectations: Sequence[Expectation], batch: DataFrame, result_format: dict[str, object]
) -> ExpectationSuiteValidationResult:
    import great_expectations as gx
    from great_expectations.data_context.types.base import ProgressBarsConfig

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    # persist=True, the default, would cache every batch in the engine's memory for ever.
    frames = context.data_sources.add_spark("step", persist=False).add_dataframe_asset("rows")
    rows = frames.add_batch_definition_whole_dataframe("all").get_batch(batch_parameters={"dataframe": batch})
    some = gx.ExpectationSuite(suite.name, expectations=[{"kwargs": {}, **one} for one in expectations])
    return rows.validate(some, result_format=result_format)


def _outcome(one: _Evaluated) -> tuple[str, Failure | None]:
    config, result = one["expectation_config"], one["result"]
    arguments = {name: value for name, value in config["kwargs"].items() if name != "batch_id"}
    listed = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    name = f"{config['type']}({listed})"
    if one["success"]:
        return name, None
    rows = result.get("unexpected_count")
    sample = result.get("partial_unexpected_index_list", result.get("observed_value"))
    raised = _raised(one["exception_info"])
    return name, Failure(
        name,
        config.get("severity", "critical"),
        rows if isinstance(rows, int) else None,
        json.dumps(sample, default=str) if raised is None else f"could not be evaluated: {raised}",
        evaluated=raised is None,
    )


def _raised(info: dict[str, object]) -> str | None:
    """The error of an expectation, which it reports once, or for each metric that it needs; None if there is none."""
    for reported in (info, *info.values()):
        if isinstance(reported, dict) and reported.get("raised_exception"):
            return str(reported.get("exception_message"))
    return None
