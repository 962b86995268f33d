"""The table of docs/how-to/debezium.md on changes of a database's table: every cell, in every format, as recorded."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spark.serdes.records import decode
from spark.topology import Consumed
from tests.debezium.recording import recording, schemas_of
from tests.debezium.shop import RECORDS
from tests.debezium.values import value

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

    from resources.engine import Engine
    from tests.debezium.recording import Event, Format

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "debezium.md"
KEYS = {"customers": "id bigint", "orders": "order_id bigint"}
QUARANTINE = "quarantine"


@dataclass(frozen=True)
class Case:
    """A row of the page: what changes, the declared column, and what events before and after the change give it."""

    change: str
    column: str
    kind: str
    before: str
    after: str

    @property
    def number(self) -> int:
        """The number of the statement in the recording."""
        return [one.name for one in recording("shop")].index(self.change)

    @property
    def table(self) -> str:
        """The table that changes."""
        return str(re.findall(r"^ALTER TABLE (\w+)", recording("shop")[self.number].sql)[0])


@dataclass(frozen=True)
class Written:
    """The last event of a row in a statement: what it gives each column, and what the database had in it."""

    statement: int
    found: Mapping[str, Any]
    had: Mapping[str, Any]


def cases() -> list[Case]:
    """The rows of the page."""
    _, _, section = PAGE.read_text().partition("## When a table of the database changes")
    found = re.findall(r"^\| ([^|`]+) \| `(\w+) ([^`|]+)` \| (\w+) \| (\w+) \|$", section, re.MULTILINE)
    return [Case(*one) for one in found]


@pytest.mark.parametrize(
    ("connector", "format_"), [("string", "json"), ("precise", "json_with_schemas"), ("precise", "avro")]
)
def test_events_before_and_after_a_change_have_what_the_page_says(
    engine: Engine, connector: str, format_: Format
) -> None:
    session = engine.session()
    compared = set()
    for table, columns in declarations():
        rows = list(written(session, table, columns, connector, format_))
        for case in cases():
            if case.table == table and {**columns, **dict([KEYS[table].split()])}.get(case.column) == case.kind:
                holds(case, case.before, [one for one in rows if one.statement < case.number], columns, format_)
                holds(case, case.after, [one for one in rows if one.statement > case.number], columns, format_)
                compared.add(case)
    assert compared == set(cases())
    assert len(compared) >= 11
    session.stop()


def declarations() -> Iterator[tuple[str, dict[str, str]]]:
    """Tables with some columns, type by name; each case has its column, or the key, in one of them."""
    for table, key in KEYS.items():
        left = [case for case in cases() if case.table == table and f"{case.column} {case.kind}" != key]
        while left:
            columns: dict[str, str] = {}
            for case in left:
                columns.setdefault(case.column, case.kind)
            yield table, columns
            left = [case for case in left if columns[case.column] != case.kind]


def written(
    session: SparkSession, table: str, columns: Mapping[str, str], connector: str, format_: Format
) -> Iterator[Written]:
    """What the events of a table give the declared columns, by statement and row."""
    key, topic = KEYS[table].split()[0], f"shop.public.{table}"
    events: list[tuple[int, Event, Event]] = []
    for number, statement in enumerate(recording("shop")):
        pairs = zip(statement.events(connector, format_), statement.events(connector, "json"), strict=True)
        events += [(number, event, plain) for event, plain in pairs if event.topic == topic]
    value_columns = ", ".join(map(" ".join, columns.items()))
    consumed = Consumed.debezium(key=KEYS[table], value=value_columns, format=format_, truncate=True)
    ours = schemas_of("shop")
    frame = session.createDataFrame(
        [
            (event.key, event.value, event.headers or None, "t", 0, offset, None)
            for offset, (_, event, _) in enumerate(events)
        ],
        RECORDS,
    )
    decoded = decode(frame, consumed, {"key": ours, "value": ours}).select(key, *columns, "_error", "_offset")
    found = {row["_offset"]: row.asDict() for row in decoded.collect()}
    last: dict[tuple[int, int], dict[str, Any]] = {}
    for offset, (number, _, plain) in enumerate(events):
        if plain.key is not None and plain.value is not None and json.loads(plain.value)["op"] in ("c", "u", "r"):
            last[number, json.loads(plain.key)[key]] = found[offset]
    for (number, its), row in last.items():
        had = recording("shop")[number].tables[table]
        for one in had.rows:  # none if the statement deleted it afterwards
            if value(one[key], had.types[key]) == its:
                yield Written(number, row, {name: value(text, had.types[name]) for name, text in one.items()})


def holds(case: Case, cell: str, rows: list[Written], columns: Mapping[str, str], format_: Format) -> None:
    """Compare what events give a column with a cell, and with what the database had."""
    seen = set()
    for row in rows:
        had = row.had.get(case.column)
        if row.found["_error"] is not None:
            assert not all(fits(row.had.get(name), kind) for name, kind in columns.items()), (case, row)
            if not fits(had, case.kind):
                seen.add(QUARANTINE)
            continue
        assert fits(had, case.kind), (case, row)
        found = row.found[case.column]
        if format_ == "avro" and (case.column, row.had.get("status", "")) == ("status", None):
            had = "new"  # Apicurio's converter writes the default of the column in place of a null
        assert found == had, (case, row)
        seen.add("null" if found is None else "value")
    assert cell in seen, (case, seen)
    assert cell != "null" or seen == {"null"}, (case, seen)


def fits(had: Any, kind: str) -> bool:
    """Whether a type can hold a value of the database."""
    if had is None:
        return True
    if kind == "int":
        return bool(had < 2**31)
    scale = re.findall(r"decimal\(\d+,(\d+)\)", kind)
    return not scale or bool(had == round(had, int(scale[0])))
