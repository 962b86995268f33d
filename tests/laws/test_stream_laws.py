"""Every stream operator: what it emits is what the simulation emits, record by record, however the records are cut.

`make fuzz` holds them to it on a great many worlds; here it is some, and every seed that once failed.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from spark.operators.algebra import PLACED, emit
from spark.operators.algebra import records as emit_records
from spark.topology.columns import Column
from spark.topology.nodes import Explode, How, Latest, Lookup, Node, Records, Select, StreamJoin, Union
from tests.laws.fuzz import GREAT_MANY, fuzzing, hunt
from tests.laws.streams import COLUMNS, IDENTITY, Frames, Kind, Spans, check, check_memory, stream, table
from tests.support.quick import quick_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from resources.engine import Engine
    from tests.support.reference import Meaning

WORLDS = 200  # in one frame

L, M, T = stream("l"), stream("m"), stream("t")
G, H, TABLE = table("g"), table("h"), table("t")


def selected(source: Node, where: str | None = None, **computed: str) -> Select:
    """A filter, a map, or both."""
    return Select(source, tuple((c.name, computed.get(c.name, c.name)) for c in COLUMNS), COLUMNS, where)


def rekeyed(source: Node) -> Select:
    """A stream by its foreign key."""
    columns = (COLUMNS[0], COLUMNS[2], COLUMNS[1], *COLUMNS[3:])
    return Select(source, tuple((c.name, c.name) for c in columns), columns, rekeyed=("world", "f"))


def exploded(source: Node) -> Select:
    """A record for each element, which is the value."""
    columns = (*COLUMNS[:4], Column("a", "int"))
    each = Explode(source, "a", columns)
    return Select(each, tuple((c.name, "a" if c.name == "v" else c.name) for c in columns), columns)


def plain(source: Node) -> Select:
    """A stored stream, with columns that compare."""
    return Select(source, tuple((c.name, c.name) for c in COLUMNS[:4]), COLUMNS[:4])


def looked_up(left: Node, right: Node, how: How, on: str = "k", told: Node | None = None) -> Lookup:
    """A record with the value that it finds."""
    columns = (*COLUMNS[:4], Column("r", "int"))
    select = (*((c.name, f"left.{c.name}") for c in COLUMNS[:4]), ("r", "right.v"))
    return Lookup(left, right, how, select, columns, ("world", on), told, broadcast=told is None)


def versioned(how: How, history: int, grace: int | None = None, on: str = "k", left: Node = L, **view: str) -> Kind:
    """A record with the value of its own time, from a versioned table or a view of one."""
    right = selected(TABLE, **view) if view else TABLE
    join = replace(looked_up(left, right, how, on, T), history=history, grace=grace)
    return Kind(join, ("l", "m", "t") if left is not L else ("l", "t"), told=(TABLE,), versioned=True)


def twice(first: Lookup, right: Node, how: How) -> Lookup:
    """A chain: what the first lookup found says what the second one asks for."""
    select = (*((c.name, f"left.{c.name}") for c in COLUMNS[:3]), ("v", "right.v"), ("r", "left.r"))
    return replace(looked_up(first, right, how, "r"), select=select)


def joined(left: Node, right: Node, how: How, before: int, after: int, grace: int) -> StreamJoin:
    """Pairs, with both sides' values."""
    key = left.key[1]
    columns = (COLUMNS[0], Column(key, "int"), Column("x", "int"), Column("y", "int"))
    select = (("world", "left.world"), (key, f"left.{key}"), ("x", "left.v"), ("y", "right.v"))
    return StreamJoin(left, right, how, select, columns, before, after, grace)


WINDOWS = {
    "symmetric": (2, 2, 1),
    "asymmetric": (1, 4, 2),
    "without grace": (3, 1, 0),
    "only before": (3, 0, 1),
    "only after": (0, 3, 0),
    "of one instant": (0, 0, 2),
    "with a gap before": (-1, 4, 1),
    "with a gap after": (5, -2, 0),
}
HOWS: tuple[How, ...] = ("inner", "left", "outer")
LM = ("l", "m")

