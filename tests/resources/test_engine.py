"""The resident engine: its sessions, its death, its traces."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pyarrow.parquet as pq  # type: ignore[import-untyped]  # has no types of its own
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.connect.client.reattach import ExecutePlanResponseReattachableIterator

from resources.engine import Engine
from spark.engine.log.replacement import FILE_ROWS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from resources.kafka import Kafka


@pytest.fixture
def spark(engine: Engine) -> Iterator[SparkSession]:
    session = engine.session()
    yield session
    session.stop()


def test_every_session_is_a_new_one(engine: Engine) -> None:
    one, other = engine.session(), engine.session()
    one.sql("select 1 as a").createOrReplaceTempView("mine")
    assert one.catalog.tableExists("mine")
    assert not other.catalog.tableExists("mine")
    one.stop()
    assert other.sql("select 2").collect() == [(2,)]
    other.stop()


def test_closing_a_session_leaves_the_others_what_releases_their_results(engine: Engine) -> None:
    one, other = engine.session(), engine.session()
    assert one.sql("select 1").collect() == [(1,)]
    releasing = ExecutePlanResponseReattachableIterator._get_or_create_release_thread_pool()
    one.stop()
    del one
    assert releasing.submit(lambda: 3).result() == 3
    assert other.sql("select 2").collect() == [(2,)]
    other.stop()


def test_time_is_utc_and_wrong_numbers_stop(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    with pytest.raises(PySparkException, match="DIVIDE_BY_ZERO"):
        spark.sql("select 1 / 0").collect()


def test_a_session_plans_for_many_rows_if_it_is_told_to(engine: Engine, spark: SparkSession) -> None:
    def planning() -> tuple[str | None, str | None]:
        names = ("enabled", "coalescePartitions.initialPartitionNum")
        return spark.conf.get(f"spark.sql.adaptive.{names[0]}"), spark.conf.get(f"spark.sql.adaptive.{names[1]}", None)

    engine.plan_for(spark, 200 << 20)
    assert planning() == ("false", None)
    engine.plan_for(spark, 256 << 20)
    assert planning() == ("true", str(16 * engine.width)), "at least so many for each core"
    engine.plan_for(spark, 16 << 30)
    assert planning() == ("true", "1024")


def test_a_large_file_has_many_row_groups(spark: SparkSession, tmp_path: Path) -> None:
    hashes = (f"xxhash64(id, {column}) AS hash{column}" for column in range(3))  # 9 MB
    rows = spark.range(FILE_ROWS, numPartitions=1).selectExpr(*hashes)
    rows.write.parquet(str(tmp_path / "rows"))
    [file] = (tmp_path / "rows").glob("*.parquet")
    metadata = pq.ParquetFile(file).metadata
    groups = [metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups)]
    assert metadata.num_rows == FILE_ROWS
    assert max(groups) <= 3 << 20, "2 MB, and what is written between two looks at the size"


def test_a_file_has_no_more_rows_than_a_change_feed_can_be_about(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(FILE_ROWS + 1, numPartitions=1).write.parquet(str(tmp_path / "rows"))
    counts = [pq.ParquetFile(file).metadata.num_rows for file in (tmp_path / "rows").glob("*.parquet")]
    assert sorted(counts) == [1, FILE_ROWS]


def test_a_damaged_page_is_an_error_and_no_file_has_another_beside_it(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.range(0, 100_000, 1, 1).selectExpr("cast(rand(1) * 1e18 as bigint) AS number")
    table = tmp_path / "table"
    rows.write.format("delta").option("compression", "none").save(str(table))
    assert [found for found in table.rglob(".*.crc")] == []
    [data] = table.glob("*.parquet")
    damaged = bytearray(data.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    data.write_bytes(damaged)
    with pytest.raises(PySparkException, match="CRC checksum verification failed"):
        spark.read.format("delta").load(str(table)).selectExpr("sum(number)").collect()


def test_sql_merges_into_a_delta_table(spark: SparkSession, tmp_path: Path) -> None:
    table = f"delta.`{tmp_path / 'table'}`"
    spark.sql("select 1 as k, 'old' as v").write.format("delta").save(str(tmp_path / "table"))
    spark.sql(
        f"merge into {table} t using (select 1 as k, 'new' as v) s on t.k = s.k "
        "when matched then update set * when not matched then insert *"
    ).collect()
    assert spark.read.format("delta").load(str(tmp_path / "table")).collect() == [(1, "new")]


def test_nothing_is_written_where_the_user_stands(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    spark = engine.session()
    spark.createDataFrame([(1, "a")], "k int, v string").createOrReplaceTempView("rows")
    spark.sql("select k % 2 as g, count(*) from rows group by 1").collect()
    spark.sql("create table if not exists stored (k int) using delta")
    spark.sql("drop table stored")
    spark.stop()
    assert list(tmp_path.iterdir()) == []


def test_another_process_finds_the_same_engine(engine: Engine) -> None:
    asks = "import sys, pathlib, resources.engine as r; print(r.Engine(pathlib.Path(sys.argv[1])).start())"
    assert subprocess.check_output([sys.executable, "-c", asks, str(engine.lake)], text=True).strip() == engine.start()


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Engine]:
    """An engine to kill, in a lake whose name has a space."""
    own = Engine(tmp_path / "a lake", memory="1g", cores="1")
    yield own
    own.stop()


def test_a_killed_engine_fails_its_sessions_and_the_next_session_has_a_new_one(own: Engine) -> None:
    stale = own.session()
    first = own.running()
    assert first is not None
    os.kill(first.pid, signal.SIGKILL)
    with pytest.raises(PySparkException):
        stale.sql("select 1").collect()
    stale.stop()
    fresh = own.session()
    assert fresh.sql("select 1").collect() == [(1,)]
    second = own.running()
    assert second is not None
    assert second.pid != first.pid
    fresh.stop()
    own.stop()
    assert own.running() is None


def test_a_given_engine_is_used_and_never_stopped(engine: Engine) -> None:
    given = Engine(None, remote=engine.start())
    assert given.start() == engine.start()
    session = given.session()
    assert session.sql("select 1").collect() == [(1,)]
    assert session.conf.get("spark.sql.session.timeZone") == "UTC"
    session.stop()
    given.stop()
    assert given.running() is None
    assert engine.running() is not None


def test_an_engine_needs_a_lake_or_an_address() -> None:
    with pytest.raises(ValueError, match="SPARK_REMOTE"):
        Engine(None).start()


@pytest.mark.thorough
def test_secrets_of_kafka_are_not_in_the_event_log(
    kafka: Kafka, topic: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connect writes the options of a read into the text of its plan, and that into the log and onto Spark's pages."""
    log = tmp_path / "events"
    log.mkdir()
    (tmp_path / "spark-defaults.conf").write_text(
        f"spark.eventLog.enabled true\nspark.eventLog.dir file://{log}\nspark.eventLog.compress false\n"
    )
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    name = topic("secret")
    secrets = {
        "kafka.sasl.jaas.config": 'module required username="ann" password="planted-1";',
        "kafka.ssl.keystore.key": "-----BEGIN PRIVATE KEY-----\nplanted-2\nplanted-3\n-----END PRIVATE KEY-----",
        "kafka.ssl.key.password": "planted-4 } planted-5",
    }
    own = Engine(tmp_path / "lake", memory="1g", cores="2")
    try:
        session = own.session()
        options = {**kafka.spark_options(), **secrets, "subscribe": name}
        read = session.read.format("kafka").options(**options).load()
        assert read.count() == 0
        read.write.format("delta").save(str(tmp_path / "table"))
        session.stop()
    finally:
        own.stop()
    told = "".join(path.read_text() for path in log.rglob("*") if path.is_file())
    assert name in told, "the reads are there"
    assert [number for number in range(1, 6) if f"planted-{number}" in told] == []
