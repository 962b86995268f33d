"""Handles: what a user holds and chains while a topology is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NoReturn

from spark.topology.calls import checks_calls
from spark.topology.consumed import check_key
from spark.topology.ddl import legal_name, quoted
from spark.topology.draft import Draft, publish, store
from spark.topology.durations import milliseconds, written
from spark.topology.errors import NoSuchBranch, Place, TopologyError, did_you_mean, no_method, shown, user_line
from spark.topology.nodes import (
    WINDOW,
    Aggregate,
    Changes,
    Closed,
    Column,
    Drive,
    Explode,
    How,
    Join,
    Latest,
    Line,
    Node,
    Select,
    StreamJoin,
    Union,
    Window,
    WindowKind,
    of_changes,
)
from spark.topology.selection import select_joined, select_values
from spark.topology.sql import OWN_COLUMNS, column_named, is_condition, parse_aggregate, parse_expression
from spark.topology.tokens import one_text, texts
from spark.topology.windows import JoinWindows, SessionWindows, SlidingWindows, Suppressed, TimeWindows
from spark.topology.words import METHODS, by_arrival, title


@dataclass(frozen=True, eq=False, repr=False)
class Handle:
    """What a user holds of a node."""

    draft: Draft
    node: Node

    def __repr__(self) -> str:
        return f"{type(self).__name__}({title(self.node)})"

    if not TYPE_CHECKING:  # mypy knows the methods

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_") or name in ("draft", "node"):
                raise AttributeError(name)
            place = Place(f"{name} of {title(self.node)}", user_line(), {"": self.node.columns})
            others = (KTable, KStream, KGroupedTable, KGroupedStream)
            do = "declare its topic with table(), or write" if isinstance(self, GlobalKTable) else "write"
            raise no_method(type(self), name, place, others, do)


@dataclass(frozen=True, eq=False, repr=False)
class Joinable(Handle):
    """What can be joined."""

    def right_join(self, other: object, **_options: object) -> NoReturn:
        """Not available: says what to write."""
        place = _join_place("right_join", self.node, other, user_line())
        do = "turn it round: right.left_join(left, ...)"
        if isinstance(self, KStream) and not isinstance(other, KStream):
            do = "write left_join(...): a table's row that no record looks up makes no record"
        elif isinstance(other, GlobalKTable):
            do = "write left_join(...): a global table's row that no row looks up makes none"
        raise place.mistake("there is no right join", do)


@checks_calls
@dataclass(frozen=True, eq=False, repr=False)
class KTable(Joinable):
    """A table or a view: at most one row for every key."""

    def filter(self, sql: str) -> KTable:
        """The rows for which a condition is true."""
        return _view(self.draft, _filtered("filter", self.node, sql, user_line()))

    def filter_not(self, sql: str) -> KTable:
        """The rows for which a condition is not true: what `filter` leaves out."""
        return _view(self.draft, _filtered("filter_not", self.node, sql, user_line()))

    def map_values(self, select: str | Sequence[str]) -> KTable:
        """Value columns computed from each row; the key is passed through.

        Args:
            select: items such as "*", "name", "expression AS name".
        """
        return _view(self.draft, _mapped(self.node, select, user_line()))

    def join(
        self,
        other: KTable | GlobalKTable,
        *,
        on: str | Sequence[str] | None = None,
        within: object = None,
        select: str | Sequence[str],
        drive: Drive = "both",
        grace: object = None,
    ) -> KTable:
        """Every row that finds a row on the right.

        Args:
            other: the right side, looked up by its key.
            on: expressions over left columns that hold the right key; without it the keys are equal.
            within: for streams only.
            select: items such as "left.*", "right.*", "right.name", "left.a + right.b AS name".
            drive: "both", or "left" where changes of the right side shall not be followed.
            grace: for streams only.
        """
        line = user_line()
        _check_no_window("join", self.node, other, within, grace, line)
        return _view(self.draft, _joined(self, "inner", other, on, select, drive, line))

    def left_join(
        self,
        other: KTable | GlobalKTable,
        *,
        on: str | Sequence[str] | None = None,
        within: object = None,
        select: str | Sequence[str],
        drive: Drive = "both",
        grace: object = None,
    ) -> KTable:
        """Every row, with nulls on the right where it finds none; arguments as in `join`."""
        line = user_line()
        _check_no_window("left_join", self.node, other, within, grace, line)
        return _view(self.draft, _joined(self, "left", other, on, select, drive, line))

    def outer_join(
        self,
        other: KTable,
        *,
        on: None = None,
        within: object = None,
        select: str | Sequence[str],
        drive: Literal["both"] = "both",
        grace: object = None,
    ) -> KTable:
        """Every key that either side has, with nulls where the other has none; the keys are equal.

        Arguments as in `join`; what `left.` and `right.` hold is null where that side has no row, the key never is.
        """
        line = user_line()
        _check_no_window("outer_join", self.node, other, within, grace, line)
        place = _join_place("outer_join", self.node, other, line)
        if on is not None:
            what = "there is no foreign-key outer join: a row without a left side would have no key"
            raise place.mistake(what, "write left_join(..., on=...)")
        if isinstance(other, GlobalKTable):
            what = f"{title(other.node)} is a global table, which is looked up from the left side alone"
            raise place.mistake(what, f"write left_join(...), or declare {title(other.node)} with table()")
        if drive != "both":
            raise place.mistake(f"drive is {drive!r}, and in an outer join both sides have rows", "leave out drive=")
        return _view(self.draft, _joined(self, "outer", other, None, select, drive, line))

    def group_by(self, *columns: str | Sequence[str]) -> KGroupedTable:
        """The rows in groups of equal columns, to be aggregated; a row with a null among them is in no group.

        Args:
            columns: names of columns, or a list of them; for an expression, write map_values first.
        """
        return KGroupedTable(self.draft, self.node, _grouped(self.node, columns, user_line()))

    def select_key(self, columns: str | Sequence[str]) -> KTable:
        """The rows by another key: of rows that share it, the newest by event time.

        Args:
            columns: the column, or columns, of the new key; a row with a null among them is left out.
        """
        line = user_line()
        by = _columns("select_key", self.node, columns, line)
        names = tuple(column.name for column in by)
        others = tuple(column for column in self.node.columns if column.name not in names)
        # Two rows may come from one record: the old key tells them apart, so that all columns are of one row.
        order = ", ".join((*(column.name for column in OWN_COLUMNS), *map(quoted, self.node.key)))
        newest = ((column.name, f"max_by({quoted(column.name)}, struct({order}))") for column in others)
        select = (*((name, quoted(name)) for name in names), *newest)
        return _view(self.draft, Aggregate(self.node, names, select, (*by, *others), line=line))

    def to_stream(self) -> KStream:
        """The changes of a stored table as a stream; a row that goes is a record without a value.

        Several updates of a key that one step took in are one change, so how many there are depends on the ticks.
        """
        node = Changes(self.node, user_line())
        self.draft.written.append(node)
        return KStream(self.draft, node)

    def suppress(self, suppressed: Suppressed) -> KTable:
        """The rows of windows, each once: when stream time has closed its window, and never changed again.

        Args:
            suppressed: `Suppressed.until_window_closes()`. Of sessions, those stored are suppressed: write
                `.materialize(name)` before, for the table that holds the open ones too.
        """
        line = user_line()
        place = Place(f"suppress of {title(self.node)}", line, {"": self.node.columns})
        if not isinstance(suppressed, Suppressed):
            raise place.mistake(f"it is given {suppressed!r}", "write suppress(Suppressed.until_window_closes())")
        if not isinstance(self.node, Window):
            do = "write it right behind group_by(...).windowed_by(...).count(), aggregate(...) or reduce(...)"
            raise place.mistake("these rows are not a window's aggregates: nothing closes them", do)
        if self.node.suppressed:
            raise place.mistake("the rows are suppressed already", "write it once")
        if self.node.kind == "session":
            return _view(self.draft, Closed(self.node, self.node.size + self.node.grace, line))
        if self.node in self.draft.written:  # no view any more, unless something else reads it
            self.draft.written.remove(self.node)
        return _view(self.draft, replace(self.node, suppressed=True, line=line))

    def materialize(self, name: str) -> KTable:
        """Store the rows as a table of this name."""
        store(self.draft, name, self.node, user_line())
        return self

    def to(self, topic: str) -> None:
        """Publish the changes to a topic: a row that is new or changed as a record, one that goes as a tombstone.

        Rows that are not materialized are stored, as a table of the topic's name. Key and value are JSON, as
        `Consumed.json` reads them; the columns of a window's bounds are called window_start and window_end.
        """
        publish(self.draft, topic, self.node, user_line())


@checks_calls
@dataclass(frozen=True, eq=False, repr=False)
class Grouped(Handle):
    """Rows or records in groups; an aggregate makes them a table."""

    by: tuple[Column, ...]

    def count(self, name: str = "count") -> KTable:
        """How many rows each group has."""
        return self._aggregated("count", {name: "count(*)"}, user_line())

    def aggregate(self, *unnamed: object, **aggregates: str) -> KTable:
        """Columns computed over each group's rows: `total="sum(amount)", orders="count(*)"`.

        Any aggregate of Spark SQL whose result does not depend on the order of rows, and expressions over them.
        """
        line = user_line()
        if unnamed:
            place = Place(f"aggregate of {title(self.node)}", line, {"": self.node.columns})
            raise place.mistake(
                f"{unnamed[0]!r} has no name", f"write aggregate(name={unnamed[0]!r}), by the column's name"
            )
        return self._aggregated("aggregate", aggregates, line)

    def reduce(self, **columns: str) -> KTable:
        """Value columns of the source, each combined over the group's rows into one value of its own type.

        As in `reduce(amount="sum(amount)", at="max(at)")`; where the result is of another type, write `aggregate`.
        """
        line = user_line()
        place = Place(f"reduce of {title(self.node)}", line, {"": self.node.columns})
        reduced = {}
        for name, text in columns.items():
            column = next((column for column in self.node.columns if column.name == name), None)
            if column is None:
                do = "write aggregate(...) for a new column" + did_you_mean(name, [c.name for c in self.node.columns])
                raise place.mistake(f"{name!r} is not a column of the source", do)
            reduced[name] = text if column.type is None else f"cast({one_text(text, place)} AS {column.type})"
        return self._aggregated("reduce", reduced, line)

    def _aggregated(self, method: str, aggregates: dict[str, str], line: Line) -> KTable:
        by = tuple(column.name for column in self.by)
        place = Place(f"{method} of {title(self.node)} by {', '.join(by)}", line, {"": self.node.columns})
        if not aggregates:
            raise place.mistake("nothing is computed", f'write {method}(total="sum(amount)"), or count()')
        select: list[tuple[str, str]] = []
        columns: list[Column] = []
        for name, text in aggregates.items():
            if legal_name(name, place).lower() in {column.name.lower() for column in (*self.by, *columns)}:
                raise place.mistake(f"{name!r} is a column already", "choose another name")
            found = parse_aggregate(text, by, place)
            select.append((name, found.text))
            columns.append(Column(name, found.type))
        return _view(self.draft, self._over(tuple(select), tuple(columns), line))

    def _over(self, select: tuple[tuple[str, str], ...], columns: tuple[Column, ...], line: Line) -> Aggregate | Window:
        """The node that computes aggregates of every group."""
        by = tuple(column.name for column in self.by)
        grouped = tuple((name, quoted(name)) for name in by)
        return Aggregate(self.node, by, (*grouped, *select), (*self.by, *columns), line=line)


@checks_calls
@dataclass(frozen=True, eq=False, repr=False)
class KGroupedTable(Grouped):
    """Rows in groups; an aggregate makes them a table whose key is what they were grouped by."""

    def windowed_by(self, windows: object) -> NoReturn:  # noqa: ARG002  # as a stream's
        """Not available: says what to write."""
        place = Place(f"windowed_by of {title(self.node)}", user_line(), {"": self.node.columns})
        do = "window the records of a topic: stream(...).group_by(...).windowed_by(...)"
        raise place.mistake("a table has one row for every key, and only records are in windows of time", do)


@checks_calls
@dataclass(frozen=True, eq=False, repr=False)
class KGroupedStream(Grouped):
    """Records in groups. A record without a value is in none, and what was counted stays counted."""

    def windowed_by(self, windows: TimeWindows | SlidingWindows | SessionWindows) -> TimeWindowedKStream:
        """The records of each group in windows of time; an aggregate makes them a table, which must be stored.

        Its key is what was grouped by, `_window_start` and `_window_end`. A record counts in the windows that are still
        open where it comes; one that comes too late for all of them is dropped, and counted in the position.

        Args:
            windows: such as `TimeWindows.of("1m", grace="10s")`.
        """
        line = user_line()
        place = Place(f"windowed_by of {title(self.node)}", line, {"": self.node.columns})
        kind, size, advance, grace = _lengths(windows, place)
        taken = {column.name for column in self.by} & {column.name for column in WINDOW}
        if taken:
            do = "write map_values with another name before: '_window_start AS began'"
            raise place.mistake(f"{', '.join(sorted(taken))} is a column of these windows, and grouped by", do)
        return TimeWindowedKStream(self.draft, self.node, self.by, kind, size, advance, grace)


@checks_calls
@dataclass(frozen=True, eq=False, repr=False)
class TimeWindowedKStream(Grouped):
    """Records in groups and windows of time, in milliseconds."""

    kind: WindowKind
    size: int
    advance: int
    grace: int

    def _over(self, select: tuple[tuple[str, str], ...], columns: tuple[Column, ...], line: Line) -> Window:
        by = tuple(column.name for column in self.by)
        return Window(
            self.node,
            by,
            self.kind,
            self.size,
            self.advance,
            self.grace,
            select,
            (*self.by, *WINDOW, *columns),
            line=line,
        )


@checks_calls
@dataclass(frozen=True, eq=False, repr=False)
class GlobalKTable(Joinable):
    """A table every step sees whole, or a view of such tables; it is joined to, from the right."""

    def filter(self, sql: str) -> GlobalKTable:
        """The rows for which a condition is true; no other can be looked up."""
        return self._seen(_filtered("filter", self.node, sql, user_line()))

    def filter_not(self, sql: str) -> GlobalKTable:
        """The rows for which a condition is not true: what `filter` leaves out."""
        return self._seen(_filtered("filter_not", self.node, sql, user_line()))

    def map_values(self, select: str | Sequence[str]) -> GlobalKTable:
        """Value columns computed from each row; as a table's `map_values`."""
        return self._seen(_mapped(self.node, select, user_line()))

    def join(
        self, other: GlobalKTable, *, on: str | Sequence[str] | None = None, select: str | Sequence[str]
    ) -> GlobalKTable:
        """Every row that finds a row of another global table, to be looked up as one; arguments as a table's `join`."""
        return self._joined("inner", other, on, select, user_line())

    def left_join(
        self, other: GlobalKTable, *, on: str | Sequence[str] | None = None, select: str | Sequence[str]
    ) -> GlobalKTable:
        """Every row, with nulls where it finds none; as `join`."""
        return self._joined("left", other, on, select, user_line())

    def _joined(
        self, how: How, other: object, on: str | Sequence[str] | None, select: str | Sequence[str], line: Line
    ) -> GlobalKTable:
        if not isinstance(other, GlobalKTable):
            raise _global_on_the_left(METHODS[how], self.node, other, line)
        return self._seen(_joined(self, how, other, on, select, "both", line))

    def _seen(self, node: Select | Join) -> GlobalKTable:
        self.draft.written.append(node)
        return GlobalKTable(self.draft, node)

    def outer_join(self, other: object, **_options: object) -> NoReturn:
        """Not available: says what to write."""
        raise _global_on_the_left("outer_join", self.node, other, user_line())


