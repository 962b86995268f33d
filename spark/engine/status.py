"""The state and the lag of every landing and table, from the tables' own commits, without Spark."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from hashlib import sha256
from itertools import islice
from typing import TYPE_CHECKING

from spark.engine.counts import counted, table_counts
from spark.engine.errors import UNREADABLE, InputChanged, LeaderMissing, PlanChanged
from spark.engine.inputs.pin import check_missing
from spark.engine.land import capture, written
from spark.engine.log.definition import added_columns
from spark.engine.log.landing_definition import check_landing
from spark.engine.log.leaders import check_leaders
from spark.engine.log.stored_table import StoredTable
from spark.engine.publishing.position import must_recommit, published_positions, unpublished_versions
from spark.engine.time_sync import concerning, waiting
from spark.engine.unknown_values import unknown_values
from spark.topology.nodes import LANDING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark.engine.counts import Counted, TableCounts
    from spark.engine.log.position import Cut, Gap, Position
    from spark.engine.log.stored_table import State
    from spark.engine.ports import Kafka, Lakehouse
    from spark.engine.publishing.position import PublishedPosition
    from spark.engine.time_sync import Waiting
    from spark.topology import Topology


@dataclass(frozen=True)
class Bootstrap:
    """How many of the offsets that a first landing captured have landed, and how many seconds the others take.

    The seconds are by the last commit; None after the first one.
    """

    landed: int
    captured: int
    seconds_left: float | None

    def __str__(self) -> str:
        """The progress in words."""
        left = "" if self.seconds_left is None else f", {self.seconds_left:.0f} s left"
        return f"{self.landed / self.captured:.0%} of {self.captured:,} offsets{left}; tables read it when it has all"


def bootstrap_of(landing: StoredTable, position: Position) -> Bootstrap | None:
    """The progress of a first landing; None if it has reached its cut."""
    if not position.bootstrap:
        return None

    def landed(at: Position) -> int:
        [cut] = at.cut.values()
        return sum(min(cut.offsets.get(p, 0), end) - at.floor.get(p, 0) for p, end in position.bootstrap.items())

    captured = sum(end - position.floor.get(partition, 0) for partition, end in position.bootstrap.items())
    commits = list(islice(landing.commits(), 2))
    seconds = None
    if len(commits) == 2 and (gained := landed(commits[0].position) - landed(commits[1].position)) > 0:
        taken = (commits[0].at - commits[1].at) / 1000
        seconds = taken * (captured - landed(position)) / gained
    return Bootstrap(landed(position), captured, seconds)


@dataclass(frozen=True)
class TableStatus:
    """The state of a landing or a table.

    `lag` is the number of records by topic that it does not have; None if the end offsets are unknown. `waiting_for`
    are the inputs that have not reached the newest cut. `log_error` is why its log cannot be read. `refused` is why its
    next landing or step is refused, as far as definitions and topic ids show. `recreated` is true if a topic was
    deleted and created again. `redecoded` is true if an input has decoded quarantined records that the table does not
    have. `held` are records that wait until an empty partition has newer ones. `published` is the position of the topic
    that it is published to; `recommit_due` is true if that position must be committed again before the broker expires
    it; `unpublished` is the number of versions that the topic does not have. `in_transactions` is the number of offsets
    by partition of a landing's topic from the first record of an open transaction on. No consumer reads them before the
    transaction ends, so they are no lag. `counted` are the counts of a landing's records; None for a table, or if they
    were not counted. `is_leader` is true for a table of another topology, which is shown because tables of this one
    read it. `leader_lag` are, by leader, the versions with changed rows that the table does not have. `taken` are the
    counts of a topic's table that has all landed records; None for other tables. `unknown` is, by column of a Debezium
    topic's table, the number of rows whose value no event has; None for other tables. `bootstrap` is the progress of a
    landing that no table reads yet. `arrival_time` is true for a landing whose event time is the record's timestamp, if
    the topic replaces that with the time of arrival (`message.timestamp.type=LogAppendTime`).
    """

    table: str
    state: State | None
    lag: dict[str, int] | None
    waiting_for: tuple[str, ...] = ()
    log_error: str | None = None
    refused: str | None = None
    recreated: bool = False
    redecoded: bool = False
    held: tuple[Waiting, ...] = ()
    published: PublishedPosition | None = None
    recommit_due: bool = False
    unpublished: int = 0
    in_transactions: dict[str, int] = field(default_factory=dict)
    counted: Counted | None = None
    taken: TableCounts | None = None
    unknown: dict[str, int] | None = None
    is_leader: bool = False
    leader_lag: dict[str, int] = field(default_factory=dict)
    bootstrap: Bootstrap | None = None
    arrival_time: bool = False

    @property
    def first_offsets(self) -> dict[int, int]:
        """The first landed offset by partition, where it is not 0: the topic held nothing older at first landing."""
        return {} if self.state is None else self.state.position.floor

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """What was gone before it was read."""
        return () if self.state is None else self.state.position.gaps

    @property
    def is_lagging(self) -> bool:
        """Whether a tick has work to do here."""
        if self.is_leader:  # another topology's tick
            return False
        return (
            self.state is None
            or self.state.position.n == 0
            or self.recreated
            or self.redecoded
            or self.recommit_due
            or self.unpublished > 0
            or any(self.leader_lag.values())
            or any((self.lag or {}).values())
        )


def statuses(
    lakehouse: Lakehouse,
    topology: Topology,
    ends: Cut | None,
    published: Mapping[str, PublishedPosition | None] | None = None,
    written: Cut | None = None,
) -> list[TableStatus]:
    """The state of every leader, landing and table, in the order of a tick, against the end offsets of the topics.

    `published` are the published positions by table, and `written` the end offsets that include open transactions.
    Without one of them, the fields that need it are not set.
    """
    inputs: dict[str, tuple[str, ...]] = {leader.scan.table: () for leader in topology.leaders}
    inputs |= {source.landing: () for source in topology.sources}
    inputs |= {table.name: tuple(scan.table for scan in table.inputs) for table in topology.tables}
    source_topics = topology.source_topics
    by_name: dict[str, TableStatus] = {}
    for name, input_names in inputs.items():
        input_states = {input_name: by_name[input_name].state for input_name in input_names}
        by_name[name] = _table_status(lakehouse, topology, name, source_topics[name], input_states, ends)
    held: list[Waiting] = []
    with suppress(*UNREADABLE):  # the status of the broken landing has `log_error` already
        held = waiting(lakehouse, topology)
    for name, sent in (published or {}).items():
        unpublished = _unpublished(lakehouse, topology, name, sent)
        by_name[name] = replace(
            by_name[name], published=sent, unpublished=unpublished, recommit_due=_recommit_due(sent)
        )
    for name, written_to in (written or {}).items():
        source = topology.source(name.partition("/")[2])
        if ends is not None and name in ends and ends[name].topic_id == written_to.topic_id:
            undecided = in_transactions(source.topic, ends[name].offsets, written_to.offsets)
            by_name[source.landing] = replace(by_name[source.landing], in_transactions=undecided)
    return [replace(status, held=concerning(topology, status.table, held)) for status in by_name.values()]


def with_counts(lakehouse: Lakehouse, topology: Topology, uncounted: list[TableStatus]) -> list[TableStatus]:
    """The same states, with `counted` for landings, and `taken` and `unknown` for tables of topics. May read rows."""
    sources = {source.landing: source for source in topology.sources}
    tables = {table.name: table for table in topology.tables}

    def with_count(status: TableStatus) -> TableStatus:
        if status.log_error is not None or status.is_leader:
            return status
        if status.table in sources:
            return replace(status, counted=counted(lakehouse, topology, sources[status.table]))
        with suppress(*UNREADABLE):  # the landing's error: its status has `log_error` already
            table = tables[status.table]
            unknown = unknown_values(lakehouse, topology, table)
            return replace(status, taken=table_counts(lakehouse, topology, table), unknown=unknown)
        return status

    return [with_count(status) for status in uncounted]


def with_arrival_time(kafka: Kafka, topology: Topology, states: list[TableStatus]) -> list[TableStatus]:
    """The same states, with `arrival_time` of landings, as far as the topics' configuration may be read.

    Raises:
        KafkaUnavailable: no broker answers.
    """
    arrival = {
        source.landing
        for source in topology.sources
        if source.consumed.timestamp is None
        and (kafka.topic_config(source.topic) or {}).get("message.timestamp.type") == "LogAppendTime"
    }
    return [replace(status, arrival_time=status.table in arrival) for status in states]


def observe(lakehouse: Lakehouse, kafka: Kafka, topology: Topology) -> tuple[Cut, list[TableStatus]]:
    """The end offsets of every topic now, and the state of every landing and table against them.

    Raises:
        KafkaUnavailable: no broker answers.
        TopicMissing: one of the topics does not exist.
    """
    written_to, ends, published = (
        written(kafka, topology),
        capture(kafka, topology),
        published_positions(kafka, topology),
    )
    return ends, statuses(lakehouse, topology, ends, published, written_to)


def metrics(position: Position) -> dict[str, float]:
    """The operator's counters by Kafka Streams' metric name; lateness, in milliseconds, is of the newest records."""
    counters: dict[str, float] = {f"record-lateness-{name}": late for name, late in position.lateness.items()}
    counters["enforced-processing-total"] = position.enforced
    counters["dropped-records-total"] = sum(position.dropped.values())
    return counters | {f"dropped-records-total/{reason}": count for reason, count in sorted(position.dropped.items())}


def in_transactions(topic: str, ends: Mapping[int, int], written: Mapping[int, int]) -> dict[str, int]:
    """The number of offsets by partition, from the end offset on, that wait for a transaction to end."""
    counts = {partition: end - ends.get(partition, end) for partition, end in written.items()}
    return {f"{topic}-{partition}": count for partition, count in counts.items() if count > 0}


def describe_in_transactions(counts: Mapping[str, int]) -> list[str]:
    """The offsets that wait for a transaction to end: one sentence for each partition."""
    return [f"{count} offsets of {partition} wait for a transaction to end" for partition, count in counts.items()]


def describe_held(status: TableStatus) -> str:
    """Everything that is held back from a landing or a table, and why, as text."""
    return "; ".join([*map(describe_waiting, status.held), *describe_in_transactions(status.in_transactions)])


def describe_waiting(held: Waiting) -> str:
    """A sentence about records that are held back."""
    records = f"{held.records} record{'' if held.records == 1 else 's'} of {held.topic}-{held.partition}"
    wait = f"wait{'s' if held.records == 1 else ''} for {', '.join(held.waits_for)}"
    return f"{records} {wait} since {utc_text(held.since)}, until {utc_text(held.until)}"


def describe_first_offsets(topic: str, first_offsets: Mapping[int, int]) -> str:
    """A sentence about the offsets at which a landing begins; empty if it begins at 0."""
    places = ", ".join(f"{offset} of {topic}-{partition}" for partition, offset in sorted(first_offsets.items()))
    return f"begins at offset {places}: the topic held nothing older when it first landed" if places else ""


def utc_text(milliseconds: int) -> str:
    """A time in milliseconds since 1970 as text, with its date, in UTC."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(sep=" ", timespec="seconds")


