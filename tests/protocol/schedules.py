"""A schedule: a world, its clients and what befalls them, all drawn from one seed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from random import Random
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from spark.engine.errors import (
    CannotRestore,
    EngineError,
    InputChanged,
    NotCommitted,
    OffsetsExpired,
)
from spark.engine.land import capture, land
from spark.engine.log.stored_table import StoredTable
from spark.engine.offsets import KafkaUnavailable
from spark.engine.publish import publish
from spark.engine.rebuild import rebuild
from spark.engine.restore import restore
from spark.engine.step import step
from spark.engine.tick import Ticked, tick
from tests.faults.boundaries import BOUNDARIES
from tests.protocol.broker import Broker
from tests.protocol.delta import EngineGone, Lake, Write
from tests.protocol.oracle import REPAIRED, judged
from tests.protocol.turns import ANY, Client, Died, Fault, Place, Turns
from tests.protocol.world import KEYS, MORE_KEYS, PARTITIONS, SINK, TOPOLOGIES, World

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark.engine.ports import Ports
    from spark.topology import Topology
    from tests.protocol.broker import Partition
    from tests.protocol.delta import Log
    from tests.protocol.world import Simulation

FAULTS: tuple[Fault, ...] = (
    "killed",
    "killed",
    "asleep",
    "asleep",
    "asleep",
    "engine killed",
    "answer lost",
    "sent again",
)
PLACES = (*BOUNDARIES, "log read", "in the broker", *("merged", "appended", "in the engine", "answered") * 3)

TOPICS = {"orders": PARTITIONS, "customers": PARTITIONS, SINK: PARTITIONS}

ALWAYS: tuple[type[Exception], ...] = (EngineGone, NotCommitted)
"""What a client may be told in any world: nobody answered, or others were faster again and again."""


@dataclass(frozen=True)
class Kind:
    """A kind of schedule: what is there, who works on it, and what clients may be told besides."""

    topology: str
    verbs: tuple[str, ...]
    others: tuple[str, ...] = ()
    effects: int = 60
    """About so many there are; faults are spread over them."""
    may_say: tuple[type[Exception], ...] = ()
    weight: int = 1


ARMS = ("orders", "left", "right", "both")

KINDS = {
    "landing": Kind("single", ("land",), ("sent", "in a transaction", "a partition more", "optimized"), 25, weight=7),
    "retention": Kind("single", ("land",), ("sent", "expired"), 25, (OffsetsExpired,)),
    "stepping": Kind("single", ("land", "step orders", "tick"), ("sent", "optimized", "by hand"), 40, weight=6),
    "chain": Kind("chain", ("step orders", "step left", "tick"), ("sent", "optimized", "by hand"), 50, weight=3),
    "rebuilt": Kind("chain", ("rebuild left", "step left", "tick"), ("sent", "rebuilt"), 60, (InputChanged,), weight=3),
    "defined anew": Kind(
        "chain", ("step left", "tick"), ("sent", "defined anew", "defined anew"), 60, REPAIRED, weight=3
    ),
    "put back": Kind(
        "chain",
        ("restore left", "step left", "tick"),
        ("sent", "optimized"),
        60,
        (CannotRestore, InputChanged),
        weight=2,
    ),
    "restored": Kind(
        "chain", ("step left", "tick"), ("restored", "restored", "rebuilt", "sent"), 60, REPAIRED, weight=3
    ),
    "published": Kind(
        "published",
        ("publish left", "step left", "tick"),
        ("sent", "optimized", "a transaction times out", "the group is forgotten"),
        60,
        (KafkaUnavailable,),
        weight=3,
    ),
    "forgotten": Kind(
        "published",
        ("publish left", "step left", "tick"),
        ("sent", "forgotten", "forgotten"),
        60,
        (KafkaUnavailable, InputChanged),
        weight=2,
    ),
    "rebuilt and published": Kind(
        "published",
        ("publish left", "rebuild left", "tick"),
        ("sent", "restored", "rebuilt", "the group is forgotten"),
        70,
        (KafkaUnavailable, *REPAIRED),
        weight=3,
    ),
    "diamond": Kind("diamond", ("tick", "land", *(f"step {name}" for name in ARMS)), ("sent",), 80, weight=4),
    "slices": Kind("slices", ("tick", *(f"step {name}" for name in ARMS)), ("sent",), 100),
}
DRAWN = tuple(name for name, kind in KINDS.items() for _ in range(kind.weight))


def failures(simulation: Simulation, seed: int, tell: bool = False) -> tuple[str, list[str], list[str]]:
    """Play the schedule of a seed: its kind, what is wrong with it, and what happened if somebody wants to know."""
    random = Random(seed)
    kind = KINDS[name := kind_of(seed)]
    turns = Turns(random, struck(random, kind.effects), switching=random.choice((0.1, 0.3, 0.8)))
    turns.told = [] if tell else None
    try:
        world = begun(simulation, turns, kind.topology, random.random() < 0.2)
    except EngineError as error:
        return name, [f"stuck: even without any fault: {error}"], []
    verbs = random.choices(kind.verbs, k=random.choice((1, 1, 2)))
    for number in range(random.choice((1, 2, 2, 3))):
        if random.random() < 0.5:  # else it does what the one before does
            verbs = random.choices(kind.verbs, k=random.choice((1, 1, 2)))
        turns.start(client := Client(f"client {number}"), partial(working, world, client, verbs))
    for number in range(random.choice((1, 1, 2, 2))):
        client = Client(f"other {number}")
        turns.start(client, partial(other, world, client, random.choice(kind.others)))
    turns.run()
    wrong = unexpected(world, turns, kind) or judged(world)
    return name, wrong, turns.told or []


def unexpected(world: World, turns: Turns, kind: Kind) -> list[str]:
    """What clients were told, or ended with, that nothing in their world explains."""
    told = [(who, said) for who, said in world.told if not isinstance(said, Ticked)]
    told += [(who, error) for who, said in world.told if isinstance(said, Ticked) for error in said.failed.values()]
    told += [(task.client.name, task.error) for task in turns.tasks if not isinstance(task.error, Died)]
    return [
        f"unexpected: {who} was told {type(error).__name__}: {error}"
        for who, error in told
        if isinstance(error, BaseException) and not isinstance(error, (*ALWAYS, *kind.may_say))
    ]


def kind_of(seed: int) -> str:
    """The kind of a seed's schedule."""
    return DRAWN[seed % len(DRAWN)]


