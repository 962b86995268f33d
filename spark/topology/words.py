"""Nodes in words: what a node is called, what a join is, what a change of an input costs."""

from __future__ import annotations

from spark.topology.ddl import quoted
from spark.topology.durations import written
from spark.topology.nodes import (
    LANDING,
    Aggregate,
    Changes,
    Closed,
    Explode,
    Fold,
    How,
    Join,
    Latest,
    Node,
    Records,
    Scan,
    Select,
    StreamJoin,
    Union,
    Window,
    fed,
    inputs,
    is_stream,
    of_changes,
    scans,
)

METHODS: dict[How, str] = {"inner": "join", "left": "left_join", "outer": "outer_join"}


def title(node: Node) -> str:
    """What a node is called in messages."""
    match node:
        case Scan(table=table):
            return table
        case Records(source=landing) | Latest(source=Records(source=landing)):
            return landing.table.removeprefix(LANDING)
        case Changes(source=source):
            return f"to_stream of {title(source)}"
        case Latest(source=source):
            return f"to_table of {title(source)}"
        case Union(left=left, right=right):
            return f"merge of {title(left)} and {title(right)}"
        case Select(source=source):
            return f"{select_kind(node)} of {title(source)}"
        case Aggregate(source=source, by=by):
            return f"aggregate of {title(source)} by {', '.join(by)}"
        case Window(source=source, by=by):
            suppressed = "suppress of " if node.suppressed else ""
            return f"{suppressed}windows of {title(source)} by {', '.join(by)}"
        case Closed(source=source):
            return f"suppress of {title(source)}"
        case Explode(source=source, column=column):
            return f"flat_map({column}) of {title(source)}"
        case Join(left=left, right=right, how=how) | StreamJoin(left=left, right=right, how=how):
            return f"{METHODS[how]} of {title(left)} with {title(right)}"


def select_kind(select: Select) -> str:
    """The method that wrote a selection."""
    if select.rekeyed is not None:
        return "select_key"
    return "map_values" if select.where is None else "filter"


def by_arrival(latest: Latest) -> bool:
    """Whether a key's newest record is among the new ones, if there are any.

    It need not be where timestamps decide, where several topics are merged, which have no order between them but time,
    or where a stream took another key, whose records then come from several partitions: an order by arrival would
    depend on when the ticks were. So would that of a stored stream, which keeps its own steps, not those that landed
    its records. The changes of a table are in the order of its commits.
    """
    one_order = len(scans(latest)) == 1 and scans(latest)[0].landing and not _is_rekeyed(latest.source)
    return latest.history is None and (of_changes(latest.source) or one_order)


def _is_rekeyed(stream: Node) -> bool:
    return (isinstance(stream, Select) and stream.rekeyed is not None) or any(map(_is_rekeyed, inputs(stream)))


def equal_keys(join: Join) -> bool:
    """Whether a join looks the right side up by the left side's own key."""
    return join.on == tuple(quoted(column) for column in join.left.key)


def join_kind(join: Join, global_tables: frozenset[str]) -> str:
    """A join in words: its kind, the lookup key, and who drives."""
    if is_stream(join):
        kind = "stream-global" if join.sent else "stream-table"
        return f"{kind} {join.how} join on {', '.join(join.on)}, {title(join.right)} {_seen(join)}"
    if isinstance(join.right, Scan) and join.right.table in global_tables:
        kind = "global-table"
    else:
        kind = "primary-key" if equal_keys(join) else "foreign-key"
    drive = "both sides drive" if join.drive == "both" else "only the left side drives"
    return f"{kind} {join.how} join on {', '.join(join.on)}, {drive}"


def _seen(join: Join) -> str:
    """As of when a stream's record sees a table, and what that takes."""
    if join.told is None:
        return "at the pin"
    if join.history is None:
        return "as it was at the record's place"
    seen = f"as of the record's event time, no further back than {written(join.history)} before the table's own time"
    if join.grace is None:
        return seen
    wait = written(join.grace)
    return (
        f"{seen}; looked up when stream time reaches the record's time and {wait} of grace; "
        f"kept: nothing, who waits follows from stream time; reads records of the last {wait} again"
    )


def stream_join_kind(join: StreamJoin) -> str:
    """A join of two streams in words: its windows, and how far back it reads."""
    near = f"from {written(join.before)} before to {written(join.after)} after, grace {written(join.grace)}"
    kept = written(max(join.before, join.after, 0) + join.grace)
    return f"stream-stream {join.how} join on {', '.join(join.key)}, {near}; reads records of the last {kept} again"


