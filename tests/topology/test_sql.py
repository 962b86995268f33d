"""Expressions that Spark accepts are accepted, and what can be known of them is known."""

from __future__ import annotations

import pytest

from spark.topology.columns import Column, Line
from spark.topology.errors import Place, TopologyError
from spark.topology.sql.expressions import Expression, parse_expression, parse_item
from spark.topology.sql.tokens import lex

COLUMNS = (
    Column("a", "int"),
    Column("b", "bigint"),
    Column("name", "string"),
    Column("s", "struct<x:int,y:struct<z:string>>"),
    Column("xs", "array<int>"),
    Column("m", "map<string,int>"),
    Column("made", None),
    Column("my-column", "string"),
    Column("end", "timestamp"),
    Column("Day", "date"),
    Column("left", "struct<a:int>"),
)
PLACE = Place("filter of t", Line("here.py", 1), {"": COLUMNS})
JOIN = Place("join of t with u", Line("here.py", 1), {"left": COLUMNS, "right": (Column("k", "int"),)})


@pytest.mark.parametrize(
    "sql",
    [
        "a",
        "a + b * -1 - +2 % 3",
        "a = 1 AND NOT b <> 2 OR a <=> b AND (a == b OR a != b)",
        "a << 1 >> 1 >>> 1 | ~b & 1 ^ 2",
        "a BETWEEN 1 AND 2 AND b NOT BETWEEN 3 AND 4",
        "name IN ('x', 'y') AND a NOT IN (1, 2L, 3.5BD, 1e3, .5)",
        "name LIKE 'a%' ESCAPE '!' AND name NOT RLIKE r'\\d+' AND name ILIKE ANY ('a%', 'b%')",
        "name IS NOT NULL AND (a IS NULL) IS DISTINCT FROM true",
        "CASE WHEN a > 1 THEN 'x' WHEN a < 1 THEN \"y\" ELSE name END",
        "CASE a WHEN 1 THEN b ELSE NULL END",
        "if(a > 1, b, nullif(b, 2))",
        "cast(a AS decimal(12, 2)) + try_cast(name AS array<array<int>>)[0][1]",
        "a::bigint::string || 'x'",
        "date '2026-01-01' < Day AND timestamp'2026-01-01 00:00:00' > end AND x'1F' IS NOT NULL",
        "Day + interval 1 day 2 hours",
        "Day - INTERVAL '1-2' YEAR TO MONTH + interval '3' minutes",
        "extract(dow FROM Day) + extract(year from end)",
        "timestampadd(MONTH, 1, end) > dateadd(day, 1, Day)",
        "trim(BOTH ' ' FROM name) || substring(name FROM 1 FOR 2) || overlay(name PLACING 'x' FROM 1)",
        "position('a' IN name)",
        "name COLLATE utf8_binary = 'x'",
        "s.x + s.y.z",
        "left.a + left('abc', 2) + right(name, 1)",
        "xs[0] + m['k'] + element_at(xs, 1) + made.anything",
        "transform(xs, x -> x + a)",
        "aggregate(xs, 0, (acc, x) -> acc + x, acc -> acc * 10)",
        "filter(xs, (x, i) -> x > i AND exists(xs, y -> y = x))",
        "transform(made, r -> r.price * r.qty)",
        "struct(a AS first, name AS second).first",
        "named_struct('x', 1).x",
        "`my-column` = 'x' AND `a` = 1",
        "_timestamp > end AND _topic = 'x' AND _partition = 0 AND _offset > 1",
        "'it''s' = 'it\\'s; -- no comment, (no call' AND name = \"`\"",
        "concat_ws(',', name) = ''",
        "timestamp 'epoch' < end",
        "unix_timestamp(end) > 1 AND CASE WHEN end < end THEN a ELSE end END IS NULL",
        "mask(name, lowerChar => 'y')",
        "array()",
        "(((a)))",
        "timediff(HOUR, end, end) > 1",
        "`added_to_the_cluster`(a) + catalog.schema.added(b)",
    ],
)
def test_what_spark_accepts_is_accepted(sql: str) -> None:
    assert parse_expression(sql, PLACE).text == sql
    with pytest.raises(TopologyError):
        parse_expression(sql + " AND unknown_column > 1", PLACE)


