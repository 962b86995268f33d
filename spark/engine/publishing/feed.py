"""The change feed of a stored table, encoded as its topic has it, and what of it the topic lacks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Protocol

from pyspark.errors import PySparkException
from pyspark.sql import Window
from pyspark.sql import functions as F

from spark.engine.advance import identity
from spark.engine.attempt import changes_lost, message
from spark.engine.errors import ColumnRefused, InputChanged, PlanChanged
from spark.engine.inputs.snapshot import feed, inserted, version_of
from spark.operators.algebra import col, cols
from spark.operators.order import micros
from spark.serdes.serde import encoder
from spark.topology.columns import WINDOW_BOUNDS, Column
from spark.topology.errors import Place, TopologyError
from spark.topology.formats import HEADERS, WRITTEN_BY_TYPE
from spark.topology.produced import check_published
from spark.topology.sql.widening import is_wider

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType

    from spark.engine.inputs.frame_cache import FrameCache
    from spark.engine.log.stored_table import ChangedVersion, StoredTable
    from spark.engine.publishing.position import PublishedPosition
    from spark.serdes.part import Part
    from spark.serdes.schemas import Writing
    from spark.topology.topology import Table

PAGE = 100_000  # rows fetched at once: the result of a query is in the engine's memory until it is fetched

WritingOf = Callable[["Part", tuple[Column, ...]], "Writing | None"]
"""The schema by which a part with some columns is written; None for a format without a registry."""

Pages = Callable[[], list["DataFrame"]]
"""Computes frames of (version, key, value, timestamp in milliseconds), ordered, to be fetched one after the other."""


class Registered(Protocol):
    """The schemas of a topic in a registry."""

    def registered(self, part: Part, columns: tuple[Column, ...]) -> Writing | None:
        """Return the schema of what is sent."""

    def compared(self, part: Part, columns: tuple[Column, ...]) -> Writing | None:
        """Return the schema of what is only compared with what is sent."""


@dataclass(frozen=True)
class Feed:
    """The changes of a stored table, by version, up to the version `newest`.

    With `at_once` several versions that a topic lacks are one change: the earlier ones may have had nulls for values
    that were unknown then. `written` are the schemas of a topic whose records name them.
    """

    cache: FrameCache
    table: StoredTable
    target: Table
    newest: int
    at_once: bool = False
    written: Registered | None = None

    def register(self) -> None:
        """Register the schemas of the present columns, so that a registry that refuses them does before a record."""
        self._encoded(self._at(self.newest), self.newest, F.lit(True))

    def missing(self, sent: PublishedPosition | None, until: int) -> Iterator[tuple[Pages, bool]]:
        """Yield what a topic lacks, in order: pages, and whether they have all rows of a version, not only changes."""
        begins = sent is None or (sent.whole and not sent.done)
        version = until if sent is None else sent.version
        changed = self._changed(version if sent is None or begins or sent.done else version - 1)
        if begins:
            yield partial(self._all, version), True
        replaced = max((one.version for one in changed if one.replaced), default=0)
        for other in (one.version for one in changed if one.version <= min(replaced, until)):
            begun = sent is not None and not sent.done and sent.version == other
            yield partial(self._replacing, other, begun), False
        later = [one for one in changed if replaced < one.version <= until]
        if self.at_once and not self.target.plan.is_stream and sent is not None and len(later) > 1:
            # The rest of a version that the topic has a part of is sent as it began.
            if not sent.done and later[0].version == sent.version:
                yield partial(self._changed_rows, later[:1]), False
            yield partial(self._between, max(sent.version, replaced), later[-1].version), False
        elif later:
            yield partial(self._changed_rows, later), False

    def has_other(self, key: bytes, version: int) -> bool:
        """Return whether a key, encoded as in the topic, has another row than at a version, or none."""
        was, now = (
            self._encoded(self._at(at), at, F.lit(True), sent=False)
            .where(F.col("_row.key") == F.lit(key))
            .select("_row")
            for at in (version, self.newest)
        )
        return was.collect() != now.collect()

    def _all(self, version: int) -> list[DataFrame]:
        return self._paged(ordered(self.target, self._encoded(self._at(version), version, F.lit(True))))

    def _replacing(self, version: int, begun: bool) -> list[DataFrame]:
        return self._paged(ordered(self.target, net(self.target, self._difference(version, begun))))

    def _between(self, since: int, until: int) -> list[DataFrame]:
        now = self._encoded(self._at(until), until, F.lit(True))  # first: see `_difference`
        was = self._encoded(self._at(since), until, F.lit(False), sent=False)
        return self._paged(ordered(self.target, net(self.target, was.unionByName(now))))

    def _changed_rows(self, versions: list[ChangedVersion]) -> list[DataFrame]:
        rows = ordered(self.target, self._changes(versions))
        few = sum(PAGE if one.rows is None else one.rows for one in versions) < PAGE
        return [rows] if few else self._paged(rows)

    def _changes(self, versions: list[ChangedVersion]) -> DataFrame:
        """Return one row for every key and version that changed it, as `net` does."""
        changes = feed(self.cache.session, self.table, versions[0].version, versions[-1].version)
        return net(self.target, self._encoded(changes, F.col("_commit_version"), inserted()))

    def _changed(self, since: int) -> list[ChangedVersion]:
        try:
            return self.table.changed_versions(since, self.newest)[::-1]
        except InputChanged as error:
            raise InputChanged(
                f"the log of {self.table.name} was cleaned up behind version {since}, which is all that topic "
                f"{self.target.topic} has. {remedy(self.target)}"
            ) from error

    def _at(self, version: int) -> DataFrame:
        return version_of(self.cache.session, self.table.path, version)

    def _difference(self, version: int, begun: bool) -> DataFrame:
        """Return all rows before a version and all rows at it, encoded, from which `_net` finds the changes.

        If the topic has a part of the version (`begun`), the rows have the columns of that version, not the present
        ones: with other columns, other rows would differ.
        """
        before, after, key = self._at(version - 1), self._at(version), self.target.plan.key
        types = [[dict(frame.dtypes).get(name) for name in key] for frame in (before, after)]
        if types[0] != types[1]:
            raise PlanChanged(
                f"version {version} of {self.table.name} replaced its key, {', '.join(key)}, and topic "
                f"{self.target.topic} has records of the former one. {remedy(self.target)}"
            )
        own = _own_columns(after.schema) if begun else None
        # First what is sent: what is compared with it has the ids of its schemas, which are a part of the bytes.
        now = self._encoded(after, version, F.lit(True), own)
        return self._encoded(before, version, F.lit(False), own, sent=False).unionByName(now)

    @cached_property
    def _columns(self) -> dict[str, DataType | str] | None:
        """The present columns, type by name, for schemas; None without these."""
        if self.written is None:
            return None
        types = dict(self._at(self.newest).dtypes)
        return {column.name: column.type or types[column.name] for column in self.target.plan.columns}

    def _encoded(
        self,
        rows: DataFrame,
        version: Expression | int,
        new: Expression,
        columns: Mapping[str, DataType | str] | None = None,
        *,
        sent: bool = True,
    ) -> DataFrame:
        """Return rows encoded as in the topic: see `encoded`. If not `sent`, they are only compared with such rows."""
        writing: WritingOf = _no_schema
        if self.written is not None:
            writing = self.written.registered if sent else self.written.compared
        return encoded(self.target, rows, version, new, columns or self._columns, writing)

    def _paged(self, rows: DataFrame) -> list[DataFrame]:
        """Compute ordered rows once, and return them as frames of at most `PAGE` rows each."""
        numbered = self.cache.cache(rows.withColumn("_number", F.monotonically_increasing_id()))
        number = F.col("_number")  # grows in order; its upper bits are the partition, in which it begins at 0
        parts = numbered.groupBy(F.shiftright(number, 33)).agg(F.min(number), F.max(number)).collect()
        pages: list[tuple[int, int]] = []
        room = 0
        for _, begin, last in sorted(parts):
            while begin <= last:
                first, room = (begin, PAGE) if room == 0 else (pages.pop()[0], room)
                until = min(last, begin + room - 1)
                pages.append((first, until))
                begin, room = until + 1, room - (until - begin + 1)
        return [numbered.where(number.between(*page)).orderBy(number).drop("_number") for page in pages]


def _no_schema(part: Part, columns: tuple[Column, ...]) -> None:
    """Return no schema: the topic's records name none."""


