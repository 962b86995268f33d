"""Dagster's assets of topologies, and the job of each topology that ticks it.

Topics are observed. Every landing, every table and every published topic has one op.
"""

# No `from __future__ import annotations`: Dagster reads the annotations of an op as objects.
from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING

import dagster as dg

from assets import checks, metadata
from assets.beta_warnings import without_beta_warnings
from assets.gates import Refused, SuiteGate
from assets.retries import retried
from assets.specs import (
    TOPOLOGY_TAG,
    landing_spec,
    leader_spec,
    published_spec,
    table_key,
    table_spec,
    tick_name,
    topic_key,
    topic_spec,
    word,
)
from assets.suites import Suite
from assets.threads import check_terminated, threads
from resources.lakehouse import Lakehouse
from resources.tidetable import Tidetable
from spark.engine.counts import counted
from spark.engine.land import Landed, land
from spark.engine.log.stored_table import State, StoredTable
from spark.engine.offsets import TopicOffsets
from spark.engine.publish import publish
from spark.engine.publishing.position import group, unpublished_versions
from spark.engine.rebuild import step_or_rebuild
from spark.engine.status import describe_first_offsets, in_transactions
from spark.engine.time_sync import concerning, release, waiting
from spark.engine.unknown_values import may_have, unknown_values
from spark.topology import Topology
from spark.topology.topology import Source, Table

if TYPE_CHECKING:
    # The return type of `define_asset_job` has no public name.
    from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition


SKIP_REFUSED = dg.Field(
    bool,
    default_value=False,
    description="Leave out the records that the topic refuses, and count them in its position.",
)
REPEAT = dg.Field(
    bool,
    default_value=False,
    description="If the topic may have lost its newest records, send these records again.",
)


SAME_NAME = "Dagster has one name for both: rename one, so that they differ in a letter or a digit"


class NameClash(Exception):
    """Two names are the same name in Dagster.

    Rename one of the two: names must differ in a letter or a digit.
    """


class Circle(Exception):
    """A topology reads a topic whose records are computed from its own published tables.

    Publish to another topic, or read the table itself instead of the topic.
    """


def assets(
    topologies: Sequence[Topology], lakehouse: Lakehouse, suites: Mapping[str, Suite]
) -> list[dg.AssetsDefinition]:
    """The assets of all topologies. A topic that several of them read is one asset.

    A table of a topology that is not among them is an external asset, whose key its own code location has too.

    Raises:
        NameClash: two names differ only in characters that Dagster does not allow in names.
        Circle: a table is computed from a topic that is published from it; Dagster cannot order them.
    """
    if clashes := _clashes(topologies):
        things, names = clashes[0]
        raise NameClash(f"{', '.join(things)} of {' and '.join(sorted(names))}: {SAME_NAME}")
    if (circle := _circle(topologies, lakehouse)) is not None:
        raise Circle(circle[1])
    made = [_topics(topologies)] if observed(topologies) else []
    for topology in topologies:
        made += [_landing(topology, source, lakehouse) for source in topology.sources]
        made += [
            _table(topology, table, lakehouse, suites.get(f"{topology.name}.{table.name}")) for table in topology.tables
        ]
        made += [_published(topology, table, lakehouse) for table in topology.tables if table.topic is not None]
    here = {table_key(topology, table.name) for topology in topologies for table in topology.tables}
    elsewhere = {spec.key: spec for one in topologies for leader in one.leaders for spec in [leader_spec(one, leader)]}
    made += [dg.AssetsDefinition(specs=[spec]) for key, spec in elsewhere.items() if key not in here]
    return made


def observed(topologies: Sequence[Topology]) -> list[str]:
    """The topics that no topology publishes to, sorted. The op of a published table materializes the others."""
    published = {table.topic for topology in topologies for table in topology.tables}
    return sorted({source.topic for topology in topologies for source in topology.sources} - published)


def conflicts(topologies: Sequence[Topology], lakehouse: Lakehouse) -> dict[str, str]:
    """The topologies that Dagster cannot load together with the others: the reason, by the topology's name.

    Args:
        topologies: all topologies to load.
        lakehouse: the lake of their tables.
    """
    found = {
        name: f"{', '.join(things)} of {' and '.join(sorted(names))}: {SAME_NAME}"
        for things, names in _clashes(topologies)
        for name in names
    }
    others = [topology for topology in topologies if topology.name not in found]
    if (circle := _circle(others, lakehouse)) is not None:
        keys, why = circle
        found |= {topology.name: why for topology in others if any(key.path[0] == topology.name for key in keys)}
    return found


