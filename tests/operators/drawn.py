"""Snapshots and spans of drawn tables: what the operators read, without a lake."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from spark.operators.order import with_reached
from tests.support.tables import table, with_ours

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession

    from spark.topology.nodes import Node, Scan


@dataclass(frozen=True)
class Drawn:
    """A snapshot: every input as it was drawn."""

    frames: Mapping[str, DataFrame]

    def stored(self, scan: Scan) -> DataFrame:
        """All rows, or all records."""
        return self.frames[scan.table]

    def records(self, scan: Scan) -> DataFrame:
        """All records of a landing."""
        return decoded(self.stored(scan)).withColumn("_reached", F.lit(None).cast("bigint"))

    def time(self, scan: Scan) -> None:  # the protocol's
        """Nothing drawn keeps time."""


@dataclass(frozen=True)
class DrawnSpan:
    """A span: what was drawn of its changes, and everything after it."""

    after: Drawn
    changed: Mapping[str, DataFrame]
    is_small: bool = True
    before: Drawn = field(default_factory=lambda: Drawn({}))
    time_before: int | Column | None = None
    time_after: int | Column | None = None
    seen: Mapping[str, int] = field(default_factory=dict)
    apart: tuple[str, ...] = ()

    def keep(self, frame: DataFrame) -> DataFrame:
        """Computed as often as it is read."""
        return frame

    @property
    def own(self) -> DataFrame:
        """No drawn table folds into its own rows."""
        raise NotImplementedError

    def is_empty(self, frame: DataFrame) -> bool:
        """Whether a frame has no rows."""
        return frame.isEmpty()

    def few(self, keys: DataFrame, node: Node) -> Sequence[Row] | None:  # noqa: ARG002
        """As if each table were large."""
        return keys.collect()

    def has_changes(self, scan: Scan) -> bool:
        """An input moved if changes of it were drawn."""
        return scan.table in self.changed

    def changes(self, scan: Scan) -> DataFrame:
        """The drawn changes of a table."""
        return self.changed[scan.table]

    def previous(self, scan: Scan) -> DataFrame:
        """The drawn rows at the keys that changed."""
        return self.before.stored(scan).join(self.changes(scan), list(scan.key), "left_semi")

    def records(self, scan: Scan) -> DataFrame:
        """The drawn new records of a landing."""
        return with_reached(decoded(self.changed[scan.table]))

    def overlapping_records(self, scan: Scan) -> DataFrame | None:  # noqa: ARG002  # the protocol's
        """A batch is taken whole."""
        return None


def decoded(records: DataFrame) -> DataFrame:
    """The drawn records but those that did not decode."""
    return records.where("_error IS NULL").withColumn("_ordinal", F.lit(0).cast("bigint"))


@dataclass(frozen=True)
class Draw:
    """Makes snapshots and spans."""

    session: SparkSession

    def now(self, **texts: str) -> Drawn:
        """A snapshot of tables drawn by name."""
        return Drawn({name: with_ours(table(self.session, text)) for name, text in texts.items()})

    def span(self, after: Drawn, is_small: bool = True, **changed: str) -> DrawnSpan:
        """A span that ends at a snapshot, with the changes of some inputs drawn by name."""
        return DrawnSpan(after, self.now(**changed).frames, is_small)
