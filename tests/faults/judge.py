"""The oracle's verdict on what a cell left: nothing lost, nothing twice, every version possible, offsets that are true.

What was sent is known, so what must be there is computed in dicts; tables are read by another reader of Delta than the
engine, topics by a reader of committed records. Every version that came of the cell is audited.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deltalake import DeltaTable

from spark.engine.audit import audit
from spark.engine.log.stored_table import StoredTable
from spark.engine.publishing.position import published_position
from tests.support import lake
from tests.support.lake import received

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping

    from resources.kafka import Kafka
    from spark.engine.log.stored_table import Commit
    from spark.engine.ports import Ports
    from spark.topology import Topology
    from tests.faults.world import World


@dataclass(frozen=True)
class Verdict:
    """How much is missing, and is too much (rows, records, commits); impossible versions; untrue positions."""

    lost: int = 0
    duplicated: int = 0
    impossible: int = 0
    untrue: int = 0

    @property
    def holds(self) -> bool:
        """Whether everything is there once, and says so."""
        return self == Verdict()


def _compared(expected: Iterable[Hashable], found: Iterable[Hashable]) -> tuple[int, int]:
    """How many are missing, and how many are too many."""
    should, there = Counter(expected), Counter(found)
    return (should - there).total(), (there - should).total()


def _again(commits: Iterable[Commit], since: int) -> int:
    """How many commits behind a version made again what one of them made."""
    return max(0, sum(commit.version > since for commit in commits) - 1)


def of_landing(world: World, ports: Ports, topic: str, waves: int, since: int) -> Verdict:
    """Every record is there once, by one commit; at every version, the records up to its offsets and no others."""
    landing = world.topology.source(topic).landing
    commits = list(StoredTable(f"{world.topology.name}/{landing}", lake.path(ports, world.topology, landing)).commits())
    sent = [
        (offset, key, None if row is None else row.get("amount"), None if row is None else row.get("name"))
        for offset, (key, row) in enumerate(world.sent(topic, waves))
    ]
    key = world.topology.source(topic).consumed.key[0].name
    stored = [
        (row["_offset"], row[key], row.get("amount"), row.get("name"))
        for row in lake.records(ports, world.topology, topic)
    ]
    wrong = [commit for commit in commits if not _true_offsets(world, ports, landing, commit)]
    ends = {name.partition("/")[2]: offsets.offsets for name, offsets in commits[0].position.cut.items()}
    lost, duplicated = _compared(sent, stored)
    return Verdict(lost, duplicated + _again(commits, since), len(wrong), int(ends != {topic: {0: len(sent)}}))


def _true_offsets(world: World, ports: Ports, landing: str, commit: Commit) -> bool:
    [cut] = commit.position.cut.values()
    stored = lake.listed(lake.path(ports, world.topology, landing), commit.version)
    found = sorted((int(str(row["_partition"])), int(str(row["_offset"]))) for row in stored)
    return found == [(p, offset) for p, end in sorted(cut.offsets.items()) for offset in range(end)]


def of_table(world: World, ports: Ports, made: Topology, waves: int, since: int, once: bool) -> Verdict:
    """The rows are the oracle's, every version since one is its query, and the newest says how far it is.

    `once`: by one commit; a rebuild or a restore that runs again commits again.
    """
    path, name = lake.path(ports, made, "joined"), f"{made.name}/joined"
    stored = [(row["order_id"], row["amount"], row["name"]) for row in lake.listed(path)]
    expected = [(key, row["amount"], row["name"]) for key, row in world.story.joined(waves).items()]
    commits = list(StoredTable(name, path).commits())
    versions = {DeltaTable(path).version(), *(commit.version for commit in commits if commit.version > since)}
    audited = [audit(ports, made, made.table("joined"), version) for version in sorted(versions)]
    cut = {name.partition("/")[2]: offsets.offsets for name, offsets in commits[0].position.cut.items()}
    true = {source.topic: {0: len(world.sent(source.topic, waves))} for source in world.topology.sources}
    lost, duplicated = _compared(expected, stored)
    duplicated += _again(commits, since) if once else 0
    return Verdict(lost, duplicated, sum(not one.holds for one in audited), int(cut != true))


def of_topic(world: World, ports: Ports, kafka: Kafka, made: Topology, first: bool) -> Verdict:
    """A reader of committed records has every change once, the changes of a key in order; and the group's position."""
    target = made.table("joined")
    told, records = world.story.told(), received(kafka, str(target.topic))
    expected = [(key, _frozen(row)) for key, row in (told[: len(world.story.joined(1))] if first else told)]
    found = [(one.change[0], _frozen(one.change[1])) for one in records]
    mixed = [
        key
        for key in {key for key, _ in found}
        if [r for k, r in found if k == key] != [r for k, r in expected if k == key]
    ]
    lost, duplicated = _compared(expected, found)
    state, sent = lake.state(ports, made, "joined"), published_position(kafka, made, target)
    true = sent is not None and sent.done and (sent.id, sent.version) == (state.id, state.own)
    return Verdict(lost, duplicated, 0 if lost or duplicated else len(mixed), int(not true))


def _rows(changes: list[tuple[Hashable, Hashable]], key: Hashable) -> list[Hashable]:
    return [row for of, row in changes if of == key]


def _frozen(row: Mapping[str, object] | None) -> Hashable:
    return None if row is None else tuple(sorted(row.items()))


def newest(ports: Ports, made: Topology, name: str) -> int:
    """The newest version of a table, -1 where there is none."""
    path = lake.path(ports, made, name)
    return DeltaTable(path).version() if DeltaTable.is_deltatable(path) else -1
