"""A topology in text: as Kafka Streams prints it, each table in words, and as a picture."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark.topology.ddl import quoted
from spark.topology.durations import written
from spark.topology.errors import shown
from spark.topology.fold import fold_of
from spark.topology.nodes import (
    Aggregate,
    Changes,
    Closed,
    Explode,
    Join,
    Latest,
    Node,
    Records,
    Scan,
    Select,
    StreamJoin,
    Union,
    Window,
    decoded,
    inputs,
    is_stream,
)
from spark.topology.words import costs, equal_keys, join_kind, select_kind, stream_join_kind, title, window_kind

if TYPE_CHECKING:
    from spark.topology.draft import Written
    from spark.topology.topology import Table, Topology


@dataclass(frozen=True)
class _Processor:
    """A node of Kafka's description: its name and what it reads."""

    kind: str
    name: str
    holds: str
    reads: tuple[str, ...]


def describe(topology: Topology) -> str:
    """Sub-topologies in Kafka's words, then every stored table, then the views that nothing reads."""
    lines = ["Topologies:"]
    for number, part in enumerate(_sub_topologies(_processors(topology))):
        lines.append(f"   Sub-topology: {number}")
        for processor in part:
            read_by = [other.name for other in part if processor.name in other.reads]
            lines.append(f"    {processor.kind}: {processor.name} {processor.holds}")
            if processor.kind != "Sink":
                lines.append(f"      --> {', '.join(read_by) or 'none'}")
            if processor.reads:
                lines.append(f"      <-- {', '.join(processor.reads)}")
    if topology.tables:
        lines += ["", "Stored tables:"]
        lines += [f"   {line}" for table in topology.tables for line in _in_words(topology, table)]
    if topology.unread:
        lines += ["", "Not stored, and read by no stored table:"]
        lines += [f"   {title(node)}{_at(node)}" for node in topology.unread]
    return "\n".join(lines) + "\n"


def describe_table(topology: Topology, table: Table) -> str:
    """One stored table: key, columns, plan, and what a change of each input costs."""
    return "\n".join(_in_words(topology, table)) + "\n"


def graph(topology: Topology) -> str:
    """Topics and stored tables as a Mermaid flowchart; a dotted arrow is a side that is only looked up."""
    topics = {source.landing: f"topic{index}" for index, source in enumerate(topology.sources)}
    tables = {table.name: f"table{index}" for index, table in enumerate(topology.tables)}
    ids = topics | tables
    lines = ["flowchart LR"]
    lines += [f'  {topics[source.landing]}(["{source.topic}"])' for source in topology.sources]
    lines += [f'  {tables[table.name]}[("{table.name}")]' for table in topology.tables]
    for table in topology.tables:
        followed = set(_followed(table.plan))
        lines += [
            f"  {ids[scan.table]} {'-->' if scan in followed else '-.->'} {tables[table.name]}" for scan in table.inputs
        ]
        if table.topic is not None:
            lines.append(f'  {tables[table.name]} --> sink_{tables[table.name]}(["{table.topic}"])')
    return "\n".join(lines) + "\n"


def _followed(node: Node) -> Iterator[Scan]:
    """The inputs whose changes are followed."""
    if isinstance(node, Scan):
        yield node
    read = (node.left,) if isinstance(node, Join) and node.drive == "left" else inputs(node)
    for source in read:
        yield from _followed(source)


def _processors(topology: Topology) -> list[_Processor]:
    """Every topic and every node, numbered in the order in which Kafka would add them."""
    found: list[_Processor] = []
    names: dict[Node | str, str] = {}

    def add(kind: str, word: str, holds: str, reads: tuple[str, ...]) -> str:
        found.append(_Processor(kind, f"{word}-{len(found):010d}", holds, reads))
        return found[-1].name

    def visit(node: Node, store: str | None = None) -> str:
        if isinstance(node, Scan | Records):
            return names[node.table if isinstance(node, Scan) else node.source.table]
        if node not in names:
            reads = tuple(dict.fromkeys(visit(source) for source in inputs(node)))
            names[node] = add("Processor", _word(node), f"(stores: [{store or ''}])", reads)
        return names[node]

    tables = {table.name: table for table in topology.tables}
    for source in topology.sources:
        names[source.landing] = add("Source", "KSTREAM-SOURCE", f"(topics: [{source.topic}])", ())
        if source.kind != "stream":
            visit(tables[source.topic].plan, source.topic)
    for table in topology.tables:
        names[table.name] = visit(table.plan, table.name)
        if table.topic is not None:
            add("Sink", "KSTREAM-SINK", f"(topic: {table.topic})", (names[table.name],))
    return found


_STREAM_WORDS = {"select_key": "KEY-SELECT", "map_values": "MAPVALUES", "filter": "FILTER"}


