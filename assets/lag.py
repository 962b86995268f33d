"""The state and the lag of every landing and table, from the tables' own commits, without Spark."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING

from spark.engine.counts import counted, taken
from spark.engine.errors import InputChanged, LogBroken, PlanChanged, PositionLost
from spark.engine.land import capture, written
from spark.engine.log.definition import added_columns
from spark.engine.log.landing_definition import check_landing
from spark.engine.log.stored_table import StoredTable
from spark.engine.publishing.position import must_recommit, published_positions, unpublished_versions
from spark.engine.time_sync import concerning, waiting
from spark.topology.nodes import LANDING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from resources.lakehouse import Lakehouse
    from spark.engine.counts import Counted, Taken
    from spark.engine.log.position import Cut, Gap, Position
    from spark.engine.log.stored_table import State
    from spark.engine.ports import Kafka
    from spark.engine.publishing.position import PublishedPosition
    from spark.engine.time_sync import Waiting
    from spark.topology import Topology


@dataclass(frozen=True)
class Standing:
    """The state of a landing or a table.

    `lag` is the number of records by topic that it does not have; None if the end offsets are unknown. `waiting_for`
    are the inputs that have not reached the newest cut. `trouble` is why its log cannot be read. `refused` is why its
    next landing or step is refused, as far as definitions and topic ids show. `recreated` is true if a topic was
    deleted and created again. `redecoded` is true if an input has decoded quarantined records that the table does not
    have. `held` are records that wait until an empty partition has newer ones. `sent` is the position of the topic that
    it is published to; `aged` is true if that position must be committed again before the broker expires it; `unsent`
    is the number of versions that the topic does not have. `in_transactions` is the number of offsets by partition of a
    landing's topic from the first record of an open transaction on. No consumer reads them before the transaction ends,
    so they are no lag. `counted` are the counts of a landing's records; None for a table, or if they were not counted.
    `taken` are the counts of a topic's table that has all landed records; None for other tables.
    """

    table: str
    state: State | None
    lag: dict[str, int] | None
    waiting_for: tuple[str, ...] = ()
    trouble: str | None = None
    refused: str | None = None
    recreated: bool = False
    redecoded: bool = False
    held: tuple[Waiting, ...] = ()
    sent: PublishedPosition | None = None
    aged: bool = False
    unsent: int = 0
    in_transactions: dict[str, int] = field(default_factory=dict)
    counted: Counted | None = None
    taken: Taken | None = None

    @property
    def floor(self) -> dict[int, int]:
        """The first landed offset by partition, where it is not 0: the topic held nothing older at first landing."""
        return {} if self.state is None else self.state.position.floor

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """What was gone before it was read."""
        return () if self.state is None else self.state.position.gaps

    @property
    def behind(self) -> bool:
        """Whether a tick has work to do here."""
        never = self.state is None or self.state.position.n == 0
        return (
            never or self.recreated or self.redecoded or self.aged or self.unsent > 0 or any((self.lag or {}).values())
        )


def standings(
    lakehouse: Lakehouse,
    topology: Topology,
    ends: Cut | None,
    sent: Mapping[str, PublishedPosition | None] | None = None,
    written: Cut | None = None,
) -> list[Standing]:
    """The state of every landing and table, in the order of a tick, against the end offsets of the topics.

    `sent` are the published positions by table, and `written` the end offsets that include open transactions. Without
    one of them, the fields that need it are not set.
    """
    inputs: dict[str, tuple[str, ...]] = {source.landing: () for source in topology.sources}
    inputs |= {table.name: tuple(scan.table for scan in table.inputs) for table in topology.tables}
    topics = topology.source_topics
    found: dict[str, Standing] = {}
    for name, reads in inputs.items():
        reached = {read: found[read].state for read in reads}
        found[name] = _standing(lakehouse, topology, name, topics[name], reached, ends)
    held: list[Waiting] = []
    with suppress(PositionLost, LogBroken):  # the broken landing has `trouble` already
        held = waiting(lakehouse, topology)
    for name, at in (sent or {}).items():
        found[name] = replace(found[name], sent=at, unsent=_unsent(lakehouse, topology, name, at), aged=_aged(at))
    for name, there in (written or {}).items():
        source = topology.source(name.partition("/")[2])
        if ends is not None and name in ends and ends[name].topic_id == there.topic_id:
            kept = in_transactions(source.topic, ends[name].offsets, there.offsets)
            found[source.landing] = replace(found[source.landing], in_transactions=kept)
    return [replace(one, held=concerning(topology, one.table, held)) for one in found.values()]


def with_counts(lakehouse: Lakehouse, topology: Topology, found: list[Standing]) -> list[Standing]:
    """The same states, with `counted` for landings and `taken` for the tables of topics. May read their rows."""
    sources = {source.landing: source for source in topology.sources}
    tables = {table.name: table for table in topology.tables}

    def counting(one: Standing) -> Standing:
        if one.trouble is not None:
            return one
        if one.table in sources:
            return replace(one, counted=counted(lakehouse, topology, sources[one.table]))
        with suppress(PositionLost, LogBroken):  # the landing's error: it has `trouble` already
            return replace(one, taken=taken(lakehouse, topology, tables[one.table]))
        return one

    return [counting(one) for one in found]


def looked(lakehouse: Lakehouse, kafka: Kafka, topology: Topology) -> tuple[Cut, list[Standing]]:
    """The end offsets of every topic now, and the state of every landing and table against them.

    Raises:
        KafkaUnavailable: no broker answers.
        TopicMissing: one of the topics does not exist.
    """
    there, ends, sent = written(kafka, topology), capture(kafka, topology), published_positions(kafka, topology)
    return ends, standings(lakehouse, topology, ends, sent, there)


def metrics(position: Position) -> dict[str, float]:
    """The operator's counters by Kafka Streams' metric name; lateness, in milliseconds, is of the newest records."""
    told: dict[str, float] = {f"record-lateness-{name}": late for name, late in position.lateness.items()}
    told["enforced-processing-total"] = position.enforced
    told["dropped-records-total"] = sum(position.dropped.values())
    return told | {f"dropped-records-total/{reason}": count for reason, count in sorted(position.dropped.items())}


def in_transactions(topic: str, ends: Mapping[int, int], written: Mapping[int, int]) -> dict[str, int]:
    """The number of offsets by partition, from the end offset on, that wait for a transaction to end."""
    kept = {partition: end - ends.get(partition, end) for partition, end in written.items()}
    return {f"{topic}-{partition}": offsets for partition, offsets in kept.items() if offsets > 0}


def undecided(kept: Mapping[str, int]) -> list[str]:
    """The offsets that wait for a transaction to end: one sentence for each partition."""
    return [f"{count} offsets of {partition} wait for a transaction to end" for partition, count in kept.items()]


def held_back(standing: Standing) -> str:
    """Everything that is held back from a landing or a table, and why, as text."""
    return "; ".join([*map(told, standing.held), *undecided(standing.in_transactions)])


def told(held: Waiting) -> str:
    """A sentence about records that are held back."""
    records = f"{held.records} record{'' if held.records == 1 else 's'} of {held.topic}-{held.partition}"
    wait = f"wait{'s' if held.records == 1 else ''} for {', '.join(held.waits_for)}"
    return f"{records} {wait} since {moment(held.since)}, until {moment(held.until)}"


def began(topic: str, floor: Mapping[int, int]) -> str:
    """A sentence about the offsets at which a landing began; empty if it began at 0."""
    places = ", ".join(f"{offset} of {topic}-{partition}" for partition, offset in sorted(floor.items()))
    return f"begins at offset {places}: the topic held nothing older when it first landed" if places else ""


def moment(milliseconds: int) -> str:
    """A time in milliseconds since 1970 as text, with its date, in UTC."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(sep=" ", timespec="seconds")


