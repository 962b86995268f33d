"""Bring one table from its position to a pinned one: which keys, which rows, one commit."""

from __future__ import annotations

import json
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import unified_diff
from typing import TYPE_CHECKING, Literal, Protocol

from pyspark.sql import functions as F

from spark.engine import commit, merge, table
from spark.engine import position as positions
from spark.engine.changes import Between, Pinned
from spark.engine.errors import InputChanged, NotCommitted, PlanChanged
from spark.engine.pin import Pins, pin
from spark.engine.position import Position, State
from spark.operators.algebra import ALL, PRESENT, col, present, quoted, rows, touched

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from spark.engine.doors import Doors
    from spark.topology.topology import Table, Topology

TRIES = 5  # lost races before a step gives up; each one means that another run did make a step
SOURCE = "__source"

Outcome = Literal["stepped", "positioned", "idle", "waiting"]
"""Rows and position committed; only the position; nothing to do; an input is behind."""


class Gate(Protocol):
    """Looks at the rows about to be merged, and raises if they must not be published."""

    def __call__(self, batch: DataFrame) -> None:
        """`batch` holds the new rows at touched keys, with the table's own columns."""


@dataclass(frozen=True)
class Stepped:
    """What a step did: the table's state before and after it, and how many keys it touched and rows it changed."""

    table: str
    outcome: Outcome
    before: State | None
    after: State | None
    waiting_for: tuple[str, ...] = ()
    touched: int = 0
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    seconds: float = 0.0


def step(doors: Doors, topology: Topology, target: Table, run: str, gate: Gate | None = None) -> Stepped:
    """Bring a table to the newest cut that all its inputs reached.

    A step that finds nothing new commits nothing and starts no Spark.

    Raises:
        PlanChanged: the table was computed by another definition; a rebuild is needed.
        InputChanged: an input is not the table that the position names.
        NotCommitted: other runs kept stepping first.
    """
    began = time.monotonic()
    name = f"{topology.name}/{target.name}"
    path = doors.lakehouse.table(topology.name, target.name)
    for _ in range(TRIES):
        state = positions.read(path, name)
        if state is not None:
            check_definition(topology, target, state)
        pins = pin(doors, topology.name, target)
        here = ({}, {}) if state is None else (state.position.inputs, state.position.cut)
        if (pins.inputs, pins.cut) == here or not pins.inputs:
            outcome: Outcome = "waiting" if pins.behind else "idle"
            return Stepped(name, outcome, state, state, pins.behind, seconds=time.monotonic() - began)
        session = doors.engine.session()
        try:
            done = _step(doors, session, topology, target, state, pins, run, gate)
        finally:
            session.stop()
        if done is not None:
            return replace(done, seconds=time.monotonic() - began)
    raise NotCommitted(f"{name}: {TRIES} times another run stepped first; is more than one tick of {topology.name} running?")


def _step(
    doors: Doors,
    session: SparkSession,
    topology: Topology,
    target: Table,
    before: State | None,
    pins: Pins,
    run: str,
    gate: Gate | None,
) -> Stepped | None:
    """One try. None: somebody else made this step."""
    name = f"{topology.name}/{target.name}"
    path = doors.lakehouse.table(topology.name, target.name)
    now = Pinned(session, doors.lakehouse, topology.name, pins.inputs, pins.cut)
    if before is None:
        schema = rows(target.plan, ALL, now).schema
        before = table.create(session, path, name, schema, run, definition(topology, target))
    position = replace(
        before.position, n=before.position.n + 1, run=run, cut=pins.cut, inputs=pins.inputs, data_version=before.data_version
    )
    if before.position.n == 0:
        return whole(session, target, path, before, replace(position, whole=True), now, gate)
    check_inputs(name, before.position, pins)
    span = Between(replace(now, inputs=before.position.inputs, cut=before.position.cut), now)
    source = touched(target.plan, span)
    if source is None:
        after = commit.append(session.read.format("delta").load(path).where("false"), path, position)
        return after and Stepped(name, "positioned", before, after)
    with checked(session, source, gate) as source:
        after = merged(session, source, span.few, target, path, position)
        return after and Stepped(name, "stepped", before, after, **counts(after))


