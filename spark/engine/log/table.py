"""Create a stored table: its columns, its properties, and the anchor of its first epoch; and change them later."""

from __future__ import annotations

import json
import time
import uuid
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from spark.engine.errors import LakesDiffer, PositionLost, condition
from spark.engine.log import commit, delta_log
from spark.engine.log.comments import comment
from spark.engine.log.commit import METADATA, races, until_committed
from spark.engine.log.merge import literal
from spark.engine.log.position import ANCHOR, DEFINITION, FORMAT, STORED_FORMAT, Position
from spark.operators.algebra import OURS, col
from spark.topology.errors import Place
from spark.topology.sql.ddl import parse_type, quoted
from spark.topology.sql.tokens import lex

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession
    from pyspark.sql.types import DataType

    from spark.engine.log.stored_table import State, StoredTable

PROPERTIES = {
    "delta.enableChangeDataFeed": "true",  # `changes` reads it; costs nothing on tables that are only appended to
    "delta.enableDeletionVectors": "true",  # a MERGE marks rows instead of copying files
    "delta.checkpointInterval": "20",  # commits; a checkpoint costs a job, a longer log slows every reader
    "delta.logRetentionDuration": "interval 90 days",  # positions live in the log's JSON files
    "delta.deletedFileRetentionDuration": "interval 7 days",  # how long a reader of changes may lag
    STORED_FORMAT: str(FORMAT),
}


PAUSE = 0.1  # seconds between two reads of a table that another run is creating
WITHOUT_ZONE = "timestamp_ntz"  # a type that old readers of Delta do not know
APPEARS = 20  # reads, two seconds in all: ten times what the commit that creates a table takes

CREATED_BY_ANOTHER = (  # Delta's error classes for a table that another run creates at this moment
    "DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION",  # it has begun the log, and not committed
    "DELTA_CREATE_TABLE_WITH_DIFFERENT_PROPERTY",  # it has committed since: its anchor differs
    "DELTA_CREATE_TABLE_SCHEME_MISMATCH",  # and so do its columns
)

STATISTICS = "delta.dataSkippingStatsColumns"
"""The property that names the columns whose least and greatest values Delta keeps for every file."""
INDEXED = 32  # columns that Delta keeps statistics of by default, the first ones; the fields of a struct count
SKIPPING = (*OURS, "_batch", "_ordinal", "_redecoded")  # our columns by which the files of a span are found
COMPARED = (  # types that Delta keeps statistics of
    *(ByteType, ShortType, IntegerType, LongType, FloatType, DoubleType, DecimalType),
    *(StringType, DateType, TimestampType, TimestampNTZType),
)

NO_TABLE = ("DELTA_TABLE_ONLY_OPERATION", "DELTA_MISSING_DELTA_TABLE")
"""Delta's error classes for a path without a version of a table."""


def new_epoch() -> str:
    """Return a random epoch. RESTORE rolls properties back, so a counter would issue a used epoch again."""
    return uuid.uuid4().hex


def unpositioned(table: str, epoch: str, run: str) -> Position:
    """Return the position of a table that no step has computed."""
    return Position(table, epoch, n=0, run=run, cut={}, inputs={}, data_version=0)


def create(
    session: SparkSession, table: StoredTable, schema: StructType, run: str, definition: str, key: Sequence[str] = ()
) -> State:
    """Create the table if it does not exist. Of two concurrent runs, one creates it, and both read the same epoch.

    `key` are the columns that its rows are looked up by.

    Raises:
        LakesDiffer: the engine sees a table at the path, and this process does not.
        PositionLost: the table was removed while it was created.
    """
    table.check_writable()
    first = unpositioned(table.name, new_epoch(), run)
    properties = PROPERTIES | {DEFINITION: definition, ANCHOR: first.to_json()} | statistics(schema, key)
    types = {quoted(field.name): ddl(field.dataType) for field in schema}
    columns = ", ".join(_column(field.name, ddl(field.dataType)) for field in schema)
    made_with = f"USING delta TBLPROPERTIES ({_pairs(properties)})"
    at = f"delta.{quoted(table.path)}"
    with position_in_commits(session, first):
        with races(*CREATED_BY_ANOTHER):
            session.sql(f"CREATE TABLE IF NOT EXISTS {at} ({columns}) {made_with}").collect()
        state = _appearing(table)
        if state is None:
            # An engine that was killed here leaves a log without a commit. Spark takes it for a table, and only CREATE
            # OR REPLACE ... AS SELECT replaces it. A version that only the engine sees is somebody's table.
            engine_sees_it = _has_versions(session, table)
            if not engine_sees_it:
                nulls = ", ".join(f"CAST(NULL AS {kind}) AS {name}" for name, kind in types.items())
                with races():
                    session.sql(f"CREATE OR REPLACE TABLE {at} {made_with} AS SELECT {nulls} WHERE false").collect()
            state = table.state()
            if engine_sees_it and state is None:
                raise LakesDiffer(
                    f"{table.path}: the engine has a table {table.name} there, and this process sees none. They see "
                    f"different places under this name: is the lake's folder, or its object store, the same for both? "
                    f"Nothing was changed"
                )
    if state is None:
        raise PositionLost(f"{table.path} was created and is gone again; is something else cleaning the lake?")
    return state


