"""What a query asks of a table's position: that the table covers some offsets, or none beyond them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from spark.query.errors import NotCovered, QueryError

if TYPE_CHECKING:
    from spark.engine.log.position import Cut

Offsets = Mapping[str, Mapping[int, int]]
"""By topic and partition, the next offset: a table that covers it has every record before that offset."""


class Produced(Protocol):
    """A record that a producer sent, such as the `Message` of a delivery report of confluent_kafka."""

    def topic(self) -> str | None:
        """Return the topic."""

    def partition(self) -> int | None:
        """Return the partition."""

    def offset(self) -> int | None:
        """Return the offset of the record."""


def offsets_of(at_least: Offsets | Produced | Iterable[Produced]) -> dict[str, dict[int, int]]:
    """Return the next offset by topic and partition.

    Raises:
        NotCovered: a record has no offset, because it was not delivered.
        QueryError: it is neither offsets nor records.
    """
    try:
        return _offsets_of(at_least)
    except (AttributeError, TypeError, ValueError) as error:
        raise QueryError(
            f"{at_least!r} names no offsets; write them by topic and partition, as in {{'orders': {{0: 42}}}}, or pass "
            f"delivery reports of a producer"
        ) from error


def _offsets_of(at_least: Offsets | Produced | Iterable[Produced]) -> dict[str, dict[int, int]]:
    if isinstance(at_least, Mapping):
        return {topic: {int(p): offset for p, offset in offsets.items()} for topic, offsets in at_least.items()}
    found: dict[str, dict[int, int]] = {}
    for one in at_least if isinstance(at_least, Iterable) else [at_least]:
        topic, partition, offset = one.topic(), one.partition(), one.offset()
        if topic is None or partition is None or offset is None or offset < 0:
            raise NotCovered(f"a record of topic {topic} was not delivered, so it has no offset to wait for")
        known = found.setdefault(topic, {})
        known[partition] = max(known.get(partition, 0), offset + 1)
    return found


def offsets_from(texts: Iterable[str]) -> dict[str, dict[int, int]]:
    """Return the next offset by topic and partition of produced records, each written as `TOPIC:PARTITION:OFFSET`.

    Raises:
        QueryError: a text is none.
    """
    found: dict[str, dict[int, int]] = {}
    for text in texts:
        topic, *numbers = text.rsplit(":", 2)
        if topic == "" or len(numbers) != 2 or not all(number.isdecimal() for number in numbers):
            raise QueryError(f"{text!r} names no record: write TOPIC:PARTITION:OFFSET, as in orders:0:41")
        partition, offset = map(int, numbers)
        known = found.setdefault(topic, {})
        known[partition] = max(known.get(partition, 0), offset + 1)
    return found


def by_topic(cut: Cut) -> dict[str, dict[int, int]]:
    """Return the next offsets of a cut by the name of the topic, without the cluster."""
    return {topic.partition("/")[2]: dict(at.offsets) for topic, at in cut.items()}


def missing(table: str, cut: Cut, offsets: Offsets) -> str:
    """Return what of some offsets a cut does not cover, in words; empty if it covers all.

    Raises:
        NotCovered: the table is not computed from a topic.
    """
    known, lacking = by_topic(cut), []
    for topic, wanted in offsets.items():
        if topic not in known:
            raise NotCovered(f"{table} is not computed from topic {topic!r}, but from {', '.join(sorted(known))}")
        for partition, offset in sorted(wanted.items()):
            has = known[topic].get(partition, 0)
            if has < offset and partition not in known[topic]:
                partitions = ", ".join(map(str, sorted(known[topic]))) or "none"
                lacking.append(
                    f"{topic}/{partition} up to offset {offset - 1} (it knows no partition {partition} of {topic}: it "
                    f"has {partitions})"
                )
            elif has < offset:
                lacking.append(f"{topic}/{partition} up to offset {offset - 1} (it has {has - 1})")
    return ", ".join(lacking)


def exceeds(cut: Cut, offsets: Offsets) -> bool:
    """Return whether a cut has a record beyond some offsets; a topic or a partition that they lack has no bound."""
    return any(
        has > offsets.get(topic, {}).get(partition, has)
        for topic, known in by_topic(cut).items()
        for partition, has in known.items()
    )