def _clashes(topologies: Sequence[Topology]) -> list[tuple[list[str], set[str]]]:
    """Groups of things that would have one name in Dagster, as the user named them, and their topologies."""
    things: dict[str, list[tuple[str, str]]] = {}

    def name(given: str, thing: str, of: str) -> None:
        things.setdefault(given, []).append((thing, of))

    topics = observed(topologies)
    for topology in topologies:
        of = topology.name
        name(tick_name(topology), f"topology {of}", of)
        for source in topology.sources:
            name(word(of, "landing", source.topic), f"the landing of topic {source.topic}", of)
        for table in topology.tables:
            name(word(of, table.name), f"table {table.name}", of)
            if table.topic is not None:
                name(word("kafka", table.topic), f"topic {table.topic}, to which {table.name} is published", of)
    for topic in topics:  # several topologies may read one topic
        readers = [one.name for one in topologies if topic in {source.topic for source in one.sources}]
        name(word("kafka", topic), f"topic {topic}", readers[0])
    same = [found for found in things.values() if len(found) > 1]
    return [([thing for thing, _ in found], {of for _, of in found}) for found in same]


def _circle(topologies: Sequence[Topology], lakehouse: Lakehouse) -> tuple[list[dg.AssetKey], str] | None:
    """The assets that are computed from each other, and the message about them; None if there are none."""
    specs = [landing_spec(topology, source, lakehouse) for topology in topologies for source in topology.sources]
    specs += [table_spec(topology, table, lakehouse) for topology in topologies for table in topology.tables]
    specs += [published_spec(one, table) for one in topologies for table in one.tables if table.topic is not None]
    try:
        TopologicalSorter({spec.key: {dep.asset_key for dep in spec.deps} for spec in specs}).prepare()
    except CycleError as error:
        path = " -> ".join(key.to_user_string() for key in error.args[1])
        return error.args[1], f"{path}: the topologies would read their own output; publish to another topic"
    return None


def tick_job(topology: Topology, topologies: Sequence[Topology], width: int) -> "UnresolvedAssetJobDefinition":
    """The job that observes the topics (the cut), lands every topic to it, steps every table, and publishes.

    It leaves out topics that another of the `topologies` publishes to: that topology's job materializes them. At most
    `width` landings, or steps, run side by side.
    """
    keys = [topic_key(source.topic) for source in topology.sources if source.topic in observed(topologies)]
    keys += [table_key(topology, source.landing) for source in topology.sources]
    keys += [table_key(topology, table.name) for table in topology.tables]
    keys += [topic_key(table.topic) for table in topology.tables if table.topic is not None]
    return dg.define_asset_job(
        tick_name(topology),
        selection=dg.AssetSelection.assets(*keys),
        description=f"One tick of {topology.name}: everything on its topics, at one cut.",
        tags={TOPOLOGY_TAG: topology.name},
        executor_def=threads(width),
    )


def _topics(topologies: Sequence[Topology]) -> dg.AssetsDefinition:
    """The observed topics. Their data version is their end offsets; observing them captures the run's cut."""
    topics = observed(topologies)

    def observe(context: dg.AssetExecutionContext) -> Iterator[dg.ObserveResult]:
        tidetable: Tidetable = context.resources.tidetable
        wanted = {key.path[-1] for key in context.selected_asset_keys}
        ends: dict[str, TopicOffsets] = {}
        with retried():
            for topology in topologies:
                if wanted >= {source.topic for source in topology.sources}:
                    cut = tidetable.cut(topology, context.run.run_id)
                    ends |= {topic.partition("/")[2]: offsets for topic, offsets in cut.items()}
            if missing := wanted - ends.keys():
                ends |= tidetable.ports().kafka.end_offsets(missing)
        for topic in sorted(wanted):
            offsets = ends[topic].offsets
            yield dg.ObserveResult(
                asset_key=topic_key(topic),
                data_version=dg.DataVersion(",".join(f"{p}:{offset}" for p, offset in sorted(offsets.items()))),
                metadata={
                    "kafka/end_offsets": metadata.offsets(offsets),
                    "kafka/end_offset": sum(offsets.values()),
                    "kafka/partitions": len(offsets),
                },
            )

    with without_beta_warnings():
        made: dg.AssetsDefinition = dg.multi_observable_source_asset(
            specs=[topic_spec(topic) for topic in topics],
            name="topics",
            can_subset=True,
            required_resource_keys={"tidetable"},
        )(observe)
    return made


