"""The data files of a version, and the rows in them that meet a condition.

A file is found by the statistics of the log, a row group by those of Parquet, and a row by the key columns of the row
group; then the other columns of that row group are read. A reader keeps what it decoded: footers, and columns of row
groups up to a number of bytes. Files never change under their name, so this holds for every version that has the file.
The many small files that steps write are kept together as one table in memory: one search instead of a thousand.
"""

from __future__ import annotations

import datetime as dt
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # has no types of its own
import pyarrow.compute as pc  # type: ignore[import-untyped]  # as above
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # as above
from deltalake.exceptions import DeltaError

from spark.engine.log import delta_log
from spark.query import deadline
from spark.query.conditions import Everything, flags
from spark.query.errors import VersionGone

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from deltalake import DeltaTable
    from numpy.typing import NDArray

    from spark.query.conditions import Condition
    from spark.query.deletion_vectors import Numbers

CACHE = 256 << 20
"""Bytes of decoded columns that a reader keeps by default: some ten million values."""
SMALL = 10_000  # rows of a file that is kept in memory whole: what a step writes, not what a compaction does
SMALL_BYTES = 64 << 20  # of all small files of a table that are kept in memory, as stored; others are read when needed
FOOTERS = 20_000  # of files, at most, in a reader
MILLISECOND = pa.scalar(1, pa.duration("ms"))
NONE = np.empty(0, np.int64)


@dataclass(frozen=True)
class _Footer:
    metadata: pq.FileMetaData
    schema: pa.Schema
    bounds: dict[str, tuple[pa.Array, pa.Array]] = field(default_factory=dict)


class FileCache:
    """What a reader keeps of the files that it opened: footers, and columns of row groups. Threads share it."""

    def __init__(self, size: int = CACHE) -> None:
        self.size = size
        self._footers: OrderedDict[str, _Footer] = OrderedDict()
        self._columns: OrderedDict[tuple[str, int, str], pa.ChunkedArray] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    def footer(self, root: str, name: str) -> _Footer:
        """Return the footer of a file.

        Raises:
            FileNotFoundError: the file was removed.
        """
        path = f"{root}/{name}"
        with self._lock:
            if path in self._footers:
                self._footers.move_to_end(path)
                return self._footers[path]
        with _opened(root, name) as file:
            found = _Footer(file.metadata, file.schema_arrow)
        with self._lock:
            self._footers[path] = found
            if len(self._footers) > FOOTERS:
                self._footers.popitem(last=False)
        return found

    def bounds(self, root: str, name: str, column: pa.Field) -> tuple[pa.Array, pa.Array]:
        """Return the least and the greatest value of a column in each row group of a file, null where not known."""
        footer = self.footer(root, name)
        if column.name not in footer.bounds:
            footer.bounds[column.name] = _group_bounds(footer.metadata, column)
        return footer.bounds[column.name]

    def columns(self, root: str, name: str, group: int, schema: pa.Schema, keep: bool = True) -> pa.Table:
        """Return columns of a row group, with the names and types of `schema`; null in those that the file lacks.

        Raises:
            FileNotFoundError: the file was removed.
        """
        path, found, missing = f"{root}/{name}", {}, []
        with self._lock:
            for one in schema.names:
                if (path, group, one) in self._columns:
                    self._columns.move_to_end((path, group, one))
                    found[one] = self._columns[path, group, one]
                else:
                    missing.append(one)
        if missing:
            footer = self.footer(root, name)
            there = [one for one in missing if one in footer.schema.names]
            count = footer.metadata.row_group(group).num_rows
            with _opened(root, name, footer.metadata) as file:
                read = file.read_row_group(group, columns=there) if there else None
            for one in missing:
                kind = schema.field(one).type
                if read is None or one not in there:
                    found[one] = pa.chunked_array([pa.nulls(count, kind)])
                    continue
                found[one] = read[one] if read[one].type == kind else read[one].cast(kind)
                if keep:
                    self._keep((path, group, one), found[one])
        return pa.table([found[one] for one in schema.names], schema=schema)

    def _keep(self, place: tuple[str, int, str], column: pa.ChunkedArray) -> None:
        with self._lock:
            if place not in self._columns:
                self._columns[place] = column
                self._bytes += column.get_total_buffer_size()
            while self._bytes > self.size:
                _, dropped = self._columns.popitem(last=False)
                self._bytes -= dropped.get_total_buffer_size()


