"""What must be stored, and what cannot be computed again: the rules that a plan as a whole has to keep."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import TYPE_CHECKING

from spark.topology.errors import Place
from spark.topology.nodes import Lookup, Window

if TYPE_CHECKING:
    from spark.topology.model import Table
    from spark.topology.nodes import Node


def check_plans(nodes: Sequence[Node], tables: Sequence[Table]) -> None:
    """Refuse nodes that could not be computed again from what is stored, at the line where they were written.

    Raises:
        TopologyError: names the node, the reason, and what to write.
    """
    stored = {table.plan for table in tables}
    for node in nodes:
        place = Place(node.title, node.line, {"": node.columns})
        for what, do in (*_read_streams(node, stored), *node.mistakes(stored), *_windows(node, stored)):
            raise place.mistake(what, do)
        if node not in stored and (why := node.why_no_view(stored)) is not None:
            raise place.mistake(*why)


def _read_streams(node: Node, stored: Set[Node]) -> list[tuple[str, str]]:
    """What is wrong with the streams that a node reads again, or in the order of time."""
    found = []
    for stream in node.reads_again:
        if (lookup := stream.unstored_lookup(stored)) is not None:
            what = f"it reads {lookup.title}, whose records are not kept: they depend on when they looked a row up"
            found.append((what, "write .materialize(name) behind that join"))
    for stream in node.reads_in_order:
        if (outer := stream.origin(lambda one: one.emits_unpaired)) is not None:
            what = f"{outer.title} emits records without a pair when time has closed them, out of the order of others"
            do = "join with join(...) there, or look tables up and aggregate without windows behind it"
            found.append((what, do))
        if not isinstance(node, Lookup) and (waits := stream.origin(lambda one: one.waits)) is not None:
            what = f"{waits.title} emits its records when their grace is over, and they would be late here"
            do = "join and window the topics' streams, or look tables up and aggregate without windows behind it"
            found.append((what, do))
    return found


def _windows(node: Node, stored: Set[Node]) -> list[tuple[str, str]]:
    """Windows that are not stored."""
    what = "the aggregates of windows are no view: what came late cannot be computed again"
    do = "write .materialize(name) behind them"
    return [(what, do) for one in (node, *node.sources) if isinstance(one, Window) and one not in stored]
