"""Tables of other topologies: followed by version and cut, copied, and never written (KIP-813)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from resources.lakehouse import Lakehouse
from spark.engine.audit import Audited, audit
from spark.engine.check import check
from spark.engine.compact import compact
from spark.engine.errors import LeaderMissing, ReadOnly
from spark.engine.log import commit, table
from spark.engine.log.definition import definition
from spark.engine.log.leaders import stored_columns
from spark.engine.log.stored_table import StoredTable
from spark.engine.ports import Ports, opened
from spark.engine.rebuild import rebuild
from spark.engine.restore import restore
from spark.engine.status import statuses
from spark.engine.step import step
from spark.engine.tick import tick
from spark.topology import Consumed, StreamsBuilder, Topology
from tests.support import lake
from tests.support.lake import Record, send

if TYPE_CHECKING:
    from collections.abc import Callable

    from resources.engine import Engine
    from resources.kafka import Kafka

AT = 1_700_000_000_000  # milliseconds since 1970


def leading(
    customers: str,
    where: str = "country <> 'XX'",
    value: str = "name string, country string",
    select: str | list[str] = "*",
) -> Topology:
    """The leader: a topic's customers, and those that are allowed."""
    builder = StreamsBuilder(f"leading-{customers}")
    c = builder.table(customers, Consumed.json(key="id bigint", value=value))
    c.filter(where).map_values(select).materialize("allowed")
    return builder.build()


def following(orders: str, customers: str, **options: Any) -> Topology:
    """Everything that a follower makes of a leader: a copy, a subset, joins, an aggregate, the changes."""
    builder = StreamsBuilder(f"following-{orders}")
    declared = options or {"key": "id bigint", "value": "name string, country string"}
    c = builder.read_only_table("customers", from_=f"leading-{customers}.allowed", **declared)
    o = builder.table(orders, Consumed.json(key="order_id bigint", value="customer_id bigint, amount int"))
    clicks = builder.stream(f"{orders}-clicks", Consumed.json(key="click_id bigint", value="customer_id bigint"))
    c.map_values("name").materialize("names")
    c.filter("country = 'AT'").materialize("austrians")
    o.left_join(c, on="customer_id", select=["left.*", "right.name"]).materialize("named")
    c.map_values("country").group_by("country").count().materialize("counted")
    c.to_stream().materialize("changed")
    clicks.join(c, on="customer_id", select=["left.*", "right.name"]).materialize("visits")
    return builder.build()


def files(folder: str) -> dict[str, tuple[int, int]]:
    """Every file below a folder, with its size and the time of its last change in nanoseconds."""
    found = {str(path): path.stat() for path in Path(folder).rglob("*") if path.is_file()}
    return {path: (stat.st_size, stat.st_mtime_ns) for path, stat in found.items()}


def customer(number: int, name: str, country: str = "AT", at: int = 0) -> Record:
    """A customer."""
    return Record(number, {"name": name, "country": country}, timestamp=AT + at)


def order(number: int, customer_id: int, at: int = 0) -> Record:
    """An order."""
    return Record(number, {"customer_id": customer_id, "amount": 10 * number}, timestamp=AT + at)


