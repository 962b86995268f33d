"""Kafka Streams itself is for those who ask for it."""

from __future__ import annotations

from resources.jars import checksums, groups


def test_kafka_streams_is_pinned_and_no_set_up_fetches_it() -> None:
    assert "kafka-streams-test-utils-4.3.1.jar" in checksums("streams")
    assert "streams" not in groups()
