"""Bugs of the protocol, planted in the engine's code: each is one that somebody could have written.

Where the engine has two lines of defence, a bug takes both away: alone, either of them holds.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

from spark.engine import attempt, land, publish, step
from spark.engine.attempt import Attempt
from spark.engine.inputs import pin
from spark.engine.log import commit, stored_table, table
from spark.engine.log.commit import APP, METADATA, NUMBER
from spark.engine.log.position import ANCHOR, CLOSED, Position
from spark.engine.log.stored_table import Commit, State, StoredTable
from spark.engine.publish import Record
from spark.engine.publishing.position import PublishedPosition, published_position
from tests.protocol.broker import Broker
from tests.protocol.engine import Engine
from tests.protocol.producer import Producer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.protocol.engine import Frame, Session
    from tests.protocol.world import Simulation

Instead = tuple[object, str, object]
"""A module, a name in it, and what stands there instead."""


@dataclass(frozen=True)
class Bug:
    """What is planted, and what the oracle calls what comes of it."""

    instead: Callable[[Simulation], list[Instead]]
    called: str
    kind: str | None = None
    """The kind of schedule that shows it; None: many do."""

    @contextmanager
    def planted(self, simulation: Simulation) -> Iterator[None]:
        """The engine with the bug."""
        with ExitStack() as patches:
            for owner, name, value in self.instead(simulation):
                patches.enter_context(patch.object(owner, name, value))
            yield


append, races, unpositioned, range_ = commit.append, commit.races, table.unpositioned, land._range
commits, session = stored_table.commits_of, Engine.session
sent_of, unless_sent = published_position, publish._unless_sent
commit_sent, newest, opened = Producer.commit, Broker.newest, Broker.opened


def trusted(stored: StoredTable, at: Position) -> State | None:
    """What was asked for is taken for what happened."""
    state = stored.state()
    return None if state is None else replace(state, position=at)


@contextmanager
def won(*_: str) -> Iterator[list[Any]]:
    """No race was ever lost."""
    with races():
        yield []


def offsets_first(frame: Frame, stored: StoredTable, at: Position) -> State | None:
    """Two commits: position, then rows."""
    done = append(frame.where("false"), stored, at)  # type: ignore[arg-type]  # as good as Spark's
    frame.write.format("delta").mode("append").save(stored.path)
    return done


def data_first(frame: Frame, stored: StoredTable, at: Position) -> State | None:
    """Two commits: rows, then position."""
    frame.write.format("delta").mode("append").save(stored.path)
    return append(frame.where("false"), stored, at)  # type: ignore[arg-type]  # as good as Spark's


def settings_kept(session: Session, statement: str, stored: StoredTable, at: Position) -> State | None:
    """A MERGE that sets what is not set yet, and unsets nothing."""
    for setting, value in ((APP, at.app_id), (NUMBER, str(at.n)), (METADATA, at.to_json())):
        session.settings.setdefault(setting, value)
    with races() as race:
        session.sql(statement).collect()
    return None if race else commit._read_back(stored, at)


def one_session() -> Callable[[Engine], Any]:
    """A session that a client uses for all its tables."""
    opened: WeakKeyDictionary[Engine, dict[object, Any]] = WeakKeyDictionary()

    def again(engine: Engine) -> Any:
        sessions = opened.setdefault(engine, {})
        of = (engine.turns.client, engine.lake.life)
        if of not in sessions:
            sessions[of] = session(engine)
        return sessions[of]

    return again


def counted(simulation: Simulation) -> Callable[[str, str, str], Position]:
    """An epoch that is one more than the one the table says it has."""

    def next_one(name: str, _: str, run: str) -> Position:
        log = simulation.world.lake.logs.get(name)
        known = log.versions[-1].properties.get(ANCHOR) if log is not None and log.versions else None
        was = Position.from_json(known)
        return unpositioned(name, str(int(was.epoch) + 1) if was is not None else "1", run)

    return next_one


def anybodys(history: Any, anchor: Position) -> Iterator[Commit]:
    """The newest position of whatever table and epoch."""
    for entry in history:
        at = Position.from_json(entry.metadata)
        if at is not None and at.n != CLOSED:
            yield Commit(entry.version, entry.version, at, entry.metrics, entry.at)
    yield Commit(0, anchor.data_version, anchor, {})


def without_restores(history: Any, anchor: Position) -> Iterator[Commit]:
    """RESTORE is a commit like others."""
    return commits((entry for entry in history if entry.operation != "RESTORE"), anchor)


def newest_alone(history: Any, anchor: Position) -> Iterator[Commit]:
    """What is before the newest commit is not looked at."""
    yield next(commits(history, anchor))


def from_the_beginning(kafka: Any, topology: Any, source: Any, *others: Any) -> Any:
    """Offsets that are reset to the broker's first ones."""
    start, end, gaps = range_(kafka, topology, source, *others)
    reset = start if start == end else kafka.beginning_offsets([source.topic])[source.topic].offsets
    return reset, end, gaps


def position_behind(producer: Producer, version: int, at: str) -> None:
    """Two transactions: records, then the position."""
    producer._insist(producer._end)
    commit_sent(producer, version, at)


