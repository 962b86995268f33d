"""Groups and outer joins on real topics and real Delta, wave by wave, against dicts."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from spark.engine.doors import Doors
from spark.engine.repair import audit
from spark.engine.tick import tick
from spark.topology import Consumed, StreamsBuilder, Topology
from tests import lake
from tests.lake import Record, Row, send

if TYPE_CHECKING:
    from collections.abc import Callable

    from resources.engine import Engine
    from resources.kafka import Kafka
    from resources.lakehouse import Lakehouse


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
    doors = Doors(engine, lakehouse, kafka)
    orders: dict[int, Row] = {}
    notes: dict[int, Row] = {}
    for number, waves in enumerate(zip(ORDERS, NOTES, strict=True)):
        for name, newest, wave in zip((s.topic for s in made.sources), (orders, notes), waves, strict=True):
            send(kafka, name, *(Record(key, row) for key, row in wave))
            newest.update({key: row for key, row in wave if row is not None})
            for key in dict(wave):
                if dict(wave)[key] is None:
                    newest.pop(key, None)
        ticked = tick(doors, made, f"wave {number}")
        assert ticked.failed == {}
        assert lake.rows(doors, made, "sales") == sales(orders)
        sizes = Counter(row["orders"] for row in sales(orders).values())
        assert lake.rows(doors, made, "sizes") == {size: {"countries": count} for size, count in sizes.items()}
        nothing: Row = {"country": None, "note": None}
        assert lake.rows(doors, made, "noted") == {
            key: {"country": orders.get(key, nothing)["country"], "note": notes.get(key, nothing)["note"]}
            for key in orders | notes
        }
        for name in ("sales", "sizes", "noted"):
            assert audit(doors, made, made.table(name)).holds
    again = tick(doors, made, "again")
    assert {done.outcome for done in again.stepped} == {"idle"}
