"""What must hold of a lake, whatever happened: judged by its logs and by what was ever sent, not by the engine's code.

Names: `lost` and `duplicated` records; a version that is `impossible`, since it is not its query at its position;
`mixed` cuts in one version; a commit made `twice` or in `vain`, with a `gap` before it, or going `back` to an earlier
cut; a client that was told what is not so, a `lie`; one that was told what nothing explains, `unexpected`; a commit
in an epoch that is over, a `trespass`; a lake that does not come to rest is `stuck`.
"""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING, Any

from spark.engine.attempt import Stepped
from spark.engine.errors import EngineError, InputChanged, NoCommonCut, OffsetsExpired, PlanChanged, PositionLost
from spark.engine.land import Landed
from spark.engine.log.position import ANCHOR, CLOSED, DEFINITION, Position
from spark.engine.log.stored_table import State
from spark.engine.publish import Published
from spark.engine.publishing.position import PublishedPosition
from spark.engine.rebuild import rebuild
from spark.engine.tick import Ticked, tick
from spark.topology.nodes import LANDING
from tests.protocol.operators import as_sent, computed
from tests.protocol.world import MARKS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from spark.topology.topology import Table
    from tests.protocol.delta import Version
    from tests.protocol.world import World

EXPIRED = "records expired before they were landed, and it was said"
FORGOTTEN = "a topic may have lost its newest records, and it was said"
REPAIRED = (PositionLost, PlanChanged, InputChanged, NoCommonCut)
"""What a rebuild mends."""

ROUNDS = 30  # ticks in which a lake must come to rest: slices take a record a tick


def judged(world: World) -> list[str]:
    """What is wrong with a world, when all that is left to do was done."""
    wrong = settle(world)
    expired, forgotten = wrong == [EXPIRED], wrong == [FORGOTTEN]
    if expired or forgotten:
        wrong = []
    for path in sorted(world.lake.logs):
        wrong += versions(world, path)
    published = [table for table in world.topology.tables if table.topic is not None]
    wrong += [line for table in published for line in sent(world, table, ended=not forgotten)]
    return wrong or told(world) + ([] if expired else ended(world))


def settle(world: World) -> list[str]:
    """Tick, without any fault, until there is nothing to do; rebuild what says that it needs it."""
    for number in range(ROUNDS):
        done = tick(world.ports, world.topology, f"settling {number}")
        forgotten = {name for name, error in done.failed.items() if "is, is not known: group" in str(error)}
        for name, error in done.failed.items():
            if isinstance(error, OffsetsExpired):
                return [EXPIRED]
            if name.startswith(LANDING) or not isinstance(error, REPAIRED):
                return [f"stuck: {name} cannot go on: {type(error).__name__}: {error}"]
            if name.startswith("kafka/"):  # its table was refused as well
                continue
            try:
                rebuild(world.ports, world.topology, world.topology.table(name), f"rebuilding {number}")
            except EngineError as again:
                return [f"stuck: {name} cannot be rebuilt: {type(again).__name__}: {again}"]
        outcomes: set[str] = {one.outcome for one in done.landed} | {one.outcome for one in done.stepped}
        outcomes |= {one.outcome for one in done.published}
        if done.failed.keys() == forgotten and outcomes <= {"idle", "waiting"}:
            waiting = [one.table for one in done.stepped if one.outcome == "waiting"]
            rest = [FORGOTTEN] if forgotten else []
            return [f"stuck: {', '.join(waiting)} waits for ever"] if waiting else rest
    return [f"stuck: no rest after {ROUNDS} ticks"]


def own(world: World, path: str) -> Iterator[tuple[int, Version, Position, bool]]:
    """The commits of a table in the epoch that it then had; and whether one was restored since the one before it."""
    restored = False
    for number, version in enumerate(world.lake.logs[path].versions):
        restored = restored or version.operation == "RESTORE"
        at = Position.from_json(version.metadata)
        anchor = Position.from_json(version.properties.get(ANCHOR))
        if at is None or anchor is None or at.table != path or at.epoch != anchor.epoch or at.n == CLOSED:
            continue
        if at.n == 0:
            restored = False
        elif version.app == f"{path}/{at.epoch}":
            yield number, version, at, restored
            restored = False


