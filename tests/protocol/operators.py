"""Operators that say where a row comes from: a row is the rows, or the record, that it was computed from.

A topic's table has the newest record of every key. Any other table has at a key what its inputs have there, by name,
and the definition that put them together; so a row that mixes two cuts, or was computed by a definition that is no
longer the table's, shows it. Which keys a span touched is found as the engine finds it: by offsets and by change feeds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spark.engine.log.replacement import Counts
from spark.topology.nodes import LANDING
from tests.protocol.engine import Frame

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from spark.engine.inputs.snapshot import DeltaSnapshot
    from spark.engine.inputs.span import IncrementalSpan
    from spark.engine.log.position import Cut, Input
    from spark.engine.log.stored_table import ChangedVersion
    from spark.engine.publishing.feed import Feed
    from spark.topology.nodes import Node
    from tests.protocol.delta import Lake, Row


@dataclass(frozen=True)
class Operators:
    """`rows` and `touched` for plans, each of which has a mark: its definition."""

    marks: Mapping[int, str]
    """By the identity of a plan."""

    def rows(self, plan: Node, _: None, now: DeltaSnapshot) -> Frame:
        """All rows of a plan in a snapshot."""
        session: Any = now.session
        lake = session.engine.lake
        mark = self.marks[id(plan)]
        return Frame(session, lambda: list(computed(lake, now.topology, mark, now.inputs, now.cut).items()))

    def touched(self, plan: Node, span: IncrementalSpan) -> Frame | None:
        """The keys that a span touched, with their rows after it."""
        session: Any = span.after.session
        lake, after = session.engine.lake, span.after
        if not any(span.has_changes(scan) for scan in plan.scans):
            return None
        keys: set[Any] = set()
        for name in after.inputs:
            path = lake.table(after.topology, name)
            if name.startswith(LANDING):
                since, until = (pinned.offsets(name).offsets for pinned in (span.before, after))
                keys |= {key for _, (key, _) in _landed(lake, path, after.inputs[name].version, since, until)}
            else:
                versions = span.before.inputs[name].version + 1, after.inputs[name].version
                keys |= lake.fed(path, *versions)
        now = computed(lake, after.topology, self.marks[id(plan)], after.inputs, after.cut)
        return Frame(session, lambda: [(key, now.get(key)) for key in sorted(keys)])


def computed(lake: Lake, topology: str, mark: str, inputs: Mapping[str, Input], cut: Cut) -> dict[Any, Any]:
    """The rows of a table by its definition's mark, from its inputs at some versions and a cut."""
    found: dict[Any, dict[str, Any]] = {}
    for name, pinned in inputs.items():
        path = lake.table(topology, name)
        if name.startswith(LANDING):
            until = next(at.offsets for topic, at in cut.items() if topic.endswith(name.removeprefix(LANDING)))
            newest: dict[Any, Any] = {}
            for _, (key, value) in _landed(lake, path, pinned.version, {}, until):
                newest[key] = value
            return {key: value for key, value in newest.items() if value is not None}
        for key, row in lake.at(path, pinned.version).rows:
            found.setdefault(key, {})[name] = row
    return {key: (mark, tuple(sorted(rows.items()))) for key, rows in found.items()}


def difference(rows: Frame, stored: Frame, *_: object) -> Frame:
    """One row for every key at which two tables differ."""

    def differing() -> list[Row]:
        should, is_there = dict(rows.computed()), dict(stored.computed())
        keys = sorted(should.keys() | is_there.keys())
        return [(key, should.get(key)) for key in keys if should.get(key) != is_there.get(key)]

    return Frame(rows.session, differing)


def twice(stored: Frame, *_: object) -> Frame:
    """The keys that have more than one row."""

    def doubled() -> list[Row]:
        rows = stored.computed()
        return [row for row in rows if sum(key == row[0] for key, _ in rows) > 1]

    return Frame(stored.session, doubled)


def _landed(
    lake: Lake, path: str, version: int, since: Mapping[int, int], until: Mapping[int, int]
) -> list[tuple[Any, Any]]:
    """What a version of a landing has between two offsets, by offset."""
    rows = lake.at(path, version).rows
    return sorted((at[1], row) for at, row in rows if since.get(at[0], 0) <= at[1] < until.get(at[0], 0))


def touched_keys(source: Frame, *_: object) -> list[dict[str, Any]] | None:
    """The touched keys, and whether each has a row; None if there are more than two."""
    rows = source.computed()
    return None if len(rows) > 2 else [{"k": key, "_present": row is not None} for key, row in rows]


def counts(source: Frame, *_: object) -> Counts:
    """Half of all steps replace rows, also where they touch many keys."""
    rows = source.computed()
    written: Any = next(({"k": key} for key, row in rows if row is not None), None)
    return Counts(len(rows), sum(row is None for _, row in rows), (len(rows) + 1) % 2, written)


def gone(stored: Frame, source: Frame, *_: object) -> list[dict[str, Any]]:
    """The stored keys at which a step leaves no row."""
    absent = {key for key, row in source.computed() if row is None}
    return [{"k": key} for key, _ in stored.computed() if key in absent]


def differ(touched: list[dict[str, Any]], *_: object) -> bool:
    """Half of all steps replace rows. These rows have no coordinates, and equal ones may be written."""
    return len(touched) % 2 == 1


def _all(feed: Feed, version: int) -> list[Frame]:
    session: Any = feed.cache.session
    rows: list[Any] = [as_sent(version, row) for row in sorted(session.engine.lake.at(feed.table.path, version).rows)]
    return [Frame(session, lambda: rows)]


def _changed(feed: Feed, version: int, _: bool = False) -> list[Frame]:
    session: Any = feed.cache.session
    lake = session.engine.lake

    def differing() -> list[Any]:
        was, now = (dict(lake.at(feed.table.path, at).rows) for at in (version - 1, version))
        keys = [key for key in sorted(was.keys() | now.keys()) if was.get(key) != now.get(key)]
        return [as_sent(version, (key, now.get(key))) for key in keys]

    return [Frame(session, differing)]


def _told(feed: Feed, changes: list[ChangedVersion]) -> list[Frame]:
    return [frame for one in changes for frame in _changed(feed, one.version)]


def as_sent(version: int, row: Row) -> tuple[int, bytes, bytes | None, None]:
    """Version, key, value and time (none) of a row as a topic has it."""
    key, value = row
    return version, str(key).encode(), None if value is None else repr(value).encode(), None


FEED: dict[str, Callable[..., list[Frame]]] = {"_all": _all, "_replacing": _changed, "_changed_rows": _told}
"""What the change feed of a table tells, page by page."""