@checks_calls
@dataclass(frozen=True, eq=False, repr=False)
class KStream(Joinable):
    """A stream: records in their own right, also those whose key came before."""

    def filter(self, sql: str) -> KStream:
        """The records for which a condition is true. In a record without a value, all value columns are null."""
        return self._seen(_filtered("filter", self.node, sql, user_line()))

    def filter_not(self, sql: str) -> KStream:
        """The records for which a condition is not true: what `filter` leaves out."""
        return self._seen(_filtered("filter_not", self.node, sql, user_line()))

    def map_values(self, select: str | Sequence[str]) -> KStream:
        """Value columns computed from each record; a record without a value stays one. As a table's `map_values`."""
        return self._seen(_mapped(self.node, select, user_line()))

    def select_key(self, columns: str | Sequence[str]) -> KStream:
        """The records by another key.

        Args:
            columns: the column, or columns, of the new key; for an expression, write map_values first.
        """
        line = user_line()
        key = _columns("select_key", self.node, columns, line)
        names = tuple(column.name for column in key)
        chosen = (*key, *(column for column in self.node.columns if column.name not in names))
        select = tuple((column.name, quoted(column.name)) for column in chosen)
        return self._seen(Select(self.node, select, chosen, rekeyed=names, line=line))

    def merge(self, other: KStream) -> KStream:
        """The records of both streams, which have the same key and the same columns."""
        line = user_line()
        right = title(other.node) if isinstance(other, KStream) else type(other).__name__
        place = Place(f"merge of {title(self.node)} with {right}", line, {"left": self.node.columns})
        if not isinstance(other, KStream):
            raise place.mistake(f"{right} is no stream", "merge what stream() returned; tables are joined")
        _check_same_builder(self, other, place)
        if any(of_changes(side) for side in (self.node, other.node)):
            what = "a row that goes has no time of its own, and merged streams have no other order"
            raise place.mistake(what, "merge the topics' streams, before they are tables")
        if (self.node.key, self.node.columns) != (other.node.key, other.node.columns):
            place = Place(place.node, line, {"left": self.node.columns, "right": other.node.columns})
            do = "write map_values and select_key first, so that names, types and order agree"
            raise place.mistake("the two sides have other columns, or another key", do)
        return self._seen(Union(self.node, other.node, line))

    def to_table(self) -> KTable:
        """The newest record of every key as a table; a record without a value deletes its key's row."""
        return _view(self.draft, Latest(self.node, line=user_line()))

    def group_by(self, *columns: str | Sequence[str]) -> KGroupedStream:
        """The records in groups of equal columns, to be aggregated; as a table's `group_by`."""
        return KGroupedStream(self.draft, self.node, _grouped(self.node, columns, user_line()))

    def flat_map(self, column: str) -> KStream:
        """One record for every element of an array column, which holds the element then; none of an empty one."""
        line = user_line()
        (found,) = _columns("flat_map", self.node, (column,), line, key=False)
        place = Place(f"flat_map of {title(self.node)}", line, {"": self.node.columns})
        kind = found.type
        if found.name in self.node.key or (kind is not None and not kind.startswith("array<")):
            raise place.mistake(f"{column} is {kind}, and no array column of the value", "name an array column")
        element = Column(found.name, None if kind is None else kind.removeprefix("array<").removesuffix(">"))
        columns = tuple(element if other == found else other for other in self.node.columns)
        return self._seen(Explode(self.node, found.name, columns, line))

    def split(self, **branches: str) -> dict[str, KStream]:
        """The records in branches by name: each record is in the first whose condition is true, or in none.

        As in `split(large="amount > 100", small="true")`: what comes last may take the rest.
        """
        line = user_line()
        place = Place(f"split of {title(self.node)}", line, {"": self.node.columns})
        if not branches:
            raise place.mistake("it has no branches", 'write split(large="amount > 100", small="true")')
        taken: list[str] = []
        found = {}
        for name, sql in branches.items():
            text = _condition(sql, Place(f"branch {name} of {place.node}", line, place.columns))
            # Of a condition in SQL text, brackets keep an OR together.
            where = " AND ".join([*(f"NOT coalesce(({earlier}), false)" for earlier in taken), f"({text})"])
            found[name] = self._seen(_filtered("filter", self.node, where, line))
            taken.append(text)
        return Branches(place, found)

    def _seen(self, node: Select | Union | Explode | Join | StreamJoin) -> KStream:
        self.draft.written.append(node)
        return KStream(self.draft, node)

    def join(
        self,
        other: KTable | GlobalKTable | KStream,
        *,
        on: str | Sequence[str] | None = None,
        within: JoinWindows | None = None,
        select: str | Sequence[str],
        drive: Literal["left"] = "left",
        grace: str | None = None,
    ) -> KStream:
        """Every record with the row it finds in a table, or with every record of another stream near it in time.

        The records drive: a change of a table's row makes no record. A topic's table is seen as it was at the record's
        own place in the order of time, of a versioned one the row of the record's own event time; any other table, and
        a global one, as it was when the step began.

        Args:
            other: a table or global table, looked up by its key; or a stream with an equal key.
            on: expressions over the record's columns that hold the table's key; without it the keys are equal.
            within: for two streams, how near their records must be: `JoinWindows.of("10s", grace="1m")`.
            select: items such as "left.*", "right.name", "left.a + right.b AS name".
            drive: "left", there is no other.
            grace: for a versioned table, how long a record waits for late records of it, in stream time; "5s".
        """
        return self._joined("inner", other, on, within, select, drive, grace, user_line())

    def left_join(
        self,
        other: KTable | GlobalKTable | KStream,
        *,
        on: str | Sequence[str] | None = None,
        within: JoinWindows | None = None,
        select: str | Sequence[str],
        drive: Literal["left"] = "left",
        grace: str | None = None,
    ) -> KStream:
        """Every record, with nulls on the right where it finds none; arguments as in `join`.

        Between two streams a record that stayed alone has its row once its window, and grace, are over.
        """
        return self._joined("left", other, on, within, select, drive, grace, user_line())

    def outer_join(
        self,
        other: KStream,
        *,
        on: None = None,
        within: JoinWindows | None = None,
        select: str | Sequence[str],
        drive: Literal["left"] = "left",
        grace: None = None,
    ) -> KStream:
        """Every record of both streams, with nulls on the other side where it stayed alone; arguments as in `join`."""
        return self._joined("outer", other, on, within, select, drive, grace, user_line())

    def _joined(
        self,
        how: How,
        other: object,
        on: str | Sequence[str] | None,
        within: object,
        select: str | Sequence[str],
        drive: object,
        grace: object,
        line: Line,
    ) -> KStream:
        place = _join_place(METHODS[how], self.node, other, line)
        if not isinstance(other, KTable | GlobalKTable | KStream):
            raise place.mistake(f"the right side is {other!r}", "join a handle of table(), global_table() or stream()")
        _check_same_builder(self, other, place)
        if drive != "left":
            raise place.mistake(f"drive is {drive!r}, and records are made by the stream alone", "leave out drive=")
        if isinstance(other, KStream):
            return self._seen(_within(self, how, other, on, within, select, grace, place))
        if how == "outer":
            do = "write left_join(...): a table's row that no record looks up makes no record"
            raise place.mistake("a stream has no outer join with a table", do)
        if within is not None:
            raise place.mistake("within= is for two streams, and the right side is a table", "leave out within=")
        lookup = _lookup(self.node, other.node, on, place)
        chosen, columns = select_joined(select, self.node.key, other.node.key, place)
        sent = isinstance(other, GlobalKTable)
        told = None if sent else _told(other.node)
        history = None if told is None else _history(other.node)
        waits = None if grace is None else _grace(grace, history, other, place)
        join = Join(
            *(self.node, other.node, how, lookup, chosen, columns),
            drive="left",
            told=told,
            sent=sent,
            history=history,
            grace=waits,
            line=line,
        )
        return self._seen(join)

    def materialize(self, name: str) -> KStream:
        """Store the records under this name, as they come: a table that is only appended to."""
        store(self.draft, name, self.node, user_line())
        return self

    def to(self, topic: str) -> None:
        """Publish the records to a topic, as a table's `to`; a record without a value stays one."""
        publish(self.draft, topic, self.node, user_line())


