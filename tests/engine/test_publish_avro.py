"""Tables published in Avro: read by confluent-kafka's deserializer, with schemas that change and one id for keys."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import confluent_kafka
import pyarrow as pa  # type: ignore[import-untyped]  # it has no types
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from deltalake import DeltaTable, QueryBuilder

from resources.engine import SESSION
from resources.process import free_port
from resources.publisher import Publisher
from resources.registry import Registry
from spark.engine import publish as publishing
from spark.engine.errors import (
    ColumnRefused,
    KeySchemaLost,
    PlanChanged,
    RecordRefused,
    RegistryRefused,
    RegistryUnavailable,
)
from spark.engine.publish import publish
from spark.engine.publishing import position
from spark.engine.publishing.position import PublishedPosition, group, published_position
from spark.engine.rebuild import rebuild
from spark.serdes.framing import header_for, schema_id
from spark.topology import Consumed, Produced, StreamsBuilder
from tests.support import lake
from tests.support.lake import Record, received, send

if TYPE_CHECKING:
    from collections.abc import Callable

    from resources.kafka import Kafka
    from spark.engine.ports import Ports
    from spark.engine.publish import Published
    from spark.topology import Topology
    from tests.support.lake import Told

TYPES: dict[str, tuple[object, object]] = {
    "boolean": (True, False),
    "tinyint": (-128, 127),
    "smallint": (-(2**15), 2**15 - 1),
    "int": (-(2**31), 2**31 - 1),
    "bigint": (-(2**63), 2**63 - 1),
    "float": (-0.1, 3.4028234663852886e38),
    "double": (-0.1, 1.7976931348623157e308),
    "decimal(12,2)": (Decimal("-9999999999.99"), Decimal("0.10")),
    "decimal(38,10)": (Decimal("-1234567890123456789012345678.0123456789"), Decimal("0E-10")),
    "string": ("zwölf ☃ 😀", ""),
    "binary": (b"\x00\xff", b""),
    "date": (date(1, 1, 1), date(9999, 12, 31)),
    "timestamp": (datetime(1, 1, 1, tzinfo=UTC), datetime(2026, 11, 24, 12, 0, 0, 123456, UTC)),
    "timestamp_ntz": (datetime(1582, 10, 10, 1), datetime(9999, 12, 31, 23, 59, 59, 999999)),
    "array<string>": (["a", None, ""], []),
    "array<array<int>>": ([[1], None, [None]], [[]]),
    "map<string,decimal(5,2)>": ({"a": Decimal("1.50"), "b": None}, {}),
    "struct<city:string,at:struct<lat:double>>": ({"city": "Oslo", "at": {"lat": 59.9}}, {"city": None, "at": None}),
    "array<struct<sku:string,n:bigint>>": ([{"sku": "pen", "n": 2**40}, None, {"sku": None, "n": None}], []),
}
"""By type two values, as an Avro reader of Python has them."""

COLUMNS = {f"v{number}": kind for number, kind in enumerate(TYPES)}
WIDE = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())


def as_json(value: object) -> object:
    """A value as `Consumed.json` reads it."""
    match value:
        case dict():
            return {name: as_json(one) for name, one in value.items()}
        case list():
            return [as_json(one) for one in value]
        case bytes():
            return base64.b64encode(value).decode()
        case Decimal():
            return format(value, "f")
        case date():
            return value.isoformat()
        case _:
            return value


@dataclass(frozen=True)
class World:
    """One topic, published in Avro to another."""

    ports: Ports
    kafka: Kafka
    registry: Registry
    items: str
    sink: str

    def topology(self, value: str, produced: Produced = Produced.avro(), *select: str) -> Topology:  # noqa: B008  # frozen
        """The topic's table, or a view of it, published."""
        builder = StreamsBuilder(f"published-{self.items}")
        table = builder.table(self.items, Consumed.json(key="id bigint", value=value))
        (table.map_values(select).materialize("view") if select else table).to(self.sink, produced)
        return builder.build()

    def arrive(self, topology: Topology, *changes: tuple[int, Any]) -> None:
        """Send rows by their keys, land and step."""
        send(self.kafka, self.items, *(Record(key, value) for key, value in changes))
        lake.land_all(self.ports, topology)
        lake.step_all(self.ports, topology)

    def publish(self, topology: Topology) -> Published:
        """Bring the topic to the table's newest version."""
        return publish(self.ports, topology, topology.tables[-1])

    def told(self) -> list[Told]:
        """What a reader of committed records has."""
        return received(self.kafka, self.sink)

    def read(self, reader: object = None) -> list[tuple[Any, Any]]:
        """Keys and values, read by Confluent's deserializer, by the schemas of the records or by one of its own."""
        with SchemaRegistryClient({"url": self.registry.address}) as client:
            read_key = AvroDeserializer(client)
            read = AvroDeserializer(client, None if reader is None else json.dumps(reader))
            of_key = SerializationContext(self.sink, MessageField.KEY)
            of_value = SerializationContext(self.sink, MessageField.VALUE)
            return [(read_key(one.key, of_key), read(one.value, of_value)) for one in self.told()]

    def ids(self, part: str) -> list[int]:
        """The ids of the schemas of the versions of a subject."""
        return [schema.id for schema in self.registry.versions(f"{self.sink}-{part}")]


