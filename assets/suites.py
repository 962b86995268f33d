"""Suites of Great Expectations, read and validated when definitions load.

A suite is a JSON file in Great Expectations' own shape, `assets/expectations/<topology>.<table>.json`. What can be
mistyped in it is an error before any step runs: the table, an expectation's name, its arguments, the columns they name,
and bounds of another type than the column's. Names and arguments are Great Expectations' own to judge. Its import takes
seconds, which no process that loads definitions should pay, so another process imports it, once for each text of a
suite: that a text was valid is kept in the cache folder.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from difflib import get_close_matches
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict

from resources.jars import cache

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from spark.topology import Topology
    from spark.topology.topology import Table

FOLDER = Path(__file__).parent / "expectations"

Severity = Literal["critical", "warning", "info"]
WORST_FIRST: tuple[Severity, ...] = ("critical", "warning", "info")

COLUMN_ARGUMENTS = ("column", "column_A", "column_B", "column_list")
"""Arguments of expectations that hold names of columns: one, or a list."""

BOUNDS = ("min_value", "max_value")
NUMBERS = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")


class BrokenSuite(Exception):
    """A file of expectations that cannot be meant.

    Correct the file that the message names: its name, the expectation's type and arguments, or the column. Until then
    the topology is left out of Dagster, and the others go on.
    """


class Expectation(TypedDict, total=False):
    """One expectation, as a suite's file has it."""

    type: str
    kwargs: dict[str, object]
    severity: Severity


@dataclass(frozen=True)
class Suite:
    """What must hold of a table's rows."""

    name: str
    path: Path
    text: str
    expectations: tuple[Expectation, ...]

    @property
    def worst(self) -> Severity:
        """The severity of its strictest expectation."""
        return min((one.get("severity", "critical") for one in self.expectations), key=WORST_FIRST.index)

    @property
    def digest(self) -> str:
        """Tells this text from every other."""
        return sha256(self.text.encode()).hexdigest()[:16]


def suites(topologies: Iterable[Topology], folder: Path = FOLDER, others: Collection[str] = ()) -> dict[str, Suite]:
    """The suites by `<topology>.<table>`; those of `others`, topologies by name, are not looked at.

    Raises:
        BrokenSuite: a file is no suite, is for a table that there is not, or has an expectation that there is not,
            with arguments that it does not take, or about a column that the table does not have.
    """
    tables = {f"{topology.name}.{table.name}": table for topology in topologies for table in topology.tables}
    files = [
        path
        for path in sorted(folder.iterdir())
        if path.suffix != ".md" and not path.name.startswith((".", "_")) and path.stem.partition(".")[0] not in others
    ]
    for path in files:
        if path.suffix != ".json" or path.stem not in tables:
            raise BrokenSuite(
                f"{path} is the suite of no table; name it <topology>.<table>.json, of one of: "
                f"{', '.join(sorted(tables))}"
            )
    found = {path.stem: _read(path) for path in files}
    for name, suite in found.items():
        _check_columns(suite, name, tables[name])
        _check_expectations(suite)
    return found


def _read(path: Path) -> Suite:
    text = path.read_text()
    try:
        suite = json.loads(text)
    except ValueError as error:
        raise BrokenSuite(f"{path} is not JSON: {error}") from error
    expectations = suite.get("expectations") if isinstance(suite, dict) else None
    if (
        not isinstance(expectations, list)
        or not isinstance(suite.get("name"), str)
        or expectations == []
        or not all(_is_expectation(one) for one in expectations)
    ):
        raise BrokenSuite(f'{path}: write {{"name": ..., "expectations": [{{"type": ..., "kwargs": {{...}}}}]}}')
    severities = [expectation.get("severity", "critical") for expectation in expectations]
    if strange := sorted(set(severities) - set(WORST_FIRST)):
        raise BrokenSuite(f"{path}: severity {', '.join(strange)} is none of {', '.join(WORST_FIRST)}")
    return Suite(suite["name"], path, text, tuple(expectations))


