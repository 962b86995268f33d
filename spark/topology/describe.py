"""A topology in text: as Kafka Streams prints it, each table in words, and as a picture."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark.topology.ddl import quoted
from spark.topology.errors import shown
from spark.topology.nodes import Aggregate, Join, Latest, Node, Scan, Select, inputs
from spark.topology.words import costs, equal_keys, join_kind, title

if TYPE_CHECKING:
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
        if isinstance(node, Scan):
            return names[node.table]
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
    return found


def _word(node: Latest | Select | Join | Aggregate) -> str:
    match node:
        case Latest():
            return "KTABLE-SOURCE"
        case Select(where=where):
            return "KTABLE-MAPVALUES" if where is None else "KTABLE-FILTER"
        case Aggregate():
            return "KTABLE-AGGREGATE"
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
    if not topology.settings.ansi and not isinstance(table.plan, Latest):
        lines.append("  where an expression fails: null")
    ways = dict.fromkeys(costs(table.plan))
    return lines + [f"  a change of {scan.table} costs: {words}" for scan, words in ways]


def _plan_in_words(label: str, node: Node, global_tables: frozenset[str], indent: str) -> Iterator[str]:
    below = indent + "  "
    match node:
        case Scan(table=table):
            yield f"{indent}{label}: {table}{' (global table)' if table in global_tables else ''}"
        case Latest():
            kind = ", a global table" if title(node) in global_tables else ""
            yield f"{indent}{label}: the newest record of every key of topic {title(node)}{kind}"
        case Select(source=source, select=select, where=where):
            computed = ", ".join(_item(name, text) for name, text in select[len(node.key) :])
            yield f"{indent}{label}: " + (f"map_values {computed}" if where is None else f"filter {where}")
            yield from _plan_in_words("of", source, global_tables, below)
        case Aggregate(source=source, by=by, select=select):
            computed = ", ".join(_item(name, text) for name, text in select[len(by) :])
            yield f"{indent}{label}: {computed} by {', '.join(by)}, each group computed again from its rows"
            yield from _plan_in_words("of", source, global_tables, below)
        case Join(left=left, right=right):
            yield f"{indent}{label}: {join_kind(node, global_tables)}"
            yield from _plan_in_words("left", left, global_tables, below)
            yield from _plan_in_words("right", right, global_tables, below)


def _item(name: str, text: str) -> str:
    return text if text == quoted(name) else f"{text} AS {quoted(name)}"


def _at(node: Node) -> str:
    return f", at {node.line}" if isinstance(node, Select | Join | Aggregate) and node.line is not None else ""
