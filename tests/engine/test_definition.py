"""Definitions: what differs in more than columns that inputs gained is refused, and what does not goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from spark.engine.audit import Audited
from spark.engine.errors import PlanChanged
from spark.engine.log import commit, definition, table
from spark.engine.rebuild import rebuild
from spark.engine.restore import restore
from spark.engine.step import step
from spark.engine.tick import tick
from spark.topology import Consumed, StreamsBuilder, Topology
from tests.support import lake
from tests.support.lake import Record, received, send

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from resources.kafka import Kafka
    from spark.engine.ports import Ports

AT = 1_700_000_000_000  # milliseconds since 1970


def shop(orders: str, customers: str, clicks: str, sink: str, gained: bool) -> Topology:
    """Tables and streams that pass columns on; two topics gain one each."""
    note, vip = (", note string", ", vip boolean") if gained else ("", "")
    builder = StreamsBuilder(f"gaining-{orders}")
    o = builder.table(orders, Consumed.json(key="order_id bigint", value=f"customer_id bigint, amount int{note}"))
    c = builder.table(customers, Consumed.json(key="customer_id bigint", value=f"name string{vip}"))
    o.filter("amount > 1").map_values("*").materialize("large").to(sink)
    named = o.left_join(c, on="customer_id", select=["left.*", "right.*"]).materialize("named")
    named.map_values("*").group_by("name").count().materialize("counted")
    named.to_stream().materialize("told").to_table().materialize("newest")
    stream = builder.stream(clicks, Consumed.json(key="click_id bigint", value="customer_id bigint"))
    stream.join(c, on="customer_id", select=["left.*", "right.*"]).materialize("visits")
    return builder.build()


@pytest.mark.thorough
def test_columns_that_inputs_gain_flow_through_without_a_rebuild(
    ports: Ports, kafka: Kafka, topic: Callable[..., str]
) -> None:
    names = topic("orders"), topic("customers"), topic("clicks"), topic("sink")
    orders, customers, clicks, sink = names
    before, after = shop(*names, gained=False), shop(*names, gained=True)
    send(kafka, orders, Record(1, {"customer_id": 7, "amount": 10}), Record(2, {"customer_id": 7, "amount": 20}))
    send(kafka, customers, Record(7, {"name": "Ada"}))
    send(kafka, clicks, Record(1, {"customer_id": 7}))
    assert tick(ports, before, "before").failed == {}
    old = lake.state(ports, before, "large")

    send(kafka, orders, Record(2, {"customer_id": 7, "amount": 20, "note": "gift"}, timestamp=AT + 1))
    send(kafka, customers, Record(7, {"name": "Ada", "vip": True}, timestamp=AT + 1))
    send(kafka, clicks, Record(2, {"customer_id": 7}, timestamp=AT + 2))
    ticked = tick(ports, after, "after")
    assert ticked.failed == {}
    (large,) = [done for done in ticked.stepped if done.table.endswith("/large")]
    assert (large.inserted, large.updated, large.deleted) == (0, 1, 0)
    assert lake.rows(ports, after, "large") == {
        1: {"customer_id": 7, "amount": 10, "note": None},
        2: {"customer_id": 7, "amount": 20, "note": "gift"},
    }
    first = {"customer_id": 7, "amount": 10, "note": None, "name": "Ada", "vip": True}
    assert lake.rows(ports, after, "named") == {1: first, 2: first | {"amount": 20, "note": "gift"}}
    assert lake.rows(ports, after, "newest") == lake.rows(ports, after, "named")
    assert lake.rows(ports, after, "counted") == {"Ada": {"count": 2}}
    visits = {row["click_id"]: row["vip"] for row in lake.listed(lake.path(ports, after, "visits"))}
    assert visits == {1: None, 2: True}
    for name in ("large", "told", "visits"):
        audited = lake.audited(ports, after, name)
        assert len(audited) >= 2
        assert all(isinstance(one, Audited) and one.holds for one in audited), audited
    told = [one.change for one in received(kafka, sink)]
    assert told[-1] == (2, {"customer_id": 7, "amount": 20, "note": "gift"})

    restore(ports, after, after.table("large"), "back", version=old.version)
    assert {row["note"] for row in lake.rows(ports, after, "large").values()} == {None}
    assert tick(ports, after, "on").failed == {}
    assert lake.rows(ports, after, "large")[2]["note"] == "gift"
    assert {done.outcome for done in tick(ports, after, "again").stepped} == {"idle"}
    # Whoever still has the older definition is told.
    with pytest.raises(PlanChanged, match="tidetable rebuild"):
        step(ports, before, before.table("large"), "older")


def test_a_view_may_gain_columns_that_a_table_does_not_read_and_no_refusal_is_without_its_difference(
    ports: Ports, kafka: Kafka, topic: Callable[..., str]
) -> None:
    orders, customers = topic("orders"), topic("customers")

    def totals(*more: str, amount: str = "left.amount") -> Topology:
        builder = StreamsBuilder(f"totals-{orders}")
        o = builder.table(orders, Consumed.json(key="order_id bigint", value="customer_id bigint, amount int"))
        c = builder.table(customers, Consumed.json(key="customer_id bigint", value="name string, vip boolean"))
        view = o.join(c, on="customer_id", select=[f"{amount} AS amount", "right.name", *more])
        view.group_by("name").aggregate(total="sum(amount)").materialize("totals")
        return builder.build()

    send(kafka, orders, Record(1, {"customer_id": 7, "amount": 10}))
    send(kafka, customers, Record(7, {"name": "Ada", "vip": True}))
    assert tick(ports, totals(), "before").failed == {}
    after = totals("right.vip", "left.amount + 1 AS more")
    send(kafka, orders, Record(2, {"customer_id": 7, "amount": 20}))
    assert tick(ports, after, "after").failed == {}
    assert lake.rows(ports, after, "totals") == {"Ada": {"total": 30}}
    other = totals(amount="cast(left.amount * 2 AS int)")
    with pytest.raises(PlanChanged) as refused:
        step(ports, other, other.table("totals"), "other")
    assert [line for line in str(refused.value).splitlines() if line.startswith("+ ") and "* 2" in line]


def died(*_: object) -> None:
    """Die here."""
    raise InterruptedError


@pytest.mark.thorough
def test_a_step_that_died_while_its_table_gained_a_column_is_taken_up(
    ports: Ports, kafka: Kafka, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    items = topic("items")
    before, after = taken(items, "v int", "*"), taken(items, "v int, w timestamp_ntz", "*")
    send(kafka, items, Record(1, {"v": 1}))
    assert tick(ports, before, "before").failed == {}
    send(kafka, items, Record(2, {"v": 2, "w": "2026-01-01T00:00:00"}))
    lake.land_all(ports, after)

    for name in (items, "taken"):
        with monkeypatch.context() as patched:
            patched.setattr(table, "set_properties", died)
            with pytest.raises(InterruptedError):
                step(ports, after, after.table(name), "dies")
        assert step(ports, after, after.table(name), "goes on").outcome == "stepped"
    found = lake.rows(ports, after, "taken")
    assert found[1] == {"v": 1, "w": None}
    assert found[2]["w"] is not None


def taken(items: str, value: str, *columns: str) -> Topology:
    """Some columns of items."""
    builder = StreamsBuilder(f"taken-{items}")
    builder.table(items, Consumed.json(key="id bigint", value=value)).map_values(columns).materialize("taken")
    return builder.build()


def computed(items: str, *columns: str) -> Topology:
    """Some columns of a view that computes one."""
    builder = StreamsBuilder(f"computed-{items}")
    i = builder.table(items, Consumed.json(key="id bigint", value="v int, w int"))
    view = i.map_values(["v", "w", "v * 2 AS twice"])
    view.map_values(columns).materialize("taken")
    return builder.build()


@pytest.fixture(scope="module")
def viewed(ports: Ports, kafka: Kafka, topic: Callable[..., str]) -> str:
    """A topic of which one column is taken."""
    items = topic("items")
    send(kafka, items, Record(1, {"v": 1, "w": 2}))
    assert tick(ports, computed(items, "v"), "before").failed == {}
    return items


@pytest.mark.parametrize("column", ["w", "v + 1 AS w", "v AS w", "twice", "w AS other"])
def test_a_column_that_was_there_is_not_taken_without_a_rebuild(ports: Ports, viewed: str, column: str) -> None:
    before, after = computed(viewed, "v"), computed(viewed, "v", column)
    with pytest.raises(PlanChanged, match="tidetable rebuild"):
        step(ports, after, after.table("taken"), "after")
    assert lake.rows(ports, before, "taken") == {1: {"v": 1}}


@pytest.fixture
def gained(ports: Ports, kafka: Kafka, topic: Callable[..., str]) -> tuple[Topology, Topology]:
    """A topology before and after a column was declared, which the input of its table has, and the table not yet."""
    items = topic("items")
    before, after = taken(items, "v int", "*"), taken(items, "v int, w int", "*")
    send(kafka, items, Record(1, {"v": 1}))
    assert tick(ports, before, "before").failed == {}
    send(kafka, items, Record(1, {"v": 1, "w": 1}, timestamp=AT + 1))
    lake.land_all(ports, after)
    step(ports, after, after.table(items), "after")
    return before, after


@pytest.mark.thorough
def test_a_run_of_the_older_definition_that_steps_meanwhile_is_noticed(
    ports: Ports, gained: tuple[Topology, Topology], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = gained
    add = table.add_columns

    def late(*arguments: Any) -> None:
        """The older one is through before the columns are added, and its rows know none of the new one's."""
        monkeypatch.undo()
        step(ports, before, before.table("taken"), "older")
        add(*arguments)

    monkeypatch.setattr(definition, "add_columns", late)
    with pytest.raises(PlanChanged, match="tidetable rebuild"):
        step(ports, after, after.table("taken"), "after")
    rebuild(ports, after, after.table("taken"), "rebuild")
    assert lake.rows(ports, after, "taken") == {1: {"v": 1, "w": 1}}


