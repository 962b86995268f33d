"""What was gone before it was read: refused by name, or gone on from with the exact range in the same commit."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TopicPartition
from deltalake import DeltaTable

from resources.lakehouse import Lakehouse
from spark.engine.audit import audit
from spark.engine.errors import ChangesExpired, LogBroken, OffsetsExpired, TopicRecreated
from spark.engine.land import capture, land
from spark.engine.log import commit
from spark.engine.log import position as positions
from spark.engine.ports import Ports
from spark.engine.rebuild import rebuild, step_or_rebuild
from spark.engine.status import statuses
from spark.engine.tick import tick
from spark.topology import Consumed, StreamsBuilder, Topology
from tests.support import lake
from tests.support.lake import NoEngine, Record, send

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from resources.kafka import Kafka

CONSUMED = Consumed.json(key="id bigint", value="name string")


def topology(topic: str, on_data_loss: str = "ledger", where: str = "id IS NOT NULL") -> Topology:
    """A topic's table, one that is computed from it, and a stream of its changes."""
    builder = StreamsBuilder(f"gaps-{topic}", on_data_loss=on_data_loss)
    table = builder.table(topic, CONSUMED)
    table.filter(where).group_by("name").count().materialize("names")
    table.to_stream().filter("name <> 'nobody'").materialize("changes")
    return builder.build()


def remove(kafka: Kafka, topic: str, before: int) -> None:
    """Have the broker remove what is before an offset, and wait until it has."""
    [done] = kafka.admin().delete_records([TopicPartition(topic, 0, before)]).values()
    done.result(30)
    lake.until(lambda: kafka.beginning_offsets([topic])[topic].offsets == {0: before})


def named(number: int) -> Record:
    """A record whose key and name are a number."""
    return Record(number, {"name": f"{number}"})


def gaps(ports: Ports, made: Topology, name: str) -> list[tuple[str, int | None, int, int]]:
    """The ledger of a table."""
    return [(gap.input, gap.partition, gap.first, gap.last) for gap in lake.state(ports, made, name).position.gaps]


def log(ports: Ports, made: Topology, name: str) -> list[str]:
    """What was done to a table, oldest first."""
    return [entry["operation"] for entry in reversed(DeltaTable(lake.path(ports, made, name)).history())]


def test_records_removed_while_stopped_are_in_the_ledger_of_the_commit_that_goes_on(
    ports: Ports, kafka: Kafka, topic: Callable[..., str]
) -> None:
    name = topic()
    made, strict = topology(name), topology(name, "fail")
    landing = made.sources[0].landing
    send(kafka, name, *map(named, range(3)))
    assert tick(ports, made, "before").failed == {}
    send(kafka, name, *map(named, range(3, 8)))
    remove(kafka, name, 5)

    [failure] = [tick(Ports(NoEngine(), ports.lakehouse, ports.kafka), strict, "strict").failed[landing]]
    assert isinstance(failure, OffsetsExpired)
    assert "partition 0: offsets 3 to 4" in str(failure)
    assert 'on_data_loss="ledger"' in str(failure)
    assert log(ports, made, landing) == ["CREATE TABLE", "WRITE"]

    began = time.time_ns() // 1_000_000
    done = tick(ports, made, "after")
    assert done.failed == {}
    [landed] = done.landed
    assert (landed.start, landed.end, landed.records) == ({0: 5}, {0: 8}, 3)
    [gap] = landed.gaps
    assert (gap.input, gap.partition, gap.first, gap.last, gap.width) == (name, 0, 3, 4, 2)
    assert gap.reason == "removed from the topic before they were landed"
    assert began <= gap.at <= time.time_ns() // 1_000_000
    assert log(ports, made, landing) == ["CREATE TABLE", "WRITE", "WRITE"], "one commit: records, offsets, ledger"
    assert [row["_offset"] for row in lake.records(ports, made, name)] == [0, 1, 2, 5, 6, 7]
    assert lake.rows(ports, made, name) == {n: {"name": f"{n}"} for n in (0, 1, 2, 5, 6, 7)}
    assert all(audit(ports, made, table).holds for table in made.tables)

    send(kafka, name, named(8))
    assert tick(ports, made, "later").landed[0].gaps == ()
    assert gaps(ports, made, landing) == [(name, 0, 3, 4)], "never forgotten"

    send(kafka, name, named(9))
    remove(kafka, name, 10)
    [landed] = lake.land_all(ports, made)
    assert (landed.outcome, landed.start, landed.end, landed.records) == ("landed", {0: 10}, {0: 10}, 0)
    assert gaps(ports, made, landing) == [(name, 0, 3, 4), (name, 0, 9, 9)], "also where nothing is left"
    assert lake.land_all(Ports(NoEngine(), ports.lakehouse, ports.kafka), made)[0].outcome == "idle"


