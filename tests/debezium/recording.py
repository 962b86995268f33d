"""Scripts of SQL, and the recordings of what Debezium made of them."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from spark.serdes.schemas import Schema, Schemas

HERE = Path(__file__).parent
RECORDED = HERE / "recorded"

COMMON = {
    "tombstones.on.delete": "true",
    "skipped.operations": "none",  # by default the connector leaves out truncates
    "publication.autocreate.mode": "disabled",  # two connectors that make one at once fail: the recorder makes it
    "hstore.handling.mode": "map",
}
SHOP = COMMON | {
    "signal.data.collection": "public.debezium_signal",
    "table.exclude.list": "public.debezium_signal",
    "heartbeat.interval.ms": "200",
    "incremental.snapshot.chunk.size": "10",
}

Format = Literal["json", "json_with_schemas", "avro"]


@dataclass(frozen=True)
class Script:
    """What is recorded of a script.

    Args:
        tables: the tables whose rows are recorded after each statement.
        connectors: the connectors by name, with their settings.
        avro: those whose records are written in Avro too.
        flattened: by connector, settings of `ExtractNewRecordState`; its records are `<connector>_flattened`.
        converter: settings of every converter.
    """

    tables: Sequence[str]
    connectors: Mapping[str, Mapping[str, str]]
    avro: Sequence[str] = ()
    flattened: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    converter: Mapping[str, str] = field(default_factory=dict)


SCRIPTS = {
    "shop": Script(
        tables=("customers", "orders", "accounts"),
        connectors={
            "precise": SHOP
            | {
                "decimal.handling.mode": "precise",
                "time.precision.mode": "adaptive",
                "provide.transaction.metadata": "true",
            },
            "string": SHOP | {"decimal.handling.mode": "string", "time.precision.mode": "adaptive_time_microseconds"},
        },
        avro=("precise",),
        flattened={"string": {"delete.tombstone.handling.mode": "rewrite", "add.fields": "op,source.ts_ms"}},
        # By default a null in a column with a default arrives as the default, which nothing tells from a value.
        converter={"replace.null.with.default": "false"},
    ),
    "types": Script(
        tables=("types",),
        connectors={
            "precise": COMMON | {"decimal.handling.mode": "precise", "time.precision.mode": "adaptive"},
            "string": COMMON
            | {
                "decimal.handling.mode": "string",
                "time.precision.mode": "adaptive_time_microseconds",
                "hstore.handling.mode": "json",
                "interval.handling.mode": "string",
                "binary.handling.mode": "base64",
            },
            "double": COMMON
            | {"decimal.handling.mode": "double", "time.precision.mode": "connect", "binary.handling.mode": "hex"},
            "isostring": COMMON | {"decimal.handling.mode": "string", "time.precision.mode": "isostring"},
        },
        avro=("precise", "string", "double"),
    ),
}


@dataclass(frozen=True)
class Block:
    """A block of a script. With the flag `heartbeat` the recorder waits for one, with `quiet` until nothing arrives."""

    name: str
    sql: str
    flags: Sequence[str]


@dataclass(frozen=True)
class Event:
    """A record of Kafka as the connector and a converter wrote it. Without a value it is a tombstone."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]


@dataclass(frozen=True)
class Registered:
    """A version of a subject in the registry of the recording. Another registry gives the schema another id."""

    subject: str
    version: int
    id: int
    schema: str


@dataclass(frozen=True)
class Table:
    """The rows of a table after a statement, as PostgreSQL writes values as text; `types` are its own, by column."""

    types: Mapping[str, str]
    rows: Sequence[Mapping[str, str | None]]


@dataclass(frozen=True)
class Statement:
    """What a statement, or the first snapshot, did: its events by connector, and the tables afterwards."""

    name: str
    sql: str
    tables: Mapping[str, Table]
    recorded: Mapping[str, Sequence[Mapping[str, Any]]]
    schemas: Sequence[str]
    headers: Sequence[str]

    def events(self, connector: str, format_: Format) -> list[Event]:
        """The records of a connector in a format, in their order; of every topic."""
        return [self._event(event, format_) for event in self.recorded[connector]]

    def _event(self, event: Mapping[str, Any], format_: Format) -> Event:
        key, value = (self._bytes(event[part], format_) for part in ("key", "value"))
        # Kafka Connect writes headers as text, whatever the converter of keys and values, unless it is told otherwise.
        headers = [(name, text.encode()) for name, text in json.loads(self.headers[event["headers"]])]
        return Event(event["topic"], key, value, headers)

    def _bytes(self, part: Mapping[str, Any] | None, format_: Format) -> bytes | None:
        if part is None:
            return None
        if format_ == "avro":
            return base64.b64decode(part["avro"])
        text: str = part["json"]
        if format_ == "json_with_schemas":
            text = f'{{"schema":{self.schemas[part["schema"]]},"payload":{text}}}'
        return text.encode()


def script(name: str) -> tuple[str, list[Block]]:
    """The set-up of a script, before the connectors start, and its blocks; each begins with a line `--- its name`."""
    parts = re.split(r"^--- (.+?)(?: \[(\w+)\])?$", (HERE / f"{name}.sql").read_text(), flags=re.MULTILINE)
    blocks = list(zip(parts[1::3], parts[2::3], parts[3::3], strict=True))
    return blocks[0][2], [Block(name, sql.strip(), (flag,) if flag else ()) for name, flag, sql in blocks[1:]]


@cache
def recording(name: str) -> list[Statement]:
    """The recording of a script: the first snapshot, then its statements in their order."""
    texts: list[str] = []
    schemas: list[str] = []
    headers: list[str] = []
    statements = []
    for found in _lines(name)[:-1]:
        texts += found["texts"]
        schemas += found["schemas"]
        headers += found["headers"]
        tables = {table: _table(rows, texts) for table, rows in found["tables"].items()}
        statements.append(Statement(found["statement"], found["sql"], tables, found["events"], schemas, headers))
    return statements


def registered(name: str) -> list[Registered]:
    """The schemas that the records in Avro of a recording name, by id, each registered before the first of them."""
    return [Registered(**one) for one in _lines(name)[-1]["registry"]]


def schemas_of(name: str, subject: str = "") -> Schemas:
    """The recorded schemas of a subject; of all without one."""
    return Schemas(
        {one.id: Schema(one.id, "AVRO", one.schema) for one in registered(name) if subject in ("", one.subject)}
    )


def _lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (RECORDED / f"{name}.jsonl").read_text().splitlines()]


def _table(found: Mapping[str, Any], texts: Sequence[str]) -> Table:
    types = dict(found["columns"])
    cells = [[texts[cell] if isinstance(cell, int) else cell for cell in row] for row in found["rows"]]
    return Table(types, [dict(zip(types, row, strict=True)) for row in cells])