class Branches(dict[str, KStream]):
    """The branches of a stream by name."""

    def __init__(self, place: Place, branches: dict[str, KStream]) -> None:
        super().__init__(branches)
        self.place = place

    def __missing__(self, name: object) -> NoReturn:
        what, place = f"there is no branch {name!r}", replace(self.place, line=user_line())
        raise NoSuchBranch(place.mistake(what, f"write one of {', '.join(self)}"))


def _columns(method: str, source: Node, given: object, line: Line, key: bool = True) -> tuple[Column, ...]:
    """The columns named, which a `key` may be made of."""
    place = Place(f"{method} of {title(source)}", line, {"": source.columns})
    names = texts(given, place)
    if not names:
        raise place.mistake("no column is named", f'write {method}("column")')
    found: dict[str, Column] = {}
    for text in names:
        column = parse_expression(text, place).column
        if column is None or column in OWN_COLUMNS:
            do = f"write map_values with '{text} AS name' first, and {method}(\"name\")"
            raise place.mistake(f"{text!r} is not a column of the source", do)
        if column.name in found:
            raise place.mistake(f"{text!r} is named twice", "name each column once")
        found[column.name] = column
    if key:
        check_key(tuple(found.values()), place)
    return tuple(found.values())


def _grouped(source: Node, columns: tuple[object, ...], line: Line) -> tuple[Column, ...]:
    """The columns grouped by, one by one or in one list."""
    return _columns("group_by", source, columns[0] if len(columns) == 1 else columns, line)


