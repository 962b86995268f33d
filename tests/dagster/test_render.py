"""What commands print fits a screen, and is plain and whole in a pipe."""

from __future__ import annotations

import io
from decimal import Decimal

from rich.console import Console

from dagster_project.cli.output import out, print_result
from dagster_project.render import older_lines, quarantine_grid, status_grid, to_json
from spark.engine.counts import Counted
from spark.engine.dropped_records import DroppedRecords
from spark.engine.log.position import Input, Position
from spark.engine.log.stored_table import State
from spark.engine.publishing.position import PublishedPosition
from spark.engine.quarantine import Undecodable
from spark.engine.status import TableStatus


def statuses() -> list[TableStatus]:
    """A landing and nine tables, with all that a status can say in numbers."""

    def state(name: str) -> State:
        dropped = {"late": 1_234}
        inputs = {"orders": Input("id", 7)}
        position = Position(name, "e", 7, "run", {}, inputs, 1_204, dropped=dropped, begun={"orders": 5})
        return State("id", 1_204, 1_204, position, {}, {})

    sent = PublishedPosition("id", "e", 1_201, done=True)
    counted = Counted(12_000_000, 11_999_000, 988, 12, 12_000_000, {"the key is null": 12})
    landing = TableStatus("_landing/customers", state("customers"), {"customers": 120_000}, counted=counted)
    tables = [
        TableStatus(f"orders_by_country_{n}", state("orders"), {"orders": 1_000_000}, unpublished=3, published=sent)
        for n in range(9)
    ]
    return [landing, *tables]


def test_the_status_of_ten_tables_fits_a_hundred_columns() -> None:
    console = Console(width=100, file=io.StringIO(), record=True)
    grid, *notes = status_grid("warehouse", statuses())
    console.print(grid)
    lines = [line for line in console.export_text().splitlines() if line.strip()]
    assert len(lines) == 1 + 1 + 10, "a line each, and none is folded"
    assert max(map(len, lines)) <= 100
    assert any("12 in quarantine: the key is null" in str(note) for note in notes)
    assert any("begins with the rows of orders at version 5" in str(note) for note in notes)


def test_a_refusal_is_shown_with_the_columns_that_there_are_and_a_long_one_without_its_middle() -> None:
    short = "copy reads shop.orders, which has no name\n  it has: id bigint\nCorrect key="
    long = "was changed:\n  - a\n  + b\n  + c\nRun `tidetable rebuild`"
    for refused, shown in (
        (short, "refused: copy reads shop.orders, which has no name; it has: id bigint; Correct key="),
        (long, "refused: was changed: Run `tidetable rebuild`"),
    ):
        _, *notes = status_grid("shop", [TableStatus("copy", None, {}, refused=refused)])
        assert [str(note).strip() for note in notes] == [f"shop.copy: {shown}"]


def test_bytes_and_numbers_that_json_lacks_are_text() -> None:
    row = {"k": b"\x00\xff", "x": [float("nan"), 1.5, float("-inf")], "d": Decimal("1.50"), "n": None}
    assert to_json(row) == {"k": "00ff", "x": ["NaN", 1.5, "-Infinity"], "d": "1.50", "n": None}


def test_a_pipe_gets_plain_rows_that_are_not_folded() -> None:
    grid, *_ = status_grid("warehouse" * 20, statuses())
    with out.capture() as shown:
        print_result(False, None, grid)
    header, *rows = shown.get().splitlines()
    assert header.split()[:2] == ["table", "version"]
    assert len(rows) == 10
    assert all(row.startswith("warehouse" * 20) and "─" not in row for row in rows)


def test_what_a_record_holds_is_one_line_that_no_terminal_obeys() -> None:
    error = "the value does not decode as JSON (id int)"
    record = Undecodable("orders", 0, 7, None, error, "k", "{\n\x1b[31mred\t\u00e9")
    with out.capture() as shown:
        print_result(False, None, quarantine_grid([record]))
    header, row = shown.get().splitlines()
    assert header.split() == ["topic", "partition", "offset", "error", "key", "value"]
    assert row.rstrip().endswith("{\\n\\x1b[31mred\\t\u00e9")


def test_dropped_records_that_are_older_than_the_log_are_counted() -> None:
    assert older_lines(DroppedRecords([], {"late": 3})) == [
        "3 older records dropped: late; the table's log, which was cleaned up, no longer says which"
    ]
    assert older_lines(DroppedRecords([])) == []
