"""What depends on its spans is computed again through as many of them as there are, by queries that do not grow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from spark.engine import position as positions
from spark.engine import replay
from spark.engine.kept import keeping
from spark.engine.repair import audit
from spark.topology import Consumed, JoinWindows, StreamsBuilder, TimeWindows, Topology
from tests import lake
from tests.lake import Record, send

if TYPE_CHECKING:
    from collections.abc import Callable

    from resources.kafka import Kafka
    from spark.engine.doors import Doors

TICKS = 4


def topology(left: str, right: str) -> Topology:
    """A stored stream of pairs, and a table in windows."""
    builder = StreamsBuilder(f"replayed-{left}")
    shape = Consumed.json(key="id bigint", value="v int")
    one, other = builder.stream(left, shape), builder.stream(right, shape)
    near = JoinWindows.of("1h", grace="1h")
    one.join(other, within=near, select=["left.v", "right.v AS w"]).materialize("pairs")
    one.group_by("v").windowed_by(TimeWindows.of("10ms", grace="1h")).count().materialize("windows")
    return builder.build()


@pytest.fixture(scope="module")
def ticked(doors: Doors, kafka: Kafka, topic: Callable[..., str]) -> Topology:
    """Both tables after several ticks."""
    left, right = topic("left"), topic("right")
    made = topology(left, right)
    for n in range(TICKS):
        send(kafka, left, Record(n % 3, {"v": n % 2}, timestamp=1_000 + n))
        send(kafka, right, Record(n % 3, {"v": n}, timestamp=1_000 + n))
        lake.land_all(doors, made)
        lake.step_all(doors, made)
    return made


@pytest.mark.parametrize("name", ["pairs", "windows"])
def test_a_replay_nests_no_deeper_than_it_may(
    doors: Doors, ticked: Topology, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, path = ticked.table(name), lake.path(doors, ticked, name)
    commits = list(positions.commits(path, f"{ticked.name}/{name}"))
    assert len(commits) == TICKS

    def replayed(spans: int) -> tuple[int, int, list[str]]:
        """How many bytes the query is, how many frames are kept, and the rows."""
        monkeypatch.setattr(replay, "SPANS", spans)
        session: Any = doors.engine.session()
        try:
            with keeping(session) as keeps:
                found: Any = replay.replayed(doors, keeps, ticked, target, path, commits)[0]
                size = found._plan.to_proto(session.client).ByteSize()
                return size, len(keeps.frames), sorted(map(str, found.collect()))
        finally:
            session.stop()

    nested, frames, rows = replayed(TICKS + 1)
    flat, fewer, same = replayed(1)
    assert rows == same != []
    assert flat < nested / 2
    assert fewer == 1 < frames
    assert audit(doors, ticked, target).holds
