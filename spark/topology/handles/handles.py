"""Handles: what a user holds and chains while a topology is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NoReturn

from spark.topology.builder_state import publish, store
from spark.topology.calls import checks_calls
from spark.topology.columns import WINDOW_BOUNDS, Column, Line
from spark.topology.errors import NoSuchBranch, Place, did_you_mean, user_line
from spark.topology.handles import joins, views
from spark.topology.handles.handle import Handle, Joinable, Kind, check_same_builder, join_place
from spark.topology.handles.windowing import Lengths, lengths
from spark.topology.handles.windows import JoinWindows, SessionWindows, SlidingWindows, Suppressed, TimeWindows
from spark.topology.nodes import METHODS, Aggregate, Changes, ClosedSessions, Drive, How, Latest, Node, Window
from spark.topology.produced import JSON, Produced
from spark.topology.sql.ddl import legal_name, quoted
from spark.topology.sql.expressions import parse_aggregate
from spark.topology.sql.tokens import one_text


@checks_calls
@dataclass(frozen=True, eq=False, repr=False)
class KTable(Joinable):
    """A table or a view: at most one row for every key."""

    kind: ClassVar[Kind] = "table"

    def filter(self, sql: str) -> KTable:
        """The rows for which a condition is true."""
        return _table(self, views.filtered("filter", self.node, sql, self.place("filter", user_line())))

    def filter_not(self, sql: str) -> KTable:
        """The rows for which a condition is not true: what `filter` leaves out."""
        return _table(self, views.filtered("filter_not", self.node, sql, self.place("filter_not", user_line())))

    def map_values(self, select: str | Sequence[str]) -> KTable:
        """Value columns computed from each row; the key is passed through.

        Args:
            select: items such as "*", "name", "expression AS name".
        """
        return _table(self, views.mapped(self.node, select, self.place("map_values", user_line())))

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
        joins.check_for_tables_only("join", self, other, within, grace, line)
        return _table(self, joins.table_join(self, "inner", other, on, select, drive, line))

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
        joins.check_for_tables_only("left_join", self, other, within, grace, line)
        return _table(self, joins.table_join(self, "left", other, on, select, drive, line))

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
        joins.check_for_tables_only("outer_join", self, other, within, grace, line)
        return _table(self, joins.outer_table_join(self, other, on, select, drive, line))

    def group_by(self, *columns: str | Sequence[str]) -> KGroupedTable:
        """The rows in groups of equal columns, to be aggregated; a row with a null among them is in no group.

        Args:
            columns: names of columns, or a list of them; for an expression, write map_values first.
        """
        return KGroupedTable(self.state, self.node, self._grouping(columns, user_line()))

    def select_key(self, columns: str | Sequence[str]) -> KTable:
        """The rows by another key: of rows that share it, the newest by event time.

        Args:
            columns: the column, or columns, of the new key; a row with a null among them is left out.
        """
        return _table(self, views.rekeyed_table(self.node, columns, self.place("select_key", user_line())))

    def to_stream(self) -> KStream:
        """The changes of a stored table as a stream; a row that goes is a record without a value.

        Several updates of a key that one step took in are one change, so how many there are depends on the ticks.
        """
        return _stream(self, Changes(self.node, line=user_line()))

    def suppress(self, suppressed: Suppressed) -> KTable:
        """The rows of windows, each once: when stream time has closed its window, and never changed again.

        Args:
            suppressed: `Suppressed.until_window_closes()`. Of sessions, those stored are suppressed: write
                `.materialize(name)` before, for the table that holds the open ones too.
        """
        line = user_line()
        place = self.place("suppress", line)
        if not isinstance(suppressed, Suppressed):
            raise place.mistake(f"it is given {suppressed!r}", "write suppress(Suppressed.until_window_closes())")
        if not isinstance(self.node, Window):
            do = "write it right behind group_by(...).windowed_by(...).count(), aggregate(...) or reduce(...)"
            raise place.mistake("these rows are not a window's aggregates: nothing closes them", do)
        if self.node.suppressed:
            raise place.mistake("the rows are suppressed already", "write it once")
        if self.node.kind == "session":
            return _table(self, ClosedSessions(self.node, self.node.open_for, line=line))
        if self.node in self.state.nodes:  # no view any more, unless something else reads it
            self.state.nodes.remove(self.node)
        return _table(self, replace(self.node, suppressed=True, line=line))

    def materialize(self, name: str) -> KTable:
        """Store the rows as a table of this name."""
        store(self.state, name, self.node, user_line())
        return self

    def to(self, topic: str, produced: Produced = JSON) -> None:
        """Publish the changes to a topic: a row that is new or changed as a record, one that goes as a tombstone.

        Rows that are not materialized are stored, as a table of the topic's name. The columns of a window's bounds are
        called window_start and window_end.

        Args:
            topic: the topic's name.
            produced: the format of keys and values; `Produced.json()` without it.
        """
        publish(self.state, topic, produced, self.node, user_line())


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
            place = self.place("aggregate", line)
            raise place.mistake(
                f"{unnamed[0]!r} has no name", f"write aggregate(name={unnamed[0]!r}), by the column's name"
            )
        return self._aggregated("aggregate", aggregates, line)

    def reduce(self, **columns: str) -> KTable:
        """Value columns of the source, each combined over the group's rows into one value of its own type.

        As in `reduce(amount="sum(amount)", at="max(at)")`; where the result is of another type, write `aggregate`.
        """
        line = user_line()
        place = self.place("reduce", line)
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
        place = Place(f"{method} of {self.node.title} by {', '.join(by)}", line, {"": self.node.columns})
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
        return _table(self, self._over(tuple(select), tuple(columns), line))

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
        place = self.place("windowed_by", user_line())
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
        place = self.place("windowed_by", line)
        return TimeWindowedKStream(self.state, self.node, self.by, lengths(windows, self.by, place))


@checks_calls
@dataclass(frozen=True, eq=False, repr=False)
class TimeWindowedKStream(Grouped):
    """Records in groups and windows of time."""

    lengths: Lengths

    def _over(self, select: tuple[tuple[str, str], ...], columns: tuple[Column, ...], line: Line) -> Window:
        by = tuple(column.name for column in self.by)
        return Window(self.node, by, *self.lengths, select, (*self.by, *WINDOW_BOUNDS, *columns), line=line)


@checks_calls
@dataclass(frozen=True, eq=False, repr=False)
class GlobalKTable(Joinable):
    """A table every step sees whole, or a view of such tables; it is joined to, from the right."""

    kind: ClassVar[Kind] = "global table"

    def filter(self, sql: str) -> GlobalKTable:
        """The rows for which a condition is true; no other can be looked up."""
        return _global_table(self, views.filtered("filter", self.node, sql, self.place("filter", user_line())))

    def filter_not(self, sql: str) -> GlobalKTable:
        """The rows for which a condition is not true: what `filter` leaves out."""
        return _global_table(self, views.filtered("filter_not", self.node, sql, self.place("filter_not", user_line())))

    def map_values(self, select: str | Sequence[str]) -> GlobalKTable:
        """Value columns computed from each row; as a table's `map_values`."""
        return _global_table(self, views.mapped(self.node, select, self.place("map_values", user_line())))

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
            raise joins.global_on_the_left(METHODS[how], self, other, line)
        return _global_table(self, joins.table_join(self, how, other, on, select, "both", line))

    def outer_join(self, other: object, **_options: object) -> NoReturn:
        """Not available: says what to write."""
        raise joins.global_on_the_left("outer_join", self, other, user_line())


