"""What is stored has a format with a number: older ones are read, and newer ones are refused by name."""

from __future__ import annotations

import json
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spark.engine.audit import Audited
from spark.engine.errors import FormatUnknown
from spark.engine.log import position as positions
from spark.engine.log import table
from spark.engine.log.position import Counts, Gap, Gated, Input, Position, Release
from spark.engine.log.stored_table import StoredTable
from spark.engine.offsets import TopicOffsets
from spark.engine.tick import tick
from spark.topology import Consumed, StreamsBuilder
from tests.engine import logs
from tests.support import lake
from tests.support.lake import Record, send

if TYPE_CHECKING:
    from collections.abc import Callable

    from resources.kafka import Kafka
    from spark.engine.ports import Ports

GOLDEN = Path(__file__).with_name("golden")
AT = TopicOffsets("topic-id", {0: 7, 1: 3}, 2)
POSITION = Position(
    table="shop/orders",
    epoch="0123456789abcdef",
    n=3,
    run="a run",
    cut={"cluster/orders": AT},
    inputs={
        "_landing/orders": Input("table-id", 5),
        "bank/accounts": Input("leader-id", 8),
        "s3://lake/bank/rates": Input("far-id", 9),
    },
    data_version=4,
    whole=True,
    floor={1: 2},
    bootstrap={0: 12},
    time=1_700_000_000_000_000,
    dropped={"late": 2},
    lateness={"avg": 1.5, "max": 3.0},
    seen={"_landing/prices": 1_600_000_000_000_000},
    enforced=1,
    release=Release("a run", {"cluster/orders": AT}, {"orders": {0: 5}}, ("orders",)),
    restored=2,
    gaps=(
        Gap("orders", 0, 1, 2, "removed", 1_700_000_000_000),
        Gap("totals", None, 3, 4, "expired", 1_700_000_000_000),
    ),
    gated=Gated("digest", 4, {"expectation": 1, "another": None}, {"third": 2}),
    begun={"totals": 6},
    read_at=1_700_000_000_000,
    cleaned=1,
    deleted=3,
    counts=Counts(2, 5, 10, 7, 2, 1, True),
    widened=True,
)
"""A position in which no field has its default."""
ALONE: dict[str, Any] = {
    "inputs": {"_landing/orders": Input("table-id", 5)},
    "gaps": (Gap("orders", 0, 1, 2, "removed", 1_700_000_000_000),),
}
"""A position of a topology that reads no other one."""
LACKING: dict[int, dict[str, Any]] = {
    1: ALONE | {"deleted": None, "bootstrap": {}, "widened": False},
    2: ALONE | {"bootstrap": {}, "widened": False},
    3: {"widened": False},
    4: {},
    5: {},
}
"""By format, the fields that differ, because it could not have them."""


def test_nothing_of_a_position_is_left_out_here() -> None:
    """Else a later version could read it otherwise, and no test would say so."""
    assert all(getattr(POSITION, one.name) != one.default for one in fields(Position))


def test_what_the_present_format_stores_is_what_was_written_down() -> None:
    """Where what is stored changed: raise `FORMAT`, keep the old file, and write a new one beside it."""
    stored = json.loads((GOLDEN / f"format-{positions.FORMAT}.json").read_text())
    assert json.loads(POSITION.to_json()) == stored


def test_every_name_of_an_input_is_stored_in_full_and_read_as_the_plan_has_it() -> None:
    stored = json.loads(POSITION.to_json())
    assert [*stored["inputs"]] == ["bank/accounts", "s3://lake/bank/rates", "shop/_landing/orders"]
    assert [gap["input"] for gap in stored["gaps"]] == ["orders", "shop/totals"]
    assert (*stored["seen"], *stored["begun"]) == ("shop/_landing/prices", "shop/totals")
    assert Position.from_json(POSITION.to_json()) == POSITION


@pytest.mark.parametrize("number", range(1, positions.FORMAT + 1))
def test_every_format_so_far_is_read(number: int) -> None:
    stored = (GOLDEN / f"format-{number}.json").read_text()
    assert Position.from_json(stored) == replace(POSITION, **LACKING[number])


def test_a_table_of_a_later_format_is_refused_by_name(tmp_path: Path) -> None:
    anchor = Position("shop/orders", "epoch", n=0, run="", cut={}, inputs={}, data_version=0)
    for number, known in ((positions.FORMAT, True), (positions.FORMAT + 1, False)):
        path = logs.write(
            str(tmp_path / str(number)), logs.created(anchor), properties={positions.STORED_FORMAT: str(number)}
        )
        if known:
            assert StoredTable("shop/orders", path).state() is not None
            continue
        with pytest.raises(FormatUnknown, match=rf"shop/orders is stored in format {number}.*Install that version"):
            StoredTable("shop/orders", path).state()


def test_a_lake_of_the_format_before_goes_on_and_is_refused_by_older_versions_after_its_next_step(
    ports: Ports, kafka: Kafka, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    prices = topic("prices")
    builder = StreamsBuilder(f"older-{prices}")
    newest = builder.table(prices, Consumed.json(key="sku string", value="price int"))
    newest.filter("price > 1").materialize("dear")
    newest.to_stream().materialize("changes")
    made = builder.build()

    def arrive(*records: Record) -> None:
        send(kafka, prices, *records)
        assert tick(ports, made, "tick").failed == {}

    with monkeypatch.context() as older:
        older.setattr(Position, "to_json", lambda its: json.dumps({"tidetable": 1, **asdict(its)}))
        older.setitem(table.PROPERTIES, positions.STORED_FORMAT, "2")
        arrive(Record("a", {"price": 1}), Record("b", {"price": 2}))
    names = [one.name for one in made.tables]
    assert {lake.state(ports, made, name).properties[positions.STORED_FORMAT] for name in names} == {"2"}
    assert {one.outcome for one in tick(ports, made, "idle").stepped} == {"idle"}
    arrive(Record("a", {"price": 3}), Record("b", None))
    for name in names:
        state = lake.state(ports, made, name)
        assert state.properties[positions.STORED_FORMAT] == str(positions.FORMAT)
        assert all(found.startswith(f"{made.name}/") for found in json.loads(state.position.to_json())["inputs"])
    assert lake.rows(ports, made, "dear") == {"a": {"price": 3}}
    audited = lake.audited(ports, made, *names)
    assert len(audited) == 6
    assert all(isinstance(one, Audited) and one.holds for one in audited), audited
