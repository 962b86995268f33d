"""A topology from topic to topic survives kills at random moments: produced, landed, joined, published, each once."""

from __future__ import annotations

import os
import random
import secrets
from collections import Counter
from dataclasses import astuple, dataclass
from datetime import UTC, datetime
from itertools import cycle, islice
from typing import TYPE_CHECKING

import pytest

from resources.embedded_kafka import EmbeddedKafka
from resources.engine import Engine
from resources.kafka import Kafka
from resources.lakehouse import Lakehouse
from resources.tidetable import Tidetable
from spark.engine.tick import tick
from tests.faults.kills.judge import judged
from tests.faults.kills.killer import Killer
from tests.faults.kills.sender import Sender
from tests.faults.kills.shop import PARTITIONS, Topics, topology
from tests.faults.kills.ticking import Client, Kills
from tests.faults.scoreboard import LAST_KILLS
from tests.support.lake import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from tests.faults.kills.judge import Verdict
    from tests.faults.kills.killer import Victim

KILLS = int(os.environ.get("TIDETABLE_KILLS", "50"))
SEED = int(os.environ.get("TIDETABLE_SEED", secrets.randbelow(1_000_000)))
"""Of all that is drawn, but for what the machine's own pace decides."""

VICTIMS: tuple[Victim, ...] = ("client", "engine", "client", "broker", "client", "all", "client")


@dataclass(frozen=True)
class Survived:
    """What one run went through."""

    killed: Counter[Victim]
    ticks: int
    cut_short: int
    verdict: Verdict

    def __str__(self) -> str:
        """One line."""
        kills = ", ".join(f"{count} {victim}" for victim, count in self.killed.most_common())
        found = self.verdict
        return (
            f"random kills: seed {SEED}, {self.killed.total()} kills ({kills}), {self.ticks} ticks "
            f"({self.cut_short} failed beside a kill), {found.records} records, {found.published} published, "
            f"{found.versions} versions audited, {len(found.lost)} lost, {len(found.duplicated)} duplicated"
        )


def survived(
    engine: Engine, kafka: Kafka | EmbeddedKafka, topics: Topics, lake: Path, victims: list[Victim], sample: int
) -> Survived:
    """Send, tick and kill; then let the world settle, and judge it."""
    print(f"TIDETABLE_SEED={SEED}")  # seen where the test fails
    rng, made = random.Random(SEED), topology(topics)
    rng.shuffle(victims)
    tidetable = Tidetable(engine, Lakehouse(str(lake)), kafka)
    kills = Kills(lake / "kills")
    kills.path.touch()
    client = Client(engine, Lakehouse(str(lake)), kafka, made, kills, lake)
    cluster = tidetable.listening()
    assert cluster is not None
    with Sender(cluster, topics, SEED) as sender:
        killed = Killer(client, rng).kill(victims)
        ports = tidetable.ports()
        sender.close()
    ended = client.ticks()
    assert [one for one in ended if one.alone and one.failed] == [], "a tick failed that no kill disturbed"
    until(lambda: all_over(cluster, topics.read))
    assert tick(ports, made, "settled").failed == {}
    assert {done.outcome for done in tick(ports, made, "idle").published} == {"idle"}
    until(lambda: all_over(cluster, topics.written.values()))
    verdict = judged(ports, cluster, made, topics, sender, rng, sample)
    return Survived(killed, len(ended), sum(one.failed != {} for one in ended), verdict)


def all_over(kafka: Kafka, topics: Iterable[str]) -> bool:
    """Whether no transaction is open: the last one's marker comes a moment behind the answer to its commit."""
    return kafka.end_offsets(topics) == kafka.end_offsets(topics, read_committed=False)


def check(capsys: pytest.CaptureFixture[str], found: Survived) -> None:
    """Say what it was, and that nothing was lost, nothing was there twice, and nothing wrong."""
    with capsys.disabled():
        print(f"\n{found}")
    if found.killed.total() >= KILLS:  # what the page of the matrix tells
        LAST_KILLS.parent.mkdir(exist_ok=True)
        LAST_KILLS.write_text(f"{datetime.now(UTC):%Y-%m-%d}, {found}")
    verdict = found.verdict
    assert verdict.holds, (verdict.lost[:10], verdict.duplicated[:10], verdict.wrong[:10])


@pytest.mark.thorough
def test_a_client_killed_again_and_again_at_any_moment_loses_and_repeats_nothing(
    engine: Engine, kafka: Kafka, topic: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topics = Topics(*(topic(name, PARTITIONS) for name in Topics.__annotations__))
    address = Kafka({"bootstrap.servers": kafka.address})  # one that has not opened anything can be sent to a process
    victims: list[Victim] = ["client"] * 3
    check(capsys, survived(engine, address, topics, tmp_path, victims, sample=2))


@pytest.mark.skipif("TIDETABLE_FAULTS" not in os.environ, reason="some half an hour: `make kills` runs it")
def test_clients_engines_and_brokers_killed_at_random_lose_and_repeat_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine, broker = Engine(tmp_path, memory="1g", cores="2"), EmbeddedKafka(tmp_path)
    try:
        kafka = Kafka({"bootstrap.servers": broker.start()})
        topics = Topics(*Topics.__annotations__)
        for name in astuple(topics):
            kafka.create_topic(name, PARTITIONS)
        victims = list(islice(cycle(VICTIMS), KILLS))
        check(capsys, survived(engine, broker, topics, tmp_path, victims, sample=20))
    finally:
        engine.stop()
        broker.stop()
