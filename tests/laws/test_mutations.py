"""The laws catch what they are for: each of these bugs, planted in an operator, breaks the law that is named."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from spark.operators import aggregate, join, latest, scan, select
from spark.operators.algebra import PRESENT, or_absent, previous, touched
from tests.laws import laws
from tests.laws.test_laws import MEANING, PLANS, WORLDS
from tests.laws.worlds import table
from tests.support.quick import quick_session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import ModuleType

    from pyspark.sql import Column, DataFrame, Row, SparkSession

    from resources.engine import Engine
    from spark.operators.algebra import Snapshot, Span
    from spark.topology.nodes import Join, Latest, Node, Scan


pytestmark = pytest.mark.thorough


@dataclass(frozen=True)
class Bug:
    """Something in the place of a function of a module, and the law that it breaks for a plan."""

    of: ModuleType
    name: str
    instead: object
    plan: str
    law: str


@dataclass(frozen=True)
class Stale:
    """A span whose end looks like its beginning; what changed is known all the same."""

    span: Span

    @property
    def before(self) -> Snapshot:
        """The earlier snapshot."""
        return self.span.before

    @property
    def after(self) -> Snapshot:
        """The earlier snapshot again."""
        return self.span.before

    @property
    def is_small(self) -> bool:
        """As it is."""
        return self.span.is_small

    @property
    def own(self) -> DataFrame:
        """As it is."""
        return self.span.own

    @property
    def time_before(self) -> int | Column | None:
        """As it is."""
        return self.span.time_before

    @property
    def time_after(self) -> int | Column | None:
        """As it is."""
        return self.span.time_after

    @property
    def seen(self) -> Mapping[str, int | Column]:
        """As it is."""
        return self.span.seen

    @property
    def apart(self) -> tuple[str, ...]:
        """As it is."""
        return self.span.apart

    def is_empty(self, frame: DataFrame) -> bool:
        """As it is."""
        return self.span.is_empty(frame)

    def keep(self, frame: DataFrame) -> DataFrame:
        """As it is."""
        return self.span.keep(frame)

    def few(self, keys: DataFrame, node: Node) -> Sequence[Row] | None:
        """As it is."""
        return self.span.few(keys, node)

    def has_changes(self, scan: Scan) -> bool:
        """As it is."""
        return self.span.has_changes(scan)

    def changes(self, scan: Scan) -> DataFrame:
        """As it is."""
        return self.span.changes(scan)

    def previous(self, scan: Scan) -> DataFrame:
        """As it is."""
        return self.span.previous(scan)

    def records(self, scan: Scan) -> DataFrame:
        """As it is."""
        return self.span.records(scan)

    def overlapping_records(self, scan: Scan) -> DataFrame | None:
        """As it is."""
        return self.span.overlapping_records(scan)


def nothing(frame: DataFrame) -> DataFrame:
    return frame.where("false")


def still(side: Node) -> Callable[[Node, Span], DataFrame | None]:
    """One side of a join never moves."""
    cached_touched = join.cached_touched

    def unless_still(of: Node, span: Span) -> DataFrame | None:
        return None if of == side else cached_touched(of, span)

    return unless_still


def without_deletes(node: Node, span: Span) -> DataFrame | None:
    found = touched(node, span)
    return None if found is None else found.where(PRESENT)


def with_left_alone(
    node: Join, left: DataFrame, right: DataFrame, outer_joined: Callable[..., DataFrame] = join.outer_joined
) -> DataFrame:
    return outer_joined(node, left, right).join(left.select(*node.key), list(node.key), "left_semi")


def by_smallest_offset(node: Latest, records: DataFrame, newest: Callable[..., DataFrame] = latest.newest) -> DataFrame:
    turned = records.withColumn("_offset", -F.col("_offset"))
    return newest(node, turned).withColumn("_offset", -F.col("_offset"))


BUGS = {
    "the group that a row was in before is forgotten": Bug(
        aggregate, "previous", lambda *given: nothing(previous(*given)), "aggregate", "soundness"
    ),
    "what a group lost is not taken away": Bug(
        aggregate, "previous", lambda *given: nothing(previous(*given)), "fold", "soundness"
    ),
    "an extreme stands when its row leaves": Bug(
        aggregate, "lost_extreme", lambda _: F.lit(False), "fold of extremes", "agreement"
    ),
    "the group that a row is in now is forgotten": Bug(
        aggregate, "present", lambda frame: nothing(frame).drop(PRESENT), "aggregate", "soundness"
    ),
    "an emptied group is kept": Bug(
        aggregate,
        "or_absent",
        lambda *given, absent=or_absent: absent(*given).withColumn(PRESENT, F.lit(True)),
        "aggregate",
        "agreement",
    ),
    "a row with a null is in a group": Bug(aggregate, "in_a_group", lambda _: "true", "aggregate", "reference"),
    "the right side of a join is ignored": Bug(join, "cached_touched", still(table("b")), "fk left", "soundness"),
    "the left side of a join is ignored": Bug(join, "cached_touched", still(table("a")), "fk left", "soundness"),
    "a join looks up as things were before": Bug(
        laws, "touched", lambda node, span: touched(node, Stale(span)), "fk inner", "agreement"
    ),
    "a moved foreign key is not looked up": Bug(
        join,
        "lookup_keys",
        lambda *given, lookup_keys=join.lookup_keys: nothing(lookup_keys(*given)),
        "fk inner",
        "agreement",
    ),
    "left rows that look up a changed right row are not found": Bug(
        join,
        "looking_up",
        lambda *given, looking_up=join.looking_up: nothing(looking_up(*given)),
        "fk inner",
        "soundness",
    ),
    "a null foreign key finds the right row 0": Bug(
        join,
        "with_on",
        lambda *given, with_on=join.with_on: with_on(*given).na.fill(0, ["_on0", "_on1"]),
        "fk left",
        "reference",
    ),
    "an outer join does not follow its right side": Bug(
        join,
        "outer_touched",
        lambda node, left, _, span, both=join.outer_touched: both(node, left, None, span),
        "pk outer",
        "soundness",
    ),
    "an outer join has no row that only the right side has": Bug(
        join, "outer_joined", with_left_alone, "pk outer", "reference"
    ),
    "a row that leaves a filter is not told": Bug(
        select,
        "selected",
        lambda *given, selected=select.selected: selected(*given).where(PRESENT),
        "filter",
        "soundness",
    ),
    "a deleted row is lost in a view": Bug(select, "touched", without_deletes, "map", "soundness"),
    "a tombstone is a row": Bug(
        latest,
        "newest",
        lambda *given, newest=latest.newest: newest(*given).withColumn(PRESENT, F.lit(True)),
        "latest",
        "reference",
    ),
    "the order of offsets is turned round": Bug(latest, "newest", by_smallest_offset, "latest", "reference"),
    "a lookup at some keys finds others too": Bug(scan, "at_keys", lambda frame, *_: frame, "scan", "locality"),
}


@pytest.fixture(scope="module")
def session(engine: Engine) -> Iterator[SparkSession]:
    session = quick_session(engine)
    yield session
    session.stop()


@pytest.mark.parametrize("name", BUGS)
def test_a_law_catches(session: SparkSession, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    bug = BUGS[name]
    monkeypatch.setattr(bug.of, bug.name, bug.instead)
    with pytest.raises(laws.Broken) as broken:
        laws.check(session, PLANS[bug.plan], seed=len(bug.plan), count=WORLDS, meaning=MEANING)
    assert broken.value.law == bug.law
