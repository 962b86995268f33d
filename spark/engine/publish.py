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

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from spark.engine.errors import InputChanged, PlanChanged, RecordRefused, ValuesUnknown
from spark.engine.inputs.frame_cache import frame_cache
from spark.engine.log.definition import added_columns
from spark.engine.log.stored_table import StoredTable
from spark.engine.ports import opened
from spark.engine.publishing.feed import Feed, feed_errors, remedy
from spark.engine.publishing.position import (
    HEADER,
    RECOMMIT_VERSIONS,
    PublishedPosition,
    group,
    has_all,
    must_recommit,
    position_after,
    published_position,
)
from spark.engine.publishing.written import Written
from spark.engine.unknown_values import derives, upstream
from spark.serdes.framing import schema_id
from spark.topology.formats import WITH_REGISTRY

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Iterator

    from pyspark.sql import Row

    from spark.engine.log.stored_table import State
    from spark.engine.ports import Headers, Ports, Publisher
    from spark.topology.topology import Table, Topology

BATCH = 10_000  # records of a transaction: many, to spread its fixed cost; not more, as its readers wait for its end

Place = tuple[int, int]
"""The place of a record among those of its table: the version, and the number in it."""


@dataclass(frozen=True)
class Published:
    """The result of publishing a table: the position of its topic before and after, and the number of records sent."""

    table: str
    topic: str
    outcome: Literal["published", "idle", "waiting"]
    """Records or a position committed; nothing to do; the table has no commit of ours yet."""
    before: PublishedPosition | None
    after: PublishedPosition | None
    records: int = 0
    tombstones: int = 0
    transactions: int = 0
    seconds: float = 0.0
    left_out: int = 0
    """The number of refused records that were left out because their keys have other rows, or none, by now."""
    skipped: tuple[str, ...] = ()
    """The other refused records that `skip_refused` left out, each with the reason."""


