"""Prove a version of a table by computing it again, and put a table right by a step with every key."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from spark.engine import commit, table
from spark.engine import position as positions
from spark.engine.changes import Between, Pinned
from spark.engine.errors import InputChanged, NotCommitted, PositionLost
from spark.engine.pin import pin
from spark.engine.step import Stepped, definition, difference, whole
from spark.operators.algebra import ALL, PRESENT, present, rows, touched
from spark.topology.nodes import Join

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark.engine.doors import Doors
    from spark.engine.position import Commit, Position, State
    from spark.topology.nodes import Node
    from spark.topology.topology import Source, Table, Topology

SAMPLE = 10  # differing rows an audit shows
TRIES = 5  # lost races before a rebuild gives up


@dataclass(frozen=True)
class Audited:
    """The verdict on one version: how many rows it has, and how many keys differ from its query at its own position."""

    table: str
    version: int
    position: Position
    rows: int
    differing: int
    sample: list[dict[str, object]]
    seconds: float

    @property
    def holds(self) -> bool:
        """Whether the version equals its query."""
        return self.differing == 0


def audit(doors: Doors, topology: Topology, target: Table, version: int | None = None) -> Audited:
    """Compare a version (default: the newest) with its query over exactly the input versions that its commit names.

    A lookup-only join is read in span form: the rows its commit wrote are what the join yields for that span, and no
    other row changed.

    Raises:
        InputChanged: the version carries no position, or an input no longer has the version that it names.
    """
    began = time.monotonic()
    name = f"{topology.name}/{target.name}"
    path = doors.lakehouse.table(topology.name, target.name)
    found = [entry for entry in positions.commits(path, name) if version is None or entry.version <= version]
    if not found:
        raise InputChanged(f"{name} has no version of its own up to {version}: there is nothing to audit")
    at = found[0]
    newest = positions.read(path, name)
    audited = version if version is not None or newest is None else newest.version
    session = doors.engine.session()
    try:
        stored = _version(session, path, audited)
        expected = _expected(doors, session, topology, target, path, found)
        wrong = difference(expected, stored, target.plan.key)
        differing = wrong.count()
        sample = _sample(wrong, stored, target.plan.key) if differing else []
        return Audited(name, audited, at.position, stored.count(), differing, sample, time.monotonic() - began)
    finally:
        session.stop()


def _expected(
    doors: Doors, session: SparkSession, topology: Topology, target: Table, path: str, found: list[Commit]
) -> DataFrame:
    now = Pinned(session, doors.lakehouse, topology.name, found[0].position.inputs, found[0].position.cut)
    for name, pinned in now.inputs.items():
        state = positions.read(doors.lakehouse.table(topology.name, name), f"{topology.name}/{name}")
        if state is None or state.id != pinned.id:
            raise InputChanged(f"{name} is not the table that {topology.name}/{target.name} was computed from")
    if found[0].position.whole or not lookup_only(target.plan) or len(found) == 1:
        return rows(target.plan, ALL, now)
    before = replace(now, inputs=found[1].position.inputs, cut=found[1].position.cut)
    earlier = _version(session, path, found[1].version)
    written = touched(target.plan, Between(before, now))
    if written is None:
        return earlier
    untouched = earlier.join(written, list(target.plan.key), "left_anti")
    return untouched.unionByName(present(written))


def lookup_only(node: Node) -> bool:
    """Whether a plan's result depends on when it looked things up."""
    return isinstance(node, Join) and node.drive == "left"


def _version(session: SparkSession, path: str, version: int) -> DataFrame:
    return session.read.format("delta").option("versionAsOf", version).load(path)


def _sample(wrong: DataFrame, stored: DataFrame, key: tuple[str, ...]) -> list[dict[str, object]]:
    """Some differing keys: the row that should be there, and the row that is."""
    should = F.when(F.col(PRESENT), F.to_json(F.struct(*wrong.drop(PRESENT).columns))).alias("should_be")
    is_ = F.to_json(F.struct(*stored.columns)).alias("is")
    pairs = wrong.limit(SAMPLE).select(*key, should).join(stored.select(*key, is_), list(key), "left_outer")
    return [row.asDict() for row in pairs.collect()]


def rebuild(doors: Doors, topology: Topology, target: Table, run: str) -> Stepped:
    """Compute every key anew at the newest common cut, and merge what differs; also after a change of definition.

    The change feed holds the difference alone, so followers go on. Where columns or key changed the whole table is
    replaced, and what reads it must be rebuilt too.

    Raises:
        InputChanged: an input was never computed, so there is nothing to compute from.
        NotCommitted: other runs kept committing first.
    """
    began = time.monotonic()
    name = f"{topology.name}/{target.name}"
    path = doors.lakehouse.table(topology.name, target.name)
    for _ in range(TRIES):
        pins = pin(doors, topology.name, target)
        if not pins.inputs:
            raise InputChanged(f"{name}: {', '.join(pins.behind)} was never computed: run `tidetable run {topology.name}`")
        try:
            before = positions.read(path, name)
        except PositionLost:
            before = positions.salvage(path, name)
        session = doors.engine.session()
        try:
            now = Pinned(session, doors.lakehouse, topology.name, pins.inputs, pins.cut)
            schema = rows(target.plan, ALL, now).schema
            if before is None:
                before = table.create(session, path, name, schema, run, definition(topology, target))
            elif before.position.n == 0 or before.properties.get(table.DEFINITION) != definition(topology, target):
                before = _new_epoch(session, topology, target, path, before, run)
            position = replace(
                before.position, n=before.position.n + 1, run=run, cut=pins.cut, inputs=pins.inputs,
                data_version=before.data_version, whole=True,
            )
            if _version(session, path, before.version).schema == schema:
                done = whole(session, target, path, before, position, now, None)
            else:
                after = commit.replace_all(rows(target.plan, ALL, now), path, position)
                count = after.metrics.get("numOutputRows", 0) if after is not None else 0
                done = after and Stepped(name, "stepped", before, after, touched=count, inserted=count)
        finally:
            session.stop()
        if done is not None:
            return replace(done, seconds=time.monotonic() - began)
    raise NotCommitted(f"{name}: {TRIES} times another run committed first; stop the ticks of {topology.name} and try again")


def _new_epoch(session: SparkSession, topology: Topology, target: Table, path: str, before: State, run: str) -> State:
    """Close the old epoch, so that no writer of it can still commit, and anchor a new one."""
    if before.position.epoch:
        closing = replace(before.position, n=positions.RETIRED, run=run)
        commit.append(session.read.format("delta").load(path).where("false"), path, closing)
    fresh = replace(table.unpositioned(before.position.table, table.new_epoch(), run), data_version=before.data_version)
    table.anchor(session, path, fresh, definition(topology, target))
    state = positions.read(path, before.position.table)
    assert state is not None, "it was read a moment ago"
    return state
