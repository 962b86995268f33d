"""What a span makes of a stored table: the output to commit, and the clock after it.

Steps, rebuilds and replays compute rows only here. An audit also runs a plan as a query over one snapshot.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from pyspark.sql import functions as F

from spark.engine.inputs.span import InitialSpan
from spark.engine.inputs.stream_time import Arrived, Clock, advance_clock, count_dropped
from spark.operators.algebra import ALL, IDENTITY, STREAMED, cols, emit, is_idle, present, rows, touched
from spark.operators.order import stream_time

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from spark.engine.inputs.span import IncrementalSpan
    from spark.operators.algebra import Span
    from spark.topology.nodes import Node
    from spark.topology.topology import Table, Topology


@dataclass(frozen=True)
class Output:
    """What a span adds to a stored table; the frame is None if the span adds nothing.

    "append": the frame has the stored columns: records of a stream, or, from empty inputs, all rows of a table.
    "merge": the frame has one row per touched key: the stored columns, and `_present`, false if the key has no row.
    """

    mode: Literal["append", "merge"]
    frame: DataFrame | None

    def applied(self, own: DataFrame, plan: Node) -> DataFrame:
        """Return all rows of the table after the span, with the columns of `own`, its rows before the span."""
        if self.frame is None:
            return own
        if self.mode == "append":
            return own.unionByName(self.frame)
        return with_touched(own, self.frame, plan.key)


@dataclass(frozen=True)
class Advance:
    """The output of a span, the table's clock after it, and for a table that uses stream time what arrived."""

    output: Output
    clock: Clock
    span: IncrementalSpan | InitialSpan
    """The span with its stream times."""
    arrived: Arrived | None = None


def advance(topology: Topology, target: Table, span: IncrementalSpan | InitialSpan, was: Clock, n: int) -> Advance:
    """Return what a span makes of a table whose clock was `was` at its beginning; `n` is the number of the commit."""
    plan, clock, arrived = target.plan, was, None
    if plan.uses_stream_time:
        clock, arrived = advance_clock(plan, span, was)
        span = span.at(was.time, clock.time, was.seen)
    output = output_of(target, span, n)
    if output.frame is not None and topology.drops_records(target):
        clock = replace(was, dropped=count_dropped(plan, span, was.dropped))
    return Advance(output, clock, span, arrived)


def output_of(target: Table, span: Span, n: int) -> Output:
    """Return what a span, which has its stream times, adds to a table; `n` is the number of the commit."""
    plan = target.plan
    if plan.is_stream:
        return Output("append", None if is_idle(plan, span) else stored_records(target, span, n))
    if not isinstance(span, InitialSpan):
        return Output("merge", touched(plan, span))
    if not plan.uses_stream_time:  # every key is touched, so the rows are computed as a query, without looking for keys
        return Output("append", rows(plan, ALL, span.after))
    changed = touched(plan, span)
    assert changed is not None, "every input changed in the first span"
    return Output("append", present(changed))


def stored_records(target: Table, span: Span, n: int) -> DataFrame:
    """Return the records that commit `n` adds to a stored stream: the plan's columns, `STREAMED`, and `_reached`.

    A stream join has `_left` and `_right` too. `_reached`, the stream time at a record in microseconds since 1970, is
    null unless another table reads the stream.
    """
    plan = target.plan
    reached = stream_time(span) if target.followed else F.lit(None).cast("bigint")
    placed = emit(plan, span).withColumns({"_reached": reached, "_batch": F.lit(n).cast("bigint")})
    names = (*(column.name for column in plan.columns), *STREAMED, "_reached", *plan.own_columns)
    return placed.select(*cols(names))


def with_touched(own: DataFrame, touched: DataFrame, key: tuple[str, ...]) -> DataFrame:
    """Return the rows of a table after its touched keys were replaced; `touched` has its columns and `_present`."""
    untouched = own.join(touched.select(*cols(key)), list(key), "left_anti")
    return untouched.unionByName(present(touched))


def identity(plan: Node) -> tuple[str, ...]:
    """Return the columns that identify a row of a stored table: its key, or a stream's coordinates."""
    return IDENTITY if plan.is_stream else plan.key
