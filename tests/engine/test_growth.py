"""What a step, or a landing, reads and writes does not grow with the age and the width of a table."""

from __future__ import annotations

import math
import secrets
from typing import TYPE_CHECKING

import pyarrow as pa  # type: ignore[import-untyped]  # has no types of its own
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql.types import LongType, StructField, StructType

from spark.engine import land
from spark.engine.inputs import span
from spark.engine.inputs.frame_cache import frame_cache
from spark.engine.inputs.pin import pin
from spark.engine.inputs.snapshot import DeltaSnapshot
from spark.engine.inputs.span import IncrementalSpan
from spark.engine.log import table
from spark.engine.log.stored_table import StoredTable
from spark.engine.rebuild import rebuild
from spark.operators.algebra import emit
from spark.topology import Consumed, StreamsBuilder
from spark.topology.nodes import Lookup
from tests.support import lake
from tests.support.lake import Record, send

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from resources.kafka import Kafka
    from spark.engine.log.stored_table import State
    from spark.engine.ports import Ports
    from spark.topology import Topology

COLUMNS = [f"c{number}" for number in range(60)]
VALUE = dict.fromkeys(COLUMNS, 1)


def wide(topic: str, *more: str) -> Topology:
    """A topic of many columns, its records in a stored stream, and their newest ones in a table."""
    builder = StreamsBuilder(f"wide-{topic}")
    value = ", ".join(f"{column} int" for column in (*COLUMNS, *more))
    kept = builder.stream(topic, Consumed.json(key="id bigint", value=value)).filter("c0 > 0").materialize("kept")
    kept.to_table().materialize("newest")
    return builder.build()


def state_of(ports: Ports, topology: Topology, name: str) -> State:
    found = StoredTable.of(ports.lakehouse, topology.name, name).state()
    assert found is not None
    return found


def files_read(
    session: SparkSession, ports: Ports, topology: Topology, name: str, before: State, after: State
) -> set[str]:
    """The files of its input that a step of a table between two states reads."""
    [scan] = topology.table(name).inputs

    def snapshot(state: State) -> DeltaSnapshot:
        at = state.position
        return DeltaSnapshot(session, ports.lakehouse, topology.name, at.inputs, at.cut)

    with frame_cache(session) as cache:
        span = IncrementalSpan(snapshot(before), snapshot(after), cache, own=session.range(0).toDF("_"))
        return {file.rpartition("/")[2] for file in span.records(scan).inputFiles()}


def files_of(ports: Ports, topology: Topology, name: str) -> dict[str, int]:
    """The files of a table, and the commit of each by its statistics."""
    found = pa.table(DeltaTable(lake.path(ports, topology, name)).get_add_actions(flatten=True))
    return dict(zip(found["path"].to_pylist(), found["min._batch"].to_pylist(), strict=True))


def test_a_step_of_many_columns_opens_the_files_of_its_span(
    ports: Ports, kafka: Kafka, topic: Callable[..., str], session: SparkSession
) -> None:
    """The offsets of one partition are far ahead, so they say nothing of a file that has records of both."""
    name = topic("wide", partitions=2)
    topology = wide(name)
    send(kafka, name, *(Record({"id": n}, VALUE) for n in range(50)))
    states = []
    for wave in range(4):
        send(kafka, name, *(Record({"id": wave}, VALUE, partition) for partition in (0, 1)))
        lake.land_all(ports, topology)
        lake.step_all(ports, topology)
        states.append({one: state_of(ports, topology, one) for one in ("kept", "newest")})
    [source] = topology.sources
    for reader, read in (("kept", source.landing), ("newest", "kept")):
        files = files_of(ports, topology, read)
        newest = {file for file, batch in files.items() if batch == max(files.values())}
        found = files_read(session, ports, topology, reader, states[-2][reader], states[-1][reader])
        assert found == newest
        assert len(files) >= 4 * len(newest)


