"""Random small worlds, many in one frame: a `world` column in front of every key keeps them apart."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from spark.operators.order import with_reached
from spark.topology.columns import Column
from spark.topology.nodes import Node, Scan

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql import Row as SparkRow

KEYS = range(4)
TOPICS = ("l", "m")  # of the two landings
COLUMNS = (Column("world", "int"), Column("k", "int"), Column("f", "int"), Column("v", "int"))
OURS = "_timestamp timestamp, _topic string, _partition int, _offset bigint"
SCHEMA = f"world int, k int, f int, v int, {OURS}"
RECORDS = f"{SCHEMA}, _deleted boolean, _error string, _batch bigint"

Row = tuple[object, ...]
Rows = dict[tuple[int, int], Row]


def table(name: str) -> Scan:
    """A stored table of (world, k) with a foreign key f and a value v."""
    return Scan(name, ("world", "k"), COLUMNS)


@dataclass(frozen=True)
class World:
    """Stored tables before and after a span, and the records of two landings, by their batch old or new."""

    before: dict[str, Rows]
    after: dict[str, Rows]
    records: list[Row]


def worlds(seed: int, count: int, names: Iterable[str]) -> World:
    """`count` independent worlds, as rows of the same tables."""
    rng = random.Random(seed)
    before: dict[str, Rows] = {name: {} for name in names}
    after: dict[str, Rows] = {name: {} for name in before}
    records: list[Row] = []
    for world in range(count):
        for name in before:
            still = rng.random() < 0.3  # an input that does not move in this world
            for k in KEYS:
                old, new = _maybe_row(rng, world, k), _maybe_row(rng, world, k)
                if still or rng.random() < 0.5:
                    new = old
                if old is not None:
                    before[name][world, k] = old
                if new is not None:
                    after[name][world, k] = new
        offsets: Counter[tuple[str, int]] = Counter()
        for batch in (1, 2, 3):
            for _ in range(rng.randrange(9)):
                place = rng.choice(TOPICS), rng.randrange(3)
                offsets[place] += 1
                records.append(_record(rng, world, *place, offsets[place], batch))
    return World(before, after, records)


def _maybe_row(rng: random.Random, world: int, k: int) -> Row | None:
    if rng.random() < 0.35:
        return None
    f = rng.choice([None, *KEYS, 9])  # 9: nobody has this key
    return (world, k, f, rng.choice([None, 0, 1, 2]), _at(rng), "t", rng.randrange(2), rng.randrange(100))


def _record(rng: random.Random, world: int, topic: str, partition: int, offset: int, batch: int) -> Row:
    k = rng.choice([None, *KEYS])
    error = "does not decode" if rng.random() < 0.1 else None
    values = (None, None) if rng.random() < 0.3 else (rng.choice([None, *KEYS]), rng.randrange(3))
    deleted = values == (None, None)
    return (world, k, *values, _at(rng), topic, partition, offset, deleted, error, batch)


def _at(rng: random.Random) -> object:
    return rng.choice([None, *(datetime(2026, 1, 1, 0, 0, second) for second in range(5))])


@dataclass(frozen=True)
class Frames:
    """A snapshot in memory: the operators' `Snapshot`."""

    session: SparkSession
    rows: dict[str, Rows]
    landed: list[Row]

    def stored(self, scan: Scan) -> DataFrame:
        """All rows, or all records."""
        if scan.table.startswith("_landing/"):
            topic = scan.table.removeprefix("_landing/")
            return self.session.createDataFrame([record for record in self.landed if record[5] == topic], RECORDS)
        return self.session.createDataFrame(list(self.rows[scan.table].values()), SCHEMA)

    def records(self, scan: Scan) -> DataFrame:
        """All records of a landing that were decoded; what tables changed is no matter of a snapshot."""
        return self.decoded(scan).withColumn("_reached", F.lit(None).cast("bigint"))

    def time(self, scan: Scan) -> None:  # the protocol's
        """Nothing drawn keeps time."""

    def decoded(self, scan: Scan) -> DataFrame:
        """The records of a landing but those that did not decode."""
        return self.stored(scan).where("_error IS NULL").withColumn("_ordinal", F.lit(0).cast("bigint"))


@dataclass(frozen=True)
class Moves:
    """A span in memory: the operators' `Span`. Also names a few keys that did not change, as a real feed may."""

    before: Frames
    after: Frames
    still: frozenset[str]
    is_small: bool
    own: DataFrame
    time_before: int | None = None
    time_after: int | None = None
    seen: Mapping[str, int] = field(default_factory=dict)
    apart: tuple[str, ...] = ()

    def keep(self, frame: DataFrame) -> DataFrame:
        """Computed as often as it is read."""
        return frame

    def is_empty(self, frame: DataFrame) -> bool:
        """Whether a frame has no rows, if it was kept."""
        return self.is_small and frame.isEmpty()

    def few(self, keys: DataFrame, node: Node) -> Sequence[SparkRow] | None:  # noqa: ARG002
        """As if each table were large."""
        return keys.collect() if self.is_small else None

    def has_changes(self, scan: Scan) -> bool:
        """Whether the input takes part in the span."""
        return scan.table not in self.still

    def changes(self, scan: Scan) -> DataFrame:
        """The changed keys, each with its new row or its absence."""
        new = self.after.rows[scan.table]
        keys = self._keys(scan)
        rows = [(*new[key], True) if key in new else (*key, *([None] * 6), False) for key in keys]
        return self.after.session.createDataFrame(rows, f"{SCHEMA}, _present boolean")

    def previous(self, scan: Scan) -> DataFrame:
        """The rows that were at the keys that `changes` names."""
        old = self.before.rows[scan.table]
        return self.after.session.createDataFrame([old[key] for key in self._keys(scan) if key in old], SCHEMA)

    def _keys(self, scan: Scan) -> list[tuple[int, int]]:
        old, new = self.before.rows[scan.table], self.after.rows[scan.table]
        return [key for key in {**old, **new} if old.get(key) != new.get(key) or sum(key) % 5 == 0]

    def records(self, scan: Scan) -> DataFrame:
        """The records of the later batches."""
        return with_reached(self.after.decoded(scan).where(F.col("_batch") > 1))

    def overlapping_records(self, scan: Scan) -> DataFrame | None:  # noqa: ARG002  # the protocol's
        """A batch is taken whole."""
        return None
