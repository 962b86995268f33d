"""A topology as text: in the format of Kafka Streams, each table in words, and as a Mermaid flowchart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from spark.topology.errors import shown
from spark.topology.model import Leader, Settings, Source, Table
from spark.topology.nodes import Node, Records, Scan


@dataclass(frozen=True)
class _Processor:
    """A line of Kafka's description: a source, processor or sink, and the names that it reads."""

    kind: str
    name: str
    holds: str
    reads: tuple[str, ...]


def describe(
    sources: tuple[Source, ...],
    tables: tuple[Table, ...],
    settings: Settings,
    unread: tuple[Node, ...],
    leaders: tuple[Leader, ...],
) -> str:
    """Sub-topologies in Kafka's format, then every stored table, then the views that no stored table reads."""
    lines = ["Topologies:"]
    for number, part in enumerate(_sub_topologies(_processors(sources, tables, leaders))):
        lines.append(f"   Sub-topology: {number}")
        for processor in part:
            read_by = [other.name for other in part if processor.name in other.reads]
            lines.append(f"    {processor.kind}: {processor.name} {processor.holds}")
            if processor.kind != "Sink":
                lines.append(f"      --> {', '.join(read_by) or 'none'}")
            if processor.reads:
                lines.append(f"      <-- {', '.join(processor.reads)}")
    if tables:
        lines += ["", "Stored tables:"]
        lines += [f"   {line}" for table in tables for line in _explained(table, sources, settings, leaders)]
    if unread:
        lines += ["", "Not stored, and read by no stored table:"]
        lines += [f"   {node.title}{'' if node.line is None else f', at {node.line}'}" for node in unread]
    return "\n".join(lines) + "\n"


def describe_table(
    table: Table, sources: tuple[Source, ...], settings: Settings, leaders: tuple[Leader, ...] = ()
) -> str:
    """One stored table: key, columns, plan, and the cost of a change of each input."""
    return "\n".join(_explained(table, sources, settings, leaders)) + "\n"


def graph(sources: tuple[Source, ...], tables: tuple[Table, ...], leaders: tuple[Leader, ...] = ()) -> str:
    """Topics, leaders and stored tables as a Mermaid flowchart. A dotted arrow is an input that is only looked up."""
    topics = {source.landing: f"topic{index}" for index, source in enumerate(sources)}
    numbered = {table.name: f"table{index}" for index, table in enumerate(tables)}
    followed = {leader.scan.table: f"leader{index}" for index, leader in enumerate(leaders)}
    ids = topics | followed | numbered
    lines = ["flowchart LR"]
    lines += [f'  {topics[source.landing]}(["{source.topic}"])' for source in sources]
    lines += [f'  {followed[leader.scan.table]}[/"{leader.dotted_name}"/]' for leader in leaders]
    lines += [f'  {numbered[table.name]}[("{table.name}")]' for table in tables]
    for table in tables:
        drivers, target = table.plan.drivers, numbered[table.name]
        lines += [f"  {ids[scan.table]} {'-->' if scan in drivers else '-.->'} {target}" for scan in table.inputs]
        if table.topic is not None:
            lines.append(f'  {target} --> sink_{target}(["{table.topic}"])')
    return "\n".join(lines) + "\n"


def _processors(
    sources: tuple[Source, ...], tables: tuple[Table, ...], leaders: tuple[Leader, ...]
) -> list[_Processor]:
    """Every topic, leader and node, numbered in the order in which Kafka adds them."""
    processors: list[_Processor] = []
    names: dict[Node | str, str] = {}

    def add(kind: str, word: str, holds: str, reads: tuple[str, ...]) -> str:
        processors.append(_Processor(kind, f"{word}-{len(processors):010d}", holds, reads))
        return processors[-1].name

    def visit(node: Node, store: str | None = None) -> str:
        if isinstance(node, Scan | Records):
            name = names[node.table if isinstance(node, Scan) else node.source.table]
            if store is not None and isinstance(node, Scan):  # a copy of a leader
                return add("Processor", node.kafka_name, f"(stores: [{store}])", (name,))
            return name
        if node not in names:
            reads = tuple(dict.fromkeys(visit(source) for source in node.sources))
            names[node] = add("Processor", node.kafka_name, f"(stores: [{store or ''}])", reads)
        return names[node]

    stored = {table.name: table for table in tables}
    for source in sources:
        names[source.landing] = add("Source", "KSTREAM-SOURCE", f"(topics: [{source.topic}])", ())
        if source.kind != "stream":
            visit(stored[source.topic].plan, source.topic)
    for leader in leaders:
        names[leader.scan.table] = add("Source", "KTABLE-SOURCE", f"(table: {leader.dotted_name})", ())
    for table in tables:
        names[table.name] = visit(table.plan, table.name)
        if table.topic is not None:
            add("Sink", "KSTREAM-SINK", f"(topic: {table.topic})", (names[table.name],))
    return processors


def _sub_topologies(processors: list[_Processor]) -> list[list[_Processor]]:
    """Connected processors, in the order of the first processor of each part."""
    parts: list[list[_Processor]] = []
    for processor in processors:
        joined = [part for part in parts if any(other.name in processor.reads for other in part)]
        merged = [other for part in joined for other in part]
        parts = [part for part in parts if part not in joined]
        parts.append(sorted([*merged, processor], key=processors.index))
    return sorted(parts, key=lambda part: processors.index(part[0]))


def _explained(table: Table, sources: tuple[Source, ...], settings: Settings, leaders: tuple[Leader, ...]) -> list[str]:
    key, value = table.plan.columns[: len(table.plan.key)], table.plan.columns[len(table.plan.key) :]
    global_tables = frozenset(source.topic for source in sources if source.kind == "global_table")
    global_tables |= {leader.scan.table for leader in leaders if leader.kind == "global_table"}
    lines = [
        table.name,
        f"  key: {shown(key)}",
        f"  columns: {shown(value) or 'none'}",
        *_explained_plan("is", table.plan, global_tables, "  "),
    ]
    if not settings.ansi and not table.plan.is_decoded_topic:
        lines.append("  an expression that fails is: null")
    if table.topic is not None:
        formats = (table.produced.format, table.produced.key_format)
        words = "" if formats == ("json", "json") else f", values in {formats[0]}, keys in {formats[1]}"
        lines.append(f"  published to: topic {table.topic}{words}")
    return lines + [f"  a change of {scan.table} costs: {words}" for scan, words in dict.fromkeys(table.plan.costs)]


def _explained_plan(label: str, node: Node, global_tables: frozenset[str], indent: str) -> Iterator[str]:
    yield f"{indent}{label}: {node.explain(global_tables)}"
    for part, source in node.explained_sources:
        yield from _explained_plan(part, source, global_tables, f"{indent}  ")
