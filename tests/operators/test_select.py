"""`filter` and `map_values`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark.operators.algebra import ALL, rows, touched
from spark.topology import Consumed, StreamsBuilder
from tests.support.tables import assert_table

if TYPE_CHECKING:
    from spark.topology.nodes import Node
    from tests.operators.drawn import Draw

ITEM = "id bigint | amount int | note string"


def plan(where: str | None = None, select: str | list[str] = "*") -> Node:
    """A table of a filter, a map, or both."""
    builder = StreamsBuilder("shop")
    items = builder.table("items", Consumed.json(key="id bigint", value="amount int, note string"))
    kept = items if where is None else items.filter(where)
    kept.map_values(select).materialize("selected")
    return builder.build().table("selected").plan


def test_a_filter_keeps_what_is_true_and_neither_false_nor_null(draw: Draw) -> None:
    now = draw.now(
        items=ITEM
        + """
        1 | 5    | true
        2 | 0    | false
        3 | null | null
        """
    )
    assert_table(rows(plan("amount > 1"), ALL, now), "id | amount\n1 | 5")


def test_a_row_that_stops_matching_becomes_an_absence_of_its_key(draw: Draw) -> None:
    changes = (
        ITEM
        + " | _present boolean"
        + """
        1 | 5    | still matches  | true
        2 | 0    | stopped        | true
        3 | null | null compared  | true
        4 | null | null           | false
        """
    )
    found = touched(plan("amount > 1"), draw.span(draw.now(), items=changes))
    assert found is not None
    assert_table(
        found,
        """
        id | amount | note          | _present
        1  | 5      | still matches | true
        2  | null   | null          | false
        3  | null   | null          | false
        4  | null   | null          | false
        """,
    )


def test_nothing_is_computed_for_rows_that_are_absent_or_filtered_out(draw: Draw) -> None:
    changes = (
        ITEM
        + " | _present boolean"
        + """
        1 | 5    | divides by five | true
        2 | 0    | would fail      | true
        3 | null | null            | false
        """
    )
    divided = plan("amount <> 0", ["assert_true(note <> 'would fail') AS checked", "100 div amount AS share"])
    found = touched(divided, draw.span(draw.now(), items=changes))
    assert found is not None
    assert_table(
        found,
        """
        id | share | _present
        1  | 20    | true
        2  | null  | false
        3  | null  | false
        """,
    )


def test_mapped_values_see_null_as_sql_does(draw: Draw) -> None:
    now = draw.now(
        items=ITEM
        + """
        1 | null | a
        2 | 2    | null
        3 | null | ''
        """
    )
    mapped = plan(select=["amount + 1 AS more", "coalesce(note, 'none') AS said", "amount <=> null AS unknown"])
    assert_table(
        rows(mapped, ALL, now),
        """
        id | more | said | unknown
        1  | null | a    | true
        2  | 3    | none | false
        3  | null | ''   | true
        """,
    )


def test_a_row_of_nulls_alone_is_a_row(draw: Draw) -> None:
    now = draw.now(items=ITEM + "\n1 | null | null")
    assert_table(rows(plan(select=["amount"]), ALL, now), "id | amount\n1 | null")


def test_the_coordinates_of_the_record_pass_through(draw: Draw) -> None:
    now = draw.now(
        items="""
        id bigint | amount int | note string | _topic string | _partition int | _offset bigint | _timestamp timestamp
        1         | 5          | a           | items         | 3              | 77             | 2026-01-01
        """
    )
    assert_table(
        rows(plan(select=["amount * 2 AS twice"]), ALL, now),
        """
        id | twice | _topic | _partition | _offset | _timestamp
        1  | 10    | items  | 3          | 77      | 2026-01-01 00:00:00
        """,
    )
