"""Where our tables differ from Kafka's, record by record; known divergences of event times are left out.

Tables are compared, not messages: after every record, each table must be the fold of what Kafka emitted so far. So a
tombstone for an absent key and a row sent again count for nothing on either side, and everything else counts.
Event times are compared in the rows that a single record changed; a tombstone has none here.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.conformance.cases import OUT
from tests.conformance.replay import replayed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.conformance.cases import Kind, Record, World
    from tests.conformance.oracle import Answer, Emitted, Key, Row, State
    from tests.conformance.replay import Play, Seen


@dataclass(frozen=True)
class Difference:
    """A row that is not the same, after so many records of a world."""

    world: int
    after: int
    table: str
    key: Key
    ours: Row | None
    kafka: Row | None


@dataclass
class Compared:
    """What a comparison found: differences nobody knew of, and how often each known one was met."""

    differences: list[Difference] = field(default_factory=list)
    known: Counter[str] = field(default_factory=Counter)
    rows: int = 0


def compared(session: SparkSession, kind: Kind, worlds: Sequence[World], answer: Answer, plays: Sequence[Play]) -> Compared:
    """Replay worlds, and hold every state of every table against Kafka's."""
    found = Compared()
    histories = {table: _histories(kind, table, worlds, answer[table], found) for table in answer}
    for seen in replayed(session, kind.topology, plays):
        for table, of_worlds in histories.items():
            _compare(kind, worlds[seen.play.world], seen, table, of_worlds[seen.play.world], found)
    return found


def _compare(kind: Kind, world: World, seen: Seen, table: str, kafka: list[State], found: Compared) -> None:
    states, ends = seen.tables[table], (0, *seen.play.ends)
    for batch, after in enumerate(seen.play.ends, start=1):
        ours, theirs, before = states[batch], kafka[after], ends[batch - 1]
        # Nothing but the record in between can have changed a row, so its event time is that of this step.
        alone = after == before + 1
        for key in sorted(ours.keys() | theirs.keys(), key=repr):
            mine, other = ours.get(key), theirs.get(key)
            found.rows += 1
            if mine is None or other is None or mine[0] != other[0]:
                found.differences.append(Difference(seen.play.world, after, table, key, mine, other))
            elif alone and mine != other:
                changed = states[batch - 1].get(key) != mine or kafka[before].get(key) != other
                known = _known_time(kind, world[before]) if table == OUT else None
                if changed and known is not None:
                    found.known[known] += 1
                elif changed:
                    found.differences.append(Difference(seen.play.world, after, table, key, mine, other))


def _known_time(kind: Kind, record: Record) -> str | None:
    tombstone = f"{record.topic} tombstone" if record.value is None else record.topic
    return kind.times.get(record.topic, kind.times.get(tombstone))


def _histories(
    kind: Kind, table: str, worlds: Sequence[World], emitted: Sequence[Emitted], found: Compared
) -> list[list[State]]:
    """Of every world, Kafka's table after 0, 1, 2 ... records."""
    by_step: dict[tuple[int, int], list[Emitted]] = defaultdict(list)
    for record in emitted:
        by_step[record.world, record.step].append(record)
    columns = [column.name for column in kind.topology.table(table).plan.columns]
    histories = []
    for world, records in enumerate(worlds):
        history: list[State] = [{}]
        for step in range(len(records)):
            state = dict(history[-1])
            for record in by_step[world, step]:
                state.pop(record.key, None)
                if record.row is None:
                    continue
                if table == OUT and _is_emptied(kind, dict(zip(columns, (*record.key, *record.row[0]), strict=True))):
                    found.known["emptied group"] += 1
                else:
                    state[record.key] = record.row
            history.append(state)
        histories.append(history)
    return histories


def _is_emptied(kind: Kind, row: dict[str, object]) -> bool:
    return any(row[name] == 0 for name in kind.counts)


def told(kind: Kind, world: World, difference: Difference) -> Iterator[str]:
    """A difference to read: the records up to it, then the two rows."""
    yield f"kind {kind.name!r}: table {difference.table!r}, key {difference.key[1:]}"
    for at, record in enumerate(world[: difference.after], start=1):
        value = "null" if record.value is None else dict(record.value)
        yield f"  {at:2} {record.topic} {dict(record.key)} = {value} @{record.timestamp}"
    yield f"- Kafka: {_row(difference.kafka)}"
    yield f"+ ours:  {_row(difference.ours)}"


def _row(row: Row | None) -> str:
    return "no row" if row is None else f"{row[0]} @{row[1]}"
