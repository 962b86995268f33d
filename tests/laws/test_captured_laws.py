"""Values that Debezium's events leave out: the laws hold, and the table is the database's, wherever batches are cut.

A random database has rows that are inserted, updated, deleted, and whose keys change. A connector tells its changes,
and leaves a column out where a change does not touch it. It starts again now and then, and tells the last changes
twice.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from spark.operators.algebra import ALL, PRESENT, rows, touched
from spark.topology.columns import Column
from spark.topology.nodes import Latest, Records, Scan
from tests.laws.laws import Broken, check_touched
from tests.laws.worlds import KEYS, Frames, Moves
from tests.support.quick import quick_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from resources.engine import Engine
    from spark.operators.algebra import Snapshot

WORLDS = 80
COLUMNS = (Column("world", "int"), Column("k", "int"), Column("v", "int"), Column("a", "string"), Column("b", "string"))
KEY = "struct<world: int, k: int>"
SCHEMA = (
    "world int, k int, v int, a string, b string, _timestamp timestamp, _topic string, _partition int, _offset bigint, "
    f"_deleted boolean, _error string, _batch bigint, _unavailable array<string>, _old_key {KEY}, _new_key {KEY}, "
    "_change bigint, _truncated boolean"
)
NAMES = tuple(part.split()[0] for part in SCHEMA.replace(KEY, "x").split(", "))
LONG = ("a", "b")
LANDING = Scan("_landing/t", ("world", "k"), COLUMNS, appended=True)
STREAM = Records(LANDING, captured=True)
PLANS = {"by offset": Latest(STREAM), "versioned": Latest(STREAM, history=1)}
EMPTIED = Latest(Records(LANDING, captured=True, truncates=True))

Record = dict[str, Any]
Row = tuple[Any, ...]


@dataclass(frozen=True)
class Captured(Frames):
    """A snapshot of the landing."""

    def stored(self, scan: Scan) -> DataFrame:  # noqa: ARG002  # there is one
        """All records."""
        return self.session.createDataFrame(self.landed, SCHEMA)


def world(rng: random.Random, number: int, truncates: bool, broken: bool) -> tuple[list[Record], dict[int, Row]]:
    """The records of one world, and the rows of its database at the end."""
    database: dict[int, dict[str, Any]] = {}
    told: list[Record] = []
    partitions = 1 if truncates else 3

    def tell(k: int | None, at: int, row: dict[str, Any] | None, left_out: tuple[str, ...] = (), **more: Any) -> None:
        values = dict.fromkeys(("v", "a", "b")) if row is None else row | dict.fromkeys(left_out)
        time = datetime(2026, 1, 1) + timedelta(seconds=at)
        record = {"world": number, "k": k, **values, "_timestamp": time, "_deleted": row is None}
        told.append(record | {"_unavailable": list(left_out) or None} | more)
        if row is None and k is not None:  # the tombstone
            told.append(record | {"_timestamp": None, "_unavailable": None})

    for at in range(rng.randrange(4, 14)):
        k, fresh = rng.choice(KEYS), {name: f"{name}{at}" for name in LONG if rng.random() < 0.4}
        left_out = tuple(name for name in LONG if name not in fresh)
        row = database.get(k)
        match rng.choice(["put", "put", "delete", "move", "move", "again", "truncate"]):
            case "put" if row is None:
                database[k] = {"v": at, "a": rng.choice([None, f"a{at}"]), "b": f"b{at}"}
                tell(k, at, database[k])
            case "put":
                assert row is not None
                database[k] = row | fresh | {"v": at}
                tell(k, at, database[k], left_out)
            case "delete" if row is not None:
                del database[k]
                tell(k, at, None)
            case "move" if row is not None and (free := [one for one in KEYS if one not in database]):
                to = rng.choice(free)
                del database[k]
                database[to] = row | fresh | {"v": at}
                tell(k, at, None, _new_key=(number, to), _change=at)
                tell(to, at, database[to], left_out, _old_key=(number, k), _change=at)
            case "again":
                told += told[-rng.randrange(1, 4) :]
            case "truncate" if truncates:
                database.clear()
                tell(None, at, None, _truncated=True)
    offsets: Counter[int] = Counter()
    cuts = {partition: sorted(rng.choices(range(12), k=2)) for partition in range(partitions)}
    records = []
    for one in told:
        partition = 0 if one["k"] is None else one["k"] % partitions
        offset = offsets[partition]
        offsets[partition] += 1
        batch = 1 + sum(offset >= cut for cut in cuts[partition])
        error = "does not decode" if broken and rng.random() < 0.1 and one["k"] is not None else None
        record = dict.fromkeys(NAMES) | one
        records.append(
            record
            | {"_topic": f"t{number}", "_partition": partition, "_offset": offset, "_batch": batch, "_error": error}
        )
    return records, {k: (row["v"], row["a"], row["b"], None) for k, row in database.items()}


def reference(records: list[Record], by_time: bool) -> dict[int, Row]:
    """The rows of one world, by key: v, a, b, and the columns that no record has."""
    decoded = sorted((one for one in records if one["_error"] is None), key=lambda one: one["_offset"])
    emptied = max((one["_offset"] for one in decoded if one["_truncated"]), default=-1)
    of_key: dict[int, list[Record]] = {}
    for one in decoded:
        if one["k"] is not None and one["_offset"] > emptied:
            of_key.setdefault(one["k"], []).append(one)
    if by_time:
        for history in of_key.values():
            time = datetime(1, 1, 1)
            timed = [(time := one["_timestamp"] or time, one["_offset"]) for one in history]
            history[:] = [one for _, one in sorted(zip(timed, history, strict=True), key=lambda pair: pair[0])]

    def value(k: int, before: int, name: str) -> tuple[Any] | None:
        """The value that the first records of a key leave, if one has it."""
        history, link = of_key[k], None
        for one in reversed(history[:before]):
            if one["_deleted"]:
                break
            if name not in (one["_unavailable"] or ()):
                return (one[name],)
            link = link or (one["_old_key"] and (one["_old_key"][1], one["_change"]))
        if link is None:
            return None
        for place, one in reversed(list(enumerate(of_key.get(link[0], [])))):
            same = one["_new_key"] is not None and one["_timestamp"] is not None and one["_new_key"][1] == k
            if same and one["_change"] == link[1] and (found := value(link[0], place, name)) is not None:
                return found
        return None

    found: dict[int, Row] = {}
    for k, history in of_key.items():
        last = history[-1]
        if last["_deleted"]:
            continue
        known = {name: value(k, len(history), name) for name in LONG}
        unknown = [name for name in LONG if known[name] is None]
        found[k] = (last["v"], *((known[name] or (None,))[0] for name in LONG), unknown or None)
    return found


def drawn(seed: int, truncates: bool = False, broken: bool = False) -> tuple[list[Record], dict[tuple[int, int], Row]]:
    """The records of all worlds, and all rows at the end."""
    rng = random.Random(seed)
    records: list[Record] = []
    final: dict[tuple[int, int], Row] = {}
    for number in range(WORLDS):
        told, database = world(rng, number, truncates, broken)
        records += told
        final |= {(number, k): row for k, row in database.items()}
    return records, final


def expected(records: list[Record], by_time: bool, upto: int) -> dict[tuple[Any, ...], Row]:
    found: dict[tuple[Any, ...], Row] = {}
    for number in range(WORLDS):
        of_world = [one for one in records if one["world"] == number and one["_batch"] <= upto]
        found |= {(number, k): row for k, row in reference(of_world, by_time).items()}
    return found


def snapshot(session: SparkSession, records: list[Record], upto: int) -> Captured:
    landed = [tuple(one[name] for name in NAMES) for one in records if one["_batch"] <= upto]
    return Captured(session, {}, landed)


def keyed(frame: DataFrame) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    names = ["world", "k", "v", "a", "b", "_unavailable", *([PRESENT] if PRESENT in frame.columns else [])]
    found: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for row in frame.select(*names).collect():
        assert row[:2] not in found, f"two rows of {row[:2]}"
        found[row[:2]] = tuple(row)
    return found


def plain(found: dict[tuple[Any, ...], tuple[Any, ...]]) -> dict[tuple[Any, ...], Row]:
    return {key: row[2:6] for key, row in found.items()}


@pytest.fixture(scope="module")
def session(engine: Engine) -> Iterator[SparkSession]:
    session = quick_session(engine)
    yield session
    session.stop()


def check(session: SparkSession, plan: Latest, records: list[Record], few: bool) -> Snapshot:
    """Hold a plan to the laws, over the span from the first batch to the last one; return the snapshot at its end."""
    by_time = plan.history is not None
    before, after = snapshot(session, records, 1), snapshot(session, records, 3)
    own = rows(plan, ALL, before)
    was, now = keyed(own), keyed(rows(plan, ALL, after))
    for found, upto in ((was, 1), (now, 3)):
        should = expected(records, by_time, upto)
        if plain(found) != should:
            raise Broken("reference", {**plain(found)}, {**should})
    changed = touched(plan, Moves(before, after, frozenset(), few, own))
    check_touched(was, now, {} if changed is None else keyed(changed))
    return after


@pytest.mark.parametrize("few", [True, False])
@pytest.mark.parametrize("name", PLANS)
def test_every_law_holds_and_the_table_is_the_database(session: SparkSession, name: str, few: bool) -> None:
    records, database = drawn(seed=len(name))
    plan = PLANS[name]
    after = check(session, plan, records, few)
    assert expected(records, plan.history is not None, 3) == database
    some = [(number, k) for number in range(WORLDS) for k in KEYS if (number + k) % 3 == 0]
    at = session.createDataFrame(some, "world int, k int")
    assert plain(keyed(rows(plan, at, after))) == {key: database[key] for key in some if key in database}


@pytest.mark.parametrize("name", PLANS)
def test_a_record_that_does_not_decode_is_as_if_it_had_not_been_sent(session: SparkSession, name: str) -> None:
    records, _ = drawn(seed=7, broken=True)
    check(session, PLANS[name], records, few=True)


def test_a_truncate_empties_the_table(session: SparkSession) -> None:
    records, database = drawn(seed=8, truncates=True)
    check(session, EMPTIED, records, few=True)
    assert expected(records, by_time=False, upto=3) == database
