"""Every operator, and operators over operators: the laws hold on random small worlds, and the rows are the oracle's."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from spark.operators.algebra import ALL, PRESENT, rows, touched
from spark.topology.nodes import Aggregate, Column, Drive, How, Join, Latest, Node, Scan, Select
from tests import reference
from tests.laws.worlds import COLUMNS, KEYS, Frames, Moves, table, worlds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from resources.engine import Engine

WORLDS = 150
A, B, C = table("a"), table("b"), table("c")
LANDING = Scan("_landing/l", ("world", "k"), COLUMNS)
NAMES = ("world", "k", "f", "v", *reference.OURS)
KEY = (("world", "left.world"), ("k", "left.k"))
W, K = Column("world", "int"), Column("k", "int")


def join(left: Node, right: Node, how: How, on: str = "f", drive: Drive = "both") -> Join:
    """The left row's f and v, with the right row's v and who was found."""
    select = (*KEY, ("f", "left.f"), ("v", "coalesce(left.v, 0) + coalesce(right.v, 10)"))
    return Join(left, right, how, ("world", on), select, COLUMNS, drive)


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


PLANS: dict[str, Node] = {
    "scan": A,
    "latest": Latest(LANDING),
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
    "latest joined": join(Latest(LANDING), B, "inner"),
}


# What the expressions of the plans mean, to the reference.
MEANING: reference.Meaning = {
    **{name: partial(lambda name, row, _: row[name], name) for name in ("world", "k", "f", "v")},
    **{f"left.{name}": partial(lambda name, left, _: left[name], name) for name in ("world", "k", "f", "v")},
    "n": lambda row, _: row["n"],
    "count(1)": len,
    "sum(v)": lambda rows: total(rows, "v"),
    "sum(total)": lambda rows: total(rows, "total"),
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
def session(engine: Engine) -> SparkSession:
    return engine.session()


@pytest.mark.parametrize("few", [True, False])
@pytest.mark.parametrize("name", PLANS)
def test_touched_keys_are_enough_and_have_the_right_rows(session: SparkSession, name: str, few: bool) -> None:
    plan = PLANS[name]
    world = worlds(seed=len(name), count=WORLDS, names="abc")
    before = Frames(session, world.before, [record for record in world.records if record[-1] == 1])
    after = Frames(session, world.after, world.records)
    was, now = keyed(plan, rows(plan, ALL, before)), keyed(plan, rows(plan, ALL, after))
    assert now != was

    found = touched(plan, Moves(before, after, frozenset(), few))
    assert found is not None
    is_touched = keyed(plan, found)

    assert {key for key in was | now if was.get(key) != now.get(key)} <= is_touched.keys(), "soundness"
    agreed = {key: (*now[key], True) if key in now else None for key in is_touched}
    assert {key: row if row[-1] else None for key, row in is_touched.items()} == agreed, "agreement"


@pytest.mark.parametrize("name", PLANS)
def test_rows_are_those_of_the_reference(session: SparkSession, name: str) -> None:
    plan = PLANS[name]
    world = worlds(seed=len(name), count=WORLDS, names="abc")
    tables: dict[str, reference.Rows] = {
        table: {key: dict(zip(NAMES, row, strict=True)) for key, row in found.items()}
        for table, found in world.after.items()
    }
    records = [dict(zip((*NAMES, "_deleted", "_error", "_batch"), record, strict=True)) for record in world.records]
    expected = reference.rows(plan, tables, records, MEANING)
    columns = [column.name for column in plan.columns] + list(reference.OURS)
    found = keyed(plan, rows(plan, ALL, Frames(session, world.after, world.records)))
    assert found == {key: tuple(row[column] for column in columns) for key, row in expected.items()}


@pytest.mark.parametrize("name", PLANS)
def test_rows_at_keys_are_the_rows_at_all_keys_cut_down(session: SparkSession, name: str) -> None:
    plan = PLANS[name]
    world = worlds(seed=len(name), count=WORLDS, names="abc")
    now = Frames(session, world.after, world.records)
    some = [(w, k) for w in range(WORLDS) for k in KEYS if (w + k) % 3 == 0]
    everything = keyed(plan, rows(plan, ALL, now))
    cut = keyed(plan, rows(plan, session.createDataFrame(some, ", ".join(f"{name} int" for name in plan.key)), now))
    assert cut == {key: row for key, row in everything.items() if key in set(some)}


@pytest.mark.parametrize("still", [{"a"}, {"b"}, {"a", "b"}])
def test_an_input_that_did_not_move_touches_nothing(session: SparkSession, still: set[str]) -> None:
    plan = PLANS["fk left"]
    world = worlds(seed=1, count=WORLDS, names="ab")
    unmoved = {name: world.before[name] if name in still else world.after[name] for name in "ab"}
    before, after = Frames(session, world.before, []), Frames(session, unmoved, [])
    was, now = keyed(plan, rows(plan, ALL, before)), keyed(plan, rows(plan, ALL, after))
    found = touched(plan, Moves(before, after, frozenset(still), few=True))
    is_touched = {} if found is None else keyed(plan, found)
    assert (found is None) == (still == {"a", "b"})
    assert {key for key in was | now if was.get(key) != now.get(key)} <= is_touched.keys()


def test_a_lookup_only_join_is_touched_by_its_left_side_alone(session: SparkSession) -> None:
    plan = join(A, B, "left", drive="left")
    world = worlds(seed=2, count=WORLDS, names="ab")
    before, after = Frames(session, world.before, []), Frames(session, world.after, [])
    assert touched(plan, Moves(before, after, frozenset("a"), few=True)) is None
    found = touched(plan, Moves(before, after, frozenset("b"), few=True))
    assert found is not None
    now = keyed(plan, rows(plan, ALL, after))
    assert {key: row[:-1] for key, row in keyed(plan, found).items() if row[-1]} == {
        key: now[key] for key in keyed(plan, found) if key in now
    }


def total(rows: list[reference.Row], name: str) -> int | None:
    """The sum of what is not null; null if nothing is."""
    values = [row[name] for row in rows if row[name] is not None]
    return sum(values) if values else None


def keyed(plan: Node, frame: DataFrame) -> dict[tuple[object, ...], tuple[object, ...]]:
    """The rows by key; a key twice fails."""
    names = [column.name for column in plan.columns]
    names += ["_timestamp", "_topic", "_partition", "_offset"] + ([PRESENT] if PRESENT in frame.columns else [])
    found = [tuple(row) for row in frame.select(*names).collect()]
    by_key = {row[:2]: row for row in found}
    assert len(by_key) == len(found), "a key has two rows"
    return by_key
