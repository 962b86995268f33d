"""A restored table is what it was, and goes on from there; what reads it follows."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from spark.engine.audit import audit
from spark.engine.errors import CannotRestore
from spark.engine.log.stored_table import StoredTable
from spark.engine.publish import publish
from spark.engine.rebuild import rebuild
from spark.engine.restore import restore
from spark.engine.step import step
from spark.engine.tick import tick
from spark.topology import Consumed, SessionWindows, StreamsBuilder, Suppressed, TimeWindows, Topology
from tests.support import lake
from tests.support.lake import Record, received, send

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from resources.kafka import Kafka
    from spark.engine.ports import Ports

SINCE = 1_700_000_000_000  # milliseconds since 1970


def topology(orders: str, clicks: str) -> Topology:
    """Orders and their sums per customer; clicks in windows, which remember what was late."""
    builder = StreamsBuilder(f"restored-{orders}")
    o = builder.table(orders, Consumed.json(key="id bigint", value="customer string, amount int"))
    o.filter("amount > 0").materialize("paid")
    o.group_by("customer").aggregate(total="sum(amount)").materialize("totals")
    c = builder.stream(clicks, Consumed.json(key="user string", value="sku string"))
    c.group_by("sku").windowed_by(TimeWindows.of("10ms", grace="0s")).count().materialize("counted")
    visits = c.group_by("sku").windowed_by(SessionWindows.of("5ms", grace="0s")).count().materialize("visits")
    ended = visits.suppress(Suppressed.until_window_closes())
    ended.group_by("sku").count().materialize("ended")
    c.filter("sku <> 'ink'").materialize("kept")
    return builder.build()


def order(number: int, customer: str, amount: int) -> Record:
    """An order."""
    return Record(number, {"customer": customer, "amount": amount})


def click(at: int) -> Record:
    """A click, some milliseconds after the first."""
    return Record("ada", {"sku": "pen"}, timestamp=SINCE + at)


@pytest.mark.thorough
def test_a_restored_table_is_what_it_was_and_the_next_tick_goes_on(
    ports: Ports, kafka: Kafka, topic: Callable[..., str]
) -> None:
    orders, clicks = topic("orders"), topic("clicks")
    made = topology(orders, clicks)
    waves = (
        ([order(1, "ada", 10), order(2, "ben", 20)], [click(5)]),
        ([order(1, "ben", 11), Record(2, None)], [click(25), click(3)]),
        ([order(3, "ada", 30)], [click(4), click(31)]),
    )
    known, versions = [], []
    for sold, clicked in waves:
        send(kafka, orders, *sold)
        send(kafka, clicks, *clicked)
        assert tick(ports, made, "wave").failed == {}
        known.append({name: lake.rows(ports, made, name) for name in ("paid", "totals", "counted", "visits")})
        versions.append({name: lake.state(ports, made, name).version for name in known[-1]})
    dropped = lake.state(ports, made, "counted").position.dropped
    assert dropped == {"late": 2}
    assert lake.rows(ports, made, "ended") == {"pen": {"count": 2}}

    for name, version in versions[0].items():
        restored = restore(ports, made, made.table(name), "restore", version=version)
        assert (restored.outcome, lake.rows(ports, made, name)) == ("stepped", known[0][name])
        assert audit(ports, made, made.table(name)).holds
    for name in ("totals", "visits"):  # a table and a stream's windows: an audit costs more than a step
        assert audit(ports, made, made.table(name), versions[1][name]).holds, "what was undone is history still"
    assert lake.state(ports, made, "counted").position.dropped == {}

    assert tick(ports, made, "go on").failed == {}
    for name, rows in known[2].items():
        assert lake.rows(ports, made, name) == rows
    for name in ("counted", "visits", "ended"):
        assert audit(ports, made, made.table(name)).holds
    assert lake.state(ports, made, "counted").position.dropped == dropped
    assert lake.rows(ports, made, "ended") == {"pen": {"count": 2}}, "sessions that closed before are no news"
    assert rebuild(ports, made, made.table("counted"), "rebuild").inserted == 0

    # By time, after somebody broke the table; its newest commit but one was the restore.
    path = lake.path(ports, made, "totals")
    at = next(c.at for c in StoredTable(f"{made.name}/totals", path).commits() if c.version == versions[0]["totals"])
    DeltaTable(path).delete("customer = 'ada'")
    restore(ports, made, made.table("totals"), "again", timestamp=at)
    assert lake.rows(ports, made, "totals") == known[0]["totals"]
    restore(ports, made, made.table("totals"), "undo", version=versions[2]["totals"])
    assert lake.rows(ports, made, "totals") == known[2]["totals"], "what a restore undid can be restored"
    assert tick(ports, made, "go on again").failed == {}
    assert lake.rows(ports, made, "totals") == known[2]["totals"]
    assert audit(ports, made, made.table("totals")).holds


def test_what_follows_a_restored_table_waits_for_its_next_step_and_then_has_what_it_has(
    ports: Ports, kafka: Kafka, topic: Callable[..., str]
) -> None:
    orders, sink = topic("orders"), topic("sink")
    builder = StreamsBuilder(f"followed-{orders}")
    paid = builder.table(orders, Consumed.json(key="id bigint", value="customer string, amount int"))
    paid = paid.filter("amount > 0").materialize("paid")
    paid.to(sink)
    paid.group_by("customer").aggregate(total="sum(amount)").materialize("totals")
    paid.to_stream().materialize("told")
    made = builder.build()
    for wave in ([order(1, "ada", 10), order(2, "ben", 20)], [order(1, "ben", 11), Record(2, None)]):
        send(kafka, orders, *wave)
        assert tick(ports, made, "wave").failed == {}
    known = {name: lake.rows(ports, made, name) for name in ("paid", "totals")}
    assert known == {"paid": {1: {"customer": "ben", "amount": 11}}, "totals": {"ben": {"total": 11}}}

    restore(ports, made, made.table("paid"), "restore", version=1)
    assert {row["customer"] for row in lake.rows(ports, made, "paid").values()} == {"ada", "ben"}
    for name in ("totals", "told"):
        assert step(ports, made, made.table(name), "between").outcome == "idle", "its next step takes both as one"
    assert lake.rows(ports, made, "totals") == known["totals"]
    assert publish(ports, made, made.table("paid")).records == 2, "what it holds now"

    assert tick(ports, made, "on").failed == {}
    assert {name: lake.rows(ports, made, name) for name in known} == known
    assert {done.outcome for done in tick(ports, made, "again").stepped} == {"idle"}
    assert all(audit(ports, made, table).holds for table in made.tables)
    # Whoever hears of every change hears of the way back, and of the way here again.
    there, back = {(1, "ben"), (2, None)}, {(1, "ada"), (2, "ben")}
    changes = sorted(
        (row["_ordinal"], row["id"], row["customer"]) for row in lake.listed(lake.path(ports, made, "told"))
    )
    told = [one.change for one in received(kafka, sink)]
    for found in ([change[1:] for change in changes], [(key, row and row["customer"]) for key, row in told]):
        assert [set(found[n : n + 2]) for n in range(0, len(found), 2)] == [back, there, back, there]


def test_what_cannot_be_restored_is_told_with_what_can(ports: Ports, kafka: Kafka, topic: Callable[..., str]) -> None:
    orders, clicks = topic("orders"), topic("clicks")
    made = topology(orders, clicks)
    send(kafka, orders, order(1, "ada", 10))
    tick(ports, made, "wave")
    with pytest.raises(CannotRestore, match="kept is a stream: consumers have its records already"):
        restore(ports, made, made.table("kept"), "restore", version=1)
    before = lake.versions(ports, made, "paid")
    for version in (0, -1, before + 1, 99):
        with pytest.raises(
            CannotRestore, match=rf"paid cannot be put back to any version {version}\. .*versions 1 to 1,"
        ):
            restore(ports, made, made.table("paid"), "restore", version=version)
    with pytest.raises(
        CannotRestore, match=r"paid cannot be put back to any commit as old as 1970-01-01 .*versions 1 to 1,"
    ):
        restore(ports, made, made.table("paid"), "restore", timestamp=1)
    with pytest.raises(
        CannotRestore, match=r"paid cannot be put back to any commit of 2100-.*, which is in the future\. .*1 to 1"
    ):
        restore(ports, made, made.table("paid"), "restore", timestamp=4_102_444_800_000)
    with pytest.raises(CannotRestore, match="paid is what it was in version 1: no commit since changed it"):
        restore(ports, made, made.table("paid"), "restore", timestamp=round(time.time() * 1000))
    assert lake.versions(ports, made, "paid") == before, "nothing was committed"


def test_a_version_that_can_no_longer_be_read_is_refused_by_name(
    ports: Ports, kafka: Kafka, topic: Callable[..., str], session: SparkSession
) -> None:
    orders, clicks = topic("orders"), topic("clicks")
    made = topology(orders, clicks)
    send(kafka, orders, order(1, "ada", 10))
    assert tick(ports, made, "wave").failed == {}
    path = lake.path(ports, made, "paid")
    session.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.checkpointInterval' = '1')").collect()
    send(kafka, orders, order(1, "ada", 11))
    assert tick(ports, made, "wave").failed == {}
    (Path(path) / "_delta_log" / f"{0:020}.json").unlink()  # as a cleanup of the log does: version 1 begins with it
    before = lake.versions(ports, made, "paid")
    with pytest.raises(CannotRestore, match=r"the files of version 1 of .*/paid were removed"):
        restore(ports, made, made.table("paid"), "restore", version=1)
    assert lake.versions(ports, made, "paid") == before, "nothing was committed"
