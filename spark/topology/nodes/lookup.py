"""`join`, `left_join` of a stream with a table: every record looks a row up (KIP-99)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, replace

from spark.topology.durations import written
from spark.topology.nodes import items
from spark.topology.nodes.joined import Joined
from spark.topology.nodes.latest import Latest
from spark.topology.nodes.node import AddedColumns, Costs, Node, unique
from spark.topology.nodes.scan import Scan
from spark.topology.nodes.select import Select


@dataclass(frozen=True)
class Lookup(Joined):
    """Every record of a stream with the row of a table whose primary key its `on` expressions hold.

    The records drive alone. Each sees the right table at the pin. Where the table holds the newest records of a stream
    (`as_of`), it sees the table as it was at the record's own place in the merge order; of a versioned table, whose
    `history` (milliseconds) is given, the row of its own event time. With `grace` (milliseconds) it looks that row up
    when stream time reaches its own time and grace. A global table is `broadcast`: sent whole to every task.
    `on` is as in a join of tables; `how` is "inner" or "left".
    """

    on: tuple[str, ...]
    as_of: Node | None = None
    broadcast: bool = False
    history: int | None = None
    grace: int | None = None

    def over(self, change: Callable[[Node], Node]) -> Lookup:
        """The same lookup over changed sources."""
        as_of = None if self.as_of is None else change(self.as_of)
        return replace(self, left=change(self.left), right=change(self.right), as_of=as_of)

    @property
    def scans(self) -> tuple[Scan, ...]:
        """Those of both sides, and of the stream whose newest records the right side holds."""
        return unique((*self.left.scans, *self.right.scans, *(self.as_of.scans if self.as_of is not None else ())))

    @property
    def followed(self) -> tuple[Node, ...]:
        """The stream."""
        return (self.left,)

    @property
    def versioned_lookups(self) -> tuple[Scan, ...]:
        """The landing of the right side, if that is versioned, and those of the stream."""
        here = self.as_of.drivers if self.history is not None and self.as_of is not None else ()
        return unique((*here, *self.left.versioned_lookups))

    @property
    def on_left(self) -> tuple[str, ...]:
        """The lookup key."""
        return self.on

    @property
    def is_stream(self) -> bool:
        """It is one."""
        return True

    @property
    def of_changes(self) -> bool:
        """As the stream that looks up."""
        return self.left.of_changes

    @property
    def waits(self) -> bool:
        """Whether it has a grace."""
        return self.grace is not None

    @property
    def reads_again(self) -> tuple[Node, ...]:
        """The stream, for the records that wait."""
        return (self.left,) if self.waits else ()

    @property
    def reads_in_order(self) -> tuple[Node, ...]:
        """The stream, and the one whose newest records the right side holds."""
        return () if self.as_of is None else (self.left, self.as_of)

    def unstored_lookup(self, stored: Set[Node]) -> Node | None:
        """Itself, unless it is stored."""
        return None if self in stored else self

    def mistakes(self, stored: Set[Node]) -> Iterable[tuple[str, str]]:
        """A grace needs to know every advance of stream time."""
        hides = self.left.hides_time(stored) if self.waits else None
        if hides is not None:
            what = (
                f"grace= needs every advance of stream time, and {hides.title} does not keep those between its records"
            )
            yield what, "join the topic's stream with grace=, and filter or store behind that"

    def why_no_view(self, stored: Set[Node]) -> tuple[str, str] | None:  # noqa: ARG002  # stored or not
        """Which records have waited long enough depends on the spans."""
        return ("a join with grace= is no view", "write .materialize(name) behind it") if self.waits else None

    def bound(self, below: Callable[[Node], Node]) -> Node:
        """The lookup over stored tables. A view of the right side is computed, stored or not, from what feeds it."""
        if self.as_of is None:
            return self.over(below)
        as_of = below(self.as_of)
        if self.history is None and not Latest(as_of).by_arrival:
            # A stored stream's records may be older than those that it had before.
            return replace(self, left=below(self.left), right=below(self.right), as_of=None)

        def view(right: Node) -> Node:
            return right.over(view) if isinstance(right, Select) else below(right)

        return replace(self, left=below(self.left), right=view(self.right), as_of=as_of)

    @property
    def kafka_name(self) -> str:
        """As Kafka Streams prints it."""
        return f"KSTREAM-{'GLOBALTABLE-' if self.broadcast else ''}{'' if self.how == 'inner' else 'LEFT'}JOIN"

    def explain(self, global_tables: Set[str]) -> str:  # noqa: ARG002  # the node itself knows
        """The kind, the lookup key, and as of when a record sees the table."""
        kind = "stream-global" if self.broadcast else "stream-table"
        return f"{kind} {self.how} join on {', '.join(self.on)}, {self.right.title} {self._seen}"

    @property
    def _seen(self) -> str:
        if self.as_of is None:
            return "at the pin"
        if self.history is None:
            return "as it was at the record's place"
        back = written(self.history)
        seen = f"as of the record's event time, no further back than {back} before the table's own time"
        if self.grace is None:
            return seen
        wait = written(self.grace)
        return (
            f"{seen}; looked up when stream time reaches the record's time and {wait} of grace; "
            f"kept: nothing, who waits follows from stream time; reads records of the last {wait} again"
        )

    @property
    def costs(self) -> Costs:
        """Every record is looked up once."""
        looked_up = (*self.right.scans, *(self.as_of.scans if self.as_of is not None else ()))
        back = f", and the records of {written(self.grace)} before them" if self.grace is not None else ""
        again = f"{back}, each looked up once in {self.right.title}"
        if self.history is not None:
            again += "; of one that is older than the row there, all records of its key"
        return (
            *((scan, words + again) for scan, words in self.left.costs),
            *((scan, "nothing by itself; it is looked up") for scan in unique(looked_up)),
        )

    def pruned(self, read: Set[str]) -> Lookup:
        """Both sides without the columns that nothing reads."""
        found = super().pruned(read)
        right = items.columns_of_side("right", self.right.columns, found.select)
        return replace(found, as_of=None if self.as_of is None else self.as_of.pruned(right))

    def without(self, added: AddedColumns) -> Lookup:
        """Without the columns that pass on one that a side was given since."""
        as_of = None if self.as_of is None else self.as_of.without(added)
        return replace(super().without(added), as_of=as_of)
