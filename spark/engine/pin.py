"""Choose the position to step to: for every input a version, and all of them at one cut.

A pin is the newest version of the input that changed data, together with the cut of its newest own commit. Inputs whose
cuts disagree on a topic they share would mix two prefixes of it, so the ones that are ahead go back in their history
until all agree. That is what keeps a diamond consistent when one of its arms failed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark.engine import position as positions
from spark.engine.errors import NoCommonCut
from spark.engine.position import Cut, Input

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spark.engine.doors import Doors
    from spark.engine.offsets import TopicOffsets
    from spark.topology.topology import Table


@dataclass(frozen=True)
class Pins:
    """Every input at one cut. `behind` names the inputs that kept others from a newer one."""

    inputs: dict[str, Input]
    cut: Cut
    behind: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Pin:
    version: int
    cut: Cut


@dataclass
class _Walk:
    """One input's history, and where in it we stand."""

    name: str
    id: str
    at: _Pin
    older: Iterator[_Pin]


def pin(doors: Doors, topology: str, table: Table) -> Pins:
    """The newest versions of a table's inputs that agree on every topic they share.

    Where an input was never computed there is no such version yet: `inputs` is empty and `behind` names it.

    Raises:
        NoCommonCut: the histories reach back too little to agree.
    """
    walks, missing = [], []
    for scan in table.inputs:
        walk = _walk(doors.lakehouse.table(topology, scan.table), f"{topology}/{scan.table}", scan.table)
        if walk is None:
            missing.append(scan.table)
        else:
            walks.append(walk)
    if missing:
        return Pins({}, {}, tuple(missing))
    behind: dict[str, None] = {}
    while ahead := _ahead(walks):
        walk, topic, slower = ahead
        behind[slower] = None
        earlier = next(walk.older, None)
        if earlier is None:
            raise NoCommonCut(
                f"{topology}/{table.name}: {walk.name} has no version as old as {slower} on topic {topic}: "
                f"run `tidetable run {topology}`; if {slower} cannot step, `tidetable status {topology}` says why"
            )
        walk.at = earlier
    cut = {topic: offsets for walk in walks for topic, offsets in walk.at.cut.items()}
    return Pins({walk.name: Input(walk.id, walk.at.version) for walk in walks}, cut, tuple(behind))


def _walk(path: str, table: str, name: str) -> _Walk | None:
    state = positions.read(path, table)
    if state is None or state.position.n == 0:
        return None
    older = (_Pin(commit.data_version, commit.position.cut) for commit in positions.commits(path, table))
    next(older, None)  # the newest is where we stand already
    return _Walk(name, state.id, _Pin(state.data_version, state.position.cut), older)


def _ahead(walks: list[_Walk]) -> tuple[_Walk, str, str] | None:
    """An input that is further on some topic than another one, the topic, and that other one."""
    slowest: dict[str, tuple[TopicOffsets, str]] = {}
    for walk in walks:
        for topic, offsets in walk.at.cut.items():
            if topic not in slowest or before(offsets, slowest[topic][0]):
                slowest[topic] = (offsets, walk.name)
    for walk in walks:
        for topic, offsets in walk.at.cut.items():
            if slowest[topic][0].topic_id != offsets.topic_id:
                raise NoCommonCut(
                    f"{walk.name} and {slowest[topic][1]} were computed from topic {topic} before and after it was "
                    f"created anew: run `tidetable rebuild` for the one that is older"
                )
            if before(slowest[topic][0], offsets):
                return walk, topic, slowest[topic][1]
    return None


def before(one: TopicOffsets, other: TopicOffsets) -> bool:
    """Whether one cut of a topic is older than another. Cuts of a topic are taken one after the other."""
    return any(one.offsets.get(partition, 0) < offset for partition, offset in other.offsets.items())
