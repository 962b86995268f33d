"""`docs/semantics.md`, run: every block is executed, every line is piped, every cell is compared."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

from spark.testing import TopologyTestDriver
from spark.topology import StreamsBuilder, Topology
from spark.topology.handles import GlobalKTable, KGroupedStream, KGroupedTable, KStream, KTable
from spark.topology.nodes import Lookup
from tests.support.quick import quick_session

if TYPE_CHECKING:
    from resources.engine import Engine
    from spark.testing.worlds import Emitted
    from spark.topology.columns import Column

PAGE = Path(__file__).parents[2] / "docs" / "semantics.md"
README = PAGE.parents[1] / "README.md"
LONE_KEY = "1"
"""The key where a cell has none."""

OPERATORS = {
    "StreamsBuilder": {"table", "globalTable", "stream"},
    "Materialized": {"as"},
    "KTable": {"filter", "filterNot", "mapValues", "transformValues", "join", "leftJoin", "outerJoin", "groupBy"}
    | {"toStream", "suppress", "queryableStoreName"},
    "GlobalKTable": {"queryableStoreName"},
    "KGroupedTable": {"count", "reduce", "aggregate"},
    "KStream": {
        "filter",
        "filterNot",
        "mapValues",
        "map",
        "flatMapValues",
        "selectKey",
        "merge",
        "split",
        "toTable",
        "to",
    }
    | {"groupBy", "groupByKey", "join", "leftJoin", "outerJoin", "repartition", "peek", "foreach", "process"},
    "KGroupedStream": {"count", "reduce", "aggregate", "windowedBy", "cogroup"},
}
"""Kafka Streams' operators."""

HANDLES: dict[str, type] = {
    handle.__name__: handle for handle in (StreamsBuilder, KTable, GlobalKTable, KStream, KGroupedTable, KGroupedStream)
}

Cut = Literal["line", "each", "all"]
Line = dict[str, str]  # a cell for every column
States = dict[str, list[dict[str, object]]]


@dataclass(frozen=True)
class Case:
    """A table of the page, and the topology of the block before it."""

    topology: Topology
    lines: tuple[Line, ...]

    @property
    def columns(self) -> list[str]:
        """The tables that the page says something about, in its order."""
        topics = {source.topic for source in self.topology.sources}
        return [name for name in self.lines[0] if name not in {"timestamp", "note", *topics}]

    @property
    def cuts(self) -> list[Cut]:
        """Every line a batch, as the page is written, and the smallest and the largest; others are the laws'."""
        return ["line", "each", "all"] if len(self.records()) > len(self.lines) else ["line", "all"]

    def records(self) -> list[str]:
        """All the records that come in."""
        topics = [source.topic for source in self.topology.sources]
        return [record for line in self.lines for topic in topics for record in cell(line[topic])]


@dataclass(frozen=True)
class Run:
    """What each line emitted, by table, and what the tables held in the end."""

    emitted: tuple[Line, ...]
    states: States


@dataclass(frozen=True)
class Page:
    """What the page has, in its order."""

    cases: tuple[Case, ...]
    operators: tuple[Line, ...]
    blocks: int


