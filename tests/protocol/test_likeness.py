"""The lake in memory does what Delta does: one story on both, told by the engine's own code, reads the same."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Any, Protocol

from pyspark.sql import Row
from pyspark.sql import functions as F

from spark.engine.log import commit, delta_log, merge, table
from spark.engine.log import position as positions
from spark.engine.log.stored_table import StoredTable
from tests.protocol.broker import Broker
from tests.protocol.delta import Lake, Write
from tests.protocol.engine import COLUMNS, Frame
from tests.protocol.turns import Turns
from tests.protocol.world import TOPOLOGIES, Simulation, World
from tests.support.lake import listed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from resources.engine import Engine
    from spark.engine.log.position import Position

NAME = "shop/items"
Told = list[object]


class Hands(Protocol):
    """What is done otherwise here and there."""

    @property
    def session(self) -> SparkSession:
        """A session."""

    @property
    def path(self) -> str:
        """The table's path."""

    def rows(self, **rows: str | None) -> DataFrame:
        """Rows by key, `k1` for 1; None in a MERGE takes one away."""

    def by_hand(self, statement: str, version: int = 0) -> None:
        """OPTIMIZE, or RESTORE to a version."""

    def stored(self) -> list[tuple[object, object]]:
        """The rows there are."""


@dataclass
class Real:
    """Spark and Delta."""

    session: SparkSession
    path: str

    def rows(self, **rows: str | None) -> DataFrame:
        """A frame; what MERGE needs to know is dropped by what appends."""
        data = [(int(key[1:]), value) for key, value in rows.items()]
        return self.session.createDataFrame(data, COLUMNS)

    def by_hand(self, statement: str, version: int = 0) -> None:
        """As a user would."""
        to = f" TO VERSION AS OF {version}" if statement == "RESTORE" else ""
        self.session.sql(f"{statement} delta.`{self.path}`{to}").collect()

    def stored(self) -> list[tuple[object, object]]:
        """By another reader."""
        return sorted((row["k"], row["v"]) for row in listed(self.path))


@dataclass
class InMemory:
    """The ports of the simulation."""

    world: World
    path: str = NAME

    def __post_init__(self) -> None:
        self.session = self.world.engine.session()

    def rows(self, **rows: str | None) -> DataFrame:
        """A frame."""
        data = [(int(key[1:]), value) for key, value in rows.items()]
        frame: Any = Frame(self.session, lambda: data)  # type: ignore[arg-type]  # a session of the simulation's
        return frame  # type: ignore[no-any-return]  # as good as Spark's

    def by_hand(self, statement: str, version: int = 0) -> None:
        """As schedules do."""
        if statement == "RESTORE":
            self.world.lake.restore(self.path, version)
        else:
            self.world.lake.write(self.path, lambda _: Write("OPTIMIZE"))

    def stored(self) -> list[tuple[object, object]]:
        """Of the newest version."""
        return sorted(self.world.lake.log(self.path).versions[-1].rows)


def merged(hands: Hands, at: Position, **rows: str | None) -> object:
    """MERGE rows."""
    source = hands.rows(**rows)
    if isinstance(hands, Real):
        source = source.withColumn("_present", F.col("v").isNotNull())
    source.createOrReplaceTempView("__source")
    return commit.merge(
        hands.session, merge.statement(hands.path, "__source", ["k"], COLUMNS), StoredTable(NAME, hands.path), at
    )


def replaced(hands: Hands, at: Position, where: str, **rows: str | None) -> object:
    """Replace the rows that meet a condition."""
    return commit.replace_where(hands.rows(**rows), where, StoredTable(NAME, hands.path), at)


def replaced_keys(hands: Hands, at: Position, gone: Sequence[int] = (), **rows: str | None) -> object:
    """Replace the rows that have a key of the new ones, and delete others."""
    on = merge.on_keys(["k"], [Row(k=key) for key in gone], Row(k=1))
    return commit.replace_on(hands.rows(**rows), on, StoredTable(NAME, hands.path), at)


