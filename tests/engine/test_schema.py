"""`docs/schema.md`, done: every line happens to one topic and two tables, and every cell is compared."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from spark.engine.audit import audit
from spark.engine.errors import PlanChanged
from spark.engine.log.table import stored_types
from spark.engine.rebuild import rebuild
from spark.engine.step import step
from spark.engine.tick import tick
from spark.topology import Consumed, StreamsBuilder, Topology
from spark.topology.nodes import LANDING
from tests.support import lake
from tests.support.lake import Record, send

if TYPE_CHECKING:
    from collections.abc import Callable

    from resources.kafka import Kafka
    from spark.engine.ports import Ports
    from spark.engine.tick import Ticked

pytestmark = pytest.mark.thorough

PAGE = Path(__file__).parents[2] / "docs" / "schema.md"


@dataclass(frozen=True)
class Declared:
    """What the topology says of the topic, and of the two tables."""

    value: str = "v int, w string"
    kept: tuple[str, ...] = ()
    where: str = "v IS NOT NULL"
    by: str = "w"

    def topology(self, topic: str) -> Topology:
        """The topology of it."""
        builder = StreamsBuilder(f"schema-{topic}")
        items = builder.table(topic, Consumed.json(key="id bigint", value=self.value))
        items.filter(self.where).map_values(["*", *self.kept]).materialize("kept")
        items.group_by(self.by).aggregate(total="sum(v)").materialize("sums")
        return builder.build()


@dataclass(frozen=True)
class Change:
    """What is declared from now on, and a record that comes in; declarations that come to nothing beside it."""

    declared: Declared
    key: int
    value: dict[str, object]
    beside: tuple[Declared, ...] = ()


FIRST = Declared()
GAINED = replace(FIRST, value="v int, w string, x int")
COMPUTED = replace(GAINED, kept=("x + 1 AS y",))
RENAMED = replace(FIRST, value="v int, note string", by="note")
WIDER = replace(RENAMED, value="v bigint, note string")
WIDEST = replace(RENAMED, value="v decimal(20,0), note string")
OTHERS = tuple(replace(RENAMED, value=f"v {kind}, note string") for kind in ("smallint", "double", "string"))
FILTERED = replace(WIDEST, where="v > 1")
HAPPENS = {
    "a record has a field that is not declared": Change(FIRST, 3, {"v": 3, "w": "a", "x": 9}),
    "a record lacks a field: null": Change(FIRST, 4, {"v": 4}),
    "a record's field has another type": Change(FIRST, 1, {"v": "one", "w": "a"}),
    "a record's number is larger than the declared type can hold": Change(FIRST, 1, {"v": 2**40, "w": "a"}),
    "the declaration gains a column": Change(GAINED, 5, {"v": 5, "w": "b", "x": 9}),
    "a table computes something of a column": Change(COMPUTED, 6, {"v": 6, "w": "b", "x": 9}),
    "the declaration loses a column: null in the landing from now on": Change(FIRST, 7, {"v": 7, "w": "c", "x": 9}),
    "the declaration renames a column: the landing has both": Change(RENAMED, 8, {"v": 8, "note": "c"}),
    "the declaration gives a column a wider type: int to bigint": Change(WIDER, 9, {"v": 2**40, "note": "c"}),
    "the declaration gives a column a wider type: bigint to decimal(20,0)": Change(WIDEST, 9, {"v": 9, "note": "c"}),
    "the declaration gives a column a narrower type, or one that has nothing to do with it": Change(
        OTHERS[0], 9, {"v": 9, "note": "c"}, OTHERS[1:]
    ),
    "a table has another filter": Change(FILTERED, 10, {"v": 1, "note": "c"}),
    "a table groups by another column": Change(replace(FILTERED, by="v"), 11, {"v": 11, "note": "d"}),
}


def lines() -> dict[str, tuple[str, ...]]:
    """The lines of the page's table: what is said of landing and tables."""
    cells = [line.strip("|").split("|") for line in PAGE.read_text().splitlines() if line.startswith("|")]
    return {change.strip(): tuple(map(str.strip, outcomes)) for change, *outcomes in cells[2:]}