def position_first(producer: Producer, version: int, at: str) -> None:
    """The position at once, records with the next one."""
    name = producer._name, producer._topic
    known = producer._broker.names[name]
    producer._broker.names[name] = replace(known, committed=(*known.committed, at))
    producer._broker.turns.cross("transaction told")
    commit_sent(producer, version, at)


def asked_once() -> Callable[..., PublishedPosition | None]:
    """What the topic had before the name was taken."""
    known: dict[int, PublishedPosition | None] = {}

    def asked(kafka: Any, topology: Any, target: Any, stable: bool = False) -> PublishedPosition | None:
        client = id(kafka.turns.client)
        if not stable or client not in known:
            known[client] = sent_of(kafka, topology, target)
        return known[client]

    return asked


def anew(_: PublishedPosition | None, place: PublishedPosition, row: Any) -> Iterator[Record]:
    """A version that was begun is sent from its first record."""
    yield from unless_sent(None, place, row)


def begun_is_done(*asked: Any, **options: Any) -> PublishedPosition | None:
    """A version of which something was sent is taken for whole."""
    sent = sent_of(*asked, **options)
    return None if sent is None else replace(sent, done=True)


def nobody_fenced(broker: Broker, name: str, topic: str) -> int:
    """A name may be had by many."""
    opened(broker, name, topic)
    broker._change(name, topic, epoch=1)
    return 1


def one_partition(*asked: Any) -> dict[int, dict[str, str]]:
    """How far a topic is by its last partition."""
    return dict(sorted(newest(*asked).items())[-1:])


BUGS = {
    "offsets are stored before the data": Bug(lambda _: [(commit, "append", offsets_first)], "lost"),
    "data is stored before the offsets": Bug(lambda _: [(commit, "append", data_first)], "duplicated"),
    "the fence of one table leaks to another": Bug(
        lambda _: [(commit, "merge", settings_kept), (Engine, "session", one_session())], "stuck"
    ),
    "a write that was skipped is taken as done": Bug(lambda _: [(commit, "_read_back", trusted)], "lie"),
    "a lost race is taken as won": Bug(lambda _: [(commit, "races", won), (commit, "_read_back", trusted)], "lie"),
    "what was committed is not read back": Bug(
        lambda _: [(commit, "_read_back", lambda stored, _: stored.state())], "lie"
    ),
    "an epoch is counted": Bug(lambda world: [(table, "unpositioned", counted(world))], "impossible", "restored"),
    "an epoch is used again": Bug(lambda _: [(table, "new_epoch", lambda: "epoch")], "stuck"),
    "no epoch is ever burned": Bug(
        lambda _: [(commit, "close_epoch", lambda *_: True), (StoredTable, "other_open_epochs", lambda *_: [])],
        "trespass",
        "defined anew",
    ),
    "only the epoch that a restore left is burned": Bug(
        lambda _: [(StoredTable, "other_open_epochs", lambda *_: [])], "trespass", "restored"
    ),
    "a position is taken from a foreign commit": Bug(lambda _: [(stored_table, "commits_of", anybodys)], "unexpected"),
    "a pin mixes cuts": Bug(lambda _: [(pin, "_ahead", lambda _: None)], "mixed", "diamond"),
    "a landing starts at the broker's beginning": Bug(lambda _: [(land, "_range", from_the_beginning)], "duplicated"),
    "a restore is overlooked": Bug(lambda _: [(stored_table, "commits_of", without_restores)], "lie"),
    "a restore in the midst of a step is overlooked": Bug(
        lambda _: [(stored_table, "commits_of", newest_alone)], "lie"
    ),
    "a table that another run just computed is gone on from": Bug(
        lambda _: [(Attempt, "overtaken", lambda *_: False)], "vain"
    ),
    "a definition is not compared": Bug(
        lambda _: [(attempt, "check_definition", lambda *_: None), (step, "evolved", lambda *given: given[-2])],
        "impossible",
        "defined anew",
    ),
    "a topic's position is committed behind its records": Bug(
        lambda _: [(Producer, "commit", position_behind)], "duplicated", "published"
    ),
    "a topic's position is committed before its records": Bug(
        lambda _: [(Producer, "commit", position_first)], "lost", "published"
    ),
    "a topic is asked how far it is before its name is taken alone": Bug(
        lambda _: [(publish, "published_position", asked_once())], "duplicated", "published"
    ),
    "a version that was begun is sent anew": Bug(
        lambda _: [(publish, "_unless_sent", anew)], "duplicated", "published"
    ),
    "a version that was begun is taken for sent": Bug(
        lambda _: [(publish, "published_position", begun_is_done)], "lost", "published"
    ),
    "whoever had a topic's name keeps it": Bug(
        lambda _: [(Broker, "opened", nobody_fenced)], "duplicated", "published"
    ),
    "what is left of a topic is taken for all that it had": Bug(
        lambda _: [(publish, "_check_tail", lambda *_: None)], "duplicated", "forgotten"
    ),
    "one partition tells how far a topic is": Bug(
        lambda _: [(Broker, "newest", one_partition)], "duplicated", "published"
    ),
}
