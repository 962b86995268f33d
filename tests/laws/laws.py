"""The laws of the algebra as one check: a plan on many worlds, before and after a span."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark.operators.algebra import ALL, PRESENT, rows, touched
from spark.topology.nodes import Aggregate
from tests.laws.worlds import KEYS, Frames, Moves, worlds
from tests.support import reference

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark.topology.nodes import Node

NAMES = ("world", "k", "f", "v", *reference.OURS)
RECORD = (*NAMES, "_deleted", "_error", "_batch")

Keyed = dict[tuple[object, ...], tuple[object, ...]]


class Broken(AssertionError):
    """A law that an operator broke: which one, and at which keys, with what is there and what should be."""

    def __init__(self, law: str, found: Keyed, expected: Keyed) -> None:
        wrong = {key: (found.get(key), expected.get(key)) for key in found | expected}
        differing = {key: pair for key, pair in wrong.items() if pair[0] != pair[1]}
        told = "\n".join(f"  {key}: {is_} instead of {should}" for key, (is_, should) in list(differing.items())[:5])
        super().__init__(f"{law} is broken at {len(differing)} keys:\n{told}")
        self.law = law


def check(session: SparkSession, plan: Node, seed: int, count: int, meaning: reference.Meaning) -> None:
    """Hold a plan to every law, on `count` worlds.

    Raises:
        Broken: by name of the law.
    """
    world = worlds(seed, count, names="abc")
    before = Frames(session, world.before, [record for record in world.records if record[-1] == 1])
    after = Frames(session, world.after, world.records)
    own = rows(plan, ALL, before)
    was, frame = keyed(plan, own), rows(plan, ALL, after)
    now = keyed(plan, frame)
    check_reference(plan, world.after, world.records, {key: row[: shown(plan)] for key, row in now.items()}, meaning)
    for few in (True, False):
        found = touched(plan, Moves(before, after, frozenset(), few, own))
        check_touched(was, now, {} if found is None else keyed(plan, found))
    check_locality(session, plan, after, now, count)


def check_reference(
    plan: Node,
    tables: dict[str, dict[tuple[int, int], tuple[object, ...]]],
    records: list[tuple[object, ...]],
    now: Keyed,
    meaning: reference.Meaning,
) -> None:
    """All rows are those of the reference, and do not depend on columns that nothing reads."""
    named: dict[str, reference.Rows] = {
        table: {key: dict(zip(NAMES, row, strict=True)) for key, row in found.items()}
        for table, found in tables.items()
    }
    dicts = [dict(zip(RECORD, record, strict=True)) for record in records]
    expected = reference.rows(plan, named, dicts, meaning)
    columns = [column.name for column in plan.columns] + list(reference.OURS)
    should: Keyed = {key: tuple(row[column] for column in columns) for key, row in expected.items()}
    if now != should:
        raise Broken("reference", now, should)
    cut: Keyed = {
        key: tuple(row[column] for column in columns)
        for key, row in reference.rows(plan.minimal(), named, dicts, meaning).items()
    }
    if cut != should:
        raise Broken("columns that nothing reads", cut, should)


def check_touched(was: Keyed, now: Keyed, is_touched: Keyed) -> None:
    """A key that is not touched has the row it had; one that is has the row it has now."""
    missed = {key: now.get(key, ()) for key in was | now if was.get(key) != now.get(key)}
    if not missed.keys() <= is_touched.keys():
        raise Broken("soundness", {}, {key: row for key, row in missed.items() if key not in is_touched})
    found = {key: row if row[-1] else () for key, row in is_touched.items()}
    agreed = {key: (*now[key], True) if key in now else () for key in is_touched}
    if found != agreed:
        raise Broken("agreement", found, agreed)


def check_locality(session: SparkSession, plan: Node, after: Frames, now: Keyed, count: int) -> None:
    """The rows at some keys are all rows, cut down to them."""
    some = [(w, k) for w in range(count) for k in KEYS if (w + k) % 3 == 0]
    at = session.createDataFrame(some, ", ".join(f"{name} int" for name in plan.key))
    cut = keyed(plan, rows(plan, at, after))
    expected: Keyed = {key: now[key] for key in some if key in now}
    if cut != expected:
        raise Broken("locality", cut, expected)


def shown(plan: Node) -> int:
    """How many columns of a row the reference knows: those of the plan, and ours."""
    return len(plan.columns) + len(reference.OURS)


def keyed(plan: Node, frame: DataFrame) -> Keyed:
    """The rows by key, what a fold keeps for itself included.

    Raises:
        Broken: a key has two rows.
    """
    names = [column.name for column in plan.columns] + list(reference.OURS)
    if isinstance(plan, Aggregate) and plan.fold is not None:
        names += [partial.name for partial in plan.fold.partials]
    names += [PRESENT] if PRESENT in frame.columns else []
    by_key: Keyed = {}
    for row in frame.select(*names).collect():
        if row[:2] in by_key:
            raise Broken("one row per key", {row[:2]: tuple(row)}, {row[:2]: by_key[row[:2]]})
        by_key[row[:2]] = tuple(row)
    return by_key
