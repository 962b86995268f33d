"""What depends on its spans is computed again through as many of them as there are, by queries that do not grow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from spark.engine import replay
from spark.engine.audit import audit
from spark.engine.inputs.frame_cache import frame_cache
from spark.engine.log.stored_table import StoredTable
from spark.topology import Consumed, JoinWindows, StreamsBuilder, TimeWindows, Topology
from tests.support import lake
from tests.support.lake import Record, send

if TYPE_CHECKING:
    from collections.abc import Callable

    from resources.kafka import Kafka
    from spark.engine.ports import Ports

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
def ticked(ports: Ports, kafka: Kafka, topic: Callable[..., str]) -> Topology:
    """Both tables after several ticks."""
    left, right = topic("left"), topic("right")
    made = topology(left, right)
    for n in range(TICKS):
        send(kafka, left, Record(n % 3, {"v": n % 2}, timestamp=1_000 + n))
        send(kafka, right, Record(n % 3, {"v": n}, timestamp=1_000 + n))
        lake.land_all(ports, made)
        lake.step_all(ports, made)
    return made


@pytest.mark.parametrize("name", ["pairs", "windows"])
def test_a_replay_nests_no_deeper_than_it_may(
    ports: Ports, ticked: Topology, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, stored = ticked.table(name), StoredTable(f"{ticked.name}/{name}", lake.path(ports, ticked, name))
    commits = list(stored.commits())
    assert len(commits) == TICKS

    def replayed(spans: int) -> tuple[int, int, list[str]]:
        """How many bytes the query is, how many frames are kept, and the rows."""
        monkeypatch.setattr(replay, "SPANS", spans)
        session: Any = ports.engine.session()
        try:
            with frame_cache(session) as keeps:
                found: Any = replay.replayed(ports, keeps, ticked, target, stored, commits)[0]
                size = found._plan.to_proto(session.client).ByteSize()
                return size, len(keeps.frames), sorted(map(str, found.collect()))
        finally:
            session.stop()

    nested, frames, rows = replayed(TICKS + 1)
    flat, fewer, same = replayed(1)
    assert rows == same != []
    assert flat < nested / 2
    assert fewer == 1 < frames
    assert audit(ports, ticked, target).holds
