"""Great Expectations before the commit: what a suite refuses is never published.

A suite is a JSON file in Great Expectations' own shape, `assets/expectations/<topology>.<table>.json`. It is evaluated
on the rows that a step is about to merge, not on the whole table. A failed expectation of severity `critical` (the
default) refuses the step, so the table keeps its last good version and the next tick tries again; `warning` and `info`
are only told. Great Expectations is imported when a gate is first passed: it takes seconds.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict, cast

from spark.engine.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from great_expectations.core import ExpectationSuiteValidationResult
    from pyspark.sql import DataFrame

    from spark.topology import Topology
    from spark.topology.topology import Table

FOLDER = Path(__file__).parent / "expectations"
SAMPLE = 5  # failing rows shown for each expectation

Severity = Literal["critical", "warning", "info"]
WORST_FIRST: tuple[Severity, ...] = ("critical", "warning", "info")


class BrokenSuite(Exception):
    """A file of expectations that cannot be meant."""


class _Expectation(TypedDict, total=False):
    type: str
    kwargs: dict[str, object]
    severity: Severity


class _Evaluated(TypedDict):
    success: bool
    expectation_config: _Expectation
    result: dict[str, object]
    exception_info: dict[str, object]


@dataclass(frozen=True)
class Suite:
    """What must hold of a table's rows."""

    name: str
    path: Path
    text: str
    worst: Severity
    """The severity of its strictest expectation."""


@dataclass(frozen=True)
class Failure:
    """One expectation that did not hold: how many rows failed it (None: it is not about single rows), and a few."""

    expectation: str
    severity: Severity
    rows: int | None
    sample: str


@dataclass(frozen=True)
class Verdict:
    """What became of a suite on the rows of one step."""

    suite: str
    evaluated: int
    failures: tuple[Failure, ...]

    @property
    def worst(self) -> Severity | None:
        """The severity of the worst failure; None if everything held."""
        return next((s for s in WORST_FIRST if any(f.severity == s for f in self.failures)), None)


class Refused(EngineError):
    """Rows that must not be published: nothing was committed."""

    def __init__(self, message: str, verdict: Verdict) -> None:
        super().__init__(message)
        self.verdict = verdict


class SuiteGate:
    """Lets rows pass that no critical expectation refuses; keeps the verdict for who reports it."""

    def __init__(self, topology: Topology, table: Table, suite: Suite) -> None:
        self.name = f"{topology.name}.{table.name}"
        self.key = table.plan.key
        self.suite = suite
        self.verdict: Verdict | None = None

    def __call__(self, batch: DataFrame) -> None:
        """Evaluate the suite.

        Raises:
            Refused: a critical expectation failed, or could not be evaluated.
        """
        self.verdict = evaluate(self.suite, batch, self.key)
        if self.verdict.worst == "critical":
            told = "; ".join(f"{failure.expectation}: {failure.sample}" for failure in self.verdict.failures)
            raise Refused(
                f"{self.name}: the rows of this step fail {self.suite.path.name}, and nothing was committed ({told}). "
                f"The next tick tries again: correct the records at their source, or the suite",
                self.verdict,
            )


def gates(topology: Topology, found: Mapping[str, Suite]) -> dict[str, SuiteGate]:
    """A gate for every table of the topology that has a suite."""
    names = {table.name: found.get(f"{topology.name}.{table.name}") for table in topology.tables}
    return {name: SuiteGate(topology, topology.table(name), suite) for name, suite in names.items() if suite}


def suites(topologies: Iterable[Topology], folder: Path = FOLDER) -> dict[str, Suite]:
    """The suites by `<topology>.<table>`.

    Raises:
        BrokenSuite: a file is no suite, or is for a table that there is not.
    """
    tables = {f"{topology.name}.{table.name}" for topology in topologies for table in topology.tables}
    found = {path.stem: _read(path) for path in sorted(folder.glob("*.json"))}
    for name in found.keys() - tables:
        raise BrokenSuite(f"{found[name].path}: there is no table {name}; tables are: {', '.join(sorted(tables))}")
    return found


def _read(path: Path) -> Suite:
    text = path.read_text()
    try:
        suite = json.loads(text)
    except ValueError as error:
        raise BrokenSuite(f"{path} is not JSON: {error}") from error
    expectations = suite.get("expectations") if isinstance(suite, dict) else None
    if not isinstance(expectations, list) or not isinstance(suite.get("name"), str) or expectations == []:
        raise BrokenSuite(f'{path}: write {{"name": ..., "expectations": [{{"type": ..., "kwargs": {{...}}}}]}}')
    severities = [expectation.get("severity", "critical") for expectation in expectations]
    if strange := sorted(set(severities) - set(WORST_FIRST)):
        raise BrokenSuite(f"{path}: severity {', '.join(strange)} is none of {', '.join(WORST_FIRST)}")
    return Suite(suite["name"], path, text, min(severities, key=WORST_FIRST.index))


def evaluate(suite: Suite, batch: DataFrame, key: tuple[str, ...]) -> Verdict:
    """Evaluate a suite on rows; failing rows are looked for only if something failed."""
    result = _validate(suite, batch, {"result_format": "BOOLEAN_ONLY"})
    if not result.success:
        shown = {"unexpected_index_column_names": list(key), "partial_unexpected_count": SAMPLE}
        result = _validate(suite, batch, {"result_format": "SUMMARY", **shown})
    evaluated = [cast(_Evaluated, one.to_json_dict()) for one in result.results]
    failures = [_failure(one) for one in evaluated if not one["success"]]
    failures.sort(key=lambda failure: WORST_FIRST.index(failure.severity))
    return Verdict(suite.name, len(evaluated), tuple(failures))


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
    )


def _raised(info: dict[str, object]) -> str | None:
    """What an expectation stumbled over; told once, or by each of the metrics it needs."""
    for told in (info, *info.values()):
        if isinstance(told, dict) and told.get("raised_exception"):
            return str(told.get("exception_message"))
    return None