def window_kind(window: Window) -> str:
    """Windows in words: their kind and lengths, when they close, what is kept and what is read again."""
    size = written(window.size)
    if window.kind == "session":
        return (
            f"in sessions with gaps of at most {size}, folded: a session is closed when stream time less "
            f"{written(open_for(window))} of gap and grace is behind its end; kept: the rows of sessions, whose state "
            f"they are; no record is read again"
        )
    if window.kind == "sliding":
        which, closed = f"sliding windows of {size}", "is behind"
    elif window.advance == window.size:
        which, closed = f"tumbling windows of {size}", "reaches"
    else:
        which, closed = f"hopping windows of {size} every {written(window.advance)}", "reaches"
    when = "a row once its window is closed" if window.suppressed else "a row as soon as its window has a record"
    return (
        f"in {which}, {when}; closed when stream time less {written(window.grace)} of grace {closed} its end; "
        f"kept: the rows of windows, whose state they are; reads records of the last {written(open_for(window))} again"
    )


def open_for(window: Window) -> int:
    """How far behind stream time a record can be and still count in an open window, in milliseconds."""
    return window.size + window.grace


def costs(node: Node) -> tuple[tuple[Scan, str], ...]:
    """What a change of each stored input makes a step look at, in words."""
    match node:
        case Scan():
            return ((node, "the changed keys"),)
        case Records(source=source):
            return ((source, "the new records"),)
        case Changes(source=source):
            return tuple((scan, "the changes") for scan, _ in costs(source))
        case Union(left=left, right=right):
            return costs(left) + costs(right)
        case Latest(source=source):
            again = "" if by_arrival(node) else f", and a scan of {title(source)} for all records that have them"
            return tuple((scan, f"the keys of {words}{again}") for scan, words in costs(source))
        case Select(source=source) | Explode(source=source):
            return costs(source)
        case Window(source=source, kind="session"):
            return tuple(
                (scan, f"{words}, folded into the open sessions of their groups") for scan, words in costs(source)
            )
        case Closed(source=source):
            return tuple((scan, "the sessions that stream time has closed") for scan, _ in costs(source))
        case Window(source=source):
            back = f", and the records of {written(open_for(node))} before them"
            return tuple((scan, words + back) for scan, words in costs(source))
        case StreamJoin(left=left, right=right):
            back = f", and the records of {written(max(node.before, node.after, 0) + node.grace)} before them"
            return tuple((scan, words + back) for side in (left, right) for scan, words in costs(side))
        case Join(left=left, right=right, told=told) if is_stream(left):
            driven = "nothing by itself; it is looked up"
            looked = (*scans(right), *(scans(told) if told is not None else ()))
            back = f", and the records of {written(node.grace)} before them" if node.grace is not None else ""
            again = f"{back}, each looked up once in {title(right)}"
            if node.history is not None:
                again += "; of one that is older than the row there, all records of its key"
            return (
                *((scan, words + again) for scan, words in costs(left)),
                *((scan, driven) for scan in dict.fromkeys(looked)),
            )
        case Aggregate(source=source, fold=fold):
            again = _regrouping(source, fold)
            return tuple((scan, words + again) for scan, words in costs(source))
        case Join(left=left, right=right, on=on, drive=drive):
            looked_up = f", each looked up once in {title(right)}"
            if node.how == "outer":
                return (
                    *((scan, words + looked_up) for scan, words in costs(left)),
                    *((scan, f"{words}, each looked up once in {title(left)}") for scan, words in costs(right)),
                )
            if drive == "left":
                driven = "nothing; it is looked up, and its changes are not followed"
                return (
                    *((scan, words + looked_up) for scan, words in costs(left)),
                    *((scan, driven) for scan, _ in costs(right)),
                )
            if equal_keys(node):
                back = f", and the rows of {title(left)} with the same keys"
            else:
                back = f", and a scan of {title(left)} for the rows whose {', '.join(on)} is among them"
            return (
                *((scan, words + looked_up) for scan, words in costs(left)),
                *((scan, words + back) for scan, words in costs(right)),
            )


def _regrouping(source: Node, fold: Fold | None) -> str:
    """What an aggregate looks at, besides the changed rows."""
    if fold is None:
        groups = "" if is_stream(source) else ", old and new"
        return f", and a scan of {title(source)} for the rows of their groups{groups}"
    if is_stream(source):
        return ", each folded into its group"
    extremes = any(partial.how != "sum" for partial in fold.partials)
    which = "newest, least or greatest" if extremes else "newest"
    before = "" if fed(source) else f", after a look at what it was in {title(source)}"
    again = f"where a group's {which} row left, a scan of {title(source)} for its rows"
    return f", each folded into its group{before}; {again}"
