"""Bugs of the protocol, planted in the engine's code; each is one that somebody could have written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from spark.engine import commit, land, pin, position, repair, step, table
from spark.engine.commit import APP, METADATA, NUMBER
from spark.engine.position import ANCHOR, Position, State

if TYPE_CHECKING:
    from tests.protocol.engine import Frame, Session
    from tests.protocol.world import Simulation


@dataclass(frozen=True)
class Bug:
    """What stands in the place of something, and what the oracle calls what comes of it: any of these words."""

    instead: Callable[[Simulation], list[tuple[object, str, object]]]
    called: tuple[str, ...]


def _trusted(path: str, at: Position) -> State | None:
    """What was asked for is taken for what happened."""
    state = position.read(path, at.table)
    return None if state is None else replace(state, position=at)


@contextmanager
def _deaf(*_: str) -> Iterator[list[Any]]:
    """A lost race is taken for none."""
    lost: list[Any] = []
    with RACES() as lost:
        yield []


RACES = commit.races


def _offsets_first(frame: Frame, path: str, at: Position) -> State | None:
    done = APPEND(frame.where("false"), path, at)  # type: ignore[arg-type]  # as good as Spark's
    frame.write.format("delta").mode("append").save(path)
    return done


def _data_first(frame: Frame, path: str, at: Position) -> State | None:
    frame.write.format("delta").mode("append").save(path)
    return APPEND(frame.where("false"), path, at)  # type: ignore[arg-type]  # as good as Spark's


APPEND = commit.append


def _kept_settings(session: Session, statement: str, path: str, at: Position) -> State | None:
    """Settings that are never unset, of a session that is used again; what is set already is left."""
    for setting, value in ((APP, position.app(at)), (NUMBER, str(at.n)), (METADATA, at.to_json())):
        session.settings.setdefault(setting, value)
    with commit.races() as race:
        session.sql(statement).collect()
    return None if race else commit._read_back(path, at)


def _one_session(simulation: Simulation) -> Callable[..., Any]:
    """One session for all that a client does."""
    opened: dict[tuple[int, object], Any] = {}

    def session(engine: Any) -> Any:
        of = (id(simulation.world), engine.turns.client, engine.lake.life)
        if of not in opened:
            opened.clear() if len(opened) > 50 else None
            opened[of] = SESSION(engine)
        return opened[of]

    return session


from tests.protocol.engine import Engine  # noqa: E402

SESSION = Engine.session


def _counted(simulation: Simulation) -> Callable[[str, str, str], Position]:
    """An epoch that is one more than the one that the table says it has."""

    def unpositioned(name: str, _: str, run: str) -> Position:
        log = simulation.world.lake.logs.get(name)
        known = log.versions[-1].properties.get(ANCHOR) if log is not None and log.versions else None
        was = Position.from_json(known)
        return UNPOSITIONED(name, str(int(was.epoch) + 1 if was is not None else 1), run)

    return unpositioned


UNPOSITIONED = table.unpositioned


def _anybodys(history: Any, anchor: Position) -> Iterator[position.Commit]:
    """The newest position of whatever table and epoch."""
    for entry in history:
        at = Position.from_json(entry.metadata)
        if at is not None and at.n != position.RETIRED:
            yield position.Commit(entry.version, entry.version, at, entry.metrics, entry.at)
    yield position.Commit(0, anchor.data_version, anchor, {})


def _from_the_beginning(kafka: Any, source: Any, state: Any, topic: str, want: Any) -> Any:
    """Offsets that are reset to the broker's first ones."""
    start, end = RANGE(kafka, source, state, topic, want)
    return (start, end) if start == end else (kafka.beginning_offsets([source.topic])[source.topic].offsets, end)


RANGE = land._range


def _without_restore(history: Any, anchor: Position) -> Iterator[position.Commit]:
    return COMMITS((entry for entry in history if entry.operation != "RESTORE"), anchor)


COMMITS = position._commits


def _newest_alone(history: Any, anchor: Position) -> Iterator[position.Commit]:
    yield next(COMMITS(history, anchor))


def _listed_once(path: str, limit: int | None = None) -> Any:
    delta = position.DeltaTable(path)
    return delta, [position._entry(found) for found in delta.history(limit)]


BUGS = {
    "offsets stored before the data": Bug(lambda _: [(commit, "append", _offsets_first)], ("lost", "impossible")),
    "data stored before the offsets": Bug(lambda _: [(commit, "append", _data_first)], ("duplicated", "lost")),
    "the fence of one table leaks to another": Bug(
        lambda s: [(commit, "run", _kept_settings), (Engine, "session", _one_session(s))], ("stuck", "unexpected")
    ),
    "a write that was skipped is taken as done": Bug(lambda _: [(commit, "_read_back", _trusted)], ("lie",)),
    "a lost race is taken as won": Bug(
        lambda _: [(commit, "races", _deaf), (commit, "_read_back", _trusted)], ("lie",)
    ),
    "what was committed is not read back": Bug(
        lambda _: [(commit, "_read_back", lambda path, at: position.read(path, at.table))], ("lie",)
    ),
    "an epoch is counted": Bug(lambda s: [(table, "unpositioned", _counted(s))], ("stuck", "unexpected")),
    "an epoch is used again": Bug(lambda _: [(table, "new_epoch", lambda: "epoch")], ("stuck", "unexpected")),
    "an epoch is not burned": Bug(lambda _: [(commit, "retire", lambda *_: True)], ("impossible", "lost")),
    "a position is taken from a foreign commit": Bug(
        lambda _: [(position, "_commits", _anybodys)], ("stuck", "unexpected")
    ),
    "a pin mixes cuts": Bug(lambda _: [(pin, "_ahead", lambda _: None)], ("mixed",)),
    "a landing starts at the broker's beginning": Bug(
        lambda _: [(land, "_range", _from_the_beginning)], ("duplicated",)
    ),
    "a restore is overlooked": Bug(lambda _: [(position, "_commits", _without_restore)], ("impossible", "lost")),
    "a restore in the midst of a step is overlooked": Bug(
        lambda _: [(position, "_commits", _newest_alone)], ("impossible", "lost", "lie")
    ),
    "a log is read while it grows": Bug(lambda _: [(position, "_listed", _listed_once)], ("stuck", "unexpected")),
    "a table that another run just computed is gone on from": Bug(
        lambda _: [(step, "overtaken", lambda *_: False), (repair, "overtaken", lambda *_: False)], ("back",)
    ),
}