@pytest.mark.thorough
def test_a_run_of_the_older_definition_that_commits_behind_the_gain_is_overtaken(
    ports: Ports, gained: tuple[Topology, Topology]
) -> None:
    before, after = gained

    def gains(batch: DataFrame) -> None:  # noqa: ARG001  # a gate is called by this name
        """The columns are there when the older one has its rows, and has yet to commit them."""
        definition.evolved(ports, after, after.table("taken"), lake.state(ports, after, "taken"), "newer")

    with pytest.raises(PlanChanged, match="tidetable rebuild"):
        step(ports, before, before.table("taken"), "older", lake.Watching(gains))
    assert step(ports, after, after.table("taken"), "after").outcome == "stepped"
    assert lake.rows(ports, after, "taken") == {1: {"v": 1, "w": 1}}
    assert all(isinstance(one, Audited) and one.holds for one in lake.audited(ports, after, "taken"))


@pytest.mark.thorough
def test_two_runs_that_gain_a_column_at_once_agree(
    ports: Ports, gained: tuple[Topology, Topology], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, after = gained
    append = commit.append

    def overtaken(*arguments: Any) -> Any:
        """Another run of the same definition is through before the columns' commit."""
        monkeypatch.undo()
        assert step(ports, after, after.table("taken"), "other").outcome == "stepped"
        return append(*arguments)

    monkeypatch.setattr(commit, "append", overtaken)
    assert step(ports, after, after.table("taken"), "one").outcome == "idle"
    assert lake.rows(ports, after, "taken") == {1: {"v": 1, "w": 1}}


@pytest.mark.thorough
def test_a_run_that_died_between_columns_and_their_commit_hides_no_step_of_the_older_definition(
    ports: Ports, gained: tuple[Topology, Topology], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = gained

    def dies(batch: DataFrame) -> None:  # noqa: ARG001  # a gate is called by this name
        with monkeypatch.context() as patched:
            patched.setattr(commit, "append", died)
            with pytest.raises(InterruptedError):
                definition.evolved(ports, after, after.table("taken"), lake.state(ports, after, "taken"), "dies")

    assert step(ports, before, before.table("taken"), "older", lake.Watching(dies)).outcome == "stepped"
    with pytest.raises(PlanChanged, match="tidetable rebuild"):
        step(ports, after, after.table("taken"), "after")
    rebuild(ports, after, after.table("taken"), "rebuild")
    assert lake.rows(ports, after, "taken") == {1: {"v": 1, "w": 1}}


@pytest.mark.thorough
def test_a_table_that_has_not_gained_its_columns_yet_is_audited_and_restored(
    ports: Ports, kafka: Kafka, topic: Callable[..., str]
) -> None:
    items = topic("items")
    before, after = taken(items, "v int", "*"), taken(items, "v int, w string", "*")
    send(kafka, items, Record(1, {"v": 1}))
    assert tick(ports, before, "before").failed == {}
    first = lake.state(ports, before, "taken")
    send(kafka, items, Record(2, {"v": 2}))
    assert tick(ports, before, "before").failed == {}
    versions = lake.versions(ports, after, "taken")
    audited = lake.audited(ports, after, "taken")
    assert [isinstance(one, Audited) and one.holds for one in audited] == [True, True]
    assert lake.versions(ports, after, "taken") == versions, "looking changes nothing"
    restore(ports, after, after.table("taken"), "back", version=first.version)
    assert lake.rows(ports, after, "taken") == {1: {"v": 1, "w": None}}


def test_a_rebuild_of_a_table_that_gains_columns_keeps_what_follows_it(
    ports: Ports, kafka: Kafka, topic: Callable[..., str]
) -> None:
    items = topic("items")

    def followed(value: str) -> Topology:
        builder = StreamsBuilder(f"followed-{items}")
        kept = builder.table(items, Consumed.json(key="id bigint", value=value)).map_values("*").materialize("kept")
        kept.to_stream().materialize("told")
        return builder.build()

    before, after = followed("v int"), followed("v int, w int")
    send(kafka, items, Record(1, {"v": 1}))
    assert tick(ports, before, "before").failed == {}
    send(kafka, items, Record(2, {"v": 2, "w": 2}))
    lake.land_all(ports, after)
    step(ports, after, after.table(items), "after")
    rebuilt = rebuild(ports, after, after.table("kept"), "rebuild")
    assert (rebuilt.inserted, rebuilt.updated, rebuilt.deleted) == (1, 0, 0)
    assert step(ports, after, after.table("told"), "after").outcome == "stepped"
    told = [(row["id"], row["v"], row["w"]) for row in lake.listed(lake.path(ports, after, "told"))]
    assert sorted(told) == [(1, 1, None), (2, 2, 2)]
