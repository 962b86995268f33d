"""Suites of Great Expectations, read and validated when definitions load.

A suite is a JSON file in Great Expectations' own format, `assets/expectations/<topology>.<table>.json`. A wrong name of
a table, an expectation, an argument or a column is an error before any step runs, and so is a value of another type
than its column's. Great Expectations validates names and arguments. Its import takes seconds, which no process that
loads definitions should pay, so another process imports it, once for each text of a suite: the cache folder records
which texts are valid.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from difflib import get_close_matches
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict

from assets.specs import OUR_TYPES
from resources.jars import cache
from spark.engine.log.comments import COMMENTS, comment
from spark.topology import TopologyError
from spark.topology.errors import Place
from spark.topology.sql.expressions import parse_expression

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from spark.topology import Topology
    from spark.topology.topology import Table

FOLDER = Path(__file__).parent / "expectations"

Severity = Literal["critical", "warning", "info"]
WORST_FIRST: tuple[Severity, ...] = ("critical", "warning", "info")

SUITE_KEYS = ("name", "expectations", "meta", "notes", "id", "suite_parameters")
EXPECTATION_KEYS = (
    *("type", "kwargs", "severity", "meta", "notes", "description", "id"),
    *("rendered_content", "expectation_context", "success_on_last_run"),
)
"""The keys that Great Expectations reads of a suite and of an expectation. Any other key is misspelt or misplaced."""

COLUMN_ARGUMENTS = ("column", "column_A", "column_B", "column_list", "column_set")
"""Arguments of expectations that are names of columns: one, or a list."""

VALUES = ("min_value", "max_value", "value_set")
VALUED = re.compile(
    r"expect_column_(values_to_be_between|(max|min|mean|median|stdev|sum)_to_be_between"
    r"|(distinct_|most_common_)?values?_to_(not_)?(be_in|contain|equal)_set)"
)
"""Expectations whose bounds or sets are values of their column. The bounds of others are lengths, numbers or shares."""

NUMBERS = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")
TIMES = ("timestamp", "date")

IN_CONDITION = re.compile(r"""col\(["'](\w+)["']\)""")
"""A column in a `row_condition` in Great Expectations' own language."""


class BrokenSuite(Exception):
    """A file of expectations is not valid.

    Correct the file that the message names: its name, the expectation's type and arguments, or the column. Until then
    Dagster does not load this topology; it loads the others.
    """


class Expectation(TypedDict, total=False):
    """One expectation of a suite's file."""

    type: str
    kwargs: dict[str, object]
    severity: Severity


@dataclass(frozen=True)
class Suite:
    """The expectations of a table's rows."""

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
        """A hash that identifies the text of the suite."""
        return sha256(self.text.encode()).hexdigest()[:16]


def suites(topologies: Iterable[Topology], folder: Path = FOLDER, others: Collection[str] = ()) -> dict[str, Suite]:
    """The suites by `<topology>.<table>`; files of the topologies that `others` names are not read.

    Raises:
        BrokenSuite: a file is no suite, or its table does not exist; or an expectation does not exist, does not take
            its arguments, or names a column that the table does not have.
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
                f"{path} is not named like a table: name it <topology>.<table>.json, with one of: "
                f"{', '.join(sorted(tables))}"
            )
    found = {path.stem: _read(path) for path in files}
    for name, suite in found.items():
        _check_columns(suite, name, tables[name])
        _check_expectations(suite)
    return found


def _read(path: Path) -> Suite:
    try:
        text = path.read_text(encoding="utf-8")
        suite = json.loads(text, object_pairs_hook=_once)
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
    for keys, given in ((SUITE_KEYS, suite), *((EXPECTATION_KEYS, one) for one in expectations)):
        if unknown := next((key for key in given if key not in keys), None):
            raise BrokenSuite(
                f"{path}: unknown key {unknown!r}{_nearest(unknown, keys)}; the keys are {', '.join(keys)}. Write the "
                f"arguments of an expectation in kwargs"
            )
    severities = [expectation.get("severity", "critical") for expectation in expectations]
    if unknown := sorted(set(severities) - set(WORST_FIRST)):
        raise BrokenSuite(f"{path}: unknown severity {', '.join(unknown)}: write one of {', '.join(WORST_FIRST)}")
    return Suite(suite["name"], path, text, tuple(expectations))


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """A JSON object. Raises ValueError for a duplicate key, of which `json` would take the last value silently."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"duplicate key {next(name for name in names if names.count(name) > 1)!r}")
    return found


def _is_expectation(one: object) -> bool:
    return (
        isinstance(one, dict)
        and isinstance(one.get("type"), str)
        and isinstance(one.get("kwargs", {}), dict)
        and isinstance(one.get("severity", "critical"), str)
    )


def _check_columns(suite: Suite, name: str, table: Table) -> None:
    """Raise BrokenSuite for a column that the table does not have, or a value that is not of the column's type."""
    types = {column.name: column.type for column in table.plan.columns}
    for expectation in suite.expectations:
        arguments = expectation.get("kwargs", {})
        for column in _columns(arguments):
            if column not in types and comment(column) is None:
                raise BrokenSuite(
                    f"{suite.path}: {expectation['type']} names the column {column!r}, which {name} does not have"
                    f"{_nearest(column, [*types, *COMMENTS])}; its columns are: {', '.join(types)}"
                )
        condition = arguments.get("row_condition")
        if isinstance(condition, str) and arguments.get("condition_parser") != "great_expectations":
            place = Place(f"row_condition of {expectation['type']}", None, {"": table.plan.columns})
            try:
                parse_expression(condition, place)
            except TopologyError as error:
                raise BrokenSuite(f"{suite.path}: {error}") from error
        kind = (OUR_TYPES | types).get(str(arguments.get("column")))
        for argument in VALUES if kind is not None and VALUED.fullmatch(expectation["type"]) else ():
            given = arguments.get(argument)
            for value in given if isinstance(given, list) else [given]:
                if value is not None and not _comparable(str(kind), value):
                    raise BrokenSuite(
                        f"{suite.path}: {expectation['type']} compares {arguments['column']!r} of {name}, which is "
                        f"{kind}, with {argument} {value!r}: write a value of that type"
                    )


def _columns(arguments: dict[str, object]) -> Iterator[str]:
    """The columns that an expectation's arguments name, including those in conditions."""
    for argument in COLUMN_ARGUMENTS:
        given = arguments.get(argument, [])
        yield from (one for one in (given if isinstance(given, list) else [given]) if isinstance(one, str))
    condition = arguments.get("row_condition")
    if arguments.get("condition_parser") == "great_expectations":
        yield from IN_CONDITION.findall(str(condition))
    yield from _compared(condition)


def _compared(condition: object) -> Iterator[str]:
    """The columns in a condition that is written as JSON."""
    for one in condition.values() if isinstance(condition, dict) else condition if isinstance(condition, list) else ():
        yield from _compared(one)
    if isinstance(condition, dict) and isinstance(column := condition.get("column"), dict):
        yield str(column.get("name"))


def _comparable(kind: str, value: object) -> bool:
    """Whether a JSON value can be compared with a column of a type; any value can if JSON has no such type."""
    if kind in ("string", *TIMES):
        return isinstance(value, str)
    return not (kind.startswith(NUMBERS) and isinstance(value, str))


def _nearest(word: str, words: Iterable[str]) -> str:
    close = get_close_matches(word, list(words), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _check_expectations(suite: Suite) -> None:
    """Let Great Expectations validate the names and arguments of expectations, once for each text and release.

    Raises:
        BrokenSuite: it rejects one.
    """
    gx = version("great-expectations")
    rules = sha256(Path(__file__).read_bytes()).hexdigest()[:16]
    valid = cache() / "suites" / f"{gx}-{rules}-{suite.digest}"
    if valid.exists():
        return
    command = [sys.executable, "-m", "assets.suites"]
    validated = subprocess.run(command, input=suite.text, capture_output=True, text=True, check=False)
    if validated.returncode != 0:
        output = validated.stderr.strip()
        raise BrokenSuite(f"{suite.path} could not be validated by Great Expectations {gx}:\n{output}")
    errors = json.loads(validated.stdout)
    if errors:
        raise BrokenSuite("\n".join(f"{suite.path}: {error}" for error in errors))
    valid.parent.mkdir(parents=True, exist_ok=True)
    valid.touch()


def _errors(text: str) -> Iterator[str]:
    """What Great Expectations or Spark rejects in a suite: a sentence for each expectation and argument."""
    from great_expectations.compatibility.pydantic import ValidationError
    from great_expectations.exceptions.exceptions import ExpectationNotFoundError
    from great_expectations.expectations.registry import (
        get_expectation_impl,
        list_registered_expectation_implementations,
    )
    from pyspark.sql import types

    kinds = [name for name in dir(types) if name.endswith("Type")]
    for number, expectation in enumerate(json.loads(text)["expectations"], start=1):
        name, arguments = expectation["type"], expectation.get("kwargs", {})
        try:
            implementation = get_expectation_impl(name)
        except ExpectationNotFoundError:
            near = _nearest(name, list_registered_expectation_implementations())
            yield f"expectation {number}: Great Expectations has no {name}{near}"
            continue
        try:
            implementation(**arguments)
        except ValidationError as error:
            reasons: dict[str, str] = {}
            for one in error.errors():
                reasons.setdefault(str(one["loc"][0]), one["msg"])
            for argument, why in reasons.items():
                near = "" if argument in implementation.__fields__ else _nearest(argument, implementation.__fields__)
                yield f"expectation {number}, {name}: {argument.replace('__root__', 'arguments')}: {why}{near}"
            continue
        query = arguments.get("unexpected_rows_query")
        if query is not None and "{batch}" not in query:
            yield f"expectation {number}, {name}: unexpected_rows_query: write {{batch}} for the rows"
        for argument in ("type_", "type_list"):
            given = arguments.get(argument, [])
            for kind in given if isinstance(given, list) else [given]:
                if kind not in kinds:
                    near = _nearest(str(kind), kinds)
                    yield f"expectation {number}, {name}: {argument}: Spark has no type {kind!r}{near}"


if __name__ == "__main__":
    with redirect_stdout(sys.stderr):  # Great Expectations prints advice
        found = list(_errors(sys.stdin.read()))
    print(json.dumps(found))
