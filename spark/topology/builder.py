"""The builder of a topology: declares sources, and returns the stored tables in topological order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NoReturn

from spark.topology.builder_state import BuilderState, legal_path_part, legal_topic, store
from spark.topology.calls import checks_calls, checks_constructor
from spark.topology.columns import Line
from spark.topology.consumed import Consumed, Versioned
from spark.topology.durations import milliseconds
from spark.topology.errors import Place, no_method, user_line
from spark.topology.handles import GlobalKTable, KStream, KTable
from spark.topology.leaders import declare_leader
from spark.topology.model import Guarantee, OnDataLoss, Settings, Source, SourceKind, Table
from spark.topology.nodes import Latest, Node, Records, Scan
from spark.topology.nodes.grouped import Grouped
from spark.topology.topology import Topology
from spark.topology.validation import check_plans

# "exactly_once" is the name in older versions of Kafka.
_GUARANTEES: Final[dict[str, Guarantee]] = {
    "exactly_once_v2": "exactly_once_v2",
    "exactly_once": "exactly_once_v2",
    "at_least_once": "at_least_once",
}
_ON_DATA_LOSS: Final[dict[str, OnDataLoss]] = {"fail": "fail", "ledger": "ledger"}


@checks_calls
class StreamsBuilder:
    """Declares topics, and builds the topology from the handles that it returns.

    Example:
        builder = StreamsBuilder("shop")
        orders = builder.table("orders", Consumed.json(key="order_id bigint", value="amount decimal(12,2)"))
        orders.filter("amount > 100").materialize("large_orders")
        topology = builder.build()
    """

    @checks_constructor
    def __init__(
        self,
        name: str,
        *,
        max_task_idle_ms: int = 0,
        max_records_per_tick: int | None = None,
        processing_guarantee: str = "exactly_once_v2",
        ansi: bool = True,
        message_timestamp_after_max_ms: int | None = 3_600_000,
        on_data_loss: str = "fail",
    ) -> None:
        """Start a topology.

        Args:
            name: the folder of the lake that holds its tables.
            max_task_idle_ms: how long records wait for an empty partition, in milliseconds; 0 waits only until every
                topic is landed to the cut; -1 does not wait for a topic that could not be landed.
            max_records_per_tick: the greatest number of records that a tick takes from a backlog; None for no limit.
            processing_guarantee: "exactly_once_v2" or "at_least_once".
            ansi: whether an expression that fails stops the step; if False, its result is null.
            message_timestamp_after_max_ms: how far the timestamp of a record may be ahead of the clock when it lands,
                in milliseconds, as in Kafka's brokers; None for no limit. A record beyond that would close all windows,
                and goes into quarantine.
            on_data_loss: what to do if records, or the changes of an input, were deleted before they were read: "fail"
                stops; "ledger" continues, and records in the same commit what is missing.
        """
        place = Place(f"StreamsBuilder {name}", user_line())
        legal_path_part(name, place)
        if not _is_int(max_task_idle_ms) or max_task_idle_ms < -1:
            do = "write a number of milliseconds, 0 or more, or -1 to never wait"
            raise place.mistake(f"max_task_idle_ms is {max_task_idle_ms!r}", do)
        ahead = message_timestamp_after_max_ms
        if ahead is not None and (not _is_int(ahead) or ahead < 0):
            do = "write a number of milliseconds, 0 or more, or None for no limit"
            raise place.mistake(f"message_timestamp_after_max_ms is {ahead!r}", do)
        if max_records_per_tick is not None and (not _is_int(max_records_per_tick) or max_records_per_tick < 1):
            do = "write a number, 1 or more, or None for no limit"
            raise place.mistake(f"max_records_per_tick is {max_records_per_tick!r}", do)
        if processing_guarantee not in tuple(_GUARANTEES):  # a tuple: the given value may not be hashable
            do = 'write "exactly_once_v2" or "at_least_once"'
            raise place.mistake(f"processing_guarantee is {processing_guarantee!r}", do)
        if not isinstance(ansi, bool):
            raise place.mistake(f"ansi is {ansi!r}", "write True or False")
        if on_data_loss not in tuple(_ON_DATA_LOSS):
            raise place.mistake(f"on_data_loss is {on_data_loss!r}", 'write "fail" or "ledger"')
        guarantee, lossy = _GUARANTEES[processing_guarantee], _ON_DATA_LOSS[on_data_loss]
        self._state = BuilderState(
            name, Settings(max_task_idle_ms, max_records_per_tick, guarantee, ansi, ahead, lossy)
        )

    if not TYPE_CHECKING:  # mypy knows the methods

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_"):
                raise AttributeError(name)
            raise no_method(StreamsBuilder, name, Place(f"StreamsBuilder {self._state.name}", user_line()))

    def table(self, topic: str, consumed: Consumed, *, versioned: Versioned | None = None) -> KTable:
        """A topic as a table: the newest record of every key, stored under the topic's name.

        The newest record is the one with the greatest offset; in a `versioned` table the one with the greatest
        timestamp, so that an out-of-order record does not update the row. The event time of a record without a value is
        its Kafka timestamp, even if `consumed` names a timestamp column.
        """
        return KTable(self._state, _table(self._state, "table", topic, consumed, versioned, user_line()))

    def global_table(self, topic: str, consumed: Consumed, *, versioned: Versioned | None = None) -> GlobalKTable:
        """A topic as a global table, which every step reads in full, stored under the topic's name."""
        return GlobalKTable(self._state, _table(self._state, "global_table", topic, consumed, versioned, user_line()))

    def stream(self, topic: str, consumed: Consumed) -> KStream:
        """A topic as a stream of records."""
        source = _source(self._state, "stream", topic, consumed, user_line())
        if source.consumed.envelope is not None:
            what = "the events of a Debezium topic change the rows of a table, and are no records of a stream"
            do = "declare it with table() or global_table(); .to_stream() has the changes of the table"
            raise Place(f"stream {topic}", source.line).mistake(what, do)
        self._state.sources.append(source)
        return KStream(self._state, _records(source))

    def read_only_table(
        self,
        name: str,
        *,
        from_: str,
        key: str | None = None,
        value: str | None = None,
        lake: str | None = None,
        allow_missing: bool = False,
    ) -> KTable:
        """A table of another topology: read at its versions, and never written here (KIP-813).

        Only the topology of the leader writes the leader. `materialize` under a name of this topology stores a copy,
        or what a view of the leader makes of it.

        Args:
            name: the table's name in this topology, which no stored table may have.
            from_: the leader: "topology.table", or "topology/table" if the name of the topology has a dot.
            key: the key's columns, such as "customer_id bigint". Without key and value, the command reads the columns
                from the stored table.
            value: the value's columns that this topology reads, such as "name string"; a part of the leader's.
            lake: the absolute path or the URL of the leader's lake, if it is another one than this topology's.
            allow_missing: whether tables that read the leader wait until it exists; if False, their steps fail.
        """
        args = (from_, key, value, lake, allow_missing, user_line())
        return KTable(self._state, declare_leader(self._state, "table", name, *args).scan)

    def read_only_global_table(
        self,
        name: str,
        *,
        from_: str,
        key: str | None = None,
        value: str | None = None,
        lake: str | None = None,
        allow_missing: bool = False,
    ) -> GlobalKTable:
        """A table of another topology as a global table (KIP-99), which every step reads in full.

        Arguments as in `read_only_table`.
        """
        args = (from_, key, value, lake, allow_missing, user_line())
        return GlobalKTable(self._state, declare_leader(self._state, "global_table", name, *args).scan)

    def build(self) -> Topology:
        """The topology of everything that was declared so far.

        Raises:
            TopologyError: nothing was declared, or a plan cannot be computed from what is stored.
        """
        state = self._state
        place = Place(f"topology {state.name}", user_line())
        if not state.sources and not state.leaders:
            raise place.mistake("no topic is declared", "declare one with table(), global_table() or stream()")
        if not state.sources and (state.settings.max_task_idle_ms > 0 or state.settings.max_records_per_tick):
            what = "max_task_idle_ms and max_records_per_tick are about topics, and no topic is declared"
            raise place.mistake(what, "leave them out")
        check_plans(state.nodes, state.stored)
        return Topology(
            name=state.name,
            sources=tuple(state.sources),
            tables=_topological(state.stored),
            settings=state.settings,
            leaders=tuple(state.leaders),
            unread=_unread(state),
        )


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _source(state: BuilderState, kind: SourceKind, topic: str, consumed: Consumed, line: Line) -> Source:
    place = Place(f"{kind} {topic}", line)
    legal_topic(topic, place)
    if not isinstance(consumed, Consumed):
        do = 'write Consumed.json(key="id bigint", value="name string")'
        raise place.mistake(f"consumed is {consumed!r}", do)
    for source in state.sources:
        if source.topic.lower() == topic.lower():
            what = f"the topic {source.topic!r} is already declared as {source.kind}() at {source.line}"
            do = "declare a topic once, and use its handle several times"
            if source.topic != topic:
                do = (
                    "declare it with a builder of another name: a file system that ignores case has one folder for both"
                )
            raise Place(place.node, line, {"": source.consumed.columns}).mistake(what, do)
    for leader in state.leaders:
        if leader.name.lower() == topic.lower():
            what = f"{leader.name!r} is the read-only table of {leader.dotted_name} at {leader.line}"
            raise place.mistake(what, "name the read-only table otherwise")
    for table in state.stored:
        if table.topic == topic:
            raise place.mistake(f"the table {table.name!r} is published to this topic", f"read {table.name!r} instead")
    return Source(topic, kind, consumed, line)


