"""Where a topology begins and is built: sources in, stored tables in topological order out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NoReturn

from spark.topology.calls import checks_calls, checks_making
from spark.topology.consumed import Consumed, Versioned
from spark.topology.draft import Draft, legal_path_part, legal_topic, store
from spark.topology.dsl import GlobalKTable, KStream, KTable
from spark.topology.durations import milliseconds
from spark.topology.errors import Place, no_method, user_line
from spark.topology.fold import fold_of
from spark.topology.nodes import (
    Aggregate,
    Changes,
    Closed,
    Fold,
    Join,
    Latest,
    Line,
    Node,
    Records,
    Scan,
    Select,
    StreamJoin,
    Union,
    Window,
    inputs,
    is_stream,
    of_changes,
    over,
)
from spark.topology.topology import Guarantee, OnDataLoss, Settings, Source, SourceKind, Table, Topology
from spark.topology.words import by_arrival, title

# "exactly_once" was Kafka's name before the second version, and is what many write.
_GUARANTEES: Final[dict[str, Guarantee]] = {
    "exactly_once_v2": "exactly_once_v2",
    "exactly_once": "exactly_once_v2",
    "at_least_once": "at_least_once",
}
_ON_DATA_LOSS: Final[dict[str, OnDataLoss]] = {"fail": "fail", "ledger": "ledger"}


@checks_calls
class StreamsBuilder:
    """Declares topics, and builds the topology of what was done with them.

    Example:
        builder = StreamsBuilder("shop")
        orders = builder.table("orders", Consumed.json(key="order_id bigint", value="amount decimal(12,2)"))
        orders.filter("amount > 100").materialize("large_orders")
        topology = builder.build()
    """

    @checks_making
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
        """Begin a topology.

        Args:
            name: the folder of the lake that its tables are in.
            max_task_idle_ms: how long a tick waits for an empty input; -1: take what has landed.
            max_records_per_tick: cuts a large backlog in slices; None for no limit.
            processing_guarantee: "exactly_once_v2" or "at_least_once".
            ansi: stop at an expression that fails; False makes its result null.
            message_timestamp_after_max_ms: how far ahead of the clock a record may be in time when it lands,
                as for Kafka's brokers; one that is further would close all windows, and is put into quarantine. None
                for no limit.
            on_data_loss: what to do where records, or the changes of an input, are gone before they were read: "fail"
                stops there; "ledger" goes on, and writes down in the same commit what is missing.
        """
        place = Place(f"StreamsBuilder {name}", user_line())
        legal_path_part(name, place)
        if not _is_int(max_task_idle_ms) or max_task_idle_ms < -1:
            do = "write milliseconds, 0, or -1 for no wait at all"
            raise place.mistake(f"max_task_idle_ms is {max_task_idle_ms!r}", do)
        ahead = message_timestamp_after_max_ms
        if ahead is not None and (not _is_int(ahead) or ahead < 0):
            do = "write milliseconds from 0, or None for no limit"
            raise place.mistake(f"message_timestamp_after_max_ms is {ahead!r}", do)
        if max_records_per_tick is not None and (not _is_int(max_records_per_tick) or max_records_per_tick < 1):
            do = "write a number from 1, or None for no limit"
            raise place.mistake(f"max_records_per_tick is {max_records_per_tick!r}", do)
        if processing_guarantee not in tuple(_GUARANTEES):  # a tuple: what is given may have no hash
            do = 'write "exactly_once_v2" or "at_least_once"'
            raise place.mistake(f"processing_guarantee is {processing_guarantee!r}", do)
        if not isinstance(ansi, bool):
            raise place.mistake(f"ansi is {ansi!r}", "write True or False")
        if on_data_loss not in tuple(_ON_DATA_LOSS):
            raise place.mistake(f"on_data_loss is {on_data_loss!r}", 'write "fail" or "ledger"')
        guarantee, lossy = _GUARANTEES[processing_guarantee], _ON_DATA_LOSS[on_data_loss]
        self._draft = Draft(name, Settings(max_task_idle_ms, max_records_per_tick, guarantee, ansi, ahead, lossy))

    if not TYPE_CHECKING:  # mypy knows the methods

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_"):
                raise AttributeError(name)
            raise no_method(StreamsBuilder, name, Place(f"StreamsBuilder {self._draft.name}", user_line()))

    def table(self, topic: str, consumed: Consumed, *, versioned: Versioned | None = None) -> KTable:
        """A topic as a table: the newest record of every key, stored under the topic's name.

        Newest is by offset; of a `versioned` table by timestamp, so that a record that comes late changes nothing. A
        record without a value has the time that Kafka gave it, also where `consumed` names a column for the others'.
        """
        return KTable(self._draft, _table(self._draft, "table", topic, consumed, versioned, user_line()))

    def global_table(self, topic: str, consumed: Consumed, *, versioned: Versioned | None = None) -> GlobalKTable:
        """A topic as a table that every step sees whole, stored under the topic's name."""
        return GlobalKTable(self._draft, _table(self._draft, "global_table", topic, consumed, versioned, user_line()))

    def stream(self, topic: str, consumed: Consumed) -> KStream:
        """A topic as a stream: every record in its own right."""
        source = _source(self._draft, "stream", topic, consumed, user_line())
        self._draft.sources.append(source)
        return KStream(self._draft, _records(source))

    def build(self) -> Topology:
        """The topology of everything declared so far."""
        draft = self._draft
        if draft.sources == []:
            place = Place(f"topology {draft.name}", user_line())
            raise place.mistake("it is empty", "declare a topic with table(), global_table() or stream()")
        _check_what_must_be_stored(draft)
        return Topology(
            name=draft.name,
            sources=tuple(draft.sources),
            tables=_in_order(draft.stored),
            settings=draft.settings,
            unread=_unread(draft),
        )


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _source(draft: Draft, kind: SourceKind, topic: str, consumed: Consumed, line: Line) -> Source:
    place = Place(f"{kind} {topic}", line)
    legal_topic(topic, place)
    if not isinstance(consumed, Consumed):
        do = 'write Consumed.json(key="id bigint", value="name string")'
        raise place.mistake(f"it is consumed as {consumed!r}", do)
    for source in draft.sources:
        if source.topic.lower() == topic.lower():
            what = f"the topic {source.topic!r} is declared already, as {source.kind}() at {source.line}"
            do = "declare a topic once and use its handle again"
            if source.topic != topic:
                do = "declare the two with builders of other names: here their tables would be one folder on some disks"
            raise Place(place.node, line, {"": source.consumed.columns}).mistake(what, do)
    for table in draft.stored:
        if table.topic == topic:
            raise place.mistake(f"{table.name!r} is published to this topic", f"read {table.name!r} itself")
    return Source(topic, kind, consumed, line)