@checks_calls
@dataclass(frozen=True, eq=False, repr=False)
class KStream(Joinable):
    """A stream: records in their own right, also those whose key came before."""

    kind: ClassVar[Kind] = "stream"

    def filter(self, sql: str) -> KStream:
        """The records for which a condition is true. In a record without a value, all value columns are null."""
        return _stream(self, views.filtered("filter", self.node, sql, self.place("filter", user_line())))

    def filter_not(self, sql: str) -> KStream:
        """The records for which a condition is not true: what `filter` leaves out."""
        return _stream(self, views.filtered("filter_not", self.node, sql, self.place("filter_not", user_line())))

    def map_values(self, select: str | Sequence[str]) -> KStream:
        """Value columns computed from each record; a record without a value stays one. As a table's `map_values`."""
        return _stream(self, views.mapped(self.node, select, self.place("map_values", user_line())))

    def select_key(self, columns: str | Sequence[str]) -> KStream:
        """The records by another key.

        Args:
            columns: the column, or columns, of the new key; for an expression, write map_values first.
        """
        return _stream(self, views.rekeyed_stream(self.node, columns, self.place("select_key", user_line())))

    def merge(self, other: KStream) -> KStream:
        """The records of both streams, which have the same key and the same columns."""
        return _stream(self, joins.merged(self, other, user_line()))

    def to_table(self) -> KTable:
        """The newest record of every key as a table; a record without a value deletes its key's row."""
        return _table(self, Latest(self.node, line=user_line()))

    def group_by(self, *columns: str | Sequence[str]) -> KGroupedStream:
        """The records in groups of equal columns, to be aggregated; as a table's `group_by`."""
        return KGroupedStream(self.state, self.node, self._grouping(columns, user_line()))

    def flat_map(self, column: str) -> KStream:
        """One record for every element of an array column, which holds the element then; none of an empty one."""
        return _stream(self, views.exploded(self.node, column, self.place("flat_map", user_line())))

    def split(self, **branches: str) -> dict[str, KStream]:
        """The records in branches by name: each record is in the first whose condition is true, or in none.

        As in `split(large="amount > 100", small="true")`: what comes last may take the rest.
        """
        line = user_line()
        place = self.place("split", line)
        if not branches:
            raise place.mistake("it has no branches", 'write split(large="amount > 100", small="true")')
        taken: list[str] = []
        found = {}
        for name, sql in branches.items():
            text = views.condition(sql, Place(f"branch {name} of {place.node}", line, place.columns))
            # Of a condition in SQL text, brackets keep an OR together.
            where = " AND ".join([*(f"NOT coalesce(({earlier}), false)" for earlier in taken), f"({text})"])
            found[name] = _stream(self, views.filtered("filter", self.node, where, self.place("filter", line)))
            taken.append(text)
        return Branches(place, found)

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
        place = join_place(METHODS[how], self, other, line)
        if not isinstance(other, KTable | GlobalKTable | KStream):
            raise place.mistake(f"the right side is {other!r}", "join a handle of table(), global_table() or stream()")
        check_same_builder(self, other, place)
        if drive != "left":
            raise place.mistake(f"drive is {drive!r}, and records are made by the stream alone", "leave out drive=")
        join = joins.stream_join if isinstance(other, KStream) else joins.stream_lookup
        return _stream(self, join(self, how, other, on, within, select, grace, place))

    def materialize(self, name: str) -> KStream:
        """Store the records under this name, as they come: a table that is only appended to."""
        store(self.state, name, self.node, user_line())
        return self

    def to(self, topic: str, produced: Produced = JSON) -> None:
        """Publish the records to a topic, as a table's `to`; a record without a value stays one."""
        publish(self.state, topic, produced, self.node, user_line())


class Branches(dict[str, KStream]):
    """The branches of a stream by name."""

    def __init__(self, place: Place, branches: dict[str, KStream]) -> None:
        super().__init__(branches)
        self.place = place

    def __missing__(self, name: object) -> NoReturn:
        what, place = f"there is no branch {name!r}", replace(self.place, line=user_line())
        raise NoSuchBranch(place.mistake(what, f"write one of {', '.join(self)}"))


Handle.similar += [KTable, KStream, KGroupedTable, KGroupedStream]


def _table(of: Handle, node: Node) -> KTable:
    of.state.nodes.append(node)
    return KTable(of.state, node)


def _global_table(of: Handle, node: Node) -> GlobalKTable:
    of.state.nodes.append(node)
    return GlobalKTable(of.state, node)


def _stream(of: Handle, node: Node) -> KStream:
    of.state.nodes.append(node)
    return KStream(of.state, node)