def encoded(
    target: Table,
    rows: DataFrame,
    version: Expression | int,
    new: Expression,
    columns: Mapping[str, DataType | str] | None = None,
    writing: WritingOf = _no_schema,
) -> DataFrame:
    """Return rows of a table encoded as in its topic.

    Columns: `_version`; `_new`, true for a row after the change of the version, false for one before; `_row`, a
    struct of `key`, `value`, `at` (milliseconds since 1970) and `headers` (if they are published); the table's
    identity; for a stream `_batch` and `_reached`. `columns` (type by name) replace the present columns of the plan.
    `writing` gives the schemas by which key and value are written. A column of rows from before it was widened is
    written by the wider type, so that its values are no changes.
    """
    plan = target.plan
    columns = columns or {column.name: column.type or "string" for column in plan.columns}
    produced = target.produced
    values = tuple(name for name in columns if name not in (*plan.key, produced.headers))
    at = F.when(F.unix_millis("_timestamp") >= 0, F.unix_millis("_timestamp"))  # Kafka has no time before 1970
    # A version from before the table gained a column lacks it.
    later = {name: F.lit(None).cast(kind) for name, kind in columns.items() if name not in rows.columns}
    rows = rows.withColumns({"_version": F.lit(version).cast("bigint"), "_new": new, **later})
    held: dict[str, Column] = {}
    if not WRITTEN_BY_TYPE.isdisjoint((produced.format, produced.key_format)) or produced.headers is not None:
        # Of some expressions only Spark knows the type.
        types, place = dict(rows.dtypes), Place(f"{target.name} to topic {target.topic}", target.line)
        by_schema = produced.needs_registry
        kinds = {name: _wider(types[name], kind) if by_schema else types[name] for name, kind in columns.items()}
        held = {name: Column(name, kind) for name, kind in kinds.items()}
        check_published(produced, plan.key, tuple(held.values()), place)
    of_key, of_value = (tuple(held[name] for name in names if name in held) for names in (plan.key, values))
    value = encoder(produced.format).encode_value(rows, values, writing("value", of_value))
    if plan.is_stream:
        value = F.when(~F.col("_deleted"), value)
        by_arrival = Window.partitionBy("_version", "_batch", "_topic", "_partition").orderBy("_offset", "_ordinal")
        reached = F.coalesce("_reached", micros())
        rows = rows.withColumn("_reached", F.max(reached).over(by_arrival.rowsBetween(Window.unboundedPreceding, 0)))
    key = encoder(produced.key_format).encode_key(rows, plan.key, writing("key", of_key))
    headers = [] if produced.headers is None else [col(produced.headers).alias("headers")]
    row = F.struct(key.cast("binary").alias("key"), value.cast("binary").alias("value"), at.alias("at"), *headers)
    return rows.select("_version", "_new", row.alias("_row"), *cols(identity(plan)), *_placed(target))


