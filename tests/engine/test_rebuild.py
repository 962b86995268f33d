"""Audit proves versions, rebuild puts tables right; both by the operators that a step uses."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from spark.engine import rebuild as repair
from spark.engine.audit import audit
from spark.engine.errors import InputChanged, NotCommitted, PlanChanged, PositionLost
from spark.engine.log import commit, table
from spark.engine.log.position import CLOSED
from spark.engine.log.stored_table import StoredTable
from spark.engine.rebuild import rebuild
from spark.engine.step import step
from spark.engine.tick import tick
from spark.topology import Consumed, StreamsBuilder, TimeWindows, Topology
from tests.engine.shop import DERIVED, Story
from tests.support import lake
from tests.support.lake import Record, copied, send

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from resources.kafka import Kafka
    from spark.engine.ports import Ports

TABLES = ("orders", "customers", "products", *DERIVED)


def called(story: Story, name: str) -> str:
    """A table's name: those of topics carry a number."""
    return next(table for table in story.shop.names() if table.split("-")[0] == name)


@pytest.mark.parametrize("name", TABLES)
def test_every_version_that_ever_was_equals_its_query_over_its_own_inputs(story: Story, name: str) -> None:
    target = story.topology.table(called(story, name))
    where = lake.path(story.last.ports, story.topology, target.name)
    commits = {made.version: made for made in StoredTable(f"{story.topology.name}/{target.name}", where).commits()}
    assert commits.keys() == {wave.versions[target.name] for wave in story.waves.values()}
    waves = list({wave.versions[target.name]: wave for wave in story.waves.values()}.values())
    if name not in DERIVED:  # the newest of a topic's keys: every third version tells as much
        waves = waves[TABLES.index(name) % 3 :: 3]
    for wave in waves:
        was = commits[wave.versions[target.name]]
        found = audit(story.last.ports, story.topology, target, was.version)
        assert found.holds, found.sample
        assert (found.version, found.position) == (was.version, was.position)
        assert found.rows == len(wave.expected[target.name])


def test_a_table_before_its_first_commit_has_nothing_to_audit(story: Story) -> None:
    with pytest.raises(InputChanged, match="nothing to audit"):
        audit(story.last.ports, story.topology, story.topology.table("titled"), version=0)


def test_a_definition_that_did_not_compute_the_table_does_not_judge_it(story: Story) -> None:
    tables = {table.name: table for table in story.topology.tables}
    changed = replace(story.topology.table("titled"), plan=story.topology.table("looked_up").plan)
    other = replace(story.topology, tables=tuple((tables | {changed.name: changed}).values()))
    with pytest.raises(PlanChanged, match="tidetable rebuild"):
        audit(story.last.ports, other, changed)


@pytest.fixture
def damaged(story: Story, session: SparkSession, tmp_path: Path) -> Ports:
    """The lake after the last wave, with rows of `enriched` changed, deleted and added by hand."""
    ports = copied(story.last.ports, story.topology, tmp_path)
    where = f"delta.`{lake.path(ports, story.topology, 'enriched')}`"
    for statement in (
        f"UPDATE {where} SET name = 'mallory' WHERE order_id = 1",
        f"DELETE FROM {where} WHERE order_id = 3",
        f"INSERT INTO {where} SELECT 77, * EXCEPT (order_id) FROM {where} WHERE order_id = 1",
    ):
        session.sql(statement).collect()
    return ports


def test_an_audit_names_the_rows_that_differ_and_a_rebuild_merges_those_alone(story: Story, damaged: Ports) -> None:
    target = story.topology.table("enriched")
    found = audit(damaged, story.topology, target)
    assert not found.holds
    assert found.differing == 3
    said = {row["order_id"]: (str(row["should_be"]), str(row["is"])) for row in found.sample}
    assert said.keys() == {1, 3, 77}
    assert '"name":"ada k."' in said[1][0]
    assert '"name":"mallory"' in said[1][1]
    assert (said[3][1], said[77][0]) == ("None", "None")

    done = rebuild(damaged, story.topology, target, "rebuild")
    assert (done.outcome, done.updated, done.inserted, done.deleted) == ("stepped", 1, 1, 1)
    expected = story.last.expected["enriched"]
    assert lake.rows(damaged, story.topology, "enriched", list(next(iter(expected.values())))) == expected
    assert audit(damaged, story.topology, target).holds


