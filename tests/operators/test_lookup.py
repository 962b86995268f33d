"""Streams that look rows up: what Spark plans for it. What they emit is held to laws, to Kafka's, and to the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from spark.operators.algebra import emit
from spark.topology import Consumed, StreamsBuilder
from tests.operators.drawn import DrawnSpan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark.topology import Topology
    from tests.operators.drawn import Draw

HEADER = (
    "k bigint | f string | _timestamp timestamp | _topic string | _partition int | _offset bigint "
    "| _deleted boolean | _error string | _batch bigint\n"
)
CLICKS = (
    HEADER
    + """
    1 | x | 2026-01-01 00:00:00 | clicks | 0 | 0 | false | null | 1
    2 | y | 2026-01-01 00:00:01 | clicks | 0 | 1 | false | null | 1
"""
)


def topology() -> Topology:
    """Clicks with two rows of global tables, the second found by the first."""
    builder = StreamsBuilder("t")
    clicks = builder.stream("clicks", Consumed.json(key="k bigint", value="f string"))
    products = builder.global_table("products", Consumed.json(key="f string", value="maker string"))
    makers = builder.global_table("makers", Consumed.json(key="maker string", value="country string"))
    made = clicks.join(products, on="f", select=["left.f", "right.maker"])
    made.left_join(makers, on="maker", select=["left.f", "right.country"]).materialize("countries")
    return builder.build()


def plan_of(session: SparkSession, frame: DataFrame) -> str:
    """The physical plan, as Spark prints it."""
    frame.createOrReplaceTempView("__explained")
    (row,) = session.sql("EXPLAIN SELECT * FROM __explained").collect()
    return str(row[0])


def test_a_chain_of_global_joins_moves_no_record_of_the_stream(session: SparkSession, draw: Draw) -> None:
    now = draw.now(
        **{
            "_landing/clicks": CLICKS,
            "products": "f string | maker string\nx | ada",
            "makers": "maker string | country string\nada | UK",
        }
    )
    span = DrawnSpan(now, now.frames)
    found = emit(topology().table("countries").plan, span).drop("_reached")
    assert [(row["k"], row["f"], row["country"]) for row in found.collect()] == [(1, "x", "UK")]
    plan = plan_of(session, found)
    assert plan.count("BroadcastHashJoin") == 2
    assert plan.count("Exchange") == plan.count("BroadcastExchange") == 2
    # The order of time is a window for each partition, where another table follows the stream.
    assert "Window" in plan_of(session, emit(topology().table("countries").plan, span).select(F.max("_reached")))
