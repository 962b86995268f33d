"""Create a stored table: its columns, its properties, and the anchor of its first epoch; and change them later."""

from __future__ import annotations

import time
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql.types import ArrayType, MapType, StructType

from spark.engine import position as positions
from spark.engine.comments import comment
from spark.engine.commit import METADATA, races
from spark.engine.errors import LakesDiffer, NotCommitted, PositionLost, condition
from spark.engine.merge import literal
from spark.engine.position import Position, State
from spark.topology.sql.ddl import quoted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession
    from pyspark.sql.types import DataType

PROPERTIES = {
    "delta.enableChangeDataFeed": "true",  # `changes` reads it; costs nothing on tables that are only appended to
    "delta.enableDeletionVectors": "true",  # a MERGE marks rows instead of copying files
    "delta.checkpointInterval": "20",  # commits; a checkpoint costs a job, a longer log slows every reader
    "delta.logRetentionDuration": "interval 90 days",  # positions live in the log's JSON files
    "delta.deletedFileRetentionDuration": "interval 7 days",  # how long a reader of changes may lag
    positions.STORED_FORMAT: str(positions.FORMAT),
}


PAUSE = 0.1  # seconds between two reads of a table that another run is creating
TRIES = 5  # lost races before adding columns gives up
WITHOUT_ZONE = "timestamp_ntz"  # a type that old readers of Delta do not know
APPEARS = 20  # reads, two seconds in all: ten times what the commit that creates a table takes

CREATED_BESIDE = (  # Delta's error classes for a table that another run creates at this moment
    "DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION",  # it has begun the log, and not committed
    "DELTA_CREATE_TABLE_WITH_DIFFERENT_PROPERTY",  # it has committed since: its anchor differs
    "DELTA_CREATE_TABLE_SCHEME_MISMATCH",  # and so do its columns
)

NO_TABLE = ("DELTA_TABLE_ONLY_OPERATION", "DELTA_MISSING_DELTA_TABLE")
"""Delta's error classes for a path without a version of a table."""

DEFINITION = "tidetable.definition"
"""The property that holds the definition that the table was computed by: a landing's columns, a table's plan."""


def new_epoch() -> str:
    """Return a random epoch. RESTORE rolls properties back, so a counter would issue a used epoch again."""
    return uuid.uuid4().hex


def unpositioned(table: str, epoch: str, run: str) -> Position:
    """Return the position of a table that no step has computed."""
    return Position(table, epoch, n=0, run=run, cut={}, inputs={}, data_version=0)


def create(session: SparkSession, path: str, table: str, schema: StructType, run: str, definition: str) -> State:
    """Create the table if it does not exist. Of two concurrent runs, one creates it, and both read the same epoch.

    Raises:
        LakesDiffer: the engine sees a table at the path, and this process does not.
        PositionLost: the table was removed while it was created.
    """
    anchor = unpositioned(table, new_epoch(), run)
    properties = PROPERTIES | {DEFINITION: definition, positions.ANCHOR: anchor.to_json()}
    types = {quoted(field.name): _ddl(field.dataType) for field in schema}
    columns = ", ".join(_column(field.name, _ddl(field.dataType)) for field in schema)
    made_with = f"USING delta TBLPROPERTIES ({_pairs(properties)})"
    with noted(session, anchor):
        with races(*CREATED_BESIDE):
            session.sql(f"CREATE TABLE IF NOT EXISTS delta.{quoted(path)} ({columns}) {made_with}").collect()
        state = _appearing(path, table)
        if state is None:
            # An engine that was killed here leaves a log without a commit. Spark takes it for a table, and only CREATE
            # OR REPLACE ... AS SELECT replaces it. A version that only the engine sees is somebody's table.
            seen = _has_versions(session, path)
            if not seen:
                nothing = ", ".join(f"CAST(NULL AS {kind}) AS {name}" for name, kind in types.items())
                with races():
                    session.sql(
                        f"CREATE OR REPLACE TABLE delta.{quoted(path)} {made_with} AS SELECT {nothing} WHERE false"
                    ).collect()
            state = positions.read(path, table)
            if seen and state is None:
                raise LakesDiffer(
                    f"{path}: the engine has a table {table} there, and this process sees none. They see different "
                    f"places under this name: is the lake's folder, or its object store, the same for both? "
                    f"Nothing was changed"
                )
    if state is None:
        raise PositionLost(f"{path} was created and is gone again; is something else cleaning the lake?")
    return state