def struck(random: Random, effects: int) -> dict[Place, Fault]:
    """A few faults: anywhere, or at an effect of some name."""
    places = [
        (ANY, random.randrange(effects)) if random.random() < 0.5 else (random.choice(PLACES), random.randrange(3))
        for _ in range(random.choice((0, 1, 1, 2, 3)))
    ]
    found = {place: random.choice(FAULTS) for place in places}
    if random.random() < 0.3:  # what fences are for: it wakes up when others have gone on
        found[random.choice(("session opened", "merged", "appended", "in the engine")), 0] = "asleep"
    return found


def begun(simulation: Simulation, turns: Turns, topology: str, empty: bool) -> World:
    """A world with some history, or none, and records that nobody landed yet."""
    logs, broker = settled(simulation, topology)
    if empty:
        logs, broker = {}, Broker(TOPICS)
    world = World(TOPOLOGIES[topology], turns, Lake(turns, logs), broker.copy())
    simulation.world = world
    for _ in range(turns.random.randrange(1, 4)):
        sent(world)
    return world


@cache
def settled(simulation: Simulation, topology: str) -> tuple[Mapping[str, Log], Broker]:
    """A world in which a first wave was landed and stepped, and a second one landed, for tables to step to."""
    turns = Turns(Random(0), {}, 0)
    world = World(TOPOLOGIES[topology], turns, Lake(turns), Broker(TOPICS))
    simulation.world = world
    for key in KEYS:
        world.broker.send("orders", key)
        world.broker.send("customers", key)
    tick(world.ports, world.topology, "first")
    if topology in ("chain", "published"):  # whose table has had two epochs
        world.lake.restore(f"{topology}/left", 0)
        rebuild(world.ports, world.topology, world.topology.table("left"), "restored")
    world.broker.send("orders", 0)
    world.broker.send("orders", 1, tombstone=True)
    for source in world.topology.sources:
        land(world.ports, world.topology, source, capture(world.broker, world.topology), "second")
    if topology != "single":
        step(world.ports, world.topology, world.topology.table("orders"), "second")
    return world.lake.logs, world.broker


