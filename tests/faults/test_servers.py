"""Servers that die: the part of the kill matrix that kills engine, broker, and everything, on servers of its own."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from assets.failures import TRANSIENT
from resources.lakehouse import Lakehouse
from resources.tidetable import Tidetable
from spark.engine.land import capture, land
from spark.engine.log import commit
from spark.engine.tick import tick
from spark.topology import Consumed, StreamsBuilder
from tests.faults.matrix import COMMITS, Cell, Fault, cells
from tests.faults.play import Playground, Worlds, own_servers
from tests.support import lake
from tests.support.lake import Record, send, until

if TYPE_CHECKING:
    from collections.abc import Iterator

MANY = 100_000  # records that take the engine some seconds to fetch
PLAYED: dict[Fault, tuple[str, ...]] = {
    "engine": ("landing", "step", "rebuild"),
    "broker": ("publishing",),  # one that is read while it dies comes again below: Spark waits for it for minutes
    "all": ("landing", "step", "publishing", "rebuild"),
}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Playground, Worlds]]:
    """Servers that nobody else uses, and the worlds there."""
    with own_servers(tmp_path_factory.mktemp("servers"), memory="1g", cores="2") as found:
        yield found


def committing(fault: Fault) -> list[Cell]:
    """What is at its last commit when a server dies, or on its way to it, one of each errand."""
    at = [cell for cell in cells((1,)) if cell.fault == fault and cell.at in COMMITS]
    return list({cell.errand: cell for cell in at if cell.errand in PLAYED[fault]}.values())


@pytest.mark.parametrize(
    "fault", [pytest.param(fault, marks=[pytest.mark.thorough] * (fault == "engine")) for fault in PLAYED]
)
def test_a_server_that_dies_beside_commits_loses_and_repeats_nothing(
    servers: tuple[Playground, Worlds], fault: Fault
) -> None:
    playground, worlds = servers
    played = committing(fault)
    assert {cell.errand for cell in played} == set(PLAYED[fault])
    for result in playground.play(played, worlds):
        assert result.holds, result


def test_a_broker_that_restarts_while_it_is_read_is_read_to_the_end(
    servers: tuple[Playground, Worlds], monkeypatch: pytest.MonkeyPatch
) -> None:
    playground, _ = servers
    name = playground.topic("many")
    builder = StreamsBuilder("many")
    builder.table(name, Consumed.json(key="id bigint", value="v bigint"))
    made = builder.build()
    [source] = made.sources
    ports = Tidetable(playground.engine, Lakehouse(str(playground.folder / "many")), playground.broker).ports()
    send(playground.kafka, name, *(Record(n % 1_000, {"v": n}) for n in range(MANY)))
    running = playground.broker.running()
    assert running is not None
    append = commit.append

    def killed(*arguments: object) -> object:
        """The broker dies while the engine reads, and comes again."""
        monkeypatch.undo()
        killer = threading.Timer(0.3, os.kill, (running.pid, signal.SIGKILL))
        starter = threading.Timer(1.0, playground.broker.start)
        for timer in (killer, starter):
            timer.start()
        try:
            return append(*arguments)  # type: ignore[arg-type]  # passed on as they came
        finally:
            for timer in (killer, starter):
                timer.join()

    monkeypatch.setattr(commit, "append", killed)
    cut = capture(ports.kafka, made)
    with suppress(PySparkException, *TRANSIENT):  # it may outlive the broker, or not
        assert land(ports, made, source, cut, "beside").records == MANY
    assert len(lake.records(ports, made, name)) in (0, MANY)
    until(lambda: playground.broker.running() is not None)
    assert tick(ports, made, "after").failed == {}
    assert sorted(int(str(row["_offset"])) for row in lake.records(ports, made, name)) == [*range(MANY)]
    assert lake.rows(ports, made, name) == {n: {"v": MANY - 1_000 + n} for n in range(1_000)}