@pytest.fixture(scope="module")
def happened(ports: Ports, kafka: Kafka, topic: Callable[..., str]) -> dict[str, tuple[str, ...]]:
    """What each change came to, one after the other."""
    name = topic("items")
    send(kafka, name, Record(1, {"v": 1, "w": "a"}), Record(2, {"v": 2, "w": "b"}))
    assert tick(ports, FIRST.topology(name), "first").failed == {}
    return {what: happen(ports, kafka, name, change) for what, change in HAPPENS.items()}


def happen(ports: Ports, kafka: Kafka, name: str, change: Change) -> tuple[str, ...]:
    """Let one change happen: what became of the landing and of the tables."""
    send(kafka, name, Record(change.key, change.value))
    came_to = {told(ports, declared.topology(name)) for declared in (change.declared, *change.beside)}
    assert len(came_to) == 1, "all of one line come to the same"
    return came_to.pop()


def told(ports: Ports, topology: Topology) -> tuple[str, ...]:
    """Tick, rebuild and audit what asks for it, and say what became of the landing and of the tables."""
    tables = (topology.sources[0].landing, "kept", "sums")
    before = [columns(ports, topology, table) for table in tables]
    versions = [lake.versions(ports, topology, table) for table in tables]
    ticked = tick(ports, topology, "changed")
    said = tuple(
        outcome(ticked, table, evolution(had, columns(ports, topology, table)))
        for table, had in zip(tables, before, strict=True)
    )
    for table, its, was in zip(tables, said, versions, strict=True):
        if its in ("refused", "rebuild", "waits"):
            assert lake.versions(ports, topology, table) == was, "nothing is committed"
        if (table, its) == ("kept", "waits"):  # its definition has the type; and both do when they are asked to
            for do in (step, rebuild):
                with pytest.raises(PlanChanged, match="landed and declared types differ"):
                    do(ports, topology, topology.table(table), "asked")
        if its == "rebuild":
            assert re.search("^[-+]|may have other values", str(ticked.failed[table]), re.MULTILINE), "how they differ"
            rebuild(ports, topology, topology.table(table), "rebuilt")
        if its in ("rebuild", "gains", "widens") and table in ("kept", "sums"):
            assert audit(ports, topology, topology.table(table)).holds
    return said


def columns(ports: Ports, topology: Topology, table: str) -> dict[str, str]:
    """The columns of a table as it is stored, type by name."""
    return stored_types(DeltaTable(lake.path(ports, topology, table)).schema().to_json())


def evolution(before: dict[str, str], now: dict[str, str]) -> str | None:
    """What became of the columns, in the words of the page."""
    if any(before[name] != now[name] for name in before.keys() & now.keys()):
        return "widens"
    return "gains" if now.keys() > before.keys() else None


def outcome(ticked: Ticked, table: str, evolved: str | None) -> str:
    """In the words of the page."""
    landing = table.startswith(LANDING)
    if isinstance(ticked.failed.get(table), PlanChanged):
        return "refused" if landing else "rebuild"
    assert table not in ticked.failed, ticked.failed
    if landing:
        return evolved or ("quarantine" if ticked.landed[0].errors else "lands")
    done = {stepped.table.partition("/")[2]: stepped.outcome for stepped in ticked.stepped}
    return "waits" if done.get(table, "waiting") == "waiting" else evolved or "goes on"


def test_the_page_says_all_that_happens() -> None:
    assert list(lines()) == list(HAPPENS)


@pytest.mark.parametrize("change", HAPPENS)
def test_a_change_comes_to_what_the_page_says(happened: dict[str, tuple[str, ...]], change: str) -> None:
    assert happened[change] == lines()[change]