def versions(world: World, path: str) -> list[str]:
    """Every version of a table that names a position is possible."""
    wrong = trespassed(world, path)
    earlier: dict[str, Position] = {}
    for number, version, at, restored in own(world, path):
        where = f"version {number} of {path}, number {at.n}"
        was = earlier.get(at.epoch)
        if was is not None and at.n <= was.n:
            wrong.append(f"twice: {where} after {was.n}")
        if was is not None and was.n + 1 != at.n:
            wrong.append(f"gap: {where} after {was.n}")
        if (
            was is not None
            and at.restored is None
            and any(at.cut[topic].is_before(was.cut[topic]) for topic in was.cut.keys() & at.cut.keys())
        ):
            wrong.append(f"back: {where} is before {was.n}")
        if (
            was is not None
            and not at.whole
            and at.restored is None
            and (at.cut, at.inputs, at.release) == (was.cut, was.inputs, was.release)
        ):
            wrong.append(f"vain: {where} moved nothing since {was.n}")
        earlier[at.epoch] = at
        if not restored:
            wrong += landing(world, path, version, at, where) if LANDING in path else derived(world, version, at, where)
    return wrong


def trespassed(world: World, path: str) -> list[str]:
    """Nobody changed a table in another epoch than the one it had begun.

    Before its first commit an epoch claims nothing; nor does a table that was restored, until it has a new one.
    """
    wrong, begun = [], ""
    for number, version in enumerate(world.lake.logs[path].versions):
        at, anchor = Position.from_json(version.metadata), Position.from_json(version.properties.get(ANCHOR))
        if version.operation == "RESTORE" or anchor is None or (version.sets_properties and anchor.epoch != begun):
            begun = ""
        if at is None or version.app != f"{path}/{at.epoch}" or at.n == CLOSED:
            continue
        if anchor is not None and at.epoch == anchor.epoch:
            begun = at.epoch
        elif begun and version.changed:
            wrong.append(f"trespass: version {number} of {path}, number {at.n}, is of an epoch that is over")
    return wrong


def landing(world: World, path: str, version: Version, at: Position, where: str) -> list[str]:
    """The data is exactly the records up to the offsets."""
    [(topic, ends)] = at.cut.items()
    should = Counter(world.broker.between(topic.partition("/")[2], at.floor, ends.offsets))
    there = Counter(version.rows)
    lost, more = should - there, there - should
    wrong = [f"lost: {where} of {path} has not {sorted(lost)}"] if lost else []
    return wrong + ([f"duplicated: {where} of {path} has {sorted(more)} too often"] if more else [])


def derived(world: World, version: Version, at: Position, where: str) -> list[str]:
    """The rows are the query over the versions that the commit names, and these agree on every topic."""
    topology = at.table.partition("/")[0]
    mark = MARKS[version.properties[DEFINITION]]
    should = computed(world.lake, topology, mark, at.inputs, at.cut)
    keys = Counter(key for key, _ in version.rows)
    wrong = [f"duplicated: {where} has {key} {count} times" for key, count in keys.items() if count > 1]
    if dict(version.rows) != should:
        wrong.append(f"impossible: {where} is {dict(version.rows)}, and should be {should}")
    return wrong + mixed(world, at, where)


def mixed(world: World, at: Position, where: str) -> list[str]:
    """Every input, at the version that is named, was at the cut that is named."""
    wrong = []
    for name, pinned in at.inputs.items():
        path = f"{at.table.partition('/')[0]}/{name}"
        log = world.lake.logs[path].versions
        rows = sorted(log[pinned.version].rows)
        cuts = [was.cut for _, version, was, _ in own(world, path) if sorted(version.rows) == rows]
        if name.startswith(LANDING):
            agree = any(not cut[topic].is_before(at.cut[topic]) for cut in cuts for topic in cut)
        else:
            agree = any(cut.items() <= at.cut.items() for cut in cuts)
        if not agree:
            wrong.append(f"mixed: {where} names {name} at {pinned.version}, which was never at {at.cut}")
    return wrong


