"""Conditions on the key: which rows a query wants, and in which files and row groups they can be."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # has no types of its own
import pyarrow.compute as pc  # type: ignore[import-untyped]  # as above

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    Bounds = Mapping[str, tuple[pa.Array, pa.Array]]
    """By column, its least and greatest value in each of several files or row groups; null where it is not known."""


class Condition(Protocol):
    """Which rows a query wants."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that decide."""

    def overlapping(self, bounds: Bounds, count: int) -> NDArray[np.bool_]:
        """Return, for each of `count` files or row groups, whether it may have such rows."""

    def matching(self, rows: pa.Table) -> NDArray[np.bool_]:
        """Return, for each row, whether the query wants it."""


@dataclass(frozen=True)
class Everything:
    """All rows."""

    columns: tuple[str, ...] = ()

    def overlapping(self, bounds: Bounds, count: int) -> NDArray[np.bool_]:  # noqa: ARG002  # a protocol's
        """Return true for all."""
        return np.ones(count, bool)

    def matching(self, rows: pa.Table) -> NDArray[np.bool_]:
        """Return true for all."""
        return np.ones(rows.num_rows, bool)


@dataclass(frozen=True)
class Between:
    """Rows whose leading key columns lie between two bounds, in the order of the columns. Both bounds are inclusive.

    A bound may have fewer columns than the key: it then includes all keys that begin with it. None: no bound.
    """

    names: tuple[str, ...]
    low: tuple[pa.Scalar, ...] | None
    high: tuple[pa.Scalar, ...] | None

    @property
    def columns(self) -> tuple[str, ...]:
        """The key columns that a bound has."""
        return self.names[: max(len(self.low or ()), len(self.high or ()))]

    def overlapping(self, bounds: Bounds, count: int) -> NDArray[np.bool_]:
        """Return whether the bounds of each overlap with these."""
        found = np.ones(count, bool)
        for number, name in enumerate(self.columns):
            least, greatest = bounds[name]
            low = self.low[number] if self.low is not None and number < len(self.low) else None
            high = self.high[number] if self.high is not None and number < len(self.high) else None
            if low is not None:
                found &= _or_unknown(pc.greater_equal(greatest, low))
            if high is not None:
                found &= _or_unknown(pc.less_equal(least, high))
            if low is None or high is None or not low.equals(high):
                break  # the next column is bounded only where this one has a single value
        return found

    def matching(self, rows: pa.Table) -> NDArray[np.bool_]:
        """Return whether each row lies between the bounds."""
        if self.low is not None and self.high is not None and self.low == self.high:
            equals = (_true(pc.equal(rows[n], value)) for n, value in zip(self.names, self.low, strict=False))
            return reduce(np.logical_and, equals)
        found = np.ones(rows.num_rows, bool)
        for bound, beyond in ((self.low, pc.greater), (self.high, pc.less)):
            if bound is None:
                continue
            passes, equal = np.zeros(rows.num_rows, bool), np.ones(rows.num_rows, bool)
            for name, value in zip(self.names, bound, strict=False):
                passes |= equal & _true(beyond(rows[name], value))
                equal &= _true(pc.equal(rows[name], value))
            found &= passes | equal
        return found