def publish(
    ports: Ports,
    topology: Topology,
    target: Table,
    say: Callable[[PublishedPosition, int], None] | None = None,
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
        ColumnRefused: the format of the topic cannot hold a column.
        RegistryRefused: the registry refuses a schema of the records.
        KeySchemaLost: the registry does not have the schema of the topic's keys any more.
        RegistryUnavailable: the registry of the topic does not answer, or there is none.
        ValuesUnknown: rows that the table is computed from have values that no event of a Debezium topic has.
        NotCommitted: another publisher of the table fenced this one.
    """
    began = time.monotonic()
    left_out: set[Place] = set()
    skipped: dict[Place, str] = {}
    alone = False
    while True:
        try:
            done = _published(ports, topology, target, say, left_out, skipped, alone, repeat)
        except RecordRefused as refused:
            place = _place(refused)
            if place is None and not alone:
                alone = True  # a batch of one: then the error names the record
            elif place is None or place in left_out or place in skipped:
                raise RecordRefused(_named(topology, target, refused, place)) from refused
            elif _superseded(ports, topology, target, refused, place):
                left_out.add(place)
            elif skip_refused:
                skipped[place] = _named(topology, target, refused, place)
            else:
                why = f"{_named(topology, target, refused, place)}{_advice(topology, target)}"
                raise RecordRefused(why, refused.key, refused.headers) from refused
        else:
            reasons = tuple(skipped.values())
            return replace(done, left_out=len(left_out), skipped=reasons, seconds=time.monotonic() - began)


def _published(
    ports: Ports,
    topology: Topology,
    target: Table,
    say: Callable[[PublishedPosition, int], None] | None,
    left_out: Collection[Place],
    skipped: Collection[Place],
    alone: bool,
    repeat: bool,
) -> Published:
    assert target.topic is not None, "only what has a topic is published"
    table = StoredTable.of(ports.lakehouse, topology.name, target.name)
    sent, state = published_position(ports.kafka, topology, target), table.state()
    if state is None or state.position.n == 0:
        return Published(table.name, target.topic, "waiting", sent, sent)
    now = round(time.time() * 1000)
    if (
        sent is not None
        and has_all(sent, state)
        and state.own - sent.version < RECOMMIT_VERSIONS
        and not must_recommit(sent, now)
    ):
        return Published(table.name, target.topic, "idle", sent, sent)
    exactly_once = topology.settings.exactly_once
    with ports.kafka.publishing(group(topology, target), target.topic, exactly_once, alone) as publisher:
        # Read again after fencing: the former producer can no longer move the position.
        sent = published_position(ports.kafka, topology, target, stable=True)
        tail = publisher.newest(f"{HEADER}table", table.name) if sent is None else None
        state = table.state()
        if state is None or state.position.n == 0:
            return Published(table.name, target.topic, "waiting", sent, sent)
        added_columns(ports.lakehouse, topology, target, state)  # columns that it gains are null in the rows so far
        if tail is not None:
            sent = position_after(tail, exactly_once)
            first = ports.kafka.beginning_offsets([target.topic])[target.topic].offsets
            if not repeat:
                _check_tail(topology, target, sent, [at for at in first if first[at] > 0 and at not in tail])
        skips, schema = (0, None) if sent is None else (sent.skipped, sent.key_schema_id)
        aim = PublishedPosition(
            state.id,
            state.position.epoch,
            state.own,
            done=True,
            key=target.plan.key,
            at=now,
            skipped=skips,
            key_schema_id=schema,
            key_format=target.produced.key_format,
        )
        _check(table.name, target, sent, aim)
        written = Written(ports, target, schema) if target.produced.needs_registry else None
        captured = derives(topology, target)
        if captured:
            _check_known(ports, topology, target, state)
        if sent == aim:
            publisher.commit(aim.version, aim.to_json())
            return Published(table.name, target.topic, "idle", sent, aim, transactions=1)
        with (
            opened(ports.engine) as session,
            feed_errors(table.name, target),
            frame_cache(session) as cache,
        ):
            feed = Feed(cache, table, target, state.version, captured, written)
            if written is not None:
                feed.register()
                aim = replace(aim, key_schema_id=written.key_schema_id)
            # Closed before the session, because the rest of a result cannot be fetched after it.
            with closing(_records(feed, sent, aim)) as records:
                done = _sending(publisher, table.name, records, sent, aim, say, left_out, skipped)
    return replace(done, topic=target.topic)


@dataclass(frozen=True)
class Record:
    """A record to be sent, and its place; `timestamp` is in milliseconds since 1970, `headers` are the user's."""

    at: PublishedPosition
    key: bytes | None
    value: bytes | None
    timestamp: int | None
    headers: Headers = ()


def _check_tail(topology: Topology, target: Table, sent: PublishedPosition | None, emptied: list[int]) -> None:
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
            f"sent again. {remedy(target)}; or, if they may be sent again, or none was published there, run "
            f"`tidetable publish {topology.name}.{target.name} --repeat`, which begins with {again}"
        )


def _check_known(ports: Ports, topology: Topology, target: Table, state: State) -> None:
    """Refuse to publish nulls that stand for values that no event of a Debezium topic has."""
    if unknown := upstream(ports.lakehouse, topology, target, state.position, state.version):
        rows = ", ".join(f"{name} ({count} rows)" for name, count in unknown.items())
        raise ValuesUnknown(
            f"{topology.name}.{target.name} is not published to {target.topic}: no event has the value of {rows}. It "
            f"would be published as null. If a partition lags, the next tick has it. If not, update these rows in the "
            f"database so that the columns change, or let the connector take a snapshot of the table (the signal "
            f"execute-snapshot), and run a tick"
        )


def _check(name: str, target: Table, sent: PublishedPosition | None, aim: PublishedPosition) -> None:
    """Refuse to go on if the table was recreated, or if its key is not that of the topic's records."""
    if sent is None:
        return
    if sent.id != aim.id or sent.version > aim.version:
        raise InputChanged(
            f"topic {target.topic} holds version {sent.version} of a {name} that is no longer there: it was dropped "
            f"and created again, or an older copy was put in its place. {remedy(target)}"
        )
    with_schema = sent.key_schema_id is not None
    if sent.key_format not in (None, aim.key_format) or with_schema != (aim.key_format in WITH_REGISTRY):
        known = "without a schema" if sent.key_format is None else f"in {sent.key_format}"
        has = f"by the schema {sent.key_schema_id} of a registry" if with_schema else known
        raise PlanChanged(
            f"topic {target.topic} has keys of {name} {has}, and key_format is {aim.key_format} now: the "
            f"same keys would have other bytes. {remedy(target)}"
        )
    if sent.key not in ((), aim.key):
        raise PlanChanged(
            f"topic {target.topic} holds {name} by its key {', '.join(sent.key)}, which is {', '.join(aim.key)} now. "
            f"{remedy(target)}"
        )


