"""The question: a topology in Kafka Streams' words, as frozen data."""

from __future__ import annotations

from spark.topology.builder import StreamsBuilder
from spark.topology.consumed import Consumed, Versioned
from spark.topology.errors import TopologyError
from spark.topology.handles import JoinWindows, SessionWindows, SlidingWindows, Suppressed, TimeWindows
from spark.topology.produced import Produced
from spark.topology.topology import Topology

__all__ = [
    "Consumed",
    "JoinWindows",
    "Produced",
    "SessionWindows",
    "SlidingWindows",
    "StreamsBuilder",
    "Suppressed",
    "TimeWindows",
    "Topology",
    "TopologyError",
    "Versioned",
]
