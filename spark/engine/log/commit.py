"""The only module that commits: rows, position and fence as one Delta version, which is then read back.

Delta skips a write whose transaction number is not newer, without an error, and refuses a write that overlaps another
of the same application. Either way another run committed this step, and the caller reads the table's state again.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from pyspark.errors import PySparkException

from spark.engine.errors import NotCommitted, condition
from spark.engine.log.comments import commented
from spark.engine.log.merge import NEW, OLD
from spark.engine.log.position import CLOSED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

    from spark.engine.log.position import Position
    from spark.engine.log.stored_table import State, StoredTable

Result = TypeVar("Result")

TRIES = 5  # before an operation gives up; nearly every one that fails lost a race to another run

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


def until_committed(name: str, attempt: Callable[[], Result | None], advice: str) -> Result:
    """Call `attempt` until it returns a result, and return that.

    None means that it must be tried again: another run committed first, or what the attempt read has changed.

    Args:
        name: the table, or the topology, that is committed to.
        attempt: reads the state of the table, and commits once.
        advice: what to do if other runs always commit first.

    Raises:
        NotCommitted: other runs committed first, `TRIES` times.
    """
    for _ in range(TRIES):
        if (result := attempt()) is not None:
            return result
    raise NotCommitted(f"{name}: {TRIES} times another run committed first; {advice}")


def append(frame: DataFrame, table: StoredTable, position: Position) -> State | None:
    """Append rows, or none to commit a position alone. Return the new state; None: another run committed this step."""
    return _write(frame.write.mode("append"), table, position)


def replace_all(frame: DataFrame, table: StoredTable, position: Position) -> State | None:
    """Replace rows and columns. Return the new state; None: another run committed this step."""
    return _write(commented(frame).write.mode("overwrite").option("overwriteSchema", "true"), table, position)


def replace_where(frame: DataFrame, where: str, table: StoredTable, position: Position) -> State | None:
    """Replace the rows that meet a condition. Return the new state; None: another run committed this step."""
    return _write(frame.write.mode("overwrite").option("replaceWhere", where), table, position)


def replace_on(frame: DataFrame, on: str, table: StoredTable, position: Position) -> State | None:
    """Replace the rows `OLD` that meet a condition with a row `NEW` of the frame. Return as `replace_where` does.

    An engine with a Delta that does not know the option would replace all rows: ask `Engine.has_replace_on` first.
    """
    writer = frame.alias(NEW).write.mode("overwrite").option("replaceOn", on).option("targetAlias", OLD)
    return _write(writer, table, position)


def merge(session: SparkSession, statement: str, table: StoredTable, position: Position) -> State | None:
    """Run a MERGE. Return the new state; None: another run committed this step."""
    table.check_writable()
    try:
        session.conf.set(APP, position.app_id)
        session.conf.set(NUMBER, str(position.n))
        session.conf.set(METADATA, position.to_json())
        with races() as race:
            session.sql(statement).collect()
    finally:
        # If they stayed set, Delta would skip, or refuse, the next write of this session.
        for setting in (NUMBER, APP, METADATA):
            session.conf.unset(setting)
    return None if race else _read_back(table, position)


def close_epoch(no_rows: DataFrame, table: StoredTable, position: Position) -> bool:
    """Close the position's epoch: Delta refuses its writes that have started, and skips those that start later.

    Return whether the epoch is closed, by this run or another; False if a writer of the epoch committed first.
    """
    last = replace(position, n=CLOSED)
    _save(no_rows.write.mode("append"), table, last)
    return table.fence(last) == CLOSED


def close_other_epochs(no_rows: DataFrame, table: StoredTable, state: State) -> bool:
    """Close other open epochs before an epoch's first commit; return False if the caller must read the table again.

    Two runs may begin an epoch one after the other, a RESTORE may go back to before an epoch began, and the run that
    should have closed an epoch may have died. So before its first commit an epoch closes the other ones that are open.
    If there were any, or the table changed since it was read, this returns False, and the caller reads it again.
    """
    if state.position.n > 0:
        return True
    others = table.other_open_epochs()
    for other in others:
        close_epoch(no_rows, table, other)
    return not others and table.version() == state.version


def _write(writer: DataFrameWriter, table: StoredTable, position: Position) -> State | None:
    return _read_back(table, position) if _save(writer, table, position) else None


def _save(writer: DataFrameWriter, table: StoredTable, position: Position) -> bool:
    """Write with the fence; return False if another writer committed first."""
    table.check_writable()
    writer = writer.format("delta").option("txnAppId", position.app_id).option("txnVersion", position.n)
    with races() as race:
        writer.option("userMetadata", position.to_json()).save(table.path)
    return not race


def _read_back(table: StoredTable, position: Position) -> State | None:
    """Return the table's state if it has the position, else None: Delta does not report a write that it skipped."""
    state = table.state()
    return state if state is not None and state.position == position else None


@contextmanager
def races(*more: str) -> Iterator[list[PySparkException]]:
    """Collect the error of a commit that lost a race, instead of raising it; the list is empty if none did.

    `more` are error classes that mean a lost race here, besides `LOST_RACE`.
    """
    lost: list[PySparkException] = []
    try:
        yield lost
    except PySparkException as error:
        if not condition(error).startswith((*LOST_RACE, *more)):
            raise
        lost.append(error)