def test_a_follower_has_what_its_leader_has_and_touches_no_file_of_it(
    ports: Ports, kafka: Kafka, topic: Callable[..., str]
) -> None:
    customers, orders = topic("customers"), topic("orders")
    kafka.create_topic(f"{orders}-clicks", 1, None)
    leader, follower = leading(customers), following(orders, customers)
    send(kafka, customers, customer(1, "ada"), customer(2, "ben", "DE"), customer(3, "cid", "XX"))
    send(kafka, orders, order(1, 1), order(2, 2), order(3, 3))
    send(kafka, f"{orders}-clicks", Record(1, {"customer_id": 1}), Record(2, {"customer_id": 3}))
    assert tick(ports, leader, "leader").failed == {}
    folder, name = lake.path(ports, leader, ""), f"{leader.name}/allowed"
    was = files(folder)
    assert tick(ports, follower, "follower").failed == {}
    assert lake.rows(ports, follower, "named") == {
        1: {"customer_id": 1, "amount": 10, "name": "ada"},
        2: {"customer_id": 2, "amount": 20, "name": "ben"},
        3: {"customer_id": 3, "amount": 30, "name": None},
    }
    columns = stored_columns(ports.lakehouse, f"{follower.name}/counted")
    assert columns == (("country",), follower.table("counted").plan.columns), "what a follower of the follower reads"
    pinned = lake.state(ports, follower, "named").position
    there = lake.state(ports, leader, "allowed")
    assert (pinned.inputs[name].id, pinned.inputs[name].version) == (there.id, there.data_version)
    assert there.position.cut.items() <= pinned.cut.items(), "the leader's cut is part of the follower's"

    # The leader alone moves.
    assert files(folder) == was
    moved = customer(1, "ada l.", at=1), Record(2, None, timestamp=AT + 1), customer(3, "cid", "FR", 1)
    send(kafka, customers, *moved)
    assert tick(ports, leader, "leader").failed == {}
    was = files(folder)
    [shown] = [one for one in statuses(ports.lakehouse, follower, None) if one.table == name]
    assert shown.is_leader
    assert not shown.is_lagging
    assert shown.state == lake.state(ports, leader, "allowed")
    behind = {one.table: one for one in statuses(ports.lakehouse, follower, {})}["named"]
    assert (behind.leader_lag, behind.lag, behind.is_lagging) == ({name: 1}, {customers: 3}, True)
    ticked = tick(ports, follower, "follower")
    assert ticked.failed == {}
    assert not any(one.is_lagging for one in statuses(ports.lakehouse, follower, {}))
    assert {one.table.partition("/")[2]: one.outcome for one in ticked.stepped if one.outcome != "stepped"} == {
        orders: "idle",
        "visits": "positioned",
    }
    assert {key: row["name"] for key, row in lake.rows(ports, follower, "named").items()} == {
        1: "ada l.",
        2: None,
        3: "cid",
    }
    assert lake.rows(ports, follower, "names") == {1: {"name": "ada l."}, 3: {"name": "cid"}}
    assert lake.rows(ports, follower, "austrians") == {1: {"name": "ada l.", "country": "AT"}}
    assert lake.rows(ports, follower, "counted") == {"AT": {"count": 1}, "FR": {"count": 1}}
    changed = lake.listed(lake.path(ports, follower, "changed"))
    assert sorted((row["_batch"], row["id"], row["name"]) for row in changed if row["_batch"] == there.version)
    assert len(changed) == 5, "two rows, and then a renamed, a deleted and a new one"
    assert {row["name"] for row in lake.listed(lake.path(ports, follower, "visits"))} == {"ada"}

    # Whatever a follower does, it does to its own tables.
    gate = lake.Watching(lambda _: None)
    for one in map(follower.table, ("names", "counted", "changed")):
        rebuild(ports, follower, one, "again")
        compact(ports.engine, ports.lakehouse, follower, one.name)
        check(ports, follower, one, gate, "check")
    restore(ports, follower, follower.table("names"), "restore", version=1)
    assert tick(ports, follower, "on").failed == {}
    found = [*lake.audited(ports, follower, "names"), *(audit(ports, follower, one) for one in follower.tables)]
    assert all(isinstance(one, Audited) and one.holds for one in found)
    assert lake.rows(ports, follower, "names") == {1: {"name": "ada l."}, 3: {"name": "cid"}}
    assert files(folder) == was


def test_the_engine_refuses_every_write_to_a_table_of_another_topology(
    ports: Ports, kafka: Kafka, topic: Callable[..., str]
) -> None:
    customers = topic("customers")
    leader = leading(customers)
    send(kafka, customers, customer(1, "ada"))
    assert tick(ports, leader, "leader").failed == {}
    name, was = f"{leader.name}/allowed", files(lake.path(ports, leader, ""))
    followed, state = StoredTable.of(ports.lakehouse, "following-clicks", name), lake.state(ports, leader, "allowed")
    assert followed.state() == state
    position, other = state.position, following("clicks", customers)
    with opened(ports.engine) as session:
        frame = session.read.format("delta").load(followed.path)
        writes: list[Callable[[], object]] = [
            lambda: commit.append(frame, followed, position),
            lambda: commit.replace_all(frame, followed, position),
            lambda: commit.replace_where(frame, "true", followed, position),
            lambda: commit.replace_on(frame, "true", followed, position),
            lambda: commit.merge(session, "SELECT 1", followed, position),
            lambda: commit.close_epoch(frame, followed, position),
            lambda: table.create(session, followed, frame.schema, "run", "{}"),
            lambda: table.anchor(session, followed, position, "{}"),
            lambda: table.add_columns(session, followed, {"more": "int"}),
            lambda: table.set_properties(session, followed, {"a": "b"}),
            lambda: compact(ports.engine, ports.lakehouse, other, name),
        ]
        for write in writes:
            with pytest.raises(
                ReadOnly, match=rf"{name} is read by following-clicks, and only its own topology writes it"
            ):
                write()
    assert files(lake.path(ports, leader, "")) == was


