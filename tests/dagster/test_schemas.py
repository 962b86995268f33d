"""`tidetable schema`: the schemas of a topic, and the declaration by them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from dagster_project.cli import main
from spark.topology import Consumed
from tests.debezium.recording import registered

if TYPE_CHECKING:
    from pathlib import Path

    from resources.registry import Registry

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {
            "name": "home",
            "type": {"type": "record", "name": "Home", "fields": [{"name": "zip code", "type": "string"}]},
        },
        {"name": "_deleted", "type": "boolean"},
        {"name": "next", "type": ["null", "Order"]},
    ],
}


def run(registry: Registry, *words: str) -> str:
    environment = {"TIDETABLE_SCHEMA_REGISTRY_URL": registry.address}
    return CliRunner(env=environment).invoke(main, ["schema", *words]).output


def test_the_declaration_of_a_topic_is_printed_and_is_valid(registry: Registry) -> None:
    order = json.loads(json.dumps(ORDER).replace("zip code", "zip"))
    registry.register("declared-key", "AVRO", '"long"')
    number = registry.register("declared-value", "AVRO", json.dumps(order))
    told = run(registry, "declare", "declared")
    value = "amount decimal(12,2), at timestamp, tags array<string>, home struct<zip:string>"
    call = f'Consumed.avro(key="id bigint", value="{value}")'
    assert told.splitlines() == [
        "# left out of the value: _deleted, which is no name of a column",
        "# left out of the value: next, which no type can hold",
        f'declared = builder.table("declared", {call})',
    ]
    assert isinstance(eval(call, {"Consumed": Consumed}), Consumed)
    shown = json.loads(run(registry, "show", "declared", "--json"))
    assert [(one["part"], len(one["schemas"])) for one in shown["subjects"]] == [("key", 1), ("value", 1)]
    assert f"schema {number}, AVRO" in run(registry, "show", "declared")


def test_the_declaration_of_a_debezium_topic_is_that_of_its_table(registry: Registry) -> None:
    recorded = {one.subject: one.schema for one in registered("shop")}  # the newest of each
    for part in ("key", "value"):
        registry.register(f"captured-{part}", "AVRO", recorded[f"shop.public.accounts-{part}"])
    call = (
        'Consumed.debezium(key="region string, number int", value="balance decimal(12,2), memo string", format="avro")'
    )
    assert run(registry, "declare", "captured").splitlines() == [f'captured = builder.table("captured", {call})']
    assert isinstance(eval(call, {"Consumed": Consumed}), Consumed)


def test_a_topic_without_subjects_and_a_missing_registry_say_what_to_do(registry: Registry, tmp_path: Path) -> None:
    assert "--value-subject" in run(registry, "declare", "nobodys")
    registry.register("Plain", "AVRO", '"string"')
    told = run(registry, "declare", "plain", "--value-subject", "Plain")
    assert 'Consumed.avro(key="key string", value="value string", key_format="kafka")' in told
    none = CliRunner(env={"TIDETABLE_LAKE": str(tmp_path)}).invoke(main, ["schema", "show", "orders"])
    assert none.exit_code == 1
    assert "tidetable up --registry" in none.output


@pytest.mark.parametrize("registry_url", ["http://ann:planted@registry", "registry:8081"])
def test_a_url_that_is_none_is_refused_and_not_shown(registry_url: str, tmp_path: Path) -> None:
    environment = {"TIDETABLE_LAKE": str(tmp_path), "TIDETABLE_SCHEMA_REGISTRY_URL": registry_url}
    told = CliRunner(env=environment).invoke(main, ["schema", "show", "orders"]).output
    assert "TIDETABLE_SCHEMA_REGISTRY_URL is not the URL of a registry" in told
    assert "planted" not in told
