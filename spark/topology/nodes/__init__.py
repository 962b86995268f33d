"""The nodes of a plan: one file for each kind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from inspect import isabstract
from pkgutil import iter_modules

from spark.topology.nodes.aggregate import Aggregate
from spark.topology.nodes.changes import Changes
from spark.topology.nodes.closed_sessions import ClosedSessions
from spark.topology.nodes.explode import Explode
from spark.topology.nodes.join import Drive, Join
from spark.topology.nodes.joined import METHODS, How
from spark.topology.nodes.latest import Latest
from spark.topology.nodes.lookup import Lookup
from spark.topology.nodes.node import AddedColumns, Node, WiderColumns
from spark.topology.nodes.records import Records
from spark.topology.nodes.scan import LANDING, Scan, leader_name, leader_parts
from spark.topology.nodes.select import Select
from spark.topology.nodes.stream_join import StreamJoin
from spark.topology.nodes.union import Union
from spark.topology.nodes.window import Window, WindowKind

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")


def _kinds(base: type) -> Iterator[type[Node]]:
    kinds: Sequence[type[Node]] = base.__subclasses__()
    for kind in kinds:
        yield from _kinds(kind)
        if not isabstract(kind):
            yield kind


KINDS: tuple[type[Node], ...] = tuple(_kinds(Node))
"""Every kind of node in this package; `Topology.from_dict` reads these."""

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
    "WiderColumns",
    "Window",
    "WindowKind",
    "leader_name",
    "leader_parts",
]
