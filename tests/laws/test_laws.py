"""Every operator, and operators over operators: the laws hold on random small worlds, and the rows are the oracle's."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest

from spark.operators.algebra import ALL, rows, touched
from spark.topology.columns import Column
from spark.topology.nodes import Aggregate, Drive, How, Join, Latest, Node, Records, Scan, Select, Union
from spark.topology.sql.fold import Fold
from tests.laws.laws import check, keyed
from tests.laws.worlds import COLUMNS, TOPICS, Frames, Moves, table, worlds
from tests.support import reference
from tests.support.quick import quick_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from resources.engine import Engine

WORLDS = 150
A, B, C = table("a"), table("b"), table("c")
L, M = (Records(Scan(f"_landing/{topic}", ("world", "k"), COLUMNS, appended=True)) for topic in TOPICS)
NAMES = ("world", "k", "f", "v", *reference.OURS)
KEY = (("world", "left.world"), ("k", "left.k"))
W, K = Column("world", "int"), Column("k", "int")


def join(left: Node, right: Node, how: How, on: str = "f", drive: Drive = "both") -> Join:
    """The left row's f and v, with the right row's v and who was found."""
    select = (*KEY, ("f", "left.f"), ("v", "coalesce(left.v, 0) + coalesce(right.v, 10)"))
    return Join(left, right, how, select, COLUMNS, ("world", on), drive)


def kept(source: Node, where: str | None) -> Select:
    """A filter and a map. The division fails on rows that the filter must keep from it."""
    select = (("world", "world"), ("k", "k"), ("f", "f"), ("v", "12 div v"))
    return Select(source, select, COLUMNS, where)


def aggregate(source: Node, by: str = "f") -> Aggregate:
    """Rows counted, summed and collected by a column of theirs."""
    texts = {
        "n": "count(1)",
        "total": "sum(v)",
        "most": "max(v)",
        "all": "array_join(sort_array(collect_list(v)), ',')",
    }
    columns = (W, Column(by, "int"), *(Column(name, None) for name in texts))
    return Aggregate(source, ("world", by), (("world", "world"), (by, by), *texts.items()), columns)


def regrouped(source: Aggregate) -> Aggregate:
    """The groups of groups, by how many rows they have."""
    columns = (W, Column("n", None), Column("total", None))
    return Aggregate(source, ("world", "n"), (("world", "world"), ("n", "n"), ("total", "sum(total)")), columns)


def folding(source: Node, by: str = "f", **texts: str) -> Aggregate:
    """A stored aggregate whose every column folds."""
    columns = (W, Column(by, "int"), *(Column(name, None) for name in texts))
    plan = Aggregate(source, ("world", by), (("world", "world"), (by, by), *texts.items()), columns)
    fold = plan.foldable
    assert isinstance(fold, Fold), fold
    return replace(plan, fold=fold)


def rekeyed(source: Node) -> Select:
    """A stream by another key."""
    names = ("world", "f", "k", "v")
    columns = tuple(next(column for column in COLUMNS if column.name == name) for name in names)
    return Select(source, tuple((name, name) for name in names), columns, rekeyed=("world", "f"))


SUMS = {"n": "count(1)", "total": "sum(v)", "mean": "avg(v)", "known": "count(v)"}
EXTREMES = {"n": "count(1)", "least": "min(v)", "most": "max(v)", "spread": "max(v) - min(v)"}

PLANS: dict[str, Node] = {
    "scan": A,
    "latest": Latest(L),
    "versioned": Latest(L, history=1),
    "to table": Latest(kept(L, "v > 0")),
    "select key": Latest(rekeyed(L)),
    "merge": Latest(Union(L, M)),
    "merge of views": Latest(Union(kept(L, "v > 0"), kept(M, "v > 1"))),
    "versioned merge": Latest(Union(L, M), history=1),
    "filter": kept(A, "v > 0"),
    "map": Select(A, (("world", "world"), ("k", "k"), ("v", "f + 1")), (W, K, Column("v", "int"))),
    "fk inner": join(A, B, "inner"),
    "fk left": join(A, B, "left"),
    "pk inner": join(A, B, "inner", on="k"),
    "pk left": join(A, B, "left", on="k"),
    "pk outer": join(A, B, "outer", on="k"),
    "outer of views": join(kept(A, "v > 0"), join(B, C, "inner"), "outer", on="k"),
    "outer chain": join(join(A, B, "outer", on="k"), C, "left"),
    "outer of outer": join(join(A, B, "outer", on="k"), C, "outer", on="k"),
    "fk by expression": join(A, B, "inner", on="(f + 1) % 4"),
    "self join": join(A, A, "left"),
    "filtered right": join(A, kept(B, "v > 0"), "inner"),
    "filtered left": join(kept(A, "v > 0"), B, "left"),
    "filtered join": kept(join(A, B, "left"), "v > 1"),
    "chain": join(join(A, B, "inner"), C, "left", on="v"),
    "chain on the right": join(A, join(B, C, "inner"), "left"),
    "same input twice": join(join(A, B, "inner"), B, "inner", on="k"),
    "aggregate": aggregate(A),
    "aggregate of a filter": aggregate(kept(A, "v > 0")),
    "aggregate of a join": aggregate(join(A, B, "inner"), by="v"),
    "aggregate of an outer join": aggregate(join(A, B, "outer", on="k")),
    "aggregate of an aggregate": regrouped(aggregate(A)),
    "joined to an aggregate": join(
        A,
        Select(
            aggregate(B),
            (("world", "world"), ("f", "f"), ("v", "cast(n AS int)")),
            (W, Column("f", "int"), Column("v", "int")),
        ),
        "left",
    ),
    "latest joined": join(Latest(L), B, "inner"),
    "versioned joined": join(A, Latest(L, history=1), "left", on="k"),
    "fold": folding(A, **SUMS),
    "fold of extremes": folding(A, **EXTREMES),
    "fold of a filter": folding(kept(A, "v > 0"), **SUMS),
    "fold of a join": folding(join(A, B, "left"), by="v", n="count(1)", most="max(f)"),
    "fold of an aggregate": folding(aggregate(A), by="n", total="sum(cast(total AS bigint))"),
    "fold of latest": folding(Latest(L), **SUMS),
    "fold of shares": folding(A, share="count_if(v > 0) / count(1)", mean="avg(v)"),
    "fold of nothing but groups": folding(A),
    "fold of a stream": folding(L, **SUMS),
    "fold of a stream's extremes": folding(kept(M, "v > 0"), **EXTREMES),
    "fold of a merge": folding(rekeyed(Union(L, M)), by="k", **SUMS),
    "stream computed again": aggregate(Union(L, M)),
}


# What the expressions of the plans mean, to the reference.
MEANING: reference.Meaning = {
    **{name: partial(lambda name, row, _: row[name], name) for name in ("world", "k", "f", "v")},
    **{f"left.{name}": partial(lambda name, left, _: left[name], name) for name in ("world", "k", "f", "v")},
    "n": lambda row, _: row["n"],
    "count(1)": len,
    "sum(v)": lambda rows: total(rows, "v"),
    "sum(total)": lambda rows: total(rows, "total"),
    "avg(v)": lambda rows: (total(rows, "v") or 0) / known(rows, "v") if known(rows, "v") else None,
    "count_if(v > 0) / count(1)": lambda rows: sum((row["v"] or 0) > 0 for row in rows) / len(rows),
    "count(v)": lambda rows: known(rows, "v"),
    "min(v)": lambda rows: min((row["v"] for row in rows if row["v"] is not None), default=None),
    "max(f)": lambda rows: max((row["f"] for row in rows if row["f"] is not None), default=None),
    "max(v) - min(v)": lambda rows: (
        max(row["v"] for row in rows if row["v"] is not None) - min(row["v"] for row in rows if row["v"] is not None)
        if known(rows, "v")
        else None
    ),
    "sum(cast(total AS bigint))": lambda rows: total(rows, "total"),
    "max(v)": lambda rows: max((row["v"] for row in rows if row["v"] is not None), default=None),
    "array_join(sort_array(collect_list(v)), ',')": lambda rows: ",".join(
        str(v) for v in sorted(row["v"] for row in rows if row["v"] is not None)
    ),
    "cast(n AS int)": lambda row, _: row["n"],
    "v > 0": lambda row, _: None if row["v"] is None else row["v"] > 0,
    "v > 1": lambda row, _: None if row["v"] is None else row["v"] > 1,
    "12 div v": lambda row, _: None if row["v"] is None else 12 // row["v"],
    "f + 1": lambda row, _: None if row["f"] is None else row["f"] + 1,
    "(f + 1) % 4": lambda row, _: None if row["f"] is None else (row["f"] + 1) % 4,
    "coalesce(left.v, 0) + coalesce(right.v, 10)": lambda left, right: (
        (0 if left["v"] is None else left["v"]) + (10 if right["v"] is None else right["v"])
    ),
}


@pytest.fixture(scope="module")
def session(engine: Engine) -> Iterator[SparkSession]:
    """One session for all plans."""
    session = quick_session(engine)
    yield session
    session.stop()


@pytest.mark.parametrize("name", PLANS)
def test_every_law_holds(session: SparkSession, name: str) -> None:
    check(session, PLANS[name], seed=len(name), count=WORLDS, meaning=MEANING)


@pytest.mark.parametrize("still", [{"a"}, {"b"}, {"a", "b"}])
def test_an_input_that_did_not_move_touches_nothing(session: SparkSession, still: set[str]) -> None:
    plan = PLANS["fk left"]
    world = worlds(seed=1, count=WORLDS, names="ab")
    unmoved = {name: world.before[name] if name in still else world.after[name] for name in "ab"}
    before, after = Frames(session, world.before, []), Frames(session, unmoved, [])
    own = rows(plan, ALL, before)
    was, now = keyed(plan, own), keyed(plan, rows(plan, ALL, after))
    found = touched(plan, Moves(before, after, frozenset(still), is_small=True, own=own))
    is_touched = {} if found is None else keyed(plan, found)
    assert (found is None) == (still == {"a", "b"})
    assert {key for key in was | now if was.get(key) != now.get(key)} <= is_touched.keys()


def test_a_lookup_only_join_is_touched_by_its_left_side_alone(session: SparkSession) -> None:
    plan = join(A, B, "left", drive="left")
    world = worlds(seed=2, count=WORLDS, names="ab")
    before, after = Frames(session, world.before, []), Frames(session, world.after, [])
    own = rows(plan, ALL, before)
    assert touched(plan, Moves(before, after, frozenset("a"), is_small=True, own=own)) is None
    found = touched(plan, Moves(before, after, frozenset("b"), is_small=True, own=own))
    assert found is not None
    now = keyed(plan, rows(plan, ALL, after))
    assert {key: row[:-1] for key, row in keyed(plan, found).items() if row[-1]} == {
        key: now[key] for key in keyed(plan, found) if key in now
    }


def total(rows: list[reference.Row], name: str) -> int | None:
    """The sum of what is not null; null if nothing is."""
    values = [row[name] for row in rows if row[name] is not None]
    return sum(values) if values else None


def known(rows: list[reference.Row], name: str) -> int:
    """How many values are not null."""
    return sum(row[name] is not None for row in rows)
