"""Where our tables differ from Kafka's, record by record; known divergences of event times are left out.

Tables are compared, not messages: after every record, each table must be the fold of what Kafka emitted so far. So a
tombstone for an absent key and a row sent again count for nothing on either side, and everything else counts.
Event times are compared in the rows that a single record changed; a tombstone has none here.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.conformance.cases import EMPTIED, NEWEST, RIGHT_ALONE, TOMBSTONE, topology
from tests.conformance.replay import replayed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark.topology.topology import Table
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


def compared(
    session: SparkSession,
    kinds: Sequence[Kind],
    worlds: Sequence[World],
    answer: Answer,
    plays: Sequence[Play],
    advanced: Callable[[], None] = lambda: None,
) -> Compared:
    """Replay worlds, and hold every state of every kind's table, and of the topics', against Kafka's.

    `advanced` is called after each batch.
    """
    found = Compared()
    asked = topology(kinds)
    seen = replayed(session, asked, plays, advanced)
    by_name = {kind.name: kind for kind in kinds}
    for table in asked.tables:
        kind = by_name.get(table.name)  # none for a topic's own table, where nothing differs
        histories = _histories(kind, table, worlds, answer[table.name], found)
        for one in seen:
            _compare(kind, table.name, worlds[one.play.world], one, histories[one.play.world], found)
    return found


def _compare(kind: Kind | None, table: str, world: World, seen: Seen, kafka: list[State], found: Compared) -> None:
    states, ends = seen.tables[table], (0, *seen.play.ends)
    for batch, after in enumerate(seen.play.ends, start=1):
        before = ends[batch - 1]
        ours, theirs = states[batch], kafka[after]
        for key in sorted(ours.keys() | theirs.keys(), key=repr):
            mine, other = ours.get(key), theirs.get(key)
            found.rows += 1
            if mine == other:
                continue
            if mine is not None and other is not None and mine[0] == other[0]:
                changed = states[batch - 1].get(key) != mine or kafka[before].get(key) != other
                if after > before + 1 or not changed:
                    continue  # the event time is not that of one record, or an earlier step told of it
                known = _known_time(kind, world[before], mine[1], other[1])
                if known is not None:
                    found.known[known] += 1
                    continue
            found.differences.append(Difference(seen.play.world, after, table, key, mine, other))


def _known_time(kind: Kind | None, record: Record, ours: int, kafka: int) -> str | None:
    """The divergence that explains why the event time after a record is another one, if any does."""
    if kind is None:
        return None
    tombstone = f"{record.topic} tombstone" if record.value is None else record.topic
    names = kind.times.get(record.topic, kind.times.get(tombstone, ()))
    explained = {
        RIGHT_ALONE: kafka in (record.timestamp, min(ours, kafka)),
        # A record may also make a row go that a later join looked up: that tombstone has the later of two times.
        TOMBSTONE: kafka == record.timestamp or kafka > ours,
        NEWEST: kafka > ours,
    }
    return next((name for name in names if explained[name]), None)


def _histories(
    kind: Kind | None, table: Table, worlds: Sequence[World], emitted: Sequence[Emitted], found: Compared
) -> list[list[State]]:
    """Of every world, Kafka's table after 0, 1, 2 ... records; emptied groups, a known divergence, are left out."""
    by_step: dict[tuple[int, int], list[Emitted]] = defaultdict(list)
    for record in emitted:
        by_step[record.world, record.step].append(record)
    columns = [column.name for column in table.plan.columns]
    histories = []
    for world, records in enumerate(worlds):
        history: list[State] = [{}]
        for step in range(len(records)):
            state = dict(history[-1])
            for record in by_step[world, step]:
                state.pop(record.key, None)
                if record.row is None:
                    continue
                row = dict(zip(columns, (*record.key, *record.row[0]), strict=True))
                if kind is not None and any(row[name] == 0 for name in kind.counts):
                    found.known[EMPTIED] += 1
                else:
                    state[record.key] = record.row
            history.append(state)
        histories.append(history)
    return histories


def told(world: World, difference: Difference) -> Iterator[str]:
    """A difference to read: the records up to it, then the two rows."""
    yield f"table {difference.table!r}, key {difference.key[1:]}"
    for at, record in enumerate(world[: difference.after], start=1):
        value = "null" if record.value is None else dict(record.value)
        yield f"  {at:2} {record.topic} {dict(record.key)} = {value} @{record.timestamp}"
    yield f"- Kafka: {_row(difference.kafka)}"
    yield f"+ ours:  {_row(difference.ours)}"


def _row(row: Row | None) -> str:
    return "no row" if row is None else f"{row[0]} @{row[1]}"
