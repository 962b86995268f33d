"""The handles: tables, global tables, streams, and groups of their rows or records."""

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
    """A table or a view of one: at most one row for every key."""

    kind: ClassVar[Kind] = "table"

    def filter(self, sql: str) -> KTable:
        """The rows for which a condition is true."""
        return _table(self, views.filtered("filter", self.node, sql, self.place("filter", user_line())))

    def filter_not(self, sql: str) -> KTable:
        """The rows for which a condition is false or null: those that `filter` leaves out."""
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
        """Inner join: every left row with the right row that it looks up.

        Args:
            other: the right side, looked up by its key.
            on: expressions over left columns that equal the right key; by default the left key.
            within: for streams only.
            select: items such as "left.*", "right.*", "right.name", "left.a + right.b AS name".
            drive: "both", or "left" if changes of the right side must not update the table.
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
        """Left join: every left row, with nulls if it finds no right row; arguments as in `join`."""
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
        """Outer join by equal keys: a row for every key of either side.

        Arguments as in `join`. The columns of a side without a row are null; the key is never null.
        """
        line = user_line()
        joins.check_for_tables_only("outer_join", self, other, within, grace, line)
        return _table(self, joins.outer_table_join(self, other, on, select, drive, line))

    def group_by(self, *columns: str | Sequence[str]) -> KGroupedTable:
        """The rows in groups of equal columns, to be aggregated. A row with a null in one of them is in no group.

        Args:
            columns: names of columns, or a list of them. For an expression, call map_values first.
        """
        return KGroupedTable(self.state, self.node, self._grouping(columns, user_line()))

    def select_key(self, columns: str | Sequence[str]) -> KTable:
        """The rows by another key. Of several rows with the same new key, the newest by event time remains.

        Args:
            columns: the column or columns of the new key. A row with a null in one of them is left out.
        """
        return _table(self, views.rekeyed_table(self.node, columns, self.place("select_key", user_line())))

    def to_stream(self) -> KStream:
        """The changes of a stored table as a stream. A deleted row is a record without a value.

        All updates of a key in one step are one change, so the number of changes depends on the ticks.
        """
        return _stream(self, Changes(self.node, line=user_line()))

    def suppress(self, suppressed: Suppressed) -> KTable:
        """The final rows of windows: each appears once, when stream time has closed its window, and never changes.

        Args:
            suppressed: `Suppressed.until_window_closes()`. Sessions must be stored before: call `.materialize(name)`
                first, for the table that also has the open sessions.
        """
        line = user_line()
        place = self.place("suppress", line)
        if not isinstance(suppressed, Suppressed):
            raise place.mistake(f"suppressed is {suppressed!r}", "write suppress(Suppressed.until_window_closes())")
        if not isinstance(self.node, Window):
            do = "call it directly on group_by(...).windowed_by(...).count(), aggregate(...) or reduce(...)"
            raise place.mistake("the rows are not aggregates of windows", do)
        if self.node.suppressed:
            raise place.mistake("the rows are already suppressed", "call suppress once")
        if self.node.kind == "session":
            return _table(self, ClosedSessions(self.node, self.node.open_for, line=line))
        if self.node in self.state.nodes:  # the window itself need not be stored now, unless something else reads it
            self.state.nodes.remove(self.node)
        return _table(self, replace(self.node, suppressed=True, line=line))

    def materialize(self, name: str) -> KTable:
        """Store the rows as a table with this name."""
        store(self.state, name, self.node, user_line())
        return self

    def to(self, topic: str, produced: Produced = JSON) -> None:
        """Publish the changes to a topic: a new or changed row as a record, a deleted row as a tombstone.

        Rows that are not materialized are stored as a table with the topic's name. The bounds of windows are published
        as window_start and window_end.

        Args:
            topic: the topic's name.
            produced: the format of keys and values; by default `Produced.json()`.
        """
        publish(self.state, topic, produced, self.node, user_line())


@checks_calls
@dataclass(frozen=True, eq=False, repr=False)
class Grouped(Handle):
    """Rows or records in groups; an aggregate returns a table."""

    by: tuple[Column, ...]

    def count(self, name: str = "count") -> KTable:
        """The number of rows of each group."""
        return self._aggregated("count", {name: "count(*)"}, user_line())

    def aggregate(self, *unnamed: object, **aggregates: str) -> KTable:
        """Columns computed over the rows of each group: `total="sum(amount)", orders="count(*)"`.

        An expression may use any aggregate function of Spark SQL whose result does not depend on the order of rows.
        """
        line = user_line()
        if unnamed:
            place = self.place("aggregate", line)
            raise place.mistake(f"{unnamed[0]!r} has no name", f"name the column: aggregate(name={unnamed[0]!r})")
        return self._aggregated("aggregate", aggregates, line)

    def reduce(self, **columns: str) -> KTable:
        """Value columns of the source, each reduced over the rows of the group to one value of the same type.

        Example: `reduce(amount="sum(amount)", at="max(at)")`. For a result of another type, write `aggregate`.
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
            raise place.mistake("no aggregate is given", f'write {method}(total="sum(amount)"), or count()')
        select: list[tuple[str, str]] = []
        columns: list[Column] = []
        for name, text in aggregates.items():
            if legal_name(name, place).lower() in {column.name.lower() for column in (*self.by, *columns)}:
                raise place.mistake(f"{name!r} is already a column", "choose another name")
            found = parse_aggregate(text, by, place)
            select.append((name, found.text))
            columns.append(Column(name, found.type))
        return _table(self, self._node(tuple(select), tuple(columns), line))

    def _node(self, select: tuple[tuple[str, str], ...], columns: tuple[Column, ...], line: Line) -> Aggregate | Window:
        """The node that computes the aggregates of every group."""
        by = tuple(column.name for column in self.by)
        grouped = tuple((name, quoted(name)) for name in by)
        return Aggregate(self.node, by, (*grouped, *select), (*self.by, *columns), line=line)