@pytest.mark.parametrize("policy", ["fail", "ledger"])
def test_records_removed_while_they_are_landed(
    ports: Ports, kafka: Kafka, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    name = topic()
    made = topology(name, policy)
    [source] = made.sources
    send(kafka, name, named(0))
    lake.land_all(ports, made)
    send(kafka, name, *map(named, range(1, 6)))
    append = commit.append

    def removed(batch: DataFrame, *others: Any) -> Any:
        """The records go after the landing looked, and before Spark fetches them."""
        monkeypatch.undo()
        remove(kafka, name, 4)
        return append(batch, *others)

    monkeypatch.setattr(commit, "append", removed)
    if policy == "fail":
        with pytest.raises(OffsetsExpired, match="partition 0: offsets 1 to 3"):
            lake.land_all(ports, made)
        assert log(ports, made, source.landing) == ["CREATE TABLE", "WRITE"]
        return
    [landed] = lake.land_all(ports, made)
    assert (landed.start, landed.end, landed.records) == ({0: 4}, {0: 6}, 2)
    assert gaps(ports, made, source.landing) == [(name, 0, 1, 3)]
    assert [row["_offset"] for row in lake.records(ports, made, name)] == [0, 4, 5]
    assert log(ports, made, source.landing) == ["CREATE TABLE", "WRITE", "WRITE"]


def test_a_cut_that_retention_overtook_is_landed_to_where_the_topic_begins(
    ports: Ports, kafka: Kafka, topic: Callable[..., str]
) -> None:
    name = topic()
    made = topology(name)
    [source] = made.sources
    send(kafka, name, named(0))
    lake.land_all(ports, made)
    send(kafka, name, named(1))
    cut = {f"{kafka.cluster_id()}/{name}": kafka.end_offsets([name])[name]}
    send(kafka, name, *map(named, range(2, 6)))
    remove(kafka, name, 4)
    landed = land(ports, made, source, cut, "slow")
    assert (landed.start, landed.end, landed.records) == ({0: 4}, {0: 4}, 0)
    assert gaps(ports, made, source.landing) == [(name, 0, 1, 3)]
    assert lake.land_all(ports, made)[0].records == 2


def test_a_topic_made_anew_is_refused_whatever_the_policy(
    ports: Ports, kafka: Kafka, topic: Callable[..., str]
) -> None:
    name = topic()
    made = topology(name)
    send(kafka, name, named(0), named(1))
    lake.land_all(ports, made)
    kafka.admin().delete_topics([name])[name].result()
    kafka.create_topic(name)
    lake.until(lambda: kafka.beginning_offsets([name])[name].offsets == {0: 0})
    send(kafka, name, named(7))
    with pytest.raises(TopicRecreated, match="the two would mix, whatever on_data_loss says"):
        lake.land_all(Ports(NoEngine(), ports.lakehouse, ports.kafka), made)
    assert log(ports, made, made.sources[0].landing) == ["CREATE TABLE", "WRITE"]


def test_gaps_that_compaction_leaves_are_no_loss(ports: Ports, kafka: Kafka, topic: Callable[..., str]) -> None:
    quick = {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"}
    name = topic("compacted", config={**quick, "max.compaction.lag.ms": "100", "delete.retention.ms": "0"})
    made = topology(name, "fail")
    for number in range(4):  # a segment is as old as its records' times say, and must be closed to be compacted
        at = 1_700_000_000_000 + 1000 * number
        send(kafka, name, Record(1, {"name": f"{number}"}, 0, at), Record(2 + number, {"name": "kept"}, 0, at))
    lake.until(lambda: len(lake.received(kafka, name)) < 8)
    there = len(lake.received(kafka, name))
    [landed] = lake.land_all(ports, made)
    assert (landed.end, landed.records, landed.gaps) == ({0: 8}, there, ())
    lake.step_all(ports, made, name)
    kept = {number: {"name": "kept"} for number in range(2, 6)}
    assert lake.rows(ports, made, name) == {1: {"name": "3"}, **kept}


@pytest.mark.thorough
def test_a_table_whose_inputs_changes_are_gone_is_computed_anew_under_a_ledger_and_streams_are_refused(
    ports: Ports, kafka: Kafka, topic: Callable[..., str], session: SparkSession, tmp_path: Path
) -> None:
    name = topic()
    made, strict = topology(name), topology(name, "fail")
    send(kafka, name, *map(named, range(3)))
    assert tick(ports, made, "before").failed == {}
    for wave in range(2):  # the topic's table goes on; those behind it stay where they are
        send(kafka, name, Record(1, {"name": f"wave {wave}"}), Record(10 + wave, {"name": "0"}))
        lake.land_all(ports, made)
        lake.step_all(ports, made, name)
    copy = lake.copied(ports, made, tmp_path)
    where = Path(lake.path(copy, made, name))
    lake.forget(session, str(where))
    assert not list((where / "_change_data").glob("*.parquet"))
    for table, how in (("names", ""), ("changes", " --from-rows")):
        with pytest.raises(ChangesExpired, match=f"`tidetable rebuild gaps-{name}.{table}{how}`"):
            step_or_rebuild(copy, strict, strict.table(table), "strict")
    stepped = step_or_rebuild(copy, made, made.table("names"), "ledger")
    assert (stepped.outcome, gaps(copy, made, "names")) == ("stepped", [(name, None, 2, 3)])
    assert lake.rows(copy, made, "names") == {
        **{f"{n}": {"count": 1 + 2 * (n == 0)} for n in (0, 2)},
        "wave 1": {"count": 1},
    }
    assert audit(copy, made, made.table("names")).holds
    with pytest.raises(ChangesExpired):
        step_or_rebuild(copy, made, made.table("changes"), "ledger")
    begun = rebuild(copy, made, made.table("changes"), "asked for", from_rows=True).begun
    assert begun == {name: lake.state(copy, made, name).data_version}
    assert step_or_rebuild(copy, made, made.table("changes"), "on").outcome == "idle"
    send(kafka, name, Record(2, None))
    lake.land_all(copy, made)
    lake.step_all(copy, made, name, "names")
    assert gaps(copy, made, "names") == [(name, None, 2, 3)], "never forgotten"
    assert audit(copy, made, made.table("names")).holds
    other = topology(name, where="id < 11")
    rebuild(copy, other, other.table("names"), "other")
    assert gaps(copy, other, "names") == [(name, None, 2, 3)], "not by another definition either"


@pytest.mark.thorough
def test_a_log_cleaned_up_past_a_consumer_is_named_and_gone_on_from_under_a_ledger(
    ports: Ports, kafka: Kafka, topic: Callable[..., str], tmp_path: Path
) -> None:
    name = topic()
    made, strict = topology(name), topology(name, "fail")
    send(kafka, name, *map(named, range(3)))
    assert tick(ports, made, "before").failed == {}
    for wave in range(2):
        send(kafka, name, Record(1, {"name": f"wave {wave}"}))
        lake.land_all(ports, made)
        lake.step_all(ports, made, name)
    copy = lake.copied(ports, made, tmp_path)
    where = Path(lake.path(copy, made, name))
    DeltaTable(str(where)).create_checkpoint()
    for version in range(3):  # as Delta does after three months, behind a checkpoint
        (where / "_delta_log" / f"{version:020}.json").unlink()
    with pytest.raises(ChangesExpired, match=f"the log of gaps-{name}/{name} was cleaned up and begins at version 3"):
        step_or_rebuild(copy, strict, strict.table("names"), "strict")
    for verb in (step_or_rebuild, rebuild):
        with pytest.raises(ChangesExpired, match=rf"`tidetable rebuild {made.name}.changes --from-rows`") as refused:
            verb(copy, strict, strict.table("changes"), "strict")
        assert str(refused.value).count("tidetable rebuild") == 1
    stepped = step_or_rebuild(copy, made, made.table("names"), "ledger")
    assert (stepped.outcome, gaps(copy, made, "names")) == ("stepped", [(name, None, 2, 3)])
    assert audit(copy, made, made.table("names")).holds


@pytest.mark.parametrize("damage", ["missing", pytest.param("corrupt", marks=pytest.mark.thorough)])
def test_a_checkpoint_that_is_missing_or_corrupt_is_named_and_nothing_is_lost(
    ports: Ports, kafka: Kafka, topic: Callable[..., str], tmp_path: Path, damage: str
) -> None:
    name = topic()
    made = topology(name)
    send(kafka, name, *map(named, range(3)))
    assert tick(ports, made, "before").failed == {}
    copy = lake.copied(ports, made, tmp_path)
    where = Path(lake.path(copy, made, name))
    DeltaTable(str(where)).create_checkpoint()
    [checkpoint] = (where / "_delta_log").glob("*.checkpoint.parquet")
    if damage == "missing":
        checkpoint.unlink()
    else:
        checkpoint.write_bytes(checkpoint.read_bytes()[:200])
    send(kafka, name, Record(1, {"name": "later"}))
    failed = tick(copy, made, "broken").failed
    assert failed.keys() == {name, "names", "changes"}, "the table, and what reads it"
    assert all(isinstance(error, LogBroken) for error in failed.values())
    assert f"remove _last_checkpoint and *.checkpoint.parquet from {where}/_delta_log" in str(failed[name])
    patient = replace(made, settings=replace(made.settings, max_task_idle_ms=1_000))
    stands = statuses(Lakehouse(str(tmp_path)), patient, capture(kafka, patient), {name: None})
    assert [one.table for one in stands if one.log_error is not None] == [name], "and it is told beside all others"
    checkpoint.unlink(missing_ok=True)
    (where / "_delta_log" / "_last_checkpoint").unlink()
    assert tick(copy, made, "after").failed == {}
    assert lake.rows(copy, made, name)[1] == {"name": "later"}
    assert all(audit(copy, made, table).holds for table in made.tables)


def test_a_table_that_was_told_to_forget_its_commits_is_refused_until_it_is_not(
    ports: Ports, kafka: Kafka, topic: Callable[..., str], session: SparkSession
) -> None:
    name, forgets = topic(), "delta.setTransactionRetentionDuration"
    made = topology(name)
    send(kafka, name, *map(named, range(3)))
    assert tick(ports, made, "before").failed == {}
    at = f"delta.`{lake.path(ports, made, name)}`"
    session.sql(f"ALTER TABLE {at} SET TBLPROPERTIES ('{forgets}' = 'interval 0 seconds')").collect()
    send(kafka, name, Record(1, {"name": "later"}))
    failed = tick(ports, made, "forgetful").failed
    assert failed.keys() == {name, "names", "changes"}, "the table, and what reads it"
    unset = f"UNSET TBLPROPERTIES ('{forgets}')"
    assert all(isinstance(error, LogBroken) and unset in str(error) for error in failed.values())
    assert name in str(failed[name])
    with pytest.raises(LogBroken, match=forgets):
        rebuild(ports, made, made.table(name), "rebuild")
    session.sql(f"ALTER TABLE {at} {unset}").collect()
    assert tick(ports, made, "after").failed == {}
    assert lake.rows(ports, made, name)[1] == {"name": "later"}
    assert all(audit(ports, made, table).holds for table in made.tables)


def test_a_ledger_is_read_back_as_it_was_written() -> None:
    gap = positions.Gap("orders", 3, 5, 9, "removed", 1_700_000_000_000)
    at = positions.Position("t/_landing/orders", "e", 4, "r", {}, {}, 3, gaps=(gap, replace(gap, partition=None)))
    assert positions.Position.from_json(at.to_json()) == at
    fields = json.loads(at.to_json())
    del fields["gaps"]
    told = positions.Position.from_json(json.dumps(fields))
    assert told is not None
    assert told.gaps == (), "a commit of an earlier release has none"