def _view(draft: Draft, node: Select | Join | Aggregate | Window | Closed | Latest) -> KTable:
    draft.written.append(node)
    return KTable(draft, node)


def _filtered(method: Literal["filter", "filter_not"], source: Node, sql: str, line: Line) -> Select:
    place = Place(f"{method} of {title(source)}", line, {"": source.columns})
    select, columns = select_values("*", source.key, place)
    where = _condition(sql, place)
    where = where if method == "filter" else f"NOT coalesce({where}, false)"
    return Select(source, select, columns, where, line=line)


def _condition(sql: str, place: Place) -> str:
    """A condition; what is known to be of another type is none."""
    found = parse_expression(sql, place)
    if found.known not in (None, "boolean"):
        do = f"write what must be true, such as '{found.text} IS NOT NULL'"
        raise place.mistake(f"{sql!r} is {found.known}, and no condition", do)
    return found.text


def _mapped(source: Node, select: str | Sequence[str], line: Line) -> Select:
    place = Place(f"map_values of {title(source)}", line, {"": source.columns})
    chosen, columns = select_values(select, source.key, place)
    return Select(source, chosen, columns, line=line)


def _joined(
    left: KTable | GlobalKTable,
    how: How,
    other: object,
    on: str | Sequence[str] | None,
    select: str | Sequence[str],
    drive: Drive,
    line: Line,
) -> Join:
    place = _join_place(METHODS[how], left.node, other, line)
    if isinstance(other, KStream):
        do = "turn the join round: the stream goes to the left; or write to_table() behind it"
        raise place.mistake(f"{title(other.node)} is a stream, and no table can look a row up in it", do)
    if not isinstance(other, KTable | GlobalKTable):
        raise place.mistake(f"the right side is {other!r}", "join a handle that table() or global_table() returned")
    _check_same_builder(left, other, place)
    if drive not in ("both", "left"):
        raise place.mistake(f"drive is {drive!r}", 'write drive="both" or drive="left"')
    lookup = _lookup(left.node, other.node, on, place, takes_on=how != "outer")
    chosen, columns = select_joined(select, left.node.key, other.node.key, place)
    return Join(left.node, other.node, how, lookup, chosen, columns, drive, line=line)


