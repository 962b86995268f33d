"""Delta logs written by hand: commits in any order of events, in milliseconds, without data files."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from spark.engine.log.position import ANCHOR, DEFINITION, Position

if TYPE_CHECKING:
    from collections.abc import Mapping

PROTOCOL = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
SCHEMA = {"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]}


@dataclass(frozen=True)
class Entry:
    """One commit: what it did, what Delta counted, and our position in it if it is ours."""

    operation: str = "WRITE"
    metrics: Mapping[str, int] = field(default_factory=dict)
    position: Position | None = None
    fenced: bool = True
    overwrites: bool = False
    anchor: Position | None = None
    """The anchor that this commit sets, as a table property."""


def created(anchor: Position) -> Entry:
    """The commit that makes a table."""
    return Entry("CREATE TABLE", anchor=anchor)


def appended(position: Position, rows: int) -> Entry:
    """A commit of ours that appended rows."""
    return Entry("WRITE", {"numOutputRows": rows}, position)


def merged(position: Position, inserted: int = 0, updated: int = 0, deleted: int = 0) -> Entry:
    """A commit of ours that merged rows."""
    counts = {"Inserted": inserted, "Updated": updated, "Deleted": deleted}
    return Entry("MERGE", {f"numTargetRows{verb}": count for verb, count in counts.items()}, position)


def write(
    path: str,
    *entries: Entry,
    table_id: str = "00000000-0000-4000-8000-000000000000",
    properties: Mapping[str, str] | None = None,
) -> str:
    """Write a log of these commits, and return the table's path; `properties` are further ones of the table."""
    log = Path(path) / "_delta_log"
    log.mkdir(parents=True)
    for version, entry in enumerate(entries):
        info: dict[str, object] = {
            "timestamp": 1_700_000_000_000 + version,
            "operation": entry.operation,
            "operationParameters": {"mode": "Overwrite"} if entry.overwrites else {},
            "operationMetrics": {name: str(count) for name, count in entry.metrics.items()},
        }
        if entry.position is not None:
            info["userMetadata"] = entry.position.to_json()
        actions: list[Mapping[str, object]] = [{"commitInfo": info}]
        if version == 0:
            actions.append(PROTOCOL)
        if entry.anchor is not None or version == 0:
            actions.append({"metaData": _metadata(entry.anchor, table_id, properties or {})})
        if entry.position is not None and entry.position.n > 0 and entry.fenced:
            actions.append({"txn": {"appId": entry.position.app_id, "version": entry.position.n}})
        text = "\n".join(json.dumps(action) for action in actions)
        (log / f"{version:020}.json").write_text(text)
    return path


def _metadata(anchor: Position | None, table_id: str, more: Mapping[str, str]) -> dict[str, object]:
    properties = ({} if anchor is None else {ANCHOR: anchor.to_json(), DEFINITION: "{}"}) | dict(more)
    return {
        "id": table_id,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(SCHEMA),
        "partitionColumns": [],
        "configuration": properties,
        "createdTime": 1_700_000_000_000,
    }
