"""One configuration opens the same locked broker to librdkafka and to Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from resources.kafka import Kafka
from tests.support.secured import locked

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resources.engine import Engine


@pytest.fixture(scope="module")
def ways_in(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, dict[str, str]]]:
    """What opens the broker, by the way in."""
    with locked(tmp_path_factory.mktemp("locked")) as ways:
        yield ways


@pytest.mark.parametrize("way", ["PLAIN", "SCRAM", "TLS"])
def test_both_clients_come_in_by_the_same_configuration(
    way: str, ways_in: dict[str, dict[str, str]], engine: Engine
) -> None:
    kafka = Kafka(ways_in[way])
    producer = kafka.producer()
    producer.produce("guarded", way)
    assert producer.flush(10) == 0
    spark = engine.session()
    frame = spark.read.format("kafka").options(**kafka.spark_options()).option("subscribe", "guarded").load()
    assert way.encode() in [bytes(row["value"]) for row in frame.collect()]
    spark.stop()
