"""The law of streams catches what it is for: each of these bugs, planted in an operator, breaks what is named."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import Window
from pyspark.sql import functions as F

from spark.operators import as_of as as_of_changes
from spark.operators import lookup, order, stream_join, versioned
from spark.operators.algebra import PRESENT
from tests.laws import streams
from tests.laws.test_stream_laws import KINDS, MEANING
from tests.support.quick import quick_session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

    from pyspark.sql import Column, DataFrame, SparkSession

    from resources.engine import Engine
    from spark.topology.nodes import Lookup, Scan, StreamJoin

pytestmark = pytest.mark.thorough

WORLDS = 60


@dataclass(frozen=True)
class Bug:
    """Something in the place of a function of a module or class, and the law that it breaks for a kind of stream."""

    of: ModuleType | type
    name: str
    instead: object
    kind: str
    law: str


def never(records: DataFrame) -> DataFrame:
    """None of some records."""
    return records.where("false")


def unless_late(
    join: StreamJoin, side: str, span: streams.Spans, reason: Callable[..., Column] = stream_join.reason
) -> Column:
    why = reason(join, side, span)
    return F.when(why != "late", why)


def needs_a_key(
    join: StreamJoin, side: str, span: streams.Spans, reason: Callable[..., Column] = stream_join.reason
) -> Column:
    return reason(replace(join, how="inner"), side, span)


def from_earlier_on(
    join: StreamJoin, side: str, span: streams.Spans, open_records: Callable[..., DataFrame] = stream_join.open_records
) -> DataFrame:
    """Older records are taken up that were over when the span began; new ones as they should be."""
    assert not isinstance(span.time_before, int | None)
    earlier = replace(span, time_before=span.time_before - 3 * streams.MILLISECOND)
    new = open_records(join, side, span).where("_new")
    return new.unionByName(open_records(join, side, earlier).where("NOT _new"))


def narrowed(
    join: StreamJoin, left: DataFrame, right: DataFrame, paired: Callable[..., DataFrame] = stream_join.paired
) -> DataFrame:
    return paired(replace(join, before=join.before - 1, after=join.after - 1), left, right)


def at_the_end(
    join: Lookup, pairs: DataFrame, changes: DataFrame, as_of: Callable[..., DataFrame] = lookup.as_of
) -> DataFrame:
    """Every change of a table comes before all records."""
    return as_of(join, pairs, changes.withColumn("_reached", F.lit(None).cast("bigint")))


def since_history(span: streams.Spans, scan: Scan) -> DataFrame:
    """Records with the time that their partition reached since its beginning."""
    old = span.before.read[scan.table].withColumn("_was", F.lit(True))
    new = span.new[scan.table].withColumn("_was", F.lit(False))
    return order.with_reached(old.unionByName(new)).where("NOT _was").drop("_was")


def each_alone(records: DataFrame) -> DataFrame:
    """Records with their own times in the place of the greatest so far."""
    return records.withColumn("_reached", order.micros())


def by_topic(records: DataFrame) -> DataFrame:
    """Records with the time that their topic reached, whatever their partition."""
    by_arrival = Window.partitionBy("_topic").orderBy("_batch", "_offset", "_partition")
    return records.withColumn("_reached", F.max(order.micros()).over(by_arrival))


BUGS = {
    "stream time is taken at the span's end": Bug(
        stream_join, "stream_time", lambda span: F.lit(span.time_after), "outer, symmetric", "records"
    ),
    "stream time is taken at the span's beginning": Bug(
        stream_join, "stream_time", lambda span: F.lit(span.time_before), "outer, symmetric", "records"
    ),
    "grace is forgotten": Bug(
        stream_join,
        "wait",
        lambda join, side, wait=stream_join.wait: wait(replace(join, grace=0), side),
        "outer, asymmetric",
        "records",
    ),
    "what may be before is mixed up with what may be after": Bug(
        stream_join,
        "wait",
        lambda join, side, wait=stream_join.wait: wait(join, "left" if side == "right" else "right"),
        "outer, asymmetric",
        "records",
    ),
    "a record is late an instant early": Bug(
        stream_join,
        "wait",
        lambda join, side, wait=stream_join.wait: wait(join, side) - 1,
        "inner, symmetric",
        "records",
    ),
    "a late record is accepted": Bug(stream_join, "reason", unless_late, "inner, symmetric", "dropped"),
    "a record without a key is dropped on an outer side": Bug(
        stream_join, "reason", needs_a_key, "outer, symmetric", "records"
    ),
    "a row is emitted again for a record that was over": Bug(
        stream_join, "open_records", from_earlier_on, "outer, symmetric", "records"
    ),
    "a record that had a pair earlier is emitted alone": Bug(
        stream_join,
        "unpaired",
        lambda join, side, ours, theirs, pairs, span, unpaired=stream_join.unpaired: unpaired(
            join, side, ours, theirs, pairs, replace(span, own=never(span.own))
        ),
        "outer, symmetric",
        "records",
    ),
    "a record that has a pair now is emitted alone": Bug(
        stream_join,
        "unpaired",
        lambda join, side, ours, theirs, pairs, span, unpaired=stream_join.unpaired: unpaired(
            join, side, ours, theirs, never(pairs), span
        ),
        "left, asymmetric",
        "records",
    ),
    "earlier rows are read too short a time back": Bug(
        stream_join, "reach", lambda join: 1000 * join.grace, "outer, asymmetric", "records"
    ),
    "the bounds of a window are outside": Bug(stream_join, "paired", narrowed, "inner, symmetric", "records"),
    "a table is seen as it is at the span's end": Bug(lookup, "as_of", at_the_end, "table, left", "records"),
    "a table is seen as it was at the span's beginning": Bug(
        lookup, "as_of", lambda *given: given[1], "table, left", "records"
    ),
    "a stream is before a table that reached the same time": Bug(lookup, "LEFT", -1, "table, left", "records"),
    "a row that was deleted is still found": Bug(
        lookup,
        "as_changes",
        lambda right, new, as_changes=as_of_changes.as_changes: as_changes(right, new).withColumn(PRESENT, F.lit(True)),
        "table, inner",
        "records",
    ),
    "the greatest time is that since the topic's beginning": Bug(
        streams.Spans, "records", since_history, "table, left", "records"
    ),
    "a record stands at its own time": Bug(streams, "with_reached", each_alone, "table, left", "records"),
    "partitions are no queues of their own": Bug(streams, "with_reached", by_topic, "outer, symmetric", "records"),
    "a record without a value moves no time": Bug(
        order,
        "micros",
        lambda name="_timestamp": F.unix_micros(F.when(~F.col("_deleted"), F.col(name))),
        "outer, symmetric",
        "records",
    ),
}


def at_its_place(
    join: Lookup,
    lookups: DataFrame,
    versions: DataFrame,
    newest: Callable[..., DataFrame] = versioned.newest,
) -> DataFrame:
    """Every record looks up as of the greatest time of all."""
    return newest(join, lookups.withColumn("_time", F.lit(2**62)), versions)


def passed_by(
    join: Lookup, new: DataFrame, span: streams.Spans, released: Callable[..., DataFrame] = versioned.released
) -> DataFrame:
    """What waited stands at the end of its span."""
    until = F.lit(span.time_after)
    return released(join, new, span).withColumn("_reached", F.when(versioned.due(join) <= until, until))


def since_now(
    join: Lookup, new: DataFrame, span: streams.Spans, released: Callable[..., DataFrame] = versioned.released
) -> DataFrame:
    """Nothing waits from before."""
    return released(join, new, replace(span, before=streams.Frames({n: never(f) for n, f in span.before.read.items()})))


VERSIONED_BUGS = {
    "the newest version is found, whatever the record's time": Bug(
        versioned, "newest", at_its_place, "versioned-left", "records"
    ),
    "a version is found that comes later": Bug(
        versioned, "without_later", lambda *given: given[1], "versioned-inner", "records"
    ),
    "an earlier version is forgotten": Bug(versioned, "older_versions", lambda *_: None, "versioned-left", "records"),
    "the history has no end": Bug(
        versioned, "beyond_history", lambda _: F.lit(False), "versioned-left, of a short history", "records"
    ),
    "the history is counted from the time reached": Bug(
        versioned,
        "with_table_time",
        lambda _, lookups, *__: lookups.withColumn("_known", F.col("_at")),
        "versioned-left, of a short history",
        "records",
    ),
    "what waits is let go an instant late": Bug(
        versioned,
        "due",
        lambda join, due=versioned.due: due(join) + 1,
        "versioned-left, with grace, of a short history",
        "records",
    ),
    "what waited looks up at the span's end": Bug(
        versioned, "released", passed_by, "versioned-left, with grace, of a short history", "records"
    ),
    "who waits is forgotten behind a span": Bug(
        versioned, "released", since_now, "versioned-left, with grace, of a short history", "records"
    ),
}
BUGS |= VERSIONED_BUGS


@pytest.fixture(scope="module")
def session(engine: Engine) -> Iterator[SparkSession]:
    session = quick_session(engine)
    yield session
    session.stop()


@pytest.mark.parametrize("name", BUGS)
def test_the_law_catches(session: SparkSession, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    bug = BUGS[name]
    monkeypatch.setattr(bug.of, bug.name, bug.instead)
    with pytest.raises(streams.Broken) as broken:
        streams.check(session, KINDS[bug.kind], seed=len(bug.kind), worlds=WORLDS, meaning=MEANING)
    assert broken.value.law == bug.law