class Refused(Exception):
    """What a gate says."""


def test_a_rebuild_shows_its_gate_every_row_and_writes_none_that_it_refuses(story: Story, damaged: Ports) -> None:
    target, version = story.topology.table("enriched"), lake.versions(damaged, story.topology, "enriched")

    def gate(batch: DataFrame) -> None:
        assert batch.count() == len(story.last.expected["enriched"])
        raise Refused

    with pytest.raises(Refused):
        rebuild(damaged, story.topology, target, "refused", lake.Watching(gate))
    assert lake.versions(damaged, story.topology, "enriched") == version


def test_a_key_with_two_rows_is_found_by_an_audit_and_put_right_by_a_rebuild(
    story: Story, session: SparkSession, tmp_path: Path
) -> None:
    ports, target = copied(story.last.ports, story.topology, tmp_path), story.topology.table("titled")
    where = f"delta.`{lake.path(ports, story.topology, 'titled')}`"
    session.sql(f"INSERT INTO {where} SELECT * FROM {where} WHERE order_id = 1").collect()
    found = audit(ports, story.topology, target)
    assert (found.holds, found.differing) == (False, 1)
    assert {row["order_id"] for row in found.sample} == {1}
    rebuild(ports, story.topology, target, "rebuild")
    assert audit(ports, story.topology, target).holds
    assert len(lake.rows(ports, story.topology, "titled")) == len(story.last.expected["titled"])


def test_an_audit_of_a_lookup_only_join_finds_a_row_that_nobody_looked_up(
    story: Story, session: SparkSession, tmp_path: Path
) -> None:
    ports, target = copied(story.last.ports, story.topology, tmp_path), story.topology.table("looked_up")
    where = f"delta.`{lake.path(ports, story.topology, 'looked_up')}`"
    session.sql(f"UPDATE {where} SET title = 'by hand' WHERE order_id = 1").collect()
    found = audit(ports, story.topology, target)
    assert [row["order_id"] for row in found.sample] == [1]


@pytest.mark.thorough
def test_a_rebuild_of_a_lookup_only_join_looks_everything_up_again(story: Story, tmp_path: Path) -> None:
    ports, target = copied(story.last.ports, story.topology, tmp_path), story.topology.table("looked_up")
    done = rebuild(ports, story.topology, target, "rebuild")
    assert done.after is not None
    assert done.after.position.whole
    expected = story.last.expected["titled"]
    assert lake.rows(ports, story.topology, "looked_up", list(next(iter(expected.values())))) == expected
    assert audit(ports, story.topology, target).holds


def test_a_rebuild_puts_right_what_reads_a_table_made_anew(story: Story, tmp_path: Path) -> None:
    ports, customers = copied(story.last.ports, story.topology, tmp_path), called(story, "customers")
    shutil.rmtree(lake.path(ports, story.topology, customers))
    step(ports, story.topology, story.topology.table(customers), "test")
    with pytest.raises(InputChanged, match="tidetable rebuild"):
        step(ports, story.topology, story.topology.table("enriched"), "test")
    with pytest.raises(InputChanged, match="is not the table that"):
        audit(ports, story.topology, story.topology.table("enriched"))
    done = rebuild(ports, story.topology, story.topology.table("enriched"), "rebuild")
    assert (done.inserted, done.updated, done.deleted) == (0, 0, 0), "it holds the same rows"
    assert step(ports, story.topology, story.topology.table("enriched"), "test").outcome == "idle"
    assert audit(ports, story.topology, story.topology.table("enriched")).holds


ITEMS = Consumed.json(key="id bigint", value="v int")
TWICE = ("v * 2 AS twice", "'never null' AS kind")


