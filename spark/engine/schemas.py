"""The schemas by which the records of a topic decode: asked of its registry, and compared with the declaration.

With subjects named by topic (`<topic>-key`, `<topic>-value`), one request gives the versions of a subject. It is made
after the cut was captured, and an id is registered before a record has it, so the versions have the ids of all records.
A record of another id, as with subjects named by record, fails the query; then the ids of all records are read, and
each is looked up. Subjects named by record are so known after their first landing in a process.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from spark.engine.errors import EngineUnlimited, RegistryUnavailable, SchemaMismatch
from spark.engine.executors import passed, tasks
from spark.serdes import avro
from spark.serdes.records import check
from spark.serdes.schemas import NO_SCHEMAS, UNKNOWN, Schemas
from spark.topology.formats import WITH_REGISTRY

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrame, SparkSession

    from spark.engine.ports import Ports, Registry
    from spark.serdes.part import Part
    from spark.serdes.schemas import Schema
    from spark.topology.topology import Source

LIMITS: Final = {
    # A record is at most as long as a topic allows; these are more. Without them a forged length of 2 GB ends the JVM.
    "org.apache.avro.limits.string.maxLength": 128 * 2**20,
    "org.apache.avro.limits.bytes.maxLength": 128 * 2**20,
    # Items of no bytes are possible, so a short record can ask for any number of them.
    "org.apache.avro.limits.collectionItems.maxLength": 10_000_000,
}
"""System properties of the JVM that bound what Avro allocates for one record, in bytes and in items."""

_seen: defaultdict[tuple[str, str, Part], set[int]] = defaultdict(set)
"""By registry, topic and part, the ids that records had without being versions of the subject."""

_LIMITED: Final = "limits"
"""The name of the check of `LIMITS`."""


def java_options() -> list[str]:
    """The options of a JVM that decodes Avro."""
    return [f"-D{name}={value}" for name, value in LIMITS.items()]


def parts_with_schemas(source: Source) -> tuple[Part, ...]:
    """The parts of a topic's records that name schemas of a registry."""
    formats: dict[Part, str] = {"key": source.consumed.key_format, "value": source.consumed.format}
    return tuple(part for part, format_ in formats.items() if format_ in WITH_REGISTRY)


def registry_of(ports: Ports, source: Source) -> Registry:
    """The registry of a topic.

    Raises:
        RegistryUnavailable: there is none.
    """
    return registry_at(ports, source.consumed.registry, f"topic {source.topic} is in {source.consumed.format}")


def registry_at(ports: Ports, url: str | None, what: str) -> Registry:
    """The registry at a URL, or that of the settings; `what` needs it.

    Raises:
        RegistryUnavailable: there is none.
    """
    if ports.registry is None:
        if url is not None:
            raise RegistryUnavailable(
                f"{what}, and registry={url} needs TIDETABLE_SCHEMA_REGISTRY_URL too: set it, to the same URL if there "
                "is no other registry"
            )
        raise RegistryUnavailable(
            f"{what}, whose schemas are in a registry, and none is set: set TIDETABLE_SCHEMA_REGISTRY_URL, or start "
            "one of the lake's own: tidetable up --registry"
        )
    return ports.registry if url is None else ports.registry.at(url)


def schemas_of(ports: Ports, source: Source, records: DataFrame, *, scan: bool) -> Mapping[Part, Schemas]:
    """Return the schemas of the parts of a topic's records.

    Args:
        ports: the connections.
        source: the topic.
        records: its records, with the columns `key` and `value`.
        scan: whether to read the ids of the records; without a subject they are read in any case.

    Raises:
        RegistryUnavailable: the registry does not answer, or there is none.
        SchemaMismatch: the newest schema of the subject, or every schema of the records, cannot be read as declared.
    """
    found: dict[Part, Schemas] = {"key": NO_SCHEMAS, "value": NO_SCHEMAS}
    parts = parts_with_schemas(source)
    if not parts:
        return found
    registry = registry_of(ports, source)
    for part in parts:
        versions = registry.versions(f"{source.topic}-{part}")
        seen = _seen[registry.address, source.topic, part]
        if scan or not (versions or seen):
            ids = _ids(records, part)
            others = {number: registry.schema(number) for number in sorted(ids - {one.id for one in versions})}
            seen |= {number for number, schema in others.items() if schema is not None}
            missing = frozenset(number for number, schema in others.items() if schema is None)
            found[part] = Schemas(_by_id([registry.schema(one) for one in sorted(seen)], versions), missing)
        else:
            found[part] = Schemas(_by_id(map(registry.schema, sorted(seen)), versions), is_complete=False)
        _check(source, part, found[part], bool(versions))
    return found


def has_unknown_id(error: PySparkException) -> bool:
    """Return whether a query failed because a record has a schema id that was not looked up."""
    return UNKNOWN in str(error)


def check_limits(ports: Ports, session: SparkSession, source: Source) -> None:
    """Check that the engine bounds what Avro allocates for a record, if the topic has any; once per engine and process.

    Raises:
        EngineUnlimited: it does not.
    """
    if not parts_with_schemas(source) or (_LIMITED, ports.engine) in passed:
        return
    names = [F.java_method(F.lit("java.lang.System"), F.lit("getProperty"), F.lit(name)) for name in LIMITS]
    rows = tasks(session).select(*names).distinct().collect()
    if any(value is None or not value.isdecimal() for row in rows for value in row):
        options = " ".join(java_options())
        raise EngineUnlimited(
            f"topic {source.topic} is in {source.consumed.format}, and the engine has no limit for the lengths in its "
            f"records: one broken record could end it. Start its driver and its executors with {options} "
            "(spark.driver.extraJavaOptions, spark.executor.extraJavaOptions)"
        )
    passed.add((_LIMITED, ports.engine))


def _by_id(others: Iterable[Schema | None], versions: tuple[Schema, ...]) -> dict[int, Schema]:
    """Return schemas by id; the newest version of the subject is the last."""
    return {schema.id: schema for schema in others if schema is not None} | {one.id: one for one in versions}


def _ids(records: DataFrame, part: Part) -> set[int]:
    ids = records.select(avro.id_of(part).alias("id")).distinct().where("id IS NOT NULL")
    return {int(row["id"]) for row in ids.collect()}


def _check(source: Source, part: Part, schemas: Schemas, has_subject: bool) -> None:
    """Compare a declaration with the newest schema of a subject; without a subject, with the schemas of the records.

    Raises:
        SchemaMismatch: the newest one cannot be read as declared, or none of the records' can.
    """
    try:
        check(part, source.consumed, schemas, newest_only=has_subject)
    except avro.Mismatch as error:
        raise SchemaMismatch(
            f"topic {source.topic}, {part} (declared at {source.line}): {error}. "
            f"`tidetable schema declare {source.topic}` prints a declaration"
        ) from error
