"""Random small worlds, many in one frame: a `world` column in front of every key keeps them apart."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from spark.topology.nodes import Column, Scan

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame, SparkSession

KEYS = range(4)
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
    """Stored tables before and after a span, and a landing with its records and how many of them are new."""

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
        offsets = dict.fromkeys(range(3), 0)
        for batch in (1, 2, 3):
            for _ in range(rng.randrange(5)):
                partition = rng.randrange(3)
                offsets[partition] += 1
                records.append(_record(rng, world, partition, offsets[partition], batch))
    return World(before, after, records)


def _maybe_row(rng: random.Random, world: int, k: int) -> Row | None:
    if rng.random() < 0.35:
        return None
    f = rng.choice([None, *KEYS, 9])  # 9: nobody has this key
    return (world, k, f, rng.choice([None, 0, 1, 2]), _at(rng), "t", rng.randrange(2), rng.randrange(100))


def _record(rng: random.Random, world: int, partition: int, offset: int, batch: int) -> Row:
    k = rng.choice([None, *KEYS])
    error = "does not decode" if rng.random() < 0.1 else None
    values = (None, None) if rng.random() < 0.3 else (rng.choice([None, *KEYS]), rng.randrange(3))
    deleted = values == (None, None)
    return (world, k, *values, _at(rng), "t", partition, offset, deleted, error, batch)


def _at(rng: random.Random) -> object:
    return rng.choice([None, *(datetime(2026, 1, 1, 0, 0, second) for second in range(5))])


@dataclass(frozen=True)
class Frames:
    """A snapshot in memory: the operators' `Snapshot`."""

    session: SparkSession
    rows: dict[str, Rows]
    records: list[Row]

    def stored(self, scan: Scan) -> DataFrame:
        """All rows, or all records."""
        if scan.table.startswith("_landing/"):
            return self.session.createDataFrame(self.records, RECORDS)
        return self.session.createDataFrame(list(self.rows[scan.table].values()), SCHEMA)


@dataclass(frozen=True)
class Moves:
    """A span in memory: the operators' `Span`. Also names a few keys that did not change, as a real feed may."""

    before: Frames
    after: Frames
    still: frozenset[str]
    few: bool

    def keep(self, frame: DataFrame) -> DataFrame:
        """Computed as often as it is read."""
        return frame

    def moved(self, scan: Scan) -> bool:
        """Whether the input takes part in the span."""
        return scan.table not in self.still

    def changes(self, scan: Scan) -> DataFrame:
        """The changed keys, each with its new row or its absence."""
        old, new = self.before.rows[scan.table], self.after.rows[scan.table]
        keys = [key for key in {**old, **new} if old.get(key) != new.get(key) or sum(key) % 5 == 0]
        rows = [(*new[key], True) if key in new else (*key, *([None] * 6), False) for key in keys]
        return self.after.session.createDataFrame(rows, f"{SCHEMA}, _present boolean")

    def records(self, scan: Scan) -> DataFrame:
        """The records of the later batches."""
        return self.after.stored(scan).where(F.col("_batch") > 1)
