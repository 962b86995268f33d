"""The operators' interface: `touched` and `rows` for every table node, `emit` for every stream node.

`touched` returns the keys that a span may change, `rows` the rows of a snapshot.

Laws (tests/laws checks them for every operator):
  Locality   `rows(node, keys, now)` is `rows(node, ALL, now)` restricted to `keys`, one row per key.
  Soundness  a key that is not in `touched(node, span)` has the same row before and after the span.
  Agreement  the rows in `touched(node, span)` are `rows(node, those keys, span.after)`.
Therefore a table that equals its query before a span equals it afterwards, once its touched keys are replaced.

One law for streams:
  Batch invariance  a span cut into time-aligned pieces emits the same records as the whole span.
"""

from __future__ import annotations

from functools import reduce, singledispatch
from typing import TYPE_CHECKING, Protocol

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark.topology.nodes import Scan
from spark.topology.sql.ddl import quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pyspark.sql import Column, Row

    from spark.topology.nodes import Node

OURS = ("_timestamp", "_topic", "_partition", "_offset")
"""Our columns in every row: event time, and the coordinates of the record that made the row."""

PRESENT = "_present"
"""Column of `touched`: false if the key has no row after the span."""

STREAMED = (*OURS, "_batch", "_deleted", "_ordinal")
"""Our columns in every record of a stream: `OURS`, the commit that brought the record (`_batch`), whether it has no
value (`_deleted`), and the order of records with equal coordinates (`_ordinal`)."""

PLACED = (*STREAMED, "_reached")
"""`STREAMED`, and `_reached`: the time that the record's partition, or the stream it derives from, had reached at the
record inside the span (microseconds; null for a record from before the span). The merge order sorts by it."""

IDENTITY = ("_topic", "_partition", "_offset", "_ordinal")
"""The columns that identify a record of a stream."""

KINDS = {"tinyint": int, "smallint": int, "int": int, "bigint": int, "string": str}
"""By type of a column, the type in Python of the literals it is compared with."""

ALL = None
"""Every key."""


class Snapshot(Protocol):
    """All inputs at one position."""

    def stored(self, scan: Scan) -> DataFrame:
        """All rows of a stored table."""

    def records(self, scan: Scan) -> DataFrame:
        """All decoded records of a landing or a stored stream, or all changes of a stored table; with `PLACED`."""

    def time(self, scan: Scan) -> int | Column | None:
        """Stream time of a stored table or stream that records it, in microseconds."""


class Span(Protocol):
    """The changes from one position to a later one."""

    @property
    def before(self) -> Snapshot:
        """All inputs at the earlier position."""

    @property
    def after(self) -> Snapshot:
        """All inputs at the later position."""

    @property
    def is_small(self) -> bool:
        """True if the changes are few enough to be broadcast."""

    @property
    def own(self) -> DataFrame:
        """The rows of the plan's own table at the earlier position, from which a fold starts."""

    def keep(self, frame: DataFrame) -> DataFrame:
        """The same rows, computed once if they are few: for a frame that an operator reads more than once."""

    def is_empty(self, frame: DataFrame) -> bool:
        """True if a frame from `keep` has no rows; false if it is not computed yet."""

    def few(self, keys: DataFrame, node: Node) -> Sequence[Row] | None:
        """The rows of `keys`, if they are few and an input of the node is large; None if literals would not pay."""

    def has_changes(self, scan: Scan) -> bool:
        """True if the input changed in the span."""

    def changes(self, scan: Scan) -> DataFrame:
        """One row for every changed key of a stored table: its newest row, or `_present` false."""

    def previous(self, scan: Scan) -> DataFrame:
        """The rows of a stored table at the earlier position, at the changed keys."""

    def records(self, scan: Scan) -> DataFrame:
        """The new records of a landing or a stored stream, or the changes of a stored table; with `PLACED`."""

    def overlapping_records(self, scan: Scan) -> DataFrame | None:
        """The records from before the span that may be newer than some in it; None if there are none."""

    @property
    def time_before(self) -> int | Column | None:
        """Stream time at the earlier position, in microseconds; None before the first record with a timestamp.

        A column if a frame holds several streams, each with its own time: operators accept either.
        """

    @property
    def time_after(self) -> int | Column | None:
        """Stream time at the later position, in microseconds: the greatest timestamp of all source records so far."""

    @property
    def seen(self) -> Mapping[str, int | Column]:
        """For each landing, the greatest timestamp in a versioned table at the earlier position, in microseconds."""

    @property
    def apart(self) -> tuple[str, ...]:
        """The columns that identify each stream, if a frame holds several streams with their own time."""


@singledispatch
def touched(node: Node, span: Span) -> DataFrame | None:  # noqa: ARG001  # each operator registers its own
    """Every key whose row may differ across the span, with its row after the span, or `_present` false.

    One row per key: the node's columns, `OURS`, `_present`, and a fold's partials. None if no input changed.
    """
    raise TypeError(f"no operator is registered for {type(node).__name__}")


@singledispatch
def rows(node: Node, keys: DataFrame | None, now: Snapshot) -> DataFrame:  # noqa: ARG001  # as above
    """The rows of one snapshot at `keys` (a frame of the node's key columns, few rows), or at ALL keys.

    Columns: the node's, `OURS`, and a fold's partials.
    """
    raise TypeError(f"no operator is registered for {type(node).__name__}")