def _word(node: Written) -> str:
    """What Kafka Streams calls a node."""
    match node:
        case Latest(source=Records()):
            return "KTABLE-SOURCE"
        case Latest():
            return "KSTREAM-TOTABLE"
        case Changes():
            return "KTABLE-TOSTREAM"
        case Union():
            return "KSTREAM-MERGE"
        case Select():
            return f"{'KSTREAM' if is_stream(node) else 'KTABLE'}-{_STREAM_WORDS[select_kind(node)]}"
        case Aggregate(source=source):
            return f"{'KSTREAM' if is_stream(source) else 'KTABLE'}-AGGREGATE"
        case Closed():
            return "KTABLE-SUPPRESS"
        case Window(suppressed=suppressed):
            return "KTABLE-SUPPRESS" if suppressed else "KSTREAM-AGGREGATE"
        case Explode():
            return "KSTREAM-FLATMAP"
        case StreamJoin():
            return "KSTREAM-JOINTHIS"
        case Join(how=how) if is_stream(node):
            return f"KSTREAM-{'GLOBALTABLE-' if node.sent else ''}{'' if how == 'inner' else 'LEFT'}JOIN"
        case Join(how=how):
            return f"KTABLE-{'' if equal_keys(node) else 'FK-'}{'' if how == 'inner' else how.upper()}JOIN"


def _sub_topologies(processors: list[_Processor]) -> list[list[_Processor]]:
    """Processors that are connected, in the order of their first one."""
    parts: list[list[_Processor]] = []
    for processor in processors:
        joined = [part for part in parts if any(other.name in processor.reads for other in part)]
        merged = [other for part in joined for other in part]
        parts = [part for part in parts if part not in joined]
        parts.append(sorted([*merged, processor], key=processors.index))
    return sorted(parts, key=lambda part: processors.index(part[0]))


def _in_words(topology: Topology, table: Table) -> list[str]:
    key, value = table.plan.columns[: len(table.plan.key)], table.plan.columns[len(table.plan.key) :]
    global_tables = frozenset(source.topic for source in topology.sources if source.kind == "global_table")
    lines = [
        table.name,
        f"  key: {shown(key)}",
        f"  columns: {shown(value) or 'none'}",
        *_plan_in_words("is", table.plan, global_tables, "  "),
    ]
    if not topology.settings.ansi and not decoded(table.plan):
        lines.append("  where an expression fails: null")
    if table.topic is not None:
        lines.append(f"  published to: topic {table.topic}")
    ways = dict.fromkeys(costs(table.plan))
    return lines + [f"  a change of {scan.table} costs: {words}" for scan, words in ways]


def _plan_in_words(label: str, node: Node, global_tables: frozenset[str], indent: str) -> Iterator[str]:
    below = indent + "  "
    match node:
        case Scan(table=table):
            yield f"{indent}{label}: {table}{' (global table)' if table in global_tables else ''}"
        case Records():
            of = "topic" if node.source.landing else "stream"
            yield f"{indent}{label}: the records of {of} {title(node)}"
        case Changes(source=source):
            yield f"{indent}{label}: the changes of {title(source)}"
        case Union(left=left, right=right):
            yield f"{indent}{label}: the records of both"
            yield from _plan_in_words("left", left, global_tables, below)
            yield from _plan_in_words("right", right, global_tables, below)
        case Latest(source=source, history=history):
            of = f" of topic {title(node)}" if isinstance(source, Records) else ""
            kind = ", a global table" if title(node) in global_tables else ""
            kind += "" if history is None else f", by timestamp (versioned, history {written(history)})"
            yield f"{indent}{label}: the newest record of every key{of}{kind}"
            if not isinstance(source, Records):
                yield from _plan_in_words("of", source, global_tables, below)
        case Select(source=source, select=select, where=where, rekeyed=rekeyed):
            computed = ", ".join(_item(name, text) for name, text in select[len(node.key) :])
            what = where if where is not None else ", ".join(rekeyed) if rekeyed is not None else computed
            yield f"{indent}{label}: {select_kind(node)} {what}"
            yield from _plan_in_words("of", source, global_tables, below)
        case Aggregate(source=source, by=by, select=select):
            computed = ", ".join(_item(name, text) for name, text in select[len(by) :])
            yield f"{indent}{label}: {computed} by {', '.join(by)}, {_strategy(node)}"
            yield from _plan_in_words("of", source, global_tables, below)
        case Window(source=source, by=by, select=select):
            computed = ", ".join(_item(name, text) for name, text in select)
            yield f"{indent}{label}: {computed} by {', '.join(by)} {window_kind(node)}"
            yield from _plan_in_words("of", source, global_tables, below)
        case Closed(source=source, wait=wait):
            yield f"{indent}{label}: those whose end is more than {written(wait)} behind stream time, which are closed"
            yield from _plan_in_words("of", source, global_tables, below)
        case Explode(source=source, column=column):
            yield f"{indent}{label}: flat_map of every element of {column}"
            yield from _plan_in_words("of", source, global_tables, below)
        case StreamJoin(left=left, right=right):
            yield f"{indent}{label}: {stream_join_kind(node)}"
            yield from _plan_in_words("left", left, global_tables, below)
            yield from _plan_in_words("right", right, global_tables, below)
        case Join(left=left, right=right):
            yield f"{indent}{label}: {join_kind(node, global_tables)}"
            yield from _plan_in_words("left", left, global_tables, below)
            yield from _plan_in_words("right", right, global_tables, below)


def _strategy(aggregate: Aggregate) -> str:
    """Fold or recompute, and why."""
    if aggregate.fold is not None:
        return "folded: the old value and the change give the new one"
    why = fold_of(aggregate)
    return f"each group computed again from its rows: {why if isinstance(why, str) else 'it is not stored itself'}"


def _item(name: str, text: str) -> str:
    return text if text == quoted(name) else f"{text} AS {quoted(name)}"


def _at(node: Node) -> str:
    return f", at {node.line}" if not isinstance(node, Scan | Records) and node.line is not None else ""