@dataclass
class _Small:
    """The live rows of the small files of a version, by file; `searched` counts the queries so far."""

    pieces: dict[str, tuple[Numbers, pa.Table]] = field(default_factory=dict)
    whole: pa.Table | None = None
    searched: int = 0
    lock: Lock = field(default_factory=Lock)


@dataclass(frozen=True)
class Files:
    """The data files of one version of a table.

    `rows` has their numbers of rows, deleted ones included, `sizes` their bytes, and `deleted`, by name, the numbers of
    the deleted rows, ascending. `bounds` are those of the log.
    """

    table: str
    root: str
    version: int
    schema: pa.Schema
    names: tuple[str, ...]
    rows: tuple[int | None, ...]
    sizes: tuple[int, ...]
    deleted: Mapping[str, Numbers]
    bounds: Mapping[str, tuple[pa.Array, pa.Array]]
    cache: FileCache = field(repr=False)
    small: _Small = field(default_factory=_Small, repr=False)

    @staticmethod
    def of(table: str, root: str, delta: DeltaTable, cache: FileCache, before: Files | None = None) -> Files:
        """Return the files of a loaded version. Rows of small files that `before` has are kept.

        Raises:
            VersionGone: VACUUM removed a deletion vector of the version.
        """
        with _Vacuumed(table, delta.version()):
            vectors = _read_all(delta.deletion_vectors())
        added = _read_all(delta.get_add_actions())
        schema = pa.schema(delta.schema().to_arrow())
        names = tuple(added["path"].to_pylist())
        by_base = {name.rpartition("/")[2]: name for name in names}
        deleted = {
            by_base[uri.rpartition("/")[2]]: np.flatnonzero(~flags(vector))
            for uri, vector in zip(vectors["filepath"].to_pylist(), _each(vectors["selection_vector"]), strict=True)
        }
        counts, sizes = tuple(added["num_records"].to_pylist()), tuple(added["size_bytes"].to_pylist())
        bounds = {one.name: _file_bounds(added, one) for one in schema}
        found = Files(table, root, delta.version(), schema, names, counts, sizes, deleted, bounds, cache)
        if before is not None and before.schema == schema:
            found.small.pieces.update(before.small.pieces)
            found.small.searched = before.small.searched
        return found

    def select(self, condition: Condition, columns: Sequence[str], limit: int | None = None) -> pa.Table:
        """Return the rows that meet a condition, in no order: at most `limit`, if given.

        Raises:
            VersionGone: VACUUM removed a file of this version.
        """
        schema = pa.schema([self.schema.field(name) for name in columns])
        found, count = [schema.empty_table()], 0
        for piece in self._found(condition, schema):
            found.append(piece)
            count += piece.num_rows
            if limit is not None and count >= limit:
                break
        return pa.concat_tables(found) if limit is None else pa.concat_tables(found).slice(0, limit)

    def count(self) -> int:
        """Return the number of rows: those in the files, without the deleted ones."""
        return sum(map(self._count, self.names, self.rows)) - sum(map(len, self.deleted.values()))

    def places(self, name: str, condition: Condition, columns: Sequence[str]) -> tuple[Numbers, pa.Table]:
        """Return the numbers of the rows of a file that meet a condition, deleted or not, and these rows.

        Raises:
            VersionGone: VACUUM removed the file.
        """
        schema = pa.schema([self.schema.field(one) for one in columns])
        whole = replace(self, deleted={})
        numbered = list(whole._numbered(name, condition, schema))
        numbers = [each for each, _ in numbered]
        return np.concatenate([NONE, *numbers]), pa.concat_tables(
            [schema.empty_table(), *(rows for _, rows in numbered)]
        )

    def bytes_of(self, name: str, start: int, count: int) -> bytes:
        """Return bytes of a file of the table.

        Raises:
            FileNotFoundError: there is no such file.
        """
        if "://" in self.root:
            file = delta_log.store(self.root).open_input_file(name)
            file.seek(start)
            return bytes(file.read(count))
        with open(f"{self.root}/{name}", "rb") as local:
            local.seek(start)
            return local.read(count)

    def _count(self, name: str, rows: int | None) -> int:
        return rows if rows is not None else int(self._footer(name).metadata.num_rows)

    def _found(self, condition: Condition, schema: pa.Schema) -> Iterator[pa.Table]:
        together = self._together()
        if together is not None:
            in_memory, pieces = together
            matching = condition.matching(pieces.select(condition.columns))
            if matching.any():
                yield pieces.select(schema.names).take(pa.array(np.flatnonzero(matching))).cast(schema)
        else:
            in_memory = set()
        bounds = {name: self.bounds[name] for name in condition.columns}
        for place in np.flatnonzero(condition.overlapping(bounds, len(self.names))):
            if self.names[place] not in in_memory:
                yield from self._found_in(self.names[place], condition, schema)

    def _found_in(self, name: str, condition: Condition, schema: pa.Schema) -> Iterator[pa.Table]:
        return (rows for _, rows in self._numbered(name, condition, schema))

    def _numbered(self, name: str, condition: Condition, schema: pa.Schema) -> Iterator[tuple[Numbers, pa.Table]]:
        """Yield the rows of a file that meet a condition, with their numbers, a row group at a time."""
        decide = pa.schema([self.schema.field(one) for one in condition.columns])
        keep = not isinstance(condition, Everything)
        metadata = self._footer(name).metadata
        starts = np.cumsum([0, *(metadata.row_group(group).num_rows for group in range(metadata.num_row_groups))])
        bounds = {one.name: self.cache.bounds(self.root, name, one) for one in decide}
        deleted = self.deleted.get(name, NONE)
        for group in np.flatnonzero(condition.overlapping(bounds, metadata.num_row_groups)):
            deadline.check(self.table)
            count = int(starts[group + 1] - starts[group])
            wanted = np.ones(count, bool)
            if condition.columns:
                wanted = condition.matching(self._read(name, int(group), decide, keep))
            if not wanted.any():
                continue
            places = np.flatnonzero(wanted & _alive(int(starts[group]), count, deleted))
            if len(places):
                rows = self._read(name, int(group), schema, keep)
                yield places + starts[group], rows if len(places) == count else rows.take(pa.array(places))

    def _together(self) -> tuple[set[str], pa.Table] | None:
        """Return the names of the small files, and their live rows; None in the first query, maybe the only one."""
        with self.small.lock:
            self.small.searched += 1
            if self.small.searched < 2:
                return None
            if self.small.whole is None:
                pieces, size = {}, 0
                for name, rows, length in zip(self.names, self.rows, self.sizes, strict=True):
                    if rows is None or rows > SMALL or size + length > SMALL_BYTES:
                        continue
                    size += length
                    pieces[name] = self._piece(name)
                self.small.pieces.clear()
                self.small.pieces.update(pieces)
                tables = [piece for _, piece in pieces.values()]
                self.small.whole = pa.concat_tables([self.schema.empty_table(), *tables]).combine_chunks()
            return set(self.small.pieces), self.small.whole

    def _piece(self, name: str) -> tuple[Numbers, pa.Table]:
        """Return the numbers of the deleted rows of a small file, and its live rows."""
        deadline.check(self.table)
        deleted = self.deleted.get(name, NONE)
        known = self.small.pieces.get(name)
        if known is not None and np.array_equal(known[0], deleted):
            return known
        metadata = self._footer(name).metadata
        groups = [self._read(name, group, self.schema, keep=False) for group in range(metadata.num_row_groups)]
        rows = pa.concat_tables([self.schema.empty_table(), *groups])
        alive = np.flatnonzero(_alive(0, rows.num_rows, deleted))
        return deleted, rows if len(alive) == rows.num_rows else rows.take(pa.array(alive))

    def _footer(self, name: str) -> _Footer:
        with self._readable():
            return self.cache.footer(self.root, name)

    def _read(self, name: str, group: int, schema: pa.Schema, keep: bool) -> pa.Table:
        with self._readable():
            return self.cache.columns(self.root, name, group, schema, keep)

    def _readable(self) -> _Vacuumed:
        return _Vacuumed(self.table, self.version)


