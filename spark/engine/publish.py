"""Publish a stored table: send its changes to a topic, one record per changed key and version, each exactly once.

A new row of a key is a record, a deleted row is a tombstone, and every record of a stream is a record. Records are sent
in the order of (version, typed key), those of a stream in the order of time. Every transaction ends with a position in
a consumer group of the table, on partition 0 of the topic: the version is the offset, and the rest of the position is
its metadata. So records and position are committed together or not at all. Only Kafka stores how much of a table a
topic has: steps of the table never wait for it. A producer that opens the table's transactional id fences the former.

A large version takes several transactions. The records of a version depend on the table's log alone, so a restart
finds its place by counting them. A topic begins with the whole table, at its newest version. Group offsets expire, so
every record has the position in its headers too, and publishing reads it from the newest records of the topic then. If
newer records may have been removed, publishing stops.

Versions are published up to our newest commit; later changes by others follow after our next commit. Change feeds end
where a commit replaced a table's columns. The changes of that version, and of versions before it, are computed as the
difference of two versions.

With at-least-once processing an idempotent producer sends without transactions, and the position is committed after the
records: after a crash between the two, up to `BATCH` records are sent again. A second producer is not fenced.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Literal

from pyspark.errors import PySparkException
from pyspark.sql import Window
from pyspark.sql import functions as F

from spark.engine import position as positions
from spark.engine.changes import inserted, version_of
from spark.engine.definition import gaining
from spark.engine.errors import InputChanged, PlanChanged, RecordRefused, condition
from spark.engine.kept import keeping
from spark.engine.step import CHANGES_LOST
from spark.engine.stream import identity
from spark.operators.algebra import cols
from spark.operators.order import micros
from spark.serdes.serde import serde
from spark.topology.columns import WINDOW_BOUNDS

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Iterator, Mapping

    from pyspark.sql import Column, DataFrame, Row
    from pyspark.sql.types import DataType, StructType

    from spark.engine.doors import Doors, Kafka, Publisher
    from spark.engine.kept import Kept
    from spark.engine.position import Changed, State
    from spark.topology.topology import Table, Topology

BATCH = 10_000  # records of a transaction: many, to spread its fixed cost; not more, as its readers wait for its end
PAGE = 100_000  # rows fetched at once: the result of a query is in the engine's memory until it is fetched
FAR = 100  # versions without a change until the position is committed again, before the log loses its version
AGED = 86_400_000  # milliseconds until a position is committed again: group offsets expire after seven days

HEADER = "tidetable."
"""The prefix of the names of our headers."""


@dataclass(frozen=True)
class Sent:
    """The position of a topic: it has `ordinal` records of a version, or all if `done`. Also the place of a record.

    `id` is the Delta table's, `key` its key columns (empty: unknown). `whole`: the topic began with this version, so
    its records are all rows, not only those that changed. `at` is the time when the position was committed, in
    milliseconds since 1970. `skipped` counts the records that the topic refused, and that `skip_refused` left out.
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

    def to_json(self) -> str:
        """Return the JSON that an offset's metadata holds."""
        return json.dumps({"tidetable": 1, **asdict(self)}, separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> Sent | None:
        """Return the position in an offset's metadata; None if it is not ours, as after a reset of the group."""
        try:
            fields = json.loads(text)
            del fields["tidetable"]
        except (ValueError, TypeError, KeyError):
            return None
        return Sent(**{**fields, "key": tuple(fields["key"])})

    def headers(self, table: str) -> dict[str, str]:
        """Return the headers of the record at this place."""
        told = {"table": table, "id": self.id, "epoch": self.epoch}
        told |= {"version": str(self.version), "ordinal": str(self.ordinal)}
        told |= {name: "true" for name, holds in (("whole", self.whole), ("last", self.done)) if holds}
        told |= {"skipped": str(self.skipped)} if self.skipped else {}
        return {f"{HEADER}{name}": text for name, text in told.items()}

    @staticmethod
    def behind(headers: Mapping[str, str]) -> Sent:
        """Return the position directly after a record with these headers."""
        told = {name.removeprefix(HEADER): text for name, text in headers.items()}
        ordinal, done, skipped = int(told["ordinal"]) + 1, "last" in told, int(told.get("skipped", "0"))
        return Sent(told["id"], told["epoch"], int(told["version"]), ordinal, done, "whole" in told, skipped=skipped)


@dataclass(frozen=True)
class Published:
    """The result of publishing a table: the position of its topic before and after, and the number of records sent."""

    table: str
    topic: str
    outcome: Literal["published", "idle", "waiting"]
    """Records or a position committed; nothing to do; the table has no commit of ours yet."""
    before: Sent | None
    after: Sent | None
    records: int = 0
    tombstones: int = 0
    transactions: int = 0
    seconds: float = 0.0
    left_out: int = 0
    """The number of refused records that were left out because their keys have other rows, or none, by now."""
    skipped: tuple[str, ...] = ()
    """The other refused records that `skip_refused` left out, each with the reason."""


def publish(
    doors: Doors,
    topology: Topology,
    target: Table,
    say: Callable[[Sent, int], None] | None = None,
    *,
    skip_refused: bool = False,
    repeat: bool = False,
) -> Published:
    """Bring a table's topic to its newest version; calls `say` after each transaction, with the records sent so far.

    If the topic has everything, this sends one request to the broker, and starts no Spark session. A record that the
    topic refuses is left out if the table has another row of its key by now, or none: a newer record supersedes it.
    `skip_refused` leaves out every record that the topic refuses, and counts it in the position. If the topic may have
    lost its newest records, `repeat` sends again what may have been among them.

    Raises:
        InputChanged: the table is not the one that was published, or its changes have expired; or the position of the
            topic is unknown.
        PlanChanged: the table has another definition, or another key, than what was published.
        RecordRefused: the topic refuses the newest row of a key, or a record of a stream.
        NotCommitted: another publisher of the table fenced this one.
    """
    began = time.monotonic()
    left_out: set[Place] = set()
    skipped: dict[Place, str] = {}
    alone = False
    while True:
        try:
            done = _published(doors, topology, target, say, left_out, skipped, alone, repeat)
        except RecordRefused as refused:
            place = _place(refused)
            if place is None and not alone:
                alone = True  # a batch of one: then the error names the record
            elif place is None or place in left_out or place in skipped:
                raise RecordRefused(_named(topology, target, refused, place)) from refused
            elif _superseded(doors, topology, target, refused, place):
                left_out.add(place)
            elif skip_refused:
                skipped[place] = _named(topology, target, refused, place)
            else:
                why = f"{_named(topology, target, refused, place)}{_advice(topology, target)}"
                raise RecordRefused(why, refused.key, refused.headers) from refused
        else:
            told = tuple(skipped.values())
            return replace(done, left_out=len(left_out), skipped=told, seconds=time.monotonic() - began)


def _published(
    doors: Doors,
    topology: Topology,
    target: Table,
    say: Callable[[Sent, int], None] | None,
    left_out: Collection[Place],
    skipped: Collection[Place],
    alone: bool,
    repeat: bool,
) -> Published:
    assert target.topic is not None, "only what has a topic is published"
    name, path = f"{topology.name}/{target.name}", doors.lakehouse.table(topology.name, target.name)
    sent, state = sent_of(doors.kafka, topology, target), positions.read(path, name)
    if state is None or state.position.n == 0:
        return Published(name, target.topic, "waiting", sent, sent)
    now = round(time.time() * 1000)
    if sent is not None and _has_all(sent, state) and state.own - sent.version < FAR and not aged(sent, now):
        return Published(name, target.topic, "idle", sent, sent)
    exactly_once = topology.settings.exactly_once
    with doors.kafka.publishing(group(topology, target), target.topic, exactly_once, alone) as publisher:
        # Read again after fencing: the former producer can no longer move the position.
        sent = sent_of(doors.kafka, topology, target, stable=True)
        tail = publisher.newest(f"{HEADER}table", name) if sent is None else None
        state = positions.read(path, name)
        if state is None or state.position.n == 0:
            return Published(name, target.topic, "waiting", sent, sent)
        gaining(doors.lakehouse, topology, target, state)  # columns that it gains are null in the rows so far
        if tail is not None:
            sent = _at_the_tail(tail, exactly_once)
            first = doors.kafka.beginning_offsets([target.topic])[target.topic].offsets
            if not repeat:
                _check_tail(topology, target, sent, [at for at in first if first[at] > 0 and at not in tail])
        skips = 0 if sent is None else sent.skipped
        aim = Sent(state.id, state.position.epoch, state.own, done=True, key=target.plan.key, at=now, skipped=skips)
        _check(name, target, sent, aim)
        if sent == aim:
            publisher.commit(aim.version, aim.to_json())
            return Published(name, target.topic, "idle", sent, aim, transactions=1)
        session = doors.engine.session()
        try:
            with (
                _telling(name, target),
                keeping(session) as keeps,
                # Closed before the session, because the rest of a result cannot be fetched after it.
                closing(_records(Feed(keeps, path, name, target, state.version), sent, aim)) as records,
            ):
                done = _sending(publisher, name, records, sent, aim, say, left_out, skipped)
        finally:
            session.stop()
    return replace(done, topic=target.topic)


def group(topology: Topology, target: Table) -> str:
    """Return the consumer group that has a table's position; also the transactional id of its one producer."""
    return f"tidetable/{topology.name}/{target.name}"


def sent_of(kafka: Kafka, topology: Topology, target: Table, stable: bool = False) -> Sent | None:
    """Return the position of a table's topic, from the group's offset; None if there is none, or it has expired.

    `stable`: wait until a transaction that is being committed has ended.
    """
    assert target.topic is not None, "only what has a topic is published"
    text = kafka.published(group(topology, target), target.topic, stable)
    return None if text is None else Sent.from_json(text)


def all_sent(kafka: Kafka, topology: Topology) -> dict[str, Sent | None]:
    """Return the position of every topic that a topology publishes to, by the table's name."""
    return {table.name: sent_of(kafka, topology, table) for table in topology.tables if table.topic is not None}


def aged(sent: Sent, now: int) -> bool:
    """Return whether a position must be committed again, before the broker expires it; `now` is in milliseconds."""
    return now - sent.at >= AGED


def unsent(path: str, name: str, sent: Sent | None) -> int:
    """Return how many versions of a table its topic lacks; 1 for an empty topic, which begins with the whole table."""
    state = positions.read(path, name)
    if state is None or state.position.n == 0 or (sent is not None and _has_all(sent, state)):
        return 0
    if sent is None or sent.id != state.id:
        return 1
    return len(positions.changed(path, name, sent.version, state.own)) + (not sent.done)


def _has_all(sent: Sent, state: State) -> bool:
    """Return whether a topic has all rows of a table, up to our newest commit."""
    return sent.done and sent.id == state.id and min(state.data_version, state.own) <= sent.version <= state.own


def _at_the_tail(tail: Mapping[int, Mapping[str, str]], exactly_once: bool) -> Sent | None:
    """Return the position of a topic from the headers of its newest records, by partition.

    Without transactions any record of the last batch may be missing: the position is the start of the oldest version.
    """
    newest = [Sent.behind(headers) for headers in tail.values()]
    if exactly_once:
        return max(newest, key=lambda sent: (sent.version, sent.ordinal), default=None)
    least = min(newest, key=lambda sent: sent.version, default=None)
    return None if least is None else replace(least, ordinal=0, done=False)


def _check_tail(topology: Topology, target: Table, sent: Sent | None, emptied: list[int]) -> None:
    """Refuse to read the position from the newest records, if newer ones may have been removed.

    Kafka removes a partition's oldest records first, so a partition that has records of the table has its newest one.
    The `emptied` partitions lost records, and have none of the table. They may have had newer records than the others:
    retention goes by the timestamps of records, which need not grow with their versions.
    """
    if emptied:
        again = "the whole table" if sent is None else f"version {sent.version}"
        several = "partitions" if len(emptied) > 1 else "partition"
        raise InputChanged(
            f"{topology.name}/{target.name}: how far topic {target.topic} is, is not known: group "
            f"{group(topology, target)} has no offset, which the broker forgets after a week, and records were removed "
            f"from {several} {', '.join(map(str, emptied))}, the newest that were published perhaps. They would be "
            f"told again. {_remedy(target)}; or, if they may be told again, or none was published there, run "
            f"`tidetable publish {topology.name}.{target.name} --repeat`, which begins with {again}"
        )


def _check(name: str, target: Table, sent: Sent | None, aim: Sent) -> None:
    """Refuse to go on if the table was recreated, or if its key columns are not those of the topic's records."""
    if sent is None:
        return
    if sent.id != aim.id or sent.version > aim.version:
        raise InputChanged(
            f"topic {target.topic} holds version {sent.version} of a {name} that is no longer there: it was dropped "
            f"and made anew, or an older copy was put in its place. {_remedy(target)}"
        )
    if sent.key not in ((), aim.key):
        raise PlanChanged(
            f"topic {target.topic} holds {name} by its key {', '.join(sent.key)}, which is {', '.join(aim.key)} now. "
            f"{_remedy(target)}"
        )


def _remedy(target: Table) -> str:
    return f'Write .to("...") with the name of a new topic at {target.line}: it begins with the whole table'


@contextmanager
def _telling(name: str, target: Table) -> Iterator[None]:
    """Raise Spark's errors about expired changes as `InputChanged`, with the name of the topic."""
    try:
        yield
    except PySparkException as error:
        if not condition(error).startswith(CHANGES_LOST):
            raise
        said = str(error).partition("\n\nJVM stacktrace:")[0]
        raise InputChanged(
            f"{name} no longer tells what topic {target.topic} does not have yet: {said}\n{_remedy(target)}"
        ) from error


def _sending(
    publisher: Publisher,
    name: str,
    records: Iterator[Record | None],
    sent: Sent | None,
    aim: Sent,
    say: Callable[[Sent, int], None] | None,
    left_out: Collection[Place],
    skipped: Collection[Place],
) -> Published:
    """Send records, and commit after every batch of them; the last commit has the position `aim`."""
    uncommitted, count, tombstones, transactions, skips = 0, 0, 0, 0, aim.skipped
    behind: Sent | None = None

    def commit(at: Sent) -> None:
        publisher.commit(at.version, at.to_json())
        if say is not None:
            say(at, count)

    for record in records:
        if record is not None:
            place = record.at.version, record.at.ordinal
            skips += place in skipped
            if place not in left_out and place not in skipped:
                at = replace(record.at, skipped=skips)
                publisher.send(record.key, record.value, record.timestamp, at.headers(name))
                uncommitted, count, tombstones = uncommitted + 1, count + 1, tombstones + (record.value is None)
            behind = replace(record.at, ordinal=record.at.ordinal + 1, skipped=skips)
        # None comes before a computation or a fetch, which may take longer than the transaction timeout.
        if behind is not None and uncommitted >= (1 if record is None else BATCH):
            commit(behind)
            uncommitted, transactions = 0, transactions + 1
    aim = replace(aim, skipped=skips)
    commit(aim)
    return Published(name, "", "published", sent, aim, count, tombstones, transactions + 1)


@dataclass(frozen=True)
class Record:
    """A record to be sent, and its place; `timestamp` is in milliseconds since 1970."""

    at: Sent
    key: bytes | None
    value: bytes | None
    timestamp: int | None


def _place(refused: RecordRefused) -> Place | None:
    """Return the place of a refused record among those of its table; None if the client does not name the record."""
    told = refused.headers
    return None if not told else (int(told[f"{HEADER}version"]), int(told[f"{HEADER}ordinal"]))


def _named(topology: Topology, target: Table, refused: RecordRefused, place: Place | None) -> str:
    """Return a message: which record a topic refuses, and why."""
    key = None if refused.key is None else refused.key.decode(errors="backslashreplace")
    of = f"the record of key {key}" if key is not None else "a record" if place is None else "a record without a key"
    at = f", number {place[1]} in version {place[0]}" if place is not None and target.plan.is_stream else ""
    return f"topic {target.topic} refuses {of}{at} of {topology.name}/{target.name}: {refused}"


def _advice(topology: Topology, target: Table) -> str:
    """Return what else to do about a refused record. A record of a stream is never superseded."""
    skip = f"`tidetable publish {topology.name}.{target.name} --skip-refused` leaves out what the topic refuses"
    if target.plan.is_stream:
        return f". Or do without it: {skip}"
    return (
        f"; or correct the row at its source: once a later version of the table has another row of its key, this "
        f"record is left out. Or do without it: {skip}"
    )


def _superseded(doors: Doors, topology: Topology, target: Table, refused: RecordRefused, place: Place) -> bool:
    """Return whether a table has another row, or none, at the key of a refused record by now."""
    if target.plan.is_stream or refused.key is None:
        return False
    name, path = f"{topology.name}/{target.name}", doors.lakehouse.table(topology.name, target.name)
    session = doors.engine.session()
    try:
        with _telling(name, target), keeping(session) as keeps:
            return Feed(keeps, path, name, target, positions.version(path)).has_other(refused.key, place[0])
    finally:
        session.stop()


def _records(feed: Feed, sent: Sent | None, aim: Sent) -> Generator[Record | None]:
    """Yield the records that a topic lacks, in order, and None before each computation and each fetch."""
    for pages, whole in feed.missing(sent, aim.version):
        yield None
        rows = 0  # of the version so far, without the newest: only the next row shows whether that is the last
        newest: Row | None = None
        for page in pages():
            yield None
            for row in page.toLocalIterator():
                if newest is not None:
                    last = row[0] != newest[0]
                    yield from _unless_sent(sent, replace(aim, ordinal=rows, done=last, whole=whole), newest)
                    rows = 0 if last else rows + 1
                newest = row
        if newest is not None:
            yield from _unless_sent(sent, replace(aim, ordinal=rows, done=True, whole=whole), newest)


def _unless_sent(sent: Sent | None, place: Sent, row: Row) -> Iterator[Record]:
    """Yield the record of a row at a place, unless the topic has it, because it has a part of its version."""
    version, key, value, timestamp = row
    begun = sent is not None and not sent.done and (sent.version, sent.whole) == (version, place.whole)
    if sent is None or not begun or place.ordinal >= sent.ordinal:
        yield Record(replace(place, version=version), _bytes(key), _bytes(value), timestamp)


def _own_columns(schema: StructType) -> dict[str, DataType | str]:
    """Return the columns of a stored table, type by name: the user's, and the bounds of windows."""
    bounds = {column.name for column in WINDOW_BOUNDS}
    return {field.name: field.dataType for field in schema if field.name in bounds or not field.name.startswith("_")}


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


Place = tuple[int, int]
"""The place of a record among those of its table: the version, and the number in it."""

Pages = Callable[[], list["DataFrame"]]
"""Computes frames of (version, key, value, timestamp in milliseconds), ordered, to be fetched one after the other."""


@dataclass(frozen=True)
class Feed:
    """The changes of a stored table, by version, up to the version `newest`."""

    keeps: Kept
    path: str
    name: str
    target: Table
    newest: int

    def missing(self, sent: Sent | None, until: int) -> Iterator[tuple[Pages, bool]]:
        """Yield what a topic lacks, in order: pages, and whether they have all rows of a version, not only changes."""
        begins = sent is None or (sent.whole and not sent.done)
        version = until if sent is None else sent.version
        changed = self._changed(version if sent is None or begins or sent.done else version - 1)
        if begins:
            yield partial(self._all, version), True
        replaced = max((one.version for one in changed if one.replaced), default=0)
        for other in (one.version for one in changed if one.version <= min(replaced, until)):
            begun = sent is not None and not sent.done and sent.version == other
            yield partial(self._replacing, other, begun), False
        if told := [one for one in changed if replaced < one.version <= until]:
            yield partial(self._told, told), False

    def has_other(self, key: bytes, version: int) -> bool:
        """Return whether a key, encoded as in the topic, has another row than at a version, or none."""
        was, now = (
            encoded(self.target, self._at(at), at, F.lit(True)).where(F.col("_row.key") == key.decode()).select("_row")
            for at in (version, self.newest)
        )
        return was.collect() != now.collect()

    def _all(self, version: int) -> list[DataFrame]:
        return self._paged(ordered(self.target, encoded(self.target, self._at(version), version, F.lit(True))))

    def _replacing(self, version: int, begun: bool) -> list[DataFrame]:
        return self._paged(ordered(self.target, net(self.target, self._difference(version, begun))))

    def _told(self, told: list[Changed]) -> list[DataFrame]:
        rows = ordered(self.target, self._changes(told))
        few = sum(PAGE if one.rows is None else one.rows for one in told) < PAGE
        return [rows] if few else self._paged(rows)

    def _changes(self, told: list[Changed]) -> DataFrame:
        """Return one row for every key and version that changed it, as `_net` does."""
        feed = self.keeps.session.read.option("readChangeFeed", "true").option("startingVersion", told[0].version)
        changes = feed.option("endingVersion", told[-1].version).format("delta").load(self.path)
        return net(self.target, encoded(self.target, changes, F.col("_commit_version"), inserted()))

    def _changed(self, since: int) -> list[Changed]:
        try:
            return positions.changed(self.path, self.name, since, self.newest)[::-1]
        except InputChanged as error:
            raise InputChanged(
                f"the log of {self.name} was cleaned up behind version {since}, which is all that topic "
                f"{self.target.topic} has. {_remedy(self.target)}"
            ) from error

    def _at(self, version: int) -> DataFrame:
        return version_of(self.keeps.session, self.path, version)

    def _difference(self, version: int, begun: bool) -> DataFrame:
        """Return all rows before a version and all rows at it, encoded, from which `_net` finds the changes.

        If the topic has a part of the version (`begun`), the rows have the columns of that version, not the present
        ones: with other columns, other rows would differ.
        """
        before, after, key = self._at(version - 1), self._at(version), self.target.plan.key
        types = [[dict(frame.dtypes).get(name) for name in key] for frame in (before, after)]
        if types[0] != types[1]:
            raise PlanChanged(
                f"version {version} of {self.name} replaced its key, {', '.join(key)}, and topic {self.target.topic} "
                f"has records of the former one. {_remedy(self.target)}"
            )
        own = _own_columns(after.schema) if begun else None
        sides = (
            encoded(self.target, before, version, F.lit(False), own),
            encoded(self.target, after, version, F.lit(True), own),
        )
        return sides[0].unionByName(sides[1])

    def _paged(self, rows: DataFrame) -> list[DataFrame]:
        """Compute ordered rows once, and return them as frames of at most `PAGE` rows each."""
        numbered = self.keeps.keep(rows.withColumn("_number", F.monotonically_increasing_id()))
        number = F.col("_number")  # grows in order; its upper bits are the partition, in which it begins at 0
        parts = numbered.groupBy(F.shiftright(number, 33)).agg(F.min(number), F.max(number)).collect()
        pages: list[tuple[int, int]] = []
        room = 0
        for _, begin, last in sorted(parts):
            while begin <= last:
                first, room = (begin, PAGE) if room == 0 else (pages.pop()[0], room)
                until = min(last, begin + room - 1)
                pages.append((first, until))
                begin, room = until + 1, room - (until - begin + 1)
        return [numbered.where(number.between(*page)).orderBy(number).drop("_number") for page in pages]


def encoded(
    target: Table,
    rows: DataFrame,
    version: Column | int,
    new: Column,
    columns: Mapping[str, DataType | str] | None = None,
) -> DataFrame:
    """Return rows of a table encoded as in its topic.

    Columns: `_version`; `_new`, true for a row after the change of the version, false for one before; `_row`, a
    struct of `key`, `value` and `at` (milliseconds since 1970); the table's identity; for a stream `_batch` and
    `_reached`. `columns` (type by name) replace the present columns of the plan.
    """
    plan = target.plan
    columns = columns or {column.name: column.type or "string" for column in plan.columns}
    encode = serde(target.produced.format)
    value = encode.encode_value(tuple(name for name in columns if name not in plan.key))
    at = F.when(F.unix_millis("_timestamp") >= 0, F.unix_millis("_timestamp"))  # Kafka has no time before 1970
    # A version from before the table gained a column lacks it.
    later = {name: F.lit(None).cast(kind) for name, kind in columns.items() if name not in rows.columns}
    rows = rows.withColumns({"_version": F.lit(version).cast("bigint"), "_new": new, **later})
    if plan.is_stream:
        value = F.when(~F.col("_deleted"), value)
        by_arrival = Window.partitionBy("_version", "_batch", "_topic", "_partition").orderBy("_offset", "_ordinal")
        reached = F.coalesce("_reached", micros())
        rows = rows.withColumn("_reached", F.max(reached).over(by_arrival.rowsBetween(Window.unboundedPreceding, 0)))
    row = F.struct(encode.encode_key(rows, plan.key).alias("key"), value.alias("value"), at.alias("at"))
    return rows.select("_version", "_new", row.alias("_row"), *cols(identity(plan)), *_placed(target))


def net(target: Table, changes: DataFrame) -> DataFrame:
    """Return one row for every key whose encoded row a version changed. Records of a stream are never deleted.

    `_row` is the new row, or a tombstone with the key and timestamp of the old one.
    """
    was, now = (F.max(F.when(side, F.col("_row"))) for side in (~F.col("_new"), F.col("_new")))
    grouped = changes.groupBy("_version", *cols(identity(target.plan)))
    found = grouped.agg(was.alias("_was"), now.alias("_now"), *(F.max(name).alias(name) for name in _placed(target)))
    found = found.where("NOT (_was <=> _now)")
    if target.plan.is_stream:
        return found.where("_now IS NOT NULL").withColumn("_row", F.col("_now"))
    gone = F.struct(F.col("_was.key"), F.lit(None).cast("string").alias("value"), F.col("_was.at"))
    return found.withColumn("_row", F.coalesce("_now", gone))


def ordered(target: Table, rows: DataFrame) -> DataFrame:
    """Return rows of (version, key, value, timestamp in milliseconds), ordered by version and typed key.

    Records of a stream are ordered by commit and by the time reached, as in `spark.operators.order`. A stream of a
    table's changes is ordered by the table's commits, because a row may have older coordinates than the one it
    replaced.
    """
    commits = ("_batch", "_ordinal") if target.plan.of_changes else ()
    place = dict.fromkeys((*commits, *_placed(target), *identity(target.plan)))
    return rows.orderBy("_version", *cols(place)).select("_version", "_row.key", "_row.value", "_row.at")


def _placed(target: Table) -> tuple[str, ...]:
    return ("_batch", "_reached") if target.plan.is_stream else ()
