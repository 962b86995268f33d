"""Streams on Python dicts, one record at a time: what stream operators must emit, at which time, in which order.

Written a second time and without Spark, from the rules alone. Expressions are SQL text, and `meaning` has what each
means as a function of one record, or of a left and a right one, as in `tests.support.reference`. Null is None. Event
times are whole numbers, of microseconds; `_reached` is stream time at a record's place.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from spark.topology.nodes import Explode, Lookup, Node, Records, Select, StreamJoin, Union

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from tests.support.reference import Meaning, Row, Rows

Identity = tuple[str, int, int, int]
Queue = tuple[int, str, int]

TABLE, LEFT, RIGHT = 0, 1, 2
OURS = ("_timestamp", "_topic", "_partition", "_offset")


@dataclass
class Happened:
    """What one span brought: records, those that were dropped with the reason, and stream time at its end."""

    emitted: list[Row] = field(default_factory=list)
    dropped: Counter[tuple[Identity, str]] = field(default_factory=Counter)
    time: int | None = None

    def drop(self, record: Row, reason: str) -> None:
        """A record that has no part."""
        self.dropped[identity(record), reason] += 1


def identity(record: Row) -> Identity:
    """What tells records apart."""
    return record["_topic"], record["_partition"], record["_offset"], record["_ordinal"]


def visited(queues: Mapping[Queue, Sequence[Row]]) -> list[tuple[int, Row]]:
    """The records of queues, which are (rank, topic, partition), in the order in which they are taken, with the rank.

    The next one is always the record with the smallest time among those that are first in their queues. One without a
    time waits for nothing. Of equal times the smaller queue goes first.
    """
    waiting = {queue: deque(records) for queue, records in queues.items() if records}
    order = []
    while waiting:
        queue = min(waiting, key=lambda queue: (_since(waiting[queue][0]["_timestamp"]), queue))
        order.append((queue[0], waiting[queue].popleft()))
        if not waiting[queue]:
            del waiting[queue]
    return order


def _since(time: int | None) -> tuple[int, ...]:
    return () if time is None else (time,)


def in_queues(span: Sequence[Row], sources: Mapping[int, Iterable[Node]]) -> dict[Queue, list[Row]]:
    """The records of a span in the queues of an operator whose sources, by rank, are these nodes."""
    queues: dict[Queue, list[Row]] = {}
    for rank, nodes in sources.items():
        topics = {topic for node in nodes for topic in topics_of(node)}
        for record in span:
            if record["_topic"] in topics:
                queues.setdefault((rank, record["_topic"], record["_partition"]), []).append(record)
    return queues


def sources_of(plan: Node) -> dict[int, list[Node]]:
    """The nodes whose records an operator takes in one order, by rank."""
    if isinstance(plan, StreamJoin):
        return {LEFT: [plan.left], RIGHT: [plan.right]}
    return {TABLE: [told for _, told in told_in(plan)], LEFT: [plan]}


def topics_of(node: Node) -> set[str]:
    """The topics whose records drive a stream."""
    match node:
        case Records(source=source):
            return {source.table.removeprefix("_landing/")}
        case Union(left=left, right=right) | StreamJoin(left=left, right=right):
            return topics_of(left) | topics_of(right)
        case Select(source=source) | Explode(source=source) | Lookup(left=source):
            return topics_of(source)
        case _:
            raise TypeError(f"{node} is no stream")


def told_in(plan: Node) -> list[tuple[Node, Node]]:
    """The tables that a plan sees as of a record's place, each with the stream it holds the newest records of."""
    match plan:
        case Lookup(left=left, right=right, as_of=as_of):
            return told_in(left) + ([] if as_of is None else [(table_of(right), as_of)])
        case Select(source=source) | Explode(source=source):
            return told_in(source)
        case Union(left=left, right=right):
            return told_in(left) + told_in(right)
        case _:
            return []


def table_of(right: Node) -> Node:
    """What the right side of a lookup is a view of."""
    return table_of(right.source) if isinstance(right, Select) else right


@dataclass
class Versions:
    """All that a table's records said of each key, and the table's own time: the greatest timestamp among them."""

    of: dict[tuple[Any, ...], list[Row]] = field(default_factory=dict)
    time: int | None = None

    def then(self, key: tuple[Any, ...], at: int, history: int) -> Row | None:
        """The row of a key at a time. What is older than the history is forgotten, but for the newest."""
        known = [version for version in self.of.get(key, ()) if version["_timestamp"] is not None]
        found = [version for version in known if version["_timestamp"] <= at]
        forgotten = self.time is not None and at < self.time - 1000 * history and len(found) < len(known)
        if forgotten or not found:
            return None
        newest = max(found, key=lambda version: [version[name] for name in (*OURS, "_ordinal")])
        return None if newest["_deleted"] else newest