def _check_same_builder(
    left: KTable | GlobalKTable | KStream, right: KTable | GlobalKTable | KStream, place: Place
) -> None:
    if right.draft is not left.draft:
        what = f"{title(right.node)} belongs to another builder ({right.draft.name})"
        raise place.mistake(what, f"declare its topic with the builder of {title(left.node)} ({left.draft.name})")


def _lookup(
    left: Node, right: Node, on: str | Sequence[str] | None, place: Place, takes_on: bool = True
) -> tuple[str, ...]:
    """The expressions over left columns that hold the right key, of its types where both are known."""
    looks = tuple(map(quoted, left.key)) if on is None else texts(on, place)
    right_key = right.columns[: len(right.key)]
    keys = shown(right_key)
    do = f"write on=[...] with one expression over left columns for each of: {keys}"
    if not takes_on:
        do = "give both sides the same key: map_values(...) computes its columns, and select_key(...) takes them"
    if len(looks) != len(right_key):
        given = f"the left key ({', '.join(left.key)})" if on is None else f"on={on!r}"
        raise place.mistake(f"{given} cannot look up the right key ({keys})", do)
    names = tuple(column.name for column in right_key)
    ours, theirs = ([name.lower() for name in key] for key in (left.key, names))
    if on is None and ours != theirs and set(ours) == set(theirs):
        what = f"the left key is ({', '.join(left.key)}), and the right key has another order: ({', '.join(names)})"
        raise place.mistake(what, "declare the two keys in one order")
    looked_up = zip(looks, right_key, strict=True)
    return tuple(_looked_up(text, column, do if on is None else None, place) for text, column in looked_up)