LOOKUPS: dict[str, Kind] = {
    "table, inner": Kind(looked_up(L, TABLE, "inner", told=T), ("l", "t"), told=(TABLE,)),
    "table, left": Kind(looked_up(L, TABLE, "left", told=T), ("l", "t"), told=(TABLE,)),
    "table by an expression": Kind(looked_up(L, TABLE, "left", "f", told=T), ("l", "t"), told=(TABLE,)),
    "view of a table": Kind(
        looked_up(L, selected(TABLE, "v > 0", v="v + 1"), "left", told=T), ("l", "t"), told=(TABLE,)
    ),
    "view of a table, inner": Kind(looked_up(L, selected(TABLE, "v > 0"), "inner", "f", T), ("l", "t"), told=(TABLE,)),
    "to_table of a filter": Kind(
        looked_up(L, Latest(selected(T, "v > 0")), "left", told=selected(T, "v > 0")), ("l", "t"), spread=False
    ),
    "table, over a merge": Kind(
        looked_up(Union(L, selected(M, "v > 0")), TABLE, "left", told=T), ("l", "m", "t"), told=(TABLE,)
    ),
    "table, over flat_map": Kind(looked_up(exploded(L), TABLE, "left", "v", told=T), ("l", "t"), told=(TABLE,)),
    "global, inner": Kind(looked_up(L, G, "inner", "f"), ("l",), (G,)),
    "global, left": Kind(looked_up(selected(L, "v > 0", v="v + 1"), G, "left", "f"), ("l",), (G,)),
    "chain, inner": Kind(twice(looked_up(L, G, "inner", "f"), H, "inner"), ("l",), (G, H)),
    "chain, left": Kind(twice(looked_up(L, G, "left", "f"), H, "left"), ("l",), (G, H)),
    "chain of a table and a global one": Kind(
        twice(looked_up(L, TABLE, "inner", "f", T), G, "left"), ("l", "t"), (G,), (TABLE,)
    ),
    "merge of found and not": Kind(Union(plain(looked_up(L, G, "inner", "f")), plain(M)), LM, (G,)),
    "stateless": Kind(Union(exploded(selected(L, "v > 0")), Union(exploded(M), exploded(selected(L, v="v + 1")))), LM),
}
VERSIONED: dict[str, Kind] = {
    "versioned-inner": versioned("inner", 30),
    "versioned-left": versioned("left", 30),
    "versioned-left, by an expression, a view": versioned("left", 4, on="f", where="v > 0", v="v + 1"),
    "versioned-left, of a short history": versioned("left", 3),
    "versioned-inner, with grace": versioned("inner", 30, 4),
    "versioned-left, with grace": versioned("left", 30, 4),
    "versioned-left, with grace, of a short history": versioned("left", 3, 3),
    "versioned-left, with no grace at all": versioned("left", 3, 0),
    "versioned-left, with grace, over merge and filter": versioned("left", 6, 2, left=Union(L, selected(M, "v > 0"))),
}
JOINS: dict[str, Kind] = {
    f"{how}, {name}": Kind(joined(L, M, how, *window), LM) for name, window in WINDOWS.items() for how in HOWS
}
OVER: dict[str, Kind] = {
    **{f"self-join, {how}": Kind(joined(L, L, how, 1, 3, 1), ("l",)) for how in HOWS},
    "self-join of two views": Kind(joined(selected(L, "v > 0"), selected(L, v="v + 1"), "outer", -1, 4, 1), ("l",)),
    "over select_key": Kind(joined(rekeyed(L), rekeyed(M), "outer", 2, 3, 1), LM),
    "over filter and map": Kind(joined(selected(L, "v > 0", v="v + 1"), selected(M, "v > 0"), "left", 2, 2, 1), LM),
    "over merge": Kind(joined(Union(L, M), selected(M, "v > 0"), "outer", 2, 1, 1), LM),
    "over flat_map": Kind(joined(exploded(L), exploded(M), "outer", 2, 2, 1), LM),
    "self-join over flat_map": Kind(joined(exploded(L), exploded(L), "left", 1, 2, 1), ("l",)),
}
KINDS = LOOKUPS | VERSIONED | JOINS | OVER
FAILED: tuple[tuple[str, int], ...] = ()
"""Kinds, and seeds of worlds, that once broke the law."""

# Every kind of lookup, every second one back in time, each of the windows with one kind of join in turn, and joins over
# other operators.
SOME = [
    *LOOKUPS,
    *list(VERSIONED)[2::2],
    *(f"{HOWS[(number + 1) % 3]}, {name}" for number, name in enumerate(WINDOWS)),
    *OVER,
]

