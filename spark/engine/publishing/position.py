"""The position of a published topic: how much of a table it has. It is stored in Kafka alone."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

from spark.engine.log.stored_table import StoredTable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark.engine.log.stored_table import State
    from spark.engine.ports import Kafka
    from spark.topology.topology import Table, Topology

RECOMMIT_VERSIONS = 100  # versions without a change until the position is committed again, before the log loses it
RECOMMIT_MS = 86_400_000  # until a position is committed again: group offsets expire after seven days

KEY_FORMAT_SINCE = 2
"""The first form of a position's JSON that tells the format of keys, which is JSON if it is left out."""

HEADER = "tidetable."
"""The prefix of the names of our headers."""


@dataclass(frozen=True)
class PublishedPosition:
    """The position of a topic: it has `ordinal` records of a version, or all if `done`. Also the place of a record.

    `id` is the Delta table's, `key` its key columns (empty: unknown). `whole`: the topic began with this version, so
    its records are all rows, not only those that changed. `at` is the time when the position was committed, in
    milliseconds since 1970. `skipped` counts the records that the topic refused, and that `skip_refused` left out.
    `key_schema_id` is the id, in a registry, of the schema by which the topic's keys are written; None without one.
    `key_format` is the format of the keys; None: unknown, because a version committed the position that wrote none.
    """

    id: str
    epoch: str
    version: int
    ordinal: int = 0
    done: bool = False
    whole: bool = False
    key: tuple[str, ...] = ()
    at: int = field(default=0, compare=False)
    skipped: int = 0
    key_schema_id: int | None = None
    key_format: str | None = None

    def to_json(self) -> str:
        """Return the JSON that an offset's metadata holds.

        Versions that know no schemas, or no formats of keys, can read a position without a schema whose keys are JSON.
        They fail on others, of which they would lose a part.
        """
        fields = asdict(self)
        if self.key_schema_id is None:
            del fields["key_schema_id"]
        if self.key_format in (None, "json"):
            del fields["key_format"]
        form = 1 if self.key_format is None else KEY_FORMAT_SINCE
        return json.dumps({"tidetable": form, **fields}, separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> PublishedPosition | None:
        """Return the position in an offset's metadata; None if it is not ours, as after a reset of the group."""
        try:
            fields = json.loads(text)
            form = fields["tidetable"]
            del fields["tidetable"]
        except (ValueError, TypeError, KeyError):
            return None
        if form >= KEY_FORMAT_SINCE:
            fields.setdefault("key_format", "json")
        return PublishedPosition(**{**fields, "key": tuple(fields["key"])})

    def headers(self, table: str) -> dict[str, str]:
        """Return the headers of the record at this place."""
        headers = {"table": table, "id": self.id, "epoch": self.epoch}
        headers |= {"version": str(self.version), "ordinal": str(self.ordinal)}
        headers |= {name: "true" for name, holds in (("whole", self.whole), ("last", self.done)) if holds}
        headers |= {"skipped": str(self.skipped)} if self.skipped else {}
        headers |= {} if self.key_schema_id is None else {"key_schema_id": str(self.key_schema_id)}
        headers |= {} if self.key_format is None else {"key_format": self.key_format}
        return {f"{HEADER}{name}": text for name, text in headers.items()}

    @staticmethod
    def after_record(headers: Mapping[str, str]) -> PublishedPosition:
        """Return the position directly after a record with these headers."""
        record = {name.removeprefix(HEADER): text for name, text in headers.items()}
        ordinal, done, skipped = int(record["ordinal"]) + 1, "last" in record, int(record.get("skipped", "0"))
        schema = record.get("key_schema_id")
        return PublishedPosition(
            record["id"],
            record["epoch"],
            int(record["version"]),
            ordinal,
            done,
            "whole" in record,
            skipped=skipped,
            key_schema_id=None if schema is None else int(schema),
            key_format=record.get("key_format"),
        )


def group(topology: Topology, target: Table) -> str:
    """Return the consumer group that has a table's position; also the transactional id of its one producer."""
    return f"tidetable/{topology.name}/{target.name}"


def published_position(
    kafka: Kafka, topology: Topology, target: Table, stable: bool = False
) -> PublishedPosition | None:
    """Return the position of a table's topic, from the group's offset; None if there is none, or it has expired.

    `stable`: wait until a transaction that is being committed has ended.
    """
    assert target.topic is not None, "only what has a topic is published"
    text = kafka.published(group(topology, target), target.topic, stable)
    return None if text is None else PublishedPosition.from_json(text)


def published_positions(kafka: Kafka, topology: Topology) -> dict[str, PublishedPosition | None]:
    """Return the position of every topic that a topology publishes to, by the table's name."""
    return {
        table.name: published_position(kafka, topology, table) for table in topology.tables if table.topic is not None
    }


def must_recommit(sent: PublishedPosition, now: int) -> bool:
    """Return whether a position must be committed again, before the broker expires it; `now` is in milliseconds."""
    return now - sent.at >= RECOMMIT_MS


def unpublished_versions(table: StoredTable, sent: PublishedPosition | None) -> int:
    """Return how many versions of a table its topic lacks; 1 for an empty topic, which begins with the whole table."""
    state = table.state()
    if state is None or state.position.n == 0 or (sent is not None and has_all(sent, state)):
        return 0
    if sent is None or sent.id != state.id:
        return 1
    return len(table.changed_versions(sent.version, state.own)) + (not sent.done)


def has_all(sent: PublishedPosition, state: State) -> bool:
    """Return whether a topic has all rows of a table, up to our newest commit."""
    return sent.done and sent.id == state.id and min(state.data_version, state.own) <= sent.version <= state.own


def position_after(tail: Mapping[int, Mapping[str, str]], exactly_once: bool) -> PublishedPosition | None:
    """Return the position of a topic from the headers of its newest records, by partition.

    Without transactions any record of the last batch may be missing: the position is the start of the oldest version.
    """
    newest = [PublishedPosition.after_record(headers) for headers in tail.values()]
    if exactly_once:
        return max(newest, key=lambda sent: (sent.version, sent.ordinal), default=None)
    least = min(newest, key=lambda sent: sent.version, default=None)
    return None if least is None else replace(least, ordinal=0, done=False)