def _has_versions(session: SparkSession, path: str) -> bool:
    """Return whether the engine sees a version of a table at the path."""
    try:
        return session.sql(f"DESCRIBE HISTORY delta.{quoted(path)} LIMIT 1").collect() != []
    except PySparkException as error:
        if condition(error) not in NO_TABLE:
            raise
        return False


def _appearing(path: str, table: str) -> State | None:
    """Return the table's state, after waiting for a run that is creating it; None if it does not appear."""
    for _ in range(APPEARS):
        state = positions.read(path, table)
        if state is not None:
            return state
        time.sleep(PAUSE)
    return None


@contextmanager
def noted(session: SparkSession, position: Position) -> Iterator[None]:
    """Write the position into commits inside the block: the log has it after another epoch replaces the anchor."""
    session.conf.set(METADATA, position.to_json())
    try:
        yield
    finally:
        session.conf.unset(METADATA)


def anchor(session: SparkSession, path: str, position: Position, definition: str) -> None:
    """Begin the position's epoch by one commit that changes the anchor, so that Delta refuses concurrent writers."""
    with noted(session, position):
        properties = {DEFINITION: definition, positions.ANCHOR: position.to_json()}
        set_properties(session, path, properties | {positions.STORED_FORMAT: str(positions.FORMAT)})


def add_columns(session: SparkSession, path: str, kinds: Mapping[str, str]) -> None:
    """Add columns, type by name, that the table does not have. Names that differ in case alone are the same column.

    Raises:
        NotCommitted: other runs changed the columns first, `TRIES` times.
    """
    for _ in range(TRIES):
        # A run may have added columns and died before it recorded its definition.
        there = {column.lower() for column in session.read.format("delta").load(path).columns}
        new = {column: kind for column, kind in kinds.items() if column.lower() not in there}
        if not new:
            return
        with races("DELTA_DUPLICATE_COLUMNS_FOUND"):  # another run adds some of them at this moment
            if any(
                WITHOUT_ZONE in kind for kind in new.values()
            ):  # Delta enables the type in an existing table only by this
                set_properties(session, path, {"delta.feature.timestampNtz": "supported"})
            columns = ", ".join(_column(column, kind) for column, kind in new.items())
            session.sql(f"ALTER TABLE delta.{quoted(path)} ADD COLUMNS ({columns})").collect()
    raise NotCommitted(f"{path}: {TRIES} times another run changed the columns first")


def set_properties(session: SparkSession, path: str, properties: Mapping[str, str]) -> None:
    """Set properties of the table, in a commit that changes no data."""
    session.sql(f"ALTER TABLE delta.{quoted(path)} SET TBLPROPERTIES ({_pairs(properties)})").collect()


def _column(name: str, kind: str) -> str:
    """Return a column as SQL text, with a comment if it is one of ours."""
    text = comment(name)
    return f"{quoted(name)} {kind}" if text is None else f"{quoted(name)} {kind} COMMENT {literal(text)}"


def _ddl(kind: DataType) -> str:
    """Return a type as SQL text. Spark's `simpleString` does not quote the fields of a struct."""
    match kind:
        case StructType():
            return f"struct<{', '.join(f'{quoted(field.name)}: {_ddl(field.dataType)}' for field in kind)}>"
        case ArrayType():
            return f"array<{_ddl(kind.elementType)}>"
        case MapType():
            return f"map<{_ddl(kind.keyType)}, {_ddl(kind.valueType)}>"
        case _:
            return kind.simpleString()


def _pairs(properties: Mapping[str, str]) -> str:
    return ", ".join(f"{literal(name)} = {literal(value)}" for name, value in properties.items())