def _table(draft: Draft, kind: SourceKind, topic: str, consumed: Consumed, versioned: object, line: Line) -> Latest:
    source = _source(draft, kind, topic, consumed, line)
    place = Place(f"{kind} {topic}", line, {"": consumed.columns})
    if versioned is not None and not isinstance(versioned, Versioned):
        raise place.mistake(f"versioned is {versioned!r}", 'write versioned=Versioned("7d")')
    history = None if versioned is None else milliseconds(versioned.history, place)
    latest = Latest(_records(source), history)
    store(draft, topic, latest, line)
    draft.sources.append(source)
    return latest


def _records(source: Source) -> Records:
    key = tuple(column.name for column in source.consumed.key)
    return Records(Scan(source.landing, key, source.consumed.columns, appended=True))


def _check_what_must_be_stored(draft: Draft) -> None:
    """What a lookup found is history: it could not be computed again. A stream's groups could, from its beginning."""
    plans = {table.plan for table in draft.stored}
    for node in draft.written:
        place = Place(title(node), node.line, {"": node.columns})
        for stream in _read_again(node):
            if (lookup := _not_stored(stream, plans)) is not None:
                what = f"it reads {title(lookup)}, whose records are not kept: they depend on when they looked a row up"
                raise place.mistake(what, "write .materialize(name) behind that join")
        for stream in _read_in_order(node):
            if (outer := _coming_of(stream, _has_lone_records)) is not None:
                what = f"{title(outer)} tells of lone records when time has closed them, out of the others' order"
                do = "join with join(...) there, or look tables up and aggregate without windows behind it"
                raise place.mistake(what, do)
            if not isinstance(node, Join) and (waits := _coming_of(stream, _waits)) is not None:
                what = f"{title(waits)} tells of its records when their grace is over, and they would be late here"
                do = "join and window the topics' streams, or look tables up and aggregate without windows behind it"
                raise place.mistake(what, do)
        if isinstance(node, Join) and _waits(node) and (hides := _with_hidden_time(node.left, plans)) is not None:
            what = f"it waits for stream time, which may pass between the records of {title(hides)}: where is not kept"
            raise place.mistake(what, "join the topic's stream with grace=, and filter or store behind that")
        if isinstance(node, Window | StreamJoin):
            reads_again = "windows read" if isinstance(node, Window) else "a join of streams reads"
            if any(of_changes(stream) and not _kept(stream, plans) for stream in inputs(node)):
                what = f"a table's changes are not kept for ever, and {reads_again} them again"
                raise place.mistake(what, "write .materialize(name) behind .to_stream()")
        if isinstance(node, Aggregate) and of_changes(node.source) and isinstance(why := fold_of(node), str):
            do = "write an aggregate that folds, or aggregate the table itself"
            raise place.mistake(f"a table's changes are not kept for ever, and {why}", do)
        if isinstance(node, Window) and node.kind == "session" and isinstance(why := fold_of(node), str):
            do = "write aggregates that fold: count, sum, avg, min, max"
            raise place.mistake(f"sessions merge, of what each holds, and {why}", do)
        for windows in (node, *inputs(node)):
            if isinstance(windows, Window) and windows not in plans:
                what = "the aggregates of windows are no view: what came late cannot be told again"
                raise place.mistake(what, "write .materialize(name) behind them")
        if node in plans:
            continue
        if isinstance(node, Latest) and of_changes(node.source):
            what = "the newest changes of a table are no view: the changes are not kept for ever"
            raise place.mistake(what, "write .materialize(name) behind .to_table()")
        if isinstance(node, StreamJoin):
            raise place.mistake("a join of two streams is no view", "write .materialize(name) behind it")
        if _waits(node):
            raise place.mistake("a join with grace= is no view", "write .materialize(name) behind it")
        if isinstance(node, Join) and node.drive == "left" and not is_stream(node):
            raise place.mistake('a join with drive="left" is no view', "write .materialize(name) behind it")
        if isinstance(node, Changes) and node.source not in plans:
            raise place.mistake("a view has no changes of its own", "write .materialize(name) before .to_stream()")
        if isinstance(node, Aggregate) and is_stream(node.source):
            raise place.mistake("groups of a stream are no view", "write .materialize(name) behind the aggregate")