def parsed(text: str) -> Page:
    """The page. A line of a table or a fence that no block or table has taken fails."""
    cases: list[Case] = []
    operators: list[Line] = []
    pieces = re.split(r"^```python\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    namespace: dict[str, Any] = {}
    for number, piece in enumerate(pieces):
        if number % 2:
            namespace.pop("topology", None)
            exec(compile(piece, PAGE.name, "exec"), namespace)
            continue
        assert "```" not in piece, "a block that is not run"
        tables = re.findall(r"(?:^\|.*\n)+", piece, re.MULTILINE)
        assert "".join(tables).count("\n") == sum("|" in line for line in piece.splitlines()), "a stray line of a table"
        for table in tables:
            lines = tuple(rows(table))
            if "timestamp" in lines[0]:
                cases.append(Case(namespace["topology"], lines))
            else:
                operators.extend(lines)
    return Page(tuple(cases), tuple(operators), len(pieces) // 2)


def rows(table: str) -> Iterator[Line]:
    """The lines below the header and its rule."""
    header, rule, *lines = ([part.strip() for part in line.strip("|").split("|")] for line in table.splitlines())
    assert set("".join(rule)) == {"-"}
    for line in lines:
        yield dict(zip(header, line, strict=True))


def cell(text: str) -> list[str]:
    """The records of a cell, each as `key: value`."""
    records = [record.strip() for record in text.split(";") if record.strip()]
    return [record if ": " in record else f"{LONE_KEY}: {record}" for record in records]


def value_of(text: str, columns: tuple[Column, ...]) -> dict[str, object] | None:
    """What a record's text holds; None for a tombstone."""
    if text == "null":
        return None
    fields = text[1:-1].split(", ") if text.startswith("[") else [text]
    return {column.name: typed(field, column) for column, field in zip(columns, fields, strict=True)}


def typed(text: str, column: Column) -> object:
    return None if text == "null" else int(text) if column.type in ("int", "bigint") else text


def written(record: dict[str, Any]) -> str:
    """A record that a table emitted, as the page writes it."""
    key = key_of(*record["key"].values())
    if record["value"] is None:
        return f"{key}: null"
    fields = ["null" if field is None else str(field) for field in record["value"].values()]
    return f"{key}: {fields[0]}" if len(fields) == 1 and fields != ["null"] else f"{key}: [{', '.join(fields)}]"


def key_of(part: object, *window: datetime) -> str:
    """A key as the page writes it: behind a window's group stand its bounds in milliseconds."""
    bounds = "-".join(str(round(at.timestamp() * 1000)) for at in window)
    return " ".join(filter(None, ["null" if part is None else str(part), bounds]))


class ByLine(TopologyTestDriver):
    """A driver whose batches are the lines of a table: all are computed when the first of their records is read."""

    def end(self) -> None:
        """End the batch of a line."""
        self._waiting.append(self._piped)
        self._piped = []

    def of_lines(self, case: Case) -> tuple[Line, ...]:
        """What each line emitted, by table."""
        self._process()
        found = []
        for number, _ in enumerate(case.lines, 1):
            emitted = {name: [one for one in self._emitted[name] if one.batch == number] for name in case.columns}
            found.append({name: "; ".join(self._written(name, ones)) for name, ones in emitted.items()})
        return tuple(found)

    def _written(self, name: str, emitted: Iterable[Emitted]) -> Iterator[str]:
        return (written(one.as_record(self._topology.table(name))) for one in emitted)


def run(case: Case, cut: Cut, engine: Engine) -> Run:
    """The lines in batches of one line each, of one record each, or all in one."""
    session = quick_session(engine)
    driver = ByLine(case.topology, "all" if cut == "line" else cut, session)
    for line in case.lines:
        for source in case.topology.sources:
            for record in cell(line[source.topic]):
                key, value = record.split(": ", 1)
                driver.pipe(
                    source.topic,
                    key=typed(key, source.consumed.key[0]),
                    value=value_of(value, source.consumed.value),
                    timestamp=int(line["timestamp"]),
                )
        if cut == "line":
            driver.end()
    emitted = driver.of_lines(case) if cut == "line" else ()
    states: States = {name: driver.table(name) for name in case.columns}
    session.stop()
    return Run(emitted, states)


def check(case: Case, found: Run) -> None:
    """Every cell says what was emitted."""
    for line, emitted in zip(case.lines, found.emitted, strict=True):
        for name in case.columns:
            assert sorted(cell(line[name])) == sorted(cell(emitted[name])), f"{name} at {line}"


def settled(case: Case, states: States) -> States:
    """The tables that do not depend on batches: all but lookups, and streams whose records are not in order."""
    times = [int(line["timestamp"]) for line in case.lines]
    in_order = times == sorted(set(times))
    plans = {table.name: table.plan for table in case.topology.tables}
    lookups = {n for n, plan in plans.items() if plan.depends_on_spans and not plan.uses_stream_time} | {
        n for n, plan in plans.items() if isinstance(plan, Lookup) and plan.as_of is None
    }
    streams = {n for n, plan in plans.items() if plan.uses_stream_time and not in_order}
    return {name: rows for name, rows in states.items() if name not in lookups | streams}


@pytest.fixture(scope="module")
def page() -> Page:
    return parsed(PAGE.read_text())


@pytest.fixture(scope="module")
def runs(page: Page, engine: Engine) -> dict[tuple[str, Cut], Run]:
    """Every table of the page in every way, four at a time: a query of so few rows waits more than it computes."""
    wanted = [(case, cut) for case in page.cases for cut in case.cuts]
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda one: run(one[0], one[1], engine), wanted)
        return {(case.topology.name, cut): one for (case, cut), one in zip(wanted, found, strict=True)}


def test_no_table_and_no_block_of_the_page_is_left_out(page: Page) -> None:
    text = PAGE.read_text()
    assert page.blocks == text.count("```python") == text.count("```") / 2
    assert len({case.topology.name for case in page.cases}) == len(page.cases) == page.blocks
    lines = sum(len(case.lines) for case in page.cases) + len(page.operators)
    assert lines + 2 * (len(page.cases) + 1) == sum(line.startswith("|") for line in text.splitlines())
    for case in page.cases:
        topics = {source.topic for source in case.topology.sources}
        tables = {table.name for table in case.topology.tables}
        assert set(case.lines[0]) - {"timestamp", "note"} == topics | tables


def test_every_cell_is_what_the_table_emitted(page: Page, runs: dict[tuple[str, Cut], Run]) -> None:
    for case in page.cases:
        check(case, runs[case.topology.name, "line"])


def test_the_last_state_does_not_depend_on_batches(page: Page, runs: dict[tuple[str, Cut], Run]) -> None:
    for case in page.cases:
        expected = settled(case, runs[case.topology.name, "line"].states)
        assert all(expected.values()), "an empty table proves little"
        for cut in case.cuts:
            assert settled(case, runs[case.topology.name, cut].states) == expected


def test_a_cell_changed_by_hand_fails(page: Page, runs: dict[tuple[str, Cut], Run]) -> None:
    for case in page.cases:
        for number, line in enumerate(case.lines):
            for name in case.columns:
                other = line | {name: "" if line[name] else "1: null"}
                lines = (*case.lines[:number], other, *case.lines[number + 1 :])
                with pytest.raises(AssertionError, match=name):
                    check(replace(case, lines=lines), runs[case.topology.name, "line"])


def test_a_record_changed_by_hand_fails(page: Page, engine: Engine) -> None:
    case = next(case for case in page.cases if case.topology.name == "with_its_own_input")
    other = replace(case, lines=(case.lines[0] | {"left": "B"}, *case.lines[1:]))
    with pytest.raises(AssertionError, match="twice"):
        check(other, run(other, "line", engine))


def test_a_block_or_a_table_that_cannot_be_run_fails() -> None:
    with pytest.raises(AssertionError, match="a block that is not run"):
        parsed("```\nbuilder\n```\n")
    with pytest.raises(AssertionError, match="a stray line of a table"):
        parsed(" | 1 | A |\n")
    with pytest.raises(KeyError, match="topology"):
        parsed("```python\nbuilder = 1\n```\n| timestamp | left |\n|---|---|\n| 1 | A |\n")


def test_the_operators_of_kafka_streams_are_all_there_or_said_not_to_be(page: Page) -> None:
    assert {line["Kafka Streams"] for line in page.operators} == {
        f"{of}.{name}" for of, names in OPERATORS.items() for name in names
    }
    for line in page.operators:
        of, name = line["Kafka Streams"].split(".")
        if line["here"]:
            ours, method = line["here"].strip("`").split(".")
            assert callable(getattr(HANDLES[ours], method))
        else:
            assert line["note"]
            method = re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", name)
            refusal = getattr(HANDLES[of], method, None)
            assert refusal is None or refusal.__annotations__["return"] == "NoReturn"


def test_the_readme_points_to_the_page() -> None:
    assert "docs/semantics.md" in README.read_text()
