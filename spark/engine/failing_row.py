"""Find the row that an expression failed on: Spark's error has the cause, but not the row."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from spark.operators.algebra import ALL, col, cols, history, rows

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from spark.engine.inputs.snapshot import DeltaSnapshot
    from spark.topology.nodes import Node

CANDIDATES = 500  # rows that are tried in each of two searches
PATIENCE = 20.0  # seconds for the whole search; no try begins later

ANSI = "spark.sql.ansi.enabled"
PLACE = ("_topic", "_partition", "_offset")


def find_failing_row(session: SparkSession, plan: Node, now: DeltaSnapshot) -> str:
    """Return the key, or for a stream the coordinates, of a row that a plan fails on; empty if none is found in time.

    Without ANSI rules most failing expressions are null, so rows with a null are tried first, newest first. The row
    that is found fails alone. For a plan that fails without any row, the result is empty.
    """
    names = PLACE if plan.is_stream else plan.key
    until = time.monotonic() + PATIENCE
    with suppress(PySparkException, AssertionError):  # the plan cannot be read this way, or the engine died
        frame = history(plan, now) if plan.is_stream else rows(plan, ALL, now)
        key = F.to_json(F.struct(*cols(names)))
        values = [one.name for one in plan.columns if one.name not in names]
        null = F.greatest(F.lit(False), F.lit(False), *(col(name).isNull() for name in values))
        if _fails(frame.where(key == "")):
            return ""
        for some in (frame.where(null), frame):
            with suppress(PySparkException):  # raise_error fails without ANSI rules too
                candidates = _newest(session, some.select(key.alias("key"), "_timestamp"))
                found = _narrowed(frame, key, candidates, until)
                if found is not None:
                    named = json.loads(found).items()
                    return ", ".join(f"{name.removeprefix('_')} {value!r}" for name, value in named)
    return ""


def _newest(session: SparkSession, keys: DataFrame) -> list[str]:
    """Return the keys of the newest rows, at most `CANDIDATES`, including rows that fail."""
    rules = str(session.conf.get(ANSI))
    session.conf.set(ANSI, "false")
    try:
        return [row["key"] for row in keys.orderBy("_timestamp", ascending=False).limit(CANDIDATES).collect()]
    finally:
        session.conf.set(ANSI, rules)


def _narrowed(frame: DataFrame, key: Column, candidates: list[str], until: float) -> str | None:
    """Return one of the keys whose row fails, by bisection; None if none does, or after `until`."""
    if not candidates or not _fails(frame.where(key.isin(candidates))):
        return None
    while len(candidates) > 1:
        if time.monotonic() > until:
            return None
        half = candidates[: len(candidates) // 2]
        candidates = half if _fails(frame.where(key.isin(half))) else candidates[len(half) :]
    return candidates[0]


def _fails(frame: DataFrame) -> bool:
    """Return whether rows cannot be computed."""
    try:
        frame.agg(F.max(F.length(F.to_json(F.struct("*"))))).collect()  # to_json needs every column
    except PySparkException:
        return True
    return False