@pytest.fixture(scope="module")
def landed(ports: Ports, kafka: Kafka, registry: Registry, topic: Callable[..., str]) -> World:
    """A table of one row, which tests publish to topics of their own."""
    world = World(replace(ports, registry=registry), kafka, registry, topic("items"), "any")
    world.arrive(world.topology("amount int"), (1, {"amount": 1}))
    return world


@pytest.fixture
def fresh(landed: World, topic: Callable[..., str]) -> World:
    """The table of one row, and a topic that has nothing of it."""
    return replace(landed, sink=topic("avro.sink"))


@pytest.fixture
def world(ports: Ports, kafka: Kafka, registry: Registry, topic: Callable[..., str]) -> World:
    return World(replace(ports, registry=registry), kafka, registry, topic("items"), topic("avro.sink", 4))


def stored(ports: Ports, topology: Topology, name: str) -> list[dict[str, Any]]:
    """The user's columns of a table, by key."""
    names = ", ".join(f'"{one.name}"' for one in topology.table(name).plan.columns)
    found = QueryBuilder().register("t", DeltaTable(lake.path(ports, topology, name)))
    rows: list[dict[str, Any]] = pa.table(found.execute(f"SELECT {names} FROM t ORDER BY id")).to_pylist()
    return rows


def test_every_type_is_read_by_confluents_deserializer_and_comes_back_as_the_same_table(world: World) -> None:
    topology = world.topology(WIDE)
    wanted: dict[int, dict[str, object] | None] = {
        key: {name: pair[key] for name, pair in zip(COLUMNS, TYPES.values(), strict=True)} for key in (0, 1)
    }
    wanted[2] = dict.fromkeys(COLUMNS)
    world.arrive(topology, *((key, as_json(value)) for key, value in wanted.items()))
    world.publish(topology)
    found = dict(world.read())
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        assert value is not None
        for name, one in value.items():
            exact = pytest.approx(one, rel=1e-7) if COLUMNS[name] == "float" and one is not None else one
            assert found[key][name] == exact, (COLUMNS[name], found[key][name])
    parts = {(one.key, one.partition) for one in world.told()}
    assert all(confluent_kafka.murmur2(key or b"", 4) == partition for key, partition in parts)

    builder = StreamsBuilder(f"again-{world.items}")
    builder.table(world.sink, Consumed.avro(key="id bigint", value=WIDE))
    again = builder.build()
    lake.land_all(world.ports, again)
    lake.step_all(world.ports, again)
    rows = stored(world.ports, topology, world.items)
    assert len(rows) == 3
    assert stored(world.ports, again, world.sink) == rows

    world.arrive(topology, (1, None))
    world.publish(topology)
    [gone] = [one for one in world.told() if one.value is None]
    assert (gone.key, gone.partition) in parts  # the tombstone has the bytes of the record's key
    assert (len(world.ids("key")), len(world.ids("value"))) == (1, 1)