def story(hands: Hands) -> list[Told]:
    """All that the protocol asks of Delta, one after the other; after each what the log tells."""
    epochs: dict[str, int] = {}
    seen: list[Told] = []

    def look(what: str, done: object = None) -> None:
        with delta_log.reading(hands.path) as delta:
            version, configuration = delta.version(), delta.metadata().configuration
            fences = [delta.transaction_version(f"{NAME}/{epoch}") for epoch in epochs]
        entries = list(delta_log.entries(hands.path, version))
        known = [positions.Position.from_json(entry.metadata) for entry in entries]
        log = [
            (
                entry.version,
                entry.operation,
                entry.changed_rows,
                entry.overwrites,
                entry.replaces_keys,
                at and (epochs[at.epoch], at.n),
            )
            for entry, at in zip(entries, known, strict=True)
        ]
        anchor = positions.Position.from_json(configuration[positions.ANCHOR])
        assert anchor is not None
        seen.append([what, done is not None and done is not False, log, fences, epochs[anchor.epoch], hands.stored()])

    stored = StoredTable(NAME, hands.path)

    def begun(session: SparkSession) -> Position:
        return table.create(session, stored, COLUMNS, "run", "{}").position

    first = begun(hands.session)
    epochs[first.epoch] = 0
    look("created")
    assert begun(hands.session) == first
    look("created again")
    nothing = hands.rows(k1="x").where("false")
    look("appended", commit.append(hands.rows(k1="a", k2="b"), stored, replace(first, n=1)))
    look("the same number", commit.append(hands.rows(k1="c"), stored, replace(first, n=1, run="late")))
    look("merged", merged(hands, replace(first, n=2), k1="d", k2=None, k3="e", k4=None))
    look("merged with the same number", merged(hands, replace(first, n=2, run="late"), k1="f"))
    look("made once more", merged(hands, replace(first, n=2), k1="d", k2=None, k3="e", k4=None))
    look("appended nothing", commit.append(nothing, stored, replace(first, n=3)))
    look("merged what is there", merged(hands, replace(first, n=4), k1="d"))
    look("replaced rows", replaced(hands, replace(first, n=5), "`k` IN (1, 2, 4)", k1="x", k4="y"))
    look("replaced with the same number", replaced(hands, replace(first, n=5, run="late"), "`k` IN (1)", k1="z"))
    look("replaced keys", replaced_keys(hands, replace(first, n=6), k1="p", k6="q"))
    look("replaced keys and deleted one", replaced_keys(hands, replace(first, n=7, deleted=1), [4], k1="r", k7="s"))
    look("replaced keys with the same number", replaced_keys(hands, replace(first, n=7, run="late"), k1="z"))
    look("a number left out", commit.append(hands.rows(k5="g"), stored, replace(first, n=9)))
    hands.by_hand("OPTIMIZE")
    look("compacted")
    hands.by_hand("RESTORE", 1)
    assert stored.fence(first) == 9, "RESTORE leaves numbers alone"
    seen.append([hands.stored()])
    assert commit.close_epoch(nothing, stored, first)
    assert commit.close_epoch(nothing, stored, first), "closed is closed"
    second = replace(first, epoch=table.new_epoch(), n=0)
    epochs[second.epoch] = 1
    table.anchor(hands.session, stored, second, "{}")
    look("anchored anew")
    look("of a closed epoch", commit.append(hands.rows(k9="z"), stored, replace(first, n=10)))
    look("of the new one", merged(hands, replace(second, n=1), k1="h", k2="i"))
    look("replaced", commit.replace_all(hands.rows(k7="j"), stored, replace(second, n=2)))
    hands.by_hand("RESTORE", 3)
    look("back behind the anchor")
    return seen


def test_delta_and_the_lake_in_memory_tell_the_same_story(engine: Engine, tmp_path: Path) -> None:
    session = engine.session()
    try:
        real = story(Real(session, str(tmp_path / "items")))
    finally:
        session.stop()
    with Simulation().installed() as simulation:
        turns = Turns(Random(0), {}, 0)
        simulation.world = World(TOPOLOGIES["single"], turns, Lake(turns), Broker({}))
        assert story(InMemory(simulation.world)) == real
