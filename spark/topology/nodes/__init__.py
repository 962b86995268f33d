"""The nodes of a plan: one file for each kind."""

from __future__ import annotations

from spark.topology.nodes.aggregate import Aggregate
from spark.topology.nodes.changes import Changes
from spark.topology.nodes.closed_sessions import ClosedSessions
from spark.topology.nodes.explode import Explode
from spark.topology.nodes.join import Drive, Join
from spark.topology.nodes.joined import METHODS, How
from spark.topology.nodes.latest import Latest
from spark.topology.nodes.lookup import Lookup
from spark.topology.nodes.node import AddedColumns, Node
from spark.topology.nodes.records import Records
from spark.topology.nodes.scan import LANDING, Scan
from spark.topology.nodes.select import Select
from spark.topology.nodes.stream_join import StreamJoin
from spark.topology.nodes.union import Union
from spark.topology.nodes.window import Window, WindowKind

KINDS: tuple[type[Node], ...] = (
    *(Scan, Records, Changes, Union, Explode, Latest, Select),
    *(Join, Lookup, StreamJoin, Aggregate, Window, ClosedSessions),
)
"""Every kind of node; `Topology.from_dict` reads these."""

__all__ = [
    "AddedColumns",
    "Aggregate",
    "Changes",
    "ClosedSessions",
    "Drive",
    "Explode",
    "How",
    "Join",
    "KINDS",
    "LANDING",
    "Latest",
    "Lookup",
    "METHODS",
    "Node",
    "Records",
    "Scan",
    "Select",
    "StreamJoin",
    "Union",
    "Window",
    "WindowKind",
]
