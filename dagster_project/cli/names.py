"""Finds what a name on the command line means: a topology, or one of its tables or topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from rich.markup import escape

from dagster_project.cli.output import progress
from dagster_project.discover import BrokenTopology, topologies
from spark.topology.errors import did_you_mean
from spark.topology.nodes import leader_parts

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark.topology import Topology
    from spark.topology.topology import Source, Table


def load_topologies(broken: list[BrokenTopology] | None = None) -> tuple[Topology, ...]:
    """All valid topologies. The errors of the others are printed to standard error, and appended to `broken`."""

    def report(error: BrokenTopology) -> None:
        progress.print(f"[red]left out[/]  {escape(str(error))}", soft_wrap=True)
        if broken is not None:
            broken.append(error)

    return topologies(report)


def table_names(topology: Topology) -> list[str]:
    """The names of a topology's tables."""
    return [table.name for table in topology.tables]


def topic_names(topology: Topology) -> list[str]:
    """The names of the topics that a topology reads."""
    return [source.topic for source in topology.sources]


def topic_and_table_names(topology: Topology) -> list[str]:
    """The names of the topics that a topology reads, and of its tables."""
    return [*topic_names(topology), *table_names(topology)]


def sources(topology: Topology, topic: str | None) -> tuple[Source, ...]:
    """The source of a topic, or all of them."""
    return topology.sources if topic is None else (topology.source(topic),)


def find_topology(name: str) -> Topology:
    """The topology with this name.

    Raises:
        UsageError: there is none; the message lists those that exist.
    """
    return find(name, lambda _: [])[0]


def find_table(name: str) -> tuple[Topology, Table]:
    """The table with this name, and its topology.

    Raises:
        UsageError: there is none; the message lists those that exist.
    """
    topology, table = _part(name, "tables", table_names)
    return topology, topology.table(table)


def find_source(name: str) -> tuple[Topology, Source]:
    """The source of the topic with this name, and its topology.

    Raises:
        UsageError: there is none; the message lists those that exist.
    """
    topology, topic = _part(name, "topics", topic_names)
    return topology, topology.source(topic)


def _part(name: str, parts: str, names_of: Callable[[Topology], list[str]]) -> tuple[Topology, str]:
    """The topology, and the part of it that a name means, which must not be a whole topology."""
    topology, part = find(name, names_of)
    if part is None:
        raise click.UsageError(f"{name} is a topology; name one of its {parts}: {_listed(topology, names_of)}")
    return topology, part


def find(name: str, names_of: Callable[[Topology], list[str]]) -> tuple[Topology, str | None]:
    """The topology, and the table or topic of it, that a name means; None for a whole topology.

    Args:
        name: as in `shop`, or `shop.orders`.
        names_of: the names of the parts of a topology among which to search.

    Raises:
        UsageError: there is none; the message lists those that exist.
    """
    broken: list[BrokenTopology] = []
    loaded = load_topologies(broken)
    for topology in loaded:
        if name == topology.name:
            return topology, None
        prefix = f"{topology.name}."
        if name.startswith(prefix) and name.removeprefix(prefix) in names_of(topology):
            return topology, name.removeprefix(prefix)
    for topology in loaded:
        for leader in topology.leaders:
            lake, of, table = leader_parts(leader.scan.table) or (None, "", "")
            if name == f"{of}.{table}":
                where = "" if lake is None else f" in the lake {lake}"
                raise click.UsageError(
                    f"{name} is a table of the topology {of}{where}, which {topology.name} reads and never writes: run "
                    f"this command in the project of {of}"
                )
    names = [one for topology in loaded for one in (topology.name, *_names(topology, names_of))]
    meant = did_you_mean(name, names)
    known = [", ".join(filter(None, [topology.name, _listed(topology, names_of)])) for topology in loaded]
    left_out = ". A topology was left out: its error is printed above" if broken else ""
    raise click.UsageError(f"unknown name {name!r}{meant}; known names: {'; '.join(known) or 'none'}{left_out}")


def _listed(topology: Topology, names_of: Callable[[Topology], list[str]]) -> str:
    return ", ".join(_names(topology, names_of))


def _names(topology: Topology, names_of: Callable[[Topology], list[str]]) -> list[str]:
    return [f"{topology.name}.{name}" for name in dict.fromkeys(names_of(topology))]