def _read_again(node: Node) -> tuple[Node, ...]:
    """The streams whose earlier records a node reads again."""
    if (isinstance(node, Latest | Aggregate) and is_stream(node.source)) or isinstance(node, StreamJoin | Window):
        return inputs(node)
    return (node.left,) if isinstance(node, Join) and _waits(node) else ()


def _read_in_order(node: Node) -> tuple[Node, ...]:
    """The streams of which a node must know where in the order of time each record stands."""
    if isinstance(node, Join) and node.told is not None:
        return (node.left, node.told)
    return inputs(node) if isinstance(node, StreamJoin | Window) else ()


def _has_lone_records(stream: Node) -> bool:
    """Whether it is a left or outer join of streams."""
    return isinstance(stream, StreamJoin) and stream.how != "inner"


def _waits(stream: Node) -> bool:
    """Whether it is a join whose records wait before they look a row up."""
    return isinstance(stream, Join) and stream.grace is not None


def _coming_of(stream: Node, which: Callable[[Node], bool]) -> Node | None:
    """A stream of some kind that a stream is, or comes of."""
    if which(stream):
        return stream
    below = (stream.left,) if isinstance(stream, Join) else inputs(stream)
    found = (_coming_of(source, which) for source in below if is_stream(source))
    return next((one for one in found if one is not None), None)