def test_a_leader_that_is_not_there_fails_by_name_or_is_waited_for(
    ports: Ports, kafka: Kafka, topic: Callable[..., str]
) -> None:
    customers = topic("customers")
    leader = leading(customers)
    send(kafka, customers, customer(1, "ada"))

    def copying(allow_missing: bool) -> Topology:
        builder = StreamsBuilder(f"waiting-{customers}")
        read = builder.read_only_table(
            "c", from_=f"{leader.name}.allowed", key="id bigint", value="name string", allow_missing=allow_missing
        )
        read.materialize("copy")
        return builder.build()

    strict, patient = copying(False), copying(True)

    def check_missing(found: str) -> None:
        with pytest.raises(LeaderMissing) as missing:
            step(ports, strict, strict.table("copy"), "early")
        for part in (
            f"reads {leader.name}.allowed, declared at",
            found,
            f"tidetable run {leader.name}",
            "allow_missing",
        ):
            assert part in str(missing.value)
        assert tick(ports, strict, "early").failed.keys() == {"copy"}
        assert {one.table: one.refused for one in statuses(ports.lakehouse, strict, {})}["copy"] == str(missing.value)
        stepped = step(ports, patient, patient.table("copy"), "early")
        assert (stepped.outcome, stepped.waiting_for) == ("waiting", (f"{leader.name}/allowed",))
        by_name = {one.table: one for one in statuses(ports.lakehouse, patient, {})}
        assert by_name["copy"].waiting_for == (f"{leader.name}/allowed",)
        assert not Path(lake.path(ports, patient, "copy")).exists()

    check_missing("is no table")
    lake.land_all(ports, leader)
    lake.step_all(ports, leader, customers)
    allowed = StoredTable.of(ports.lakehouse, leader.name, "allowed")
    with opened(ports.engine) as session:  # a step of the leader died after it created the table
        rows = session.read.format("delta").load(lake.path(ports, leader, customers))
        table.create(session, allowed, rows.schema, "died", definition(leader, leader.table("allowed")))
    check_missing("has no commit of a step")
    assert tick(ports, leader, "leader").failed == {}
    for made in (patient, strict):
        assert step(ports, made, made.table("copy"), "on").outcome in ("stepped", "idle")
    assert lake.rows(ports, strict, "copy") == {1: {"name": "ada"}}
    assert audit(ports, strict, strict.table("copy")).holds


def test_a_leader_of_another_lake_is_followed_with_read_access_alone(
    ports: Ports, kafka: Kafka, topic: Callable[..., str], tmp_path: Path
) -> None:
    customers = topic("customers")
    leader, far = leading(customers), Ports(ports.engine, Lakehouse(str(tmp_path / "far")), kafka)
    builder = StreamsBuilder(f"far-{customers}")
    read = builder.read_only_table(
        "c", from_=f"{leader.name}.allowed", lake=str(tmp_path / "far"), key="id bigint", value="name string"
    )
    read.materialize("copy")
    follower = builder.build()
    name = f"{tmp_path}/far/{leader.name}/allowed"
    for wave in ([customer(1, "ada"), customer(2, "ben")], [customer(1, "ada l."), Record(2, None)]):
        send(kafka, customers, *wave)
        assert tick(far, leader, "leader").failed == {}
        folders = [path for path in (tmp_path / "far").rglob("*") if path.is_dir()]
        for path in folders:
            os.chmod(path, 0o555)  # of no effect for root, whose files are compared
        was = files(str(tmp_path / "far"))
        assert tick(ports, follower, "follower").failed == {}
        assert audit(ports, follower, follower.table("copy")).holds
        assert files(str(tmp_path / "far")) == was
        for path in folders:
            os.chmod(path, 0o755)
    assert lake.rows(ports, follower, "copy") == {1: {"name": "ada l."}}
    assert [*lake.state(ports, follower, "copy").position.inputs] == [name]


@pytest.mark.parametrize(
    ("value", "where", "refused"),
    [
        ("name string, country string", "country <> 'DE'", "allowed PlanChanged leading-"),
        ("name int, country string", "country <> 'XX'", "_landing/"),
    ],
    ids=["table", "landing"],
)
def test_a_second_leader_with_another_definition_is_refused_before_anything_is_changed(
    ports: Ports, engine: Engine, kafka: Kafka, topic: Callable[..., str], value: str, where: str, refused: str
) -> None:
    customers = topic("customers")
    leader = leading(customers)
    send(kafka, customers, customer(1, "ada"))
    assert tick(ports, leader, "leader").failed == {}
    was = files(lake.path(ports, leader, ""))
    arguments = (str(engine.lake), ports.lakehouse.table(leader.name, ""), customers, value, where)
    command = [sys.executable, "-m", "tests.engine.second_leader", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert refused in done.stdout
    assert "PlanChanged" in done.stdout
    assert files(lake.path(ports, leader, "")) == was
