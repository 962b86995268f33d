"""What became of every record of a landing, counted in the landing and compared with the offsets that were read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa  # type: ignore[import-untyped]  # has no types of its own
import pytest
from confluent_kafka import TopicPartition
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from spark.engine import counts as engine_counts
from spark.engine import land
from spark.engine.counts import Counted, TableCounts, counted, table_counts
from spark.engine.dropped_records import dropped_records
from spark.engine.log.position import Counts
from spark.engine.quarantine import redecode
from spark.engine.rebuild import rebuild
from spark.topology import Consumed, StreamsBuilder, Topology
from tests.support import lake
from tests.support.lake import Record, send

if TYPE_CHECKING:
    from collections.abc import Callable

    from resources.kafka import Kafka
    from spark.engine.ports import Ports


def people(topic: str) -> Topology:
    """A topic's table."""
    builder = StreamsBuilder(f"counts-{topic}", on_data_loss="ledger")
    builder.table(topic, Consumed.json(key="id bigint, part string", value="v int"))
    return builder.build()


def whole(n: int) -> dict[str, object]:
    return {"id": n, "part": "a"}


def test_records_of_a_landing_add_up(ports: Ports, kafka: Kafka, topic: Callable[..., str]) -> None:
    name = topic("counted", 2)
    topology = people(name)
    [source] = topology.sources
    assert counted(ports.lakehouse, topology, source) is None
    send(kafka, name, Record(whole(1), {"v": 1}), Record(whole(1), {"v": 2}), Record(whole(2), None, partition=1))
    send(kafka, name, Record({"id": 1}, {"v": 1}), Record(whole(3), {"v": "x"}), Record(whole(4), {"v": "x"}))
    lake.land_all(ports, topology)
    found = counted(ports.lakehouse, topology, source)
    assert found is not None
    assert (found.records, found.rows, found.tombstones, found.quarantined, found.offsets) == (6, 2, 1, 3, 6)
    assert sorted(found.reasons.values()) == [1, 2] or sorted(found.reasons.values()) == [1, 1, 1]
    assert found.wrong == ()
    [table] = topology.tables
    assert table_counts(ports.lakehouse, topology, table) is None
    lake.step_all(ports, topology)
    assert table_counts(ports.lakehouse, topology, table) == TableCounts(values=2, tombstones=1, rows=1)
    path = lake.path(ports, topology, table.name)
    stored = pa.table(QueryBuilder().register("t", DeltaTable(path)).execute("SELECT * FROM t").read_all())
    write_deltalake(path, pa.concat_tables([stored, stored]), mode="append")
    more = table_counts(ports.lakehouse, topology, table)
    assert more is not None
    assert more.wrong == "3 rows, of 2 records with a value that it took: somebody added some"


def test_decoding_again_moves_records_out_of_quarantine(ports: Ports, kafka: Kafka, topic: Callable[..., str]) -> None:
    name = topic("counted")
    builder = StreamsBuilder(f"counts-{name}")
    builder.stream(name, Consumed.json(key="id bigint", value="v int, w int"))
    strict = builder.build()
    builder = StreamsBuilder(f"counts-{name}")
    builder.stream(name, Consumed.json(key="id bigint", value="v int"))
    lenient = builder.build()
    send(kafka, name, Record(1, {"v": 1, "w": "x"}), Record(2, {"v": 1}))
    lake.land_all(ports, strict)
    assert counts(ports, strict) == (2, 1, 0, 1)
    redecode(ports, lenient, lenient.sources[0], "again")
    assert counts(ports, lenient) == (2, 2, 0, 0)


def test_a_record_twice_and_one_that_was_not_read_are_told(
    ports: Ports, kafka: Kafka, topic: Callable[..., str]
) -> None:
    name = topic("counted")
    topology = people(name)
    [source] = topology.sources
    send(kafka, name, *(Record(whole(n), {"v": n}) for n in range(5)))
    kafka.admin().delete_records([TopicPartition(name, 0, 2)])
    lake.until(lambda: kafka.beginning_offsets([name])[name].offsets == {0: 2})
    lake.land_all(ports, topology)
    found = counted(ports.lakehouse, topology, source)
    assert isinstance(found, Counted)
    assert (found.records, found.offsets, found.wrong) == (3, 3, ())
    path = lake.path(ports, topology, source.landing)
    query = QueryBuilder().register("t", DeltaTable(path))

    def append(what: str) -> None:
        write_deltalake(path, pa.table(query.execute(what).read_all()), mode="append")

    append("SELECT * FROM t WHERE _offset = 3")
    found = counted(ports.lakehouse, topology, source)
    assert found is not None
    assert found.wrong == ("partition 0: 4 records of 3 offsets: some are there twice",)
    append("SELECT * EXCEPT (_offset), CAST(9 AS BIGINT) AS _offset FROM t WHERE _offset = 3 LIMIT 1")
    found = counted(ports.lakehouse, topology, source)
    assert found is not None
    assert found.wrong == ("partition 0: has offsets 2 to 9, and read 2 to 4",)