def chain(topic: str, select: tuple[str, ...] = TWICE) -> Topology:
    """Items, what is computed of each, and a table that follows that."""
    builder = StreamsBuilder(f"chain-{topic}")
    computed = builder.table(topic, ITEMS).map_values(list(select)).materialize("computed")
    computed.filter("twice > 2").map_values(["twice"]).materialize("follower")
    return builder.build()


@pytest.fixture(scope="module")
def stepped(ports: Ports, kafka: Kafka, topic: Callable[..., str]) -> str:
    """The topic of a chain with six items, stepped twice; its lake is copied, not touched."""
    name = topic("items")
    for keys in (range(4), range(2, 6)):
        send(kafka, name, *(Record(key, {"v": key}) for key in keys))
        lake.land_all(ports, chain(name))
        lake.step_all(ports, chain(name))
    return name


@pytest.fixture
def copy(ports: Ports, stepped: str, tmp_path: Path) -> Ports:
    """A copy of that lake."""
    return copied(ports, chain(stepped), tmp_path)


def values(ports: Ports, topology: Topology, name: str = "computed") -> dict[lake.Key, lake.Value]:
    """The computed column of each item."""
    return {key: row["twice"] for key, row in lake.rows(ports, topology, name).items()}


def check(ports: Ports, topology: Topology, expected: dict[lake.Key, lake.Value]) -> None:
    """The table, and its follower one step later, hold these values, and the table is its query."""
    assert values(ports, topology) == expected
    assert step(ports, topology, topology.table("follower"), "test").outcome == "stepped"
    assert values(ports, topology, "follower") == {
        key: v for key, v in expected.items() if isinstance(v, int) and v > 2
    }
    found = audit(ports, topology, topology.table("computed"))
    assert found.holds, found.sample


def test_a_rebuild_that_finds_nothing_wrong_changes_nothing(copy: Ports, stepped: str) -> None:
    topology = chain(stepped)
    before = lake.state(copy, topology, "computed")
    done = rebuild(copy, topology, topology.table("computed"), "rebuild")
    assert (done.inserted, done.updated, done.deleted) == (0, 0, 0)
    after = lake.state(copy, topology, "computed")
    assert (after.version, after.data_version) == (before.version + 1, before.data_version)
    assert after.position.whole
    assert step(copy, topology, topology.table("follower"), "test").outcome == "idle"


def test_a_rebuild_after_a_changed_definition_merges_the_difference_and_its_follower_goes_on(
    copy: Ports, stepped: str
) -> None:
    changed = chain(stepped, ("if(id = 1, 70, v * 2) AS twice", "'never null' AS kind"))
    with pytest.raises(PlanChanged):
        step(copy, changed, changed.table("computed"), "test")
    done = rebuild(copy, changed, changed.table("computed"), "rebuild")
    assert (done.inserted, done.updated, done.deleted) == (0, 1, 0)
    check(copy, changed, {0: 0, 1: 70, 2: 4, 3: 6, 4: 8, 5: 10})
    assert step(copy, changed, changed.table("computed"), "test").outcome == "idle"


def test_a_rebuild_with_other_columns_replaces_the_table_and_its_follower_goes_on(copy: Ports, stepped: str) -> None:
    changed = chain(stepped, ("v * 3 AS twice", "v AS once"))
    rebuild(copy, changed, changed.table("computed"), "rebuild")
    assert lake.rows(copy, changed, "computed")[5] == {"twice": 15, "once": 5}
    check(copy, changed, {key: key * 3 for key in range(6)})
    assert audit(copy, changed, changed.table("follower")).holds


