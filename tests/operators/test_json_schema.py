"""JSON behind the framing of a registry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark.serdes.json_schema import decode
from spark.serdes.schemas import NO_SCHEMAS
from spark.topology.errors import Place
from spark.topology.sql.ddl import parse_columns

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_framing_is_removed_and_asked_for(session: SparkSession) -> None:
    header = b"\0\0\0\0\x07"
    raws = [
        header + b'{"a": 1, "b": "x"}',
        None,
        header + b"null",
        b'{"a": 1}',
        header,
        header + b'{"a": "x"}',
        b"\1" * 9,
    ]
    frame = session.createDataFrame(list(enumerate(raws)), "_n int, _value binary")
    found = decode(frame, "value", parse_columns("a int, b string", Place("test", None)), NO_SCHEMAS)
    assert found.columns == ["_n", "_value", "_value_row", "_value_error"]
    rows = sorted(found.collect())
    assert [row["_value"] and bytes(row["_value"]) for row in rows] == raws
    assert (rows[0]["_value_row"]["a"], rows[0]["_value_row"]["b"]) == (1, "x")
    assert [row["_value_error"] and row["_value_error"][:30] for row in rows] == [
        *[None] * 3,
        *["the value has no framing of a "] * 2,
        "the value does not decode as J",
        "the value has no framing of a ",
    ]
    assert [row["_value_row"] for row in rows[1:3]] == [None, None]
