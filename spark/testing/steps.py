"""What the driver uses of the engine: how records land, what a step of a stream emits, what publishing sends."""

from __future__ import annotations

from spark.engine.advance import identity, stored_records
from spark.engine.counts import Counted
from spark.engine.inputs.snapshot import placed
from spark.engine.inputs.stream_time import Clock
from spark.engine.land import landed
from spark.engine.publishing.feed import encoded, net, ordered
from spark.engine.publishing.position import PublishedPosition

__all__ = [
    "Clock",
    "Counted",
    "PublishedPosition",
    "stored_records",
    "encoded",
    "identity",
    "landed",
    "net",
    "ordered",
    "placed",
]