def _landing(topology: Topology, source: Source, lakehouse: Lakehouse) -> dg.AssetsDefinition:
    path, name = lakehouse.table(topology.name, source.landing), f"{topology.name}/{source.landing}"
    spec = landing_spec(topology, source, lakehouse)

    @dg.multi_asset(
        name=word(topology.name, "landing", source.topic),
        specs=[spec],
        check_specs=[checks.quarantine_spec(spec.key), checks.gaps_spec(spec.key)],
        pool=name,
    )
    def landing(
        context: dg.AssetExecutionContext, tidetable: dg.ResourceParam[Tidetable]
    ) -> Iterator[dg.AssetCheckResult | dg.MaterializeResult[None]]:
        def far(landed: Landed) -> None:
            context.log.info(f"{landed.records:,} records landed, {landed.left:,} offsets left")
            check_terminated()

        with retried():
            ports, cut = tidetable.ports(), tidetable.cut(topology, context.run.run_id)
            # Read before the landing: if the broker failed after the commit, the retry would report no records.
            written = ports.kafka.end_offsets([source.topic], read_committed=False)[source.topic].offsets
            ends = ports.kafka.end_offsets([source.topic], topology.settings.exactly_once)[source.topic].offsets
            landed = land(
                ports,
                topology,
                source,
                cut,
                context.run.run_id,
                say=far,
            )
        lag = sum(max(0, end - landed.end.get(partition, 0)) for partition, end in ends.items())
        open_records = sum(in_transactions(source.topic, ends, written).values())
        yield _materialized(path, StoredTable(name, path).state(), metadata.of_landing(landed, lag, open_records))
        yield checks.accounted(counted(lakehouse, topology, source))
        at = landed.position
        yield checks.whole(at.gaps, describe_first_offsets(source.topic, at.floor), at.cleaned)

    return landing


def _table(topology: Topology, table: Table, lakehouse: Lakehouse, suite: Suite | None) -> dg.AssetsDefinition:
    path, name = lakehouse.table(topology.name, table.name), f"{topology.name}/{table.name}"
    spec = table_spec(topology, table, lakehouse)
    specs = [] if suite is None else [checks.check_spec(suite, spec.key)]
    if waits := topology.settings.max_task_idle_ms > 0:
        specs.append(checks.sync_spec(spec.key))
    if captured := may_have(topology, table):
        specs.append(checks.unknown_spec(spec.key))

    @dg.multi_asset(
        name=word(topology.name, table.name),
        specs=[spec],
        check_specs=specs,
        pool=name,
    )
    def stepping(
        context: dg.AssetExecutionContext, tidetable: dg.ResourceParam[Tidetable]
    ) -> Iterator[dg.AssetCheckResult | dg.MaterializeResult[None]]:
        gate = None if suite is None else SuiteGate(topology, table, suite)
        try:
            with retried():
                release(tidetable.ports(), topology, context.run.run_id)
                stepped = step_or_rebuild(tidetable.ports(), topology, table, context.run.run_id, gate)
        except dg.Failure as failure:
            # The check reports the reason; the failure stops downstream steps in this run.
            if suite is not None and isinstance(failure.__cause__, Refused):
                yield checks.refused(suite, failure.__cause__.verdict)
            raise
        state = stepped.after
        yield _materialized(path, state, metadata.of_step(stepped))
        if suite is not None and gate is not None:
            # If this run lost the race, its verdict does not count: another run committed the rows.
            yield checks.passed(suite, gate.verdict if stepped.outcome == "stepped" else None, state)
        if waits:
            yield checks.synchronised(concerning(topology, table.name, waiting(lakehouse, topology)))
        if captured:
            yield checks.known(unknown_values(lakehouse, topology, table))

    return stepping


def _published(topology: Topology, table: Table, lakehouse: Lakehouse) -> dg.AssetsDefinition:
    stored = StoredTable.of(lakehouse, topology.name, table.name)
    assert table.topic is not None, "only what has a topic is published"

    @dg.multi_asset(
        name=word("kafka", table.topic),
        specs=[published_spec(topology, table)],
        pool=group(topology, table),
        config_schema={"skip_refused": SKIP_REFUSED, "repeat": REPEAT},
    )
    def publishing(
        context: dg.AssetExecutionContext, tidetable: dg.ResourceParam[Tidetable]
    ) -> Iterator[dg.MaterializeResult[None]]:
        with retried():
            done = publish(
                tidetable.ports(),
                topology,
                table,
                lambda sent, records: context.log.info("%s records, version %s", records, sent.version),
                skip_refused=context.op_execution_context.op_config["skip_refused"],
                repeat=context.op_execution_context.op_config["repeat"],
            )
            for refused in done.skipped:
                context.log.warning("left out: %s", refused)
            unpublished = unpublished_versions(stored, done.after)
        version = "none" if done.after is None else str(done.after.version)
        found = metadata.of_publish(done, unpublished)
        yield dg.MaterializeResult(metadata=found, data_version=dg.DataVersion(version))

    return publishing


def _materialized(path: str, state: State | None, entries: metadata.Metadata) -> dg.MaterializeResult[None]:
    """The result of an op, reported even without changes: a skipped asset would skip all downstream ones."""
    if state is None:
        return dg.MaterializeResult(metadata=entries, data_version=dg.DataVersion("none"))
    return dg.MaterializeResult(
        metadata=entries | metadata.of_table(path, state), data_version=dg.DataVersion(str(state.data_version))
    )