def test_records_that_leave_a_stream_are_counted_by_every_step_and_once_by_a_rebuild(
    ports: Ports, kafka: Kafka, topic: Callable[..., str]
) -> None:
    name = topic("left")
    builder = StreamsBuilder(f"counts-{name}")
    events = builder.stream(name, Consumed.json(key="id bigint", value="v int"))
    events.group_by("v").count().materialize("groups")
    events.to_table().filter("v > 0").materialize("newest")
    topology = builder.build()

    def dropped() -> list[dict[str, int]]:
        return [lake.state(ports, topology, table).position.dropped for table in ("groups", "newest")]

    send(kafka, name, Record(1, {"v": 1}), Record(None, {"v": 1}), Record(2, {"v": None}), Record(3, None))
    lake.land_all(ports, topology)
    lake.step_all(ports, topology)
    assert dropped() == [{"null key": 1, "null value": 1}, {"null key": 1}]
    send(kafka, name, Record(None, {"v": None}), Record(1, None))
    lake.land_all(ports, topology)
    lake.step_all(ports, topology)
    twice = [{"null key": 2, "null value": 2}, {"null key": 2}]
    assert dropped() == twice
    for table in topology.tables:
        rebuild(ports, topology, table, "again")
    assert dropped() == twice
    [late_one, *_] = dropped_records(ports, topology, topology.table("newest"), 9).records
    assert (late_one.offset, late_one.reason) == (4, "null key")


def test_records_that_somebody_deleted_are_missed_also_behind_what_landed_since(
    ports: Ports, kafka: Kafka, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic("missed", 2)
    topology = people(name)
    [source] = topology.sources
    path = lake.path(ports, topology, source.landing)

    def wrong() -> tuple[str, ...]:
        found = counted(ports.lakehouse, topology, source)
        assert found is not None
        return found.wrong

    send(kafka, name, *(Record(whole(n), {"v": n}) for n in range(3)), Record({"id": 9}, {"v": 1}, partition=1))
    lake.land_all(ports, topology)
    send(kafka, name, Record(whole(1), None))
    lake.land_all(ports, topology)
    assert lake.state(ports, topology, source.landing).position.counts == Counts(1, 1, 4, 3, 0, 1)
    with monkeypatch.context() as patch:
        patch.setattr(engine_counts, "COUNTS", "nobody else wrote: the landing is not read whole")
        assert counts(ports, topology) == (5, 3, 1, 1)
    DeltaTable(path).update({"_deleted": "true"}, predicate="_offset = 0 AND _partition = 0")
    landed = "3 with a value, 1 tombstones, 1 in quarantine were landed"
    there = "2 with a value, 2 tombstones, 1 in quarantine are there"
    assert wrong() == (f"{landed}, and {there}: somebody changed them",)
    DeltaTable(path).delete("_partition = 1")
    assert wrong() == ("5 records were landed, and 4 are there: somebody deleted 1",)
    send(kafka, name, Record(whole(2), None))
    lake.land_all(ports, topology)
    assert wrong() == ("6 records were landed, and 5 are there: somebody deleted 1",)


def test_a_landing_of_a_build_that_did_not_count_begins_with_what_is_there(
    ports: Ports, kafka: Kafka, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic("uncounted")
    topology = people(name)
    with monkeypatch.context() as patch:
        patch.setattr(land, "so_far", lambda *_: None)
        send(kafka, name, Record(whole(1), {"v": 1}), Record(None, {"v": 1}))
        lake.land_all(ports, topology)
    assert counts(ports, topology) == (2, 1, 0, 1)
    send(kafka, name, Record(whole(1), None))
    lake.land_all(ports, topology)
    assert counts(ports, topology) == (3, 1, 1, 1)


def counts(ports: Ports, topology: Topology) -> tuple[int, int, int, int]:
    """Of the only landing: records, with a value, tombstones, in quarantine."""
    found = counted(ports.lakehouse, topology, topology.sources[0])
    assert found is not None
    assert found.wrong == ()
    return found.records, found.rows, found.tombstones, found.quarantined
