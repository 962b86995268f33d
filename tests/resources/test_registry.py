"""A schema registry, asked by Confluent's API."""

from __future__ import annotations

import json

import pytest
from confluent_kafka.schema_registry import Schema as ClientSchema
from confluent_kafka.schema_registry import SchemaReference, SchemaRegistryClient

from resources.process import free_port
from resources.registry import Registry
from spark.engine.errors import RegistryRefused, RegistryUnavailable

ADDRESS = '{"type":"record","name":"Address","namespace":"shop","fields":[{"name":"city","type":"string"}]}'
CUSTOMER = '{"type":"record","name":"Customer","namespace":"shop","fields":[{"name":"home","type":"shop.Address"}]}'


def record(name: str, **columns: object) -> str:
    fields = [{"name": column, "type": kind} for column, kind in columns.items()]
    return json.dumps({"type": "record", "name": name, "fields": fields})


def test_schemas_are_found_by_id_and_by_subject(registry: Registry) -> None:
    first = registry.register("found-value", "AVRO", record("Found", n="long"))
    again = registry.register("found-value", "AVRO", record("Found", n="long"))
    second = registry.register("found-value", "AVRO", record("Found", n="long", m=["null", "long"]))
    assert (first, [schema.id for schema in registry.versions("found-value")]) == (again, [first, second])
    found = registry.schema(second)
    assert found is not None
    assert found == registry.versions("found-value")[1]
    assert registry.schema(2**30) is None
    assert registry.versions("nobody-value") == ()


def test_a_schema_brings_those_that_it_refers_to(registry: Registry) -> None:
    reference = SchemaReference("shop.Address", "address", 1)
    with SchemaRegistryClient({"url": registry.address}) as client:
        client.register_schema("address", ClientSchema(ADDRESS, "AVRO"))
        number = client.register_schema("customers-value", ClientSchema(CUSTOMER, "AVRO", [reference]))
    found = registry.schema(number)
    assert found is not None
    assert (found.text, found.references) == (CUSTOMER, (ADDRESS,))


def test_an_incompatible_schema_is_refused_by_name(registry: Registry) -> None:
    registry.register("strict-value", "AVRO", record("Strict", n="long"))
    with SchemaRegistryClient({"url": registry.address}) as client:
        client.set_compatibility("strict-value", "BACKWARD")
    with pytest.raises(RegistryRefused, match=r"strict-value.*BACKWARD"):
        registry.register("strict-value", "AVRO", record("Strict", n="string"))
    with pytest.raises(RegistryRefused, match="strict-value"):
        registry.register("strict-value", "AVRO", '{"type":"nonsense"}')
    assert registry.compatibility("strict-value") == "BACKWARD"


def test_a_registry_that_is_away_is_named_with_its_setting_and_without_its_secrets() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    away = Registry({"url": url, "basic.auth.user.info": "ann:planted"}, "TIDETABLE_SCHEMA_REGISTRY_URL")
    with pytest.raises(RegistryUnavailable, match="TIDETABLE_SCHEMA_REGISTRY_URL") as caught:
        away.schema(1)
    assert url in str(caught.value)
    assert "planted" not in f"{caught.value} {away!r}"


def test_a_server_that_is_no_registry_is_not_taken_for_one_without_the_schema(registry: Registry) -> None:
    elsewhere = Registry({"url": registry.address.replace("/ccompat", "/nothing")})
    with pytest.raises(RegistryUnavailable, match="404"):
        elsewhere.schema(1)
    with pytest.raises(RegistryUnavailable, match="404"):
        elsewhere.versions("found-value")


def test_credentials_are_not_sent_to_the_registry_of_a_topic(registry: Registry) -> None:
    ours = Registry({"url": "https://registry:8081", "basic.auth.user.info": "ann:planted"})
    assert ours.at("https://registry:8081/") is ours
    assert ours.at(registry.address).config == {"url": registry.address}
    assert ours.at(registry.address) is ours.at(registry.address)
    assert ours.at(registry.address).setting == "registry= of the topic"