MEANING: Meaning = {
    **{c.name: partial(lambda name, row, _: row[name], c.name) for c in COLUMNS},
    **{f"left.{name}": partial(lambda name, left, _: left[name], name) for name in ("world", "k", "f", "v", "r")},
    **{f"right.{name}": partial(lambda name, _, right: right[name], name) for name in ("v",)},
    "r": lambda row, _: row["r"],
    "v > 0": lambda row, _: None if row["v"] is None else row["v"] > 0,
    "v + 1": lambda row, _: None if row["v"] is None else row["v"] + 1,
}


@pytest.fixture(scope="module")
def session(engine: Engine) -> Iterator[SparkSession]:
    """One session for all plans."""
    session = quick_session(engine)
    yield session
    session.stop()


@pytest.mark.parametrize(("name", "seed"), [*((name, 0) for name in SOME), *FAILED])
def test_what_is_emitted_depends_on_the_order_of_records_alone(session: SparkSession, name: str, seed: int) -> None:
    check(session, KINDS[name], seed, WORLDS, MEANING)


@pytest.mark.parametrize(
    "name", ["table, left", "global, inner", "outer, asymmetric", "over merge", "versioned-left, with grace"]
)
def test_a_stream_remembers_its_own_rows_and_its_time(session: SparkSession, name: str) -> None:
    check_memory(session, KINDS[name], seed=len(name), size=150, meaning=MEANING)


def test_each_element_of_each_record_has_a_number_of_its_own(session: SparkSession) -> None:
    """Also of those that a join emitted alone, whose numbers are below zero."""
    stored = session.range(-8, 9).selectExpr(
        "id AS _ordinal",
        "sequence(1, 4) AS a",
        *(f"null AS {name}" for name in (*PLACED, "world", "k", "f", "v") if name != "_ordinal"),
    )
    found = emit_records(exploded(Records(table("s"))), lambda _: stored).select("_ordinal").distinct()
    assert found.count() == 17 * 4


def test_joined_rows_have_numbers_of_their_own_whenever_they_are_emitted(session: SparkSession) -> None:
    """Where a stored stream has records of equal coordinates in several spans, as one of rows that stayed alone has."""
    plan = joined(Records(table("s")), Records(table("r")), "outer", 1, 1, 0)
    facts = [  # stream, number, key, milliseconds, span
        *(("s", number, abs(number) // 3, 5, 3 if number < 0 else 2) for number in (-3, -2, -1, 1, 2, 3)),
        *(("r", 0, 0, 5, 1), ("r", 1, 2, 20, 4)),
    ]
    records = session.createDataFrame(facts, "stream string, _ordinal bigint, k int, at bigint, _batch bigint").select(
        "stream", F.lit(0).alias("world"), "k", F.lit(1).alias("f"), F.lit(1).alias("v"), F.lit(None).alias("a"),
        F.timestamp_millis("at").alias("_timestamp"), F.col("stream").alias("_topic"), F.lit(0).alias("_partition"),
        F.lit(0).alias("_offset"), F.lit(False).alias("_deleted"), "_ordinal", "_batch",
    )  # fmt: skip
    own = session.createDataFrame([], f"_timestamp timestamp, _left {IDENTITY}, _right {IDENTITY}")
    numbers = []
    for batch, (before, after) in enumerate(pairwise((None, 5_000, 5_000, 5_000, 20_000)), 1):
        was, new = (
            {name: records.where(F.expr(f"stream = '{name}' AND _batch {which} {batch}")) for name in "sr"}
            for which in ("<", "=")
        )
        span = Spans(Frames(was), Frames({}), new, own, before, after)
        found = emit(plan, span)
        numbers += found.select("_topic", "_ordinal").collect()
        own = own.unionByName(found.select(*own.columns))
    assert len(numbers) == 6  # four pairs, and two that stayed alone
    assert len(set(numbers)) == 6


@fuzzing
@pytest.mark.parametrize("name", KINDS)
def test_so_it_does_in_a_great_many_worlds(session: SparkSession, name: str) -> None:
    hunt(GREAT_MANY // WORLDS, lambda seed: check(session, KINDS[name], seed, WORLDS, MEANING))
