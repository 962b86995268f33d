"""Comments on the columns that Tidetable adds to a stored table: `DESCRIBE TABLE` shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PARTIAL = "_partial"  # and a number
COMMENTS = {
    "_timestamp": "event time of the row; in a join, the newer side's",
    "_topic": "topic of the record that the row is of; in a join, the left side's",
    "_partition": "partition of that record",
    "_offset": "offset of that record",
    "_deleted": "true: the record has no value",
    "_error": "why the record is in quarantine; null: it is not",
    "_key": "key bytes of a record in quarantine",
    "_value": "value bytes of a record in quarantine",
    "_headers": "headers of a record in quarantine",
    "_unavailable": "columns that the change leaves out; in a table: those whose value is unknown, and null",
    "_old_key": "key that the row had before this change of its key",
    "_new_key": "key that the row has after this change of its key",
    "_change": "identifies a change of a key, which two records tell; internal",
    "_truncated": "true: the record empties the table",
    "_batch": "number of the commit of the landing, or of the stored stream, that the record came with",
    "_redecoded": "how often the landing was decoded again when this record left quarantine; null: it never was in it",
    "_ordinal": "tells apart several rows that one record made",
    "_reached": "stream time with the record inside its commit, in microseconds since 1970",
    "_left": "the left record of the pair: topic, partition, offset and ordinal; null where it stayed alone",
    "_right": "the right record of the pair: topic, partition, offset and ordinal; null where it stayed alone",
    "_rows": "how many rows the group has; internal, kept so that a step need not read the group again",
}


def comment(column: str) -> str | None:
    """Return the comment on a column of ours; None for a column of the user's."""
    if column.startswith(PARTIAL) and column.removeprefix(PARTIAL).isdigit():
        return "what an aggregate knows of the group; internal, kept so that a step need not read the group again"
    return COMMENTS.get(column)


def commented(frame: DataFrame) -> DataFrame:
    """Return the same frame, with comments on our columns; a table that is created from it has them."""
    for column in frame.columns:
        if (text := comment(column)) is not None:
            frame = frame.withMetadata(column, {"comment": text})
    return frame