def _sending(
    publisher: Publisher,
    name: str,
    records: Iterator[Record | None],
    sent: PublishedPosition | None,
    aim: PublishedPosition,
    say: Callable[[PublishedPosition, int], None] | None,
    left_out: Collection[Place],
    skipped: Collection[Place],
) -> Published:
    """Send records, and commit after every batch of them; the last commit has the position `aim`."""
    uncommitted, count, tombstones, transactions, skips = 0, 0, 0, 0, aim.skipped
    last: PublishedPosition | None = None

    def commit(at: PublishedPosition) -> None:
        publisher.commit(at.version, at.to_json())
        if say is not None:
            say(at, count)

    for record in records:
        if record is not None:
            place = record.at.version, record.at.ordinal
            skips += place in skipped
            if place not in left_out and place not in skipped:
                at = replace(record.at, skipped=skips)
                publisher.send(record.key, record.value, record.timestamp, at.headers(name), record.headers)
                uncommitted, count, tombstones = uncommitted + 1, count + 1, tombstones + (record.value is None)
            last = replace(record.at, ordinal=record.at.ordinal + 1, skipped=skips)
        # None comes before a computation or a fetch, which may take longer than the transaction timeout.
        if last is not None and uncommitted >= (1 if record is None else BATCH):
            commit(last)
            uncommitted, transactions = 0, transactions + 1
    aim = replace(aim, skipped=skips)
    commit(aim)
    return Published(name, "", "published", sent, aim, count, tombstones, transactions + 1)


def _place(refused: RecordRefused) -> Place | None:
    """Return the place of a refused record among those of its table; None if the client does not name the record."""
    headers = refused.headers
    return None if not headers else (int(headers[f"{HEADER}version"]), int(headers[f"{HEADER}ordinal"]))


def _named(topology: Topology, target: Table, refused: RecordRefused, place: Place | None) -> str:
    """Return a message: which record a topic refuses, and why."""
    is_text = target.produced.key_format not in WITH_REGISTRY
    key = refused.key and (refused.key.decode(errors="backslashreplace") if is_text else f"0x{refused.key.hex()}")
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


def _superseded(ports: Ports, topology: Topology, target: Table, refused: RecordRefused, place: Place) -> bool:
    """Return whether a table has another row, or none, at the key of a refused record by now."""
    if target.plan.is_stream or refused.key is None:
        return False
    table = StoredTable.of(ports.lakehouse, topology.name, target.name)
    with opened(ports.engine) as session, feed_errors(table.name, target), frame_cache(session) as cache:
        of_key = schema_id(refused.key) if target.produced.key_format in WITH_REGISTRY else None
        written = Written(ports, target, of_key) if target.produced.needs_registry else None
        feed = Feed(cache, table, target, table.version(), written=written)
        return feed.has_other(refused.key, place[0])


def _records(feed: Feed, sent: PublishedPosition | None, aim: PublishedPosition) -> Generator[Record | None]:
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


def _unless_sent(sent: PublishedPosition | None, place: PublishedPosition, row: Row) -> Iterator[Record]:
    """Yield the record of a row at a place, unless the topic has it, because it has a part of its version."""
    version, key, value, timestamp, *more = row
    headers = tuple((one["key"], _bytes(one["value"])) for column in more for one in column or ())
    begun = sent is not None and not sent.done and (sent.version, sent.whole) == (version, place.whole)
    if sent is None or not begun or place.ordinal >= sent.ordinal:
        yield Record(replace(place, version=version), _bytes(key), _bytes(value), timestamp, headers)


def _bytes(part: bytearray | None) -> bytes | None:
    return None if part is None else bytes(part)