def fingerprint(ends: Cut, found: list[Standing]) -> str:
    """A hash of the end offsets and the states. It changes when a topic or a table changes, or a deadline passes."""
    stands = [None if standing.state is None else standing.state.position.to_json() for standing in found]
    now = round(1000 * time.time())
    passed = [one.over(now) for standing in found for one in standing.held]
    sent = [standing.sent and standing.sent.to_json() for standing in found]
    state = json.dumps([{topic: end.offsets for topic, end in ends.items()}, stands, passed, sent], sort_keys=True)
    return sha256(state.encode()).hexdigest()[:16]


def _standing(
    lakehouse: Lakehouse,
    topology: Topology,
    name: str,
    topics: set[str],
    inputs: dict[str, State | None],
    ends: Cut | None,
) -> Standing:
    waiting = _waiting_for(inputs)
    try:
        state = StoredTable(f"{topology.name}/{name}", lakehouse.table(topology.name, name)).state()
    except (PositionLost, LogBroken) as error:
        return Standing(name, None, None, waiting, trouble=str(error))
    refused = None if state is None else _refused(lakehouse, topology, name, state)
    if ends is None:
        return Standing(name, state, None, waiting, refused=refused)
    own: Cut = {} if state is None else state.position.cut
    redecoded = any(
        topic in own and own[topic].redecoded < at.redecoded
        for given in inputs.values()
        if given is not None
        for topic, at in given.position.cut.items()
    )
    lag: dict[str, int] = {}
    recreated = False
    for topic, end in ends.items():
        short = topic.partition("/")[2]
        if short in topics:
            have = own.get(topic)
            other = have is not None and have.topic_id != end.topic_id
            known = {} if have is None or other else have.offsets  # no record of the new topic is here
            recreated |= other
            if other and name.startswith(LANDING):
                refused = f"topic {short} was deleted and created anew: its records would mix with those that landed"
            lag[short] = sum(max(0, offset - known.get(p, 0)) for p, offset in end.offsets.items())
    return Standing(name, state, lag, waiting, refused=refused, recreated=recreated, redecoded=redecoded)


def _refused(lakehouse: Lakehouse, topology: Topology, name: str, state: State) -> str | None:
    """Why the next landing or step is refused, as far as definitions show; None if it is not."""
    try:
        if name.startswith(LANDING):
            check_landing(f"{topology.name}/{name}", state, topology.source(name.removeprefix(LANDING)))
        else:
            added_columns(lakehouse, topology, topology.table(name), state)
    except PlanChanged as error:
        return str(error)
    except (PositionLost, LogBroken):  # an input's error: the input has `trouble` itself
        return None
    return None


def _unsent(lakehouse: Lakehouse, topology: Topology, name: str, sent: PublishedPosition | None) -> int:
    """The number of versions that a table's topic does not have. If the log has no answer, publishing raises why."""
    try:
        return unpublished_versions(StoredTable.of(lakehouse, topology.name, name), sent)
    except (PositionLost, LogBroken):
        return 0
    except InputChanged:
        return 1


def _aged(sent: PublishedPosition | None) -> bool:
    return sent is not None and must_recommit(sent, round(time.time() * 1000))


def _waiting_for(inputs: dict[str, State | None]) -> tuple[str, ...]:
    """The inputs that were never computed; else those that are before another input on a topic that they share."""
    cuts = {name: state.position.cut for name, state in inputs.items() if state is not None and state.position.n > 0}
    if never := tuple(name for name in inputs if name not in cuts):
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
