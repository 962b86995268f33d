"""The names and asset specs of a topology in Dagster: one asset per topic, per landing and per table."""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg

from assets.beta_warnings import without_beta_warnings
from spark.engine.log.comments import comment
from spark.operators.algebra import OURS
from spark.topology.nodes import LANDING, leader_parts

if TYPE_CHECKING:
    from resources.lakehouse import Lakehouse
    from spark.topology import Topology
    from spark.topology.columns import Column, Line
    from spark.topology.topology import Leader, Source, Table

TOPOLOGY_TAG = "tidetable/topology"
"""The tag of every job of a topology, with the topology's name."""

OUR_TYPES = dict(zip(OURS, ("timestamp", "string", "int", "bigint"), strict=True))
UNKNOWN = "unknown"  # the type of a computed column: Spark finds it at the table's first step


def topic_key(topic: str) -> dg.AssetKey:
    """The asset key of a topic, the same for all topologies that read it or publish to it."""
    return dg.AssetKey(["kafka", topic])


def table_key(topology: Topology, name: str) -> dg.AssetKey:
    """The asset key of a table by its name in plans: a stored table, a landing, or a table of another topology."""
    if name.startswith(LANDING):
        return dg.AssetKey([topology.name, "landing", name.removeprefix(LANDING)])
    if (leader := leader_parts(name)) is not None:  # the same key in the code location that has the leader
        return dg.AssetKey([*leader[1:]])
    return dg.AssetKey([topology.name, name])


def word(*parts: str) -> str:
    """A name that Dagster allows for ops, jobs and groups: letters, digits and underscores."""
    return "__".join(re.sub(r"\W", "_", part, flags=re.ASCII) for part in parts)


def tick_name(topology: Topology) -> str:
    """The name of the job that ticks a topology."""
    return f"{word(topology.name)}_tick"


def topic_spec(topic: str) -> dg.AssetSpec:
    """The asset of a topic."""
    return dg.AssetSpec(
        topic_key(topic), group_name="kafka", kinds={"kafka"}, description=f"The Kafka topic `{topic}`."
    )


def published_spec(topology: Topology, table: Table) -> dg.AssetSpec:
    """The asset of a topic that a table is published to."""
    assert table.topic is not None, "only what has a topic is published"
    return dg.AssetSpec(
        topic_key(table.topic),
        deps=[table_key(topology, table.name)],
        group_name="kafka",
        kinds={"kafka"},
        description=f"The Kafka topic `{table.topic}`: every change of {topology.name}.{table.name}, "
        f"values in the format `{table.produced.format}`, keys in `{table.produced.key_format}`.",
        metadata=_line(table.line),
    )


def landing_spec(topology: Topology, source: Source, lakehouse: Lakehouse) -> dg.AssetSpec:
    """The asset of a landing: a topic's records with their offsets, including undecodable ones."""
    consumed = source.consumed
    raw = [_ours("_deleted", "boolean"), _ours("_error", "string"), _ours("_batch", "bigint")]
    raw += [_ours("_key", "binary"), _ours("_value", "binary")]
    return dg.AssetSpec(
        table_key(topology, source.landing),
        deps=[topic_key(source.topic)],
        group_name=word(topology.name),
        kinds={"spark", "deltalake"},
        description=f"Every record of topic `{source.topic}`, with its offset. It is read as a {source.kind}.",
        metadata=_metadata(topology, source.landing, lakehouse, source.line, [*_columns(consumed.columns), *raw]),
        code_version=sha256(repr(consumed).encode()).hexdigest(),
    )


def table_spec(topology: Topology, table: Table, lakehouse: Lakehouse) -> dg.AssetSpec:
    """The asset of a stored table; its description is the plan in words."""
    columns = _columns(table.plan.columns, table.plan.key)
    return dg.AssetSpec(
        table_key(topology, table.name),
        deps=[table_key(topology, scan.table) for scan in table.inputs],
        group_name=word(topology.name),
        kinds={"spark", "deltalake"},
        description=f"```\n{topology.describe(table.name)}```",
        metadata=_metadata(topology, table.name, lakehouse, table.line, columns),
        code_version=topology.fingerprint(table.name),
    )


def leader_spec(topology: Topology, leader: Leader) -> dg.AssetSpec:
    """The asset of a leader that another code location, or another project, materializes."""
    key = table_key(topology, leader.scan.table)
    return dg.AssetSpec(
        key,
        group_name=word(key.path[0]),
        kinds={"deltalake"},
        description=f"The table {leader.dotted_name}, which {topology.name} reads and never writes.",
        metadata=_line(leader.line),
    )


def _metadata(
    topology: Topology, name: str, lakehouse: Lakehouse, line: Line | None, columns: list[dg.TableColumn]
) -> dict[str, dg.MetadataValue]:
    known: dict[str, dg.MetadataValue] = {
        "dagster/table_name": dg.MetadataValue.text(f"{topology.name}.{name}"),
        "dagster/uri": dg.MetadataValue.text(lakehouse.table(topology.name, name)),
        "dagster/column_schema": dg.MetadataValue.table_schema(dg.TableSchema(columns)),
    }
    return known | _line(line)


def _line(line: Line | None) -> dict[str, dg.MetadataValue]:
    """The code reference to the user's line that declares it."""
    if line is None:
        return {}
    with without_beta_warnings():
        here = dg.LocalFileCodeReference(
            file_path=str(Path(line.file).resolve()), line_number=line.line, label=str(line)
        )
        return {"dagster/code_references": dg.CodeReferencesMetadataValue(code_references=[here])}


def _columns(columns: tuple[Column, ...], key: tuple[str, ...] = ()) -> list[dg.TableColumn]:
    primary = dg.TableColumnConstraints(nullable=False, other=["key"])
    of_the_user = [
        dg.TableColumn(
            column.name,
            column.type or UNKNOWN,
            description=comment(column.name),
            constraints=primary if column.name in key else None,
        )
        for column in columns
    ]
    return of_the_user + [_ours(name, kind) for name, kind in OUR_TYPES.items()]


def _ours(name: str, kind: str) -> dg.TableColumn:
    return dg.TableColumn(name, kind, description=comment(name))