def _is_expectation(one: object) -> bool:
    return (
        isinstance(one, dict)
        and isinstance(one.get("type"), str)
        and isinstance(one.get("kwargs", {}), dict)
        and isinstance(one.get("severity", "critical"), str)
    )


def _check_columns(suite: Suite, name: str, table: Table) -> None:
    """Refuse columns that the table does not have, and bounds that are not of the column's type."""
    types = {column.name: column.type for column in table.plan.columns}
    for expectation in suite.expectations:
        arguments = expectation.get("kwargs", {})
        for argument in COLUMN_ARGUMENTS:
            given = arguments.get(argument, [])
            for column in given if isinstance(given, list) else [given]:
                if isinstance(column, str) and column not in types and not column.startswith("_"):
                    raise BrokenSuite(
                        f"{suite.path}: {expectation['type']} is about {column!r}, which {name} does not have"
                        f"{_nearest(column, types)}; its columns are: {', '.join(types)}"
                    )
        kind = types.get(str(arguments.get("column")))
        for bound in BOUNDS:
            if kind is not None and not _comparable(kind, arguments.get(bound)):
                raise BrokenSuite(
                    f"{suite.path}: {expectation['type']} compares {arguments['column']!r} of {name}, which is {kind}, "
                    f"with {bound} {arguments[bound]!r}: write a value of that type"
                )


def _comparable(kind: str, bound: object) -> bool:
    """Whether a bound can be meant for a column of a type; of types that are neither number nor text, any may."""
    if kind == "string":
        return not isinstance(bound, int | float)
    return not (kind.startswith(NUMBERS) and isinstance(bound, str))


def _nearest(word: str, words: Iterable[str]) -> str:
    close = get_close_matches(word, list(words), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _check_expectations(suite: Suite) -> None:
    """Ask Great Expectations whether it has such expectations, with such arguments; once for each text and release."""
    gx = version("great-expectations")
    valid = cache() / "suites" / f"{gx}-{suite.digest}"
    if valid.exists():
        return
    command = [sys.executable, "-m", "assets.suites"]
    asked = subprocess.run(command, input=suite.text, capture_output=True, text=True, check=False)
    if asked.returncode != 0:
        raise BrokenSuite(f"{suite.path} could not be validated by Great Expectations {gx}:\n{asked.stderr.strip()}")
    wrong = json.loads(asked.stdout)
    if wrong:
        raise BrokenSuite("\n".join(f"{suite.path}: {one}" for one in wrong))
    valid.parent.mkdir(parents=True, exist_ok=True)
    valid.touch()


def _wrong(text: str) -> Iterator[str]:
    """What Great Expectations does not accept in a suite, one sentence for each expectation and argument."""
    from great_expectations.compatibility.pydantic import ValidationError
    from great_expectations.exceptions.exceptions import ExpectationNotFoundError
    from great_expectations.expectations.registry import (
        get_expectation_impl,
        list_registered_expectation_implementations,
    )

    for number, expectation in enumerate(json.loads(text)["expectations"], start=1):
        name = expectation["type"]
        try:
            of = get_expectation_impl(name)
        except ExpectationNotFoundError:
            near = _nearest(name, list_registered_expectation_implementations())
            yield f"expectation {number}: Great Expectations has no {name}{near}"
            continue
        try:
            of(**expectation.get("kwargs", {}))
        except ValidationError as error:
            told: dict[str, str] = {}
            for one in error.errors():
                told.setdefault(str(one["loc"][0]), one["msg"])
            for argument, why in told.items():
                near = "" if argument in of.__fields__ else _nearest(argument, of.__fields__)
                yield f"expectation {number}, {name}: {argument.replace('__root__', 'arguments')}: {why}{near}"


if __name__ == "__main__":
    print(json.dumps(list(_wrong(sys.stdin.read()))))
