"""Choose the pins of a step: for every input a version, and all of them at one cut.

A pin is the newest version of the input that changed data, with the cut of its newest own commit. Inputs whose cuts
disagree on a topic that they share would mix two prefixes of it. So the inputs that are ahead go back in their history
until all agree. This keeps a diamond consistent when one of its arms failed.

A landing is pinned by version and offsets: it may hold more records than steps may read (`engine.time_sync`), and it
can go back to any offsets. Its version is the first that holds them all, so the same offsets always give the same pin.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from spark.engine.errors import LeaderMissing, NoCommonCut
from spark.engine.log.position import Cut, Input
from spark.engine.log.stored_table import StoredTable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spark.engine.log.position import Release
    from spark.engine.offsets import TopicOffsets
    from spark.engine.ports import Ports
    from spark.topology.topology import Settings, Table, Topology


@dataclass(frozen=True)
class Pins:
    """Every input at one cut. `lagging` names the inputs whose cuts were older, which the others went back to.

    `enforced`: the cut has held records that were released although an input was empty.
    """

    inputs: dict[str, Input]
    cut: Cut
    lagging: tuple[str, ...] = ()
    enforced: bool = False


@dataclass(frozen=True)
class _Pin:
    version: int
    cut: Cut


@dataclass
class Walk:
    """The history of one input, and the present pin in it. For a landing `older` is None: it can go to any offsets."""

    name: str
    table: StoredTable
    id: str
    at: _Pin
    older: Iterator[_Pin] | None


def lowers(settings: Settings) -> bool:
    """Return whether the settings limit steps to a part of what has landed."""
    return settings.max_task_idle_ms > 0 or settings.max_records_per_tick is not None


def released(ports: Ports, topology: Topology) -> Release | None:
    """Return the release that limits the steps of a topology; None if they may read all that has landed."""
    if not lowers(topology.settings):
        return None
    keeper = topology.sources[0].landing
    state = StoredTable.of(ports.lakehouse, topology.name, keeper).state()
    return None if state is None else state.position.release


def pin(ports: Ports, topology: Topology, target: Table) -> Pins:
    """Return the newest versions of a table's inputs that agree on every topic that they share.

    `inputs` is empty, and `lagging` names an input, if it was never computed, if its first landing has not reached its
    cut, or if it is of another topology and older than all versions of another input.

    Raises:
        LeaderMissing: a table of another topology was never computed, and is not declared with `allow_missing`.
        NoCommonCut: no versions in the histories of the inputs agree, and no table of another topology lags.
    """
    landings = {source.landing for source in topology.sources}
    release = released(ports, topology)
    walks, missing = [], []
    for scan in target.inputs:
        table = StoredTable.of(ports.lakehouse, topology.name, scan.table)
        walk = _landing(table, scan.table, release) if scan.table in landings else walk_of(table, scan.table)
        if walk is None:
            check_missing(topology, target, table, scan.table)
            missing.append(scan.table)
        else:
            walks.append(walk)
    if missing:
        return Pins({}, {}, tuple(missing))
    try:
        lagging = agree(walks, f"{topology.name}/{target.name}", topology.name)
    except NoCommonCut as error:
        if topology.leader(error.slower) is None:
            raise
        return Pins({}, {}, (error.slower,))  # its own topology's tick brings it to what the others begin with
    cut = {topic: offsets for walk in walks for topic, offsets in walk.at.cut.items()}
    enforced = release is not None and any(
        topic in release.enforced and cut[topic].offsets == release.cut[topic].offsets for topic in cut
    )
    return Pins({walk.name: Input(walk.id, walk.at.version) for walk in walks}, cut, lagging, enforced)


def agree(walks: list[Walk], reader: str, topology: str) -> tuple[str, ...]:
    """Move what is ahead on a topic back in its history, until all agree; return the names of what was older.

    Raises:
        NoCommonCut: no versions in the histories agree. The message names the `reader`, and the `topology` to run.
    """
    lagging: dict[str, None] = {}
    while ahead := _ahead(walks):
        walk, topic, slower, offsets = ahead
        lagging[slower] = None
        earlier = _lowered(walk, topic, offsets)
        if earlier is None:
            error = NoCommonCut(
                f"{reader}: {walk.name} has no version as old as {slower} on topic {topic}: run "
                f"`tidetable run {topology}`; if {slower} cannot step, `tidetable status {topology}` says why"
            )
            error.slower = slower
            raise error
        walk.at = earlier
    return tuple(lagging)


def check_missing(topology: Topology, target: Table, table: StoredTable, name: str) -> None:
    """Refuse to wait for a table of another topology that has no rows yet, unless that is declared.

    Raises:
        LeaderMissing: it was never computed.
    """
    leader, state = topology.leader(name), table.state()
    if leader is None or leader.allow_missing or (state is not None and state.data_version > 0):  # it is being rebuilt
        return
    found = f"{table.path} is no table" if state is None else f"{table.path} has no commit of a step"
    raise LeaderMissing(
        f"{topology.name}.{target.name} reads {leader.dotted_name}, declared at {leader.line}, and {found}: run "
        f"`tidetable run {table.name.partition('/')[0]}` in its project, or correct from_= and lake=, or declare "
        f"allow_missing=True to wait for it"
    )


def walk_of(table: StoredTable, name: str) -> Walk | None:
    """Return the history of a table from its newest pin on; None if it was never computed."""
    state = table.state()
    if state is None or state.position.n == 0:
        return None
    older = (_Pin(commit.data_version, commit.position.cut) for commit in table.commits())
    next(older, None)  # the newest is the present pin
    return Walk(name, table, state.id, _Pin(state.data_version, state.position.cut), older)


def _landing(table: StoredTable, name: str, release: Release | None) -> Walk | None:
    state = table.state()
    if state is None or not state.position.is_readable:
        return None
    at = _Pin(state.data_version, state.position.cut)
    [(topic, landed)] = state.position.cut.items()
    if release is not None and topic in release.cut:
        known = release.cut[topic].offsets
        lower = {partition: min(offset, known.get(partition, 0)) for partition, offset in landed.offsets.items()}
        if lower != landed.offsets:
            at = _holding(table, topic, replace(landed, offsets=lower))
    return Walk(name, table, state.id, at, None)


def _lowered(walk: Walk, topic: str, offsets: TopicOffsets) -> _Pin | None:
    """Return the next older pin of an input that is ahead on a topic; None if there is none."""
    return _holding(walk.table, topic, offsets) if walk.older is None else next(walk.older, None)


def _holding(table: StoredTable, topic: str, offsets: TopicOffsets) -> _Pin:
    """Return the pin of a landing at some offsets, with the first version that holds them all."""
    commit = table.oldest_commit(lambda position: not position.cut[topic].is_before(offsets))
    return _Pin(0 if commit is None else commit.data_version, {topic: offsets})


def _ahead(walks: list[Walk]) -> tuple[Walk, str, str, TopicOffsets] | None:
    """Return an input that is ahead of another on a topic, the topic, the other's name, and the other's offsets."""
    slowest: dict[str, tuple[TopicOffsets, str]] = {}
    for walk in walks:
        for topic, offsets in walk.at.cut.items():
            if topic not in slowest or offsets.is_before(slowest[topic][0]):
                slowest[topic] = (offsets, walk.name)
    for walk in walks:
        for topic, offsets in walk.at.cut.items():
            least, slower = slowest[topic]
            if least.topic_id != offsets.topic_id:
                raise NoCommonCut(
                    f"{walk.name} and {slower} were computed from topic {topic} before and after it was "
                    f"created again: run `tidetable rebuild` for the one that is older"
                )
            if least.is_before(offsets):
                return walk, topic, slower, least
    return None
