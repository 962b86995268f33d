"""Two functions per table node: which keys a span touched, and which rows a snapshot has. One per stream node: `emit`.

Laws (tests/laws holds every operator to them):
  Locality   `rows(node, keys, now)` is `rows(node, ALL, now)` cut down to `keys`, one row per key.
  Soundness  a key that is not in `touched(node, span)` has the same row before and after the span.
  Agreement  the rows in `touched(node, span)` are `rows(node, those keys, span.after)`.
A table that equals its query before a span therefore equals it afterwards, once its touched keys are replaced.

One law for streams:
  Batch invariance  a span cut in time-aligned pieces emits the same records as the whole.
"""

from __future__ import annotations

from functools import reduce, singledispatch
from typing import TYPE_CHECKING, Protocol

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark.topology.nodes import Scan
from spark.topology.sql.ddl import quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pyspark.sql import Column

    from spark.topology.nodes import Node

OURS = ("_timestamp", "_topic", "_partition", "_offset")
"""Columns of ours that every row carries: event time, and coordinates of the record that made the row."""

PRESENT = "_present"
"""In what `touched` returns: false where the key has no row after the span."""

STREAMED = (*OURS, "_batch", "_deleted", "_ordinal")
"""Columns of ours that a stream's record carries: also the commit it came with, whether it has no value, and which of
several records of equal coordinates it is."""

PLACED = (*STREAMED, "_reached")
"""And the time that its partition, or the stream it was derived from, had reached with it inside the span
(microseconds; null for a record from before the span): what the merge order goes by."""

IDENTITY = ("_topic", "_partition", "_offset", "_ordinal")
"""What tells a stream's records apart."""

ALL = None
"""Every key."""


class Snapshot(Protocol):
    """Every input at one position."""

    def stored(self, scan: Scan) -> DataFrame:
        """All rows of a stored table."""

    def records(self, scan: Scan) -> DataFrame:
        """All decoded records of a landing or a stored stream, or all changes of a stored table, `PLACED`."""

    def time(self, scan: Scan) -> int | Column | None:
        """The stream time that a stored table or stream which keeps it had, in microseconds."""


class Span(Protocol):
    """From one position to a later one."""

    @property
    def before(self) -> Snapshot:
        """Every input at the earlier position."""

    @property
    def after(self) -> Snapshot:
        """Every input at the later position."""

    @property
    def is_small(self) -> bool:
        """Whether what changed is little enough to be sent to every task."""

    @property
    def own(self) -> DataFrame:
        """The rows that the plan's own table has at the earlier position: what a fold starts from."""

    def keep(self, frame: DataFrame) -> DataFrame:
        """The same rows, computed once if they are few: for what an operator reads more than once."""

    def is_empty(self, frame: DataFrame) -> bool:
        """Whether a frame that was kept has no rows; false where that would have to be computed."""

    def has_changes(self, scan: Scan) -> bool:
        """Whether the input changed at all across the span."""

    def changes(self, scan: Scan) -> DataFrame:
        """One row for every key of a stored table that changed: its newest row, or `_present` false."""

    def previous(self, scan: Scan) -> DataFrame:
        """The rows that a stored table had, at the earlier position, at the keys that changed."""

    def records(self, scan: Scan) -> DataFrame:
        """The records that a landing or a stored stream gained, or the changes of a stored table, `PLACED`."""

    def overlapping_records(self, scan: Scan) -> DataFrame | None:
        """The records from before the span that may be newer than some of it; None where there are none."""

    @property
    def time_before(self) -> int | Column | None:
        """Stream time at the earlier position, in microseconds; None before any record with a timestamp.

        A column where a frame holds several streams of their own time: operators compute with either.
        """

    @property
    def time_after(self) -> int | Column | None:
        """Stream time at the later position: the greatest timestamp of any source record up to it."""

    @property
    def seen(self) -> Mapping[str, int | Column]:
        """By landing, the greatest timestamp in a versioned table at the earlier position, in microseconds."""

    @property
    def apart(self) -> tuple[str, ...]:
        """The columns that keep streams of their own time apart, where a frame holds several."""


@singledispatch
def touched(node: Node, span: Span) -> DataFrame | None:  # noqa: ARG001  # each operator registers its own
    """Every key whose row may differ across the span, with the row it has afterwards (or `_present` false).

    One row per key. None where nothing that the node reads has moved.
    """
    raise TypeError(f"no operator is registered for {type(node).__name__}")


@singledispatch
def rows(node: Node, keys: DataFrame | None, now: Snapshot) -> DataFrame:  # noqa: ARG001  # as above
    """The rows at `keys` (a frame of the node's key columns, few), or at ALL keys, in one snapshot."""
    raise TypeError(f"no operator is registered for {type(node).__name__}")