def sent(world: World, table: Table, ended: bool) -> list[str]:
    """A topic has every version of its table that changed it, whole, in order, once; and is at the newest of ours.

    One that was not `ended` got nothing twice.
    """
    assert table.topic is not None
    path = f"{world.topology.name}/{table.name}"
    places: dict[tuple[int, int], tuple[Mapping[str, str], str, str | None]] = {}
    for number, partition in enumerate(world.broker.topics[table.topic]):
        before = (-1, -1)
        for record in partition.records:
            if record.key is None:
                continue
            behind = PublishedPosition.after_record(record.headers)
            at = behind.version, behind.ordinal - 1
            if at in places:
                return [f"duplicated: record {at[1]} of version {at[0]} of {path} is in {table.topic} again"]
            if at < before:
                return [f"back: {table.topic}-{number} has record {at} of {path} behind {before}"]
            places[at], before = (record.headers, str(record.key), record.value), at
    if not ended:
        return []
    rows: dict[str, str | None] = {}
    there: dict[str, str | None] = {}
    for version, found in groupby(sorted(places), lambda at: at[0]):
        ordinals = [ordinal for _, ordinal in found]
        last = [ordinal for ordinal in ordinals if PublishedPosition.after_record(places[version, ordinal][0]).done]
        if ordinals != list(range(len(ordinals))) or last != ordinals[-1:]:
            return [f"lost: {table.topic} has records {ordinals} of version {version} of {path}, {last} being the last"]
        rows |= {key: value for _, key, value in (places[version, ordinal] for ordinal in ordinals)}
        there = {key: value for key, value in rows.items() if value is not None}
        if there != (should := _texts(world, path, version)):
            return [f"impossible: {table.topic} at version {version} of {path} is {there}, and should be {should}"]
    newest = len(world.lake.log(path).versions)
    if newest and there != (should := _texts(world, path, newest - 1)):
        return [f"lost: in the end {table.topic} has {there} of {should}"]
    return []


def _texts(world: World, path: str, version: int) -> dict[str, str | None]:
    sent = [as_sent(version, row) for row in world.lake.at(path, version).rows]
    return {key.decode(): None if value is None else value.decode() for _, key, value, _ in sent}


def told(world: World) -> list[str]:
    """Who was told of a commit finds it."""
    wrong = []
    positions = {text for name in world.broker.names.values() for text in name.committed}
    for who, what in world.told:
        for done in what.published if isinstance(what, Ticked) else [what]:
            has = done.after if isinstance(done, Published) and done.transactions else None
            if has is not None and has.to_json() not in positions:
                wrong.append(f"lie: {who} was told that a topic has version {has.version}")
        for result in [*what.landed, *what.stepped] if isinstance(what, Ticked) else [what]:
            at = promised(result)
            if at is not None and not any(made == at and not restored for *_, made, restored in own(world, at.table)):
                wrong.append(f"lie: {who} was told that {at.table} was committed with number {at.n} by {at.run}")
    return wrong


def promised(result: object) -> Position | None:
    """The position that a client was told it committed."""
    match result:
        case (
            Landed(outcome="landed", position=at) | Stepped(outcome="stepped" | "positioned", after=State(position=at))
        ):
            return at
    return None


def ended(world: World) -> list[str]:
    """In the end everything is there, once, up to the ends of the topics."""
    wrong = []
    ends = world.broker.end_offsets([source.topic for source in world.topology.sources])
    expected: dict[str, dict[Any, Any]] = {}
    for source in world.topology.sources:
        path = f"{world.topology.name}/{source.landing}"
        landed = {row for row in world.lake.log(path).versions[-1].rows} if world.lake.log(path).versions else set()
        floor = next((at.floor for *_, at, _ in own(world, path)), {})
        sent = world.broker.between(source.topic, floor, ends[source.topic].offsets)
        if landed != set(sent):
            wrong.append(f"lost: in the end {path} has {sorted(landed)} of {sent}")
        newest = {key: value for _, (key, value) in sorted(sent)}
        expected[source.topic] = {key: value for key, value in newest.items() if value is not None}
    for table in world.topology.tables:
        path = f"{world.topology.name}/{table.name}"
        if table.name not in expected:
            mark = MARKS[world.lake.log(path).versions[-1].properties[DEFINITION]]
            rows: dict[Any, dict[str, Any]] = {}
            for scan in table.inputs:
                for key, row in expected[scan.table].items():
                    rows.setdefault(key, {})[scan.table] = row
            expected[table.name] = {key: (mark, tuple(sorted(parts.items()))) for key, parts in rows.items()}
        if sorted(world.lake.log(path).versions[-1].rows) != sorted(expected[table.name].items()):
            wrong.append(f"lost: in the end {path} is {world.lake.log(path).versions[-1].rows}")
    return wrong
