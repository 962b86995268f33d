"""Which types are wider than others, and what is certain to have the same value over a wider one."""

from __future__ import annotations

import pytest

from spark.topology.columns import Column
from spark.topology.sql.widening import ValuesMayDiffer, Wider, aggregated, check_condition, is_wider, is_wider_key

INTS, MONEY = Wider("int", "bigint"), Wider("decimal(10,2)", "decimal(14,2)")
REAL, DAY = Wider("float", "double"), Wider("date", "timestamp_ntz")
WIDER = {"v": INTS, "d": MONEY, "f": REAL, "t": DAY, "e": Wider("int", "decimal(12,2)"), "count": INTS}
COLUMNS = (*(Column(name, types.now) for name, types in WIDER.items()), Column("s", "string"), Column("n", "bigint"))


@pytest.mark.parametrize(
    ("before", "now", "as_key"),
    [
        ("tinyint", "smallint", True),
        ("smallint", "bigint", True),
        ("int", "double", False),
        ("tinyint", "decimal(3,0)", False),
        ("bigint", "decimal(21,2)", False),
        ("float", "double", False),
        ("decimal(10,2)", "decimal(11,2)", True),
        ("decimal(10,2)", "decimal(12,4)", False),
        ("date", "timestamp_ntz", False),
        ("array<int>", "array<bigint>", False),
        ("map<string,struct<a:int,b:string>>", "map<string,struct<a:bigint,b:string>>", False),
    ],
)
def test_wider(before: str, now: str, as_key: bool) -> None:
    assert is_wider(now, before)
    assert not is_wider(before, now)
    assert is_wider_key(now, before) == as_key


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("int", "int"),
        ("bigint", "double"),  # it has 53 bits
        ("int", "float"),
        ("int", "decimal(9,0)"),
        ("bigint", "decimal(20,2)"),
        ("decimal(10,2)", "decimal(11,4)"),
        ("decimal(10,2)", "decimal(20,1)"),
        ("decimal(10,2)", "double"),
        ("date", "timestamp"),  # which instant depends on a zone
        ("int", "string"),
        ("map<int,string>", "map<bigint,string>"),
        ("struct<a:int>", "struct<a:bigint,b:int>"),
        ("struct<a:int>", "struct<b:bigint>"),
        ("array<int>", "bigint"),
    ],
)
def test_not_wider(before: str, now: str) -> None:
    assert not is_wider(now, before)


@pytest.mark.parametrize(
    "text",
    ["v > 1", "v IN (1, 2) AND NOT d <= 100.5", "v BETWEEN n AND 7", "f IS NOT NULL OR t IS NULL", "s LIKE 'a%'"],
)
def test_a_condition_that_has_the_same_value(text: str) -> None:
    check_condition(text, WIDER, COLUMNS)


@pytest.mark.parametrize(
    "text",
    ["v + 1", "f > 0.1", "v = s", "v = '7'", "t > DATE '2026-01-01'", "cast(v AS string)", "abs(d) > 1", "d > 1e0"],
)
def test_an_expression_that_may_have_another_value(text: str) -> None:
    with pytest.raises(ValuesMayDiffer, match=r" was \S+ and is .*may have other values"):
        check_condition(text, WIDER, COLUMNS)


@pytest.mark.parametrize(
    ("text", "types"),
    [
        ("count(f)", None),
        ("count(s)", None),
        ("max(f)", REAL),
        ("min(`t`)", DAY),
        ("sum(v)", None),
        ("avg(v)", None),
        ("sum(d)", Wider("decimal(20,2)", "decimal(24,2)")),
        ("sum(n)", None),
    ],
)
def test_an_aggregate_that_has_the_same_value(text: str, types: Wider | None) -> None:
    assert aggregated(text, WIDER) == types


@pytest.mark.parametrize("text", ["avg(d)", "sum(f)", "sum(e)", "sum(v + 1)", "max_by(s, v)", "max(v) - min(v)"])
def test_an_aggregate_that_may_have_another_value(text: str) -> None:
    with pytest.raises(ValuesMayDiffer):
        aggregated(text, WIDER)
