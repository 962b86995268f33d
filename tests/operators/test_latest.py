"""The newest record of every key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark.operators.algebra import ALL, rows, touched
from spark.topology.columns import Column
from spark.topology.nodes import Latest, Records, Scan
from tests.support.tables import assert_table

if TYPE_CHECKING:
    from tests.operators.drawn import Draw

ITEMS = Latest(Records(Scan("_landing/items", ("id",), (Column("id", "bigint"), Column("name", "string")))))
PAIRS = Latest(
    Records(Scan("_landing/pairs", ("a", "b"), (Column("a", "int"), Column("b", "int"), Column("v", "int"))))
)
RECORD = (
    "id bigint | name string | _partition int | _offset bigint | _timestamp timestamp | _deleted boolean"
    " | _error string | _batch bigint\n"
)


def test_the_greatest_offset_of_a_partition_is_the_newest_record_whatever_the_timestamps_say(draw: Draw) -> None:
    now = draw.now(
        **{
            "_landing/items": RECORD
            + """
        1 | old   | 0 | 7 | 2026-01-09 | false | null | 1
        1 | newer | 0 | 8 | 2026-01-01 | false | null | 1
        1 | odd   | 0 | 6 | null       | false | null | 1
        """
        }
    )
    assert_table(
        rows(ITEMS, ALL, now),
        """
        id | name  | _offset | _timestamp
        1  | newer | 8       | 2026-01-01 00:00:00
        """,
    )


def test_a_tombstone_is_no_row_and_a_record_behind_it_is_one_again(draw: Draw) -> None:
    now = draw.now(
        **{
            "_landing/items": RECORD
            + """
        1 | deleted | 0 | 0 | null | false | null | 1
        1 | null    | 0 | 1 | null | true  | null | 1
        2 | null    | 0 | 2 | null | true  | null | 1
        2 | back    | 0 | 3 | null | false | null | 1
        3 | null    | 0 | 4 | null | true  | null | 1
        """
        }
    )
    assert_table(
        rows(ITEMS, ALL, now),
        """
        id | name
        2  | back
        """,
    )


def test_a_live_record_whose_columns_are_all_null_is_a_row(draw: Draw) -> None:
    now = draw.now(**{"_landing/items": RECORD + "1 | null | 0 | 0 | null | false | null | 1"})
    assert_table(rows(ITEMS, ALL, now), "id | name\n1 | null")


def test_records_without_a_key_or_with_an_error_leave_the_row_before_them(draw: Draw) -> None:
    now = draw.now(
        **{
            "_landing/items": RECORD
            + """
        1    | good    | 0 | 0 | null | false | null            | 1
        1    | null    | 0 | 1 | null | false | does not decode | 1
        1    | null    | 0 | 2 | null | true  | does not decode | 1
        null | no key  | 0 | 3 | null | false | null            | 1
        2    | partial | 0 | 4 | null | false | does not decode | 1
        """
        }
    )
    assert_table(rows(ITEMS, ALL, now), "id | name\n1 | good")


def test_a_key_with_a_null_part_is_no_row(draw: Draw) -> None:
    header = RECORD.replace("id bigint | name string", "a int | b int | v int")
    now = draw.now(
        **{
            "_landing/pairs": header
            + """
        1    | 1    | 10 | 0 | 0 | null | false | null | 1
        1    | null | 11 | 0 | 1 | null | false | null | 1
        null | 1    | 12 | 0 | 2 | null | false | null | 1
        null | null | 13 | 0 | 3 | null | false | null | 1
        """
        }
    )
    assert_table(rows(PAIRS, ALL, now), "a | b | v\n1 | 1 | 10")


def test_across_partitions_the_later_timestamp_wins_then_the_greater_partition(draw: Draw) -> None:
    now = draw.now(
        **{
            "_landing/items": RECORD
            + """
        1 | later         | 0 | 0 | 2026-01-02 | false | null | 1
        1 | earlier       | 1 | 9 | 2026-01-01 | false | null | 1
        2 | low partition | 0 | 9 | 2026-01-01 | false | null | 1
        2 | high          | 1 | 0 | 2026-01-01 | false | null | 1
        3 | has a time    | 0 | 0 | 1970-01-01 | false | null | 1
        3 | has none      | 1 | 9 | null       | false | null | 1
        4 | deleted       | 0 | 0 | 2026-01-01 | false | null | 1
        4 | null          | 1 | 0 | 2026-01-02 | true  | null | 1
        """
        }
    )
    assert_table(
        rows(ITEMS, ALL, now),
        """
        id | name
        1  | later
        2  | high
        3  | has a time
        """,
    )


def test_of_a_partition_only_the_last_record_competes_across_partitions(draw: Draw) -> None:
    now = draw.now(
        **{
            "_landing/items": RECORD
            + """
        1 | greatest timestamp, but overtaken | 0 | 0 | 2026-01-09 | false | null | 1
        1 | last of its partition             | 0 | 1 | 2026-01-01 | false | null | 1
        1 | newest                            | 1 | 0 | 2026-01-02 | false | null | 1
        """
        }
    )
    assert_table(rows(ITEMS, ALL, now), "id | name\n1 | newest")


def test_what_landed_later_goes_before_what_landed_earlier(draw: Draw) -> None:
    now = draw.now(
        **{
            "_landing/items": RECORD
            + """
        1 | landed first | 1 | 5 | 2026-01-09 | false | null | 1
        1 | landed later | 0 | 0 | 2026-01-01 | false | null | 2
        """
        }
    )
    assert_table(rows(ITEMS, ALL, now), "id | name\n1 | landed later")


def test_touched_are_the_keys_of_new_records_with_their_newest_row_or_none(draw: Draw) -> None:
    span = draw.span(
        draw.now(),
        True,
        **{
            "_landing/items": RECORD
            + """
        1    | first  | 0 | 4 | null | false | null            | 2
        1    | second | 0 | 5 | null | false | null            | 2
        2    | null   | 0 | 6 | null | true  | null            | 2
        3    | null   | 0 | 7 | null | false | does not decode | 2
        null | none   | 0 | 8 | null | false | null            | 2
        """
        },
    )
    found = touched(ITEMS, span)
    assert found is not None
    assert_table(
        found,
        """
        id | name   | _offset | _present
        1  | second | 5       | true
        2  | null   | 6       | false
        """,
    )


def test_a_landing_that_did_not_move_touches_nothing(draw: Draw) -> None:
    assert touched(ITEMS, draw.span(draw.now())) is None


def test_rows_at_keys_are_those_of_the_keys_alone(draw: Draw) -> None:
    now = draw.now(
        **{
            "_landing/items": RECORD
            + """
        1 | one | 0 | 0 | null | false | null | 1
        2 | two | 0 | 1 | null | false | null | 1
        """
        }
    )
    keys = draw.session.createDataFrame([(2,), (3,)], "id bigint")
    assert_table(rows(ITEMS, keys, now), "id | name\n2 | two")