@dataclass(frozen=True)
class _Vacuumed:
    """Raises a missing file as `VersionGone`."""

    table: str
    version: int

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        # deltalake has no class for a missing deletion vector.
        if isinstance(error, FileNotFoundError) or (isinstance(error, DeltaError) and "not found" in str(error)):
            raise VersionGone(
                f"{self.table}: VACUUM removed files of version {self.version}, which this reader is pinned to. Call "
                f"refresh() to read the newest version; a version is readable for delta.deletedFileRetentionDuration "
                f"(a week) after it was replaced"
            ) from error


def _opened(root: str, name: str, metadata: pq.FileMetaData | None = None) -> pq.ParquetFile:
    # Older files of Spark may have times as INT96, in nanoseconds: these end with the year 2262.
    options: dict[str, Any] = {"metadata": metadata, "coerce_int96_timestamp_unit": "us"}
    if "://" in root:
        return pq.ParquetFile(delta_log.store(root).open_input_file(name), **options)
    return pq.ParquetFile(f"{root}/{name}", memory_map=True, **options)


def _alive(start: int, count: int, deleted: Numbers) -> NDArray[np.bool_]:
    """Return for `count` rows of a file from `start` on whether each is alive."""
    alive = np.ones(count, bool)
    if len(deleted):
        first, last = np.searchsorted(deleted, [start, start + count])
        alive[deleted[first:last] - start] = False
    return alive