def _has_versions(session: SparkSession, table: StoredTable) -> bool:
    """Return whether the engine sees a version of the table."""
    try:
        return session.sql(f"DESCRIBE HISTORY delta.{quoted(table.path)} LIMIT 1").collect() != []
    except PySparkException as error:
        if condition(error) not in NO_TABLE:
            raise
        return False


def _appearing(table: StoredTable) -> State | None:
    """Return the table's state, after waiting for a run that is creating it; None if it does not appear."""
    for _ in range(APPEARS):
        state = table.state()
        if state is not None:
            return state
        time.sleep(PAUSE)
    return None


def statistics(schema: StructType, key: Sequence[str]) -> dict[str, str]:
    """Return the property by which Delta keeps statistics of the key and of our columns; none if it does by default.

    The files of a span are found by our columns. They are the last ones of a table, so a wide table has no statistics
    of them by default. The other columns that have some are the first ones, as by default.
    """
    if _width(schema) <= INDEXED:
        return {}
    columns = [field.name for field in schema if isinstance(field.dataType, COMPARED)]
    wanted = [name for name in columns if name in key or name in SKIPPING]
    others = [name for name in columns if name not in wanted]
    wanted += others[: max(0, INDEXED - len(wanted))]
    return {STATISTICS: ",".join(map(quoted, wanted))}


def keep_statistics(session: SparkSession, table: StoredTable, state: State, key: Sequence[str] = ()) -> None:
    """Add what `statistics` are lacking to a table that an earlier version made, or that was replaced since.

    Files that are there do not gain statistics, until compaction writes them again.
    """
    wanted = statistics(StructType.fromJson(json.loads(table.schema())), key)
    if not wanted:
        return
    names, present = _names(wanted[STATISTICS].split(",")), _names(_indexed(state.properties))
    needed = names & (_names(key) | set(SKIPPING))
    if present == names or needed < present:  # a user may have chosen the other columns
        return
    with races():
        set_properties(session, table, wanted)


def keep_format(session: SparkSession, table: StoredTable, state: State) -> None:
    """Raise the format of a table that an earlier version made: the positions of later commits are in this one."""
    if int(state.properties.get(STORED_FORMAT, 0)) < FORMAT:
        with races():
            set_properties(session, table, {STORED_FORMAT: str(FORMAT)})


def narrow_statistics(session: SparkSession, table: StoredTable, schema: StructType) -> None:
    """Drop columns from a table's statistics that are not in `schema`: Delta would refuse to replace its columns."""
    with delta_log.reading(table.path) as delta:  # this attempt may have set the property
        present, names = _indexed(delta.metadata().configuration), _names(schema.names)
    kept = [name for name in present if _names([name.partition(".")[0]]) <= names]
    if kept != present:
        with races():  # an empty list is not a value of the property
            set_properties(session, table, {STATISTICS: ",".join(kept or [quoted(schema.names[0])])})


def _indexed(properties: Mapping[str, str]) -> list[str]:
    return [name for name in properties.get(STATISTICS, "").split(",") if name]


def _names(columns: Iterable[str]) -> set[str]:
    """Return names of columns that can be compared: Delta takes them with and without quotes, in any case."""
    return {name.strip().strip("`").lower() for name in columns}


def _width(kind: DataType) -> int:
    """Return the number of columns of a type, as Delta counts them for statistics."""
    return sum(_width(field.dataType) for field in kind) if isinstance(kind, StructType) else 1