@dataclass(frozen=True)
class Lookups:
    """What tables hold now, what versioned ones ever held, and what expressions mean."""

    tables: Mapping[Node, Rows]
    meaning: Meaning
    versions: dict[Node, Versions] = field(default_factory=dict)

    def tell(self, table: Node, told: Node, record: Row) -> None:
        """Let a table take in a record of its stream."""
        for change in self.become(told, record, lambda *_: None):
            key = tuple(change[name] for name in table.key)
            if None not in key:
                self.tables[table].pop(key, None)
                if not change["_deleted"]:
                    self.tables[table][key] = change
                versions = self.versions.setdefault(table, Versions())
                versions.of.setdefault(key, []).append(change)
                versions.time = later(versions.time, change["_timestamp"])

    def find(self, join: Lookup, key: tuple[Any, ...], at: int | None) -> Row | None:
        """The row that a record of some time looks up."""
        table = table_of(join.right)
        if join.history is None:
            return self._viewed(join.right, self.tables[table].get(key))
        assert at is not None
        return self._viewed(join.right, self.versions.get(table, Versions()).then(key, at, join.history))

    def _viewed(self, right: Node, row: Row | None) -> Row | None:
        """A row of a table in a view of it."""
        if row is None or not isinstance(right, Select):
            return row
        below = self._viewed(right.source, row)
        if below is None or not self._kept(right, below):
            return None
        return below | {name: self.meaning[text](below, below) for name, text in right.select}

    def become(self, node: Node, record: Row, drop: Callable[[Row, str], None]) -> list[Row]:
        """What a stream has of one record of a topic."""
        match node:
            case Records():
                return [record | {"_ordinal": 0}] if record["_topic"] in topics_of(node) else []
            case Select():
                found = self.become(node.source, record, drop)
                return [self._mapped(node, one) for one in found if self._kept(node, one)]
            case Union():
                left, right = (self.become(side, record, drop) for side in (node.left, node.right))
                return [
                    one | {"_ordinal": 2 * one["_ordinal"] + side}
                    for side, found in enumerate((left, right))
                    for one in found
                ]
            case Explode():
                return [
                    one | {node.column: element, "_ordinal": _pair(_from_zero(one["_ordinal"]), number)}
                    for one in self.become(node.source, record, drop)
                    for number, element in enumerate(one[node.column] or ())
                ]
            case Lookup():
                pairs = [self.look_up(node, one, drop) for one in self.become(node.left, record, drop)]
                return [one for one in pairs if one is not None]
            case _:
                raise TypeError(f"{node} is no stream of single records")

    def _kept(self, node: Select, row: Row) -> bool:
        return node.where is None or self.meaning[node.where](row, row) is True

    def _mapped(self, node: Select, record: Row) -> Row:
        """A record without a value has none, whatever is computed."""
        return record | {
            name: None if record["_deleted"] and name not in node.key else self.meaning[text](record, record)
            for name, text in node.select
        }

    def key(self, node: Lookup, record: Row) -> tuple[Any, ...]:
        """What a record looks up."""
        return tuple(self.meaning[text](record, record) for text in node.on)

    def look_up(self, node: Lookup, record: Row, drop: Callable[[Row, str], None]) -> Row | None:
        """A record with what it finds now; None where it is dropped."""
        if record["_deleted"]:
            drop(record, "null value")
            return None
        if node.history is not None and record["_timestamp"] is None:
            drop(record, "no timestamp")
            return None
        key = self.key(node, record)
        if None in key and node.how == "inner":
            drop(record, "null key")
            return None
        row = None if None in key else self.find(node, key, record["_timestamp"])
        if row is None and node.how == "inner":
            return None
        other = row if row is not None else dict.fromkeys((*(column.name for column in node.right.columns), *OURS))
        return record | {name: self.meaning[text](record, other) for name, text in node.select}


def _from_zero(number: int) -> int:
    return 2 * number if number >= 0 else -2 * number - 1


def _pair(one: int, other: int) -> int:
    """A number that tells two, while both are small."""
    assert one < 2**42
    assert other < 2**16
    return one << 16 | other