def _read_all(stream: object) -> pa.Table:
    """Return what deltalake exports. `pa.table` would import pandas, which takes longer than a query."""
    return pa.RecordBatchReader.from_stream(stream).read_all()


def _each(lists: pa.ChunkedArray) -> Iterable[pa.Array]:
    return (one.values for one in lists)


def _file_bounds(added: pa.Table, column: pa.Field) -> tuple[pa.Array, pa.Array]:
    """Return what the log says of the least and greatest values of a column in each file, null where it does not.

    Not of numbers that JSON may round. Times are rounded down to milliseconds.
    """
    kind = column.type
    exact = pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_temporal(kind)
    found = []
    for name in ("min", "max"):
        structs = added[name].combine_chunks() if name in added.column_names and exact else None
        if structs is None or structs.type.get_field_index(column.name) < 0:
            return pa.nulls(added.num_rows, kind), pa.nulls(added.num_rows, kind)
        found.append(structs.field(column.name).cast(kind))
    low, high = found
    return low, pc.add(high, MILLISECOND).cast(kind) if pa.types.is_timestamp(kind) else high


def _group_bounds(metadata: pq.FileMetaData, column: pa.Field) -> tuple[pa.Array, pa.Array]:
    """Return the least and the greatest value of a column in each row group, null where Parquet does not say."""
    types = next((python for is_kind, python in _EXACT if is_kind(column.type)), None)
    place = next((at for at in range(metadata.num_columns) if metadata.schema.column(at).path == column.name), None)
    low: list[object] = [None] * metadata.num_row_groups
    high = list(low)
    if types is not None and place is not None:
        for group in range(metadata.num_row_groups):
            known = metadata.row_group(group).column(place).statistics
            if known is not None and known.has_min_max and isinstance(known.min, types):
                low[group], high[group] = known.min, known.max
    return pa.array(low, column.type), pa.array(high, column.type)


_EXACT: tuple[tuple[Any, type], ...] = (
    (pa.types.is_integer, int),
    (pa.types.is_string, str),
    (pa.types.is_date, dt.date),
)
"""Types of Parquet's statistics that pyarrow returns as they are, and their types in Python."""
