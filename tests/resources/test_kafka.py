"""Offsets of a real broker, and its records through Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaError, TopicPartition

import resources.cluster
from resources.kafka import Kafka
from spark.engine.offsets import KafkaUnavailable, TopicMissing

if TYPE_CHECKING:
    from collections.abc import Callable

    from resources.engine import Engine


def produce(kafka: Kafka, topic: str, partition: int, values: list[bytes]) -> None:
    producer = kafka.producer()
    for value in values:
        producer.produce(topic, value, partition=partition)
    assert producer.flush(10) == 0


def test_offsets_are_by_partition(kafka: Kafka, topic: Callable[..., str]) -> None:
    name = topic(partitions=3)
    produce(kafka, name, 1, [b"a", b"b"])
    assert kafka.end_offsets([name])[name].offsets == {0: 0, 1: 2, 2: 0}
    assert kafka.beginning_offsets([name])[name].offsets == {0: 0, 1: 0, 2: 0}


def test_no_topics_have_no_offsets(kafka: Kafka) -> None:
    assert kafka.end_offsets([]) == {}


def test_committed_offsets_stop_at_an_open_transaction(kafka: Kafka, topic: Callable[..., str]) -> None:
    name = topic()
    produce(kafka, name, 0, [b"before"])
    producer = kafka.producer(**{"transactional.id": name})
    producer.init_transactions(10)
    producer.begin_transaction()
    producer.produce(name, b"open")
    assert producer.flush(10) == 0
    assert kafka.end_offsets([name])[name].offsets == {0: 1}
    assert kafka.end_offsets([name], read_committed=False)[name].offsets == {0: 2}
    producer.commit_transaction(10)
    while (after := kafka.end_offsets([name])[name].offsets) == {0: 1}:  # the marker follows the commit
        pass
    assert after == {0: 3}  # and has an offset too


def test_a_topic_made_again_has_another_id(kafka: Kafka, topic: Callable[..., str]) -> None:
    name = topic()
    first = kafka.end_offsets([name])[name]
    kafka.admin().delete_topics([name])[name].result(10)
    kafka.create_topic(name)
    second = kafka.end_offsets([name])[name]
    assert second.offsets == first.offsets
    assert second.topic_id != first.topic_id


def test_making_a_topic_that_is_there_changes_nothing(kafka: Kafka, topic: Callable[..., str]) -> None:
    name = topic(partitions=2)
    before = kafka.end_offsets([name])
    kafka.create_topic(name, partitions=2)
    assert kafka.end_offsets([name]) == before


def test_missing_topics_are_named_with_their_cluster_all_at_once(kafka: Kafka, topic: Callable[..., str]) -> None:
    with pytest.raises(TopicMissing, match=f"{kafka.address} has no topic 'nowhere';.*tidetable topics create"):
        kafka.end_offsets([topic(), "nowhere"])
    with pytest.raises(TopicMissing, match="has no topics 'elsewhere', 'nowhere';"):
        kafka.end_offsets([topic(), "nowhere", "elsewhere"])


def test_a_silent_address_is_named_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources.cluster, "TIMEOUT", 1.0)
    kafka = Kafka({"bootstrap.servers": "127.0.0.1:9"})
    with pytest.raises(KafkaUnavailable, match=r"127\.0\.0\.1:9 .*Connection refused"):
        kafka.end_offsets(["any"])
    with pytest.raises(KafkaUnavailable, match=r"127\.0\.0\.1:9"):
        kafka.cluster_id()


def test_a_cluster_has_one_id_by_every_client(kafka: Kafka) -> None:
    assert kafka.cluster_id() == Kafka(kafka.config).cluster_id() != ""


def test_a_password_is_not_printed() -> None:
    assert "secret" not in repr(Kafka({"bootstrap.servers": "a:1", "sasl.password": "secret"}))


def test_a_consumer_neither_commits_nor_jumps_by_itself(kafka: Kafka, topic: Callable[..., str]) -> None:
    name = topic()
    consumer = kafka.consumer(**{"group.id": name})
    consumer.assign([TopicPartition(name, 0, 7)])  # the topic ends at 0
    message = consumer.poll(10)
    assert message is not None
    error = message.error()
    assert error is not None
    assert error.code() == KafkaError._AUTO_OFFSET_RESET
    consumer.close()


def test_spark_reads_what_librdkafka_wrote(kafka: Kafka, topic: Callable[..., str], engine: Engine) -> None:
    name = topic()
    produce(kafka, name, 0, [b"a", b"b"])
    spark = engine.session()
    frame = spark.read.format("kafka").options(**kafka.spark_options()).option("subscribe", name).load()
    assert [bytes(row.value) for row in frame.orderBy("offset").collect()] == [b"a", b"b"]
    spark.stop()
