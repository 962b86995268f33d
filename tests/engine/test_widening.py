"""A landed column that is declared with a wider type is widened in place, and the tables that read it go on."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from spark.engine.audit import Audited, audit
from spark.engine.counts import counted
from spark.engine.errors import LeaderChanged, PlanChanged
from spark.engine.log import table
from spark.engine.quarantine import redecode
from spark.engine.rebuild import rebuild
from spark.engine.restore import restore
from spark.engine.step import step
from spark.engine.tick import tick
from spark.query.reader import Reader
from spark.topology import Consumed, StreamsBuilder, Topology
from tests.support import lake
from tests.support.lake import Record, received, send

if TYPE_CHECKING:
    from collections.abc import Callable

    from resources.kafka import Kafka
    from spark.engine.ports import Ports

AT = 1_700_000_000_000  # milliseconds since 1970


def shop(orders: str, customers: str, sink: str, wide: bool) -> Topology:
    """Tables and streams that read columns which become wider."""
    whole, money, real, day = (
        ("bigint", "decimal(14,2)", "double", "timestamp_ntz") if wide else ("int", "decimal(10,2)", "float", "date")
    )
    builder = StreamsBuilder(f"widening-{orders}")
    value = f"customer_id {whole}, amount {money}, score {real}, day {day}, sizes array<{whole}>"
    o = builder.table(orders, Consumed.json(key=f"order_id {whole}", value=value))
    c = builder.table(customers, Consumed.json(key=f"customer_id {whole}", value="name string"))
    large = o.filter("amount > 1 AND order_id IS NOT NULL").map_values(["*", "amount > 100 AS dear"])
    large = large.materialize("large")
    large.map_values("amount").materialize("amounts").to(sink)
    large.to_stream().materialize("changes")
    named = o.left_join(c, on="customer_id", select=["left.amount", "left.customer_id", "right.name"])
    named.materialize("named")
    totals = o.group_by("customer_id").aggregate(total="sum(amount)", most="max(score)", orders="count(*)")
    totals.materialize("totals").map_values("total").materialize("sums")
    o.map_values("cast(score AS string) AS text").materialize("texts")
    return builder.build()


def types(ports: Ports, topology: Topology, name: str) -> dict[str, str]:
    """The types of a table's own columns, as another reader of Delta has them."""
    return table.stored_types(DeltaTable(lake.path(ports, topology, name)).schema().to_json())


def holds(ports: Ports, topology: Topology, *names: str) -> int:
    """How many versions of some tables were audited; all of them hold."""
    audited = lake.audited(ports, topology, *names)
    assert all(isinstance(one, Audited) and one.holds for one in audited), audited
    return len(audited)


def test_a_wider_type_goes_through_all_tables_that_keep_their_values(
    ports: Ports, kafka: Kafka, topic: Callable[..., str]
) -> None:
    names = orders, customers, sink = topic("orders"), topic("customers"), topic("sink")
    before, after = shop(*names, wide=False), shop(*names, wide=True)
    one = {"customer_id": 7, "amount": 10.25, "score": 0.1, "day": "2026-01-01", "sizes": [1]}
    send(kafka, customers, Record(7, {"name": "Ada"}))
    send(kafka, orders, Record(1, one), Record(2, one | {"amount": 20}), Record(2**40, one), Record(3, one))
    assert tick(ports, before, "before").failed == {}
    send(kafka, orders, Record(3, one | {"amount": 30}, timestamp=AT + 1))
    assert tick(ports, before, "before").failed == {}
    landing = before.source(orders).landing
    old = lake.state(ports, before, "large")
    assert types(ports, before, "large")["order_id"] == "int"
    assert len(received(kafka, sink)) == 4

    send(kafka, orders, Record(2**41, one | {"customer_id": 2**42, "amount": 2**35, "score": 0.1}, timestamp=AT + 2))
    send(kafka, customers, Record(2**42, {"name": "Bob"}, timestamp=AT + 2))
    ticked = tick(ports, after, "after")
    assert list(ticked.failed) == ["texts"]
    assert "'cast(score as string)' may have other values" in str(ticked.failed["texts"]).lower()
    (large,) = [done for done in ticked.stepped if done.table.endswith("/large")]
    assert (large.inserted, large.updated, large.deleted) == (1, 0, 0)

    wide = {"order_id": "bigint", "customer_id": "bigint", "amount": "decimal(14,2)", "score": "double"}
    wide |= {"day": "timestamp_ntz", "sizes": "array<bigint>"}
    for name in (landing, orders, "large", "changes"):
        assert wide.items() <= types(ports, after, name).items(), name
    assert types(ports, after, "totals").items() >= {"total": "decimal(24,2)", "most": "double"}.items()
    assert types(ports, after, "sums")["total"] == "decimal(24,2)"
    amounts = {key: row["amount"] for key, row in lake.rows(ports, after, "large").items()}
    assert {key: float(str(amount)) for key, amount in amounts.items()} == {1: 10.25, 2: 20, 3: 30, 2**41: 2**35}
    assert {row["score"] for row in lake.rows(ports, after, "large").values()} == {0.1, 0.10000000149011612}
    assert lake.rows(ports, after, "named")[2**41]["name"] == "Bob"
    assert {key: row["orders"] for key, row in lake.rows(ports, after, "totals").items()} == {7: 3, 2**42: 1}
    kept = [row["order_id"] for row in lake.listed(lake.path(ports, after, "changes"))]
    assert sorted(map(int, map(str, kept))) == [1, 2, 3, 3, 2**41], "no change is there twice"
    # The landing has each record once, and its counts say so.
    found = counted(ports.lakehouse, after, after.source(orders))
    assert found is not None
    assert (found.records, found.quarantined, found.wrong) == (6, 1, ())
    # The topic has each row once: no value changed. Keys are what they were.
    told = received(kafka, sink)
    assert [record.key for record in told[:4]] == [b"1", b"2", b"3", b"3"]
    assert [json.loads(record.key or b"") for record in told[4:]] == [2**41]
    rebuilt = rebuild(ports, after, after.table("texts"), "rebuild")
    assert rebuilt.outcome == "stepped"
    for name in (orders, "named", "totals", "amounts", "texts"):
        assert audit(ports, after, after.table(name)).holds, name
    assert {done.outcome for done in tick(ports, after, "again").stepped} == {"idle"}

    # Our reader has the newest version and one from before, whose files have the former types.
    now = Reader(ports.lakehouse, after).table("large")
    then = now.as_of_version(old.version)
    row, was = now.get(2), then.get(2)
    assert row is not None
    assert was is not None
    assert (row["amount"], row["customer_id"]) == (was["amount"], was["customer_id"])
    assert [change.version for change in now.history(1)] == [1]

    # The record that was larger than an int is put in.
    replayed = redecode(ports, after, after.source(orders), "replay")
    assert (replayed.decoded, replayed.left) == (1, 0)
    assert tick(ports, after, "replayed").failed == {}
    assert lake.rows(ports, after, "large")[2**40]["customer_id"] == 7

    # An older version is restored with the types of now, and the next step goes on.
    restore(ports, after, after.table("large"), "back", version=old.version)
    assert lake.rows(ports, after, "large").keys() == {1, 2, 3}
    assert types(ports, after, "large")["order_id"] == "bigint"
    assert tick(ports, after, "on").failed == {}
    assert lake.rows(ports, after, "large").keys() == {1, 2, 3, 2**40, 2**41}
    assert holds(ports, after, "large", "changes", "sums") > 8, "also the versions with the former types"
    # Whoever still has the older definition is refused, and told what can be widened.
    refused = tick(ports, before, "older").failed
    assert "order_id is bigint, declared int" in str(refused[landing])
    assert "of a key only an integer to a wider one" in str(refused[landing])


