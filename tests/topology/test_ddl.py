"""Columns declared as DDL text, their types normalised."""

from __future__ import annotations

import pytest

from spark.topology.columns import Column, Line
from spark.topology.errors import Place, TopologyError
from spark.topology.sql.ddl import parse_columns, quoted

PLACE = Place("Consumed.json value", Line("here.py", 7))


@pytest.mark.parametrize(
    ("text", "type_"),
    [
        ("BigInt", "bigint"),
        ("long", "bigint"),
        ("integer", "int"),
        ("short", "smallint"),
        ("byte", "tinyint"),
        ("real", "float"),
        ("decimal", "decimal(10,0)"),
        ("decimal(12)", "decimal(12,0)"),
        ("DEC( 12 , 2 )", "decimal(12,2)"),
        ("numeric(38, 38)", "decimal(38,38)"),
        ("timestamp_ltz", "timestamp"),
        ("timestamp_ntz", "timestamp_ntz"),
        ("variant", "variant"),
        ("Array < String >", "array<string>"),
        ("map<string, array<decimal(5, 1)>>", "map<string,array<decimal(5,1)>>"),
        ("struct<Name: string, inner struct<`a-b`: int>>", "struct<Name:string,inner:struct<`a-b`:int>>"),
    ],
)
def test_a_type_is_normalised(text: str, type_: str) -> None:
    assert parse_columns(f"x {text}", PLACE) == (Column("x", type_),)


def test_columns_keep_their_order_and_spelling() -> None:
    assert parse_columns("Order_Id bigint,\n  `my-tags` array<string> , date date", PLACE) == (
        Column("Order_Id", "bigint"),
        Column("my-tags", "array<string>"),
        Column("date", "date"),
    )


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "a column name is missing, at character 1 of ''"),
        ("id", "a type is missing, at character 3 of 'id'"),
        ("id bigint,", "a column name is missing, at character 11"),
        ("id bigint name string", "',' is missing, at character 11"),
        ("id bigint not null", "',' is missing, at character 11"),
        ("id bigint, ID int", "the column 'ID' is declared twice, at character 12"),
        ("id bigin", "there is no type 'bigin'; did you mean bigint?, at character 4"),
        ("id varchar(10)", "there is no type 'varchar'"),
        ("id interval", "there is no type 'interval'"),
        ("id array", "'<' is missing, at character 9"),
        ("id array<int", "'>' is missing, at character 13"),
        ("id array<int, int>", "'>' is missing, at character 13"),
        ("id map<int>", "',' is missing, at character 11"),
        ("id struct<>", "'<' is missing, at character 10"),
        ("id struct<a int,>", "a field name is missing, at character 17"),
        ("id struct<a int b int>", "'>' is missing, at character 17"),
        ("id decimal(a)", "a decimal is written decimal(precision, scale)"),
        ("id decimal(5,)", "')' is missing"),
        ("id decimal(39)", "a decimal has 1 to 38 digits, and its scale is at most its precision"),
        ("id decimal(5,6)", "a decimal has 1 to 38 digits"),
        ("id decimal(5", "'(' is not closed, at character 11"),
        ("_id bigint", "the column name '_id' begins with an underscore"),
        ("`my id` bigint", "the column name 'my id' cannot be stored"),
        ("`a.b` bigint", "the column name 'a.b' cannot be stored"),
        ("s struct<`a b`:int>", "the field name 'a b' cannot be stored, at character 10"),
        ("s array<struct<t struct<`a=b`:int>>>", "the field name 'a=b' cannot be stored"),
        ("s struct<a:int, A:string>", "the field 'A' is declared twice, at character 17"),
        ("5 bigint", "a column name is missing, at character 1"),
        ("id bigint -- the key", "has a comment"),
        ("id bigint; drop", "unexpected ; at character 10"),
    ],
)
def test_a_mistake_shows_where_it_is(text: str, what: str) -> None:
    with pytest.raises(TopologyError) as caught:
        parse_columns(text, PLACE)
    assert str(caught.value).startswith("Consumed.json value: ")
    assert what in str(caught.value)
    assert str(caught.value).endswith("\n  at here.py:7")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("plain_1", "plain_1"),
        ("my-id", "`my-id`"),
        ("größe", "`größe`"),
        ("1st", "`1st`"),
        ("Null", "`Null`"),
        ("end", "end"),
    ],
)
def test_a_name_is_quoted_where_it_must_be(name: str, text: str) -> None:
    assert quoted(name) == text
