"""Every row of docs/reference/debezium-types.md: what the connector wrote, and what is decoded from it."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from spark.serdes.records import decode
from spark.topology import Consumed
from tests.debezium.recording import SCRIPTS, Format, recording, schemas_of
from tests.debezium.shop import RECORDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from resources.engine import Engine
    from spark.serdes.part import Part

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "debezium-types.md"
DEFAULTS = {"binary.handling.mode": "bytes", "interval.handling.mode": "numeric"}
"""Settings that the script leaves as they are."""
TABLE = "types"
OTHERS: tuple[Format, ...] = ("json_with_schemas", "avro")
"""The formats whose records tell what a value means."""
IN_AVRO: Mapping[tuple[str, str], tuple[str, str]] = {
    ("bytea", "binary.handling.mode=base64"): ("string", "AP8Q"),
    ("numeric(8,2)[]", "decimal.handling.mode=precise"): ("array<decimal(8,2)>", "[1.10, null]"),
}
"""By type and setting, what is declared in Avro where it differs from JSON, and what is in the table then."""

Cells = tuple[str, ...]
Found = dict[int, tuple[str | None, str | None]]
"""By row of the database: the value as text, and the reason for quarantine."""


def _rows(heading: str) -> list[Cells]:
    """The rows of a table of the page, cell by cell."""
    text = PAGE.read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    return [tuple(cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]) for line in lines]


def _code(cell: str) -> str:
    """The first code of a cell; nothing if it has none."""
    found = re.match(r"`([^`]*)`", cell)
    return "" if found is None else found[1].replace(r"\|", "|")


TYPES, VALUES = _rows("Types"), _rows("Values")


def _connectors(setting: str) -> list[str]:
    """The recorded connectors with a setting; all of them without one."""
    name, _, wanted = setting.partition("=")
    found = SCRIPTS["types"].connectors
    return [one for one, its in found.items() if not name or its.get(name, DEFAULTS.get(name)) == wanted]


def _column(kind: str) -> str:
    """The column of a type of PostgreSQL."""
    [column] = [name for name, its in _types().items() if its == kind and name not in ("id", "t_default")]
    return column


def _types() -> Mapping[str, str]:
    return recording("types")[-1].tables[TABLE].types


def _database() -> dict[int, Mapping[str, str | None]]:
    return {int(str(row["id"])): row for row in recording("types")[-1].tables[TABLE].rows}


def _events(connector: str, format_: Format) -> list[tuple[bytes | None, bytes | None]]:
    found = [event for statement in recording("types") for event in statement.events(connector, format_)]
    return [(event.key, event.value) for event in found if event.topic.endswith(f".{TABLE}")]


def _arrived(connector: str, column: str) -> dict[int, tuple[str, str]]:
    """By row of the database: what arrived of a column as JSON, and the name of its schema."""
    found = {}
    for _, value in _events(connector, "json_with_schemas"):
        event = json.loads(value or b"")
        after, [schema] = (
            event["payload"]["after"],
            [
                field
                for row in event["schema"]["fields"]
                if row["field"] == "after"
                for field in row["fields"]
                if field["field"] == column
            ],
        )
        found[after["id"]] = json.dumps(after[column], ensure_ascii=False), schema.get("name", "")
    return found


class Decoded:
    """What is decoded of the recorded events: a query for each way of declaring them."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._types: dict[tuple[str, Format], dict[tuple[str, str], Found]] = {}
        self._values: list[Found] = []

    def type(self, connector: str, format_: Format, column: str, declared: str) -> Found:
        """A column of the table of types, decoded with all the others of the connector."""
        if (connector, format_) not in self._types:
            declarations = sorted(
                {
                    (_column(_code(kind)), _declared(format_, kind, setting, declare, "")[0])
                    for kind, setting, which, _, declare, *_ in TYPES
                    if connector in _connectors(_code(setting)) and (which == "any" or format_ != "json")
                }
            )
            rows = self._frame(connector, format_, declarations).collect()
            self._types[connector, format_] = {
                declaration: {row["id"]: (row[declaration[0]], row["_error"]) for row in rows}
                for declaration in declarations
            }
        return self._types[connector, format_][column, declared]

    def value(self, number: int) -> Found:
        """The column of a row of the table of values, declared alone; all of them in one query."""
        if not self._values:
            frames = []
            for at, (_, declaration, setting, *_) in enumerate(VALUES):
                column, _, declared = _code(declaration).partition(" ")
                frame = self._frame(_connectors(_code(setting))[0], "json_with_schemas", [(column, declared)])
                frames.append(frame.select(F.lit(at).alias("at"), "id", F.col(column).alias("text"), "_error"))
            whole = frames[0]
            for frame in frames[1:]:
                whole = whole.unionAll(frame)
            self._values = [{} for _ in VALUES]
            for row in whole.collect():
                self._values[row["at"]][row["id"]] = row["text"], row["_error"]
        return self._values[number]

    def _frame(self, connector: str, format_: Format, declarations: Sequence[tuple[str, str]]) -> DataFrame:
        """Columns: id (of the row in the database), the declared columns as text, `_error`."""
        value = ", ".join(f"{column} {declared}" for column, declared in declarations)
        unit: dict[str, Any] = {"time_unit": "microseconds"} if format_ == "json" else {}
        consumed = Consumed.debezium(key="id int", value=value, format=format_, **unit)
        events = _events(connector, format_)
        numbers = [json.loads(key or b"")["id"] for key, _ in _events(connector, "json")]
        records = [
            (key, value, None, "t", 0, number, None) for number, (key, value) in zip(numbers, events, strict=True)
        ]
        parts: tuple[Part, ...] = ("key", "value")
        decoded = decode(
            self._session.createDataFrame(records, RECORDS), consumed, dict.fromkeys(parts, schemas_of("types"))
        )
        texts = [_text(column, declared).alias(column) for column, declared in declarations]
        return decoded.select(F.col("_offset").alias("id"), *texts, "_error")