@singledispatch
def previous(node: Node, keys: DataFrame, span: Span) -> DataFrame:
    """The rows that touched keys (`keys`) had before the span. This is cheap if change feeds hold them."""
    if span.is_small:
        return rows(node, keys, span.before)
    return semi_join(rows(node, ALL, span.before), keys, node.key, broadcast=False)


@singledispatch
def records(node: Node, read: Callable[[Node], DataFrame]) -> DataFrame:  # noqa: ARG001  # as above
    """The records of a stateless stream, with `PLACED`, computed from the records that `read` returns for its inputs.

    A record of the stream derives from one record of an input. So the records that a span adds derive from the new
    records of the inputs.
    """
    raise TypeError(f"no operator is registered for streams of {type(node).__name__}")


@singledispatch
def emit(node: Node, span: Span) -> DataFrame:
    """The records that a span adds to a stream; with `PLACED`."""

    def read(source: Node) -> DataFrame:
        if not isinstance(source, Scan):
            return emit(source, span)
        return span.records(source) if span.has_changes(source) else span.after.records(source).where("false")

    return records(node, read)


@singledispatch
def dropped(node: Node, span: Span) -> DataFrame | None:
    """The new records that a stream drops; None if it never drops any.

    Columns: `IDENTITY`, `_timestamp`, `_reached` (microseconds), and `_reason` (string).
    """
    frames = [frame for source in node.sources if (frame := dropped(source, span)) is not None]
    return reduce(DataFrame.unionByName, frames) if frames else None


def dropped_by(new: DataFrame, reason: Column) -> DataFrame:
    """The records that have a reason to be dropped; columns as in `dropped`."""
    with_reason = new.select(*cols(IDENTITY), F.col("_timestamp"), F.col("_reached"), reason.alias("_reason"))
    return with_reason.where("_reason IS NOT NULL")


def dropped_with_upstream(source: Node, span: Span, reason: Column) -> DataFrame:
    """The new records of a stream that have a reason to be dropped, and those that the stream itself dropped."""
    own, upstream = dropped_by(emit(source, span), reason), dropped(source, span)
    return own if upstream is None else upstream.unionByName(own)


def history(node: Node, now: Snapshot) -> DataFrame:
    """All records of a stateless stream up to a snapshot; with `PLACED`."""

    def read(source: Node) -> DataFrame:
        assert isinstance(source, Scan), "a lookup or a stream join is read from where it is stored"
        return now.records(source)

    return records(node, read)


def overlapping_records(node: Node, span: Span) -> DataFrame | None:
    """The earlier records of a stateless stream that may be newer than some that the span adds; None if none are."""
    by_scan = {scan: span.overlapping_records(scan) for scan in node.drivers}
    if all(frame is None for frame in by_scan.values()):
        return None

    def read(source: Node) -> DataFrame:
        assert isinstance(source, Scan), "a lookup or a stream join is read from where it is stored"
        earlier = by_scan[source]
        return span.before.records(source).where("false") if earlier is None else earlier

    return records(node, read)


def new_records(node: Node, span: Span) -> DataFrame | None:
    """The records that a span adds to a stream; with `PLACED`. None if no input that drives it changed."""
    return emit(node, span) if any(span.has_changes(scan) for scan in node.drivers) else None


def is_idle(node: Node, span: Span) -> bool:
    """True if the span adds no records and stream time is unchanged; a filtered record advances stream time too."""
    return not any(span.has_changes(scan) for scan in node.drivers) and bool(span.time_before == span.time_after)


def col(name: str, alias: str | None = None) -> Column:
    """A column by its exact name; of the frame with this alias, if given."""
    return F.col(quoted(name) if alias is None else f"{alias}.{quoted(name)}")


def cols(names: Iterable[str], alias: str | None = None) -> list[Column]:
    """Columns by their exact names."""
    return [col(name, alias) for name in names]


def at_keys(frame: DataFrame, keys: DataFrame | None, key: Iterable[str]) -> DataFrame:
    """The rows of a frame at a few keys, or all rows if `keys` is None."""
    return frame if keys is None else semi_join(frame, keys, key, broadcast=True)


def semi_join(frame: DataFrame, keys: DataFrame, key: Iterable[str], broadcast: bool) -> DataFrame:
    """The rows of a frame at some keys; `broadcast` sends the keys to every task."""
    return frame.join(F.broadcast(keys) if broadcast else keys, list(key), "left_semi")


def at_literals(frame: DataFrame, keys: Sequence[Row] | None, key: Sequence[str]) -> DataFrame:
    """The rows of a frame whose key columns have values of `keys`, each column by itself; all rows if `keys` is None.

    Other rows may be among them. Delta and Parquet skip files and pages by literals, as they do not by a join.
    """
    if keys is None:
        return frame
    types = dict(frame.dtypes)
    for number, name in enumerate(key):
        values = {row[number] for row in keys} - {None}
        if all(type(value) is KINDS.get(types[name]) for value in values):
            frame = frame.where(col(name).isin(sorted(values)) if values else "false")
    return frame


def or_absent(keys: DataFrame, existing: DataFrame, node: Node) -> DataFrame:
    """One row for every key: its existing row, or `_present` false. Columns: the node's, `OURS`, `_present`."""
    marked = existing.withColumn("_found", F.lit(True))
    pairs = keys.join(marked, list(node.key), "left_outer").withColumn(PRESENT, F.col("_found").isNotNull())
    return pairs.select(*cols(column.name for column in node.columns), *cols(OURS), PRESENT)


def present(frame: DataFrame) -> DataFrame:
    """The rows that are present, without `_present`."""
    return frame.where(PRESENT).drop(PRESENT)