@dataclass(frozen=True)
class Except:
    """Rows that do not have one whole key."""

    names: tuple[str, ...]
    key: tuple[pa.Scalar, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The key columns."""
        return self.names

    def overlapping(self, bounds: Bounds, count: int) -> NDArray[np.bool_]:  # noqa: ARG002  # a protocol's
        """Return true for all."""
        return np.ones(count, bool)

    def matching(self, rows: pa.Table) -> NDArray[np.bool_]:
        """Return whether each row has another key."""
        return ~Between(self.names, self.key, self.key).matching(rows)


@dataclass(frozen=True)
class StartsWith:
    """Rows whose first key column is text that starts with some text."""

    name: str
    text: str

    @property
    def columns(self) -> tuple[str, ...]:
        """The column."""
        return (self.name,)

    def overlapping(self, bounds: Bounds, count: int) -> NDArray[np.bool_]:
        """Return whether each may have text that starts so. UTF-8 orders text as its characters are numbered."""
        least, greatest = bounds[self.name]
        start = pc.utf8_slice_codeunits(least, 0, len(self.text))
        text = pa.scalar(self.text)
        found = _or_unknown(pc.greater_equal(greatest, text)) & _or_unknown(pc.less_equal(start, text))
        return found[:count]

    def matching(self, rows: pa.Table) -> NDArray[np.bool_]:
        """Return whether the text of each row starts so."""
        return _true(pc.starts_with(rows[self.name], self.text))


@dataclass(frozen=True)
class Among:
    """Rows that have one of several keys. `keys` has a column for each key column, and a row for each key, once."""

    keys: pa.Table

    @property
    def columns(self) -> tuple[str, ...]:
        """The key columns."""
        return tuple(self.keys.column_names)

    def overlapping(self, bounds: Bounds, count: int) -> NDArray[np.bool_]:
        """Return whether the first column of a key lies between the bounds of each."""
        name = self.columns[0]
        first = self.keys[name].sort()
        least, greatest = bounds[name]
        found = np.zeros(count, bool)
        for number in range(count):
            low, high = least[number], greatest[number]
            if not low.is_valid or not high.is_valid:
                found[number] = True
                continue
            place = int(pc.sum(pc.less(first, low)).as_py() or 0)  # of the first key that is not below the least value
            found[number] = place < len(first) and pc.less_equal(first[place], high).as_py()
        return found

    def matching(self, rows: pa.Table) -> NDArray[np.bool_]:
        """Return whether each row has one of the keys."""
        found = reduce(np.logical_and, (_true(pc.is_in(rows[n], self.keys[n].combine_chunks())) for n in self.columns))
        if len(self.columns) == 1 or not found.any():
            return found
        places = np.flatnonzero(found)
        candidates = rows.select(self.columns).take(pa.array(places)).append_column("_place", pa.array(places))
        exact = candidates.join(self.keys, list(self.columns), join_type="left semi")["_place"].to_pylist()
        found[:] = False
        found[exact] = True
        return found


@dataclass(frozen=True)
class All:
    """Rows that meet several conditions."""

    parts: Sequence[Condition]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of all of them."""
        return tuple(dict.fromkeys(name for part in self.parts for name in part.columns))

    def overlapping(self, bounds: Bounds, count: int) -> NDArray[np.bool_]:
        """Return whether each may have rows that meet all."""
        return reduce(np.logical_and, (part.overlapping(bounds, count) for part in self.parts), np.ones(count, bool))

    def matching(self, rows: pa.Table) -> NDArray[np.bool_]:
        """Return whether each row meets all."""
        return reduce(np.logical_and, (part.matching(rows) for part in self.parts), np.ones(rows.num_rows, bool))


def flags(values: pa.Array | pa.ChunkedArray) -> NDArray[np.bool_]:
    """Return booleans without nulls. Arrow's own conversion would import pandas, which takes longer than a query."""
    chunks = values.chunks if isinstance(values, pa.ChunkedArray) else [values]
    return np.concatenate([np.empty(0, bool), *map(_flags, chunks)])


def _flags(values: pa.Array) -> NDArray[np.bool_]:
    if values.true_count == 0:  # as in nearly every row group where a key is looked up
        return np.zeros(len(values), bool)
    start, shift = divmod(values.offset, 8)
    bits = np.frombuffer(values.buffers()[1], np.uint8, offset=start)
    return np.unpackbits(bits, count=shift + len(values), bitorder="little")[shift:].view(bool)


def _true(values: pa.ChunkedArray) -> NDArray[np.bool_]:
    """Return booleans; null is false."""
    return flags(values if values.null_count == 0 else pc.fill_null(values, False))


def _or_unknown(values: pa.Array) -> NDArray[np.bool_]:
    """Return booleans; null, of a bound that is not known, is true."""
    return flags(pc.fill_null(values, True))