def _with_hidden_time(stream: Node, plans: set[Node]) -> Node | None:
    """A stored stream, or a table's changes, that a stream comes of, and whose time moves on without a record."""
    hides = (stream in plans and _coming_of(stream, _leaves_out) is not None) or isinstance(stream, Changes)
    if hides:
        return stream
    found = (_with_hidden_time(source, plans) for source in inputs(stream) if is_stream(source))
    return next((one for one in found if one is not None), None)


def _leaves_out(stream: Node) -> bool:
    """Whether a stream may have no record where its source has one."""
    return not (isinstance(stream, Records | Union) or (isinstance(stream, Select) and stream.where is None))


def _not_stored(stream: Node, plans: set[Node]) -> Node | None:
    """A lookup that a stream comes of, and that no table holds."""
    if stream in plans or isinstance(stream, Changes):
        return None
    if isinstance(stream, Join):
        return stream
    below = (_not_stored(source, plans) for source in inputs(stream) if is_stream(source))
    return next((found for found in below if found is not None), None)


def _kept(stream: Node, plans: set[Node]) -> bool:
    """Whether the changes that a stream comes of are a stored stream, or all of it is."""
    return stream in plans or (not isinstance(stream, Changes) and any(_kept(read, plans) for read in inputs(stream)))


def _unread(draft: Draft) -> tuple[Node, ...]:
    """The views that no table is computed from."""
    read: set[Node] = set()
    for table in draft.stored:
        read.update(_below(table.plan))
    return tuple(dict.fromkeys(node for node in draft.written if node not in read))


def _below(node: Node) -> Iterator[Node]:
    yield node
    for source in inputs(node):
        yield from _below(source)


def _in_order(stored: list[Table]) -> tuple[Table, ...]:
    """The tables, each over scans of others and behind the others it reads; else as they were declared."""
    scan_of = {table.plan: _scan(table) for table in stored}
    tables = {table.name: replace(table, plan=_folding(_over_scans(table.plan, scan_of))) for table in stored}
    followed = {scan.table for table in tables.values() for scan in table.inputs if scan.appended}
    tables = {name: replace(table, followed=name in followed) for name, table in tables.items()}
    ordered: dict[str, Table] = {}

    def put(table: Table) -> None:
        for scan in table.inputs:
            if scan.table in tables:
                put(tables[scan.table])
        ordered.setdefault(table.name, table)

    for table in tables.values():
        put(table)
    return tuple(ordered.values())


def _scan(table: Table) -> Node:
    """What is read of a stored table: rows, or a stream's records."""
    if is_stream(table.plan):
        scan = Scan(table.name, table.plan.key, table.plan.columns, appended=True)
        return Records(scan, of_changes=of_changes(table.plan))
    return Scan(table.name, table.plan.key, table.plan.columns, by_time=_closes(table.plan))


def _closes(node: Node) -> bool:
    """Whether a table has the rows of windows that time closed."""
    match node:
        case Select(source=source):
            return _closes(source)
        case Window(suppressed=suppressed):
            return suppressed
        case _:
            return isinstance(node, Closed)


def _over_scans(node: Node, scan_of: Mapping[Node, Node]) -> Node:
    """A plan in which every stored node below its root is a scan."""

    def below(source: Node) -> Node:
        return scan_of[source] if source in scan_of else _over_scans(source, scan_of)

    def seen(right: Node) -> Node:
        # What a stream's records tell is told of the table they feed: a view of it is computed, stored or not.
        return over(right, seen) if isinstance(right, Select) else below(right)

    if isinstance(node, Join) and node.told is not None:
        told = below(node.told)
        if node.history is not None or by_arrival(Latest(told)):
            return replace(node, left=below(node.left), right=seen(node.right), told=told)
        node = replace(node, told=None)  # what a stored stream feeds may be older than what fed it before
    return over(node, below)


def _folding(plan: Node) -> Node:
    """A stored plan: an aggregate's own rows, and sessions, are there to fold into."""
    if not isinstance(plan, Aggregate) and not (isinstance(plan, Window) and plan.kind == "session"):
        return plan
    fold = fold_of(plan)
    return replace(plan, fold=fold) if isinstance(fold, Fold) else plan
