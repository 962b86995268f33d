"""How far a topic reaches, and what can keep us from knowing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TopicOffsets:
    """One offset per partition of a topic; the id tells the topic from one recreated under its name.

    `redecoded` counts, of a landing, how often records below these offsets were decoded again (`engine.quarantine`).
    """

    topic_id: str
    offsets: dict[int, int]
    redecoded: int = 0


class TopicMissing(Exception):
    """The cluster has no topic of this name.

    Correct the name in the topology, or run `tidetable topics create TOPOLOGY`, which creates the topics that are
    missing.
    """


class KafkaUnavailable(Exception):
    """No broker of the cluster answers.

    Check `TIDETABLE_KAFKA`, the network and the cluster; the message ends with what the connection failed by. The
    lake's own broker is started by `tidetable up`. Dagster retries by itself.
    """