@pytest.mark.parametrize(
    ("sql", "type_"),
    [
        ("A", "int"),
        ("`My-Column`", "string"),
        ("end", "timestamp"),
        ("_offset", None),
        ("a + 1", None),
        ("(a)", None),
        ("s.x", None),
        ("cast(a AS Decimal)", "decimal(10,0)"),
        ("CAST(a + b AS map<string, array<LONG>>)", "map<string,array<bigint>>"),
        ("try_cast(name AS date)", "date"),
        ("cast(a AS int) + cast(b AS int)", None),
        ("cast(a AS varchar(10))", None),
        ("cast(name AS interval day to second)", None),
        ("a::double", "double"),
        ("lower(name)::binary", "binary"),
        ("(a + b)::decimal(5, 2)", "decimal(5,2)"),
        ("xs[0]::string", "string"),
        ("a::int::string", "string"),
        ("a + b::string", None),
        ("-a::string", None),
        ("NOT a::boolean", None),
        ("CASE WHEN true THEN a END::string", None),
    ],
)
def test_a_type_is_known_of_a_column_or_a_cast(sql: str, type_: str | None) -> None:
    assert parse_expression(sql, PLACE).type == type_


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ("A", (None, Expression("a", "int", COLUMNS[0]))),
        ("a AS `my total`", ("my total", Expression("a", "int", COLUMNS[0]))),
        ("a\n  +\tb AS Total", ("Total", Expression("a + b", None))),
        ("cast(a AS string) as t", ("t", Expression("cast(a AS string)", "string"))),
        ("struct(a AS x) AS s", ("s", Expression("struct(a AS x)", None))),
        ("'a  b' AS text", ("text", Expression("'a  b'", None))),
    ],
)
def test_an_item_is_an_expression_and_a_name(item: str, expected: tuple[str | None, Expression]) -> None:
    assert parse_item(item, PLACE) == expected


@pytest.mark.parametrize(
    ("item", "text"),
    [
        ("LEFT.A", "left.a"),
        ("Right.`K`", "right.k"),
        ("left.`my-column`", "left.`my-column`"),
        ("left._offset", "left._offset"),
        ("left.s.y.z", "left.s.y.z"),
        ("left.left.a", "left.left.a"),
        ("coalesce(right.k, left.a)", "coalesce(right.k, left.a)"),
        ("transform(left.xs, k -> k + right.k)", "transform(left.xs, k -> k + right.k)"),
        ("left(left.name, 1)", "left(left.name, 1)"),
    ],
)
def test_in_a_join_every_column_says_its_side(item: str, text: str) -> None:
    assert parse_item(item, JOIN)[1].text == text


def test_a_variable_is_known_in_its_own_lambda_alone() -> None:
    with pytest.raises(TopologyError, match="'x' is not a column of the source, at character 31"):
        parse_expression("size(transform(xs, x -> x)) + x", PLACE)
    with pytest.raises(TopologyError, match="'acc' is not a column of the source, at character 15"):
        parse_expression("aggregate(xs, acc, (acc, x) -> acc + x)", PLACE)


@pytest.mark.parametrize(
    ("sql", "tokens"),
    [
        ("a.b+1", ["a", ".", "b", "+", "1"]),
        ("x->y=>z::t<=>u", ["x", "->", "y", "=>", "z", "::", "t", "<=>", "u"]),
        ("a<>b!=c||d", ["a", "<>", "b", "!=", "c", "||", "d"]),
        ("'a\\'b' \"c\" `d``e`", ["'a\\'b'", '"c"', "`d``e`"]),
        ("r'\\' || x", ["r'\\'", "||", "x"]),
        ("1.5e-3D .5 10L 2.", ["1.5e-3D", ".5", "10L", "2."]),
        ("array<array<int>>", ["array", "<", "array", "<", "int", ">", ">"]),
    ],
)
def test_text_is_cut_into_tokens(sql: str, tokens: list[str]) -> None:
    assert [token.text for token in lex(sql, PLACE).tokens] == tokens
