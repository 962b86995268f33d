"""The definition of a landing: its columns, event time, key and kind, compared with the topic's declaration."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from spark.engine.errors import PlanChanged
from spark.engine.log import table
from spark.engine.log.commit import races
from spark.engine.log.position import DEFINITION
from spark.topology.formats import HEADERS
from spark.topology.sql.widening import WIDENINGS, is_wider, is_wider_key

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark.engine.log.stored_table import State, StoredTable
    from spark.topology.consumed import Consumed
    from spark.topology.topology import Source

TIME, KEY, KIND, FORMAT = (
    "_timestamp",
    "_key",
    "_records",
    "_format",
)  # keys that no user's column has


def _columns(consumed: Consumed) -> dict[str, str]:
    return {column.name: str(column.type) for column in consumed.columns}


def landing_definition(source: Source) -> dict[str, str]:
    """Return the definition of a landing: its columns, type by name, and its event time, key, kind and format."""
    consumed, stream = source.consumed, source.kind == "stream"
    time = f"of {consumed.timestamp}" if consumed.timestamp is not None else "of Kafka's record"
    kind = "of a stream, whose keys may be null" if stream else "of a table, whose keys are whole"
    key = ", ".join(column.name for column in consumed.key)
    one = consumed.key_format == consumed.format
    form = f"in {consumed.format}" if one else f"in {consumed.key_format} (key) and {consumed.format} (value)"
    form += "" if consumed.envelope is None else f", {consumed.envelope}"
    return _columns(consumed) | {TIME: time, KEY: key, KIND: kind, FORMAT: form}


def check_landing(name: str, state: State, source: Source) -> None:
    """Check that a declaration gives landed columns the same or wider types, and records the same event time and key.

    A landed stream must not become a table: records without a whole key would be counted, but be no rows. A landed
    table may become a stream: such records are in quarantine, and `quarantine replay` decodes them again.

    Raises:
        PlanChanged: the declaration differs; the message says where.
    """
    stored, declared = json.loads(state.properties[DEFINITION]), landing_definition(source)
    changed = {column: (stored[column], kind) for column, kind in declared.items() if stored.get(column, kind) != kind}
    other_records = {what: changed.pop(what) for what in (TIME, KEY, KIND, FORMAT) if what in changed}
    if source.kind == "stream":
        other_records.pop(KIND, None)
    key = {column.name for column in source.consumed.key}
    refused = {
        column: (old, new)
        for column, (old, new) in changed.items()
        if not (is_wider_key(new, old) if column in key else is_wider(new, old))
    }
    if refused:
        of_key = "; of a key only an integer to a wider one, and a decimal to one with the same scale"
        raise PlanChanged(
            f"{name}: landed and declared types differ: "
            + ", ".join(f"{column} is {old}, declared {new}" for column, (old, new) in refused.items())
            + ". Declare a column of another name for the new type, or land the topic again under another topology "
            f"name. What can be widened in place: {WIDENINGS}{of_key if key & refused.keys() else ''}"
        )
    if other_records:
        raise PlanChanged(
            f"{name}: landed and declared records differ:\n"
            + "\n".join(f"- {what[1:]} {old}\n+ {what[1:]} {new}" for what, (old, new) in other_records.items())
            + "\nThe rows so far have the one, and those to come would have the other. Declare it as it was"
            + (" (`to_table()` makes a table of a stream)" if KIND in other_records else "")
            + ", land the topic under another topology name, or move the landing's folder away, run a tick, which "
            "lands what the topic still holds, and `tidetable rebuild --downstream` the tables that read it"
        )


def evolve_landing(session: SparkSession, landing: StoredTable, state: State, source: Source, run: str) -> bool:
    """Add the columns that the declaration gained, null in older records, and widen those that it gave a wider type.

    All rows are written again if a column is widened, in a commit of its own. Return False if another run committed
    first: the caller must read the state again.
    """
    stored, declared = json.loads(state.properties[DEFINITION]), landing_definition(source)
    if stored | declared == stored:
        return True
    columns = _columns(source.consumed)
    wider = {column: kind for column, kind in columns.items() if stored.get(column, kind) != kind}
    if wider and not table.widen_columns(session, landing, state, wider, run):
        return False
    raw = {"_headers": HEADERS} if source.consumed.reads_headers else {}
    table.add_columns(session, landing, columns | raw)
    with races():
        table.set_properties(session, landing, {DEFINITION: json.dumps(stored | declared)})
    return not wider  # the commit took a number
