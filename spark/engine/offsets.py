"""The offsets of a topic, and the errors of reading them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TopicOffsets:
    """One offset per partition of a topic. A topic that was recreated under the same name has another id.

    `redecoded` counts how often a landing decoded records below these offsets again (`engine.quarantine`).
    """

    topic_id: str
    offsets: dict[int, int]
    redecoded: int = 0

    def is_before(self, other: TopicOffsets) -> bool:
        """Return whether this cut of a topic is older than another one. Cuts of a topic are totally ordered."""
        return self.redecoded < other.redecoded or any(
            self.offsets.get(partition, 0) < offset for partition, offset in other.offsets.items()
        )


class TopicMissing(Exception):
    """The cluster has no topic of this name.

    Correct the name in the topology, or run `tidetable topics create TOPOLOGY`, which creates the topics that are
    missing.
    """


class KafkaUnavailable(Exception):
    """No broker of the cluster answers.

    Check `TIDETABLE_KAFKA`, the network and the cluster; the message ends with the cause. `tidetable up` starts the
    lake's own broker. Dagster retries by itself.
    """