def simulated(
    plan: Node, spans: Sequence[Sequence[Row]], pins: Sequence[Mapping[Node, Rows]], meaning: Meaning
) -> list[Happened]:
    """What every span brings to a stream, when one is processed after the other.

    A record is a source's, in the order of offsets within each partition. `pins` holds, for every span, the tables
    that are read at its end.
    """
    if isinstance(plan, StreamJoin):
        return Joined(plan, meaning).all(spans)
    if isinstance(plan, Lookup) and plan.grace is not None:
        return Patient(plan, meaning).all(spans)
    told = told_in(plan)
    tables: dict[Node, Rows] = {table: {} for table, _ in told}
    versions: dict[Node, Versions] = {}
    time, found = None, []
    for span, pinned in zip(spans, pins, strict=True):
        lookups, here = Lookups({**pinned, **tables}, meaning, versions), Happened()
        for rank, record in visited(in_queues(span, sources_of(plan))):
            if rank == TABLE:
                for table, stream in told:
                    lookups.tell(table, stream, record)
            else:
                time = later(time, record["_timestamp"])
                here.emitted += [one | {"_reached": time} for one in lookups.become(plan, record, here.drop)]
        here.time = time
        found.append(here)
    return found


def later(time: int | None, other: int | None) -> int | None:
    """The greater of two times, either of which may be unknown."""
    return max((one for one in (time, other) if one is not None), default=None)


class Patient:
    """A stream with a versioned table, each record of which waits until stream time reaches its own and the grace."""

    def __init__(self, join: Lookup, meaning: Meaning) -> None:
        assert join.grace is not None
        self.join, self.grace = join, 1000 * join.grace
        self.told = told_in(join)
        self.lookups = Lookups({table: {} for table, _ in self.told}, meaning)
        self.time: int | None = None
        self.waiting: list[Row] = []
        self.here = Happened()

    def all(self, spans: Sequence[Sequence[Row]]) -> list[Happened]:
        """What every span brings."""
        return [self.span(span) for span in spans]

    def span(self, span: Sequence[Row]) -> Happened:
        """What one span brings."""
        self.here = Happened()
        for rank, record in visited(in_queues(span, sources_of(self.join))):
            if rank == TABLE:
                for table, stream in self.told:
                    self.lookups.tell(table, stream, record)
                continue
            self.time = later(self.time, record["_timestamp"])
            for one in self.lookups.become(self.join.left, record, self.here.drop):
                (self.waiting.append if self.waits(one) else self.look_up)(one)
            over = [one for one in self.waiting if not self.waits(one)]
            self.waiting = [one for one in self.waiting if self.waits(one)]
            for one in over:
                self.look_up(one)
        self.here.time = self.time
        return self.here

    def waits(self, record: Row) -> bool:
        """Whether stream time has yet to reach a record's time and the grace; without a key there is no use."""
        if record["_deleted"] or record["_timestamp"] is None or None in self.lookups.key(self.join, record):
            return False
        return self.time is None or record["_timestamp"] + self.grace > self.time

    def look_up(self, record: Row) -> None:
        """Emit a record with what it finds now."""
        found = self.lookups.look_up(self.join, record, self.here.drop)
        if found is not None:
            self.here.emitted.append(found | {"_reached": self.time})


@dataclass
class Open:
    """A record that was accepted, until when a partner may come, and whether one did."""

    record: Row
    until: int
    paired: bool = False


