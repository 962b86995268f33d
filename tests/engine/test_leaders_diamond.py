"""A diamond over four topologies: what one account gains another loses, in whatever order the topologies tick."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from spark.engine.audit import audit
from spark.engine.land import capture
from spark.engine.tick import tick
from spark.topology import Consumed, StreamsBuilder, Topology
from tests.support import lake
from tests.support.lake import Record, Row, send

if TYPE_CHECKING:
    from collections.abc import Callable

    from resources.kafka import Kafka
    from spark.engine.ports import Ports

ACCOUNTS = range(1, 5)
SCHEDULE = 24
"""Ticks of a topology at random: enough for each arm to be ahead of the other several times."""


def bank(transfers: str) -> dict[str, Topology]:
    """Transfers in one topology, who gains and who loses in two others, and all balances together in a fourth."""

    def builder(name: str) -> StreamsBuilder:
        return StreamsBuilder(f"{name}-{transfers}")

    a, b, c, d = builder("a"), builder("b"), builder("c"), builder("d")
    a.table(transfers, Consumed.json(key="id bigint", value="src bigint, dst bigint, amount bigint"))
    read: dict[str, Any] = {"from_": f"a-{transfers}.{transfers}", "key": "id bigint"}
    gaining = b.read_only_table("transfers", **read, value="dst bigint, amount bigint")
    by_account = gaining.map_values(["dst AS account", "amount"]).group_by("account")
    by_account.aggregate(gained="sum(amount)").materialize("credits")
    losing = c.read_only_table("transfers", **read, value="src bigint, amount bigint")
    by_account = losing.map_values(["src AS account", "amount"]).group_by("account")
    by_account.aggregate(lost="sum(amount)").materialize("debits")
    arms: dict[str, Any] = {"key": "account bigint", "allow_missing": True}
    credits = d.read_only_table("credits", from_=f"b-{transfers}.credits", value="gained bigint", **arms)
    debits = d.read_only_table("debits", from_=f"c-{transfers}.debits", value="lost bigint", **arms)
    balance = "coalesce(left.gained, 0) - coalesce(right.lost, 0) AS balance"
    balances = credits.outer_join(debits, select=[balance]).materialize("balances")
    everyone = balances.map_values(["1 AS everyone", "balance"]).group_by("everyone")
    everyone.aggregate(total="sum(balance)").materialize("total")
    return {name: one.build() for name, one in zip("abcd", (a, b, c, d), strict=True)}


def test_no_version_of_the_total_mixes_two_prefixes(ports: Ports, kafka: Kafka, topic: Callable[..., str]) -> None:
    rng, transfers = random.Random(22), topic("transfers", 2)
    made = bank(transfers)

    def move() -> None:
        records = []
        for _ in range(6):
            key = rng.randrange(12)
            src, dst = rng.sample(ACCOUNTS, 2)
            row: Row | None = None if rng.random() < 0.2 else {"src": src, "dst": dst, "amount": rng.randrange(1, 100)}
            records.append(Record(key, row, key % 2))
        send(kafka, transfers, *records)

    move()
    for name in "ad":  # the leaders of the last are not there yet, and it waits
        assert tick(ports, made[name], "first").failed == {}
    waited, behind = 0, 0
    for turn in range(SCHEDULE):
        name = rng.choice("aabcd")
        if name == "a":
            move()
        ticked = tick(ports, made[name], f"turn {turn}")
        assert ticked.failed == {}
        waited += sum(one.outcome == "waiting" for one in ticked.stepped)
        if name == "d" and turn > 3:
            cuts = [_cut(ports, made[arm], table) for arm, table in (("b", "credits"), ("c", "debits"))]
            behind += cuts[0] != cuts[1]
    assert waited > 0
    assert behind > 0, "one arm was ahead of the other"
    seen = 0
    for version in range(lake.versions(ports, made["d"], "total") + 1):
        for row in lake.listed(lake.path(ports, made["d"], "total"), version):
            assert row["total"] == 0, version
            seen += 1
    assert seen >= 2, "versions with a row"

    for name in "abcd":
        assert tick(ports, made[name], "last").failed == {}
        for table in made[name].tables:
            assert audit(ports, made[name], table).holds
    [end] = capture(kafka, made["a"]).values()
    assert lake.state(ports, made["d"], "total").position.cut == {f"{kafka.cluster_id()}/{transfers}": end}
    expected = dict.fromkeys(ACCOUNTS, 0)
    for row in lake.rows(ports, made["a"], transfers).values():
        src, dst, amount = (int(str(row[column])) for column in ("src", "dst", "amount"))
        expected[dst] += amount
        expected[src] -= amount
    balances = lake.rows(ports, made["d"], "balances")
    assert {key: balances.get(key, {}).get("balance", 0) for key in ACCOUNTS} == expected


def _cut(ports: Ports, made: Topology, table: str) -> object:
    return lake.state(ports, made, table).position.cut
