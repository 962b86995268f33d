"""`join`, `left_join`, `outer_join` of two streams within a window of time."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass

from spark.topology.durations import format_duration
from spark.topology.nodes.joined import Joined
from spark.topology.nodes.node import Costs, Node, unretained_changes


@dataclass(frozen=True)
class StreamJoin(Joined):
    """Every pair of records of two streams with equal keys and event times within a window.

    The event time of the right record is from `before` earlier to `after` later than that of the left one. A record is
    open until stream time passes its event time plus the longest wait for a partner plus `grace`. All lengths are in
    milliseconds. A record of an outer side without a partner has a row of its own once it is closed.
    """

    before: int
    after: int
    grace: int

    @property
    def is_stream(self) -> bool:
        """True."""
        return True

    @property
    def emits_unpaired(self) -> bool:
        """True unless it is an inner join."""
        return self.how != "inner"

    @property
    def own_columns(self) -> tuple[str, ...]:
        """The records of the pair: they show whether a record had a partner."""
        return ("_left", "_right")

    @property
    def rereads(self) -> tuple[Node, ...]:
        """Both sides: it reads open records again."""
        return self.sources

    @property
    def reads_in_order(self) -> tuple[Node, ...]:
        """Both sides."""
        return self.sources

    @property
    def reads_back(self) -> int:
        """How far before stream time an open record can be, in milliseconds."""
        return max(self.before, self.after, 0) + self.grace

    def mistakes(self, stored: Set[Node]) -> Iterable[tuple[str, str]]:
        """Refuse changes of a table that are not retained."""
        return unretained_changes(self, stored, "a join of streams reads")

    def why_no_view(self, stored: Set[Node]) -> tuple[str, str] | None:  # noqa: ARG002  # stored or not
        """Refuse a view: the join reads the records that it emitted before."""
        return "a join of two streams cannot be a view", "call .materialize(name) on it"

    @property
    def kafka_name(self) -> str:
        """The processor's name in Kafka Streams."""
        return "KSTREAM-JOINTHIS"

    def explain(self, global_tables: Set[str]) -> str:  # noqa: ARG002  # a stream is none
        """The window, and how far back it reads."""
        before, after, grace, back = map(format_duration, (self.before, self.after, self.grace, self.reads_back))
        window = f"from {before} before to {after} after, grace {grace}"
        on = f"stream-stream {self.how} join on {', '.join(self.key)}"
        return f"{on}, {window}; the records of the last {back} are read again"

    @property
    def costs(self) -> Costs:
        """The new records, and older records of both sides that may be open."""
        back = f", and the records of {format_duration(self.reads_back)} before them"
        return tuple((scan, words + back) for side in self.sources for scan, words in side.costs)
