"""What the driver uses of the engine: how records land, what a step of a stream emits, what publishing sends."""

from __future__ import annotations

from spark.engine.changes import placed
from spark.engine.counts import Counted
from spark.engine.land import landed
from spark.engine.publish import Sent, encoded, net, ordered
from spark.engine.stream import drops, emitted, identity
from spark.engine.tick import AT_ONCE, levels

__all__ = [
    "AT_ONCE",
    "Counted",
    "Sent",
    "drops",
    "emitted",
    "encoded",
    "identity",
    "landed",
    "levels",
    "net",
    "ordered",
    "placed",
]