@pytest.mark.thorough
def test_keys_of_several_columns_streams_headers_and_names_of_subjects(
    ports: Ports, kafka: Kafka, registry: Registry, topic: Callable[..., str]
) -> None:
    ports, items, sink, seen = replace(ports, registry=registry), topic("items"), topic("sums"), topic("seen")
    builder = StreamsBuilder(f"several-{items}")
    stream = builder.stream(items, Consumed.json(key="id bigint", value="a string, n int", headers="headers"))
    stream.to(
        seen, Produced.avro(name=f"test.{seen}".replace("-", "_"), subject_name_strategy="record", headers="headers")
    )
    grouped = stream.map_values(["id", "a", "n", "id % 2 = 0 AS even"]).group_by("a", "even").aggregate(sum="sum(n)")
    named = Produced.avro(name="test.Sum", subject_name_strategy="topic_record", registry=registry.address)
    grouped.materialize("sums").to(sink, named)
    topology = builder.build()
    producer = kafka.producer()
    producer.produce(items, key=b"1", value=b'{"a": "x", "n": 1}', headers=[("trace", b"1")])
    producer.produce(items, key=b"2", value=b'{"a": "x", "n": 2}')
    producer.produce(items, key=None, value=b'{"a": "y", "n": 3}')
    assert producer.flush(30) == 0
    lake.land_all(ports, topology)
    lake.step_all(ports, topology)
    for table in topology.tables:
        publish(ports, topology, table)
    world = World(ports, kafka, registry, items, sink)
    pairs = sorted(world.read(), key=str)
    assert pairs[:2] == [
        ({"a": "x", "even": False}, {"sum": 1}),
        ({"a": "x", "even": True}, {"sum": 2}),
    ]
    assert len(registry.versions(f"{sink}-test.Sum")) == 1
    assert '"name":"SumKey"' in registry.versions(f"{sink}-key")[0].text.replace('": "', '":"')
    records = received(kafka, seen)
    assert [one.headers.get("trace") for one in records] == ["1", None, None]
    assert World(ports, kafka, registry, items, seen).read() == [
        (1, {"a": "x", "n": 1}),
        (2, {"a": "x", "n": 2}),
        (None, {"a": "y", "n": 3}),
    ]
    assert len(registry.versions(f"test.{seen}".replace("-", "_"))) == 1


def test_new_and_wider_columns_are_new_schemas_and_what_the_registry_refuses_is_not_sent(world: World) -> None:
    first, more = world.topology("amount int"), world.topology("amount bigint, note string")
    world.arrive(first, (1, {"amount": 1}), (2, {"amount": 2}))
    world.publish(first)
    subject = f"{world.sink}-value"
    with SchemaRegistryClient({"url": world.registry.address}) as client:
        client.set_compatibility(subject, "BACKWARD")
    world.arrive(more, (3, {"amount": 2**40, "note": "c"}))
    assert world.publish(more).records == 1  # what the others have did not change
    wanted = [(1, {"amount": 1}), (2, {"amount": 2}), (3, {"amount": 2**40, "note": "c"})]
    assert sorted(world.read(), key=lambda pair: int(pair[0])) == wanted
    assert {schema_id(one.key or b"") for one in world.told()} == set(world.ids("key"))
    assert len(world.ids("value")) == 2
    newest = json.loads(world.registry.versions(subject)[-1].text)
    assert {"amount": 2, "note": None} in [value for _, value in world.read(newest)]

    # Somebody else has registered the next column as a text.
    newest["fields"].append({"name": "extra", "type": ["null", "string"], "default": None})
    world.registry.register(subject, "AVRO", json.dumps(newest))
    extra = world.topology("amount bigint, note string, extra int")
    world.arrive(extra, (3, {"amount": 3, "extra": 7}))
    table = extra.tables[-1]
    before = published_position(world.kafka, extra, table)
    with pytest.raises(RegistryRefused) as refused:
        world.publish(extra)
    words = str(refused.value)
    assert all(part in words for part in (f"topic {world.sink}: ", subject, "BACKWARD", "at tests/", '"extra"')), words
    assert published_position(world.kafka, extra, table) == before
    assert (len(world.told()), len(world.ids("value"))) == (3, 3)
    with SchemaRegistryClient({"url": world.registry.address}) as client:
        client.set_compatibility(subject, "NONE")
    assert world.publish(extra).records == 1
    assert [value for key, value in world.read() if key == 3][-1] == {"amount": 3, "note": None, "extra": 7}


