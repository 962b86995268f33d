"""The algebra on Python dicts: what every operator must yield, written a second time and without Spark.

Expressions are SQL text, so the reference is told what each text means as a function of one row, or of a left and a
right row: `meaning`. Null is None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from spark.topology.nodes import Aggregate, Join, Latest, Node, Scan, Select

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
            return _newest(node, records)
        case Select():
            source = rows(node.source, tables, records, meaning)
            return {key: _selected(node, row, meaning) for key, row in source.items() if _kept(node, row, meaning)}
        case Aggregate():
            return _aggregated(node, rows(node.source, tables, records, meaning), meaning)
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


def _newest(node: Latest, records: Iterable[Row]) -> Rows:
    last: dict[tuple[Any, ...], Row] = {}
    for record in sorted(records, key=lambda record: (record["_batch"], record["_partition"], record["_offset"])):
        key = tuple(record[name] for name in node.key)
        if record["_error"] is None and None not in key:
            last[(*key, record["_batch"], record["_partition"])] = record
    found: Rows = {}
    for record in sorted(last.values(), key=_order):
        key = tuple(record[name] for name in node.key)
        found.pop(key, None)
        if not record["_deleted"]:
            found[key] = {name: record[name] for name in (*(column.name for column in node.columns), *OURS)}
    return found


def _order(record: Row) -> tuple[Any, ...]:
    timestamp = record["_timestamp"]
    # A record without a timestamp is older than any with one.
    return (record["_batch"], timestamp is not None, timestamp or 0, record["_partition"], record["_offset"])


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


def _aggregated(node: Aggregate, source: Rows, meaning: Meaning) -> Rows:
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in source.values():
        key = tuple(row[name] for name in node.by)
        if None not in key:
            groups.setdefault(key, []).append(row)
    found: Rows = {}
    for key, members in groups.items():
        newest = max(members, key=_newness)
        aggregates = {name: meaning[text](members) for name, text in node.select[len(node.by) :]}
        found[key] = dict(zip(node.by, key, strict=True)) | aggregates | {name: newest[name] for name in OURS}
    return found


def _newness(row: Row) -> tuple[Any, ...]:
    return tuple((row[name] is not None, row[name]) if row[name] is not None else (False,) for name in OURS)
