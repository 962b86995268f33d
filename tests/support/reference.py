"""The algebra on Python dicts: what every operator must yield, written a second time and without Spark.

Expressions are SQL text, so the reference is told what each text means as a function of one row, or of a left and a
right row: `meaning`. Null is None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from spark.topology.nodes import Aggregate, Join, Latest, Node, Records, Scan, Select, Union

if TYPE_CHECKING:
    from collections.abc import Iterable

Row = dict[str, Any]  # values of any column type; the meaning of an expression knows which
Rows = dict[tuple[Any, ...], Row]
Meaning = Mapping[str, Callable[..., Any]]  # of a row, of two, or of the rows of a group

OURS = ("_timestamp", "_topic", "_partition", "_offset")


def rows(node: Node, tables: Mapping[str, Rows], records: Iterable[Row], meaning: Meaning) -> Rows:
    """All rows of a node, by key."""
    match node:
        case Scan():
            return dict(tables[node.table])
        case Latest():
            return _newest(node, _streamed(node.source, records, meaning))
        case Select():
            source = rows(node.source, tables, records, meaning)
            return {key: _selected(node, row, meaning) for key, row in source.items() if _kept(node, row, meaning)}
        case Aggregate() if node.source.is_stream:
            valued = [record for record in _streamed(node.source, records, meaning) if not record["_deleted"]]
            return _aggregated(node, valued, meaning)
        case Aggregate():
            return _aggregated(node, rows(node.source, tables, records, meaning).values(), meaning)
        case Join():
            left = rows(node.left, tables, records, meaning)
            right = rows(node.right, tables, records, meaning)
            if node.how == "outer":
                return {key: _either(node, left.get(key), right.get(key), meaning) for key in left | right}
            pairs = {key: (row, right.get(_on(node, row, meaning))) for key, row in left.items()}
            return {
                key: _joined(node, one, other, meaning)
                for key, (one, other) in pairs.items()
                if other is not None or node.how == "left"
            }
        case _:
            raise TypeError("a stream has records, not rows by key")


def _streamed(node: Node, records: Iterable[Row], meaning: Meaning) -> list[Row]:
    """The records of a stream. `records` are those of all landings, each known by its topic."""
    match node:
        case Records():
            topic = node.source.table.removeprefix("_landing/")
            return [record for record in records if record["_topic"] == topic and record["_error"] is None]
        case Union():
            return _streamed(node.left, records, meaning) + _streamed(node.right, records, meaning)
        case Select():
            source = _streamed(node.source, records, meaning)
            return [_mapped(node, record, meaning) for record in source if _kept(node, record, meaning)]
        case _:
            raise TypeError(f"{node} is no stream")


def _mapped(node: Select, record: Row, meaning: Meaning) -> Row:
    """A record with the columns selected; without a value it has none, whatever is computed."""
    found = {
        name: None if record["_deleted"] and name not in node.key else meaning[text](record, record)
        for name, text in node.select
    }
    return record | found


def _newest(node: Latest, records: list[Row]) -> Rows:
    keyed = [record for record in records if None not in _key(node, record)]
    # The steps of one landing have an order; of a stream by another key, each partition has its own.
    by_batch = len(node.scans) == 1 and node.history is None and not _is_rekeyed(node.source)
    last = {
        (*_key(node, r), r["_batch"] if by_batch else 0, r["_topic"], r["_partition"]): r
        for r in sorted(keyed, key=lambda record: record["_offset"])
    }
    found: Rows = {}
    for record in sorted(
        keyed if node.history is not None else last.values(),
        key=lambda record: _order(record, by_batch),
    ):
        key = _key(node, record)
        found.pop(key, None)
        if not record["_deleted"]:
            found[key] = {name: record[name] for name in (*(column.name for column in node.columns), *OURS)}
    return found


def _is_rekeyed(node: Node) -> bool:
    return (isinstance(node, Select) and node.rekeyed is not None) or any(
        _is_rekeyed(source) for source in node.sources
    )


def _key(node: Node, record: Row) -> tuple[Any, ...]:
    return tuple(record[name] for name in node.key)


def _order(record: Row, by_batch: bool) -> tuple[Any, ...]:
    timestamp = record["_timestamp"]
    # A record without a timestamp is older than any with one.
    time = (timestamp is not None, timestamp or 0)
    place = (record["_topic"], record["_partition"], record["_offset"])
    return (record["_batch"] if by_batch else 0, *time, *place)


def _kept(node: Select, row: Row, meaning: Meaning) -> bool:
    return node.where is None or meaning[node.where](row, row) is True


def _selected(node: Select, row: Row, meaning: Meaning) -> Row:
    return {name: meaning[text](row, row) for name, text in node.select} | {name: row[name] for name in OURS}


def _on(node: Join, row: Row, meaning: Meaning) -> tuple[Any, ...]:
    return tuple(meaning[text](row, row) for text in node.on)  # a null in it is no right row's key


def _joined(node: Join, left: Row, right: Row | None, meaning: Meaning) -> Row:
    nothing = dict.fromkeys((*(column.name for column in node.right.columns), *OURS))
    other = nothing if right is None else right
    timestamps = [row["_timestamp"] for row in (left, other) if row["_timestamp"] is not None]
    found: Row = {name: meaning[text](left, other) for name, text in node.select}
    found |= {name: left[name] for name in OURS}
    found["_timestamp"] = max(timestamps, default=None)
    return found


def _either(node: Join, left: Row | None, right: Row | None, meaning: Meaning) -> Row:
    if left is not None:
        return _joined(node, left, right, meaning)
    assert right is not None
    nothing = dict.fromkeys((*(column.name for column in node.left.columns), *OURS))
    found: Row = {name: meaning[text](nothing, right) for name, text in node.select}
    found |= {ours: right[theirs] for ours, theirs in zip(node.key, node.right.key, strict=True)}
    return found | {name: right[name] for name in OURS}


def _aggregated(node: Aggregate, source: Iterable[Row], meaning: Meaning) -> Rows:
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in source:
        key = tuple(row[name] for name in node.by)
        if None not in key:
            groups.setdefault(key, []).append(row)
    found: Rows = {}
    for key, members in groups.items():
        newest = max(members, key=newness)
        aggregates = {name: meaning[text](members) for name, text in node.select[len(node.by) :]}
        found[key] = dict(zip(node.by, key, strict=True)) | aggregates | {name: newest[name] for name in OURS}
    return found


def newness(row: Row) -> tuple[Any, ...]:
    """What makes a row newer than another: its event time, then its coordinates; null is older than anything."""
    return tuple((row[name] is not None, row[name]) if row[name] is not None else (False,) for name in OURS)