class Joined:
    """Two streams, joined by the deterministic rules: one stream time, which decides what is late and what is over."""

    def __init__(self, join: StreamJoin, meaning: Meaning) -> None:
        self.join = join
        self.lookups = Lookups({}, meaning)
        self.time: int | None = None
        self.open: dict[int, list[Open]] = {LEFT: [], RIGHT: []}
        self.outer = {"inner": (), "left": (LEFT,), "outer": (LEFT, RIGHT)}[join.how]
        # A left record may be `after` earlier than its partner, a right one `before`.
        self.waits = {LEFT: max(join.after, 0), RIGHT: max(join.before, 0)}
        self.here = Happened()

    def all(self, spans: Sequence[Sequence[Row]]) -> list[Happened]:
        """What every span brings."""
        return [self.span(span) for span in spans]

    def span(self, span: Sequence[Row]) -> Happened:
        """What one span brings."""
        self.here = Happened()
        for side, record in visited(in_queues(span, sources_of(self.join))):
            self.time = later(self.time, record["_timestamp"])
            self.close()
            for one in self.lookups.become(self.node(side), record, self.here.drop):
                self.arrive(side, one)
        self.here.time = self.time
        self.here.emitted = numbered(self.here.emitted)
        return self.here

    def node(self, side: int) -> Node:
        """The stream on a side."""
        return self.join.left if side == LEFT else self.join.right

    def close(self) -> None:
        """Let go of the records that stream time has passed; the lonely ones of an outer side have their row now."""
        assert self.time is not None or not any(self.open.values())
        for side, records in self.open.items():
            over = [one for one in records if self.time is not None and one.until < self.time]
            for one in over:
                if side in self.outer and not one.paired:
                    self.alone(side, one.record, one.until + 1)
                records.remove(one)

    def arrive(self, side: int, record: Row) -> None:
        """Take a record in: it is dropped, or alone at once, or meets those of the other side."""
        if record["_deleted"]:
            return self.here.drop(record, "null value")
        if record["_timestamp"] is None:
            return self.here.drop(record, "no timestamp")
        if None in self.key(side, record):
            return self.alone(side, record, self.time) if side in self.outer else self.here.drop(record, "null key")
        new = Open(record, record["_timestamp"] + 1000 * (self.waits[side] + self.join.grace))
        if self.time is not None and new.until < self.time:
            return self.here.drop(record, "late")
        for other in self.open[LEFT + RIGHT - side]:
            left, right = (new, other) if side == LEFT else (other, new)
            if self.match(left.record, right.record):
                left.paired = right.paired = True
                self.pair(side, left.record, right.record)
        self.open[side].append(new)
        return None

    def key(self, side: int, record: Row) -> tuple[Any, ...]:
        """What is equal in a pair."""
        return tuple(record[name] for name in self.node(side).key)

    def match(self, left: Row, right: Row) -> bool:
        """Whether two records are a pair: the right one is from `before` earlier to `after` later."""
        apart = right["_timestamp"] - left["_timestamp"]
        near = -1000 * self.join.before <= apart <= 1000 * self.join.after
        return near and self.key(LEFT, left) == self.key(RIGHT, right)

    def pair(self, side: int, left: Row, right: Row) -> None:
        """Emit a pair, at the place of the one that came last."""
        trigger, partner = (left, right) if side == LEFT else (right, left)
        place = {name: trigger[name] for name in ("_topic", "_partition", "_offset")}
        found = self.chosen(left, right) | place | {"_timestamp": max(left["_timestamp"], right["_timestamp"])}
        order = (2 * _from_zero(trigger["_ordinal"]) + side - LEFT, (partner["_timestamp"], identity(partner)))
        self.here.emitted.append(found | {"_reached": self.time, "_ordinal": order})

    def alone(self, side: int, record: Row, reached: int | None) -> None:
        """Emit a record without a partner."""
        found = self.chosen(record, None) if side == LEFT else self.chosen(None, record)
        ordinal = -2 * _from_zero(record["_ordinal"]) - side
        self.here.emitted.append(
            found | {name: record[name] for name in OURS} | {"_reached": reached, "_ordinal": ordinal}
        )

    def chosen(self, left: Row | None, right: Row | None) -> Row:
        """The columns of a row, which says of which records it is made."""
        sides = {"_left": left and identity(left), "_right": right and identity(right), "_deleted": False}
        one = left if left is not None else dict.fromkeys(column.name for column in self.join.left.columns)
        other = right if right is not None else dict.fromkeys(column.name for column in self.join.right.columns)
        found = {name: self.lookups.meaning[text](one, other) for name, text in self.join.select}
        keys = zip(self.join.left.key, self.join.right.key, strict=True)
        known = {ours: one[ours] if left is not None else other[theirs] for ours, theirs in keys if ours in found}
        return found | known | sides


def numbered(rows: list[Row]) -> list[Row]:
    """Rows where the pairs that one record made are numbered from 1, in the order of its partners."""
    made: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if not isinstance(row["_ordinal"], int):
            trigger, _ = row["_ordinal"]
            made.setdefault((row["_topic"], row["_partition"], row["_offset"], trigger), []).append(row)
    numbers = {
        id(row): _pair(trigger, number)
        for (*_, trigger), pairs in made.items()
        for number, row in enumerate(sorted(pairs, key=lambda row: row["_ordinal"]), 1)
    }
    return [row | {"_ordinal": numbers.get(id(row), row["_ordinal"])} for row in rows]