class Crash(Exception):
    """What ends a publisher between two effects."""


def test_a_publisher_that_died_between_registering_and_sending_begins_again_with_the_same_ids(
    fresh: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    topology = fresh.topology("amount int")

    def crash(*_: object) -> None:
        raise Crash

    with monkeypatch.context() as patched:
        patched.setattr(Publisher, "send", crash)
        with pytest.raises(Crash):
            fresh.publish(topology)
    ids = fresh.ids("key"), fresh.ids("value")
    assert [len(one) for one in ids] == [1, 1]
    assert fresh.told() == []
    fresh.publish(topology)
    assert (fresh.ids("key"), fresh.ids("value")) == ids
    assert [(schema_id(one.key or b""), schema_id(one.value or b"")) for one in fresh.told()] == [(*ids[0], *ids[1])]


@pytest.mark.thorough
def test_a_version_that_was_begun_is_ended_by_the_schema_it_had_and_nothing_is_sent_twice(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the present columns have another schema, by which the topic has nothing yet."""
    value = "amount int, note string"
    both, one = (world.topology(value, Produced.avro(), *columns) for columns in (("amount", "note"), ("amount",)))
    monkeypatch.setattr(publishing, "BATCH", 2)

    def crash(*_: object) -> None:
        raise Crash

    world.arrive(both, *((key, {"amount": 1, "note": ""}) for key in range(1, 7)))
    world.publish(both)
    first = world.told()
    world.arrive(both, *((key, {"amount": 2, "note": ""}) for key in range(3, 7)))
    with pytest.raises(Crash):  # behind two of the four that changed
        publish(world.ports, both, both.tables[-1], crash)
    rebuild(world.ports, one, one.tables[-1], "rebuild")
    assert world.publish(one).records == 2
    changed = [pair for pair in world.read() if pair[1]["amount"] == 2]
    assert sorted(changed, key=str) == [(key, {"amount": 2, "note": ""}) for key in range(3, 7)]
    assert len(world.told()) == len(first) + 4


def test_a_key_that_was_replaced_is_not_taken_for_a_schema_that_the_registry_lost(
    landed: World, topic: Callable[..., str]
) -> None:
    world = replace(landed, sink=topic("avro.sink"))

    def counted(kind: str) -> Topology:
        builder = StreamsBuilder(f"counted-{world.items}")
        table = builder.table(world.items, Consumed.json(key="id bigint", value="amount int"))
        counts = table.map_values([f"CAST(amount AS {kind}) AS n"]).group_by("n").count()
        counts.materialize("counts").to(world.sink, Produced.avro())
        return builder.build()

    made = counted("int")
    lake.land_all(world.ports, made)
    lake.step_all(world.ports, made)
    world.publish(made)
    wider = counted("bigint")
    rebuild(world.ports, wider, wider.tables[-1], "rebuild")
    with pytest.raises(PlanChanged, match=r'key of counts .* was written as "int" and is "long" now: .*a new topic'):
        world.publish(wider)
    assert len(world.told()) == 1


def test_a_topic_keeps_the_id_of_its_keys_schema(world: World) -> None:
    """Also behind other versions of the subject, and where the group's offset has expired."""
    topology = world.topology("amount int")
    view = topology.tables[-1]
    pinned = world.registry.register(f"{world.sink}-key", "AVRO", '{"type":"long","doc":"as somebody else wrote it"}')
    world.arrive(topology, (1, {"amount": 1}))
    world.publish(topology)
    later = world.registry.register(f"{world.sink}-key", "AVRO", '{"type":"long","doc":"another"}')
    assert later != pinned
    name = group(topology, view)
    world.kafka.admin().delete_consumer_groups([name])[name].result(10)
    world.arrive(topology, (1, {"amount": 2}))
    after = world.publish(topology).after
    assert after is not None
    assert after.key_schema_id == pinned
    found = world.told()
    assert [one.key for one in found] == [header_for(pinned) + b"\x02"] * 2
    assert [value["amount"] for _, value in world.read()] == [1, 2]

    # The registry was made anew, and gave its ids to other schemas, or does not have them.
    world.arrive(topology, (1, {"amount": 3}))
    for lost, why in (
        (2**30, "which the registry .* does not have"),
        (world.ids("value")[0], "which the registry .* has for another schema"),
    ):
        was = replace(after, key_schema_id=lost)
        with world.kafka.publishing(name, world.sink, exactly_once=True) as publisher:
            publisher.commit(was.version, was.to_json())
        with pytest.raises(KeySchemaLost, match=rf"topic {world.sink}: its keys have the schema id {lost}, {why}"):
            world.publish(topology)
    assert len(world.told()) == 2

    as_json_now = world.topology("amount int", Produced.json())
    with pytest.raises(PlanChanged, match=r"by the schema \d+ of a registry, and key_format is json now"):
        world.publish(as_json_now)


def test_keys_without_a_schema_are_not_followed_by_keys_with_one(
    fresh: World, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = fresh.topology("amount int", Produced.json())
    after = fresh.publish(made).after
    assert after is not None
    monkeypatch.setattr(position, "RECOMMIT_MS", 0)  # so that there is something to do
    for key_format, has in (("json", "in json"), (None, "without a schema")):
        was = replace(after, key_format=key_format)
        with fresh.kafka.publishing(group(made, made.tables[-1]), fresh.sink, exactly_once=True) as publisher:
            publisher.commit(was.version, was.to_json())
        with pytest.raises(PlanChanged, match=f"{has}, and key_format is avro now"):
            fresh.publish(fresh.topology("amount int"))
    mixed = replace(fresh, sink=topic("avro.mixed"))
    mixed.publish(mixed.topology("amount int", Produced.avro(key_format="json")))
    assert [(one.key, schema_id(one.value or b"")) for one in mixed.told()] == [(b"1", *mixed.ids("value"))]
    other = replace(fresh, sink=topic("avro.other"))
    other.publish(other.topology("amount int", Produced.kafka(key_format="avro")))
    assert [(schema_id(one.key or b""), one.value) for one in other.told()] == [(*other.ids("key"), b"\0\0\0\1")]


def test_keys_of_one_format_are_not_followed_by_keys_of_another(
    fresh: World, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the group's offset has expired. Of what an earlier version committed the format is unknown."""
    monkeypatch.setattr(position, "RECOMMIT_MS", 0)  # so that there is something to do
    as_json, as_kafka = (Produced.json(key_format=one) for one in ("json", "kafka"))
    for was, now in ((as_json, as_kafka), (as_kafka, as_json)):
        world = replace(fresh, sink=topic("keys.sink"))
        made = world.topology("amount int", was)
        after = world.publish(made).after
        assert after is not None
        assert world.publish(made).outcome == "idle"
        name = group(made, made.tables[-1])
        for is_lost in (False, True):
            if is_lost:
                world.kafka.admin().delete_consumer_groups([name])[name].result(10)
            with pytest.raises(PlanChanged, match=f"in {was.key_format}, and key_format is {now.key_format} now"):
                world.publish(world.topology("amount int", now))
        earlier = replace(after, key_format=None)
        with world.kafka.publishing(name, world.sink, exactly_once=True) as publisher:
            publisher.commit(earlier.version, earlier.to_json())
        done = world.publish(made)
        assert (done.before, done.after, done.records) == (earlier, after, 0)
        assert len(world.told()) == 1


@pytest.mark.parametrize("number", [None, 7])
def test_the_id_of_the_keys_is_in_the_position_and_in_the_headers_of_records(number: int | None) -> None:
    at = PublishedPosition("id", "epoch", 3, 1, key_schema_id=number)
    assert PublishedPosition.from_json(at.to_json()) == at
    assert ("key_schema_id" in at.to_json()) == (number is not None)  # what knew no schemas can read one without
    assert PublishedPosition.after_record(at.headers("t")) == replace(at, ordinal=2)


@pytest.mark.parametrize("key_format", [None, "json", "kafka"])
def test_the_format_of_the_keys_is_in_the_position_and_in_the_headers_of_records(key_format: str | None) -> None:
    at = PublishedPosition("id", "epoch", 3, 1, key_format=key_format)
    assert PublishedPosition.from_json(at.to_json()) == at
    assert ("key_format" in at.to_json()) == (key_format == "kafka")  # earlier versions can read one with JSON
    assert PublishedPosition.after_record(at.headers("t")) == replace(at, ordinal=2)


def test_without_a_registry_nothing_is_sent(fresh: World) -> None:
    topology = fresh.topology("amount int")
    away = Registry({"url": f"http://127.0.0.1:{free_port()}"})
    for registry, why in ((None, "TIDETABLE_SCHEMA_REGISTRY_URL"), (away, "does not answer")):
        with pytest.raises(RegistryUnavailable, match=why):
            publish(replace(fresh.ports, registry=registry), topology, topology.tables[-1])
    named = fresh.topology("amount int", Produced.avro(registry=fresh.registry.address))
    with pytest.raises(RegistryUnavailable, match=r"registry=http\S+ needs TIDETABLE_SCHEMA_REGISTRY_URL too"):
        publish(replace(fresh.ports, registry=None), named, named.tables[-1])
    assert fresh.told() == []
    assert fresh.publish(topology).records == 1
    # With nothing to send, no registry is asked.
    assert publish(replace(fresh.ports, registry=away), topology, topology.tables[-1]).outcome == "idle"


def test_a_type_that_only_spark_knows_is_refused_before_a_record(fresh: World) -> None:
    topology = fresh.topology("amount int", Produced.avro(), "map(amount, amount) AS m")
    lake.step_all(fresh.ports, topology)
    with pytest.raises(
        ColumnRefused, match=r"view to topic .*: 'm' is map<int,int>, and the keys .*\n  make it .*\n  at tests/"
    ):
        fresh.publish(topology)
    assert fresh.told() == []


@pytest.mark.thorough
def test_a_refused_record_is_named_by_its_bytes_and_left_out_once_the_row_was_corrected(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by an engine that is set to refuse dates before 1582."""
    mode = {"spark.sql.avro.datetimeRebaseModeInWrite": "EXCEPTION"}
    monkeypatch.setattr("resources.engine.SESSION", {**mode, **SESSION})
    builder = StreamsBuilder(f"far-{world.items}", message_timestamp_after_max_ms=None)
    shape = Consumed.json(key="id bigint", value="at bigint, day date", timestamp="at")
    builder.table(world.items, shape).to(world.sink, Produced.avro())
    topology = builder.build()
    world.arrive(topology, (1, {"at": 1_700_000_000_000, "day": "1500-01-01"}))
    world.publish(topology)
    world.arrive(topology, (7, {"at": 4_000_000_000_000, "day": "1500-01-01"}))
    with pytest.raises(RecordRefused, match=r"refuses the record of key 0x00[0-9a-f]{8}0e of .*correct the row"):
        world.publish(topology)
    world.arrive(topology, (7, {"at": 1_700_000_000_001, "day": "1500-01-01"}))
    done = world.publish(topology)
    assert (done.records, done.left_out) == (1, 1)
    day = date(1500, 1, 1)
    wanted = [(1, {"at": 1_700_000_000_000, "day": day}), (7, {"at": 1_700_000_000_001, "day": day})]
    assert sorted(world.read(), key=str) == wanted