def test_a_table_without_statistics_of_our_columns_gets_them_with_its_next_commit(
    ports: Ports, kafka: Kafka, topic: Callable[..., str], session: SparkSession
) -> None:
    """As one that an earlier version made."""
    name = topic("wide")
    topology = wide(name)
    [source] = topology.sources
    send(kafka, name, Record({"id": 1}, VALUE))
    lake.land_all(ports, topology)
    lake.step_all(ports, topology)
    for each in (source.landing, "kept", "newest"):
        session.sql(
            f"ALTER TABLE delta.`{lake.path(ports, topology, each)}` UNSET TBLPROPERTIES ('{table.STATISTICS}')"
        ).collect()
    for _ in range(2):
        send(kafka, name, Record({"id": 1}, VALUE))
        lake.land_all(ports, topology)
        lake.step_all(ports, topology)
    for each in (source.landing, "kept"):
        assert sorted(files_of(ports, topology, each).values()) == [1, 2, 3]
        log = DeltaTable(lake.path(ports, topology, each)).history()
        assert [entry["operation"] for entry in log].count("SET TBLPROPERTIES") == 1
    assert "id" in indexed(ports, topology, "newest")


def test_a_table_whose_other_columns_have_no_statistics_gets_the_property_once(
    ports: Ports, kafka: Kafka, topic: Callable[..., str]
) -> None:
    name = topic("flags")
    builder = StreamsBuilder(f"flags-{name}")
    flags = builder.table(name, Consumed.json(key="id bigint", value=", ".join(f"b{n} boolean" for n in range(40))))
    flags.filter("b0").materialize("set")
    topology = builder.build()
    [source] = topology.sources
    for wave in range(3):
        send(kafka, name, Record({"id": wave}, {"b0": True}))
        lake.land_all(ports, topology)
        lake.step_all(ports, topology)
    for each in (source.landing, name, "set"):
        log = DeltaTable(lake.path(ports, topology, each)).history()
        assert [entry["operation"] for entry in log].count("SET TBLPROPERTIES") == 0, each


def test_the_columns_of_a_fold_that_nobody_searches_have_no_statistics() -> None:
    names = ["g", "a", "_rows", *(f"_partial{n}" for n in range(40)), "_partition", "_offset"]
    schema = StructType([StructField(name, LongType()) for name in names])
    [named] = table.statistics(schema, ["g"]).values()
    assert {"g", "_partition", "_offset", "a"} <= set(named.split(","))
    assert len(named.split(",")) == table.INDEXED


def test_a_table_of_many_columns_is_replaced_by_one_of_others(
    ports: Ports, kafka: Kafka, topic: Callable[..., str]
) -> None:
    name = topic("wide")
    builder, again = (StreamsBuilder(f"wide-{name}") for _ in range(2))
    value = ", ".join(f"{column} int" for column in COLUMNS)
    for one, select in ((builder, ["*"]), (again, [f"{column} AS other_{column}" for column in COLUMNS])):
        records = one.table(name, Consumed.json(key="id bigint", value=value))
        records.map_values(select).materialize("made")
    first, then = builder.build(), again.build()
    send(kafka, name, Record({"id": 1}, VALUE))
    lake.land_all(ports, first)
    lake.step_all(ports, first)
    assert rebuild(ports, then, then.table("made"), "test").outcome == "stepped"
    send(kafka, name, Record({"id": 2}, VALUE))
    lake.land_all(ports, then)
    lake.step_all(ports, then)
    [row, _] = lake.listed(lake.path(ports, then, "made"))
    assert row["other_c0"] == 1
    assert {"id", "_offset", "other_c0"} <= indexed(ports, then, "made")


def indexed(ports: Ports, topology: Topology, name: str) -> set[str]:
    """The columns of which a table has statistics."""
    return set(state_of(ports, topology, name).properties[table.STATISTICS].split(","))


