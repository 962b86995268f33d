"""The one place that commits: rows, position and fence as one Delta version, and a look at what really happened.

Delta skips a write whose transaction number is not newer, without an error; it refuses one that overlaps another of the
same application. Either way somebody else did this step, and the caller reads the table's state again.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from spark.engine import position as positions
from spark.engine.comments import commented
from spark.engine.errors import condition

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

    from spark.engine.position import Position, State

APP = "spark.databricks.delta.write.txnAppId"
NUMBER = "spark.databricks.delta.write.txnVersion"
METADATA = "spark.databricks.delta.commitInfo.userMetadata"

LOST_RACE = (  # Delta's error classes for a commit that another one overtook
    "DELTA_CONCURRENT_",
    "DELTA_METADATA_CHANGED",
    "DELTA_PROTOCOL_CHANGED",
    "FIELD_ALREADY_EXISTS",
    "FIELDS_ALREADY_EXISTS",
)


def append(frame: DataFrame, path: str, position: Position) -> State | None:
    """Append rows (none: a position alone). None: somebody else made this step."""
    return _write(frame.write.mode("append"), path, position)


def replace_all(frame: DataFrame, path: str, position: Position) -> State | None:
    """Replace rows and columns. None: somebody else made this step."""
    return _write(commented(frame).write.mode("overwrite").option("overwriteSchema", "true"), path, position)


def retire(nothing: DataFrame, path: str, position: Position) -> bool:
    """Close the position's epoch: what started in it is refused, what starts in it is skipped.

    False: a writer of the epoch was in the way. Whoever closed it, it is closed.
    """
    last = replace(position, n=positions.RETIRED)
    _save(nothing.write.mode("append"), path, last)
    return positions.fence(path, last) == positions.RETIRED


def alone(nothing: DataFrame, path: str, state: State) -> bool:
    """Whether nobody else can commit beside the first commit of an epoch, to a table that is as it was read.

    Two runs may begin an epoch one after the other, a RESTORE may lead behind one, and whoever should have closed it
    may have died. So the first commit looks, and closes what is open; then the table is to be read again.
    """
    if state.position.n > 0:
        return True
    others = positions.open_beside(path, state.position.table)
    for other in others:
        retire(nothing, path, other)
    return not others and positions.version(path) == state.version


def _write(writer: DataFrameWriter, path: str, position: Position) -> State | None:
    return _read_back(path, position) if _save(writer, path, position) else None


def _save(writer: DataFrameWriter, path: str, position: Position) -> bool:
    """Write behind the fence; False where a race was lost."""
    writer = writer.format("delta").option("txnAppId", positions.app(position)).option("txnVersion", position.n)
    with races() as race:
        writer.option("userMetadata", position.to_json()).save(path)
    return not race


def run(session: SparkSession, statement: str, path: str, position: Position) -> State | None:
    """Run a MERGE. None: somebody else made this step."""
    try:
        session.conf.set(APP, positions.app(position))
        session.conf.set(NUMBER, str(position.n))
        session.conf.set(METADATA, position.to_json())
        with races() as race:
            session.sql(statement).collect()
    finally:
        # What stays set would skip, or refuse, the next write of this session.
        for setting in (NUMBER, APP, METADATA):
            session.conf.unset(setting)
    return None if race else _read_back(path, position)


def _read_back(path: str, position: Position) -> State | None:
    """A fence that was not read back is not to be trusted."""
    state = positions.read(path, position.table)
    return state if state is not None and state.position == position else None


@contextmanager
def races(*more: str) -> Iterator[list[PySparkException]]:
    """What another writer overtook, instead of an error; empty if nobody did. `more` error classes tell of one too."""
    lost: list[PySparkException] = []
    try:
        yield lost
    except PySparkException as error:
        if not condition(error).startswith((*LOST_RACE, *more)):
            raise
        lost.append(error)
