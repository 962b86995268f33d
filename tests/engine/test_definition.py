"""Definitions: what differs in more than columns that inputs gained is refused, and what does not goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from spark.engine import table
from spark.engine.errors import PlanChanged
from spark.engine.repair import Audited, audits
from spark.engine.restore import restore
from spark.engine.step import step
from spark.engine.tick import tick
from spark.topology import Consumed, StreamsBuilder, Topology
from tests import lake
from tests.lake import Record, received, send

if TYPE_CHECKING:
    from collections.abc import Callable

    from resources.kafka import Kafka
    from spark.engine.doors import Doors

AT = 1_700_000_000_000  # milliseconds since 1970


def shop(orders: str, customers: str, clicks: str, sink: str, gained: bool) -> Topology:
    """Tables and streams that pass columns on; two topics gain one each."""
    note, vip = (", note string", ", vip boolean") if gained else ("", "")
    builder = StreamsBuilder(f"gaining-{orders}")
    o = builder.table(orders, Consumed.json(key="order_id bigint", value=f"customer_id bigint, amount int{note}"))
    c = builder.table(customers, Consumed.json(key="customer_id bigint", value=f"name string{vip}"))
    o.filter("amount > 1").map_values("*").materialize("large").to(sink)
    named = o.left_join(c, on="customer_id", select=["left.*", "right.*"]).materialize("named")
    named.group_by("name").count().materialize("counted")
    named.to_stream().materialize("told").to_table().materialize("newest")
    stream = builder.stream(clicks, Consumed.json(key="click_id bigint", value="customer_id bigint"))
    stream.join(c, on="customer_id", select=["left.*", "right.*"]).materialize("visits")
    return builder.build()


def test_columns_that_inputs_gain_flow_through_without_a_rebuild(
    doors: Doors, kafka: Kafka, topic: Callable[..., str]
) -> None:
    names = topic("orders"), topic("customers"), topic("clicks"), topic("sink")
    orders, customers, clicks, sink = names
    before, after = shop(*names, gained=False), shop(*names, gained=True)
    send(kafka, orders, Record(1, {"customer_id": 7, "amount": 10}), Record(2, {"customer_id": 7, "amount": 20}))
    send(kafka, customers, Record(7, {"name": "Ada"}))
    send(kafka, clicks, Record(1, {"customer_id": 7}))
    assert tick(doors, before, "before").failed == {}
    old = lake.state(doors, before, "large")

    send(kafka, orders, Record(2, {"customer_id": 7, "amount": 20, "note": "gift"}, timestamp=AT + 1))
    send(kafka, customers, Record(7, {"name": "Ada", "vip": True}, timestamp=AT + 1))
    send(kafka, clicks, Record(2, {"customer_id": 7}, timestamp=AT + 2))
    ticked = tick(doors, after, "after")
    assert ticked.failed == {}
    (large,) = [done for done in ticked.stepped if done.table.endswith("/large")]
    assert (large.inserted, large.updated, large.deleted) == (0, 1, 0)
    assert lake.rows(doors, after, "large") == {
        1: {"customer_id": 7, "amount": 10, "note": None},
        2: {"customer_id": 7, "amount": 20, "note": "gift"},
    }
    first = {"customer_id": 7, "amount": 10, "note": None, "name": "Ada", "vip": True}
    assert lake.rows(doors, after, "named") == {1: first, 2: first | {"amount": 20, "note": "gift"}}
    assert lake.rows(doors, after, "newest") == lake.rows(doors, after, "named")
    assert lake.rows(doors, after, "counted") == {"Ada": {"count": 2}}
    visits = {row["click_id"]: row["vip"] for row in lake.listed(lake.path(doors, after, "visits"))}
    assert visits == {1: None, 2: True}
    for made in after.tables:
        audited = list(audits(doors, after, made))
        assert len(audited) >= 2
        assert all(isinstance(one, Audited) and one.holds for one in audited), audited
    told = [one.change for one in received(kafka, sink)]
    assert told[-1] == (2, {"customer_id": 7, "amount": 20, "note": "gift"})

    restore(doors, after, after.table("large"), "back", version=old.version)
    assert {row["note"] for row in lake.rows(doors, after, "large").values()} == {None}
    assert tick(doors, after, "on").failed == {}
    assert lake.rows(doors, after, "large")[2]["note"] == "gift"
    assert {done.outcome for done in tick(doors, after, "again").stepped} == {"idle"}
    # Whoever still has the older definition is told.
    with pytest.raises(PlanChanged, match="tidetable rebuild"):
        step(doors, before, before.table("large"), "older")


def test_a_step_that_died_while_its_table_gained_a_column_is_taken_up(
    doors: Doors, kafka: Kafka, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    items = topic("items")
    before, after = taken(items, "v int", "*"), taken(items, "v int, w int", "*")
    send(kafka, items, Record(1, {"v": 1}))
    assert tick(doors, before, "before").failed == {}
    send(kafka, items, Record(2, {"v": 2, "w": 2}))
    lake.land_all(doors, after)

    def died(*_: object) -> None:
        raise InterruptedError

    for name in (items, "taken"):
        with monkeypatch.context() as patched:
            patched.setattr(table, "set_properties", died)
            with pytest.raises(InterruptedError):
                step(doors, after, after.table(name), "dies")
        assert step(doors, after, after.table(name), "goes on").outcome == "stepped"
    assert lake.rows(doors, after, "taken") == {1: {"v": 1, "w": None}, 2: {"v": 2, "w": 2}}


def taken(items: str, value: str, *columns: str) -> Topology:
    """Some columns of items."""
    builder = StreamsBuilder(f"taken-{items}")
    builder.table(items, Consumed.json(key="id bigint", value=value)).map_values(columns).materialize("taken")
    return builder.build()


@pytest.mark.parametrize("columns", [("v", "w"), ("v", "v + 1 AS w"), ("v", "v AS w")])
def test_a_column_that_was_there_is_not_taken_without_a_rebuild(
    doors: Doors, kafka: Kafka, topic: Callable[..., str], columns: tuple[str, ...]
) -> None:
    items = topic("items")
    before, after = taken(items, "v int, w int", "v"), taken(items, "v int, w int", *columns)
    send(kafka, items, Record(1, {"v": 1, "w": 2}))
    assert tick(doors, before, "before").failed == {}
    with pytest.raises(PlanChanged, match="tidetable rebuild"):
        step(doors, after, after.table("taken"), "after")
    assert lake.rows(doors, before, "taken") == {1: {"v": 1}}
