"""`windowed_by` with `count`, `aggregate` or `reduce`: one row for every group and window of time."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass
from typing import Literal

from spark.topology.columns import WINDOW_BOUNDS
from spark.topology.durations import format_duration
from spark.topology.nodes import items
from spark.topology.nodes.grouped import Grouped
from spark.topology.nodes.node import Costs, Node, unretained_changes

WindowKind = Literal["time", "sliding", "session"]


@dataclass(frozen=True)
class Window(Grouped):
    """One row for every group of a stream's records and every window of time that holds some of them.

    All lengths are in milliseconds. The kinds of windows:
      "time": windows of length `size`, one every `advance` since 1970; they exclude their end.
      "sliding": windows of length `size` that end at a record or begin one millisecond after it; they include both
      ends, and `advance` is 0.
      "session": from a first to a last record, with at most `size` between neighbours; they include both ends, and
      `advance` is 0. A record between two sessions merges them, so sessions are folded.
    A record counts in those of its windows that are open at its place: stream time minus `grace` has not passed them.
    A `suppressed` row exists once its window is closed.
    `select` holds (column, expression) for every aggregate. `columns` are the grouping columns, the bounds, and the
    aggregates.
    """

    kind: WindowKind
    size: int
    advance: int
    grace: int
    suppressed: bool = False

    @property
    def key(self) -> tuple[str, ...]:
        """The grouping columns, and the window's bounds."""
        return (*self.by, *(column.name for column in WINDOW_BOUNDS))

    @property
    def aggregate_items(self) -> items.Items:
        """(column, expression) for every aggregate."""
        return self.select

    @property
    def uses_stream_time(self) -> bool:
        """True: stream time closes windows."""
        return True

    @property
    def closes_windows(self) -> bool:
        """True if it is suppressed."""
        return self.suppressed

    @property
    def reads_in_order(self) -> tuple[Node, ...]:
        """Its source."""
        return self.sources

    @property
    def open_for(self) -> int:
        """How far before stream time a record can be and count in an open window, in milliseconds."""
        return self.size + self.grace

    def stored_form(self) -> Node:
        """Sessions with their fold; other windows are computed again from their records."""
        return self.folded() if self.kind == "session" else self

    def mistakes(self, stored: Set[Node]) -> Iterable[tuple[str, str]]:
        """Refuse windows of changes that are not retained, and sessions that do not fold."""
        yield from unretained_changes(self, stored, "windows read")
        if self.kind == "session" and isinstance(why := self.foldable, str):
            what = f"sessions merge, so their aggregates must fold, and {why}"
            yield what, "write aggregates that fold: count, sum, avg, min, max"

    @property
    def title(self) -> str:
        """The source and the grouping columns."""
        suppressed = "suppress of " if self.suppressed else ""
        return f"{suppressed}windows of {self.source.title} by {', '.join(self.by)}"

    @property
    def kafka_name(self) -> str:
        """The processor's name in Kafka Streams."""
        return "KTABLE-SUPPRESS" if self.suppressed else "KSTREAM-AGGREGATE"

    def explain(self, global_tables: Set[str]) -> str:  # noqa: ARG002  # a computed table is none
        """The aggregates, the windows, when they close, what their state is, and which records are read again."""
        computed = ", ".join(items.text_of(name, text) for name, text in self.select)
        return f"{computed} by {', '.join(self.by)} {self._explain_windows()}"

    def _explain_windows(self) -> str:
        size, back = format_duration(self.size), format_duration(self.open_for)
        if self.kind == "session":
            return (
                f"in sessions with gaps of at most {size}, folded; a session closes when stream time minus {back} of "
                f"gap and grace passes its end; state: the stored rows; no record is read again"
            )
        if self.kind == "sliding":
            which, passes = f"sliding windows of {size}", "passes"
        elif self.advance == self.size:
            which, passes = f"tumbling windows of {size}", "reaches"
        else:
            which, passes = f"hopping windows of {size} every {format_duration(self.advance)}", "reaches"
        emitted = "a row once its window is closed" if self.suppressed else "a row from the first record on"
        return (
            f"in {which}, {emitted}; a window closes when stream time minus {format_duration(self.grace)} of grace "
            f"{passes} its end; state: the stored rows; the records of the last {back} are read again"
        )

    @property
    def costs(self) -> Costs:
        """The new records, and those that may be in the same windows; sessions fold."""
        if self.kind == "session":
            others = ", folded into the open sessions of their groups"
        else:
            others = f", and the records of {format_duration(self.open_for)} before them"
        return tuple((scan, words + others) for scan, words in self.source.costs)