def _looked_up(text: str, key: Column, do: str | None, place: Place) -> str:
    """The expression that holds a column of the right key."""
    source = Place(place.node, place.line, {"": place.columns["left"]})
    if key.type not in (None, "boolean") and is_condition(text, source):
        what = f"{text!r} is true, false or null, and on= holds the right key {key.name}, which is {key.type}"
        raise place.mistake(what, "write no condition, but what the key is equal to: an expression over left columns")
    if column_named(text, place.columns["left"]) is None and column_named(text, place.columns["right"]) is not None:
        what = f"{text!r} is a column of the right side alone, and on= is over left columns"
        raise place.mistake(what, f"write the left column, or expression, that {key.name} is equal to")
    expression = parse_expression(text, source)
    if None not in (expression.known, key.type) and expression.known != key.type:
        what = f"{expression.text} is {expression.known}, and the right key {key.name} is {key.type}"
        cast = f'write on="cast({expression.text} as {key.type})", or declare equal types'
        inside = "write the field, or the element, that holds it" if "<" in (expression.known or "") else None
        raise place.mistake(what, do or inside or cast)
    return expression.text


def _join_place(method: str, left: Node, other: object, line: Line) -> Place:
    if isinstance(other, KTable | GlobalKTable | KStream):
        return Place(
            f"{method} of {title(left)} with {title(other.node)}",
            line,
            {"left": left.columns, "right": other.node.columns},
        )
    return Place(f"{method} of {title(left)} with {type(other).__name__}", line, {"left": left.columns})