@contextmanager
def position_in_commits(session: SparkSession, position: Position) -> Iterator[None]:
    """Write the position into commits inside the block: the log has it after another epoch replaces the anchor."""
    session.conf.set(METADATA, position.to_json())
    try:
        yield
    finally:
        session.conf.unset(METADATA)


def anchor(session: SparkSession, table: StoredTable, position: Position, definition: str) -> None:
    """Begin the position's epoch by one commit that changes the anchor, so that Delta refuses concurrent writers."""
    with position_in_commits(session, position):
        properties = {DEFINITION: definition, ANCHOR: position.to_json()}
        set_properties(session, table, properties | {STORED_FORMAT: str(FORMAT)})


def add_columns(session: SparkSession, table: StoredTable, kinds: Mapping[str, str]) -> None:
    """Add columns, type by name, that the table does not have. Names that differ in case alone are the same column.

    Raises:
        NotCommitted: other runs changed the columns first, several times.
    """
    table.check_writable()

    def add() -> bool | None:
        # A run may have added columns and died before it recorded its definition.
        present = {column.lower() for column in session.read.format("delta").load(table.path).columns}
        missing = {column: kind for column, kind in kinds.items() if column.lower() not in present}
        if not missing:
            return True
        with races("DELTA_DUPLICATE_COLUMNS_FOUND"):  # another run adds some of them at this moment
            if any(WITHOUT_ZONE in kind for kind in missing.values()):
                # Delta enables the type in an existing table only by this.
                set_properties(session, table, {"delta.feature.timestampNtz": "supported"})
            columns = ", ".join(_column(column, kind) for column, kind in missing.items())
            session.sql(f"ALTER TABLE delta.{quoted(table.path)} ADD COLUMNS ({columns})").collect()
        return None  # read the columns again

    until_committed(table.name, add, "stop what changes the columns of the table, and run this again")


def widen_columns(session: SparkSession, table: StoredTable, state: State, kinds: Mapping[str, str], run: str) -> bool:
    """Give columns wider types, type by name, in one commit that writes all rows again and changes no value.

    Its position is that of the state, with the next number, so a concurrent writer of the table loses the race. Return
    False if another run committed first. If the table has the types already, this commits nothing.

    Delta's own type widening is a table feature, which deltalake refuses to read.
    """
    rows = session.read.format("delta").load(table.path)
    present = dict(rows.dtypes)
    wider = {name: kind for name, kind in kinds.items() if present[name] != kind}
    if not wider:
        return True
    if any(WITHOUT_ZONE in kind for kind in wider.values()):
        with races() as race:
            set_properties(session, table, {"delta.feature.timestampNtz": "supported"})
        if race:
            return False
    rows = rows.withColumns({name: col(name).cast(kind) for name, kind in wider.items()})
    following = state.position.next(run, state.data_version)
    number = following.n if state.position.n > 0 else 0  # a table without rows stays one
    position = replace(following, n=number, widened=True)
    return commit.replace_all(rows, table, position) is not None


def set_properties(session: SparkSession, table: StoredTable, properties: Mapping[str, str]) -> None:
    """Set properties of the table, in a commit that changes no data."""
    table.check_writable()
    session.sql(f"ALTER TABLE delta.{quoted(table.path)} SET TBLPROPERTIES ({_pairs(properties)})").collect()


def _column(name: str, kind: str) -> str:
    """Return a column as SQL text, with a comment if it is one of ours."""
    text = comment(name)
    return f"{quoted(name)} {kind}" if text is None else f"{quoted(name)} {kind} COMMENT {literal(text)}"


def ddl(kind: DataType) -> str:
    """Return a type as SQL text. Spark's `simpleString` does not quote the fields of a struct."""
    match kind:
        case StructType():
            return f"struct<{', '.join(f'{quoted(field.name)}: {ddl(field.dataType)}' for field in kind)}>"
        case ArrayType():
            return f"array<{ddl(kind.elementType)}>"
        case MapType():
            return f"map<{ddl(kind.keyType)}, {ddl(kind.valueType)}>"
        case _:
            return kind.simpleString()


def stored_types(schema: str) -> dict[str, str]:
    """Return the types of a schema as Delta writes it, by column, as topologies write types."""
    place = Place("stored columns", None)
    return {
        field.name: parse_type(lex(ddl(field.dataType), place), 0)[0]
        for field in StructType.fromJson(json.loads(schema))
    }


def _pairs(properties: Mapping[str, str]) -> str:
    return ", ".join(f"{literal(name)} = {literal(value)}" for name, value in properties.items())