def _table(
    state: BuilderState, kind: SourceKind, topic: str, consumed: Consumed, versioned: object, line: Line
) -> Latest:
    source = _source(state, kind, topic, consumed, line)
    place = Place(f"{kind} {topic}", line, {"": consumed.columns})
    if versioned is not None and not isinstance(versioned, Versioned):
        raise place.mistake(f"versioned is {versioned!r}", 'write versioned=Versioned("7d")')
    history = None if versioned is None else milliseconds(versioned.history, place)
    if consumed.envelope is not None and consumed.envelope.truncate and history is not None:
        what = "a versioned table is ordered by event time, and truncate=True needs the order of the offsets"
        raise place.mistake(what, "leave out versioned=, or truncate=True")
    latest = Latest(_records(source), history)
    store(state, topic, latest, line)
    state.sources.append(source)
    return latest


def _records(source: Source) -> Records:
    key = tuple(column.name for column in source.consumed.key)
    scan, envelope = Scan(source.landing, key, source.consumed.columns, appended=True), source.consumed.envelope
    return Records(scan, captured=envelope is not None, truncates=envelope is not None and envelope.truncate)


def _unread(state: BuilderState) -> tuple[Node, ...]:
    """The views that no stored table reads."""
    read: set[Node] = set()
    for table in state.stored:
        read.update(_nodes(table.plan))
    return tuple(dict.fromkeys(node for node in state.nodes if node not in read))


