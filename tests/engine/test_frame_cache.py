"""A frame is cached in the engine, or, if it has few rows, in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from spark.engine.inputs.frame_cache import FEW, FEW_BYTES, frame_cache

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VALUES = """
    SELECT *, from_json(p_json, 'at timestamp, `in` array<struct<x int>>') AS p FROM VALUES
    (1Y, 2S, 3, 4L, float('NaN'), -0.0D, 1.50BD, 'ä', X'00ff', true, DATE'0001-01-01',
     TIMESTAMP'1500-01-01 00:00:00.000001', TIMESTAMP_NTZ'9999-12-31 23:59:59.999999', array(1, null),
     map('b', TIMESTAMP'2026-01-01 00:00:00', 'a', null), '{"at": "2026-01-01T00:00:00Z", "in": [{"x": 1}, null]}'),
    (null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null)
    AS t(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p_json)
"""
NESTED = "from_json('[]', 'array<struct<of: array<string>, by: map<string, array<string>>>>')"


def test_few_rows_are_the_same_after_they_were_received_and_sent(session: SparkSession) -> None:
    values = session.sql(VALUES)
    with frame_cache(session) as cache:
        found = cache.cache(values, few=True)
        assert cache.frames == {}
        assert found.dtypes == values.dtypes
        text = (
            "to_json(struct(*), map('ignoreNullFields', 'false'))",
            "xxhash64(e, f, g, h, i, k, l, m, n, p)",
            "cast(l AS string)",
        )
        assert found.selectExpr(*text).collect() == values.selectExpr(*text).collect()
        assert cache.cache(found) is found
        assert cache.cache(found, few=True) is found


@pytest.mark.parametrize(
    ("text", "received"),
    [
        (f"SELECT id FROM range({FEW})", True),
        (f"SELECT id FROM range({FEW + 1})", False),
        (f"SELECT repeat('x', {FEW_BYTES}) AS much", False),
        ("SELECT id FROM range(0)", True),
        # pyarrow's `nbytes` ended the process here, every other time.
        (f"SELECT {NESTED} AS some FROM range(0)", True),
        (f"SELECT {NESTED} AS some FROM range(2)", True),
        ("SELECT make_dt_interval(id) AS kind FROM range(1)", False),
        # pyspark could not send the second row.
        ("SELECT IF(id = 0, named_struct('at', now(), 'kind', 'x'), null) AS one FROM range(2)", False),
        ("SELECT IF(id = 0, array(now()), null) AS some FROM range(2)", False),
    ],
)
def test_many_rows_and_other_types_are_cached_in_the_engine(session: SparkSession, text: str, received: bool) -> None:
    frame = session.sql(text)
    with frame_cache(session) as cache:
        found = cache.cache(frame, few=True)
        assert len(cache.sent) == received
        assert len(cache.frames) == (not received)
        assert found.count() == frame.count()
        if not received:
            assert session.catalog.isCached("__cached0")
    assert not received or cache.frames == {}