def test_an_old_writer_cannot_commit_any_more_after_a_new_definition(
    copy: Ports, stepped: str, session: SparkSession
) -> None:
    old = lake.state(copy, chain(stepped), "computed").position
    changed = chain(stepped, ("v * 3 AS twice", "'never null' AS kind"))
    rebuild(copy, changed, changed.table("computed"), "rebuild")
    stored = StoredTable(f"{changed.name}/computed", lake.path(copy, changed, "computed"))
    late = session.read.format("delta").load(stored.path).withColumn("twice", F.lit(0))
    assert commit.append(late, stored, replace(old, n=old.n + 1)) is None
    late.selectExpr("*", "true AS _present").createOrReplaceTempView("late")
    statement = f"MERGE INTO delta.`{stored.path}` t USING late s ON t.id = s.id WHEN MATCHED THEN DELETE"
    assert commit.merge(session, statement, stored, replace(old, n=old.n + 1)) is None
    check(copy, changed, {key: key * 3 for key in range(6)})


class Died(Exception):
    """Stands for a process that was killed here."""


def died(*_arguments: object, **_options: object) -> None:
    """Die."""
    raise Died


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("place", "select"),
    [
        ("before the anchor", ("v * 3 AS twice", "'never null' AS kind")),
        ("before the merge", ("v * 3 AS twice", "v AS once")),
    ],
)
def test_a_rebuild_that_died_is_resumed_by_the_next_one(
    copy: Ports, stepped: str, monkeypatch: pytest.MonkeyPatch, place: str, select: tuple[str, ...]
) -> None:
    changed = chain(stepped, select)
    target = changed.table("computed")
    old = lake.state(copy, changed, "computed").position
    with monkeypatch.context() as patched:
        patched.setattr(*((table, "anchor") if place == "before the anchor" else (repair, "_rebuilt")), died)
        with pytest.raises(Died):
            rebuild(copy, changed, target, "killed")
    where = lake.path(copy, changed, "computed")
    assert StoredTable("", where).fence(old) == CLOSED
    if place == "before the anchor":
        with pytest.raises(PositionLost, match="tidetable rebuild"):
            step(copy, changed, target, "test")
    else:
        waits = step(copy, changed, changed.table("follower"), "test")
        assert (waits.outcome, waits.waiting_for) == ("waiting", ("computed",))
    assert rebuild(copy, changed, target, "resumed").outcome == "stepped"
    check(copy, changed, {key: key * 3 for key in range(6)})


@pytest.mark.thorough
@pytest.mark.parametrize("select", [("v * 3 AS twice", "'never null' AS kind"), ("v * 3 AS twice", "v AS once")])
def test_a_rebuild_that_died_behind_its_anchor_is_resumed_by_a_step(
    copy: Ports, stepped: str, monkeypatch: pytest.MonkeyPatch, select: tuple[str, ...]
) -> None:
    changed = chain(stepped, select)
    with monkeypatch.context() as patched:
        patched.setattr(repair, "_rebuilt", died)
        with pytest.raises(Died):
            rebuild(copy, changed, changed.table("computed"), "killed")
    assert step(copy, changed, changed.table("computed"), "resumed").outcome == "stepped"
    check(copy, changed, {key: key * 3 for key in range(6)})


