"""The broker of a lake, killed and stopped."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING

import pytest

from resources.embedded_kafka import EmbeddedKafka
from resources.engine import Engine
from resources.kafka import Kafka
from resources.lakehouse import Lakehouse
from resources.process import ServerFailed, answers
from resources.tidetable import Tidetable
from spark.engine.offsets import KafkaUnavailable, TopicMissing
from tests.support.lake import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

YEAR_2001 = 1_000_000_000_000  # milliseconds: long past any retention


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """A broker of this module's own, in a lake whose name has a space."""
    broker = EmbeddedKafka(tmp_path_factory.mktemp("a lake"))
    broker.start()
    yield broker
    broker.stop()


def written(broker: EmbeddedKafka) -> dict[int, int]:
    return Kafka({"bootstrap.servers": broker.bootstrap_servers}).end_offsets(["kept"])["kept"].offsets


def test_a_stopped_and_a_killed_broker_come_back_at_the_same_address_with_their_topics(
    broker: EmbeddedKafka,
) -> None:
    address = broker.start()
    kafka = Kafka({"bootstrap.servers": address})
    kafka.create_topic("kept")
    producer = kafka.producer()
    producer.produce("kept", b"value", timestamp=YEAR_2001)
    assert producer.flush(10) == 0
    broker.stop()
    assert broker.running() is None
    assert broker.start() == address == broker.bootstrap_servers
    assert written(broker) == {0: 1}
    running = broker.running()
    assert running is not None
    os.kill(running.pid, signal.SIGKILL)
    assert broker.start() == address
    assert written(broker) == {0: 1}


def test_starting_a_running_broker_changes_nothing(broker: EmbeddedKafka) -> None:
    broker.start()
    running = broker.running()
    broker.start()
    assert broker.running() == running


def test_doors_wait_for_a_broker_that_another_is_just_starting(broker: EmbeddedKafka) -> None:
    broker.stop()
    tidetable = Tidetable(Engine(broker.lake), Lakehouse(str(broker.lake)), broker)
    starter = threading.Thread(target=broker.start)
    starter.start()
    until(lambda: broker.running() is not None)
    tidetable.ports()
    found = answers(broker.bootstrap_servers)
    starter.join()
    assert found


def test_a_publisher_leaves_it_to_its_errors_to_say_that_the_broker_is_away(
    broker: EmbeddedKafka, capfd: pytest.CaptureFixture[str]
) -> None:
    kafka = Kafka({"bootstrap.servers": broker.start()})
    kafka.create_topic("published")
    with kafka.publishing("shop/published", "published", exactly_once=True):
        broker.stop()
        with pytest.raises(KafkaUnavailable, match="refused"):
            kafka.end_offsets(["published"])
    assert capfd.readouterr().err == ""


def test_a_publisher_goes_on_with_a_broker_that_came_again_between_two_transactions(broker: EmbeddedKafka) -> None:
    kafka = Kafka({"bootstrap.servers": broker.start()})
    kafka.create_topic("restarted")
    with kafka.publishing("shop/restarted", "restarted", exactly_once=True) as publisher:
        publisher.send(b"1", b"one", None, {})
        publisher.commit(1, "first")
        publisher.send(b"2", b"two", None, {})
        broker.stop()
        committer = threading.Thread(target=publisher.commit, args=(2, "second"), daemon=True)
        committer.start()
        broker.start()
        until(lambda: not committer.is_alive())
    assert kafka.published("shop/restarted", "restarted", stable=True) == "second"


def test_asking_for_a_topic_does_not_make_it(broker: EmbeddedKafka) -> None:
    kafka = Kafka({"bootstrap.servers": broker.start()})
    for _ in range(2):
        with pytest.raises(TopicMissing):
            kafka.end_offsets(["mistyped"])


def test_a_broker_that_was_never_started_says_how_to(tmp_path: Path) -> None:
    broker = EmbeddedKafka(tmp_path)
    assert broker.running() is None
    with pytest.raises(ServerFailed, match="tidetable up"):
        broker.bootstrap_servers  # noqa: B018  # reading it is what fails