@singledispatch
def previous(node: Node, keys: DataFrame, span: Span) -> DataFrame:
    """The rows that touched keys, which are `keys`, had before the span. Cheap where change feeds hold them."""
    if span.is_small:
        return rows(node, keys, span.before)
    return among(rows(node, ALL, span.before), keys, node.key, broadcast=False)


@singledispatch
def records(node: Node, read: Callable[[Node], DataFrame]) -> DataFrame:  # noqa: ARG001  # as above
    """The records of a stateless stream, `PLACED`, that come of what `read` finds in its inputs.

    A record of the stream comes of one record of an input, so what a span adds comes of what the inputs gained.
    """
    raise TypeError(f"no operator is registered for streams of {type(node).__name__}")


@singledispatch
def emit(node: Node, span: Span) -> DataFrame:
    """The records that a span adds to a stream, `PLACED`."""

    def read(source: Node) -> DataFrame:
        if not isinstance(source, Scan):
            return emit(source, span)
        return span.records(source) if span.has_changes(source) else span.after.records(source).where("false")

    return records(node, read)


@singledispatch
def dropped(node: Node, span: Span) -> DataFrame | None:
    """The new records that have no part in a stream, with `_reason`. None where an operator drops nothing."""
    found = [before for source in node.sources if (before := dropped(source, span)) is not None]
    return reduce(DataFrame.unionByName, found) if found else None


def refused(found: DataFrame, reason: Column) -> DataFrame:
    """Those of some records for which there is a reason."""
    told = found.select(*cols(IDENTITY), F.col("_timestamp"), F.col("_reached"), reason.alias("_reason"))
    return told.where("_reason IS NOT NULL")


def refused_of(source: Node, span: Span, reason: Column) -> DataFrame:
    """Those of a stream's new records for which there is a reason, and what the stream itself dropped."""
    here, before = refused(emit(source, span), reason), dropped(source, span)
    return here if before is None else before.unionByName(here)


def history(node: Node, now: Snapshot) -> DataFrame:
    """All records of a stateless stream up to a snapshot."""

    def read(source: Node) -> DataFrame:
        assert isinstance(source, Scan), "what a lookup or a join within windows emitted is read where it is stored"
        return now.records(source)

    return records(node, read)


def overlapping_records(node: Node, span: Span) -> DataFrame | None:
    """The earlier records of a stateless stream that may be newer than some that the span adds; None if none are."""
    found = {scan: span.overlapping_records(scan) for scan in node.drivers}
    if not any(one is not None for one in found.values()):
        return None

    def read(source: Node) -> DataFrame:
        assert isinstance(source, Scan), "what a lookup or a join within windows emitted is read where it is stored"
        earlier = found[source]
        return span.before.records(source).where("false") if earlier is None else earlier

    return records(node, read)


def new_records(node: Node, span: Span) -> DataFrame | None:
    """The records that a span adds to a stream. None where no input that drives it has moved."""
    return emit(node, span) if any(span.has_changes(scan) for scan in node.drivers) else None


def is_idle(node: Node, span: Span) -> bool:
    """Whether a span brings an operator neither records nor time, which may go on where a filter left its record."""
    return not any(span.has_changes(scan) for scan in node.drivers) and bool(span.time_before == span.time_after)


def col(name: str, of: str | None = None) -> Column:
    """A column by its exact name, of an aliased frame if `of` is given."""
    return F.col(quoted(name) if of is None else f"{of}.{quoted(name)}")


def cols(names: Iterable[str], of: str | None = None) -> list[Column]:
    """Columns by their exact names."""
    return [col(name, of) for name in names]


def at(frame: DataFrame, keys: DataFrame | None, key: Iterable[str]) -> DataFrame:
    """The rows of a frame at few keys, or all of them."""
    return frame if keys is None else among(frame, keys, key, broadcast=True)


def among(frame: DataFrame, keys: DataFrame, key: Iterable[str], broadcast: bool) -> DataFrame:
    """The rows of a frame at some keys; few of them are sent to every task."""
    return frame.join(F.broadcast(keys) if broadcast else keys, list(key), "left_semi")


def or_absent(keys: DataFrame, found: DataFrame, node: Node) -> DataFrame:
    """One row for every key: the one found there, or `_present` false."""
    there = found.withColumn("_found", F.lit(True))
    pairs = keys.join(there, list(node.key), "left_outer").withColumn(PRESENT, F.col("_found").isNotNull())
    return pairs.select(*cols(column.name for column in node.columns), *cols(OURS), PRESENT)


def present(frame: DataFrame) -> DataFrame:
    """The keys that have a row."""
    return frame.where(PRESENT).drop(PRESENT)