def dies(*_: object, **__: object) -> None:
    """Die here."""
    raise InterruptedError


def test_a_run_that_died_while_it_widened_is_taken_up_and_a_follower_says_what_it_declares(
    ports: Ports, kafka: Kafka, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    items = topic("items")

    def kept(kind: str) -> Topology:
        builder = StreamsBuilder(f"widened-{items}")
        builder.table(items, Consumed.json(key="id bigint", value=f"v {kind}")).map_values("*").materialize("kept")
        return builder.build()

    def following(kind: str | None) -> Topology:
        builder = StreamsBuilder(f"following-{items}")
        declared = {} if kind is None else {"key": "id bigint", "value": f"v {kind}"}
        leader = builder.read_only_table("kept", from_=f"widened-{items}.kept", **declared)  # type: ignore[arg-type]
        leader.filter("v > 0").materialize("copied")
        return builder.build()

    before, after = kept("smallint"), kept("bigint")
    send(kafka, items, Record(1, {"v": 1}))
    assert tick(ports, before, "before").failed == {}
    follower = following("smallint")
    assert tick(ports, follower, "follow").failed == {}
    send(kafka, items, Record(2, {"v": 2**40}))
    with monkeypatch.context() as patched:
        patched.setattr(table, "set_properties", dies)
        with pytest.raises(InterruptedError):
            lake.land_all(ports, after)
    lake.land_all(ports, after)
    landing = after.source(items).landing
    written = [one["operation"] for one in DeltaTable(lake.path(ports, after, landing)).history()]
    assert written.count("WRITE") == 3, "the rows were written again once"
    step(ports, after, after.table(items), "goes on")
    with monkeypatch.context() as patched:
        patched.setattr(table, "widen_columns", dies)
        with pytest.raises(InterruptedError):
            step(ports, after, after.table("kept"), "dies")
    assert step(ports, after, after.table("kept"), "goes on").inserted == 1
    assert lake.rows(ports, after, "kept") == {1: {"v": 1}, 2: {"v": 2**40}}
    assert holds(ports, after, items, "kept") == 6

    with pytest.raises(LeaderChanged, match="v as bigint, not smallint"):
        step(ports, follower, follower.table("copied"), "older")
    follower = following("bigint")
    assert step(ports, follower, follower.table("copied"), "follow").inserted == 1
    assert lake.rows(ports, follower, "copied") == {1: {"v": 1}, 2: {"v": 2**40}}
    assert holds(ports, follower, "copied") == 3
    for kind in ("int", "string", "decimal(18,0)"):
        with pytest.raises(PlanChanged, match="What can be widened in place: tinyint to smallint"):
            lake.land_all(ports, kept(kind))