def _declared(format_: Format, kind: str, setting: str, declare: str, written: str) -> tuple[str, str]:
    """What a row of the page declares for a format, and what is in the table then."""
    of_avro = IN_AVRO.get((_code(kind), _code(setting))) if format_ == "avro" else None
    return of_avro or (_code(declare), _code(written))


def _text(column: str, declared: str) -> Column:
    if declared == "binary":
        return F.hex(column)
    if declared.startswith("map<"):  # a map of Avro has no order
        return F.map_from_entries(F.array_sort(F.map_entries(column))).cast("string")
    if declared == "array<binary>":
        return F.transform(column, lambda one: F.hex(one)).cast("string")
    return F.col(column).cast("string")


@pytest.fixture(scope="module")
def decoded(engine: Engine) -> Iterator[Decoded]:
    session = engine.session()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    yield Decoded(session)
    session.stop()


def _same(text: str, kind: str, decoded: str) -> bool:
    """Whether a text of PostgreSQL and one of Spark are the same value."""
    if kind.startswith("numeric"):
        return Decimal(text) == Decimal(decoded)
    if kind in ("real", "double precision"):
        return float(text) == float(decoded)
    if kind == "bytea":
        return text.removeprefix(r"\x").upper() == decoded
    if kind == "timestamp with time zone":
        return text.removesuffix("+00") == decoded
    return text == decoded


SAME = re.compile(
    r"boolean|smallint|integer|bigint|real|double precision|numeric(\(\d+,\d+\))?|text|citext|json|jsonb|uuid|date"
)
"""Types of which every value must be the same in the database and in the table, if it is not in quarantine."""
ALSO_SAME = ("mood", "positive", "bytea", "timestamp without time zone", "timestamp with time zone", "cidr", "macaddr")


@pytest.mark.parametrize("row", TYPES, ids=lambda row: f"{_code(row[0])} {_code(row[1])}")
def test_a_type(decoded: Decoded, row: Cells) -> None:
    kind, setting, which, arrives, declare, written, note = row
    column = _column(_code(kind))
    connectors = _connectors(_code(setting))
    assert connectors
    [json_, *schema] = re.findall("`([^`]*)`", arrives)
    for connector in connectors:
        arrived = _arrived(connector, column)[1]
        assert arrived[0] == json_.replace(r"\|", "|")
        assert connector != connectors[0] or arrived[1] == "".join(schema)
        for format_ in ("json", *OTHERS) if which == "any" else OTHERS:
            if format_ == "avro" and connector not in SCRIPTS["types"].avro:
                continue
            declared, said = _declared(format_, kind, setting, declare, written)
            found = decoded.type(connector, format_, column, declared)
            assert found[1] == (said, None), format_
            if (format_ == "avro" and (_code(kind), _code(setting)) in IN_AVRO) or declared == "bigint":
                continue
            if not note and (SAME.fullmatch(_code(kind)) or _code(kind) in ALSO_SAME):
                for number, text in ((number, its[column]) for number, its in _database().items()):
                    value, error = found[number]
                    if error is None and text not in (None, "NaN"):  # the table below says what becomes of NaN
                        assert value is not None
                        assert _same(text, _code(kind), value), (connector, format_, number)


@pytest.mark.parametrize("number", range(len(VALUES)), ids=lambda number: " ".join(VALUES[number][:3]))
def test_a_value(decoded: Decoded, number: int) -> None:
    text, declaration, setting, arrives, becomes = VALUES[number]
    column = _code(declaration).split(" ")[0]
    wanted = None if _code(text) == "NULL" else _code(text)
    candidates = [row for row, its in _database().items() if its[column] == wanted]
    if wanted is None:
        candidates = [2]  # the row of nulls
    assert candidates, f"no row has {wanted} in {column}"
    for connector in _connectors(_code(setting)):
        assert _arrived(connector, column)[candidates[0]][0] == _code(arrives)
    value, error = decoded.value(number)[candidates[0]]
    if becomes.startswith("quarantine"):
        assert error is not None
        assert error.startswith(f"{column} is declared "), error
    else:
        assert (value or "NULL", error) == (_code(becomes), None)


def test_every_type_that_was_recorded_has_a_row() -> None:
    columns = {_column(_code(kind)) for kind, *_ in TYPES}
    assert columns == {name for name in _types() if name not in ("id", "t_default")}