def working(world: World, client: Client, verbs: list[str]) -> None:
    """A client's process: one verb after the other; once more where it heard no answer, as anybody would."""
    for verb in verbs:
        for attempt in range(2):
            run = f"{client.name}, {verb}, {attempt}"
            try:
                world.told.append((run, done(world.ports, world.topology, verb, run)))
            except Died:
                return
            except (EngineError, KafkaUnavailable, PySparkException) as error:
                world.told.append((run, error))
                world.turns.say(f"{client.name} is told {type(error).__name__}: {error}")
                if isinstance(error, (EngineGone, KafkaUnavailable)) and world.turns.random.random() < 0.5:
                    continue
            break


def done(ports: Ports, topology: Topology, verb: str, run: str) -> object:
    """What comes of a verb."""
    match verb.split(" "):
        case ["land"]:
            [source, *_] = topology.sources
            return land(ports, topology, source, capture(ports.kafka, topology), run)
        case ["step", name]:
            return step(ports, topology, topology.table(name), run)
        case ["restore", name]:  # to what it was two commits ago, or at all
            path = f"{topology.name}/{name}"
            known = [] if StoredTable(path, path).state() is None else list(StoredTable(path, path).commits())
            return restore(ports, topology, topology.table(name), run, version=known[:3][-1].version if known else 0)
        case ["publish", name]:
            return publish(ports, topology, topology.table(name))
        case ["rebuild", name]:
            return rebuild(ports, topology, topology.table(name), run)
        case _:
            return tick(ports, topology, run)


def other(world: World, client: Client, what: str) -> None:
    """What happens besides: others send, expire, compact, restore."""
    world.turns.cross(what)
    world.turns.say(what)
    match what:
        case "sent":
            for _ in range(world.turns.random.randrange(1, 4)):
                sent(world)
                world.turns.cross("sent more")
        case "in a transaction":
            committed = world.turns.random.random() < 0.7
            partition: Partition = world.broker.begin("orders", world.turns.random.choice(KEYS))
            try:
                world.turns.cross("committed" if committed else "aborted")
            finally:  # the broker ends the transaction of a producer that died
                world.broker.end(partition, committed)
        case "a partition more":
            world.broker.add("orders", PARTITIONS + 1)
            sent(world, MORE_KEYS)
        case "expired":
            for partition in world.broker.topics["orders"]:
                partition.first = world.turns.random.randint(partition.first, partition.stable)
        case "a transaction times out":
            for name, topic in world.broker.names:
                world.broker.opened(name, topic)
        case "the group is forgotten":
            world.broker.forget()
        case "forgotten":  # nobody published for long, and retention goes on
            world.broker.forget()
            for partition in world.broker.topics[SINK]:
                world.turns.cross("records removed")
                if world.turns.random.random() < 0.6:
                    partition.first = partition.stable
        case "optimized":
            optimized(world)
        case "by hand":
            by_hand(world)
        case "restored":
            restored(world)
            working(world, client, ["rebuild left"])
        case "rebuilt":
            working(world, client, ["rebuild left"])
        case "defined anew":
            world.topology = TOPOLOGIES["chain, defined anew"]
            working(world, client, ["rebuild left"])


def sent(world: World, keys: tuple[int, ...] = KEYS) -> None:
    """Send a record, or a tombstone."""
    topic = world.turns.random.choice([source.topic for source in world.topology.sources])
    if all(partition.open is None for partition in world.broker.topics[topic]):
        world.broker.send(topic, world.turns.random.choice(keys), tombstone=world.turns.random.random() < 0.2)


def optimized(world: World) -> None:
    """Compact any table: a commit of somebody else's, which changes nothing."""
    if paths := _tables(world):
        world.lake.write(world.turns.random.choice(paths), lambda _: Write("OPTIMIZE"))


def by_hand(world: World) -> None:
    """Compact a table in a session in which another table's commit left its settings behind."""
    if paths := _tables(world):
        told = [version.metadata for path in paths for version in world.lake.logs[path].versions if version.metadata]
        if told:
            metadata = world.turns.random.choice(told)
            path = next(path for path in paths if f'"table":"{path}"' not in metadata) if len(paths) > 1 else None
            if path is not None:
                world.lake.write(path, lambda _: Write("OPTIMIZE"), metadata=metadata)


def restored(world: World) -> None:
    """Restore a table to an older version, as Delta's users do."""
    path = f"{world.topology.name}/left"
    log = world.lake.log(path)
    if len(log.versions) > 1:
        world.lake.restore(path, world.turns.random.randrange(len(log.versions) - 1))


def _tables(world: World) -> list[str]:
    return sorted(path for path, log in world.lake.logs.items() if log.versions)