@pytest.mark.thorough
def test_an_epoch_that_cannot_be_closed_is_not_left(copy: Ports, stepped: str, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = chain(stepped, ("v * 3 AS twice", "'never null' AS kind"))
    before = lake.state(copy, changed, "computed")
    monkeypatch.setattr(commit, "close_epoch", lambda *_: False)  # other writers are always first
    with pytest.raises(NotCommitted, match="another run committed first"):
        rebuild(copy, changed, changed.table("computed"), "rebuild")
    assert lake.state(copy, changed, "computed") == before


def test_a_table_whose_position_is_lost_is_rebuilt(copy: Ports, stepped: str, session: SparkSession) -> None:
    topology = chain(stepped)
    state, where = lake.state(copy, topology, "computed"), lake.path(copy, topology, "computed")
    # A commit of the fence's next number that says nothing of a position.
    session.read.format("delta").load(where).where("false").write.format("delta").mode("append").option(
        "txnAppId", state.position.app_id
    ).option("txnVersion", state.position.n + 1).save(where)
    with pytest.raises(PositionLost, match=f"tidetable rebuild {topology.name}.computed"):
        step(copy, topology, topology.table("computed"), "test")
    done = rebuild(copy, topology, topology.table("computed"), "rebuild")
    assert (done.inserted, done.updated, done.deleted) == (0, 0, 0)
    check(copy, topology, {key: key * 2 for key in range(6)})


@pytest.mark.thorough
def test_a_landing_that_others_changed_is_refused_and_a_rebuild_goes_on_from_it(
    copy: Ports, stepped: str, session: SparkSession
) -> None:
    topology = chain(stepped)
    landing = lake.path(copy, topology, topology.sources[0].landing)
    session.sql(f"DELETE FROM delta.`{landing}` WHERE id = 5").collect()
    with pytest.raises(InputChanged, match=r"by somebody else.*tidetable rebuild"):
        step(copy, topology, topology.table(stepped), "test")
    done = rebuild(copy, topology, topology.table(stepped), "rebuild")
    assert done.deleted == 1
    step(copy, topology, topology.table("computed"), "test")
    check(copy, topology, {key: key * 2 for key in range(5)})


def test_there_is_nothing_to_rebuild_from_where_an_input_was_never_computed(ports: Ports, stepped: str) -> None:
    topology = replace(chain(stepped), name=f"never-{stepped}")
    with pytest.raises(InputChanged, match=f"_landing/{stepped} was never computed: run `tidetable run"):
        rebuild(ports, topology, topology.table(stepped), "rebuild")
    with pytest.raises(InputChanged, match="was never computed"):
        audit(ports, topology, topology.table(stepped))


def test_a_table_that_somebody_else_made_is_never_rebuilt(copy: Ports, stepped: str, session: SparkSession) -> None:
    topology = chain(stepped)
    where = lake.path(copy, topology, "computed")
    shutil.rmtree(where)
    session.sql("SELECT 1 AS theirs").write.format("delta").save(where)
    for verb in (step, rebuild):
        with pytest.raises(PositionLost, match="move it away"):
            verb(copy, topology, topology.table("computed"), "test")
    assert lake.listed(where) == [{"theirs": 1}]


@pytest.mark.thorough
def test_what_follows_a_stream_of_another_definition_is_refused_until_it_is_rebuilt(
    ports: Ports, kafka: Kafka, topic: Callable[..., str]
) -> None:
    clicks = topic("clicks")

    def declared(but: str) -> Topology:
        builder = StreamsBuilder(f"followed-{clicks}")
        kept = builder.stream(clicks, Consumed.json(key="user string", value="sku string")).filter(f"sku <> '{but}'")
        kept.materialize("kept").group_by("sku").count().materialize("counted")
        kept.group_by("sku").windowed_by(TimeWindows.of("1d", grace="0s")).count().materialize("daily")
        return builder.build()

    def sold(*skus: str) -> None:
        send(kafka, clicks, *(Record("ada", {"sku": sku}, timestamp=1_700_000_000_000) for sku in skus))

    def counts(name: str) -> list[tuple[object, object]]:
        rows = lake.listed(lake.path(ports, made, name))
        return sorted((str(row["sku"]), row["count"]) for row in rows)

    made = declared("ink")
    sold("pen", "ink", "cap")
    assert tick(ports, made, "first").failed == {}
    made = declared("cap")
    rebuild(ports, made, made.table("kept"), "rebuild")
    sold("pen")
    refused = tick(ports, made, "second").failed
    assert refused.keys() == {"counted", "daily"}
    assert all("was computed again" in str(error) and "--downstream" in str(error) for error in refused.values())
    for follower in made.downstream("kept"):
        rebuild(ports, made, follower, "rebuild")
    assert tick(ports, made, "third").failed == {}
    assert counts("counted") == counts("daily") == [("ink", 1), ("pen", 2)]
    sold("ink")
    assert tick(ports, made, "fourth").failed == {}
    assert counts("counted") == counts("daily") == [("ink", 2), ("pen", 2)]
    assert all(audit(ports, made, one).holds for one in made.tables)