def _check_no_window(method: str, left: Node, other: object, within: object, grace: object, line: Line) -> None:
    if within is not None or grace is not None:
        word = "within" if within is not None else "grace"
        place = _join_place(method, left, other, line)
        raise place.mistake(f"{word}= is for two streams, and the left side is a table", f"leave out {word}=")


def _global_on_the_left(method: str, left: Node, other: object, line: Line) -> TopologyError:
    place = _join_place(method, left, other, line)
    do = f"declare {title(left)} with table(), or turn the join round: the global table goes to the right"
    return place.mistake("a global table cannot be the left side of a join, except with another global table", do)


def _within(
    left: KStream,
    how: How,
    other: KStream,
    on: object,
    within: object,
    select: str | Sequence[str],
    grace: object,
    place: Place,
) -> StreamJoin:
    if on is not None or grace is not None:
        word, do = ("on", "write select_key(...) before it") if on is not None else ("grace", "write it in within=")
        raise place.mistake(f"{word}= is for a table on the right, and two streams are joined by equal keys", do)
    if not isinstance(within, JoinWindows):
        do = 'write within=JoinWindows.of("10s", grace="1m")'
        raise place.mistake("two streams are joined within a window of time, and none is given", do)
    windows = Place(f"JoinWindows of {place.node}", place.line)
    before, after = (milliseconds(length, windows, signed=True) for length in (within.before, within.after))
    if before + after < 0:
        raise windows.mistake(f"no time is from {before} ms before to {after} ms after", "make the window wider")
    _lookup(left.node, other.node, None, place, takes_on=False)
    chosen, columns = select_joined(select, left.node.key, other.node.key, place)
    length = _window_grace(within.grace, windows)
    return StreamJoin(left.node, other.node, how, before, after, length, chosen, columns, place.line)