def _nodes(node: Node) -> Iterator[Node]:
    yield node
    for source in node.sources:
        yield from _nodes(source)


def _read_with_former_rows(plan: Node) -> Iterator[Scan]:
    """Yield the stored tables of which a plan needs the rows from before a change."""
    yield from plan.changelogs
    for node in _nodes(plan):
        if isinstance(node, Grouped):
            yield from node.scans


def _topological(stored: list[Table]) -> tuple[Table, ...]:
    """The tables over scans of each other, each after the tables that it reads, otherwise in the order declared."""
    scan_of = {table.plan: _scan(table) for table in stored}
    tables = {table.name: replace(table, plan=_bound(table.plan, scan_of).stored_form()) for table in stored}
    followed = {scan.table for table in tables.values() for scan in table.inputs if scan.appended}
    former = {scan.table for table in tables.values() for scan in _read_with_former_rows(table.plan)}
    for name, table in tables.items():
        is_read = name in former or table.topic is not None
        tables[name] = replace(table, followed=name in followed, former_rows_read=is_read)
    ordered: dict[str, Table] = {}

    def add(table: Table) -> None:
        for scan in table.inputs:
            if scan.table in tables:
                add(tables[scan.table])
        ordered.setdefault(table.name, table)

    for table in tables.values():
        add(table)
    return tuple(ordered.values())


def _scan(table: Table) -> Node:
    """The scan that reads a stored table: its rows, or the records of a stored stream."""
    if table.plan.is_stream:
        scan = Scan(table.name, table.plan.key, table.plan.columns, appended=True)
        return Records(scan, of_changes=table.plan.of_changes)
    return Scan(table.name, table.plan.key, table.plan.columns, by_time=table.plan.closes_windows)


def _bound(plan: Node, scan_of: Mapping[Node, Node]) -> Node:
    """The plan in which every stored node below the root is a scan."""
    return plan.bound(lambda source: scan_of[source] if source in scan_of else _bound(source, scan_of))
