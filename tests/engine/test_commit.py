"""A commit behind the fence: once, whoever tries again, and without a trace in the session."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import pytest
from pyspark.errors import PySparkException

from spark.engine.errors import condition
from spark.engine.log import commit, merge, table
from spark.engine.log.commit import APP, METADATA, NUMBER
from spark.engine.log.position import CLOSED, Position
from spark.engine.log.stored_table import State, StoredTable
from tests.support.lake import listed

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from resources.engine import Engine


class Made:
    """A table just made, and what commits to it."""

    def __init__(self, session: SparkSession, path: str, name: str) -> None:
        self.session, self.table = session, StoredTable(name, path)
        schema = session.sql("SELECT 1L AS id, 'x' AS name").schema
        self.state = table.create(session, self.table, schema, "run", "{}")

    def at(self, n: int, run: str = "run") -> Position:
        """The position of the n-th commit."""
        return replace(self.state.position, n=n, run=run)

    def rows(self, *ids: int, name: str = "x", session: SparkSession | None = None) -> DataFrame:
        """Rows to append or to merge."""
        return (session or self.session).createDataFrame([(i, name) for i in ids], "id bigint, name string")

    def merge(self, rows: DataFrame, position: Position, session: SparkSession | None = None) -> State | None:
        """MERGE rows, all of them present."""
        rows.selectExpr("*", "true AS _present").createOrReplaceTempView("__source")
        statement = merge.statement(self.table.path, "__source", ["id"], rows.schema)
        return commit.merge(session or self.session, statement, self.table, position)

    def stored(self) -> list[tuple[object, object]]:
        """The rows there are."""
        return sorted((row["id"], row["name"]) for row in listed(self.table.path))


Make = Callable[[str], Made]


@pytest.fixture
def make(session: SparkSession, tmp_path: Path) -> Make:
    """Makes a table of a name."""
    return lambda name: Made(session, str(tmp_path / name), f"shop/{name}")


def settings(session: SparkSession) -> list[str | None]:
    """What a later write of the session would take for its own fence."""
    return [session.conf.get(setting, None) for setting in (APP, NUMBER, METADATA)]


def test_a_number_is_committed_once_by_append_and_by_merge(make: Make) -> None:
    items = make("items")
    first = commit.append(items.rows(1), items.table, items.at(1))
    assert first is not None
    assert first.position == items.at(1)
    assert commit.append(items.rows(2), items.table, items.at(1, "late")) is None
    assert items.merge(items.rows(3), items.at(1, "late")) is None

    second = items.merge(items.rows(4), items.at(2))
    assert second is not None
    assert second.metrics["numTargetRowsInserted"] == 1
    assert items.merge(items.rows(5), items.at(2, "late")) is None
    assert commit.append(items.rows(6), items.table, items.at(1, "late")) is None, "an older one neither"
    assert items.stored() == [(1, "x"), (4, "x")]


def test_the_same_commit_made_again_is_known_as_done(make: Make) -> None:
    items = make("items")
    for _ in range(2):
        done = commit.append(items.rows(1), items.table, items.at(1))
        assert done is not None
        assert (done.version, done.position) == (1, items.at(1))
    assert items.stored() == [(1, "x")]


def test_a_session_keeps_no_setting_of_a_commit(make: Make, session: SparkSession) -> None:
    items = make("items")
    commit.append(items.rows(1), items.table, items.at(1))
    items.merge(items.rows(2), items.at(2))
    assert settings(session) == [None] * 3, "after a commit"
    items.merge(items.rows(3), items.at(2, "late"))
    assert settings(session) == [None] * 3, "after a commit that was skipped"
    with pytest.raises(PySparkException, match="TABLE_OR_VIEW_NOT_FOUND"):
        commit.merge(
            session, "MERGE INTO nowhere USING nowhere ON true WHEN MATCHED THEN DELETE", items.table, items.at(3)
        )
    assert settings(session) == [None] * 3, "after a statement that failed"


def test_the_fence_of_one_table_is_not_that_of_another(make: Make, session: SparkSession) -> None:
    items, others = make("items"), make("others")
    assert items.merge(items.rows(1), items.at(5)) is not None
    assert others.merge(others.rows(1), others.at(1)) is not None, "although items is at 5"
    session.sql(f"INSERT INTO delta.`{others.table.path}` VALUES (7, 'by hand')").collect()
    assert commit.append(others.rows(2), others.table, others.at(2)) is not None
    assert items.merge(items.rows(2), items.at(6)) is not None
    assert others.stored() == [(1, "x"), (2, "x"), (7, "by hand")]
    assert items.stored() == [(1, "x"), (2, "x")]
    state = others.table.state()
    assert state is not None
    assert state.position == others.at(2), "the commit by hand carries no position"


def test_of_writers_that_overlap_one_commits(make: Make, engine: Engine) -> None:
    items = make("items")
    commit.append(items.rows(*range(20)), items.table, items.at(1))

    def write(run: int) -> State | None:
        own = engine.session()
        try:
            rows = items.rows(*range(20), name=f"run {run}", session=own)
            if run % 2 == 0:
                return items.merge(rows, items.at(2, f"run {run}"), own)
            return commit.append(
                rows.where("id = 0").selectExpr("id + 100 AS id", "name"), items.table, items.at(2, f"run {run}")
            )
        finally:
            own.stop()

    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(write, range(4)))
    [winner] = [state for state in done if state is not None]
    run = winner.position.run
    even = int(run[-1]) % 2 == 0
    assert items.stored() == [(n, run if even else "x") for n in range(20)] + ([] if even else [(100, run)])
    assert winner.version == 2


def test_nothing_commits_in_an_epoch_that_was_closed(make: Make) -> None:
    items = make("items")
    assert commit.append(items.rows(1), items.table, items.at(1)) is not None
    assert commit.close_epoch(items.rows().where("false"), items.table, items.at(1))
    assert commit.close_epoch(items.rows().where("false"), items.table, items.at(1)), "closed is closed"
    assert items.table.fence(items.at(1)) == CLOSED
    items.rows(2).write.format("delta").mode("append").option("txnAppId", items.at(2).app_id).option(
        "txnVersion", 2
    ).save(items.table.path)
    assert items.stored() == [(1, "x")]


def test_two_that_create_a_table_agree_on_its_epoch(engine: Engine, tmp_path: Path) -> None:
    path = str(tmp_path / "items")

    def create(_: int) -> State:
        own = engine.session()
        try:
            return Made(own, path, "shop/items").state
        finally:
            own.stop()

    with ThreadPoolExecutor(3) as pool:
        states = list(pool.map(create, range(3)))
    assert len({state.position.epoch for state in states}) == 1
    assert {state.version for state in states} == {0}


@pytest.mark.parametrize(("columns", "error"), [("id bigint, name string", "PROPERTY"), ("id int", "SCHEME")])
def test_a_table_that_another_creates_between_two_looks_of_delta_is_the_others(
    session: SparkSession, engine: Engine, tmp_path: Path, columns: str, error: str
) -> None:
    """Spark looks whether the table is there, and Delta looks again. A name for its place passes the first look."""
    path, met = str(tmp_path / "items"), []

    class Overtaken:
        """A session whose first statement begins before another's and goes on behind it."""

        conf = session.conf

        def sql(self, statement: str) -> DataFrame:
            other = engine.session()
            try:
                schema = other.createDataFrame([], columns).schema
                self.winner = table.create(other, StoredTable("shop/items", path), schema, "winner", "{}")
            finally:
                other.stop()
            passed = statement.replace(f"IF NOT EXISTS delta.`{path}`", "overtaken")
            try:
                return session.sql(passed.replace("USING delta", f"USING delta LOCATION '{path}'"))
            except PySparkException as raised:
                met.append(condition(raised))
                raise

    overtaken = Overtaken()
    assert Made(cast("SparkSession", overtaken), path, "shop/items").state == overtaken.winner
    assert len(met) == 1
    assert error in met[0]


def test_a_log_without_a_commit_is_no_table(make: Make, tmp_path: Path) -> None:
    (tmp_path / "items" / "_delta_log").mkdir(parents=True)  # as an engine leaves it that is killed at this place
    items = make("items")
    assert (items.state.version, items.state.position.n) == (0, 0)
    assert commit.append(items.rows(1), items.table, items.at(1)) is not None


def test_a_lost_race_is_known_however_long_the_position_of_the_winner(make: Make, engine: Engine) -> None:
    """Spark Connect leaves out the class of an error whose message has long parameters, as this one has."""
    items = make("items")

    def anchored(run: int) -> bool:
        own = engine.session()
        try:
            with commit.races() as race:
                begun = replace(items.at(0, f"{run}".rjust(2_000)), epoch=table.new_epoch())
                table.anchor(own, items.table, begun, "{}")
            return bool(race)
        finally:
            own.stop()

    lost = False
    with ThreadPoolExecutor(4) as pool:
        for _ in range(10):
            lost = lost or any(pool.map(anchored, range(4)))
    assert lost, "nobody was overtaken"
