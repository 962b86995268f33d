"""The hard cases of the table algebra, by name, each in every way its records can fall into batches.

A scenario in one way is a world, a number in front of every key, so that all of them go through one topology together:
the n-th batch of every world is one batch of the driver.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import combinations, pairwise, permutations, zip_longest
from math import factorial
from typing import TYPE_CHECKING

import pytest

from spark.testing import TopologyTestDriver
from spark.topology import Consumed, StreamsBuilder, Topology
from tests.support.quick import quick_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from resources.engine import Engine
    from spark.topology.handles import KTable

Rows = dict[object, tuple[object, ...]]  # the values by the key; a key of one column is not wrapped
Tables = dict[str, Rows]


@dataclass(frozen=True)
class Record:
    """A record of any world."""

    topic: str
    key: tuple[str | None, ...]
    value: dict[str, object] | None


@dataclass(frozen=True)
class Scenario:
    """Records, and the rows that tables must have after them. `shuffled` of the last records come in every order."""

    records: list[Record]
    expected: Tables
    shuffled: int = 0

    def orders(self) -> Iterator[list[Record]]:
        """The records as they may come in."""
        fixed = len(self.records) - self.shuffled
        for order in permutations(self.records[fixed:]):
            yield [*self.records[:fixed], *order]

    def ways(self) -> Iterator[list[list[Record]]]:
        """Every order of the records, cut into batches in every way."""
        for records in self.orders():
            for cuts in range(len(records)):
                for places in combinations(range(1, len(records)), cuts):
                    yield [records[start:end] for start, end in pairwise((0, *places, len(records)))]


def left(k: str | None, *gone: None, **value: object) -> Record:
    return Record("left", (k,), None if gone else value)


def right(f: str, *gone: None, **value: object) -> Record:
    return Record("right", (f,), None if gone else value)


def third(k: str, **value: object) -> Record:
    return Record("third", (k,), value)


def pair(f: str, g: str, **value: object) -> Record:
    return Record("pairs", (f, g), value)


def topology() -> Topology:
    """Every operator on tables; the same right side by its primary key, by one foreign key and by two."""
    builder = StreamsBuilder("cases")

    def table(name: str, key: str, value: str) -> KTable:
        return builder.table(name, Consumed.json(key=f"world int, {key}", value=value))

    left = table("left", "k string", "f string, g string, v int")
    right = table("right", "f string", "r string")
    third = table("third", "k string", "t string")
    pairs = table("pairs", "f string, g string", "p string")
    both = ["left.v", "right.r"]
    f, g = ["world", "f"], ["world", "g"]

    left.join(right, select=both).materialize("pk_inner")
    left.left_join(right, select=both).materialize("pk_left")
    left.outer_join(right, select=both).materialize("pk_outer")
    left.join(right, on=f, select=both).materialize("fk_inner")
    left.left_join(right, on=f, select=both).materialize("fk_left")
    left.left_join(pairs, on=[*f, "g"], select=["left.v", "right.p"]).materialize("of_pairs")
    left.left_join(left, on=f, select=["left.v", "right.v AS other"]).materialize("self")
    by_f = left.left_join(right, on=f, select=["left.*", "right.r AS of_f"]).materialize("by_f")
    by_f.left_join(right, on=g, select=["left.of_f", "right.r AS of_g"]).materialize("two_keys")
    by_f.join(third, select=["left.v", "left.of_f", "right.t"]).materialize("n_way")
    left.join(right, on=f, select="nullif(right.r, 'a') AS r").materialize("of_nulls")
    once = left.join(right, select=["left.v", "right.r"])
    once.join(right, select=["left.v", "left.r", "right.r AS again"]).materialize("own_input")
    left.filter("v > 0").map_values("v").materialize("kept")
    groups = left.group_by("world", "f").aggregate(n="count(*)", total="sum(v)", least="min(v)")
    groups.materialize("groups")
    left.join(groups, on=f, select=["left.v", "right.total"]).materialize("diamond")

    lines = table("lines", "line string", "order_id string")
    orders = table("orders", "order_id string", "customer string")
    customers = table("customers", "customer string", "country string, name string")
    countries = table("countries", "country string", "title string")
    with_order = lines.left_join(orders, on=["world", "order_id"], select=["left.*", "right.customer"])
    with_customer = with_order.left_join(
        customers, on=["world", "customer"], select=["left.*", "right.name", "right.country"]
    )
    with_country = with_customer.left_join(
        countries, on=["world", "country"], select=["left.customer", "left.name", "right.title"]
    )
    with_country.materialize("chain")
    return builder.build()


A, B = right("x", r="a"), right("y", r="b")

CASES: dict[str, Scenario] = {
    "a right key that is a prefix of another is another key": Scenario(
        [right("x", r="a"), right("xy", r="b"), left("1", f="xy", v=1), left("2", f="x", v=2), right("x", r="c")],
        {"fk_inner": {"1": (1, "b"), "2": (2, "c")}},
    ),
    "keys of several columns are not run together": Scenario(
        [
            pair("a", "bc", p="one"),
            pair("ab", "c", p="two"),
            left("1", f="a", g="bc", v=1),
            left("2", f="ab", g="c", v=2),
            left("3", f="abc", g="", v=3),
        ],
        {"of_pairs": {"1": (1, "one"), "2": (2, "two"), "3": (3, None)}},
    ),
    "a foreign key of which one column is null finds nothing": Scenario(
        [pair("a", "b", p="one"), left("1", f="a", g="b"), left("1", f="a", v=1), left("2", g="b", v=2)],
        {"of_pairs": {"1": (1, None), "2": (2, None)}},
    ),
    "a foreign key goes from A to B and back": Scenario(
        [A, B, left("1", f="x", v=1), left("1", f="y", v=1), left("1", f="x", v=1)],
        {"fk_inner": {"1": (1, "a")}, "groups": {"x": (1, 1, 1)}},
    ),
    "a foreign key is away while its right row changes, and comes back": Scenario(
        [A, B, left("1", f="x", v=1), left("1", f="y", v=1), right("x", r="c"), left("1", f="x", v=1)],
        {"fk_inner": {"1": (1, "c")}, "fk_left": {"1": (1, "c")}},
    ),
    "a foreign key is away while its right row is deleted, and comes back": Scenario(
        [A, B, left("1", f="x", v=1), left("1", f="y", v=1), right("x", None), left("1", f="x", v=1)],
        {"fk_inner": {}, "fk_left": {"1": (1, None)}},
    ),
    "a left row is deleted and inserted again": Scenario(
        [A, left("1", f="x", v=1), left("1", None), left("1", f="x", v=1)],
        {"fk_inner": {"1": (1, "a")}, "groups": {"x": (1, 1, 1)}, "kept": {"1": (1,)}},
    ),
    "a left row is deleted and inserted with another foreign key": Scenario(
        [A, B, left("1", f="x", v=1), left("1", None), left("1", f="y", v=2)],
        {"fk_inner": {"1": (2, "b")}, "groups": {"y": (1, 2, 2)}},
    ),
    "a right row is deleted and inserted again": Scenario(
        [A, left("1", f="x", v=1), left("x", v=2), right("x", None), right("x", r="a")],
        {"fk_inner": {"1": (1, "a")}, "pk_inner": {"x": (2, "a")}, "pk_outer": {"1": (1, None), "x": (2, "a")}},
    ),
    "a row comes and goes": Scenario(
        [A, left("1", f="x", v=1), left("1", None)],
        {"left": {}, "fk_inner": {}, "fk_left": {}, "groups": {}, "kept": {}, "pk_outer": {"x": (None, "a")}},
    ),
    "a tombstone for a key that never was is nothing": Scenario(
        [left("1", None), right("x", None), left("2", f="x", v=1), left("1", None)],
        {"left": {"2": ("x", None, 1)}, "right": {}, "fk_left": {"2": (1, None)}},
    ),
    "a row whose columns are all null is no tombstone": Scenario(
        [left("x"), right("x"), left("1", f="x")],
        {
            "left": {"x": (None, None, None), "1": ("x", None, None)},
            "pk_inner": {"x": (None, None)},
            "pk_outer": {"x": (None, None), "1": (None, None)},
            "fk_inner": {"1": (None, None)},
            "groups": {"x": (1, None, None)},
        },
    ),
    "a row that becomes all null, and one that was": Scenario(
        [left("x", f="x", v=1), right("x", r="a"), left("x"), right("x"), right("x", r="b")],
        {"pk_inner": {"x": (None, "b")}, "fk_inner": {}, "fk_left": {"x": (None, None)}, "groups": {}},
    ),
    "a joiner that gives null gives a row": Scenario(
        [A, left("1", f="x", v=1), right("x", r="b"), A, left("2", f="x", v=2)],
        {"of_nulls": {"1": (None,), "2": (None,)}},
    ),
    "a record without key is no row": Scenario(
        [left(None, f="x", v=1), A, left("1", f="x", v=2)],
        {"left": {"1": ("x", None, 2)}, "groups": {"x": (1, 2, 2)}},
    ),
    "a repeated update changes nothing": Scenario(
        [A, left("1", f="x", v=1), left("1", f="x", v=1), A, left("1", f="x", v=1)],
        {"fk_inner": {"1": (1, "a")}, "groups": {"x": (1, 1, 1)}},
    ),
    "a group is emptied by a move": Scenario(
        [left("1", f="x", v=1), left("2", f="y", v=2), left("1", f="y", v=3)],
        {"groups": {"y": (2, 5, 2)}, "diamond": {"1": (3, 5), "2": (2, 5)}},
    ),
    "a group is emptied by a tombstone and filled again": Scenario(
        [left("1", f="x", v=5), left("1", None), left("2", f="x", v=0)],
        {"groups": {"x": (1, 0, 0)}, "diamond": {"2": (0, 0)}, "kept": {}},
    ),
    "a group is emptied by a null": Scenario(
        [left("1", f="x", v=5), left("2", v=1), left("1", v=5)],
        {"groups": {}, "diamond": {}, "left": {"1": (None, None, 5), "2": (None, None, 1)}},
    ),
    "a group loses its minimum": Scenario(
        [left("1", f="x", v=1), left("2", f="x", v=2), left("3", f="x", v=3), left("1", f="x", v=9)],
        {"groups": {"x": (3, 14, 2)}},
    ),
    "rows swap their groups": Scenario(
        [left("1", f="x", v=1), left("2", f="y", v=2), left("1", f="y", v=1), left("2", f="x", v=2)],
        {"groups": {"x": (1, 2, 2), "y": (1, 1, 1)}},
    ),
    "both sides of a diamond move together": Scenario(
        [left("1", f="x", v=1), left("2", f="x", v=2), left("1", f="y", v=3), left("2", f="y", v=4)],
        {"diamond": {"1": (3, 7), "2": (4, 7)}},
    ),
    "a row leaves a filter and comes back": Scenario(
        [left("1", v=1), left("1", v=0), left("2", v=2), left("1", v=3), left("2")],
        {"kept": {"1": (3,)}},
    ),
    "both sides are deleted": Scenario(
        [left("x", f="x", v=1), A, right("x", None), left("x", None)],
        {"pk_inner": {}, "pk_left": {}, "pk_outer": {}, "fk_inner": {}, "fk_left": {}},
        shuffled=2,
    ),
    "a row that only the right side has goes": Scenario(
        [A, left("x", v=1), left("x", None), right("x", None)],
        {"pk_outer": {}},
        shuffled=2,
    ),
    "an inner join with one of its own inputs loses its row": Scenario(
        [left("x", v=1), A, left("y", v=2), B, right("x", None)],
        {"own_input": {"y": (2, "b", "b")}},
    ),
    "a right row is deleted as its left row changes": Scenario(
        [A, left("1", f="x", v=0), right("x", None), left("1", f="x", v=1)],
        {"fk_inner": {}, "fk_left": {"1": (1, None)}},
        shuffled=2,
    ),
    "a row is its own foreign key": Scenario(
        [left("1", f="1", v=1), left("1", f="1", v=2)],
        {"self": {"1": (2, 2)}},
    ),
    "a table joined with itself moves on both sides": Scenario(
        [left("1", f="2", v=1), left("2", f="1", v=2), left("2", f="1", v=3), left("1", f="2", v=4)],
        {"self": {"1": (4, 3), "2": (3, 4)}},
        shuffled=2,
    ),
    "a parent is deleted with its child's move": Scenario(
        [left("1", f="2", v=1), left("2", v=2), left("3", v=3), left("2", None), left("1", f="3", v=4)],
        {"self": {"1": (4, 3), "3": (3, None)}},
        shuffled=2,
    ),
    "two foreign keys into one table": Scenario(
        [A, B, left("1", f="x", g="y"), left("2", f="x", g="x"), right("x", r="c"), right("y", None)],
        {"two_keys": {"1": ("c", None), "2": ("c", "c")}},
    ),
    "two foreign keys swap": Scenario(
        [A, B, left("1", f="x", g="y"), left("1", f="y", g="x"), right("x", r="c")],
        {"two_keys": {"1": ("b", "c")}},
        shuffled=2,
    ),
    "an n-way join follows each of its inputs": Scenario(
        [left("1", f="x", v=1), A, third("1", t="t"), left("1", f="x", v=2), right("x", r="c"), third("1", t="u")],
        {"n_way": {"1": (2, "c", "u")}},
        shuffled=3,
    ),
    "a record gains and loses fields between two changes of its right row": Scenario(
        [A, left("1", f="x", v=1, later="new"), right("x", r="b"), left("1", f="x"), right("x", r="c", more=1)],
        {"fk_inner": {"1": (None, "c")}},
    ),
    "a chain of four tables, from the far end": Scenario(
        [
            Record("countries", ("DE",), {"title": "Germany"}),
            Record("customers", ("c",), {"country": "DE", "name": "Ada"}),
            Record("orders", ("o",), {"customer": "c"}),
            Record("lines", ("l",), {"order_id": "o"}),
        ],
        {"chain": {"l": ("c", "Ada", "Germany")}},
        shuffled=4,
    ),
    "the middle of a chain moves": Scenario(
        [
            Record("lines", ("l",), {"order_id": "o"}),
            Record("orders", ("o",), {"customer": "c"}),
            Record("customers", ("c",), {"country": "DE", "name": "Ada"}),
            Record("countries", ("DE",), {"title": "Germany"}),
            Record("orders", ("o",), {"customer": "d"}),
            Record("customers", ("d",), {"country": "DE", "name": "Ben"}),
        ],
        {"chain": {"l": ("d", "Ben", "Germany")}},
    ),
    "the far end of a chain changes": Scenario(
        [
            Record("countries", ("DE",), {"title": "Germany"}),
            Record("customers", ("c",), {"country": "DE", "name": "Ada"}),
            Record("orders", ("o",), {"customer": "c"}),
            Record("lines", ("l",), {"order_id": "o"}),
            Record("countries", ("DE",), {"title": "Deutschland"}),
        ],
        {"chain": {"l": ("c", "Ada", "Deutschland")}},
    ),
    "the middle of a chain is deleted": Scenario(
        [
            Record("countries", ("DE",), {"title": "Germany"}),
            Record("customers", ("c",), {"country": "DE", "name": "Ada"}),
            Record("orders", ("o",), {"customer": "c"}),
            Record("lines", ("l",), {"order_id": "o"}),
            Record("customers", ("c",), None),
        ],
        {"chain": {"l": ("c", None, None)}},
    ),
    "a foreign key and both its right rows change": Scenario(
        [A, B, left("1", f="x", v=1), left("1", f="y", v=2), right("x", r="c"), right("y", r="d")],
        {"fk_inner": {"1": (2, "d")}, "fk_left": {"1": (2, "d")}},
        shuffled=3,
    ),
    "a foreign key moves, its old right row changes and its new one is deleted": Scenario(
        [A, B, left("1", f="x", v=1), left("1", f="y", v=2), right("x", r="c"), right("y", None)],
        {"fk_inner": {}, "fk_left": {"1": (2, None)}},
        shuffled=3,
    ),
    "a foreign key moves, its old right row is deleted and its new one appears": Scenario(
        [A, left("1", f="x", v=1), left("1", f="y", v=2), right("x", None), right("y", r="d")],
        {"fk_inner": {"1": (2, "d")}, "fk_left": {"1": (2, "d")}},
        shuffled=3,
    ),
}


# What a left row's foreign key was and is, and the rows then: of an inner and of a left join, where the right rows
# are there and where they are not.
X, Y = "x", "y"
NONE: Rows = {}
ROW: Rows = {"1": (2, None)}
FOUND_X: Rows = {"1": (2, "a")}
FOUND_Y: Rows = {"1": (2, "b")}
MATRIX: list[tuple[str, list[Record], Rows, Rows, Rows, Rows]] = [
    # transition, records, inner and left with right rows, inner and left without
    ("nothing to null", [left("1", v=2)], NONE, ROW, NONE, ROW),
    ("nothing to x", [left("1", f=X, v=2)], FOUND_X, FOUND_X, NONE, ROW),
    ("null to null", [left("1", v=1), left("1", v=2)], NONE, ROW, NONE, ROW),
    ("null to x", [left("1", v=1), left("1", f=X, v=2)], FOUND_X, FOUND_X, NONE, ROW),
    ("x to null", [left("1", f=X, v=1), left("1", v=2)], NONE, ROW, NONE, ROW),
    ("x to x", [left("1", f=X, v=1), left("1", f=X, v=2)], FOUND_X, FOUND_X, NONE, ROW),
    ("x to y", [left("1", f=X, v=1), left("1", f=Y, v=2)], FOUND_Y, FOUND_Y, NONE, ROW),
    ("null to nothing", [left("1", v=1), left("1", None)], NONE, NONE, NONE, NONE),
    ("x to nothing", [left("1", f=X, v=1), left("1", None)], NONE, NONE, NONE, NONE),
]
CELLS = {
    f"foreign key from {name}, right rows {there}": Scenario(given + records, {"fk_inner": inner, "fk_left": outer})
    for name, records, inner_there, left_there, inner_gone, left_gone in MATRIX
    for there, given, inner, outer in (
        ("present", [A, B], inner_there, left_there),
        ("deleted", [A, B, right(X, None), right(Y, None)], inner_gone, left_gone),
    )
}

ALL = CASES | CELLS


@dataclass(frozen=True)
class Ended:
    """What the tables hold in the end, for every way of a scenario."""

    ways: list[list[list[Record]]]
    tables: list[Tables]


@pytest.fixture(scope="module")
def ended(engine: Engine) -> Iterator[dict[str, Ended]]:
    """All scenarios in all their ways, through one topology."""
    session = quick_session(engine)
    ways = {name: list(scenario.ways()) for name, scenario in ALL.items()}
    found = iter(run(topology(), [way for each in ways.values() for way in each], session))
    yield {name: Ended(each, [next(found) for _ in each]) for name, each in ways.items()}
    session.stop()


def run(topology: Topology, worlds: list[list[list[Record]]], session: SparkSession) -> list[Tables]:
    """The tables of every world after its last batch."""
    driver = TopologyTestDriver(topology, "all", session)
    for batches in zip_longest(*worlds, fillvalue=[]):
        for world, records in enumerate(batches):
            for record in records:
                names = [column.name for column in topology.source(record.topic).consumed.key[1:]]
                key = {"world": world, **dict(zip(names, record.key, strict=True))}
                # The driver refuses a key that no row can have, unless it comes as bytes, as it does from Kafka.
                driver.pipe(
                    record.topic, key=json.dumps(key).encode() if None in record.key else key, value=record.value
                )
        driver.advance()
    found: list[Tables] = [{table.name: {} for table in topology.tables} for _ in worlds]
    for table in topology.tables:
        for row in driver.table(table.name):
            number, *rest = (row.pop(name) for name in table.plan.key)
            found[int(str(number))][table.name][rest[0] if len(rest) == 1 else tuple(rest)] = tuple(row.values())
    return found


@pytest.mark.parametrize("name", CASES)
def test_case(ended: dict[str, Ended], name: str) -> None:
    check(ALL[name], ended[name])


@pytest.mark.parametrize("name", CELLS)
def test_foreign_key(ended: dict[str, Ended], name: str) -> None:
    check(ALL[name], ended[name])


def check(scenario: Scenario, ended: Ended) -> None:
    """The expected rows, whatever the order and the batches; and where the order is one, all tables are the same."""
    assert len(ended.ways) == factorial(scenario.shuffled) * 2 ** (len(scenario.records) - 1)
    for way, tables in zip(ended.ways, ended.tables, strict=True):
        assert {name: tables[name] for name in scenario.expected} == scenario.expected, way
        assert tables == ended.tables[0], way
