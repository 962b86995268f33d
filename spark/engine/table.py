"""A stored table's birth: columns, properties, and the anchor from which its positions count."""

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
    "delta.enableChangeDataFeed": "true",  # what `changes` reads; free on tables that are only appended to
    "delta.enableDeletionVectors": "true",  # a MERGE marks rows instead of copying files
    "delta.checkpointInterval": "20",  # commits; every checkpoint costs a job, a long log costs every reader
    "delta.logRetentionDuration": "interval 90 days",  # positions live in the log's JSON files
    "delta.deletedFileRetentionDuration": "interval 7 days",  # how long a follower may lag
    positions.STORED_FORMAT: str(positions.FORMAT),
}


PAUSE = 0.1  # seconds between two looks for a table that another run is creating
TRIES = 5  # lost races before columns are added no more
WITHOUT_ZONE = "timestamp_ntz"  # a type that old readers of Delta do not know
APPEARS = 20  # looks: the commit that creates a table takes a tenth of the time

CREATED_BESIDE = (  # Delta's error classes for a table that another run creates at this moment
    "DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION",  # its log is begun, not yet committed
    "DELTA_CREATE_TABLE_WITH_DIFFERENT_PROPERTY",  # it was not there a moment ago: its anchor is another
    "DELTA_CREATE_TABLE_SCHEME_MISMATCH",  # and so are its columns
)

NO_TABLE = ("DELTA_TABLE_ONLY_OPERATION", "DELTA_MISSING_DELTA_TABLE")
"""Delta's error classes for a place without a version of a table."""

DEFINITION = "tidetable.definition"
"""The property that holds what the table was computed by: a landing's columns, a table's plan."""


def new_epoch() -> str:
    """Random, never counted up: RESTORE rolls properties back, and a counter would issue a used epoch again."""
    return uuid.uuid4().hex


def unpositioned(table: str, epoch: str, run: str) -> Position:
    """Computed from nothing yet."""
    return Position(table, epoch, n=0, run=run, cut={}, inputs={}, data_version=0)


def create(session: SparkSession, path: str, table: str, schema: StructType, run: str, definition: str) -> State:
    """Create the table if it is not there; of two at once, one creates it and both read the same epoch."""
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
            # An engine that was killed at this very place leaves a log without a commit. Spark takes it for a table,
            # and replaces it by a query alone. A version that the engine sees, and we do not, is somebody's table.
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
    """Whether the engine sees a version of a table."""
    try:
        return session.sql(f"DESCRIBE HISTORY delta.{quoted(path)} LIMIT 1").collect() != []
    except PySparkException as error:
        if condition(error) not in NO_TABLE:
            raise
        return False


def _appearing(path: str, table: str) -> State | None:
    """The table's state; where another run is just creating it, as soon as it has."""
    for _ in range(APPEARS):
        state = positions.read(path, table)
        if state is not None:
            return state
        time.sleep(PAUSE)
    return None


@contextmanager
def noted(session: SparkSession, position: Position) -> Iterator[None]:
    """What begins an epoch says so in the log, where later ones find it."""
    session.conf.set(METADATA, position.to_json())
    try:
        yield
    finally:
        session.conf.unset(METADATA)


def anchor(session: SparkSession, path: str, position: Position, definition: str) -> None:
    """Start the position's epoch: one commit that changes the anchor, which no concurrent writer survives."""
    with noted(session, position):
        properties = {DEFINITION: definition, positions.ANCHOR: position.to_json()}
        set_properties(session, path, properties | {positions.STORED_FORMAT: str(positions.FORMAT)})


def add_columns(session: SparkSession, path: str, kinds: Mapping[str, str]) -> None:
    """Add columns, by name and type, unless they are there; no two differ in case alone."""
    for _ in range(TRIES):
        # Also what a run added that died before it said so.
        there = {column.lower() for column in session.read.format("delta").load(path).columns}
        new = {column: kind for column, kind in kinds.items() if column.lower() not in there}
        if not new:
            return
        with races("DELTA_DUPLICATE_COLUMNS_FOUND"):  # another run adds some of them at this moment
            if any(
                WITHOUT_ZONE in kind for kind in new.values()
            ):  # Delta has it by this alone in a table that is there
                set_properties(session, path, {"delta.feature.timestampNtz": "supported"})
            columns = ", ".join(_column(column, kind) for column, kind in new.items())
            session.sql(f"ALTER TABLE delta.{quoted(path)} ADD COLUMNS ({columns})").collect()
    raise NotCommitted(f"{path}: {TRIES} times another run changed the columns first")


def set_properties(session: SparkSession, path: str, properties: Mapping[str, str]) -> None:
    """Change properties of the table, in a commit that changes no data."""
    session.sql(f"ALTER TABLE delta.{quoted(path)} SET TBLPROPERTIES ({_pairs(properties)})").collect()


def _column(name: str, kind: str) -> str:
    """A column as SQL text, with what it is for if it is one of ours."""
    text = comment(name)
    return f"{quoted(name)} {kind}" if text is None else f"{quoted(name)} {kind} COMMENT {literal(text)}"


def _ddl(kind: DataType) -> str:
    """A type as SQL text. Its own `simpleString` does not quote the fields of a struct."""
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