@checks_calls
@dataclass(frozen=True, eq=False, repr=False)
class KGroupedTable(Grouped):
    """Rows in groups; an aggregate returns a table whose key is the grouping columns."""

    def windowed_by(self, windows: object) -> NoReturn:  # noqa: ARG002  # as for streams
        """Not available: the error says what to write."""
        place = self.place("windowed_by", user_line())
        do = "declare the topic as a stream: stream(...).group_by(...).windowed_by(...)"
        raise place.mistake("windowed_by is not available for a table: windows hold the records of a stream", do)


@checks_calls
@dataclass(frozen=True, eq=False, repr=False)
class KGroupedStream(Grouped):
    """Records in groups. A record without a value is in no group, and removes no earlier record from its group."""

    def windowed_by(self, windows: TimeWindows | SlidingWindows | SessionWindows) -> TimeWindowedKStream:
        """The records of each group in windows of time; an aggregate returns a table, which must be stored.

        Its key is the grouping columns, `_window_start` and `_window_end`. A record counts in those of its windows
        that are open when it arrives. A record without an open window is late: it is dropped, and counted in the
        position.

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

    def _node(self, select: tuple[tuple[str, str], ...], columns: tuple[Column, ...], line: Line) -> Window:
        by = tuple(column.name for column in self.by)
        return Window(self.node, by, select, (*self.by, *WINDOW_BOUNDS, *columns), *self.lengths, line=line)


@checks_calls
@dataclass(frozen=True, eq=False, repr=False)
class GlobalKTable(Joinable):
    """A table that every step reads in full, or a view of such tables. It can only be the right side of a join."""

    kind: ClassVar[Kind] = "global table"

    def filter(self, sql: str) -> GlobalKTable:
        """The rows for which a condition is true; other rows are not found by a lookup."""
        return _global_table(self, views.filtered("filter", self.node, sql, self.place("filter", user_line())))

    def filter_not(self, sql: str) -> GlobalKTable:
        """The rows for which a condition is false or null: those that `filter` leaves out."""
        return _global_table(self, views.filtered("filter_not", self.node, sql, self.place("filter_not", user_line())))

    def map_values(self, select: str | Sequence[str]) -> GlobalKTable:
        """Value columns computed from each row, as `map_values` of a table."""
        return _global_table(self, views.mapped(self.node, select, self.place("map_values", user_line())))

    def join(
        self, other: GlobalKTable, *, on: str | Sequence[str] | None = None, select: str | Sequence[str]
    ) -> GlobalKTable:
        """Inner join with another global table; the result is looked up like one. Arguments as for tables."""
        return self._joined("inner", other, on, select, user_line())

    def left_join(
        self, other: GlobalKTable, *, on: str | Sequence[str] | None = None, select: str | Sequence[str]
    ) -> GlobalKTable:
        """Left join with another global table: every row, with nulls if it finds none; as `join`."""
        return self._joined("left", other, on, select, user_line())

    def _joined(
        self, how: How, other: object, on: str | Sequence[str] | None, select: str | Sequence[str], line: Line
    ) -> GlobalKTable:
        if not isinstance(other, GlobalKTable):
            raise joins.global_on_the_left(METHODS[how], self, other, line)
        return _global_table(self, joins.table_join(self, how, other, on, select, "both", line))

    def outer_join(self, other: object, **_options: object) -> NoReturn:
        """Not available: the error says what to write."""
        raise joins.global_on_the_left("outer_join", self, other, user_line())


@checks_calls
@dataclass(frozen=True, eq=False, repr=False)
class KStream(Joinable):
    """A stream of records. Records with the same key do not replace each other."""

    kind: ClassVar[Kind] = "stream"

    def filter(self, sql: str) -> KStream:
        """The records for which a condition is true. In a record without a value, all value columns are null."""
        return _stream(self, views.filtered("filter", self.node, sql, self.place("filter", user_line())))

    def filter_not(self, sql: str) -> KStream:
        """The records for which a condition is false or null: those that `filter` leaves out."""
        return _stream(self, views.filtered("filter_not", self.node, sql, self.place("filter_not", user_line())))

    def map_values(self, select: str | Sequence[str]) -> KStream:
        """Value columns computed from each record, as for tables. A record without a value stays one."""
        return _stream(self, views.mapped(self.node, select, self.place("map_values", user_line())))

    def select_key(self, columns: str | Sequence[str]) -> KStream:
        """The records by another key.

        Args:
            columns: the column or columns of the new key. For an expression, call map_values first.
        """
        return _stream(self, views.rekeyed_stream(self.node, columns, self.place("select_key", user_line())))

    def merge(self, other: KStream) -> KStream:
        """The records of both streams, which have the same key and the same columns."""
        return _stream(self, joins.merged(self, other, user_line()))

    def to_table(self) -> KTable:
        """The newest record of every key as a table; a record without a value deletes its key's row."""
        return _table(self, Latest(self.node, line=user_line()))

    def group_by(self, *columns: str | Sequence[str]) -> KGroupedStream:
        """The records in groups of equal columns, to be aggregated, as `group_by` of a table."""
        return KGroupedStream(self.state, self.node, self._grouping(columns, user_line()))

    def flat_map(self, column: str) -> KStream:
        """One record for every element of an array column, which then holds the element."""
        return _stream(self, views.exploded(self.node, column, self.place("flat_map", user_line())))

    def split(self, **branches: str) -> dict[str, KStream]:
        """Branches by name. A record is in the first branch whose condition is true, or in none.

        Example: `split(large="amount > 100", small="true")`; "true" takes all remaining records.
        """
        line = user_line()
        place = self.place("split", line)
        if not branches:
            raise place.mistake("no branch is given", 'write split(large="amount > 100", small="true")')
        earlier: list[str] = []
        streams = {}
        for name, sql in branches.items():
            text = views.condition(sql, Place(f"branch {name} of {place.node}", line, place.columns))
            # The brackets are needed for a condition with an OR.
            where = " AND ".join([*(f"NOT coalesce(({other}), false)" for other in earlier), f"({text})"])
            streams[name] = _stream(self, views.filtered("filter", self.node, where, self.place("filter", line)))
            earlier.append(text)
        return Branches(place, streams)

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
        """Inner join: every record with the row that it looks up in a table, or with the records of another stream.

        A change of a table's row produces no record. A record sees the table of a topic as of its own place in the
        merge order, and a versioned table as of its own event time. It sees any other table, and a global table, at the
        pin of the step.

        Args:
            other: a table or global table, looked up by its key; or a stream with an equal key.
            on: expressions over the record's columns that equal the table's key; by default the record's key.
            within: for two streams, the window of their event times: `JoinWindows.of("10s", grace="1m")`.
            select: items such as "left.*", "right.name", "left.a + right.b AS name".
            drive: "left", the only possible value.
            grace: for a versioned table, how long a record waits, in stream time, for late records of the table; "5s".
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
        """Left join: every record, with nulls if it finds no row or partner; arguments as in `join`.

        With another stream, the row of a record without a partner is emitted once its window and grace have passed.
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
        """Outer join of two streams: every record of both, with nulls if it has no partner; arguments as in `join`."""
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
            raise place.mistake(f"drive is {drive!r}, and only the stream produces records", "leave out drive=")
        join = joins.stream_join if isinstance(other, KStream) else joins.stream_lookup
        return _stream(self, join(self, how, other, on, within, select, grace, place))

    def materialize(self, name: str) -> KStream:
        """Store the records under this name, as a table to which steps only append."""
        store(self.state, name, self.node, user_line())
        return self

    def to(self, topic: str, produced: Produced = JSON) -> None:
        """Publish the records to a topic, as `to` of a table. A record without a value stays one."""
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


def _table(handle: Handle, node: Node) -> KTable:
    handle.state.nodes.append(node)
    return KTable(handle.state, node)


def _global_table(handle: Handle, node: Node) -> GlobalKTable:
    handle.state.nodes.append(node)
    return GlobalKTable(handle.state, node)


def _stream(handle: Handle, node: Node) -> KStream:
    handle.state.nodes.append(node)
    return KStream(handle.state, node)
