"""A small lake and its topics, what clients and others do to them, and the engine's own code that they do it with."""

from __future__ import annotations

import json
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache, wraps
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar
from unittest.mock import patch

from pyspark.sql.connect.session import SparkSession as ConnectSession

from resources.engine import Engine as RealEngine
from resources.kafka import Kafka as RealKafka
from resources.publisher import Publisher as RealPublisher
from spark.engine import advance, attempt, land, publish, rebuild, tick, time_sync
from spark.engine.inputs import frame_cache, span
from spark.engine.log import definition, delta_log, merge, position, replacement, table
from spark.engine.log.position import Position, Release
from spark.engine.log.stored_table import StoredTable
from spark.engine.ports import Ports
from spark.engine.publishing import feed
from spark.topology import Consumed, StreamsBuilder
from tests.faults.boundaries import BOUNDARIES
from tests.protocol import operators
from tests.protocol.broker import Broker
from tests.protocol.delta import Lake, commit_info, reading
from tests.protocol.engine import COLUMNS, Engine, Session
from tests.protocol.producer import Producer
from tests.protocol.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from spark.engine.offsets import TopicOffsets
    from spark.topology import Topology

P = ParamSpec("P")
R = TypeVar("R")

PARTITIONS = 2
KEYS = (0, 1, 10)
MORE_KEYS = (*KEYS, 2)
"""The last digit is the partition: one is added later."""

STAND_INS: dict[object, object] = {
    RealKafka: Broker,
    RealPublisher: Producer,
    RealEngine: Engine,
    ConnectSession: Session,
}
"""What is here in the place of a door."""

SINK = "told"
"""The topic that a table is published to."""


@dataclass(eq=False)
class World:
    """What a schedule works on."""

    topology: Topology
    turns: Turns
    lake: Lake
    broker: Broker
    told: list[tuple[str, Any]] = field(default_factory=list)
    """What clients were told: who, and the result or the error."""

    @property
    def ports(self) -> Ports:
        """The ports of a client: an engine for all."""
        return Ports(self.engine, self.lake, self.broker)

    def __post_init__(self) -> None:
        self.broker.turns = self.turns
        self.engine = Engine(self.lake, self.broker)


def shop(name: str, where: str = "v > 0", **settings: Any) -> Topology:
    """Orders, two tables over them, and one over both and over customers: a diamond, with a second topic.

    Or less of it; and where it is told on, the left one goes to a topic.
    """
    builder = StreamsBuilder(name, **settings)
    orders = builder.table("orders", Consumed.json(key="k bigint", value="v string"))
    if name == "single":
        return builder.build()
    left = orders.filter(where).materialize("left")
    if name == "published":
        left.to(SINK)
    if name in ("chain", "published"):
        return builder.build()
    customers = builder.table("customers", Consumed.json(key="k bigint", value="v string"))
    right = orders.filter("v > 1").materialize("right")
    both = left.join(right, select=["left.v", "right.v AS w"])
    both.join(customers, select=["left.v", "left.w", "right.v AS x"]).materialize("both")
    return builder.build()


TOPOLOGIES = {
    "single": shop("single"),
    "chain": shop("chain"),
    "chain, defined anew": shop("chain", "v > 7"),
    "published": shop("published"),
    "diamond": shop("diamond"),
    "slices": shop("diamond", max_records_per_tick=1),
}
PLANS = {id(made.plan): definition.definition(of, made) for of in TOPOLOGIES.values() for made in of.tables}
"""What a table is computed by, by its plan: to find it takes longer than a schedule."""
MARKS = {text: f"{json.loads(text)['fingerprint'][:4]}" for text in PLANS.values()}
"""What tells definitions apart in rows."""


