"""A client that sees another place than its engine changes nothing there."""

from __future__ import annotations

import shutil
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from resources.engine import Engine
from resources.lakehouse import Lakehouse
from spark.engine.errors import LakesDiffer
from spark.engine.ports import Ports
from spark.topology import Consumed, StreamsBuilder
from tests.support import lake
from tests.support.lake import Record, send

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from resources.kafka import Kafka


@dataclass(frozen=True)
class Own(Lakehouse):
    """One name for two places, as a folder that is not mounted on one side is: every process has its own there."""

    def __post_init__(self) -> None:
        """The name as it is."""


@pytest.fixture
def own(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Own, Lakehouse]]:
    """A lake by a name that is another place for the engine than here; and the engine's, by its full name."""
    if not Path("/proc/self/cwd").exists():
        pytest.skip("a name for every process's own folder is Linux's")
    running = engine.running()
    assert running is not None
    folder = f"lake-{uuid.uuid4().hex}"
    engines = Path(f"/proc/{running.pid}/cwd").resolve() / folder
    monkeypatch.chdir(tmp_path)
    yield Own(f"/proc/self/cwd/{folder}"), Lakehouse(str(engines))
    shutil.rmtree(engines)


@pytest.mark.parametrize("there", ["nothing", "another lake", "a copy"])
def test_a_table_that_only_the_engine_sees_is_never_replaced(
    engine: Engine, kafka: Kafka, topic: Callable[..., str], own: tuple[Own, Lakehouse], there: str
) -> None:
    name = topic("orders")
    builder = StreamsBuilder("same")
    builder.table(name, Consumed.json(key="id bigint", value="v string"))
    topology, (torn, engines) = builder.build(), own
    send(kafka, name, Record(1, {"v": "a"}))
    ports = Ports(engine, engines, kafka)
    lake.land_all(ports, topology)
    lake.step_all(ports, topology)
    stored = [lake.path(ports, topology, name) for name in topology.stored]
    before = [DeltaTable(path).history() for path in stored]
    if there == "another lake":
        lake.land_all(Ports(engine, Lakehouse(torn.root), kafka), topology)
    if there == "a copy":  # of a lake that was proven before, as a backup that was put back is
        session = engine.session()
        engines.prove(session)
        session.stop()
        shutil.copytree(engines.root, Path(torn.root).resolve())
    send(kafka, name, Record(2, {"v": "b"}))

    if there == "nothing":
        with pytest.raises(LakesDiffer, match=r"the engine has a table .* and this process sees none"):
            lake.land_all(Ports(engine, torn, kafka), topology)
    # A remote engine's lake is proven before anything is asked of it, whatever this process sees there.
    remote = Ports(Engine(None, engine.start(), lakehouse=torn), torn, kafka)
    with pytest.raises(LakesDiffer, match=r"(?s)see different places under .* Nothing was changed"):
        lake.land_all(remote, topology)
    assert [DeltaTable(path).history() for path in stored] == before

    [went_on] = lake.land_all(replace(ports, engine=Engine(None, engine.start(), lakehouse=engines)), topology)
    assert (went_on.outcome, went_on.records) == ("landed", 1)


def test_clients_that_prove_a_new_lake_at_once_agree_on_its_name(engine: Engine, tmp_path: Path) -> None:
    lakehouse = Lakehouse(str(tmp_path))
    sessions = [engine.session() for _ in range(4)]
    with ThreadPoolExecutor(len(sessions)) as pool:
        list(pool.map(lakehouse.prove, sessions))
    for session in sessions:
        session.stop()
    assert DeltaTable(str(tmp_path / "_lake")).metadata().configuration.keys() == {"tidetable.lake"}