def fingerprint(ends: Cut, observed: list[TableStatus]) -> str:
    """A hash of the end offsets and the states. It changes when a topic or a table changes, or a deadline passes."""
    stored = [None if status.state is None else status.state.position.to_json() for status in observed]
    now = round(1000 * time.time())
    passed = [held.over(now) for status in observed for held in status.held]
    published = [status.published and status.published.to_json() for status in observed]
    state = json.dumps([{topic: end.offsets for topic, end in ends.items()}, stored, passed, published], sort_keys=True)
    return sha256(state.encode()).hexdigest()[:16]


def _table_status(
    lakehouse: Lakehouse,
    topology: Topology,
    name: str,
    source_topics: set[str],
    input_states: dict[str, State | None],
    ends: Cut | None,
) -> TableStatus:
    waiting_for = _lagging_inputs(input_states)
    try:
        state = StoredTable.of(lakehouse, topology.name, name).state()
    except UNREADABLE as error:
        is_leader = topology.leader(name) is not None
        return TableStatus(name, None, None, waiting_for, log_error=str(error), is_leader=is_leader)
    if topology.leader(name) is not None:
        return TableStatus(name, state, {}, is_leader=True)
    bootstrap = None if state is None else bootstrap_of(StoredTable.of(lakehouse, topology.name, name), state.position)
    refused = _refused(lakehouse, topology, name, state)
    leaders = {
        input_name: leader
        for input_name, leader in input_states.items()
        if leader is not None and topology.leader(input_name) is not None
    }
    behind = _leader_lag(state, leaders)
    if ends is None:
        return TableStatus(name, state, None, waiting_for, refused=refused, leader_lag=behind, bootstrap=bootstrap)
    cut: Cut = {} if state is None else state.position.cut
    redecoded = any(
        topic in cut and cut[topic].redecoded < offsets.redecoded
        for input_state in input_states.values()
        if input_state is not None
        for topic, offsets in input_state.position.cut.items()
    )
    lag: dict[str, int] = {}
    recreated = False
    for topic, end in ends.items():
        topic_name = topic.partition("/")[2]
        if topic_name in source_topics:
            reached = cut.get(topic)
            other_topic = reached is not None and reached.topic_id != end.topic_id
            offsets = (
                {} if reached is None or other_topic else reached.offsets
            )  # the table has no record of a new topic
            recreated |= other_topic
            if other_topic and name.startswith(LANDING):
                refused = (
                    f"topic {topic_name} was deleted and created again: its records would mix with those that landed"
                )
            lag[topic_name] = sum(max(0, offset - offsets.get(p, 0)) for p, offset in end.offsets.items())
    for leader in leaders.values():  # how far a leader lags is its own topology's concern
        for topic, there in leader.position.cut.items():
            if (topic_name := topic.partition("/")[2]) not in lag:
                offsets = cut[topic].offsets if topic in cut else {}
                lag[topic_name] = sum(max(0, offset - offsets.get(p, 0)) for p, offset in there.offsets.items())
    return TableStatus(
        *(name, state, lag, waiting_for),
        refused=refused,
        recreated=recreated,
        redecoded=redecoded,
        leader_lag=behind,
        bootstrap=bootstrap,
    )