def _wider(stored: str, wanted: DataType | str) -> str:
    """Return the wanted type if it is wider than the stored one, which else stays as it is."""
    kind = wanted if isinstance(wanted, str) else wanted.simpleString()
    return kind if is_wider(kind, stored) else stored


def net(target: Table, changes: DataFrame) -> DataFrame:
    """Return one row for every key whose encoded row a version changed. Records of a stream are never deleted.

    `_row` is the new row, or a tombstone with the key and timestamp of the old one.
    """
    was, now = (F.max(F.when(side, F.col("_row"))) for side in (~F.col("_new"), F.col("_new")))
    grouped = changes.groupBy(*cols(("_version", *identity(target.plan))))
    found = grouped.agg(was.alias("_was"), now.alias("_now"), *(F.max(name).alias(name) for name in _placed(target)))
    found = found.where("NOT (_was <=> _now)")
    if target.plan.is_stream:
        return found.where("_now IS NOT NULL").withColumn("_row", F.col("_now"))
    headers = [] if target.produced.headers is None else [F.lit(None).cast(HEADERS).alias("headers")]
    gone = F.struct(F.col("_was.key"), F.lit(None).cast("binary").alias("value"), F.col("_was.at"), *headers)
    return found.withColumn("_row", F.coalesce("_now", gone))


def ordered(target: Table, rows: DataFrame) -> DataFrame:
    """Return rows of (version, key, value, timestamp in milliseconds), ordered by version and typed key.

    If the table is published with headers, they are a fifth column.

    Records of a stream are ordered by commit and by the time reached, as in `spark.operators.order`. A stream of a
    table's changes is ordered by the table's commits, because a row may have older coordinates than the one it
    replaced.
    """
    commits = ("_batch", "_ordinal") if target.plan.of_changes else ()
    place = dict.fromkeys((*commits, *_placed(target), *identity(target.plan)))
    headers = [] if target.produced.headers is None else ["_row.headers"]
    return rows.orderBy("_version", *cols(place)).select("_version", "_row.key", "_row.value", "_row.at", *headers)


def _placed(target: Table) -> tuple[str, ...]:
    return ("_batch", "_reached") if target.plan.is_stream else ()


def _own_columns(schema: StructType) -> dict[str, DataType | str]:
    """Return the columns of a stored table, type by name: the user's, and the bounds of windows."""
    bounds = {column.name for column in WINDOW_BOUNDS}
    return {field.name: field.dataType for field in schema if field.name in bounds or not field.name.startswith("_")}


def remedy(target: Table) -> str:
    """Return what to do about a topic that cannot go on."""
    return f'Write .to("...") with the name of a new topic at {target.line}: it begins with the whole table'


@contextmanager
def feed_errors(name: str, target: Table) -> Iterator[None]:
    """Raise errors of the engine: about expired changes, and about columns whose types only Spark knows."""
    try:
        yield
    except TopologyError as error:
        raise ColumnRefused(str(error)) from error
    except PySparkException as error:
        if not changes_lost(error):
            raise
        raise InputChanged(
            f"{name} no longer has the changes that topic {target.topic} lacks: {message(error)}\n{remedy(target)}"
        ) from error
