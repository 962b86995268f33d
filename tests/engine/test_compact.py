"""Many small files become few, and nobody who reads the table notices."""

from __future__ import annotations

import random
from itertools import islice
from typing import TYPE_CHECKING

import pyarrow.parquet as pq  # type: ignore[import-untyped]  # has no types of its own
import pytest
from deltalake import DeltaTable

from spark.engine import compact as compaction
from spark.engine.audit import Audited, audit
from spark.engine.compact import compact
from spark.engine.restore import restore
from spark.topology import Consumed, StreamsBuilder
from tests.support import lake
from tests.support.lake import Record, send

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from resources.kafka import Kafka
    from spark.engine.ports import Ports


@pytest.mark.thorough
def test_a_table_that_nothing_changes_for_long_is_still_read(
    ports: Ports, kafka: Kafka, topic: Callable[..., str], session: SparkSession
) -> None:
    lasting, busy = topic("countries"), topic("people")
    builder = StreamsBuilder(f"lasting-{lasting}")
    countries = builder.table(lasting, Consumed.json(key="code string", value="country string"))
    people = builder.table(busy, Consumed.json(key="id bigint", value="code string"))
    people.join(countries, on="code", select=["left.*", "right.country"]).materialize("joined")
    topology = builder.build()

    def arrive(number: int) -> None:
        send(kafka, busy, Record(number, {"code": "fr"}))
        lake.land_all(ports, topology)
        lake.step_all(ports, topology)

    send(kafka, lasting, Record("fr", {"country": "France"}))
    arrive(1)
    for name in (lasting, "joined"):
        where = lake.path(ports, topology, name)
        kept = "'delta.deletedFileRetentionDuration' = '0 seconds'"
        session.sql(f"ALTER TABLE delta.`{where}` SET TBLPROPERTIES ({kept})")
    send(kafka, lasting, Record("de", {"country": "Germany"}), Record("de", None))
    arrive(2)  # the newest version that changed countries is older than its table keeps
    arrive(3)
    assert set(lake.rows(ports, topology, "joined")) == {1, 2, 3}
    assert audit(ports, topology, topology.table("joined")).holds
    restore(ports, topology, topology.table("joined"), "back", version=1)  # older, and its files are there
    assert set(lake.rows(ports, topology, "joined")) == {1}
    arrive(4)
    assert set(lake.rows(ports, topology, "joined")) == {1, 2, 3, 4}


@pytest.mark.thorough
def test_a_compacted_table_has_the_same_rows_and_its_followers_nothing_to_do(
    ports: Ports, kafka: Kafka, topic: Callable[..., str]
) -> None:
    name = topic()
    builder = StreamsBuilder(f"compacting-{name}")
    table = builder.table(name, Consumed.json(key="id bigint", value="name string"))
    table.group_by("name").count().materialize("by_name")
    topology = builder.build()
    for wave in range(3):
        send(kafka, name, *(Record(n, {"name": f"{n % 2} {wave}"}) for n in range(wave, 6)))
        lake.land_all(ports, topology)
        lake.step_all(ports, topology)
    everything = (topology.sources[0].landing, *(one.name for one in topology.tables))
    before = {one: lake.listed(lake.path(ports, topology, one)) for one in everything}
    for one in everything:
        done = compact(ports.engine, ports.lakehouse, topology, one)
        assert (done.removed > 1, done.added) == (True, 1)
        assert compact(ports.engine, ports.lakehouse, topology, one).added == 0
        assert len(DeltaTable(lake.path(ports, topology, one)).file_uris()) == 1
        operations = [entry["operation"] for entry in DeltaTable(lake.path(ports, topology, one)).history()]
        assert operations[0] == "OPTIMIZE", "a removal of files that leaves commits would age ours out of the log"
        assert sorted(map(str, lake.listed(lake.path(ports, topology, one)))) == sorted(map(str, before[one]))
    assert {one.outcome for one in lake.step_all(ports, topology).values()} == {"idle"}
    send(kafka, name, Record(1, None), Record(9, {"name": "new"}))
    lake.land_all(ports, topology)
    assert {one.outcome for one in lake.step_all(ports, topology).values()} == {"stepped"}
    assert lake.rows(ports, topology, "by_name")["new"] == {"count": 1}
    audited = lake.audited(ports, topology, *(target.name for target in topology.tables))
    assert [isinstance(one, Audited) and one.holds for one in audited] == [True] * 8


@pytest.mark.parametrize(
    ("rows", "parts", "files", "near"),
    [(compaction.ROWS, (1_500, 500), 1, 20), (4_500, (18_000, 1_000, 1_000), 4, 200)],
)
def test_compaction_sorts_a_table_by_its_key_once(
    ports: Ports,
    kafka: Kafka,
    topic: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    rows: int,
    parts: tuple[int, ...],
    files: int,
    near: int,
) -> None:
    monkeypatch.setattr(compaction, "ROWS", rows)
    name = topic()
    builder = StreamsBuilder(f"sorting-{name}")
    builder.table(name, Consumed.json(key="id bigint", value="name string"))
    topology = builder.build()
    numbers = list(range(sum(parts)))
    random.Random(1).shuffle(numbers)
    left = iter(numbers)
    for part in parts:
        send(kafka, name, *(Record(n, {"name": str(n)}) for n in islice(left, part)))
        lake.land_all(ports, topology)
        lake.step_all(ports, topology)
    where = lake.path(ports, topology, name)
    assert compact(ports.engine, ports.lakehouse, topology, name).added == files
    found = [pq.read_table(file.removeprefix("file://"))["id"].to_pylist() for file in DeltaTable(where).file_uris()]
    stored = [number for file in sorted(found) for number in file]
    assert sorted(stored) == sorted(numbers)
    # Delta sorts by the number of the range that a key is in, of a thousand.
    assert max(abs(number - place) for place, number in enumerate(stored)) < near
    version = DeltaTable(where).version()
    assert compact(ports.engine, ports.lakehouse, topology, name).added == 0, "a compact table is not sorted again"
    operations = [entry["operation"] for entry in DeltaTable(where).history()]
    assert operations[0] == "OPTIMIZE"
    assert DeltaTable(where).version() == version
