"""Groups and outer joins on real topics and real Delta, wave by wave, against dicts."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from spark.engine.audit import audit
from spark.engine.errors import PlanChanged
from spark.engine.log import table
from spark.engine.ports import Ports
from spark.engine.rebuild import rebuild
from spark.engine.step import step
from spark.engine.tick import tick
from spark.topology import Consumed, StreamsBuilder, Topology
from tests.support import lake
from tests.support.lake import Record, Row, send

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from resources.engine import Engine
    from resources.kafka import Kafka
    from resources.lakehouse import Lakehouse
    from spark.engine.log.stored_table import State


Waves = list[list[tuple[int, Row | None]]]

ORDERS: Waves = [
    [
        (1, {"country": "AT", "amount": 10}),
        (2, {"country": "FR", "amount": 20}),
        (3, {"country": "AT", "amount": None}),
    ],
    [(1, {"country": "FR", "amount": 10}), (2, None), (4, {"country": None, "amount": 5})],  # moved, gone, in no group
    [(3, None), (3, {"country": "IT", "amount": 7}), (1, {"country": "AT", "amount": 1}), (1, None)],  # twice in a span
    [],
]
NOTES: Waves = [
    [(1, {"note": "gift"}), (9, {"note": "lost"})],
    [(1, None), (4, {"note": "late"})],
    [],
    [(9, None), (3, {"note": None})],
]


def topology(orders: str, notes: str) -> Topology:
    """A count, a sum, a group of groups, and an outer join."""
    builder = StreamsBuilder(f"groups-{orders}")
    o = builder.table(orders, Consumed.json(key="id bigint", value="country string, amount bigint"))
    n = builder.table(notes, Consumed.json(key="id bigint", value="note string"))
    sales = o.group_by("country").aggregate(orders="count(*)", total="sum(amount)", most="max(amount)")
    sales.materialize("sales")
    sales.group_by("orders").count("countries").materialize("sizes")
    o.outer_join(n, select=["left.country", "right.note"]).materialize("noted")
    return builder.build()


def sales(orders: dict[int, Row]) -> dict[str, Row]:
    """The groups of the orders."""
    found: dict[str, Row] = {}
    for country in {str(row["country"]) for row in orders.values() if row["country"] is not None}:
        amounts = [row["amount"] for row in orders.values() if row["country"] == country]
        known = [amount for amount in amounts if isinstance(amount, int)]
        total, most = (sum(known), max(known)) if known else (None, None)
        found[country] = {"orders": len(amounts), "total": total, "most": most}
    return found


def test_groups_and_outer_joins_follow_their_topics_and_every_version_is_its_query(
    engine: Engine, kafka: Kafka, lakehouse: Lakehouse, topic: Callable[..., str]
) -> None:
    made = topology(topic("orders"), topic("notes"))
    ports = Ports(engine, lakehouse, kafka)
    orders: dict[int, Row] = {}
    notes: dict[int, Row] = {}
    for number, waves in enumerate(zip(ORDERS, NOTES, strict=True)):
        for name, newest, wave in zip((s.topic for s in made.sources), (orders, notes), waves, strict=True):
            send(kafka, name, *(Record(key, row) for key, row in wave))
            newest.update({key: row for key, row in wave if row is not None})
            for key in dict(wave):
                if dict(wave)[key] is None:
                    newest.pop(key, None)
        ticked = tick(ports, made, f"wave {number}")
        assert ticked.failed == {}
        assert lake.rows(ports, made, "sales") == sales(orders)
        sizes = Counter(row["orders"] for row in sales(orders).values())
        assert lake.rows(ports, made, "sizes") == {size: {"countries": count} for size, count in sizes.items()}
        nothing: Row = {"country": None, "note": None}
        assert lake.rows(ports, made, "noted") == {
            key: {"country": orders.get(key, nothing)["country"], "note": notes.get(key, nothing)["note"]}
            for key in orders | notes
        }
        # One of them a wave, since an audit costs more than a step.
        assert audit(ports, made, made.table(("sales", "sizes", "noted")[number % 3])).holds
    again = tick(ports, made, "again")
    assert {done.outcome for done in again.stepped} == {"idle"}


def counted(orders: str, value: str) -> Topology:
    """Orders by country, of a topic with some columns."""
    builder = StreamsBuilder(f"widened-{orders}")
    o = builder.table(orders, Consumed.json(key="id bigint", value=value))
    o.group_by("country").count().materialize("counted")
    return builder.build()


@pytest.mark.thorough
def test_groups_go_on_when_their_topic_gains_a_column_although_no_record_has_it_yet(
    engine: Engine, kafka: Kafka, lakehouse: Lakehouse, topic: Callable[..., str]
) -> None:
    name, ports = topic("orders"), Ports(engine, lakehouse, kafka)
    before, after = counted(name, "country string"), counted(name, "country string, note string")
    send(kafka, name, Record(1, {"country": "AT"}), Record(2, {"country": "FR"}))
    assert tick(ports, before, "before").failed == {}
    rebuild(ports, after, after.table(name), "rebuild")
    assert lake.rows(ports, after, name) == {1: {"country": "AT", "note": None}, 2: {"country": "FR", "note": None}}
    send(kafka, name, Record(1, {"country": "FR", "note": "moved"}))
    assert tick(ports, after, "after").failed == {}
    assert lake.rows(ports, after, "counted") == {"FR": {"count": 2}}
    assert audit(ports, after, after.table("counted")).holds


@pytest.mark.thorough
def test_a_table_that_another_run_computed_meanwhile_is_gone_on_from(
    engine: Engine, kafka: Kafka, lakehouse: Lakehouse, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, ports = topic("orders"), Ports(engine, lakehouse, kafka)
    made = counted(name, "country string")
    send(kafka, name, Record(1, {"country": "AT"}))
    lake.land_all(ports, made)
    create = table.create

    def late(*arguments: Any) -> State:
        """Another run, further on, is through before this one creates the table."""
        monkeypatch.undo()
        send(kafka, name, Record(1, {"country": "FR"}))
        lake.land_all(ports, made)
        lake.step_all(ports, made, name, run="other")
        return create(*arguments)

    monkeypatch.setattr(table, "create", late)
    assert step(ports, made, made.table(name), "late").outcome == "idle"
    assert lake.rows(ports, made, name) == {1: {"country": "FR"}}
    assert lake.state(ports, made, name).position.run == "other"


def summed(items: str, amount: str) -> Topology:
    """A sum over a stored table, whose column is computed in one way or another."""
    builder = StreamsBuilder(f"summed-{items}")
    i = builder.table(items, Consumed.json(key="id bigint", value="shop string, qty int"))
    priced = i.map_values(["shop", f"{amount} AS amount"]).materialize("priced")
    priced.group_by("shop").aggregate(total="sum(amount)").materialize("totals")
    return builder.build()


@pytest.mark.thorough
def test_an_input_whose_types_changed_is_refused_until_a_rebuild(
    engine: Engine, kafka: Kafka, lakehouse: Lakehouse, topic: Callable[..., str]
) -> None:
    name, ports = topic("items"), Ports(engine, lakehouse, kafka)
    whole, halves = summed(name, "cast(qty AS bigint)"), summed(name, "cast(qty / 2 AS decimal(14,2))")
    send(kafka, name, Record(1, {"shop": "a", "qty": 2}))
    assert tick(ports, whole, "whole").failed == {}
    rebuild(ports, halves, halves.table("priced"), "rebuild")
    send(kafka, name, Record(2, {"shop": "a", "qty": 3}))
    failed = tick(ports, halves, "halves").failed["totals"]
    assert isinstance(failed, PlanChanged)
    assert "amount of priced was bigint and is decimal(14,2)" in str(failed)
    assert "shop" not in str(failed).partition("other types:")[2].partition("\n")[0]
    assert lake.rows(ports, halves, "totals") == {"a": {"total": 2}}
    rebuild(ports, halves, halves.table("totals"), "rebuild")
    assert lake.rows(ports, halves, "totals") == {"a": {"total": Decimal("2.50")}}
    assert audit(ports, halves, halves.table("totals")).holds