def test_a_small_landing_of_many_partitions_writes_few_files(
    ports: Ports, kafka: Kafka, topic: Callable[..., str]
) -> None:
    for partitions, files in ((4, 1), (70, 2)):
        name = topic("few", partitions=partitions)
        builder = StreamsBuilder(f"few-{name}")
        records = builder.stream(name, Consumed.json(key="id bigint", value="name string"))
        records.filter("name = 'x'").materialize("kept")
        topology = builder.build()
        [source] = topology.sources
        for wave in (1, 2):
            send(kafka, name, *(Record(number, {"name": "x"}, number) for number in range(partitions)))
            [landed] = lake.land_all(ports, topology)
            assert landed.records == partitions
            assert len(files_of(ports, topology, source.landing)) == wave * files
            lake.step_all(ports, topology)
        kept = sorted((row["_partition"], row["_offset"]) for row in lake.listed(lake.path(ports, topology, "kept")))
        assert kept == [(partition, offset) for partition in range(partitions) for offset in (0, 1)]


def test_a_large_landing_has_a_task_for_every_partition() -> None:
    start, end = dict.fromkeys(range(4), 0), dict.fromkeys(range(4), 1_000_000)
    assert land._tasks(start, end) >= 4
    assert land._tasks(start, start | {3: 10_000}) == 1
    assert land._tasks(start, start) == 1


@pytest.mark.thorough
def test_a_lookup_of_a_few_records_opens_the_files_that_may_have_their_rows(
    ports: Ports, kafka: Kafka, topic: Callable[..., str], session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(span, "LARGE", 1)
    clicks, users = topic("clicks"), topic("users")
    builder = StreamsBuilder(f"lookup-{clicks}")
    records = builder.stream(clicks, Consumed.json(key="id bigint", value="user bigint"))
    names = builder.table(users, Consumed.json(key="user bigint", value="name string"))
    records.join(names, on="user", select=["left.id", "right.name"]).materialize("named")
    topology = builder.build()
    for wave in range(4):
        send(kafka, users, *(Record({"user": n}, {"name": f"n{n}"}) for n in range(10 * wave, 10 * wave + 10)))
        send(kafka, clicks, Record({"id": wave}, {"user": 1}))
        lake.land_all(ports, topology)
        lake.step_all(ports, topology)
    before = state_of(ports, topology, "named")
    send(kafka, clicks, Record({"id": 9}, {"user": 35}))
    lake.land_all(ports, topology)
    [plan] = [one.plan for one in topology.tables if one.name == "named"]
    assert isinstance(plan, Lookup)
    pins = pin(ports, topology, topology.table("named"))
    earlier = DeltaSnapshot(session, ports.lakehouse, topology.name, before.position.inputs, before.position.cut)
    later = DeltaSnapshot(session, ports.lakehouse, topology.name, pins.inputs, pins.cut)
    with frame_cache(session) as cache:
        moved = IncrementalSpan(earlier, later, cache, own=session.range(0).toDF("_")).at(before.position.time)
        emitted = emit(plan, moved)
        assert [row["name"] for row in emitted.collect()] == ["n35"]
        opened = {file for file in emitted.inputFiles() if "_landing" not in file}
    files = DeltaTable(lake.path(ports, topology, users)).file_uris()
    assert 4 * len(opened) <= len(files)


def test_changed_rows_are_broadcast_by_their_number_and_size(tmp_path: Path) -> None:
    def stored(name: str, *texts: str) -> StoredTable:
        write_deltalake(tmp_path / name, pa.table({"text": pa.array(texts, pa.string())}))
        return StoredTable(f"sizes/{name}", str(tmp_path / name))

    narrow = stored("narrow", *("same" for _ in range(10_000)))
    wide = stored("wide", *(secrets.token_hex(500) for _ in range(1_000)))
    assert narrow.row_size() < 10
    assert wide.row_size() > 500
    assert stored("empty").row_size() == math.inf, "it is not known"
    assert span.can_be_broadcast(wide, 49_999)
    assert not span.can_be_broadcast(wide, 50_000)
    assert span.can_be_broadcast(narrow, 249_999)
    assert not span.can_be_broadcast(narrow, 250_000)
    assert not span.can_be_broadcast(narrow, 50_000, written=16 << 20), "rows that are wider than the others"