def _window_grace(grace: str | None, place: Place) -> int:
    """How long windows stay open for late records, in milliseconds."""
    if grace is None:
        do = 'write how long to wait for late records, as in grace="10s"; grace="0s" is not at all'
        raise place.mistake("grace is missing: without it no window would ever close", do)
    return milliseconds(grace, place)


def _lengths(windows: object, place: Place) -> tuple[WindowKind, int, int, int]:
    """What some windows are: their kind, size, advance, and grace, in milliseconds."""
    match windows:
        case TimeWindows(size=size):
            kind: WindowKind = "time"
        case SlidingWindows(difference=size):
            kind = "sliding"
        case SessionWindows(gap=size):
            kind = "session"
        case _:
            do = 'write windowed_by(TimeWindows.of("1m", grace="10s")), or sliding windows, or sessions'
            raise place.mistake(f"the windows are {windows!r}", do)
    place = Place(f"{type(windows).__name__} of {place.node}", place.line, place.columns)
    length, grace = milliseconds(size, place), _window_grace(windows.grace, place)
    if length == 0 and kind != "sliding":
        raise place.mistake("the windows are empty", 'write a length from "1ms"')
    if not isinstance(windows, TimeWindows):
        return kind, length, 0, grace
    advance = length if windows.advance is None else milliseconds(windows.advance, place)
    if not 0 < advance <= length:
        what = f"the windows advance by {windows.advance}, and are {windows.size} long"
        raise place.mistake(what, "advance by more than nothing, and by no more than their size")
    return kind, length, advance, grace


def _told(right: Node) -> Node | None:
    """The stream whose newest records a table holds, or a view of one; None for every other table."""
    latest = _viewed(right)
    if not isinstance(latest, Latest) or of_changes(latest.source):
        return None
    return latest.source if by_arrival(latest) or latest.history is not None else None


def _history(right: Node) -> int | None:
    """How far back a versioned table, or a view of one, can be looked up, in milliseconds; None for every other."""
    latest = _viewed(right)
    return latest.history if isinstance(latest, Latest) else None


def _grace(grace: object, history: int | None, other: KTable | GlobalKTable, place: Place) -> int:
    """How long a record waits before it looks a row up, in milliseconds."""
    if history is None:
        do = f'declare {title(other.node)} with table(..., versioned=Versioned("7d")), or leave out grace='
        why = "is global and seen whole" if isinstance(other, GlobalKTable) else "is not, or no longer"
        raise place.mistake(f"grace= waits for a versioned table, and the right side {why}", do)
    length = milliseconds(grace, place)
    if length > history:
        what = f"grace is {written(length)}, and the history of {title(_viewed(other.node))} is {written(history)}"
        raise place.mistake(what, f'write grace="{written(history)}" or less, or declare a longer history')
    return length


def _viewed(node: Node) -> Node:
    """What a view of filters and maps is a view of."""
    return _viewed(node.source) if isinstance(node, Select) else node
