"""Choose the position to step to: for every input a version, and all of them at one cut.

A pin is the newest version of the input that changed data, together with the cut of its newest own commit. Inputs whose
cuts disagree on a topic they share would mix two prefixes of it, so the ones that are ahead go back in their history
until all agree. That is what keeps a diamond consistent when one of its arms failed.
A landing is pinned by version and offsets: it may hold more than the steps may take (`spark.engine.sync`), and it goes
back to any offsets. Its version is the first that holds them all, so the same offsets are always the same pin.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from spark.engine import position as positions
from spark.engine.errors import NoCommonCut
from spark.engine.position import Cut, Input

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spark.engine.doors import Doors
    from spark.engine.offsets import TopicOffsets
    from spark.engine.position import Release
    from spark.topology.topology import Settings, Table, Topology


@dataclass(frozen=True)
class Pins:
    """Every input at one cut. `behind` names the inputs that kept others from a newer one.

    `enforced` says that the cut was let go although an input was empty.
    """

    inputs: dict[str, Input]
    cut: Cut
    behind: tuple[str, ...] = ()
    enforced: bool = False


@dataclass(frozen=True)
class _Pin:
    version: int
    cut: Cut


@dataclass
class _Walk:
    """One input's history, and where in it we stand; a landing's is its path, since it goes back to any offsets."""

    name: str
    id: str
    at: _Pin
    older: Iterator[_Pin] | str


def lowers(settings: Settings) -> bool:
    """Whether steps may be kept from taking all that has landed."""
    return settings.max_task_idle_ms > 0 or settings.max_records_per_tick is not None


def released(doors: Doors, topology: Topology) -> Release | None:
    """How far steps may go. None: as far as anything has landed."""
    if not lowers(topology.settings):
        return None
    keeper = topology.sources[0].landing
    state = positions.read(doors.lakehouse.table(topology.name, keeper), f"{topology.name}/{keeper}")
    return None if state is None else state.position.release


def pin(doors: Doors, topology: Topology, table: Table) -> Pins:
    """The newest versions of a table's inputs that agree on every topic they share.

    Where an input was never computed there is no such version yet: `inputs` is empty and `behind` names it.

    Raises:
        NoCommonCut: the histories reach back too little to agree.
    """
    landings = {source.landing for source in topology.sources}
    release = released(doors, topology)
    walks, missing = [], []
    for scan in table.inputs:
        path, name = doors.lakehouse.table(topology.name, scan.table), f"{topology.name}/{scan.table}"
        walk = _landed(path, name, scan.table, release) if scan.table in landings else _walk(path, name, scan.table)
        if walk is None:
            missing.append(scan.table)
        else:
            walks.append(walk)
    if missing:
        return Pins({}, {}, tuple(missing))
    behind: dict[str, None] = {}
    while ahead := _ahead(walks):
        walk, topic, slower, offsets = ahead
        behind[slower] = None
        earlier = _lowered(walk, topology.name, topic, offsets)
        if earlier is None:
            raise NoCommonCut(
                f"{topology.name}/{table.name}: {walk.name} has no version as old as {slower} on topic {topic}: run "
                f"`tidetable run {topology.name}`; if {slower} cannot step, `tidetable status {topology.name}` says why"
            )
        walk.at = earlier
    cut = {topic: offsets for walk in walks for topic, offsets in walk.at.cut.items()}
    enforced = release is not None and any(
        topic in release.enforced and cut[topic].offsets == release.cut[topic].offsets for topic in cut
    )
    return Pins({walk.name: Input(walk.id, walk.at.version) for walk in walks}, cut, tuple(behind), enforced)


def _walk(path: str, table: str, name: str) -> _Walk | None:
    state = positions.read(path, table)
    if state is None or state.position.n == 0:
        return None
    older = (_Pin(commit.data_version, commit.position.cut) for commit in positions.commits(path, table))
    next(older, None)  # the newest is where we stand already
    return _Walk(name, state.id, _Pin(state.data_version, state.position.cut), older)


def _landed(path: str, table: str, name: str, release: Release | None) -> _Walk | None:
    state = positions.read(path, table)
    if state is None or state.position.n == 0:
        return None
    at = _Pin(state.data_version, state.position.cut)
    [(topic, landed)] = state.position.cut.items()
    if release is not None and topic in release.cut:
        known = release.cut[topic].offsets
        lower = {partition: min(offset, known.get(partition, 0)) for partition, offset in landed.offsets.items()}
        if lower != landed.offsets:
            at = _holding(path, table, topic, replace(landed, offsets=lower))
    return _Walk(name, state.id, at, path)


def _lowered(walk: _Walk, topology: str, topic: str, offsets: TopicOffsets) -> _Pin | None:
    """Where an input that is ahead on a topic stood before."""
    if isinstance(walk.older, str):
        return _holding(walk.older, f"{topology}/{walk.name}", topic, offsets)
    return next(walk.older, None)


def _holding(path: str, table: str, topic: str, offsets: TopicOffsets) -> _Pin:
    """A landing at some of its offsets, by the first version that holds them all."""
    version = 0
    for commit in positions.commits(path, table):
        if before(commit.position.cut[topic], offsets):
            break
        version = commit.data_version
    return _Pin(version, {topic: offsets})


def _ahead(walks: list[_Walk]) -> tuple[_Walk, str, str, TopicOffsets] | None:
    """An input that is further on some topic than another one, the topic, that other one, and how far that is."""
    slowest: dict[str, tuple[TopicOffsets, str]] = {}
    for walk in walks:
        for topic, offsets in walk.at.cut.items():
            if topic not in slowest or before(offsets, slowest[topic][0]):
                slowest[topic] = (offsets, walk.name)
    for walk in walks:
        for topic, offsets in walk.at.cut.items():
            least, slower = slowest[topic]
            if least.topic_id != offsets.topic_id:
                raise NoCommonCut(
                    f"{walk.name} and {slower} were computed from topic {topic} before and after it was "
                    f"created anew: run `tidetable rebuild` for the one that is older"
                )
            if before(least, offsets):
                return walk, topic, slower, least
    return None


def before(one: TopicOffsets, other: TopicOffsets) -> bool:
    """Whether one cut of a topic is older than another. Cuts of a topic are taken one after the other."""
    return one.redecoded < other.redecoded or any(
        one.offsets.get(partition, 0) < offset for partition, offset in other.offsets.items()
    )