def _leader_lag(state: State | None, leaders: Mapping[str, State]) -> dict[str, int]:
    """By leader, the versions with changed rows that a table does not have, if it was computed."""
    if state is None or state.position.n == 0:
        return {}
    pinned = state.position.inputs
    return {
        name: max(0, leader.data_version - pinned[name].version)
        for name, leader in leaders.items()
        if name in pinned and leader.position.n > 0
    }


def _refused(lakehouse: Lakehouse, topology: Topology, name: str, state: State | None) -> str | None:
    """Why the next landing or step is refused, as far as definitions show; None if it is not."""
    try:
        if not name.startswith(LANDING):
            target = topology.table(name)
            for scan in target.inputs:
                check_missing(topology, target, StoredTable.of(lakehouse, topology.name, scan.table), scan.table)
            check_leaders(lakehouse, topology, target)
        if state is None:
            return None
        if name.startswith(LANDING):
            check_landing(f"{topology.name}/{name}", state, topology.source(name.removeprefix(LANDING)))
        else:
            added_columns(lakehouse, topology, topology.table(name), state)
    except (PlanChanged, LeaderMissing) as error:
        return str(error)
    except UNREADABLE:  # an input's error: the input's status has `log_error` itself
        return None
    return None


def _unpublished(lakehouse: Lakehouse, topology: Topology, name: str, published: PublishedPosition | None) -> int:
    """The number of versions that a table's topic does not have. If the log has no answer, publishing raises why."""
    try:
        return unpublished_versions(StoredTable.of(lakehouse, topology.name, name), published)
    except UNREADABLE:
        return 0
    except InputChanged:
        return 1


def _recommit_due(published: PublishedPosition | None) -> bool:
    return published is not None and must_recommit(published, round(time.time() * 1000))


def _lagging_inputs(input_states: dict[str, State | None]) -> tuple[str, ...]:
    """The inputs that no table reads yet; else those that are before another input on a topic that they share."""
    cuts = {
        name: state.position.cut
        for name, state in input_states.items()
        if state is not None and state.position.is_readable
    }
    if never := tuple(name for name in input_states if name not in cuts):
        return never
    return tuple(
        name
        for name, cut in cuts.items()
        if any(
            topic in other and offsets.is_before(other[topic])
            for other in cuts.values()
            for topic, offsets in cut.items()
        )
    )
