"""`join`, `left_join` of a stream with a table: every record looks a row up (KIP-99)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, replace

from spark.topology.durations import format_duration
from spark.topology.nodes import items
from spark.topology.nodes.joined import Joined
from spark.topology.nodes.latest import Latest
from spark.topology.nodes.node import AddedColumns, Costs, Node, unique
from spark.topology.nodes.records import Records
from spark.topology.nodes.scan import Scan


@dataclass(frozen=True)
class Lookup(Joined):
    """Every record of a stream with the row of a table whose primary key equals its `on` expressions.

    Only the stream drives. A record sees the table at the pin, with these exceptions. If the table holds the newest
    records of a stream (`as_of`), a record sees the table as of its own place in the merge order. If the table is
    versioned (`history`, in milliseconds), it sees the row that was valid at its own event time; with `grace`
    (milliseconds), it looks that row up when stream time reaches its event time plus the grace. A global table is
    `broadcast` to every task. `on` is as in a join of tables; `how` is "inner" or "left".
    """

    on: tuple[str, ...]
    as_of: Node | None = None
    broadcast: bool = False
    history: int | None = None
    grace: int | None = None

    def map_sources(self, change: Callable[[Node], Node]) -> Lookup:
        """The lookup with its sources, and `as_of`, replaced by `change`."""
        as_of = None if self.as_of is None else change(self.as_of)
        return replace(self, left=change(self.left), right=change(self.right), as_of=as_of)

    @property
    def scans(self) -> tuple[Scan, ...]:
        """The scans of both sides and of `as_of`."""
        return unique((*self.left.scans, *self.right.scans, *(self.as_of.scans if self.as_of is not None else ())))

    @property
    def driving_sources(self) -> tuple[Node, ...]:
        """The left side."""
        return (self.left,)

    @property
    def versioned_lookups(self) -> tuple[Scan, ...]:
        """The landing of the right side if it is versioned, and those of the left side."""
        own = self.as_of.drivers if self.history is not None and self.as_of is not None else ()
        return unique((*own, *self.left.versioned_lookups))

    @property
    def on_left(self) -> tuple[str, ...]:
        """The lookup key."""
        return self.on

    @property
    def is_stream(self) -> bool:
        """True."""
        return True

    @property
    def of_changes(self) -> bool:
        """True if the left side is."""
        return self.left.of_changes

    @property
    def waits(self) -> bool:
        """True if it has a grace."""
        return self.grace is not None

    @property
    def rereads(self) -> tuple[Node, ...]:
        """The left side, if it has a grace: it reads the waiting records again."""
        return (self.left,) if self.waits else ()

    @property
    def reads_in_order(self) -> tuple[Node, ...]:
        """The left side and `as_of`, if there is one."""
        return () if self.as_of is None else (self.left, self.as_of)

    def unstored_lookup(self, stored: Set[Node]) -> Node | None:
        """Itself; None if it is stored."""
        return None if self in stored else self

    def mistakes(self, stored: Set[Node]) -> Iterable[tuple[str, str]]:
        """Refuse a grace over a stream that does not store each advance of stream time, and a truncated table."""
        stream = self.left.time_hiding_stream(stored) if self.waits else None
        if isinstance(self.as_of, Records) and self.as_of.truncates:
            what = f"{self.right.title} is declared with truncate=True, and a stream would look up rows that are gone"
            yield what, "leave out truncate=True, or declare the topic with global_table()"
        if stream is not None:
            what = f"grace= needs every advance of stream time, and {stream.title} stores only those of its own records"
            yield what, "join the topic's stream with grace= first, and filter or store the result"

    def why_no_view(self, stored: Set[Node]) -> tuple[str, str] | None:  # noqa: ARG002  # stored or not
        """Refuse a view with a grace: which records wait depends on the spans."""
        return ("a join with grace= cannot be a view", "call .materialize(name) on it") if self.waits else None

    def bound(self, below: Callable[[Node], Node]) -> Node:
        """The lookup over stored tables. A view on the right side stays a view, even if it is also stored."""
        if self.as_of is None:
            return self.map_sources(below)
        as_of = below(self.as_of)
        if self.history is None and not Latest(as_of).by_arrival:
            # A stored stream may append records that are older than the ones it has.
            return replace(self, left=below(self.left), right=below(self.right), as_of=None)

        def view(right: Node) -> Node:
            return right.map_sources(view) if right.is_row_by_row else below(right)

        return replace(self, left=below(self.left), right=view(self.right), as_of=as_of)

    @property
    def kafka_name(self) -> str:
        """The processor's name in Kafka Streams."""
        return f"KSTREAM-{'GLOBALTABLE-' if self.broadcast else ''}{'' if self.how == 'inner' else 'LEFT'}JOIN"

    def explain(self, global_tables: Set[str]) -> str:  # noqa: ARG002  # the node itself knows
        """The kind, the lookup key, and the version of the table that a record sees."""
        kind = "stream-global" if self.broadcast else "stream-table"
        return f"{kind} {self.how} join on {', '.join(self.on)}, {self.right.title} {self._explain_version}"

    @property
    def _explain_version(self) -> str:
        if self.as_of is None:
            return "read at the pin"
        if self.history is None:
            return "as of the record's place in the merge order"
        back = format_duration(self.history)
        version = f"as of the record's event time, at most {back} before table time"
        if self.grace is None:
            return version
        wait = format_duration(self.grace)
        return (
            f"{version}; looked up when stream time reaches the record's event time plus {wait} of grace; "
            f"state: none; the records of the last {wait} are read again"
        )

    @property
    def costs(self) -> Costs:
        """One lookup for every new record."""
        looked_up = (*self.right.scans, *(self.as_of.scans if self.as_of is not None else ()))
        waiting = f", and the records of {format_duration(self.grace)} before them" if self.grace is not None else ""
        lookups = f"{waiting}, each looked up once in {self.right.title}"
        if self.history is not None:
            lookups += "; for a record older than the stored row, all records of its key"
        return (
            *((scan, words + lookups) for scan, words in self.left.costs),
            *((scan, "nothing: it is only looked up") for scan in unique(looked_up)),
        )

    def pruned(self, read: Set[str]) -> Lookup:
        """The lookup without unread columns."""
        pruned = super().pruned(read)
        right = items.columns_of_side("right", self.right.columns, pruned.select)
        return replace(pruned, as_of=None if self.as_of is None else self.as_of.pruned(right))

    def without(self, added: AddedColumns) -> Lookup:
        """The lookup without columns that only pass through a column that was added to a side."""
        as_of = None if self.as_of is None else self.as_of.without(added)
        return replace(super().without(added), as_of=as_of)
