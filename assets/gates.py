"""A table's gate: expectations that rows must meet before they are committed, so that nothing bad is ever published.

A suite is evaluated on the rows that a step is about to merge. A failed expectation of severity `critical` (the
default) refuses the step, so the table keeps its last good version and the next tick tries again; `warning` and `info`
are only told. An expectation that could not be evaluated refuses the step, whatever its severity: what was not
evaluated did not pass. Rows that are there before the suite is, are shown to it once; they stay, and the table's
position says how many of them fail. Great Expectations is imported when a gate is first passed: it takes seconds.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict, cast

from assets.suites import WORST_FIRST
from spark.engine.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from great_expectations.core import ExpectationSuiteValidationResult
    from pyspark.sql import DataFrame

    from assets.suites import Expectation, Severity, Suite
    from spark.topology import Topology
    from spark.topology.topology import Table

STUMBLES = (AttributeError, LookupError, TypeError, ValueError)
"""What Great Expectations raises out of expectations that it has, and cannot evaluate on Spark."""

SAMPLE = 5  # failing rows shown for each expectation


class _Evaluated(TypedDict):
    success: bool
    expectation_config: Expectation
    result: dict[str, object]
    exception_info: dict[str, object]


@dataclass(frozen=True)
class Failure:
    """One expectation that did not hold: how many rows failed it (None: it is not about single rows), and a few.

    Or one that was not `evaluated`; then the sample is the reason.
    """

    expectation: str
    severity: Severity
    rows: int | None
    sample: str
    evaluated: bool = True


@dataclass(frozen=True)
class Verdict:
    """What became of a suite on some rows: how many expectations it has, and those that did not hold, worst first."""

    suite: str
    expectations: int
    failures: tuple[Failure, ...]

    @property
    def worst(self) -> Severity | None:
        """The severity of the worst failure; None if everything held."""
        return next((s for s in WORST_FIRST if any(f.severity == s for f in self.failures)), None)

    @property
    def refuses(self) -> bool:
        """Whether the rows must not be committed."""
        return self.worst == "critical" or not self.evaluated

    @property
    def evaluated(self) -> bool:
        """Whether every expectation was evaluated."""
        return all(failure.evaluated for failure in self.failures)

    def __str__(self) -> str:
        return "; ".join(f"{failure.expectation}: {failure.sample}" for failure in self.failures)


class Refused(EngineError):
    """Rows that must not be published: nothing was committed.

    Read which expectation failed on which rows. Correct the records at their source, or the suite; the next tick
    evaluates the rows again. `docs/how-to/gates.md` tells more.
    """

    def __init__(self, message: str, verdict: Verdict) -> None:
        super().__init__(message)
        self.verdict = verdict


class SuiteGate:
    """Lets rows pass that no critical expectation refuses; keeps its verdicts for who reports them."""

    def __init__(self, topology: Topology, table: Table, suite: Suite) -> None:
        self.name = f"{topology.name}.{table.name}"
        self.key = table.plan.key
        self.suite = suite
        self.digest = suite.digest
        self.verdict: Verdict | None = None
        """On the rows of a step."""
        self.stored: Verdict | None = None
        """On the rows that were there already."""

    def __call__(self, batch: DataFrame) -> None:
        """Evaluate the suite on the rows of a step.

        Raises:
            Refused: a critical expectation failed, or one could not be evaluated.
        """
        self.verdict = evaluate(self.suite, batch, self.key)
        if self.verdict.refuses:
            raise Refused(
                f"{self.name}: the rows of this step fail {self.suite.path.name}, and nothing was committed "
                f"({self.verdict}). The next tick tries again: correct the records at their source, or the suite",
                self.verdict,
            )

    def look(self, rows: DataFrame) -> dict[str, int | None]:
        """Evaluate the suite on rows that are there already: how many fail, by expectation.

        Raises:
            Refused: an expectation could not be evaluated.
        """
        self.stored = evaluate(self.suite, rows, self.key)
        if not self.stored.evaluated:
            raise Refused(
                f"{self.name}: {self.suite.path.name} cannot be evaluated on the rows of the table, and nothing was "
                f"committed ({self.stored}). Correct the suite",
                self.stored,
            )
        return {failure.expectation: failure.rows for failure in self.stored.failures}


def gates(topology: Topology, found: Mapping[str, Suite]) -> dict[str, SuiteGate]:
    """A gate for every table of the topology that has a suite."""
    names = {table.name: found.get(f"{topology.name}.{table.name}") for table in topology.tables}
    return {name: SuiteGate(topology, topology.table(name), suite) for name, suite in names.items() if suite}


def evaluate(suite: Suite, batch: DataFrame, key: tuple[str, ...]) -> Verdict:
    """Evaluate a suite on rows; failing rows are looked for only if something failed."""
    from great_expectations.exceptions.exceptions import GreatExpectationsError

    try:
        result = _validate(suite, batch, {"result_format": "BOOLEAN_ONLY"})
        if not result.success:
            shown = {"unexpected_index_column_names": list(key), "partial_unexpected_count": SAMPLE}
            result = _validate(suite, batch, {"result_format": "SUMMARY", **shown})
    except (GreatExpectationsError, *STUMBLES) as error:
        why = f"Great Expectations stumbled: {type(error).__name__}: {error}"
        return Verdict(
            suite.name,
            len(suite.expectations),
            (Failure(f"all of {suite.path.name}", "critical", None, why, evaluated=False),),
        )
    evaluated = [cast(_Evaluated, one.to_json_dict()) for one in result.results]
    failures = [_failure(one) for one in evaluated if not one["success"]]
    # Great Expectations leaves out, with a line in its log, what it cannot make an expectation of.
    if missing := len(suite.expectations) - len(evaluated):
        why = "Great Expectations did not evaluate them; its log says why"
        failures.append(Failure(f"{missing} expectations of {suite.path.name}", "critical", None, why, evaluated=False))
    failures.sort(key=lambda failure: WORST_FIRST.index(failure.severity))
    return Verdict(suite.name, len(suite.expectations), tuple(failures))


def _validate(suite: Suite, batch: DataFrame, result_format: dict[str, object]) -> ExpectationSuiteValidationResult:
    import great_expectations as gx
    from great_expectations.data_context.types.base import ProgressBarsConfig

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    # persist=True, the default, would keep every batch in the engine's memory for ever.
    frames = context.data_sources.add_spark("step", persist=False).add_dataframe_asset("rows")
    rows = frames.add_batch_definition_whole_dataframe("all").get_batch(batch_parameters={"dataframe": batch})
    return rows.validate(gx.ExpectationSuite(**json.loads(suite.text)), result_format=result_format)


def _failure(one: _Evaluated) -> Failure:
    config, result = one["expectation_config"], one["result"]
    arguments = {name: value for name, value in config["kwargs"].items() if name != "batch_id"}
    told = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    rows = result.get("unexpected_count")
    sample = result.get("partial_unexpected_index_list", result.get("observed_value"))
    raised = _raised(one["exception_info"])
    return Failure(
        f"{config['type']}({told})",
        config.get("severity", "critical"),
        rows if isinstance(rows, int) else None,
        json.dumps(sample, default=str) if raised is None else f"could not be evaluated: {raised}",
        evaluated=raised is None,
    )


def _raised(info: dict[str, object]) -> str | None:
    """What an expectation stumbled over; told once, or by each of the metrics it needs."""
    for told in (info, *info.values()):
        if isinstance(told, dict) and told.get("raised_exception"):
            return str(told.get("exception_message"))
    return None