@contextmanager
def checked(session: SparkSession, batch: DataFrame, gate: Gate | None) -> Iterator[DataFrame]:
    """Pass what is about to be committed through the gate. It is computed once: what was looked at is what is merged."""
    if gate is None:
        yield batch
        return
    batch.createOrReplaceTempView("__batch")
    session.sql("CACHE TABLE __checked AS SELECT * FROM __batch").collect()
    try:
        cached = session.table("__checked")
        gate(present(cached) if PRESENT in cached.columns else cached)
        yield cached
    finally:
        session.sql("UNCACHE TABLE IF EXISTS __checked").collect()


def whole(
    session: SparkSession, target: Table, path: str, before: State, position: Position, now: Pinned, gate: Gate | None
) -> Stepped | None:
    """Compute every key: all rows into a table that has none, the difference into one that has some."""
    with checked(session, rows(target.plan, ALL, now), gate) as batch:
        if before.data_version == 0:
            after = commit.append(batch, path, position)
            count = after.metrics.get("numOutputRows", 0) if after is not None else 0
            return after and Stepped(position.table, "stepped", before, after, touched=count, inserted=count)
        stored = session.read.format("delta").option("versionAsOf", before.version).load(path)
        source = difference(batch, stored, target.plan.key)
        after = merged(session, source, False, target, path, position)
        return after and Stepped(position.table, "stepped", before, after, **counts(after))


def difference(rows: DataFrame, stored: DataFrame, key: tuple[str, ...]) -> DataFrame:
    """One row for every key at which two tables differ: the row it should have, or `_present` false."""
    schema = stored.schema
    s = rows.select("*", F.lit(True).alias(PRESENT)).alias("s")
    t = stored.select(*(col(name).alias(name) for name in schema.names), F.lit(True).alias("_stored")).alias("t")
    on = F.expr(" AND ".join(f"s.{quoted(name)} = t.{quoted(name)}" for name in key))
    differs = f"s.{PRESENT} IS NULL OR t._stored IS NULL OR NOT ({merge.same(schema, 's', 't', key)})"
    values = [
        F.coalesce(col(name, "s"), col(name, "t")).alias(name) if name in key else col(name, "s").alias(name)
        for name in schema.names
    ]
    return s.join(t, on, "full_outer").where(differs).select(*values, F.expr(f"s.{PRESENT} IS NOT NULL").alias(PRESENT))


def merged(session: SparkSession, source: DataFrame, few: bool, target: Table, path: str, position: Position) -> State | None:
    """Merge one row per touched key into the table. None: somebody else made this step."""
    schema = source.drop(PRESENT).schema
    (F.broadcast(source) if few else source).createOrReplaceTempView(SOURCE)
    return commit.run(session, merge.statement(path, SOURCE, target.plan.key, schema), path, position)


def counts(state: State) -> dict[str, int]:
    """How many keys the newest commit touched, and what happened to their rows."""
    names = {"touched": "numSourceRows", "inserted": "numTargetRowsInserted"}
    names |= {"updated": "numTargetRowsUpdated", "deleted": "numTargetRowsDeleted"}
    return {ours: state.metrics.get(theirs, 0) for ours, theirs in names.items()}


def definition(topology: Topology, target: Table) -> str:
    """What a table is computed by, as text that is kept with the table."""
    return json.dumps(topology.definition(target.name), sort_keys=True)


def check_definition(topology: Topology, target: Table, state: State) -> None:
    """Refuse to go on with a table that another definition computed."""
    stored, given = state.properties[table.DEFINITION], definition(topology, target)
    if stored == given:
        return
    pretty = [json.dumps(json.loads(text), sort_keys=True, indent=2).splitlines() for text in (stored, given)]
    difference = "\n".join(unified_diff(*pretty, "computed by", "declared now", n=1, lineterm=""))
    raise PlanChanged(
        f"{topology.name}/{target.name} was computed by another definition ({target.line}):\n{difference}\n"
        f"run `tidetable rebuild {topology.name}.{target.name}`"
    )


def check_inputs(name: str, position: Position, pins: Pins) -> None:
    """Refuse to go on from versions of a table that is no longer there."""
    for table_name, pinned in pins.inputs.items():
        known = position.inputs.get(table_name)
        if known is None or known.id != pinned.id or known.version > pinned.version:
            raise InputChanged(
                f"{name} was computed from {table_name} ({known}), which is now {pinned}: it was dropped and made anew, "
                f"or restored. Run `tidetable rebuild {name.replace('/', '.')}`"
            )
