"""`join`, `left_join`, `outer_join` of two streams within a window of time."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass

from spark.topology.durations import written
from spark.topology.nodes.joined import Joined
from spark.topology.nodes.node import Costs, Node, kept_changes_mistake


@dataclass(frozen=True)
class StreamJoin(Joined):
    """Every pair of records of two streams that have equal keys, and event times near each other.

    A right record's event time is from `before` earlier to `after` later than the left one's. A record is open while
    its time, plus what its side may have to wait for, plus `grace`, is at or after stream time; all in milliseconds. A
    record of an outer side that found no pair has a row of its own once it is closed.
    """

    before: int
    after: int
    grace: int

    @property
    def is_stream(self) -> bool:
        """It is one."""
        return True

    @property
    def emits_unpaired(self) -> bool:
        """Unless it is an inner join."""
        return self.how != "inner"

    @property
    def own_columns(self) -> tuple[str, ...]:
        """The records of the pair: they show whether a record had a partner."""
        return ("_left", "_right")

    @property
    def reads_again(self) -> tuple[Node, ...]:
        """Both sides, for records that are still open."""
        return self.sources

    @property
    def reads_in_order(self) -> tuple[Node, ...]:
        """Both sides."""
        return self.sources

    @property
    def reads_back(self) -> int:
        """How far back in stream time it reads records again, in milliseconds."""
        return max(self.before, self.after, 0) + self.grace

    def mistakes(self, stored: Set[Node]) -> Iterable[tuple[str, str]]:
        """A table's changes are not kept for ever."""
        return kept_changes_mistake(self, stored, "a join of streams reads")

    def why_no_view(self, stored: Set[Node]) -> tuple[str, str] | None:  # noqa: ARG002  # stored or not
        """What it emitted is a part of what it reads."""
        return "a join of two streams is no view", "write .materialize(name) behind it"

    @property
    def kafka_name(self) -> str:
        """As Kafka Streams prints it."""
        return "KSTREAM-JOINTHIS"

    def explain(self, global_tables: Set[str]) -> str:  # noqa: ARG002  # a stream is none
        """Its windows, and how far back it reads."""
        near = f"from {written(self.before)} before to {written(self.after)} after, grace {written(self.grace)}"
        back = written(self.reads_back)
        return f"stream-stream {self.how} join on {', '.join(self.key)}, {near}; reads records of the last {back} again"

    @property
    def costs(self) -> Costs:
        """New records, and older ones of both sides that may be open."""
        back = f", and the records of {written(self.reads_back)} before them"
        return tuple((scan, words + back) for side in self.sources for scan, words in side.costs)
