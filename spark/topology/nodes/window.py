"""`windowed_by` with `count`, `aggregate` or `reduce`: one row for every group and window of time."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass, replace
from typing import Literal

from spark.topology.columns import WINDOW_BOUNDS, Column
from spark.topology.durations import written
from spark.topology.errors import Place
from spark.topology.nodes import items
from spark.topology.nodes.node import Costs, Node, Unary, kept_changes_mistake
from spark.topology.sql.fold import Fold, fold_of

WindowKind = Literal["time", "sliding", "session"]


@dataclass(frozen=True)
class Window(Unary):
    """One row for every group of a stream's records and window of time that holds some of them.

    All lengths are in milliseconds. "time": windows of `size`, one every `advance` since 1970, their end excluded.
    "sliding": the windows of length `size`, both ends included, that end at a record or begin right after one; their
    `advance` is 0. "session": the time from a first to a last record, both included, with no more than `size` from one
    to the next; sessions merge where a record comes between, so they are folded. Their `advance` is 0 as well.
    A record counts in those of its windows that `grace` and stream time leave open when it arrives. A `suppressed` row
    is there once its window is closed.
    `select` holds (column, expression) for every aggregate; `columns` are those grouped by, the bounds, the aggregates.
    """

    by: tuple[str, ...]
    kind: WindowKind
    size: int
    advance: int
    grace: int
    select: tuple[tuple[str, str], ...]
    columns: tuple[Column, ...]
    suppressed: bool = False
    fold: Fold | None = None

    @property
    def key(self) -> tuple[str, ...]:
        """The names of the columns grouped by, and of the window's bounds."""
        return (*self.by, *(column.name for column in WINDOW_BOUNDS))

    @property
    def keeps_time(self) -> bool:
        """Stream time closes windows."""
        return True

    @property
    def aggregates(self) -> bool:
        """It does."""
        return True

    @property
    def closes_windows(self) -> bool:
        """If it is suppressed."""
        return self.suppressed

    @property
    def reads_again(self) -> tuple[Node, ...]:
        """The stream, for the records of open windows."""
        return self.sources

    @property
    def reads_in_order(self) -> tuple[Node, ...]:
        """The stream."""
        return self.sources

    @property
    def open_for(self) -> int:
        """How far before stream time a record can be and still count in an open window, in milliseconds."""
        return self.size + self.grace

    @property
    def foldable(self) -> Fold | str:
        """How its aggregates fold, or why they do not."""
        place = Place(f"aggregate by {', '.join(self.by)}", self.line, {"": self.source.columns})
        return fold_of(self.select, place, insert_only=self.source.is_stream)

    def stored_form(self) -> Node:
        """Sessions with their fold; other windows are computed again from their records."""
        fold = self.foldable if self.kind == "session" else None
        return replace(self, fold=fold) if isinstance(fold, Fold) else self

    def mistakes(self, stored: Set[Node]) -> Iterable[tuple[str, str]]:
        """A table's changes are not kept for ever, sessions must fold, and windows must be stored."""
        yield from kept_changes_mistake(self, stored, "windows read")
        if self.kind == "session" and isinstance(why := self.foldable, str):
            what = f"sessions merge, of what each holds, and {why}"
            yield what, "write aggregates that fold: count, sum, avg, min, max"

    @property
    def title(self) -> str:
        """The source, and what it is grouped by."""
        suppressed = "suppress of " if self.suppressed else ""
        return f"{suppressed}windows of {self.source.title} by {', '.join(self.by)}"

    @property
    def kafka_name(self) -> str:
        """As Kafka Streams prints it."""
        return "KTABLE-SUPPRESS" if self.suppressed else "KSTREAM-AGGREGATE"

    def explain(self, global_tables: Set[str]) -> str:  # noqa: ARG002  # a computed table is none
        """The aggregates, the windows, when they close, what is kept and what is read again."""
        computed = ", ".join(items.text_of(name, text) for name, text in self.select)
        return f"{computed} by {', '.join(self.by)} {self._explain_windows()}"

    def _explain_windows(self) -> str:
        size, back = written(self.size), written(self.open_for)
        if self.kind == "session":
            return (
                f"in sessions with gaps of at most {size}, folded: a session is closed when stream time less "
                f"{back} of gap and grace is behind its end; kept: the rows of sessions, whose state "
                f"they are; no record is read again"
            )
        if self.kind == "sliding":
            which, closed = f"sliding windows of {size}", "is behind"
        elif self.advance == self.size:
            which, closed = f"tumbling windows of {size}", "reaches"
        else:
            which, closed = f"hopping windows of {size} every {written(self.advance)}", "reaches"
        when = "a row once its window is closed" if self.suppressed else "a row as soon as its window has a record"
        return (
            f"in {which}, {when}; closed when stream time less {written(self.grace)} of grace {closed} its end; "
            f"kept: the rows of windows, whose state they are; reads records of the last {back} again"
        )

    @property
    def costs(self) -> Costs:
        """The new records, and those that may be in the same windows; sessions fold."""
        if self.kind == "session":
            again = ", folded into the open sessions of their groups"
        else:
            again = f", and the records of {written(self.open_for)} before them"
        return tuple((scan, words + again) for scan, words in self.source.costs)

    def pruned(self, read: Set[str]) -> Window:
        """Without the aggregates that nothing reads, unless it folds: its partials are of all of them."""
        cut = self
        if self.fold is None:
            select, columns = items.kept(self.select, self.columns, read | set(self.key))
            cut = replace(self, select=select, columns=columns)
        below = items.columns_in(self.source.columns, *(text for _, text in cut.select))
        return replace(cut, source=self.source.pruned({*self.by, *below}))
