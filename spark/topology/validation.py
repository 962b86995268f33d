"""The rules for whole plans: what must be stored, and what cannot be computed again."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import TYPE_CHECKING

from spark.topology.errors import Place
from spark.topology.nodes import Lookup, Window

if TYPE_CHECKING:
    from spark.topology.model import Table
    from spark.topology.nodes import Node


def check_plans(nodes: Sequence[Node], tables: Sequence[Table]) -> None:
    """Refuse nodes that cannot be computed again from stored data, with the line where they were written.

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
    """Errors about the streams that a node reads again, or reads in the merge order: what is wrong, and what to do."""
    errors = []
    for stream in node.rereads:
        if (lookup := stream.unstored_lookup(stored)) is not None:
            what = f"it reads {lookup.title} again, which is not stored: its records depend on when they looked rows up"
            errors.append((what, "call .materialize(name) on that join"))
    for stream in node.reads_in_order:
        if (outer := stream.origin(lambda one: one.emits_unpaired)) is not None:
            what = f"{outer.title} emits records without a partner when stream time closes them, out of order"
            do = "use join(...) there, or only join tables and aggregate without windows after it"
            errors.append((what, do))
        if not isinstance(node, Lookup) and (waits := stream.origin(lambda one: one.waits)) is not None:
            what = f"{waits.title} emits its records when their grace has passed, and they would be late here"
            do = "join and window the topics' streams, or only join tables and aggregate without windows after it"
            errors.append((what, do))
    return errors


def _windows(node: Node, stored: Set[Node]) -> list[tuple[str, str]]:
    """Errors about windows that are not stored."""
    what = "aggregates of windows cannot be a view: which records were late cannot be computed again"
    do = "call .materialize(name) on the aggregate"
    return [(what, do) for window in (node, *node.sources) if isinstance(window, Window) and window not in stored]