class Simulation:
    """The engine's code with other doors, for as many worlds as one likes, one after the other."""

    def __init__(self) -> None:
        self.world: World

    def turns(self) -> Turns:
        """Those of the world that is played."""
        return self.world.turns

    @contextmanager
    def installed(self) -> Iterator[Simulation]:
        """Put everything in its place; what else the engine's modules have is theirs."""
        given = operators.Operators({plan: MARKS[text] for plan, text in PLANS.items()})
        time = SimpleNamespace(sleep=lambda _: self.turns().cross("a pause"))
        instead: list[tuple[object, str, object]] = [
            (delta_log, "reading", lambda path: reading(self.world.lake, path)),
            (delta_log, "entries", self._crossing("log read", delta_log.entries)),
            (delta_log, "_commit_info", lambda path, version: commit_info(self.world.lake, path, version)),
            (position.Position, "from_json", staticmethod(cache(Position.from_json))),
            (land, "F", SimpleNamespace(lit=_counted, expr=_counted, count=_counted)),
            (land, "landed", lambda records, *_: records),
            (land, "_schema", lambda *_: COLUMNS),
            (land, "so_far", lambda *_: None),
            (land, "kinds", lambda *_: {}),
            (table, "time", time),
            (attempt, "F", SimpleNamespace(broadcast=lambda frame: frame)),
            (attempt, "cols", lambda names: names),
            (advance, "rows", given.rows),
            (advance, "touched", given.touched),
            (definition, "definition", lambda _, target: PLANS[id(target.plan)]),
            (attempt, "definition", lambda _, target: PLANS[id(target.plan)]),
            (rebuild, "definition", lambda _, target: PLANS[id(target.plan)]),
            (attempt, "duplicate_keys", operators.twice),
            (merge, "difference", operators.difference),
            (replacement, "touched", operators.touched_keys),
            (replacement, "differs", lambda *_: None),
            (replacement, "counts", operators.counts),
            (replacement, "differ", operators.differ),
            (replacement, "gone", operators.gone),
            (StoredTable, "newest_time", lambda _: None),
            (StoredTable, "largest_file", lambda _: 0),
            (frame_cache.FrameCache, "_received", lambda *_: None),
            (time_sync, "_backlogs", lambda _, topology, was: (self._landed(topology), was)),
            (time_sync, "_released", released),
            (publish, "BATCH", 2),
            *((feed.Feed, name, function) for name, function in operators.FEED.items()),
            (tick, "ThreadPoolExecutor", lambda _: Pool(self.turns())),
        ]
        with ExitStack() as patches:
            for owner, name, value in instead:
                patches.enter_context(patch.object(owner, name, value))
            for effect, (door, name) in ((effect, one) for effect, doors in BOUNDARIES.items() for one in doors):
                owner = STAND_INS.get(door, door)
                patches.enter_context(patch.object(owner, name, self._crossing(effect, getattr(owner, name))))
            for cached in vars(span.IncrementalSpan).values():
                if hasattr(cached, "lock"):  # before Python 3.12; clients share none, being processes
                    patches.enter_context(patch.object(cached, "lock", nullcontext()))
            yield self

    def _crossing(self, effect: str, function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def crossing(*arguments: P.args, **options: P.kwargs) -> R:
            self.world.turns.cross(effect)
            return function(*arguments, **options)

        return crossing

    def _landed(self, topology: Topology) -> dict[str, TopicOffsets]:
        landed: dict[str, TopicOffsets] = {}
        for source in topology.sources:
            name = f"{topology.name}/{source.landing}"
            state = StoredTable(name, name).state()
            if state is not None:
                landed |= state.position.cut
        return landed


def _counted(*_: object) -> Any:
    return SimpleNamespace(alias=lambda _: None)


def released(_: object, backlogs: tuple[dict[str, TopicOffsets], Release | None], run: str, __: int) -> Release:
    """Two records more of every partition: which records may go is another story than that they go once."""
    landed, was = backlogs
    cut = {}
    for topic, ends in landed.items():
        so_far = was.cut[topic].offsets if was is not None and topic in was.cut else {}
        cut[topic] = replace(ends, offsets={p: min(end, so_far.get(p, 0) + 2) for p, end in ends.offsets.items()})
    return Release(run, cut, {})


class Pool:
    """`ThreadPoolExecutor`, by turns."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def map(self, function: Callable[[Any], None], items: Iterable[Any]) -> list[None]:
        """All of them side by side."""
        self.turns.together([lambda item=item: function(item) for item in items])  # type: ignore[misc]  # bound now
        return []
